# Packages of any Debian release, unpacked and not installed. Sourced, where $out is a directory to keep lists in and log prints.
# shellcheck shell=bash
# A private apt, so that the state of the machine's own packages has no influence.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 2>/dev/null |
  awk '$2 ~ /^(bookworm|trixie|forky|sid)$/ {print $1; exit}')}
[ -n "$mirror" ] || { log "no Debian mirror in the host's apt sources; set DEBIAN_MIRROR"; exit 1; }
keyring=${DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
mkapt() { # NAME SUITE...  -> sets APT
  local d=$out/apt/$1 s; shift
  mkdir -p "$d"/{etc/apt.conf.d,etc/preferences.d,state/lists/partial,cache/archives/partial}
  : >"$d/status"; : >"$d/etc/sources.list"
  for s; do echo "deb [signed-by=$keyring] $mirror $s main" >>"$d/etc/sources.list"; done
  APT=(-qq -o "Dir::Etc=$d/etc" -o Dir::Etc::sourceparts=- -o "Dir::State=$d/state"
       -o "Dir::State::status=$d/status" -o "Dir::Cache=$d/cache"
       -o APT::Sandbox::User=root -o APT::Get::Assume-Yes=true
       -o APT::Install-Recommends=false -o Acquire::Retries=3 -o Acquire::http::Timeout=30
       -o Acquire::Languages=none -o Debug::NoLocking=true)
  aptd=$d
  [ -n "$(find "$d/state/lists" -name '*Packages*' -mmin -360 -print -quit)" ] ||
    apt-get "${APT[@]}" update
}
fetch_closure() { # DESTROOT PKG...   packages and all that they depend on
  local root=$1 deb; shift
  apt-get "${APT[@]}" install --download-only --reinstall "$@" >&2
  mkdir -p "$root"
  for deb in "$aptd"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done
}
