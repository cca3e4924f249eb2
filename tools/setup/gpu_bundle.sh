#!/usr/bin/env bash
# Makes a directory that runs on another x86-64 machine with an NVIDIA driver of CUDA 13.
#
#   gpu_bundle.sh BUILD_DIR BUNDLE_DIR
#
# In it: the programs of BUILD_DIR/gpu, the shared libraries they need but for those of the C
# library and the driver, and run.sh, which runs the copiers' suite on the GPU and the copy
# benchmark and writes results.json.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1
bundle=$2
megabytes_max=60

cmake --build "$build" --parallel "${JOBS:-$(nproc)}" \
  --target device_copier_gpu_test unreft_gpu_bench
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
for program in device_copier_gpu_test unreft_gpu_bench; do
  strip -o "$bundle/bin/$program" "$build/gpu/$program"
  ldd "$build/gpu/$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u | while read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
    *) cp -L "$library" "$bundle/lib/" ;;
  esac
done
install -m 755 "$root/tools/setup/gpu_bundle_run.sh" "$bundle/run.sh"

size=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $size MiB"
if [ "$size" -gt "$megabytes_max" ]; then
  echo "needed at most $megabytes_max MiB" >&2
  exit 1
fi
