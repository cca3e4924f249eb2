#!/usr/bin/env bash
# Makes the Python environment of the pinned requirements, once, and prints its directory.
#
#   python_env.sh [--path] [REQUIREMENTS]
#
# Makes it if need be, unless --path only asks where it is or would be. REQUIREMENTS is
# integrations/python/requirements.txt unless said; a file with a line `# on FILE` adds to the
# environment of that one, which is made first. A line `# unpacked PACKAGE==VERSION of Python N.M`
# adds the wheel of a package that says it needs that Python, but runs on this one: without what it
# depends on, and without its compiled modules working. The interpreter is UNREFT_PYTHON, or else
# /usr/bin/python3. The directory is keyed by the interpreter's version and the hash of the
# requirements, lies under ${XDG_CACHE_HOME:-~/.cache}/unreft, and counts as made only when the
# marker written last is there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
what=make
if [ "${1:-}" = --path ]; then
  what=path
  shift
fi
requirements=${1:-$root/integrations/python/requirements.txt}
python=${UNREFT_PYTHON:-/usr/bin/python3}
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/unreft

say() { printf 'setup: %s\n' "$*" >&2; }

version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3], sys.executable)') || {
  say "no Python interpreter at '$python' (set UNREFT_PYTHON, or install python3)"
  exit 1
}
under=$(sed -n 's/^# on //p' "$requirements")
under=${under:+$root/$under}
key=$({ echo "$version"; cat "$requirements" ${under:+"$under"}; } | sha256sum | cut -c1-16)
venv=$cache/venv-$key

if [ "$what" = path ] || [ -e "$venv/.complete" ]; then
  echo "$venv"
  exit 0
fi

below=${under:+$("$0" "$under")}
mkdir -p "$cache"
exec 9>"$venv.lock"  # two builds at once: the second waits, then finds it made
flock 9
if [ ! -e "$venv/.complete" ]; then
  say "Python environment for $python ($version): $venv"
  say "installing $(grep -cE '^[A-Za-z]' "$requirements") pinned packages (once; torch: several GB)"
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  if [ -n "$below" ]; then
    "$below/bin/python" -c "$packages" >"$("$venv/bin/python" -c "$packages")/below.pth"
  fi
  "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
    --requirement "$requirements" </dev/null >&2
  unpacked=$(sed -n 's/^# unpacked \(.*\) of Python \(.*\)$/\1 \2/p' "$requirements")
  while read -r package release; do
    [ -n "$package" ] || continue
    say "unpacking $package of Python $release"
    "$venv/bin/python" -m pip download --quiet --no-input --disable-pip-version-check --no-deps \
      --only-binary=:all: --python-version "$release" --dest "$venv/wheels" "$package" \
      </dev/null >&2
  done <<<"$unpacked"
  for wheel in "$venv"/wheels/*.whl; do
    [ -e "$wheel" ] || continue
    "$venv/bin/python" -m zipfile -e "$wheel" "$("$venv/bin/python" -c "$packages")"
  done
  if grep -q '^torch==' "$requirements"; then
    "$venv/bin/python" -c 'import numpy, torch
print("setup: torch", torch.__version__, "numpy", numpy.__version__)' >&2
  fi
  touch "$venv/.complete"
fi
echo "$venv"
