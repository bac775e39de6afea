# This stack's programs inside two guests, over DPDK's drivers for PCI NICs that QEMU emulates. Sourced by scripts/interop/run.
# It shows that they work, not how fast.
# shellcheck shell=bash

# The NICs of guest a and guest b are joined pairwise. That of a, which has an IOMMU, is bound to vfio-pci as docs/ports.md says.
# That of b is the kernel's at first, with soft-RoCE on it, and then bound to uio_pci_generic in the same way. The guests' first
# interfaces, 10.99.0.2 and 10.99.0.3, are for TCP.

# The programs' timeout is 1 s: on a busy machine an answer takes longer than usual.
slow='--timeout 18'

# packed: writes our programs and the libraries of this machine as a file system for the guests.
packed() {
    local to=$run/ours/target/release name library
    mkdir -p "$to/lib"
    for name in roce-perf roce-pingpong; do
        strip -o "$to/lib/$name" "$bin/$name"
        ldd "$bin/$name" | grep -o '/[^ ]*' | while read -r library; do cp -L "$library" "$to/lib/"; done
        printf '#!/bin/sh\nexec /%s/ld-linux-x86-64.so.2 --library-path /%s /%s/%s "$@"\n' \
            target/release/lib target/release/lib target/release/lib "$name" >"$to/$name"
        chmod +x "$to/$name"
    done
    scripts/interop/cpio "$run/ours" "$run/ours.cpio"
}

# chapter LINES: these lines of the chapter about NICs, as they stand there.
chapter() { sed -n '/^## A NIC/,/^## /p' docs/ports.md | sed -n '/^```sh/,/^```/p' | grep -E -- "$1"; }

# exec_in GUEST COMMAND, background_in GUEST COMMAND: as root there, in a directory that has our programs.
exec_in() { "$guest" exec -t 200 "$1" "cd /; nic=$address; $2"; }
background_in() { "$guest" exec -b -t 200 "$1" "cd /; nic=$address; $2"; }

# bound GUEST DRIVER: takes the NIC from the kernel to this driver for programs.
bound() { exec_in "$1" "$(chapter '^(modprobe|echo|sysctl)' | sed "s/vfio-pci/$2/")"; }

# passed WHAT SINCE STATUS: says how a test ended, with the output of both ends where it failed.
passed() {
    local verdict=PASS
    [ "$3" -eq 0 ] || { verdict=FAIL failed=1; tail -n 20 "$run/a.log" "$run/b.log" >&2; }
    printf '%s pci %-7s %s (%s s)\n' "$verdict" "$nic" "$1" $((SECONDS - $2))
}

# serve COMMAND: starts a server in guest a, and waits until it listens.
serve() {
    id=$(background_in a "$1")
    "$guest" exec -t 130 a "$(await 'netstat -ltn | grep -q ":18515 "')"
}

# served STATUS: the client ended like this. Sets status to what became of both.
served() {
    status=$1
    # After a client that failed there comes no other one.
    [ "$status" -eq 0 ] || "$guest" exec a 'killall ld-linux-x86-64.so.2' >/dev/null 2>&1 || true
    "$guest" wait -t 200 a "$id" >"$run/a.log" 2>&1 || status=$?
}

# between WHAT SERVER CLIENT: a server in guest a, a client in guest b.
between() {
    local since=$SECONDS id status=0
    serve "$2"
    exec_in b "$3" >"$run/b.log" 2>&1 || status=$?
    served "$status"
    passed "$1" "$since" "$status"
}

# soft_roce: our programs in a, over DPDK, and stock ones in b, over soft-RoCE on the kernel's driver.
soft_roce() {
    local interface v4='ffff:c0a8:0902' v6='fd00:0009:.*0002'
    local mine="target/release/roce-pingpong --bind 0.0.0.0 --port dpdk:\$nic -c $slow"
    interface=$(exec_in b 'modprobe '"$nic"' 2>/dev/null
        set -- /sys/bus/pci/devices/$nic/net/* /sys/bus/pci/devices/$nic/virtio*/net/*
        for path; do [ ! -e "$path" ] || basename "$path"; done')
    exec_in b "ip link set $interface mtu 4200 up; ip addr add 192.168.9.2/24 dev $interface
        ip addr add fd00:9::2/64 dev $interface nodad; rdma link add rxe9 type rxe netdev $interface"
    theirs() { printf 'cd /sys/class/infiniband/rxe9/ports/1/gids; g=$(grep -l "%s" *); %s; ibv_%s -d rxe9 -g $g -c 10.99.0.2' \
        "$1" "$(await "ping -c 1 -W 1 $2 >/dev/null 2>&1")" "$3"; }
    between 'ibv_rc_pingpong' "$mine -n 100 --ip 192.168.9.1/24" "$(theirs "$v4" 192.168.9.1 'rc_pingpong -n 100')"
    between 'ibv_rc_pingpong, path MTU 4096, IPv6' "$mine -n 20 -s 65536 -m 4096 --ip fd00:9::1/64" \
        "$(theirs "$v6" fd00:9::1 'rc_pingpong -n 20 -s 65536 -m 4096')"
    between 'ibv_ud_pingpong' "$mine -n 20 -T ud --ip 192.168.9.1/24" "$(theirs "$v4" 192.168.9.1 'ud_pingpong -n 20')"
    exec_in b 'rdma link del rxe9'
    link_goes_and_comes
}

# link_goes_and_comes: nothing arrives while the link of guest a's NIC is down, and a pingpong goes on when it is up again. At the
# other end is our program, too, over the kernel's driver, which counts what arrives: the stock one gives up soon.
link_goes_and_comes() {
    local since=$SECONDS id theirs_id status=0 before program='target/release/roce-pingpong -c -n 60 --timeout 20'
    local received="cat /sys/class/net/$interface/statistics/rx_packets"
    serve "$program --bind 0.0.0.0 --port dpdk:\$nic --ip 192.168.9.1/24"
    before=$(exec_in b "$received")
    theirs_id=$(background_in b "$program --port af_packet:$interface --ip 192.168.9.3/24 10.99.0.2")
    exec_in b "$(await "[ \$($received) -ge $((before + 20)) ]")"
    "$guest" link a "$slot" off
    # What was on its way.
    sleep 0.5
    before=$(exec_in b "$received")
    [ "$(exec_in b "sleep 1; $received")" = "$before" ] || status=1
    "$guest" link a "$slot" on
    "$guest" wait -t 200 b "$theirs_id" >"$run/b.log" 2>&1 || status=$?
    served "$status"
    passed 'the link goes down and comes up' "$since" "$status"
}

# visit WHAT CLIENT: a client in guest b of a server in guest a that stays.
visit() {
    local since=$SECONDS status=0
    exec_in b "$2" >"$run/b.log" 2>&1 || status=$?
    cp "$run/g/job/a.$id.out" "$run/a.log"
    passed "$1" "$since" "$status"
}

# leave: ends that server.
leave() {
    "$guest" exec a 'killall ld-linux-x86-64.so.2' >/dev/null 2>&1 || true
    "$guest" wait -t 60 a "$id" >/dev/null 2>&1 || true
}

# ours: our programs at both ends. The server opens its device anew for each client.
ours() {
    local server client id checked='--op send,write,read --mode bw --size 64,65536 -n 10 --verify'
    bound b uio_pci_generic
    server=$(chapter '^target.* server ') client="$(chapter '^target.* client ') $slow"
    exec_in b 'grep -q server.example /etc/hosts || echo 10.99.0.2 server.example >>/etc/hosts'
    serve "$server"
    visit 'roce-perf as in docs/ports.md' "$client"
    visit 'roce-perf, every byte checked' "$client $checked"
    visit 'roce-perf, an MTU of 1500 at one end' "$client $checked --link-mtu 1500"
    leave
    case $nic in igb | vmxnet3)
        serve "$server --shards 2"
        # Packets arrived at either shard's queue for the other one.
        visit 'roce-perf, two shards' "$client $checked --qps 8 --shards 2 >/tmp/shards && cat /tmp/shards &&
            grep -q 'server:.*handed_over' /tmp/shards"
        leave ;;
    esac
}

pci() {
    local nic slot=6 address
    say "guests"
    since=$SECONDS
    packed
    # On a busy machine two guests at once take their time, and a kernel that checks its timer would find it too slow.
    INTEROP_BOOT_S=400 "$guest" up -p "$profile" -n 2 -N dgram -r 2048 -k "intel_iommu=on no_timer_check" -d "$nics" \
        -i "$run/ours.cpio" >"$run/up.log" 2>&1 ||
        unable "the guests do not boot: $(tail -n 1 "$run/up.log")"
    say "up in $((SECONDS - since)) s: $(tail -n 1 "$run/up.log")"
    for nic in ${nics//,/ }; do
        address=0000:00:0$slot.0
        # The guest's modprobe does not know that vfio wants the second one.
        exec_in a "modprobe $nic 2>/dev/null; modprobe vfio_iommu_type1"
        bound a vfio-pci
        soft_roce
        ours
        slot=$((slot + 1))
    done
    say "PCI NICs, in $((SECONDS - since)) s"
}
