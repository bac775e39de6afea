# The stock programs that scripts/dropin runs: a row for each, in the table's order. Sourced by it, behind harness.sh.
# shellcheck shell=bash

namespace=roce-$$
case $list$hosts$memif in
yes*) ;;
nonono) one_host || die "scripts/dropin: this host has no IPv4 address" ;;
noyesno) make_namespaces 1500 && two_hosts || die "scripts/dropin: there are no network namespaces" ;;
*) private_link ;;
esac

# same_names ROW ...: a row of a program that takes a name of TCP for one of RDMA: over UDP sockets, where both are the same, instead of
# a private link.
same_names() {
    [ "$memif" = yes ] || { "$@"; return; }
    local address=127.0.0.2 client_address=127.0.0.3
    local server_options="--port udp:$address" client_options="--port udp:$client_address"
    "$@"
}

# by_memif WHY ROW ...: a row that needs a private link.
by_memif() {
    local missing=$missing
    [ "$memif" = yes ] || missing=$1
    "${@:2}"
}

# pingpong FLAGS PROGRAM OPTIONS
pingpong() { pair "t$1" ibverbs-utils 'bytes in .* seconds' "$2 -d roce0 -g @G -p @P $3" "$2 -d roce0 -g @G -p @P $3 @H"; }

# perf FLAGS PROGRAM OPTIONS
perf() { pair "t$1" perftest 'BW average|t_avg|#bytes' "$2 -d roce0 -F -p @P $3" "$2 -d roce0 -F -p @P $3 @H"; }

# perf_cm FLAGS PROGRAM OPTIONS: connected by rdma_cm.
perf_cm() { pair "r$1" perftest 'BW average|t_avg|#bytes' "$2 -F -R -p 18600 $3" "$2 -F -R -p 18600 $3 @A"; }

# qperf_test FLAGS TESTS: its queue pairs need rdma_cm for the addresses of RoCE.
qperf_test() { same_names pair "krt$1" qperf '(bw|latency) +=|msg_rate' "qperf -lp @P" "qperf -lp @P -cm 1 -t 1 @A $2"; }

# fio_test FLAGS VERB DEPTH SIZES: a target that serves DEPTH messages at once.
fio_test() {
    local both="--ioengine=rdma --port=18700 $4"
    pair "$1" fio 'Disk stats|err= 0' \
        "fio --name=target $both --iodepth=$3 --rw=read" \
        "fio --name=$2 $both --iodepth=8 --hostname=@A --rw=write --verb=$2 --iodepth_batch_complete_max=8"
}

heading "devices"
solo '' ibverbs-utils 'roce0' "ibv_devices"
solo '' ibverbs-utils "GID.*$address" "ibv_devinfo -v"
solo '' infiniband-diags 'State: Active' "ibstat"
solo '' infiniband-diags 'state:.*4: ACTIVE' "ibstatus"

heading "pingpongs"
pingpong '' ibv_rc_pingpong ''
pingpong '' ibv_rc_pingpong '-e -c'
pingpong '' ibv_rc_pingpong '-N -c'
pingpong f ibv_rc_pingpong '-N -e'
pingpong f ibv_rc_pingpong '-s 1 -c'
pingpong f ibv_rc_pingpong '-s 1048576 -n 100 -c'
by_memif 'interfaces of 1500 bytes carry a path MTU of 1024' pingpong f ibv_rc_pingpong '-s 1048576 -n 100 -m 4096 -e'
pingpong '' ibv_uc_pingpong ''
pingpong f ibv_uc_pingpong '-e'
pingpong f ibv_uc_pingpong '-s 1 -c'
pingpong '' ibv_ud_pingpong ''
pingpong f ibv_ud_pingpong '-e -c'
pingpong '' ibv_srq_pingpong ''
pingpong f ibv_srq_pingpong '-e -c'
pair t ibverbs-utils '^success' "ibv_xsrq_pingpong -d roce0 -g @G -p @P" "ibv_xsrq_pingpong -d roce0 -g @G -p @P @H"
pair tf ibverbs-utils '^success' "ibv_xsrq_pingpong -d roce0 -g @G -p @P -e -s 1048576" "ibv_xsrq_pingpong -d roce0 -g @G -p @P -e -s 1048576 @H"

heading "perftest"
for op in send write read; do
    perf '' ib_${op}_bw '-n 1000'
    perf '' ib_${op}_lat '-n 1000'
    perf f ib_${op}_bw '-a -n 200'
    perf f ib_${op}_bw '-b -n 1000'
    perf f ib_${op}_bw '-q 8 -n 1000'
    # perftest itself has no events with WRITE, and no receive queue with WRITE and READ.
    [ $op = write ] || perf f ib_${op}_bw '-e -n 1000'
    [ $op = send ] && depths='-r 64 -t 64' || depths='-t 64'
    perf f ib_${op}_bw "$depths -n 1000"
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
# What a receiver is too slow for is lost over UC and UD, and these programs wait for every message: as many as the link holds.
perf f ib_send_bw '-c UC -s 4096 -n 500'
perf f ib_send_lat '-c UC -n 1000'
perf '' ib_send_bw '-c UD -s 1024 -n 500'
perf f ib_send_lat '-c UD -n 1000'
perf f ib_send_bw '-c XRC -n 1000'
perf f ib_write_bw '-c XRC -n 1000'
perf f ib_send_lat '-I 64 -s 64 -n 1000'
perf f ib_write_lat '-I 64 -s 64 -n 1000'
perf f ib_send_bw '--use-srq -q 4 -n 1000'
perf f ib_send_lat '-e -n 1000'
perf_cm '' ib_write_bw '-n 1000'
perf_cm f ib_send_bw '-c UD -s 1024 -n 500'
pair tkif perftest '^ *65536 +[0-9]' "ib_write_bw -d roce0 -F -p @P --run_infinitely" "ib_write_bw -d roce0 -F -p @P --run_infinitely @H"

heading "rdma_cm"
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

heading "qperf"
qperf_test '' "rc_bw rc_lat"
qperf_test f "rc_bi_bw rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat"
qperf_test f "rc_compare_swap_mr rc_fetch_add_mr"
# Its tests of UC and UD address their peer by a LID, which RoCE does not have.

heading "fio"
fio_test '' write 8 '--bs=64k --size=16m'
fio_test f read 8 '--bs=64k --size=16m'
# With SEND it has no flow control, connects without RNR retries, and waits half a second after it has connected for the target's
# receive requests. On a completion with an error it says so, and waits for another event for ever, with any device. So the target
# posts a receive request for each of the 256 messages; if it does not come to that in time the pair begins again.
note=' (a target that has posted every receive request before: fio has no flow control)' fio_test fn send 256 '--bs=16k --size=4m'

heading "UCX"
solo '' ucx-utils 'Device: roce0:1' "ucx_info -d"
ucx_test() {
    local both="env UCX_TLS=$2 UCX_NET_DEVICES=roce0:1 ucx_perftest -p @P -t $3"
    pair "t$1" ucx-utils 'Final' "$both" "$both @H"
}
ucx_test '' ud_verbs 'tag_lat -n 500'
ucx_test '' rc_verbs,ud_verbs 'tag_lat -n 500'
ucx_test f rc_verbs,ud_verbs 'tag_bw -s 65536 -n 500'
ucx_test f rc_verbs,ud_verbs 'ucp_put_bw -s 65536 -n 500'
ucx_test f rc_verbs,ud_verbs 'ucp_get -n 500'
ucx_test f ud_verbs 'tag_bw -s 65536 -n 500'
# Atomics of the device: above this layer UCX makes them out of messages where a device has none.
uct_atomic() {
    local both="ucx_perftest -p @P -d roce0:1 -x rc_verbs -t $2 -n 500"
    pair "t$1" ucx-utils 'Final' "$both" "$both @H"
}
uct_atomic '' fadd
for test in add_lat add_mr cswap; do uct_atomic f $test; done

heading "libfabric"
solo '' libfabric-bin 'provider: verbs' "fi_info -p verbs"
same_names pair tf libfabric-bin 'bytes' "fi_pingpong -p verbs -e dgram -B @P" "fi_pingpong -p verbs -e dgram -P @P @A"
# Its endpoints of messages are not on the interface lo: they are below, between two network namespaces.

heading "uDAPL"
# dapl_test FLAGS PROGRAM: its TCP port is its own; a file says which address an end has.
dapl_test() {
    local own_port=15828
    dat server "$address" && dat client "$client_address"
    pair "tr$1" dapl2-utils PASSED "env DAT_OVERRIDE=../dat.server $2 -P roce" "env DAT_OVERRIDE=../dat.client $2 -P roce -h @A"
}
dat() { printf 'roce u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "%s 0" ""\n' "$2" >"$dir/dat.$1"; }
same_names dapl_test f dtest
same_names dapl_test f dtestx

heading "Open MPI over UCX"
# mpi_test FLAGS TRANSPORTS: two ranks, neither of which has another way to the other one.
mpi_test() {
    local set="OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_NET_DEVICES=roce0:1 UCX_TLS=$2" missing=$missing
    local command="env $set mpirun -np 2 --oversubscribe --mca pml ucx allreduce" server_in=$server_in
    [ "$hosts" = no ] || a_rank_a_host
    ! asked_for "$1" "$command" || allreduce >"$dir/mpicc" 2>&1 || missing="no compiler of Open MPI: $(tail -n 1 "$dir/mpicc")"
    solo "$1" openmpi-bin '^2 ranks, .* 0 wrong' "$command"
}
# a_rank_a_host: mpirun is on the first host, and starts the second rank on the other one by what it takes for ssh(1).
a_rank_a_host() {
    mkdir -p "$dir/bin"
    printf '%s slots=1\n' "$address" "$client_address" >"$dir/ranks"
    printf '#!/bin/sh\nshift\nexec %s sh -c "$*"\n' "$client_in" >"$dir/bin/on-client"
    chmod +x "$dir/bin/on-client"
    server_in+=" env OMPI_MCA_plm_rsh_agent=on-client OMPI_MCA_orte_default_hostfile=$dir/ranks"
}
# allreduce: builds the program.
allreduce() {
    [ ! -x "$dir/bin/allreduce" ] || return 0
    (install_packages gcc openmpi-bin libopenmpi-dev) && mkdir -p "$dir/bin" &&
        mpicc -O2 -Wall -Wextra -o "$dir/bin/allreduce" scripts/programs/allreduce.c
}
PATH=$PATH:$dir/bin
mpi_test f self,ud_verbs,rc_verbs
mpi_test f self,ud_verbs

heading "Sanitizers"
# sanitized FLAGS COMPILER OPTIONS: a program that is built with a sanitizer, and ends without a fault.
sanitized() {
    local program missing=$missing
    program=sanitized-$2$(tr -d ' ' <<<"${3//-fsanitize=/-}")
    ! asked_for "$1" "$program" || compiled "$program" "$2" "$3" >"$dir/cc" 2>&1 || missing="$2 does not build it: $(tail -n 1 "$dir/cc")"
    solo "$1" "$2" '^arrived' "$program"
}
# compiled PROGRAM COMPILER OPTIONS
compiled() {
    local packages=("$2" libibverbs-dev)
    [ "$2" != clang ] || packages+=(libclang-rt-dev)
    # shellcheck disable=SC2086 # the words of an option
    (install_packages "${packages[@]}") && mkdir -p "$dir/bin" &&
        "$2" -g -O1 -Wall -Wextra $3 -o "$dir/bin/$1" scripts/programs/sanitized.c -libverbs -lpthread
}
for sanitizer in address thread undefined; do sanitized f gcc "-fsanitize=$sanitizer"; done
sanitized f gcc '-fsanitize=address -static-libasan'
for sanitizer in address thread; do sanitized f clang "-fsanitize=$sanitizer"; done

heading "Rust crates"
# crate_programs CRATE VERSION: the crate's examples, built as whoever uses the crate would; $missing says why that does not work.
# Either crate brings the headers of rdma-core along. ibverbs links with the library, sideway loads it.
crate_programs() {
    local root=$target/crates program
    (install_packages gcc pkg-config cmake libclang-dev libibverbs-dev libnl-3-dev libnl-route-3-dev &&
        cargo install -q --debug --locked --examples --root "$root/$1-$2" --target-dir "$root/build" "$1@$2") >"$dir/crate" 2>&1 ||
        { missing="the crate cannot be built: $(grep -m 1 -i error "$dir/crate" || tail -n 1 "$dir/crate")"; return; }
    mkdir -p "$dir/bin"
    for program in "$root/$1-$2/bin"/*; do ln -sf "$(realpath "$program")" "$dir/bin/$1-${program##*/}"; done
}
# crate_row CRATE VERSION ROW FLAGS ...: a row of one of its examples, which is called CRATE-EXAMPLE.
crate_row() {
    local crate=$1 version=$2 missing=$missing note=" (an example of the crate $1 $2)"
    shift 2
    ! asked_for "$2" "${*: -1}$note" || crate_programs "$crate" "$version"
    "$@"
}
crate_row ibverbs 0.9.2 solo f ibverbs '^received' "ibverbs-loopback"
sideway() { crate_row sideway 0.4.3 "$@"; }
sideway solo f sideway 'hca_id: roce0' "sideway-ibv_devinfo"
for program in rc_pingpong rc_pingpong_split; do
    sideway pair tf sideway 'bytes in .* seconds' "sideway-$program -d roce0 -g @G -p @P" "sideway-$program -d roce0 -g @G -p @P @H"
done
# Without an address to bind to: the crate passes rdma_resolve_addr a pointer to one that is gone.
sideway pair fn sideway 'Disconnect  *[|]' "sideway-cmtime -p 7404" "sideway-cmtime -p 7404 -s @A"

heading "Python wheels"
# wheel_program NAME PACKAGE...: a program of ours that uses packages of Python, as pip has them, in an environment of its own; $missing
# says why that does not work. Without what they depend on, which would be gigabytes for GPUs: the program names what it needs.
wheel_program() {
    local name=$1 root=$target/wheels/$1
    shift
    (install_packages python3-venv libnuma1 libcurl4 && { [ -x "$root/bin/python" ] || python3 -m venv "$root"; } &&
        "$root/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$@") >"$dir/pip" 2>&1 ||
        { missing="pip installs no $*: $(grep -m 1 -i error "$dir/pip" || tail -n 1 "$dir/pip")"; return; }
    mkdir -p "$dir/bin"
    printf '#!/bin/sh\nexec %s %s "$@"\n' "$(realpath -s "$root/bin/python")" "$PWD/scripts/programs/$name.py" >"$dir/bin/$name"
    chmod +x "$dir/bin/$name"
}
# wheel_row NAME PREFIX PACKAGE...: both ends of the program; PREFIX is env(1) with variables, or nothing. Each byte is compared.
wheel_row() {
    local name=$1 prefix=$2 missing=$missing note
    shift 2
    note=" (packages of Python: ${*//==/ })"
    ! asked_for f "$prefix$name client @H @P$note" || wheel_program "$name" "$@"
    pair tf pip '^written: .*, 0 wrong' "$prefix$name server @H @P" "$prefix$name client @H @P"
}
wheel_row nixl_transfer 'env UCX_TLS=rc_verbs,ud_verbs UCX_NET_DEVICES=roce0:1 ' nixl==1.5.2 nixl-cu12==1.5.1 numpy==2.4.6
# By itself it takes the last IPv4 address of a device, which is 127.0.0.1 over UDP sockets.
wheel_row mooncake_transfer 'env MC_GID_INDEX=@G ' mooncake-transfer-engine-non-cuda==0.3.13.post1

heading "two network namespaces, over af_packet"
# between_namespaces FUNCTION ARG...: rows whose two ends are in network namespaces of their own. The ends of a veth are the stack's
# ports; the kernel has other addresses on them, for the programs' TCP.
between_namespaces() {
    local server_in="ip netns exec $namespace-a" client_in="ip netns exec $namespace-b" host=10.78.0.1 library=$library-dpdk
    local server_options='--port af_packet:roce-a --ip 10.77.0.1/24' client_options='--port af_packet:roce-b --ip 10.77.0.2/24'
    local note=' (af_packet, two network namespaces)'
    "$@"
}
if [ "$full$only" = no ] || [ "$list" = yes ] || [ "$hosts" = yes ]; then
    :
elif [ "$(id -u)" -ne 0 ]; then
    missing='network namespaces need root'
elif ! make_namespaces 4200 2>"$dir/namespaces"; then
    missing="no network namespaces: $(tail -n 1 "$dir/namespaces")"
fi
namespaces_missing=$missing
[ -n "$missing" ] || [ "$hosts" = no ] || missing='over another link'
[ -n "$missing" ] || [ -e "$library-dpdk/libibverbs.so.1" ] || missing='the library with DPDK is not built'
for program in ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong; do between_namespaces pingpong f $program ''; done
for op in send write read; do
    between_namespaces perf f ib_${op}_bw '-n 500'
    between_namespaces perf f ib_${op}_lat '-n 500'
done
missing=''

heading "programs that Debian does not have, or not as new, from their repositories"
# once KEY COMMAND ...: for the first row that needs it; $missing says why that does not work, for the others too.
once() {
    local key=$1
    shift
    [ -z "$missing" ] || return 0
    [ -z "${tried[$key]+tried}" ] || { missing=${tried[$key]}; return; }
    "$@"
    tried[$key]=$missing
}
declare -A tried=()
# from_git FOLDER REF REPOSITORY BUILD PACKAGE ...: a repository of github.com in a folder, where BUILD FOLDER builds it; $missing says why that
# does not work. Once built it stays. git's url.<base>.insteadOf takes repositories from elsewhere.
from_git() {
    local at=$1 ref=$2 repository=$3 build=$4
    shift 4
    [ -e "$at/done" ] || (install_packages git gcc pkg-config "$@" && rm -rf "$at" &&
        timeout 300 git clone -q --depth 1 ${ref:+--branch "$ref"} "https://github.com/$repository" "$at" &&
        "$build" "$at" && touch "$at/done") >"$dir/git" 2>&1 ||
        missing="$repository cannot be built: $(grep -m 1 -Ei 'fatal|error' "$dir/git" || tail -n 1 "$dir/git")"
}
# built NAME REF REPOSITORY FOLDER PACKAGE ...: programs of a repository, built in a folder of it and called NAME-PROGRAM.
built() {
    local name=$1 ref=$2 repository=$3 folder=$4 at program
    at=$(realpath -m "$target/git/$name-${ref:-newest}")
    shift 4
    from_git "$at" "$ref" "$repository" autotools make autoconf automake libtool "$@"
    [ -z "$missing" ] || return 0
    mkdir -p "$dir/bin"
    for program in "$at/installed/bin"/*; do ln -sf "$program" "$dir/bin/$name-${program##*/}"; done
}
autotools() { cd "$1/$folder" && ./autogen.sh && ./configure --prefix="$1/installed" && make && make install; }

# fabtest COMMAND: tests of libfabric, as new as Debian's libfabric, always between two hosts. With -b=@P the two begin together, by TCP,
# and with -E=@P they tell each other addresses by it; fi_rdm_tagged_bw loses count with -b over every transport.
fabtest() {
    local server_in client_in server_options client_options address client_address host gid version missing=$namespaces_missing
    two_hosts
    local note=' (fabtests of libfabric, UDP sockets, two network namespaces)' both="fabtests-$1"
    if asked_for f "$both -s 10.78.0.2 @A$note"; then
        known libfabric-bin fi_info || true
        version=$(dpkg-query -W -f '${Version}' libfabric1 2>/dev/null | sed 's/-.*//')
        once fabtests built fabtests "v$version" ofiwg/libfabric fabtests libfabric-dev
    fi
    pair tf fabtests 'MB/sec|_lat ' "$both -s @A" "$both -s 10.78.0.2 @A"
}
fabtest 'fi_msg_pingpong -b=@P -p verbs -I 100'
fabtest 'fi_rma_bw -b=@P -p verbs -e msg -o write -I 100'
fabtest 'fi_rma_bw -b=@P -p verbs -e msg -o read -I 100'
fabtest 'fi_rdm_pingpong -b=@P -p verbs;ofi_rxm -I 100 -v'
fabtest 'fi_rdm_tagged_bw -E=@P -p verbs;ofi_rxm -I 100 -v'
fabtest 'fi_rma_bw -b=@P -p verbs;ofi_rxm -e rdm -o writedata -I 100'
fabtest 'fi_rdm_atomic -b=@P -p verbs;ofi_rxm -o all -I 20'

# newest FLAGS PROGRAM OPTIONS: the perftest of this day, with options that Debian's does not have or that are rare.
newest() {
    local missing=$missing note=' (perftest of its repository)' both="newest-$2 -d roce0 -F -p @P $3"
    ! asked_for "$1" "$both @H$note" ||
        once newest built newest '' linux-rdma/perftest . libibverbs-dev librdmacm-dev libibumad-dev libpci-dev
    pair "t$1" perftest 'BW average|t_avg|#bytes' "$both" "$both @H"
}
newest f ib_send_bw '--send_with_imm -n 500'
newest f ib_send_bw '-l 16 --recv_post_list=8 -n 512'
newest f ib_send_bw '-b --report-both -q 4 -n 500'
newest f ib_send_bw '--reversed --perform_warm_up -n 500'
newest f ib_send_bw '--use-srq -q 8 -c XRC -n 500'
newest f ib_send_bw '--odp -n 500'
by_memif 'its group (ff01::) is one of an interface, which kernels carry nowhere' newest f ib_send_lat '-c UD -g -n 200'
newest f ib_write_bw '--data_validation -n 500'
newest f ib_write_bw '--write_with_imm -c UC -n 500'
newest f ib_write_bw '--mr_per_qp -q 16 -s 1024 -n 500'
newest f ib_write_lat '--write_with_imm -n 500'
newest f ib_read_bw '--data_validation -o 8 -n 500'
newest f ib_read_lat '-e -n 500'
newest f ib_atomic_bw '-c XRC -o 16 -n 500'

heading "pyverbs"
# pyverbs FLAGS MODULE: the tests of rdma-core in Python; of the interpreter that the package is for. What passes on Linux' soft-RoCE
# has to pass here: pyverbs.soft-roce is what scripts/interop/pyverbs saw in its guest.
pyverbs() {
    local tests=/usr/share/doc/rdma-core/tests name="pyverbs $2"
    wanted "$1" "$name" || return 0
    [ -d "$tests" ] || (install_packages python3-pyverbs) >/dev/null 2>&1 || true
    [ -d "$tests" ] || { report "$name" SKIPPED 0 "package python3-pyverbs is missing"; return 0; }
    run_pyverbs "$name" "$2" "$tests"
    awk -F '\t' 'NR == FNR {there[$1] = $2; next} $2 == "skipped" {print "| `" $1 "` | " $3 " | " ($1 in there ? there[$1] : "not tried") " |"}' \
        scripts/programs/pyverbs.soft-roce "$row/results" >>"$dir/skipped"
}

# run_pyverbs NAME MODULE TESTS: a module of a folder of tests.
run_pyverbs() {
    local name=$1 tests=$3 ends='' result ran lost failed refused
    prepare
    cp -r "$tests" "$row/tests"
    find "$row/tests" -name '*.gz' -exec gunzip {} +
    # The tests of rdma_cm connect two processes.
    [ "$2" != test_rdmacm ] || ends="--hosts $address,$client_address"
    [ "$2$hosts" != test_rdmacmyes ] || ends+=" --in $namespace-a,$namespace-b"
    start "$row/out" "/usr/bin/python3 -X faulthandler $PWD/scripts/programs/rdma_tests.py $ends $row/results roce0 0 $2" "$server_options" "$server_in"
    wait "$started" && result=0 || result=$?
    touch "$row/results"
    ran="$(grep -c '	ok	' "$row/results" || true) ok, $(grep -c '	skipped	' "$row/results" || true) skipped"
    # A Q_Key of the privileged half is refused to everybody here.
    refused='[.]test_create_ud_qp_with_privileged_qkey$'
    failed=$(awk -F '\t' -v refused="$refused" '$2 == "failed" && $1 !~ refused {print $1}' "$row/results")
    [ "$result" -ne 1 ] || [ -n "$failed" ] || [ ! -s "$row/results" ] || { result=0 ran+=", $(grep -c '	failed	' "$row/results") refused"; }
    # Those that pass there, and not here; but for one that needs an empty entry in the GID table: there is none.
    lost=$(awk -F '\t' -v module="$2." -v but="$refused|[.]test_query_gid_ex_bad_flow$" \
        'NR == FNR {here[$1] = $2; next} index($1, module) == 1 && $2 == "ok" && ($1 in here) && here[$1] != "ok" && $1 !~ but {print $1}' \
        "$row/results" scripts/programs/pyverbs.soft-roce)
    if [ "$result" -eq 0 ] && [ -z "$lost" ]; then
        report "$name" ok "$(taken)" "$ran"
    else
        report "$name" FAILED "$(taken)" "$ran, exit code $result${lost:+, pass on soft-RoCE: ${lost//$'\n'/ }}"
        grep '	failed	' "$row/results" | cut -c 1-200 | sed 's/^/    /' || tail -n 10 "$row/out"
    fi
}
quick_modules=(test_device test_pd test_addr test_cq test_cq_events test_qp test_fork)
more_modules=(test_cqex test_qpex test_mr test_atomic test_parent_domain test_relaxed_ordering test_rdmacm test_odp test_shared_pd
    test_tag_matching test_flow test_rss_traffic)
for module in "${quick_modules[@]}"; do pyverbs '' "$module"; done
for module in "${more_modules[@]}"; do pyverbs f "$module"; done
# Several processes behind one XRC domain, which a private link joins with nobody.
shared_domain() {
    [ "$memif" != yes ] || return 0
    mkdir -p "$dir/bin" && cp scripts/programs/xrc_domain.py "$dir/bin/xrc_domain.py"
    note=' (scripts/programs)' solo '' python3-pyverbs '^400 messages arrived' "xrc_domain.py"
}
shared_domain

# newest_pyverbs MODULE: the same of rdma-core's repository. Its tests ask rdma(8) for network interfaces, and fail where the kernel has no
# RDMA; here it says that there are none.
newest_pyverbs() {
    local at missing=$missing name="pyverbs $1 (of its repository)"
    at=$(realpath -m "$target/git/rdma-core")
    wanted f "$name" || return 0
    once rdma-core from_git "$at" '' linux-rdma/rdma-core cmake_pyverbs cmake ninja-build cython3 python3-dev libnl-3-dev \
        libnl-route-3-dev libudev-dev
    [ -z "$missing" ] || { report "$name" SKIPPED 0 "$missing"; return 0; }
    mkdir -p "$dir/rdma" && printf '#!/bin/sh\necho "[]"\n' >"$dir/rdma/rdma" && chmod +x "$dir/rdma/rdma"
    PATH=$dir/rdma:$PATH PYTHONPATH=$at/build/python run_pyverbs "$name" "$1" "$at/tests"
}
cmake_pyverbs() {
    cmake -S "$1" -B "$1/build" -GNinja -DNO_MAN_PAGES=1 -DPYTHON_EXECUTABLE=/usr/bin/python3 -DCYTHON_EXECUTABLE=/usr/bin/cython3 &&
        ninja -C "$1/build"
}
for module in "${quick_modules[@]}" "${more_modules[@]}" test_buf test_dmah; do newest_pyverbs "$module"; done
