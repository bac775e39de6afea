# The stock programs of the guest against ours, in both roles. Sourced by scripts/interop/run.
# shellcheck shell=bash

# relay TCP_PORT: joins what the guest connects to 10.98.0.100:18515 with a port of this machine.
relay() {
    python3 - "$run/g/a.oob" "$1" <<'PY'
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

# pingpong TRANSPORT ROLE OPTIONS: ROLE is that of our program.
pingpong() {
    local type=$1 role=$2 tool=ibv_$1_pingpong theirs=0 mine=0 id file=$run/tools.pcap pair=''
    shift 2
    local base=(--port "$spec" --mac "$mac" --ip 10.99.0.10/24 --transport "$type" -c --pcap "$file")
    local theirs_base="$tool -d rxe0 -g 1 -c $*"
    rm -f "$run/a.vhost"
    if [ "$role" = server ]; then
        local tcp=$((30000 + RANDOM % 2000))
        timeout 90 "$bin/roce-pingpong" "${base[@]}" --bind 127.0.0.1 -p "$tcp" "$@" >"$run/ours.log" 2>&1 &
        ours=$!
        boot
        relay "$tcp" &
        pair=$!
        # The relay is there once it holds the guest's way out; the guest's side waits for nothing.
        sleep 0.3
        "$guest" exec -t 60 a "$theirs_base 10.98.0.100" >"$run/theirs.log" 2>&1 || theirs=$?
        wait "$ours" || mine=$?
        ours=''
        kill "$pair" 2>/dev/null || true
        wait "$pair" 2>/dev/null || true
    else
        [ "$link" = vhost ] || boot
        if [ -z "$up" ]; then
            # Over vhost the guest boots when a port is there; any will do.
            timeout 60 "$bin/roce-pingpong" "${base[@]}" -p 0 >/dev/null 2>&1 &
            ours=$!
            boot
            kill "$ours" 2>/dev/null || true
            wait "$ours" 2>/dev/null || true
            rm -f "$run/a.vhost"
        fi
        id=$("$guest" exec -b -t 60 a "$theirs_base")
        "$guest" exec a 'n=0; until netstat -ltn | grep -q ":18515 "; do n=$((n+1)); [ $n -lt 200 ] || exit 1
            usleep 50000; done' || true
        timeout 90 "$bin/roce-pingpong" "${base[@]}" -p "$oob" "$@" 127.0.0.1 >"$run/ours.log" 2>&1 || mine=$?
        "$guest" wait -t 60 a "$id" >"$run/theirs.log" 2>&1 || theirs=$?
    fi
    verdict "$tool${*:+ $*}" "$([ "$role" = client ] && echo us || echo linux)" "$mine" "$theirs"
    examine "tools" "$file"
}

tools() {
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
}
