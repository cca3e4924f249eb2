#!/usr/bin/env bash
# Makes the Python environment of the pinned requirements, once, and prints its directory.
#
#   python_env.sh         make it if need be, print its directory
#   python_env.sh --path  only print where it is or would be
#
# The interpreter is UNREFT_PYTHON, or else /usr/bin/python3. The directory is keyed by the
# interpreter's version and the hash of requirements.txt, lies under
# ${XDG_CACHE_HOME:-~/.cache}/unreft, and counts as made only when the marker written last is there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
requirements=$root/integrations/python/requirements.txt
python=${UNREFT_PYTHON:-/usr/bin/python3}
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/unreft

say() { printf 'setup: %s\n' "$*" >&2; }

version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3], sys.executable)') || {
  say "no Python interpreter at '$python' (set UNREFT_PYTHON, or install python3)"
  exit 1
}
key=$({ echo "$version"; cat "$requirements"; } | sha256sum | cut -c1-16)
venv=$cache/venv-$key

if [ "${1:-}" = --path ] || [ -e "$venv/.complete" ]; then
  echo "$venv"
  exit 0
fi

mkdir -p "$cache"
exec 9>"$venv.lock"  # two builds at once: the second waits, then finds it made
flock 9
if [ ! -e "$venv/.complete" ]; then
  say "Python environment for $python ($version): $venv"
  say "installing $(grep -cE '^[A-Za-z]' "$requirements") pinned packages (several GB, once)"
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
    --requirement "$requirements" </dev/null >&2
  "$venv/bin/python" -c 'import numpy, torch
print("setup: torch", torch.__version__, "numpy", numpy.__version__)' >&2
  touch "$venv/.complete"
fi
echo "$venv"
