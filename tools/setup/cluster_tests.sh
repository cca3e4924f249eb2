#!/usr/bin/env bash
# Runs tests/cluster, the lab of hosts in namespaces, on a finished build; where that may not make
# namespaces each test is skipped by name, with the reason.
#
#   cluster_tests.sh BUILD_DIR PYTHON [WORDS FOR PYTEST...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
python=$2
export UNREFT_BIN_DIR=$build/bin PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest "$root/tests/cluster" -q -rs -p no:cacheprovider --durations=5 "${@:3}"
