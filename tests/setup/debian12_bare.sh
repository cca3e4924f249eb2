#!/usr/bin/env bash
# Shows that a bare Debian 12 is enough: makes one, clones this repository's HEAD into it and runs
# make there.
#
#   sudo tests/setup/debian12_bare.sh [--keep] [TARGET...]     (default target: test)
#
# The system is a fresh debootstrap (minbase) in a temporary directory, plus `make` and `git`; all
# else comes from `make setup`. It runs in its own mount, process and IPC namespaces with its own
# /dev/shm, so nothing outlives it, and the directory is removed (--keep leaves it for a look).
# Package sources, certificates, proxies and pip settings are those of the host, taken at run time;
# a host that is not Debian 12 names its mirror in DEBIAN_MIRROR.
# Needs root, debootstrap, about 15 GB under ${TMPDIR:-/tmp}, and network access.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
suite=bookworm

say() { printf 'bare: %s\n' "$*"; }

# --- second life: inside the namespaces ----------------------------------------------------------
if [ "${1:-}" = --inside ]; then
  chroot=$2
  shift 2
  mount -t proc proc "$chroot/proc"
  mount --rbind /dev "$chroot/dev"
  mount -t tmpfs -o mode=1777,size=50% tmpfs "$chroot/dev/shm"
  mount --rbind -o ro /sys "$chroot/sys"
  if [ -d "${PIP_FIND_LINKS:-}" ]; then  # a local folder of wheels, if the host's pip has one
    mkdir -p "$chroot$PIP_FIND_LINKS"
    mount --bind -o ro "$PIP_FIND_LINKS" "$chroot$PIP_FIND_LINKS"
  fi
  environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive CI=true)
  while IFS='=' read -r -d '' name value; do
    case "$name" in
      PIP_* | *_proxy | *_PROXY | SSL_CERT_* | REQUESTS_CA_BUNDLE | JOBS)
        environment+=("$name=$value") ;;
    esac
  done < <(env -0)
  # shellcheck disable=SC2016
  exec env -i "${environment[@]}" chroot "$chroot" /bin/bash -euc '
    apt-get -q update
    apt-get -q install -y --no-install-recommends make git ca-certificates
    git clone -q /source.git /root/unreft
    cd /root/unreft
    for target in "$@"; do
      echo "bare: make $target"
      SECONDS=0
      make "$target"
      echo "bare: make $target: ${SECONDS} s"
    done' bare "$@" </dev/null
fi

# --- first life: make the system -----------------------------------------------------------------
keep=0
[ "${1:-}" != --keep ] || { keep=1; shift; }
[ $# -gt 0 ] || set -- test
[ "$(id -u)" = 0 ] || { say "needs root (chroot and mounts)" >&2; exit 1; }
command -v debootstrap >/dev/null || { say "needs the package debootstrap" >&2; exit 1; }

# The host's sources of this suite, one "URI release component" per line.
sources=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' \
  'Identifier: Packages' 2>/dev/null | awk -v s="$suite" '$4 == "Debian" && index($2, s) == 1' |
  cut -d' ' -f1-3 | sort -u || true)
mirror=${DEBIAN_MIRROR:-$(awk -v s="$suite" '$2 == s {print $1; exit}' <<<"$sources")}
if [ -z "$mirror" ]; then
  say "the host has no source of $suite; set DEBIAN_MIRROR" >&2
  exit 1
fi

work=$(mktemp -d)
chroot=$work/root
cleanup() {
  if [ $keep = 1 ]; then say "kept: $work"; else rm -rf --one-file-system "$work"; fi
}
trap cleanup EXIT

# debootstrap fetches with wget, which does not read apt's proxy.
proxy=$(apt-config shell p Acquire::http::Proxy | sed -n "s/^p='\(.*\)'$/\1/p")
if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy=${http_proxy:-$proxy}; fi

say "debootstrap $suite"
debootstrap --variant=minbase "$suite" "$chroot" "$mirror" >"$work/debootstrap.log" 2>&1 ||
  { tail -n 20 "$work/debootstrap.log"; exit 1; }

if [ -n "$sources" ]; then
  sed 's/^/deb /' <<<"$sources" >"$chroot/etc/apt/sources.list"
fi
apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries)' \
  >"$chroot/etc/apt/apt.conf.d/99host" || true
# Certificates of a private authority, names and pip's settings; what is not there is not needed.
for path in /etc/ssl/certs /usr/local/share/ca-certificates /etc/pip.conf /etc/resolv.conf \
  /etc/hosts; do
  if [ -e "$path" ]; then
    mkdir -p "$chroot$(dirname "$path")"
    cp -aL "$path" "$chroot$(dirname "$path")/" 2>/dev/null || true
  fi
done
git clone -q --bare --no-hardlinks "$root" "$chroot/source.git"

say "$(cat "$chroot/etc/debian_version"), $(chroot "$chroot" dpkg-query -W | wc -l) packages"
unshare --mount --pid --ipc --fork --kill-child --propagation private \
  bash "${BASH_SOURCE[0]}" --inside "$chroot" "$@"
say "OK: $*"
