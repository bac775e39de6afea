# How scripts/dropin runs stock programs. Sourced by it.
# shellcheck shell=bash
#
# A row runs one program, or a pair of them. @A is the server's address for RDMA, @H that for TCP, and @G the index of a GID of its IPv4
# address. Each row has a runtime directory of its own (@D is a directory for its files), and a TCP port of its own (@P). Over the default
# port both ends have the addresses of this host; with --hosts they are two hosts, and a program alone is on the first of them; with
# --memif they meet over a private link, where the first that opens the device has the address 10.77.0.1 and the second 10.77.0.2.
#
# How long anything takes depends on the machine: a row waits for what it needs, and fails when its time is over.

# Seconds that a program may take before it counts as hanging.
row_timeout=${ROW_TIMEOUT:-300}
# Seconds between two tries of a client whose server is not there yet, and how many there are.
again_after=0.3 again_times=100

# Options of roce-run for the two ends of a pair, commands that start each of them elsewhere, both ends' addresses for RDMA, the server's
# for TCP, the index of a GID of IPv4, and what the table says of all this.
server_options='' client_options='' server_in='' client_in='' address='' client_address='' host=127.0.0.1 gid=0 note=''
# Why the next rows cannot run here.
missing=''

rows_passed=0 rows_failed=0 rows_skipped=0
rows_table=() rows_json=()

# asked_for FLAGS NAME: whether the row is to be run.
asked_for() {
    [ "$list" = no ] || return 1
    if [ -n "$only" ]; then grep -Eq -- "$only" <<<"$2"; else [ "$full" = yes ] || [[ $1 != *f* ]]; fi
}

# wanted FLAGS NAME: likewise; else the table keeps what it says of it. For whoever writes the row.
wanted() {
    asked_for "$@" && return 0
    [ "$list" = no ] || printf '%s\n' "$2"
    keep "$2"
    return 1
}

# known PACKAGE PROGRAM: whether the program is there; the package is installed where that is possible.
known() {
    command -v "$2" >/dev/null && return 0
    (install_packages "$1") >/dev/null 2>&1 || true
    hash -r
    command -v "$2" >/dev/null
}

# program_of COMMAND: its program, behind variables for env(1).
program_of() {
    local word
    for word in $1; do
        case $word in env | *=*) ;; *) printf '%s' "$word"; return ;; esac
    done
}

# heading WORDS: what the rows that follow are; shown with the first of them, as not all are run.
heading() { rows_heading=$1; }

# report NAME RESULT SECONDS WORDS: a line of the table.
report() {
    local colour=''
    [ -z "${rows_heading:-}" ] || say "$rows_heading"
    rows_heading=''
    case $2 in
    ok) rows_passed=$((rows_passed + 1)) ;;
    FAILED) rows_failed=$((rows_failed + 1)) colour='\033[1;31m' ;;
    SKIPPED) rows_skipped=$((rows_skipped + 1)) colour='\033[1;33m' ;;
    esac
    printf "  $colour%-8s\033[0m %6s s  %s%s\n" "$2" "$3" "$1" "${4:+ ($4)}"
    rows_table+=("$(line "$1" "$2${4:+: $4} | $3")")
    rows_json+=("$(printf '{"program":%s,"result":"%s","seconds":%s,"words":%s}' "$(quote "$1")" "$2" "$3" "$(quote "${4:-}")")")
}

# old NAME: the line of the table that there is.
old() { grep -m 1 -F -- "| \`$1\` |" "$table" 2>/dev/null; }

# line NAME CELLS: the line with this result and these seconds, beside what the table says of the other mode.
line() {
    local cells
    cells=$(old "$1") || cells="| \`$1\` | not run | 0 | not run | 0 |"
    cells=${cells#"| \`$1\` | "} cells=${cells% |}
    if [ "$hosts" = no ]; then cells="$2 | ${cells#* | * | }"; else cells="${cells% | * | *} | $2"; fi
    printf '| `%s` | %s |' "$1" "$cells"
}

# skipped_tests: those of rdma-core that do not run here, as a table.
skipped_tests() {
    [ -s "$dir/skipped" ] || return 0
    printf '\n## Tests of rdma-core that are skipped\n\n'
    printf 'Each test says itself why it does not run. What passes on the soft-RoCE of Linux passes here, but for one test that needs an\nempty entry in the table of GIDs: there is none.\n\n'
    printf '| test | reason | soft-RoCE |\n| --- | --- | --- |\n'
    cat "$dir/skipped"
}

# quote TEXT: as a string of JSON.
quote() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$1"; }

# keep NAME: takes a row over from the table that there is.
keep() {
    local line
    line=$(old "$1") && rows_table+=("$line")
    [[ $1 != pyverbs* ]] || grep -F -- "| \`${1#pyverbs }." "$table" 2>/dev/null >>"$dir/skipped" || true
}

# show FILE WHO: the end of what a program said.
show() {
    printf '    ---- %s\n' "$2"
    tail -n 25 "$1" | cut -c 1-150 | sed 's/^/    /'
}

# free_port: a TCP port that nobody listens on.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# opened: whether the server has opened its device: somebody where it runs has RoCE's port of UDP, or over a private link it holds a lock
# on its number in this row's runtime directory.
opened() { if [ "$memif" = yes ]; then is_locked "$row/run/roce/claims"; else has_socket 4791 '.*' udp; fi; }

# listens PORT: whether someone listens on a TCP port, where the server runs.
listens() { has_socket "$1" '^0A$' tcp; }

# has_socket PORT STATE PROTOCOL: whether there is a socket of that port and state, where the server runs.
has_socket() {
    local sockets="/proc/$server/net/$3" port
    port=$(printf ':%04X$' "$1")
    awk -v port="$port" -v state="$2" '$2 ~ port && $4 ~ state {found = 1} END {exit !found}' "$sockets" "${sockets}6" 2>/dev/null
}

# start FILE COMMAND OPTIONS IN: begins a program on the stack, with options of roce-run, by the command IN; its process is in $started.
start() {
    local options=${3:-} in=${4:-}
    # A private link joins no processes: an XRC domain of a file is each end's own there, as on two hosts.
    [ "$memif" != yes ] || in="env ROCE_XRCD=process $in"
    # shellcheck disable=SC2086 # the words of a command
    (cd "$row" && XDG_RUNTIME_DIR=$row/run exec $in timeout -k 5 "$row_timeout" stdbuf -oL "$run" --library "$library" $options $2) >"$1" 2>&1 </dev/null &
    started=$!
}

# until_there COMMAND: waits until the command holds, as long as the server runs.
until_there() {
    local n
    for ((n = 0; n < row_timeout * 10; n++)); do
        "$@" && return 0
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

prepare() {
    row=$(mktemp -d "$dir/row.XXXXXX")
    mkdir -m 700 "$row/run" "$row/files"
    port=${own_port:-$(free_port)}
    began=$EPOCHREALTIME
}

placed() {
    local text=${1//@A/$address}
    text=${text//@D/$row/files}
    text=${text//@H/$host}
    text=${text//@G/$gid}
    printf '%s' "${text//@P/$port}"
}

taken() { awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}'; }

# runnable PACKAGE: whether the row of this $name can run here; else the table says why not.
runnable() {
    [ -n "$missing" ] || known "$1" "$(program_of "$name")" || local missing="package $1 is missing"
    [ -z "$missing" ] || { report "$name" SKIPPED 0 "$missing"; return 1; }
}

# make_namespaces MTU: two network namespaces $namespace-a and -b, joined by a veth.
make_namespaces() {
    local at n=0
    for at in a b; do ip netns add "$namespace-$at" || return 1; done
    ip link add roce-a netns "$namespace-a" mtu "$1" type veth peer name roce-b netns "$namespace-b" mtu "$1" || return 1
    for at in a b; do
        n=$((n + 1))
        ip -n "$namespace-$at" link set lo up && ip -n "$namespace-$at" addr add "10.78.0.$n/24" dev "roce-$at" &&
            ip -n "$namespace-$at" link set "roce-$at" up || return 1
    done
}

# The ends of the rows that follow, or of one row where its function has the variables that these set. two_hosts: they are in the
# namespaces.
two_hosts() {
    server_in="ip netns exec $namespace-a" client_in="ip netns exec $namespace-b" host=10.78.0.1 gid=0
    server_options='' client_options='' address=10.78.0.1 client_address=10.78.0.2
}

# one_host: they are two processes of this host, which have its first address of IPv4, by the files that roce-run shows to programs.
one_host() {
    local files text=''
    files=$("$run" --library "$library" --print | sed -n "s|^export ROCE_PATHS='\(.*\)'|\1/sys/class/infiniband/roce0/ports/1/gids|p")
    for ((gid = 0; ; gid++)); do
        read -r text 2>/dev/null <"$files/$gid" || return 1
        [[ $text != 0000:*:ffff:* ]] || break
    done
    text=${text##*:ffff:} text=${text/:/}
    address=$((16#${text:0:2})).$((16#${text:2:2})).$((16#${text:4:2})).$((16#${text:6:2})) client_address=$address
}

# private_link: they are the two ends of a link of shared memory.
private_link() {
    server_options='--port memif' client_options='--port memif' address=10.77.0.1 client_address=10.77.0.2 gid=1
}

# clean: removes what the rows made.
clean() {
    local at
    for at in a b; do [ ! -e "/run/netns/${namespace:-none}-$at" ] || ip netns del "$namespace-$at"; done
    rm -rf "$dir"
}

# solo FLAGS PACKAGE EXPECT COMMAND: one program, whose output has to match.
solo() {
    local flags=$1 package=$2 expect=$3 name=$4$note result
    wanted "$flags" "$name" || return 0
    runnable "$package" || return 0
    prepare
    start "$row/out" "$(placed "$4")" "$server_options" "$server_in"
    wait "$started" && result=0 || result=$?
    if [ "$result" -eq 0 ] && grep -Eq -- "$expect" "$row/out"; then
        report "$name" ok "$(taken)"
    else
        report "$name" FAILED "$(taken)" "$(ending "$result" "$expect")"
        show "$row/out" "$(program_of "$name")"
    fi
}

ending() {
    case $1 in
    0) printf 'no "%s" in its output' "$2" ;;
    124 | 137) printf 'still running after %s s' "$row_timeout" ;;
    *) printf 'exit code %s' "$1" ;;
    esac
}

# pair FLAGS PACKAGE EXPECT SERVER CLIENT: two programs. EXPECT has to be in what either says. Flags:
#   f  only with --full
#   t  the client may start when the server listens on the TCP port @P; without it the client tries again until the server is there
#   j  the client may start when the server says that it has joined its group
#   r  the whole pair begins again where the client comes too early
#   n  likewise, where the client then does not end
#   k  the server runs until it is told to end (SIGINT)
#   i  the client too, as soon as it says what is expected
pair() {
    local flags=$1 package=$2 expect=$3 first=$4 second=$5 name=$5$note result server_result pairs=10
    wanted "$flags" "$name" || return 0
    runnable "$package" || return 0
    while :; do
        prepare
        both
        pairs=$((pairs - 1))
        [ "$pairs" -gt 0 ] || break
        # The client of such a pair connects twice, or is told a port before its server listens there. With datagrams that is an answer
        # to its SIDR REQ, of status 1.
        [[ $flags != *r* ]] || ! grep -Eqs 'REJECTED|CM event .* 8$|Event rejected|REJ, reason=8|UNREACHABLE; error: 1\.' "$row/client" || continue
        [[ $flags != *n* ]] || ! grep -Eqs "$waits_for_ever" "$row/client" || continue
        break
    done
    if [ "$result" -eq 0 ] && [ "$server_result" -eq 0 ] && grep -Eqs -- "$expect" "$row/client" "$row/server"; then
        report "$name" ok "$(taken)"
    else
        report "$name" FAILED "$(taken)" "client: $(ending "$result" "$expect"), server: $(ending "$server_result" "$expect")"
        end_row
        show "$row/server" server
        show "$row/client" client
    fi
}

# What clients say that then wait for ever: fio of IBV_WC_RNR_RETRY_EXC_ERR, where a receive request of its server came too late, and
# cmtime of the crate sideway of a server that does not listen yet.
waits_for_ever='completion status 13|Event: Rejected'

# end_row: ends what the row has started, also what has left its session and group.
end_row() {
    local process
    for process in /proc/[0-9]*; do
        ! tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -Fqx "XDG_RUNTIME_DIR=$row/run" || kill -9 "${process#/proc/}" 2>/dev/null || true
    done
}

# both: runs a pair's programs once, with what pair knows of them.
both() {
    local client times=$again_times
    start "$row/server" "$(placed "$first")" "$server_options" "$server_in"
    server=$started
    [[ $flags == *t* ]] || until_there opened || true
    [[ $flags != *j* ]] || { until_there grep -q joined "$row/server" || true; times=1; }
    [[ $flags != *t* ]] || { until_there listens "$port" || true; times=1; }
    [[ $flags != *r* ]] || times=1
    while :; do
        start "$row/client" "$(placed "$second")" "$client_options" "$client_in"
        client=$started
        if [[ $flags == *i* ]]; then
            while ! grep -Eqs -- "$expect" "$row/client" && kill -0 "$client" 2>/dev/null; do sleep 0.1; done
            interrupt "$client"
        fi
        if [[ $flags == *n* ]]; then
            while ! grep -Eqs "$waits_for_ever" "$row/client" && kill -0 "$client" 2>/dev/null; do sleep 0.1; done
            ! grep -Eqs "$waits_for_ever" "$row/client" || { end_row; times=1; }
        fi
        { wait "$client" && result=0 || result=$?; } 2>/dev/null
        [[ $flags != *i* ]] || [ "$result" -ne 130 ] || result=0
        times=$((times - 1))
        # A client that fails before its server is there does so at once, and the server does not notice.
        [ "$result" -ne 0 ] && [ "$result" -ne 124 ] && [ "$result" -ne 137 ] && [ "$times" -gt 0 ] &&
            kill -0 "$server" 2>/dev/null || break
        sleep $again_after
    done
    [[ $flags != *k* ]] || interrupt "$server"
    # A server whose client has failed waits for another one.
    [ "$result" -eq 0 ] || kill "$server" 2>/dev/null || true
    { wait "$server" && server_result=0 || server_result=$?; } 2>/dev/null
    [[ $flags != *k* ]] || server_result=0
}

# interrupt TIMEOUT: SIGINT for the program that timeout(1) runs.
interrupt() { kill -INT -- "$(pgrep -P "$1" | head -n 1)" 2>/dev/null || true; }
