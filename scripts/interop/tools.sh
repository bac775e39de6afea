# The stock programs of the guest against this stack's, in both roles. Sourced by scripts/interop/run.
# shellcheck shell=bash

# unreached: shows the state of both ends where the guest does not reach our port, or does not boot because of it.
unreached() {
    {
        for file in "$run/ours.log" "$run/g/a.qemu" "$run/up.log"; do tail -n 5 "$file" || true; done
        ss -xp | grep "$run" || ls -l "$run" "$run/g" || true
        [ -z "$up" ] || "$guest" exec a 'ip -s link show eth0; ip neigh; dmesg | tail -n 5'
    } >&2 || true
}

# verdict WHAT BY OURS THEIRS: records one result, from the exit codes and the output of both programs.
verdict() {
    local what=$1 by=$2 ok=pass detail=''
    if [ "$3" -ne 0 ] || [ "$4" -ne 0 ]; then
        ok=fail failed=1
        detail="ours ended with $3: $(tail -n 1 "$run/ours.log"); Linux' with $4: $(tail -n 1 "$run/theirs.log")"
        # The last line does not always show the cause.
        tail -n 30 "$run/ours.log" "$run/theirs.log" >&2
        "$guest" exec a 'rdma statistic show; ip -s link show eth0; ip neigh; dmesg | tail -n 20' >&2 || true
    fi
    printf '%s tools  %-5s %-5s %s %s(%s s)\n' "${ok^^}" "$net" "$by" "$what" "${detail:+$detail }" "$((SECONDS - began))"
    note --part "Stock programs" --net "$net" --what "$what" --by "$by" --verdict "$ok" --detail "$detail" \
        --cell "$by $what"
}

# next_capture: a file for the next capture of a part. together PART: examines all of them as one.
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

# ensure_up: boots the guest if it is not up; over vhost that needs a port, and any program's will do.
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

# await CONDITION: shell code that waits in the guest until the condition holds, at most 60 s.
await() {
    printf 'end=$(($(date +%%s)+60)); until %s; do [ $(date +%%s) -lt $end ] || { echo "in 60 s not seen: "%q >&2; exit 1; }; usleep 50000; done' \
        "$1" "$1"
}

# on NET: sets the network for what follows.
on() {
    net=$1 interface=eth0
    case "$net" in
    ipv4) our_ip=10.99.0.10 their_ip=10.99.0.2 ;;
    ipv6) our_ip=fd00:99::10 their_ip=fd00:99::2 ;;
    vlan) our_ip=10.100.0.10 their_ip=10.100.0.2 interface=eth0.100 ;;
    esac
    # Waits until the guest reaches this stack: its link, whose other end has just come up, has carrier, and its neighbour
    # table has the Ethernet address. When a queue pair goes to RTR, its kernel tries to resolve that for one second only; on
    # a new link, or on a busy machine, the answer may take longer.
    reached=$(await "ping -c 1 -W 1 $our_ip >/dev/null 2>&1")
}

# alone: waits until the guest has noticed the end of this stack's last program: it must not take that link for the next
# one's.
alone() {
    rm -f "$run/a.vhost"
    { [ -n "$up" ] && [ "$link" = vhost ]; } || return 0
    "$guest" exec a "$(await 'grep -q 0 /sys/class/net/eth0/carrier')"
}

# pingpong TRANSPORT ROLE OPTIONS: ROLE is that of this stack's program.
pingpong() {
    local type=$1 role=$2 tool=ibv_$1_pingpong began=$SECONDS mine=0 theirs=0 id
    shift 2
    wanted "$tool${*:+ $*}" || return 0
    local base=(--port "$spec" --mac "$mac" --ip 10.99.0.10/24 --transport "$type" -c --pcap "$(next_capture)")
    local theirs_base="$tool -d rxe0 -g 1 -c $*"
    alone
    if [ "$role" = server ]; then
        local tcp=$((30000 + RANDOM % 2000))
        timeout 150 "$bin/roce-pingpong" "${base[@]}" --bind 127.0.0.1 -p "$tcp" "$@" >"$run/ours.log" 2>&1 &
        ours=$!
        boot
        echo "$tcp" >"$run/g/a.oob.to"
        "$guest" exec -t 120 a "$reached; $theirs_base 10.98.0.100" >"$run/theirs.log" 2>&1 || theirs=$?
        wait "$ours" || mine=$?
        ours=''
    else
        # The stock server resolves the peer's Ethernet address as soon as it gets the peer's GID. So this stack's program
        # opens its port, and waits for the server at a TCP port that leads nowhere until the guest reaches it.
        local gate=$((32000 + RANDOM % 2000))
        ensure_up
        id=$("$guest" exec -b -t 120 a "$theirs_base")
        timeout 150 "$bin/roce-pingpong" "${base[@]}" --wait 60s -p "$gate" "$@" 127.0.0.1 >"$run/ours.log" 2>&1 &
        ours=$!
        "$guest" exec -t 130 a "$(await 'netstat -ltn | grep -q ":18515 "'); $reached" || unreached
        scripts/interop/relay --from "$gate" "$oob" >"$run/relay.log" 2>&1 &
        local relay=$!
        wait "$ours" || mine=$?
        ours=''
        kill "$relay" 2>/dev/null || true
        "$guest" wait -t 120 a "$id" >"$run/theirs.log" 2>&1 || theirs=$?
    fi
    verdict "$tool${*:+ $*}" "$([ "$role" = client ] && echo us || echo linux)" "$mine" "$theirs"
}

# wanted WHAT: whether --only selects it.
wanted() { [[ $1 == *"$only"* ]]; }

# serve_ours OPTIONS: starts this stack's side of a program as the server, and waits until it listens.
serve_ours() {
    # Not during the boot: a listening program does not wait for ever.
    ensure_up
    alone
    : >"$run/ours.log"
    timeout 300 "$bin/roce-interop" cm "$@" >"$run/ours.log" 2>&1 &
    ours=$!
    boot
    until grep -q listening "$run/ours.log" || ! kill -0 "$ours" 2>/dev/null; do sleep 0.05; done
}

# serve_theirs COMMAND: starts a stock program in the guest as the server, and waits until it listens. Sets id to its number.
serve_theirs() {
    ensure_up
    alone
    id=$("$guest" exec -b -t 300 a "$*")
    "$guest" exec a "$(await 'rdma resource show cm_id | grep -q LISTEN')" || true
}

# cm WHAT ROLE OUR_OPTIONS -- THEIR_COMMAND: runs a program of librdmacm; ROLE is that of this stack's program. With stays=1
# the guest's is a server that has to be ended, with dies=1 it is killed on purpose.
cm() {
    local what=$1 role=$2 tool=${1%% *} theirs=0 mine=0 id options=() began=$SECONDS
    wanted "$what" || return 0
    shift 2
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    options=("$tool" "$role" --port "$spec" --mac "$mac" --net "$net" --pcap "$(next_capture)" "${options[@]}")
    if [ "$role" = server ]; then
        serve_ours "${options[@]}"
        "$guest" exec -t 300 a "$reached; $*" >"$run/theirs.log" 2>&1 || theirs=$?
        wait "$ours" || mine=$?
        ours=''
    else
        serve_theirs "$*"
        timeout 300 "$bin/roce-interop" cm "${options[@]}" >"$run/ours.log" 2>&1 || mine=$?
        [ -z "${stays:-}" ] || "$guest" exec a "killall $tool" || true
        "$guest" wait -t 300 a "$id" >"$run/theirs.log" 2>&1 || theirs=$?
    fi
    if [ -n "${stays:-}${dies:-}" ]; then
        theirs=0
    elif grep -iE 'error|failed|mismatch|invalid' "$run/theirs.log" >&2; then
        # Errors of the stock programs do not always show in their exit codes.
        theirs=99
    fi
    verdict "$what" "$([ "$role" = client ] && echo us || echo linux)" "$mine" "$theirs"
}

# killed WHAT ROLE OPTIONS: this stack's side is killed in the middle of a ping, and a new process starts at once, with the
# same addresses and, with a seed, the same numbers of queue pairs and connections (for which Linux waits until the old one
# has ended). A new connection must be established, and the end of the old one be answered. The stock program as the server of
# the old one detects the end by itself (RETRY_EXC_ERR, which is 12); as its client it requests 7 retries, which is endless
# for soft-RoCE.
killed() {
    local what=$1 role=$2 theirs=0 mine=0 id options=() began=$SECONDS
    wanted "$what" || return 0
    shift 2
    options=(rping "$role" --port "$spec" --mac "$mac" --net "$net" --size 64 --count 50 --retries 6 "$@")
    if [ "$role" = server ]; then
        serve_ours "${options[@]}" --die-at 20
        id=$("$guest" exec -b -t 60 a "$reached; rping -c -a $our_ip -S 64 -C 1000000 -V")
        { wait "$ours" || mine=$?; } 2>/dev/null
        [ "$mine" -ne 137 ] || mine=0
        serve_ours "${options[@]}" --successor --pcap "$(next_capture)"
        "$guest" exec -t 60 a "$reached; ! rping -c -a $our_ip -S 64 -C 10 -V; got=\$?; killall -9 rping; [ \$got = 1 ]" \
            >"$run/theirs.log" 2>&1 || theirs=$?
        wait "$ours" || mine=$?
        ours=''
        "$guest" wait -t 60 a "$id" >"$run/first.log" 2>&1 || true
    else
        serve_theirs "rping -s -P -a $their_ip -S 64"
        timeout 60 "$bin/roce-interop" cm "${options[@]}" --die-at 20 >"$run/ours.log" 2>&1 &
        { wait $! || mine=$?; } 2>/dev/null
        [ "$mine" -ne 137 ] || mine=0
        rm -f "$run/a.vhost"
        timeout 60 "$bin/roce-interop" cm "${options[@]}" --successor --pcap "$(next_capture)" >"$run/ours.log" 2>&1 ||
            mine=$?
        "$guest" exec a "killall rping" || true
        "$guest" wait -t 60 a "$id" >"$run/theirs.log" 2>&1 || true
        grep -q 'cq completion failed status 12' "$run/theirs.log" || theirs=98
    fi
    verdict "$what" "$([ "$role" = client ] && echo us || echo linux)" "$mine" "$theirs"
}

# Runs every program in both roles.
programs() {
    local stays='' dies=''
    cm "rping 1000 pings, checked" client --count 1000 --size 1000 -- "rping -s -a $their_ip -S 1000 -C 1000"
    cm "rping 1000 pings, checked" server -- "rping -c -a $our_ip -S 1000 -C 1000 -V"
    stays=1
    cm "rping 200 connections in a row" client --rounds 200 --count 2 --size 64 -- "rping -s -a $their_ip -P"
    stays=''
    # Each is a separate process in the guest, which is slow.
    cm "rping 100 connections in a row" server --rounds 100 -- \
        "n=0; while [ \$n -lt 100 ]; do rping -c -a $our_ip -C 2 -V || exit 1; n=\$((n+1)); done"
    dies=1
    cm "rping killed" server -- "rping -c -a $our_ip -C 1000000 -V & n=0
        until rdma resource show cm_id | grep -q 'state CONNECT '; do
            n=\$((n+1)); [ \$n -lt 400 ] || break; usleep 50000; done
        sleep 0.5; kill -9 \$!"
    dies=''
    killed "our rping killed and there again" client
    killed "our rping killed and there again" server
    cm "ucmatose 100 messages" client --count 100 -- "ucmatose -C 100 -b $their_ip"
    cm "ucmatose 100 messages" server --count 100 -- "ucmatose -C 100 -s $our_ip"
    cm "ucmatose -P ib 100 messages" client --ib --count 100 -- "ucmatose -P ib -C 100 -b $their_ip"
    cm "ucmatose -P ib 100 messages" server --ib --count 100 -- "ucmatose -P ib -C 100 -s $our_ip"
    cm "ucmatose 200 connections at once" client --connections 200 -- "ucmatose -c 200 -b $their_ip"
    cm "ucmatose 200 connections at once" server --connections 200 -- "ucmatose -c 200 -s $our_ip"
    cm "udaddy 100 datagrams" client --count 100 -- "udaddy -C 100 -b $their_ip"
    cm "udaddy 100 datagrams" server --count 100 -- "udaddy -C 100 -s $our_ip"
}

# Runs a selection of them.
sample() {
    cm "rping 100 pings, checked" client --count 100 --size 1000 -- "rping -s -a $their_ip -S 1000 -C 100"
    cm "rping 100 pings, checked" server -- "rping -c -a $our_ip -S 1000 -C 100 -V"
    [ "$net" = ipv6 ] || return 0
    cm "ucmatose 20 connections at once" client --connections 20 -- "ucmatose -c 20 -b $their_ip"
    cm "ucmatose 20 connections at once" server --connections 20 -- "ucmatose -c 20 -s $our_ip"
    cm "udaddy 100 datagrams" client --count 100 -- "udaddy -C 100 -b $their_ip"
    cm "udaddy 100 datagrams" server --count 100 -- "udaddy -C 100 -s $our_ip"
}

librdmacm() {
    on ipv4
    programs
    [ -z "$full" ] || killed "our rping killed and there again with the same numbers" client --seed 7
    for net in ipv6 vlan; do
        on "$net"
        if [ -n "$full" ]; then programs; else sample; fi
    done
    together cm
}

pingpongs() {
    on ipv4
    # The matrix' program occupies the port by which the guest is reached.
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
