#!/usr/bin/env bash
# Runs every fuzzer of a finished build for some seconds; `make fuzz` calls it.
#
#   fuzz.sh BUILD_DIR SECONDS [NAME...]
#
# Each starts from its seeds, from what was once found (tests/fuzz/crashes/NAME) and from what
# earlier runs have left in BUILD_DIR/corpus/NAME. One line for each, the last is `N passed, M
# failed`; a finding is left in BUILD_DIR/findings with what the fuzzer said in BUILD_DIR/logs.
# An input may take INPUT_SECONDS (10) by the wall clock; on a machine that is busy give it more.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
seconds=$2
shift 2
names=("$@")
if [ ${#names[@]} = 0 ]; then
  for program in "$build"/tests/fuzz_*; do
    if [ -x "$program" ]; then names+=("$(basename "${program#*/tests/fuzz_}")"); fi
  done
fi
export UNREFT_SOURCE_DIR=$root root build seconds
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
mkdir -p "$build"/{findings,logs}
results=$(mktemp -d "$build/results.XXXXXX")
trap 'rm -rf "$results"' EXIT
export results

# One fuzzer: its line, and a file with its name below `results` when it passed.
run_one() {
  local name=$1 program=$build/tests/fuzz_$1 log=$build/logs/$1.log status=0 stats
  local crashes=$root/tests/fuzz/crashes/$name inputs
  rm -rf "$build/seeds/$name"
  mkdir -p "$build/corpus/$name"
  "$program" --write-seeds="$build/seeds/$name" >"$log" 2>&1 || status=$?
  inputs=("$build/corpus/$name" "$build/seeds/$name")
  [ ! -d "$crashes" ] || inputs+=("$crashes")
  # In a directory of the build: a program that writes where it stands leaves nothing elsewhere.
  if [ $status = 0 ]; then
    (cd "$build/findings" && exec "$program" -max_total_time="$seconds" -max_len=16384 \
      -rss_limit_mb=2048 -timeout="${INPUT_SECONDS:-10}" -print_final_stats=1 \
      -artifact_prefix="$build/findings/$name-" \
      "${inputs[@]}") >>"$log" 2>&1 </dev/null || status=$?
  fi
  stats=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1 runs/p' "$log" | tail -1)
  stats+=$(sed -nE 's/.* cov: ([0-9]+) ft: [0-9]+ corp: ([0-9]+).*/, corpus \2, coverage \1/p' \
    "$log" | tail -1)
  if [ $status = 0 ]; then
    touch "$results/$name"
    printf 'fuzz %-12s %s\n' "$name" "$stats"
  else
    printf 'fuzz %-12s FAILED%s: %s\n' "$name" "${stats:+ after $stats}" \
      "$(grep -m1 -hE 'ERROR:|runtime error|CHECK|terminate' "$log" || echo "exit status $status")"
    sed -nE 's/.*Test unit written to (.*)/  reproduce: \1/p' "$log"
    printf '  log: %s\n' "$log"
  fi
}
export -f run_one

printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'run_one {}'
passed=$(find "$results" -type f | wc -l)
failed=$((${#names[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
