# The guest's kernel as an NVMe over RDMA host (nvme-rdma on soft-RoCE) of roce-nvmf. Sourced by scripts/interop/run.
# shellcheck shell=bash

# The target has two namespaces: a file (512 bytes a block) and memory (4096). Each cell begins with a target that serves, and
# connects if it finds the host not connected, so that --only can select any of them.

# What the guest's commands begin with.
prelude() {
    cat <<'TEXT'
set -e
nqn=nqn.2024-01.org.example:disks id=11111111-2222-3333-4444-555555555555
to="-t rdma -a 10.99.0.10 -s 4420 --hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id --hostid=$id"
# wait_for CODE: until it holds, two minutes at most.
wait_for() {
    end=$(($(date +%s) + 120))
    until eval "$1"; do
        [ "$(date +%s)" -lt $end ] || { echo "in 120 s not seen: $1"; dmesg | tail -n 20; exit 1; }
        usleep 50000
    done
}
# The controller, its state, and the disk of a namespace.
ctrl() { ls /sys/class/nvme | sed -n 1p; }
state() { cat "/sys/class/nvme/$(ctrl)/state" 2>/dev/null; }
disk() {
    for path in /sys/block/nvme*n*; do
        case ${path##*/} in nvme*c*n*) continue ;; esac
        [ "$(cat "$path/nsid" 2>/dev/null)" != "$1" ] || echo "/dev/${path##*/}"
    done
}
bytes() { blockdev --getsize64 "$(disk "$1")"; }
connect() {
    nvme connect $to -n $nqn --keep-alive-tmo=5 --reconnect-delay=1 "$@" >/dev/null
    wait_for '[ -b "$(disk 1)" ] && [ -b "$(disk 2)" ]'
}
disconnect() {
    nvme disconnect -n $nqn >/dev/null || true
    wait_for '[ -z "$(ls /sys/class/nvme)" ]'
}
# fresh OPTIONS: a new connection with these. connected: one with any.
fresh() { disconnect; connect "$@"; }
connected() { [ "$(state)" = live ] || fresh --nr-io-queues=1; }
sent() { cat /sys/class/net/eth0/statistics/tx_bytes; }
# verified OPTIONS: fio writes blocks of the first disk, and reads and checks each.
verified() {
    fio --name=v --filename="$(disk 1)" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --verify=crc32c --do_verify=1 \
        --verify_fatal=1 --group_reporting "$@" >/tmp/fio.$$ 2>&1 || { cat /tmp/fio.$$; return 1; }
    grep -q 'err= 0' /tmp/fio.$$
}
# same DISK BYTES OPTIONS: random bytes at the start of a disk are there when they are read again, in blocks of BYTES.
same() {
    head -c 1048576 /dev/urandom >/tmp/written
    dd if=/tmp/written of="$1" bs="$2" oflag=direct 2>/dev/null
    dd if="$1" of=/tmp/read bs="$2" count=$((1048576 / $2)) iflag=direct 2>/dev/null
    cmp /tmp/written /tmp/read
}
TEXT
}

# in_guest CODE: runs it there. Options of the target's command line may follow serve_disks.
in_guest() { "$guest" exec -t 250 a ". /job/nvme; $1" >>"$run/theirs.log" 2>&1; }
serve_disks() {
    rm -f "$run/a.vhost"
    [ "$link" = vhost ] || boot
    "$bin/roce-nvmf" serve "$run/disks.toml" --port "$spec" --mac "$mac" --ip 10.99.0.10/24 --ip 192.168.9.1/24 "$@" >"$run/ours.log" 2>&1 &
    ours=$!
    until grep -q listening "$run/ours.log"; do
        kill -0 "$ours" 2>/dev/null || return
        sleep 0.05
    done
    boot
    "$guest" exec a "$reached"
}
# ended_by SIGNAL: ends the target, if there is one.
ended_by() {
    [ -n "$ours" ] || return 0
    kill "-$1" "$ours"
    { wait "$ours" || true; } 2>/dev/null
    ours=''
}

# cell WHAT COMMAND...: one result, that of a command of this script.
cell() {
    local what=$1 began=$SECONDS ok=pass detail='' status=0
    wanted "$what" || return 0
    shift
    : >"$run/theirs.log"
    # A cell that failed may have left no target.
    { [ -n "$ours" ] && kill -0 "$ours" 2>/dev/null; } || serve_disks || status=$?
    [ "$status" -ne 0 ] || "$@" || status=$?
    if [ "$status" -ne 0 ]; then
        ok=fail failed=1
        detail="it ended with $status: $(tail -n 1 "$run/theirs.log")"
        tail -n 40 "$run/theirs.log" "$run/ours.log" >&2
        "$guest" exec a 'dmesg | tail -n 30; nvme list-subsys; ip neigh' >&2 || true
        "$guest" exec -t 100 a 'killall -9 fio; . /job/nvme; disconnect' >/dev/null 2>&1 || true
    fi
    printf '%s nvmf  %s (%s s)\n' "${ok^^}" "$what" "$((SECONDS - began))"
    note --part "NVMe over RDMA" --net "$net" --what "$what" --by linux --verdict "$ok" --detail "$detail" --cell "$what"
}

# What nvme-cli shows.
shows() {
    cell 'nvme discover' in_guest 'nvme discover $to >/tmp/a; nvme discover $to >/tmp/b; cat /tmp/a; cmp /tmp/a /tmp/b
        grep -q "^subnqn: *$nqn\$" /tmp/a; grep -q "^traddr: *10.99.0.10\$" /tmp/a; grep -q "Records 2" /tmp/a'
    cell 'nvme connect, list, list-subsys' in_guest 'fresh --nr-io-queues=1; nvme list; nvme list-subsys >/tmp/a; cat /tmp/a
        grep -q "rdma traddr=10.99.0.10,trsvcid=4420.* live" /tmp/a
        [ "$(blockdev --getss $(disk 1)) $(blockdev --getss $(disk 2)) $(bytes 2)" = "512 4096 33554432" ]'
    cell 'nvme id-ctrl, id-ns, ns-descs: the same for every connection' in_guest 'connected; for n in a b; do
        nvme id-ctrl /dev/$(ctrl) | grep -v "^cntlid" >/tmp/$n; for d in 1 2; do
            nvme id-ns $(disk $d); nvme ns-descs $(disk $d); done | sed "s/nvme[0-9]*/nvme/" >>/tmp/$n
        fresh --nr-io-queues=1; done; cat /tmp/a; diff /tmp/a /tmp/b
        grep -q "^subnqn *: $nqn" /tmp/a; [ "$(grep -c "^uuid" /tmp/a)" = 2 ]'
    # Not `nvme show-regs`: in nvme-cli 2.3 (Debian 12) it asks for a property that does not exist, and then aborts.
    cell 'nvme smart-log, error-log, effects-log, fw-log, features' in_guest 'connected; c=/dev/$(ctrl)
        writes() { nvme smart-log $c | sed -n "s/^[Hh]ost.[Ww]rite.[Cc]ommands[^0-9]*//p"; }
        before=$(writes); same $(disk 1) 65536; nvme smart-log $c; [ "$(writes)" -ge $((before + 16)) ]
        nvme error-log $c; nvme effects-log $c; nvme fw-log $c; nvme get-feature $c -f 7; nvme get-feature $c -f 0xf
        for property in 0 8 0x14 0x1c; do nvme get-property $c --offset=$property -H; done
        ! nvme get-property $c --offset=0x20; ! nvme get-log $c --log-id=0xdf --log-len=512'
    for n in 1 2; do
        cell "dd, every byte compared, namespace $n" in_guest "connected; for size in 4096 32768 1048576; do
            same \$(disk $n) \$size; done"
    done
    # Without a name of the host and an identifier: nvme takes those of the machine.
    cell 'docs/storage-target.md, as it stands: nvme connect, mkfs.ext4, fstrim' in_guest "disconnect; mkdir -p /mnt
        ip addr show dev eth0 | grep -q 192.168.9.2 || ip addr add 192.168.9.2/24 dev eth0
        wait_for 'ping -c 1 -W 1 192.168.9.1 >/dev/null'
        $(sed -n '/^```sh/,/^```/p' docs/storage-target.md | grep -E '^(modprobe nvme|nvme|mkfs|mount|fstrim|umount)' |
            sed "s/^mkfs/wait_for '[ -b \/dev\/nvme0n1 ]'; &/")"
    cell 'nvme connect-all' in_guest 'disconnect; nvme connect-all $to; wait_for "[ -b \"\$(disk 1)\" ]"
        same $(disk 1) 65536; disconnect'
}

# Commands of the NVM command set that file systems seldom use, and what is refused.
commands() {
    cell 'nvme compare, verify, write-zeroes, dsm, flush' in_guest 'connected; d=$(disk 1); same $d 65536
        head -c 8192 /tmp/written >/tmp/part; nvme compare $d -s 0 -c 15 -z 8192 -d /tmp/part
        ! nvme compare $d -s 1 -c 15 -z 8192 -d /tmp/part 2>/tmp/a; grep -i "compare fail" /tmp/a
        nvme verify $d -s 0 -c 127; nvme write-zeroes $d -s 0 -c 15; nvme dsm $d -d -s 16 -b 16; nvme flush $d
        head -c 16384 /dev/zero >/tmp/zeros; dd if=$d of=/tmp/read bs=16384 count=1 iflag=direct; cmp /tmp/zeros /tmp/read
        dd if=$d of=/tmp/read bs=16384 skip=1 count=1 iflag=direct
        head -c 32768 /tmp/written | tail -c 16384 | cmp - /tmp/read'
    cell 'blocks beyond the end, unknown opcodes and namespaces are refused' in_guest 'connected; d=$(disk 1)
        end=$(($(bytes 1) / 512)); ! nvme read $d -s $end -c 0 -z 512 -d /tmp/a 2>/tmp/b; grep -i "lba" /tmp/b
        ! nvme write-uncor $d -s 0 -c 0 2>/tmp/b; grep -i "opcode" /tmp/b
        ! nvme id-ns /dev/$(ctrl) -n 7777 2>/tmp/b; grep -i "namespace" /tmp/b; [ "$(state)" = live ]'
}

# A file system, and what it asks of a disk.
file_system() {
    cell 'partition, mkfs.ext4, mount, files, e2fsck' in_guest 'connected; d=$(disk 1)
        dd if=/dev/zero of=$d bs=4096 count=16 oflag=direct 2>/dev/null
        printf "o\nn\np\n1\n\n+32M\nw\n" | fdisk $d; wait_for "[ -b ${d}p1 ]"; mkfs.ext4 -q -F ${d}p1
        mkdir -p /tmp/m; mount -t ext4 ${d}p1 /tmp/m
        for n in $(seq 20); do head -c $((n * 2719)) /dev/urandom >/tmp/m/$n; done; (cd /tmp/m; md5sum [1-9]* >/tmp/sums)
        umount /tmp/m; e2fsck -f -n ${d}p1; mount -t ext4 ${d}p1 /tmp/m; (cd /tmp/m; md5sum -c /tmp/sums); umount /tmp/m'
    cell 'fstrim gives storage of the file back' trimmed
    cell 'blkdiscard -z writes zeros, each disk' in_guest 'connected; head -c 524288 /dev/zero >/tmp/zeros
        for d in $(disk 1) $(disk 2); do same $d 65536; blkdiscard -z -o 262144 -l 524288 $d
            dd if=$d of=/tmp/read bs=1048576 count=1 iflag=direct 2>/dev/null
            (head -c 262144 /tmp/written; cat /tmp/zeros; tail -c 262144 /tmp/written) | cmp - /tmp/read; done'
    cell 'after a flush the file has every byte' flushed
}
# Blocks of 512 bytes that the file of the first namespace takes.
taken() { stat -c %b "$run/disk"; }
trimmed() {
    local full
    in_guest 'connected; d=$(disk 1); mkfs.ext4 -q -F $d; mkdir -p /tmp/m; mount -t ext4 $d /tmp/m
        head -c 8388608 /dev/zero | tr "\000" "\245" >/tmp/m/file; sync' || return
    full=$(taken)
    in_guest 'rm /tmp/m/file; sync; fstrim -v /tmp/m; umount /tmp/m; e2fsck -f -n $(disk 1)' || return
    echo "$full blocks before, $(taken) after" >>"$run/theirs.log"
    [ "$(taken)" -le $((full - 15000)) ]
}
flushed() {
    in_guest 'connected; head -c 4194304 /dev/urandom >/job/bytes
        dd if=/job/bytes of=$(disk 1) bs=1048576 conv=fsync' || return
    cmp -n 4194304 "$run/g/job/bytes" "$run/disk" >>"$run/theirs.log" 2>&1
}

# fio with every block verified.
loads() {
    local depth
    for depth in 1 16 128; do
        cell "fio verify, 1 queue, depth $depth" in_guest "fresh --nr-io-queues=1; verified --size=1m --iodepth=$depth"
    done
    cell 'fio verify, 128 KiB, 1 queue, depth 16' in_guest 'connected; verified --bs=128k --size=4m --iodepth=16'
    # Four for reads and four for writes: there are no more of a kind than processors.
    cell 'fio verify, 8 queues, depth 128' in_guest 'for n in 1 2 3; do echo 1 >/sys/devices/system/cpu/cpu$n/online; done
        fresh --nr-io-queues=4 --nr-write-queues=4
        [ "$(cat /sys/class/nvme/$(ctrl)/queue_count)" = 9 ]
        verified --size=1m --offset_increment=1m --numjobs=4 --iodepth=128 --cpus_allowed=0-3 --cpus_allowed_policy=split
        for n in 1 2 3; do echo 0 >/sys/devices/system/cpu/cpu$n/online; done'
}

# Loads that go on while something happens.
troubles() {
    cell 'a resize is seen' resized
    cell 'nvme reset under load' loaded 'fresh --nr-io-queues=2' reset_often
    cell 'nvme disconnect under load, and connect' parted
    cell 'the target killed twice under load: the host reconnects, nothing is lost' \
        loaded 'fresh --nr-io-queues=2' killed_twice
    cell 'ctrl_loss_tmo: a target that stays away is given up' given_up
}
# loaded BEFORE COMMAND: a load that takes ten seconds at least, and COMMAND when it has begun. No block may be wrong.
loaded() {
    begin_load "$1" || return
    "$2" || { "$guest" wait -t 1 a "$id" >>"$run/theirs.log" 2>&1; return 1; }
    "$guest" wait -t 300 a "$id" >>"$run/theirs.log" 2>&1 || return
    in_guest '[ "$(state)" = live ]; same $(disk 1) 65536'
}
begin_load() {
    in_guest "$1; sent >/tmp/sent" || return
    id=$("$guest" exec -b -t 300 a '. /job/nvme; verified --size=8m --iodepth=16 --rate_iops=,200')
    under_load
}
# under_load: waits until some more was written, and makes sure that there is more to come.
under_load() {
    in_guest 'wait_for "[ \$(sent) -gt \$((\$(cat /tmp/sent) + 300000)) ]"; sent >/tmp/sent' &&
        [ ! -e "$run/g/job/a.$id.rc" ]
}
reset_often() {
    in_guest 'for n in 1 2 3; do nvme reset /dev/$(ctrl); wait_for "[ \"\$(state)\" = live ]"; done'
}
killed_twice() {
    ended_by KILL && serve_disks && under_load && ended_by KILL && sleep 2 && serve_disks &&
        in_guest 'wait_for "[ \"\$(state)\" = live ]"; dmesg | grep "Successfully reconnected"'
}
# The load has to fail at once, and the disk is as good as before.
parted() {
    begin_load 'fresh --nr-io-queues=2' && in_guest disconnect || return
    ! "$guest" wait -t 100 a "$id" >/dev/null 2>&1 && in_guest 'connected; same $(disk 1) 65536; verified --size=1m --iodepth=16'
}
resized() {
    in_guest connected && ended_by TERM && sed -i 's/^size = .*/size = "96m"/' "$run/disks.toml" && serve_disks &&
        in_guest 'wait_for "[ \$(bytes 1) = 100663296 ]"; [ "$(state)" = live ]; same $(disk 1) 65536'
}
given_up() {
    in_guest 'fresh --nr-io-queues=1 --ctrl-loss-tmo=3' && ended_by KILL &&
        in_guest 'wait_for "[ -z \"\$(ls /sys/class/nvme)\" ] && [ -z \"\$(disk 1)\" ]"' && serve_disks &&
        in_guest 'connect --nr-io-queues=1; same $(disk 1) 65536'
}

nvmf() {
    local n
    # Processors for several queues, of which one works until then, and memory for what is unpacked there.
    cpus=4 memory=1200 kernel_arguments=maxcpus=1
    on ipv4
    rm -f "$run/disk"
    cat >"$run/disks.toml" <<TEXT
[[port]]
address = "0.0.0.0:4420"

[[subsystem]]
nqn = "nqn.2024-01.org.example:disks"

[[subsystem.namespace]]
file = "$run/disk"
size = "64m"

[[subsystem.namespace]]
memory = "32m"
block = 4096
TEXT
    serve_disks --pcap "$(next_capture)" || die "the target does not serve: $(tail -n 1 "$run/ours.log")"
    prelude >"$run/g/job/nvme"
    # The guest's kernel asks for no module by itself. In newer ones crc32c, which ext4 needs, is no module.
    "$guest" exec a 'modprobe nvme-rdma; modprobe ext4; modprobe -q crc32c_generic || true'
    shows
    commands
    file_system
    loads
    # A capture is whole when its program has ended.
    ended_by TERM
    together nvmf
    troubles
    ended_by TERM
}
