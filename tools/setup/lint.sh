#!/usr/bin/env bash
# clang-format and clang-tidy on the C++ files that changed.
#
#   lint.sh BUILD_DIR   check (the build directory holds compile_commands.json)
#   lint.sh --fix       reformat in place, no clang-tidy
#
# "Changed" is: uncommitted and untracked files, and what the commits since the base touched. The
# base is LINT_BASE, or else the merge base with origin's main branch, or else the previous commit.
# LINT_ALL=1 takes every file of the tree.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
clang_format=${CLANG_FORMAT:-clang-format-19}
clang_tidy=${CLANG_TIDY:-clang-tidy-19}

lint_base() {
  if [ -n "${LINT_BASE:-}" ]; then echo "$LINT_BASE"; return; fi
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse --verify --quiet HEAD~1 || true)
  fi
  echo "$base"
}

changed_files() {
  if [ "${LINT_ALL:-}" = 1 ]; then
    git ls-files --cached --others --exclude-standard
    return
  fi
  local base
  base=$(lint_base)
  {
    if [ -n "$base" ]; then git diff --name-only "$base"; else git ls-files; fi
    git ls-files --others --exclude-standard
  } | sort -u
}

mapfile -t files < <(changed_files | grep -E '\.(cc|h)$' | while read -r f; do
  [ -f "$f" ] && echo "$f"
done || true)
if [ ${#files[@]} = 0 ]; then
  echo "lint: no C++ file changed"
  exit 0
fi

if [ "${1:-}" = --fix ]; then
  "$clang_format" -i "${files[@]}"
  echo "format: ${#files[@]} files"
  exit 0
fi

build=$1
status=0
echo "lint: clang-format on ${#files[@]} files"
"$clang_format" --dry-run -Werror "${files[@]}" || status=1

# clang-tidy sees a header through the source file of the same name.
sources=()
for f in "${files[@]}"; do
  source=${f%.h}
  source=${source%.cc}.cc
  grep -qF "/$source\"" "$build/compile_commands.json" && sources+=("$PWD/$source")
done
mapfile -t sources < <(printf '%s\n' "${sources[@]}" | sort -u | grep . || true)
if [ ${#sources[@]} -gt 0 ]; then
  echo "lint: clang-tidy on ${#sources[@]} files"
  # The database holds gcc's command lines; what clang does not know of them is no finding.
  printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" \
    "$clang_tidy" -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option \
    2> >(grep -vE '^[0-9]+ warnings?( and [0-9]+ errors?)? generated' >&2) || status=1
fi
[ $status = 0 ] && echo "lint: clean" || echo "lint: FAILED"
exit $status
