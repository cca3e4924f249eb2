#!/usr/bin/env bash
# Runs every benchmark; `make bench` calls it.
#
#   bench.sh BUILD_DIR PYTHON OUT_DIR
#
# Each writes records (name, value, unit, reference, ratio, target, met) as JSON into OUT_DIR.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
python=$2
out=$(cd "$3" && pwd)
cd "$root"
export UNREFT_BIN_DIR=$build/bin PYTHONPATH=$build/python

"$build/bin/unreft_bench" --out "$out"
# A thousand simulated nodes share one heap: in small pages its page tables would be measured. On
# one processor, since only one of its threads runs at a time.
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 taskset --cpu-list 0 \
  "$build/bin/unreft_control_bench" --out "$out"
"$build/bin/unreft_restore_bench" --out "$out"
"$build/bin/unreft_restore_scale_bench" --out "$out"
for script in integrations/python/bench/*.py; do
  [ -e "$script" ] || continue
  echo "bench: $script"
  "$python" "$script" --out "$out"
done
echo "bench: results in build/bench: $(cd "$out" && echo *)"
