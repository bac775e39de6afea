# Functions shared by the scripts. Sourced, not run.
# shellcheck shell=bash

set -euo pipefail
# The caller's directory: paths on the command line are relative to it.
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\033[1m%s\033[0m\n' "== $*" >&2; }
path() { (cd "$here" && realpath -m "$1"); }
die() { printf '%s\n' "$*" >&2; exit 1; }

# patiently WHAT COMMAND ...: says what a command does that says nothing itself, and every now and then that it goes on.
patiently() {
    local what=$1 began=$SECONDS every=30 ticker status=0
    shift
    say "$what"
    [ ! -t 2 ] || every=10
    (while sleep $every >/dev/null 2>&1; do say "$what: $((SECONDS - began)) s"; done) &
    ticker=$!
    "$@" || status=$?
    kill $ticker
    wait $ticker 2>/dev/null || true
    return $status
}

# compile ARGUMENT ...: cargo build. On a terminal cargo itself shows how far it is.
compile() {
    local what='' packages='' arg last=''
    for arg in "$@"; do
        case $last in --bin) what+=" $arg" ;; -p) packages+=" $arg" ;; esac
        last=$arg
    done
    what="building${what:-$packages}"
    if [ -t 2 ]; then
        say "$what"
        cargo build "$@"
    else
        patiently "$what" cargo build -q "$@"
    fi
}

# install_packages PACKAGE ...: installs what is missing, with apt-get.
# It asks first where that needs root and a person is there to answer.
install_packages() {
    local missing=() p
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "Install these packages (their Debian names) and try again: ${missing[*]}"
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "Missing packages: ${missing[*]}. As root: apt-get install ${missing[*]}"
        sudo=(sudo)
    fi
    say "missing packages: ${missing[*]}"
    if [ -t 0 ] && [ "$(id -u)" -ne 0 ]; then
        local answer
        read -r -p "Install them now with sudo apt-get? [Y/n] " answer
        case "$answer" in [nN]*) die "Nothing was installed. When you are ready: sudo apt-get install ${missing[*]}" ;; esac
    fi
    local try
    for try in 1 2 3; do
        if patiently "asking for packages" "${sudo[@]}" apt-get update -q >/dev/null &&
            patiently "installing packages" "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null; then
            return 0
        fi
        say "apt-get failed (try $try of 3)"
        sleep 5
    done
    die "apt-get could not install: ${missing[*]}"
}

# spin N: N processes that use all the CPU time they get, until this shell ends.
spin() {
    local n
    for ((n = 0; n < $1; n++)); do
        (while [ -e "/proc/$$" ]; do :; done) &
    done
}

# is_locked FILE: whether a process holds a lock on a part of it.
is_locked() { [ -e "$1" ] && grep -q ":$(stat -c %i "$1") " /proc/locks; }

need_rust() {
    # shellcheck source=/dev/null
    command -v cargo >/dev/null || [ ! -f "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"
    command -v cargo >/dev/null || die "Rust is missing: install it from https://rustup.rs and try again."
}

# Installs what the default build needs: a C compiler, the headers and libraries of DPDK, those of libibverbs and librdmacm, libclang
# for the bindings.
need_build() {
    need_rust
    install_packages gcc libc6-dev pkg-config libdpdk-dev libclang-dev libibverbs-dev librdmacm-dev
}

# The same without DPDK, which is most of it.
need_build_without_dpdk() {
    need_rust
    install_packages gcc libc6-dev libclang-dev libibverbs-dev librdmacm-dev
}
