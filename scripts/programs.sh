# The stock programs that scripts/dropin runs, and how. Sourced by it.
# shellcheck shell=bash
#
# A row runs one program, or a pair of them that meet over the default link: shared memory between two processes of a user, of which
# the first that opens the device has the address 10.77.0.1 (@A) and the second 10.77.0.2. Each row has a runtime directory of its own
# (@D is a directory for its files), and a TCP port of its own (@P).
#
# How long anything takes depends on the machine: a row waits for what it needs, and fails when its time is over.

# Seconds that a program may take before it counts as hanging.
row_timeout=${ROW_TIMEOUT:-120}
# Seconds between two tries of a client whose server is not there yet, and how many there are.
again_after=0.3 again_times=100

# Options of roce-run for the two ends of a pair, and the server's RDMA address.
server_options='' client_options='' address=10.77.0.1

rows_passed=0 rows_failed=0 rows_skipped=0
rows_table=() rows_json=()

# wanted FLAGS NAME: whether the row is to be run.
wanted() {
    [ -z "$only" ] || grep -Eq -- "$only" <<<"$2" || return 1
    [ -n "$only" ] || [ "$full" = yes ] || [[ $1 != *f* ]]
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

# report NAME RESULT SECONDS WORDS: a line of the table.
report() {
    local colour=''
    case $2 in
    ok) rows_passed=$((rows_passed + 1)) ;;
    FAILED) rows_failed=$((rows_failed + 1)) colour='\033[1;31m' ;;
    SKIPPED) rows_skipped=$((rows_skipped + 1)) colour='\033[1;33m' ;;
    esac
    printf "  $colour%-8s\033[0m %6s s  %s%s\n" "$2" "$3" "$1" "${4:+ ($4)}"
    rows_table+=("| \`$1\` | $2${4:+: $4} | $3 |")
    rows_json+=("$(printf '{"program":%s,"result":"%s","seconds":%s,"words":%s}' "$(quote "$1")" "$2" "$3" "$(quote "${4:-}")")")
}

# quote TEXT: as a string of JSON.
quote() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$1"; }

# show FILE WHO: the end of what a program said.
show() {
    printf '    ---- %s\n' "$2"
    tail -n 15 "$1" | cut -c 1-150 | sed 's/^/    /'
}

# free_port: a TCP port that nobody listens on.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# opened: whether a process has opened the device in this row's runtime directory: it holds a lock on its number there.
opened() {
    local file=$row/run/roce/claims
    [ -e "$file" ] && grep -q ":$(stat -c %i "$file") " /proc/locks
}

# listens PORT: whether someone listens on a TCP port.
listens() {
    local hex
    hex=$(printf ':%04X ' "$1")
    awk -v port="$hex" '$4 == "0A" && index($2 " ", port) {found = 1} END {exit !found}' /proc/net/tcp /proc/net/tcp6
}

# start FILE COMMAND OPTIONS: begins a program on the stack, with options of roce-run; its process is in $started.
start() {
    local options=${3:-}
    # An XRC domain of a file is each end's own, as on two hosts.
    # shellcheck disable=SC2086 # the words of a command
    (cd "$row" && XDG_RUNTIME_DIR=$row/run ROCE_XRCD=process exec timeout -k 5 "$row_timeout" stdbuf -oL "$run" --library "$library" $options $2) >"$1" 2>&1 </dev/null &
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
    port=$(free_port)
    began=$EPOCHREALTIME
}

placed() {
    local text=${1//@A/$address}
    text=${text//@D/$row/files}
    printf '%s' "${text//@P/$port}"
}

taken() { awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}'; }

# solo FLAGS PACKAGE EXPECT COMMAND: one program, whose output has to match.
solo() {
    local flags=$1 package=$2 expect=$3 name=$4 result
    wanted "$flags" "$name" || return 0
    known "$package" "$(program_of "$name")" || { report "$name" SKIPPED 0 "package $package is missing"; return 0; }
    prepare
    start "$row/out" "$(placed "$name")"
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
#   k  the server runs until it is told to end (SIGINT)
#   i  the client too, as soon as it says what is expected
pair() {
    local flags=$1 package=$2 expect=$3 first=$4 second=$5 name=$5 result server_result pairs=10
    wanted "$flags" "$name" || return 0
    known "$package" "$(program_of "$name")" || { report "$name" SKIPPED 0 "package $package is missing"; return 0; }
    while :; do
        prepare
        both
        pairs=$((pairs - 1))
        # The client of such a pair connects twice, and came before its server listened again.
        [[ $flags == *r* ]] && [ "$pairs" -gt 0 ] && grep -Eqs 'REJECTED|CM event .* 8$' "$row/client" || break
    done
    if [ "$result" -eq 0 ] && [ "$server_result" -eq 0 ] && grep -Eqs -- "$expect" "$row/client" "$row/server"; then
        report "$name" ok "$(taken)"
    else
        report "$name" FAILED "$(taken)" "client: $(ending "$result" "$expect"), server: $(ending "$server_result" "$expect")"
        show "$row/server" server
        show "$row/client" client
    fi
}

# both: runs a pair's programs once, with what pair knows of them.
both() {
    local client times=$again_times
    start "$row/server" "$(placed "$first")" "$server_options"
    server=$started
    [[ $flags == *t* ]] || until_there opened || true
    [[ $flags != *j* ]] || { until_there grep -q joined "$row/server" || true; times=1; }
    [[ $flags != *t* ]] || { until_there listens "$port" || true; times=1; }
    [[ $flags != *r* ]] || times=1
    while :; do
        start "$row/client" "$(placed "$second")" "$client_options"
        client=$started
        if [[ $flags == *i* ]]; then
            while ! grep -Eqs -- "$expect" "$row/client" && kill -0 "$client" 2>/dev/null; do sleep 0.1; done
            interrupt "$client"
        fi
        wait "$client" && result=0 || result=$?
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
    wait "$server" && server_result=0 || server_result=$?
    [[ $flags != *k* ]] || server_result=0
}

# interrupt TIMEOUT: SIGINT for the program that timeout(1) runs.
interrupt() { kill -INT -- "$(pgrep -P "$1" | head -n 1)" 2>/dev/null || true; }

# pingpong FLAGS PROGRAM OPTIONS
pingpong() { pair "t$1" ibverbs-utils 'bytes in .* seconds' "$2 -d roce0 -g 1 -p @P $3" "$2 -d roce0 -g 1 -p @P $3 127.0.0.1"; }

# perf FLAGS PROGRAM OPTIONS
perf() { pair "t$1" perftest 'BW average|t_avg|#bytes' "$2 -d roce0 -F -p @P $3" "$2 -d roce0 -F -p @P $3 127.0.0.1"; }

# perf_cm FLAGS PROGRAM OPTIONS: connected by rdma_cm.
perf_cm() { pair "r$1" perftest 'BW average|t_avg|#bytes' "$2 -F -R -p 18600 $3" "$2 -F -R -p 18600 $3 @A"; }

# qperf_test FLAGS TESTS: its names are those of TCP, and its queue pairs need rdma_cm for the addresses of RoCE: over UDP sockets, where
# both are the same.
qperf_test() {
    local server_options='--port udp:127.0.0.2' client_options='--port udp:127.0.0.3'
    pair "kt$1" qperf '(bw|latency) +=|msg_rate' "qperf -lp @P" "qperf -lp @P -cm 1 -t 1 127.0.0.2 $2"
}

# fio_test FLAGS VERB
fio_test() {
    local both="--ioengine=rdma --bs=64k --size=16m --iodepth=8 --port=18700"
    pair "$1" fio 'Disk stats|err= 0' \
        "fio --name=target $both --rw=read" \
        "fio --name=$2 $both --hostname=@A --rw=write --verb=$2 --iodepth_batch_complete_max=8"
}

say "devices"
solo '' ibverbs-utils 'roce0' "ibv_devices"
solo '' ibverbs-utils 'GID.*10.77.0.1' "ibv_devinfo -v"

say "pingpongs"
pingpong '' ibv_rc_pingpong ''
pingpong '' ibv_rc_pingpong '-e -c'
pingpong '' ibv_rc_pingpong '-N -c'
pingpong f ibv_rc_pingpong '-N -e'
pingpong f ibv_rc_pingpong '-s 1 -c'
pingpong f ibv_rc_pingpong '-s 1048576 -n 100 -c'
pingpong f ibv_rc_pingpong '-s 1048576 -n 100 -m 4096 -e'
pingpong '' ibv_uc_pingpong ''
pingpong f ibv_uc_pingpong '-e'
pingpong f ibv_uc_pingpong '-s 1 -c'
pingpong '' ibv_ud_pingpong ''
pingpong f ibv_ud_pingpong '-e -c'
pingpong '' ibv_srq_pingpong ''
pingpong f ibv_srq_pingpong '-e -c'
pair t ibverbs-utils '^success' "ibv_xsrq_pingpong -d roce0 -g 1 -p @P" "ibv_xsrq_pingpong -d roce0 -g 1 -p @P 127.0.0.1"
pair tf ibverbs-utils '^success' "ibv_xsrq_pingpong -d roce0 -g 1 -p @P -e -s 1048576" "ibv_xsrq_pingpong -d roce0 -g 1 -p @P -e -s 1048576 127.0.0.1"

say "perftest"
for op in send write read; do
    perf '' ib_${op}_bw '-n 1000'
    perf '' ib_${op}_lat '-n 1000'
    perf f ib_${op}_bw '-a -n 200'
    perf f ib_${op}_bw '-b -n 1000'
    perf f ib_${op}_bw '-q 8 -n 1000'
    perf f ib_${op}_bw '-e -n 1000'
    perf f ib_${op}_bw '-r 64 -t 64 -n 1000'
    perf f ib_${op}_bw '-D 2'
    perf f ib_${op}_lat '-a -n 100'
    perf f ib_${op}_lat '-D 2'
    perf_cm f ib_${op}_bw '-n 1000'
    perf_cm f ib_${op}_lat '-n 1000'
done
perf '' ib_atomic_bw '-n 1000'
perf '' ib_atomic_lat '-n 1000'
perf f ib_atomic_bw '-A CMP_AND_SWAP -n 1000'
perf f ib_atomic_bw '-q 8 -n 1000'
perf '' ib_write_bw '-c UC -n 1000'
perf f ib_write_lat '-c UC -n 1000'
perf f ib_send_bw '-c UC -n 1000'
perf f ib_send_lat '-c UC -n 1000'
perf '' ib_send_bw '-c UD -s 1024 -n 1000'
perf f ib_send_lat '-c UD -n 1000'
perf f ib_send_bw '-c XRC -n 1000'
perf f ib_write_bw '-c XRC -n 1000'
perf f ib_send_lat '-I 64 -s 64 -n 1000'
perf f ib_write_lat '-I 64 -s 64 -n 1000'
perf f ib_send_bw '--use-srq -q 4 -n 1000'
perf f ib_send_lat '-e -n 1000'
perf_cm '' ib_write_bw '-n 1000'
perf_cm f ib_send_bw '-c UD -s 1024 -n 1000'
pair tkif perftest '^ *65536 +[0-9]' "ib_write_bw -d roce0 -F -p @P --run_infinitely" "ib_write_bw -d roce0 -F -p @P --run_infinitely 127.0.0.1"

say "rdma_cm"
pair '' rdmacm-utils 'ping data' "rping -s -C 20 -v -p 7300" "rping -c -a @A -C 20 -v -p 7300"
pair f rdmacm-utils 'ping data' "rping -s -C 500 -S 16384 -v -V -p 7300" "rping -c -a @A -C 500 -S 16384 -v -V -p 7300"
pair f rdmacm-utils 'ping data' "rping -s -q -C 20 -v -p 7300" "rping -c -q -a @A -C 20 -v -p 7300"
pair '' rdmacm-utils 'return status 0' "ucmatose -c 20 -C 50 -S 1000" "ucmatose -s @A -c 20 -C 50 -S 1000"
pair f rdmacm-utils 'return status 0' "ucmatose -c 200 -C 5 -S 100 -m" "ucmatose -s @A -c 200 -C 5 -S 100 -m"
pair f rdmacm-utils 'return status 0' "ucmatose -c 5 -C 50 -S 1000 -a 17 -t 8" "ucmatose -s @A -c 5 -C 50 -S 1000 -a 17 -t 8"
pair '' rdmacm-utils 'return status 0' "udaddy -c 4 -C 50 -S 1000" "udaddy -s @A -c 4 -C 50 -S 1000"
pair j rdmacm-utils 'return status 0' "mckey -m 239.7.7.7 -C 10" "mckey -m 239.7.7.7 -s -C 10"
pair '' rdmacm-utils 'rdma_client: end 0' "rdma_server -p 7401" "rdma_client -s @A -p 7401"
pair '' rdmacm-utils 'end 0' "rdma_xserver -p 7402 -c r" "rdma_xclient -s @A -p 7402 -c r"
pair k rdmacm-utils '^connect  *:' "cmtime -p 7403 -c 50" "cmtime -p 7403 -s @A -c 50"
pair kf rdmacm-utils '^connect  *:' "cmtime -p 7403 -c 500" "cmtime -p 7403 -s @A -c 500"

say "qperf"
qperf_test '' "rc_bw rc_lat"
qperf_test f "rc_bi_bw rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat"
qperf_test f "rc_compare_swap_mr rc_fetch_add_mr"
# Its tests of UC and UD address their peer by a LID, which RoCE does not have.

say "fio"
fio_test '' write
fio_test f read
fio_test f send

say "UCX"
solo '' ucx-utils 'Device: roce0:1' "ucx_info -d"
ucx_test() {
    local both="env UCX_TLS=$2 UCX_NET_DEVICES=roce0:1 ucx_perftest -p @P -t $3"
    pair "t$1" ucx-utils 'Final' "$both" "$both 127.0.0.1"
}
ucx_test '' ud_verbs 'tag_lat -n 500'
ucx_test '' rc_verbs,ud_verbs 'tag_lat -n 500'
ucx_test f rc_verbs,ud_verbs 'tag_bw -s 65536 -n 500'
ucx_test f rc_verbs,ud_verbs 'ucp_put_bw -s 65536 -n 500'
ucx_test f rc_verbs,ud_verbs 'ucp_get -n 500'
ucx_test f rc_verbs,ud_verbs 'ucp_add -n 500'
ucx_test f ud_verbs 'tag_bw -s 65536 -n 500'

say "libfabric"
solo '' libfabric-bin 'provider: verbs' "fi_info -p verbs"
# Its names are those of TCP, as with qperf.
fi_test() {
    local server_options='--port udp:127.0.0.2' client_options='--port udp:127.0.0.3'
    pair "tf" libfabric-bin 'bytes' "fi_pingpong -p verbs -e $1 -B @P" "fi_pingpong -p verbs -e $1 -P @P 127.0.0.2"
}
fi_test msg
fi_test dgram

say "pyverbs"
# pyverbs FLAGS MODULE: the tests of rdma-core in Python; of the interpreter that the package is for. A module's children that crash
# are no failure to the tests themselves, so the kernel's and the interpreter's words on them are looked for.
pyverbs() {
    local tests=/usr/share/doc/rdma-core/tests name="pyverbs $2" result
    wanted "$1" "$name" || return 0
    [ -d "$tests" ] || (install_packages python3-pyverbs) >/dev/null 2>&1 || true
    [ -d "$tests" ] || { report "$name" SKIPPED 0 "package python3-pyverbs is missing"; return 0; }
    prepare
    cp -r "$tests" "$row/tests"
    find "$row/tests" -name '*.gz' -exec gunzip {} +
    start "$row/out" "/usr/bin/python3 -X faulthandler tests/run_tests.py --dev roce0 --gid 0 -v tests.$2"
    wait "$started" && result=0 || result=$?
    local words
    words=$(grep -E '^(OK|FAILED)' "$row/out" | tail -n 1 || true)
    if [ "$result" -eq 0 ] && ! grep -Eq 'Fatal Python error|Segmentation' "$row/out"; then
        report "$name" ok "$(taken)" "$(grep -Eo '^Ran [0-9]+ tests?' "$row/out" | tail -n 1 || true)${words#OK}"
    else
        report "$name" FAILED "$(taken)" "${words:-exit code $result}"
        grep -E '^(FAIL|ERROR):|Error|Exception' "$row/out" | tail -n 20 | cut -c 1-200 | sed 's/^/    /' || true
    fi
}
for module in test_device test_pd test_addr test_cq test_cq_events test_qp test_fork; do pyverbs '' "$module"; done
for module in test_cqex test_qpex test_mr test_atomic test_parent_domain test_relaxed_ordering test_rdmacm test_odp test_shared_pd \
    test_tag_matching test_flow test_rss_traffic; do pyverbs f "$module"; done
