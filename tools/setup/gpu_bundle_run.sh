#!/usr/bin/env bash
# Runs the tests and benchmarks of this directory on this machine's GPU; writes results.json here.
#
#   run.sh [--device cpu] [--parameters N] [--help]
#          [--parts suite copies checksum fault training demo]
#
# Needs what needs.txt says. The interpreter is UNREFT_PYTHON, or else python3: one with PyTorch.
# Ends with 77 where there is no GPU, and not with 0 if something failed.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${UNREFT_PYTHON:-python3}

fail() {
  echo "run.sh: $1" >&2
  printf '{"complete": false, "failed": "%s"}\n' "$1" >"$here/results.json"
  exit 1
}

command -v "$python" >/dev/null || fail "no interpreter '$python' (set UNREFT_PYTHON)"
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
  fail "'$python' is no Python interpreter (set UNREFT_PYTHON)"
case $found in
  2.* | 3.[0-9]) fail "needed CPython 3.10 or later, found $found ('$python'; set UNREFT_PYTHON)" ;;
esac
exec "$python" "$here/run.py" "$@"
