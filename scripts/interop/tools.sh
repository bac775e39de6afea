# The stock programs of the guest against ours, in both roles. Sourced by scripts/interop/run.
# shellcheck shell=bash

# relay TCP_PORT: joins what the guest connects to 10.98.0.100:18515 with a port of this machine.
relay() {
    python3 - "$run/g/a.oob" "$1" "$run/relayed" <<'PY'
import select, socket, sys, time
for _ in range(300):
    try:
        near = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        break
    except OSError:
        time.sleep(0.05)
else:
    sys.exit("nothing listens on port " + sys.argv[2])
far = socket.socket(socket.AF_UNIX)
far.connect(sys.argv[1])
open(sys.argv[3], "w").close()
other = {near: far, far: near}
while True:
    for end in select.select(list(other), [], [])[0]:
        data = end.recv(4096)
        if not data:
            sys.exit()
        other[end].sendall(data)
PY
}

# verdict WHAT BY OURS THEIRS: one result, from what both programs ended with and said.
verdict() {
    local what=$1 by=$2 ok=pass said=''
    if [ "$3" -ne 0 ] || [ "$4" -ne 0 ]; then
        ok=fail failed=1
        said="ours ended with $3: $(tail -n 1 "$run/ours.log"); Linux' with $4: $(tail -n 1 "$run/theirs.log")"
    fi
    printf '%s tools  %-5s %s %s\n' "${ok^^}" "$by" "$what" "$said"
    note --part "Stock programs" --net ipv4 --what "$what" --by "$by" --verdict "$ok" --detail "$said"
}

# next_capture: a file for the next capture of a part. together PART: all of them are examined as one.
next_capture() {
    mkdir -p "$run/captures"
    echo "$run/captures/$(find "$run/captures" -type f | wc -l).pcap"
}
together() {
    [ -d "$run/captures" ] || return 0
    mergecap -a -F nsecpcap -w "$run/$1.pcap" "$run/captures/"*.pcap
    rm -rf "$run/captures"
    examine "$1" "$run/$1.pcap"
}

# ensure_up: boots the guest where nothing else has; over vhost that takes a port, and any will do.
ensure_up() {
    [ "$link" = vhost ] || boot
    [ -z "$up" ] || return 0
    timeout 60 "$bin/roce-pingpong" --port "$spec" --mac "$mac" --bind 127.0.0.1 -p 0 >/dev/null 2>&1 &
    ours=$!
    boot
    kill "$ours" 2>/dev/null || true
    wait "$ours" 2>/dev/null || true
    ours=''
    rm -f "$run/a.vhost"
}

# In the guest: waits until the link, whose other end has just come, is up.
carrier='n=0; until [ "$(cat /sys/class/net/eth0/operstate)" = up ]; do
    n=$((n+1)); [ $n -lt 200 ] || exit 1; usleep 50000; done'

# pingpong TRANSPORT ROLE OPTIONS: ROLE is that of our program. A stock server cannot wait for its link as ours does: it
# may look for us when the link has just come, and is then tried again.
pingpong() {
    local try
    [[ ibv_$1_pingpong == *"$only"* ]] || return 0
    for try in 1 2 3; do
        mine=0 theirs=0
        play "$@"
        if [ "$try" = 3 ] || ! grep -q 'Failed to modify QP to RTR' "$run/theirs.log"; then break; fi
    done
    local tool=ibv_$1_pingpong role=$2
    shift 2
    verdict "$tool${*:+ $*}" "$([ "$role" = client ] && echo us || echo linux)" "$mine" "$theirs"
}

play() {
    local type=$1 role=$2 tool=ibv_$1_pingpong id pair='' file
    file=$(next_capture)
    shift 2
    local base=(--port "$spec" --mac "$mac" --ip 10.99.0.10/24 --transport "$type" -c --pcap "$file")
    local theirs_base="$tool -d rxe0 -g 1 -c $*"
    rm -f "$run/a.vhost"
    if [ "$role" = server ]; then
        local tcp=$((30000 + RANDOM % 2000))
        timeout 150 "$bin/roce-pingpong" "${base[@]}" --bind 127.0.0.1 -p "$tcp" "$@" >"$run/ours.log" 2>&1 &
        ours=$!
        boot
        # What the guest says before the relay holds its way out is lost.
        rm -f "$run/relayed"
        relay "$tcp" &
        pair=$!
        until [ -e "$run/relayed" ] || ! kill -0 "$pair" 2>/dev/null; do sleep 0.05; done
        "$guest" exec -t 120 a "$carrier; $theirs_base 10.98.0.100" >"$run/theirs.log" 2>&1 || theirs=$?
        wait "$ours" || mine=$?
        ours=''
        kill "$pair" 2>/dev/null || true
        wait "$pair" 2>/dev/null || true
    else
        ensure_up
        id=$("$guest" exec -b -t 120 a "$theirs_base")
        "$guest" exec a 'n=0; until netstat -ltn | grep -q ":18515 "; do n=$((n+1)); [ $n -lt 200 ] || exit 1
            usleep 50000; done' || true
        timeout 150 "$bin/roce-pingpong" "${base[@]}" -p "$oob" "$@" 127.0.0.1 >"$run/ours.log" 2>&1 || mine=$?
        "$guest" wait -t 120 a "$id" >"$run/theirs.log" 2>&1 || theirs=$?
    fi
}

# cm WHAT ROLE OUR_OPTIONS -- THEIR_COMMAND: a program of librdmacm; ROLE is that of our program. With stays=1 theirs is
# a server that has to be ended, with dies=1 it is killed on purpose.
cm() {
    local what=$1 role=$2 tool=${1%% *} theirs=0 mine=0 id file options=()
    [[ $what == *"$only"* ]] || return 0
    file=$(next_capture)
    shift 2
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    local base=(cm "$tool" "$role" --port "$spec" --mac "$mac" --pcap "$file" "${options[@]}")
    : >"$run/ours.log"
    if [ "$role" = server ]; then
        rm -f "$run/a.vhost"
        timeout 300 "$bin/roce-interop" "${base[@]}" >"$run/ours.log" 2>&1 &
        ours=$!
        boot
        until grep -q listening "$run/ours.log" || ! kill -0 "$ours" 2>/dev/null; do sleep 0.05; done
        "$guest" exec -t 300 a "$carrier; $*" >"$run/theirs.log" 2>&1 || theirs=$?
        wait "$ours" || mine=$?
        ours=''
    else
        ensure_up
        rm -f "$run/a.vhost"
        id=$("$guest" exec -b -t 300 a "$*")
        "$guest" exec a 'n=0; until rdma resource show cm_id | grep -q LISTEN; do
            n=$((n+1)); [ $n -lt 200 ] || exit 1; usleep 50000; done' || true
        timeout 300 "$bin/roce-interop" "${base[@]}" >"$run/ours.log" 2>&1 || mine=$?
        [ -z "${stays:-}" ] || "$guest" exec a "killall $tool" || true
        "$guest" wait -t 300 a "$id" >"$run/theirs.log" 2>&1 || theirs=$?
    fi
    if [ -n "${stays:-}${dies:-}" ]; then
        theirs=0
    elif grep -iE 'error|failed|mismatch|invalid' "$run/theirs.log" >&2; then
        # What the stock programs find wrong does not always show in how they end.
        theirs=99
    fi
    verdict "$what" "$([ "$role" = client ] && echo us || echo linux)" "$mine" "$theirs"
}

librdmacm() {
    local stays='' dies=''
    cm "rping 1000 pings, checked" client --count 1000 --size 1000 -- "rping -s -a 10.99.0.2 -S 1000 -C 1000"
    cm "rping 1000 pings, checked" server -- "rping -c -a 10.99.0.10 -S 1000 -C 1000 -V"
    stays=1
    cm "rping 200 connections in a row" client --rounds 200 --count 2 --size 64 -- "rping -s -a 10.99.0.2 -P"
    stays=''
    # Each is a process of its own in the guest, which takes its time.
    cm "rping 100 connections in a row" server --rounds 100 -- \
        'n=0; while [ $n -lt 100 ]; do rping -c -a 10.99.0.10 -C 2 -V || exit 1; n=$((n+1)); done'
    dies=1
    cm "rping killed" server -- 'rping -c -a 10.99.0.10 -C 1000000 -V & sleep 2; kill -9 $!'
    dies=''
    cm "ucmatose 100 messages" client --count 100 -- "ucmatose -C 100 -b 10.99.0.2"
    cm "ucmatose 100 messages" server --count 100 -- "ucmatose -C 100 -s 10.99.0.10"
    cm "ucmatose 200 connections at once" client --connections 200 -- "ucmatose -c 200 -b 10.99.0.2"
    cm "ucmatose 200 connections at once" server --connections 200 -- "ucmatose -c 200 -s 10.99.0.10"
    cm "udaddy 100 datagrams" client --count 100 -- "udaddy -C 100 -b 10.99.0.2"
    cm "udaddy 100 datagrams" server --count 100 -- "udaddy -C 100 -s 10.99.0.10"
    together cm
}

pingpongs() {
    # The matrix' program has the port that the guest is reached by.
    [ -z "${serving:-}" ] || "$guest" exec a 'killall peer' || true
    serving=''
    local type role
    for type in rc uc ud; do
        for role in client server; do
            pingpong "$type" "$role"
        done
    done
    for role in client server; do
        pingpong rc "$role" -s 65536 -m 4096 -n 200
        pingpong uc "$role" -s 65536 -m 4096 -n 200
        pingpong ud "$role" -s 4096 -n 200
    done
    together pingpong
}
