#!/usr/bin/env bash
# Runs tests/slurm, a Slurm of four nodes on this machine, on a finished build. It installs nothing:
# where Slurm is missing each test is skipped by name, with the packages that it needs.
#
#   slurm_tests.sh BUILD_DIR PYTHON [WORDS FOR PYTEST...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
python=$2
export UNREFT_BIN_DIR=$build/bin PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest "$root/tests/slurm" -q -rs --no-fold-skipped -p no:cacheprovider \
  --durations=5 "${@:3}"
