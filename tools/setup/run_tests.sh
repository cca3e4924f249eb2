#!/usr/bin/env bash
# Runs every test of a finished build and prints the totals; `make test` calls it.
#
#   run_tests.sh BUILD_DIR PYTHON
#
# The last line is `N passed, N failed[, N skipped]` over ctest and pytest together; the exit status
# is non-zero if anything failed or did not run.
set -uo pipefail
shopt -s nullglob

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
python=$2
cd "$root" || exit 1

results=$build/test-results
rm -rf "$results"
mkdir -p "$results"
export UNREFT_BIN_DIR=$build/bin UNREFT_SOURCE_DIR=$root
status=0

ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "${JOBS:-$(nproc)}" \
  --output-junit "$results/ctest.xml" </dev/null |
  sed -u -E '/^ *Start +[0-9]+:/d; s/ \.\.\.+/ /; s/ {2,}(Passed|Failed)/ \1/' || status=1

suites=()
for dir in integrations/python/tests tests/python; do
  [ -d "$dir" ] && suites+=("$dir")
done
if [ ${#suites[@]} -gt 0 ]; then
  PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 \
    "$python" -m pytest "${suites[@]}" -q -p no:cacheprovider --durations=5 \
    --junitxml="$results/pytest.xml" </dev/null || status=1
else
  echo "no Python tests in this tree"
fi
# Durable copies on a server of S3, which is in an environment of its own.
if s3=$(tools/setup/python_env.sh tests/s3/requirements.txt); then
  PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 \
    "$s3/bin/python" -m pytest tests/s3 -q -p no:cacheprovider --durations=5 \
    --junitxml="$results/s3.xml" </dev/null || status=1
else
  status=1
fi
# The short half of what only the second environment has; make test-frameworks runs all of it.
if frameworks=$(tools/setup/python_env.sh tests/frameworks/requirements.txt); then
  PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 \
    "$frameworks/bin/python" -m pytest tests/frameworks tests/python/test_examples_hugging_face.py \
    -m short -q -p no:cacheprovider --durations=5 --junitxml="$results/frameworks.xml" \
    </dev/null || status=1
else
  status=1
fi
# The short half of the lab, which has the machine to itself: `make test-cluster` runs all of it.
tools/setup/cluster_tests.sh "$build" "$python" -m short --junitxml="$results/cluster.xml" \
  </dev/null || status=1

echo
why_no_cuda=$(cat "$build/cuda_note.txt" 2>/dev/null || echo unknown)
if [ -z "$why_no_cuda" ]; then
  on_fake=$(ctest --test-dir "$build" -N -L cuda </dev/null | sed -n 's/^Total Tests: //p')
  echo "CUDA tests: $on_fake on the fake runtime; on a GPU none (see make gpu-bundle)"
else
  echo "CUDA tests: left out ($why_no_cuda)"
fi
"$python" "$root/tools/setup/totals.py" "$status" "$results"/*.xml
