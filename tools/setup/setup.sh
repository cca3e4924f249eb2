#!/usr/bin/env bash
# Makes a machine ready: installs the system packages that are missing, then the Python environment.
#
#   setup.sh           what building, testing and the demo need
#   setup.sh packages  the system packages alone
#   setup.sh lint      clang-format and clang-tidy, for `make lint` and `make format`
#   setup.sh sanitize  the system packages and clang with its sanitizers, for `make sanitize` and
#                      `make fuzz`
#
# Idempotent: with everything there it asks dpkg once and installs nothing. UNREFT_NO_PACKAGES=1
# leaves the system alone (you provide the libraries); the Python environment is still made.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
what=${1:-all}

say() { printf 'setup: %s\n' "$*" >&2; }

# ID and VERSION_ID of the system, without polluting this shell.
os_id=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}-${VERSION_ID:-}") || os_id=unknown-

lint_packages="clang-format-19 clang-tidy-19"
sanitize_packages="clang-19 libclang-rt-19-dev llvm-19"

# A system that is neither is taken for Debian 12; Ubuntu's names are untested.
names_of=$os_id
[ "$os_id" = ubuntu-24.04 ] || names_of=debian-12
build_packages=$(awk -v os="$names_of" '$1 !~ /^#/ && ($2 == "*" || $2 == os) {print $1}' \
  "$here/packages.txt")

case "$what" in
  all | packages) wanted=$build_packages ;;
  lint) wanted=$lint_packages ;;
  sanitize) wanted="$build_packages $sanitize_packages" ;;
  *) say "unknown argument '$what' (all, packages, lint or sanitize)"; exit 2 ;;
esac

# Prints the packages of $wanted that are not installed.
missing_packages() {
  local package
  local installed
  # shellcheck disable=SC2086
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' $wanted 2>/dev/null |
    awk '$2 == "installed" {print $1}' || true)
  for package in $wanted; do
    grep -qxF -- "$package" <<<"$installed" || echo "$package"
  done
}

install_packages() {
  local missing sudo=()
  missing=$(missing_packages | tr '\n' ' ')
  [ -n "${missing// /}" ] || return 0

  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "missing packages, and neither root nor sudo to install them: $missing"
      say "install them (apt-get install -y $missing) and run again"
      exit 1
    fi
    sudo=(sudo)
  fi
  [ "$os_id" != ubuntu-24.04 ] || say "Ubuntu 24.04 is untested"
  say "installing: $missing"
  # shellcheck disable=SC2086
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive sh -ec '
    apt-get -q update
    apt-get -q install -y --no-install-recommends "$@"' sh $missing </dev/null >&2

  # The package starts a server at once and at every boot; only the tests want it, and start theirs.
  # The same for prometheus, of which the tests want promtool.
  local package service
  for package in etcd-server prometheus; do
    service=${package%-server}
    if [[ " $missing " == *" $package "* && -d /run/systemd/system ]]; then
      say "disabling the service that $package brought"
      "${sudo[@]}" systemctl disable --now "$service" >&2
    fi
  done
}

if [ "${UNREFT_NO_PACKAGES:-}" = 1 ]; then
  say "UNREFT_NO_PACKAGES=1: system packages are not looked at"
elif ! command -v dpkg-query >/dev/null; then
  say "$os_id is not a Debian system; provide what these Debian packages hold, then run again"
  say "with UNREFT_NO_PACKAGES=1: $(echo $wanted)"
  exit 1
else
  case "$os_id" in
    debian-12 | ubuntu-24.04) ;;
    *) say "$os_id is untested; using the package names of Debian 12" ;;
  esac
  install_packages
fi

[ "$what" != all ] || "$here/python_env.sh" >/dev/null
