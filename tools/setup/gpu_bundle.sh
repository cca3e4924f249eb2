#!/usr/bin/env bash
# Makes a directory that runs on another x86-64 machine with an NVIDIA driver, CUDA 13 and PyTorch.
#
#   gpu_bundle.sh [--without-gpu-programs] BUILD_DIR BUNDLE_DIR
#
#   bin/      unreftd, unreft, and those of BUILD_DIR/gpu: the copiers' suite, benchmarks, a job
#             whose kernel goes wrong
#   lib/      libunreft.so and every shared library needed, but for those of the C and C++ libraries
#   python/   the package (on ctypes: any CPython from 3.10 on), the training comparison, the demo
#   run.sh    runs all of it and writes results.json
#
# What it needs of the machine is printed and left in needs.txt. Whether it needs nothing else is
# tried out in a directory that has the C and C++ libraries alone.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Without them the rest is taken as it is built: for tests, where these are not.
gpu_programs=(device_copier_gpu_test unreft_gpu_bench)
of_nvcc=(unreft_gpu_checksum_bench unreft_gpu_job_fault)
as_built=no
if [ "${1:-}" = --without-gpu-programs ]; then
  gpu_programs=()
  of_nvcc=()
  as_built=yes
  shift
fi
build=$(cd "$1" && pwd)
bundle=$2
megabytes_max=60
# What every machine has, with the driver's; all else comes along.
c_library='libc|libm|libdl|libpthread|librt|libresolv|ld-linux-x86-64'
of_the_system="^($c_library|libstdc\\+\\+|libgcc_s)\\.so"

cudart=$(sed -n 's/^CUDA_CUDART:FILEPATH=//p' "$build/CMakeCache.txt")
if [ ${#gpu_programs[@]} -gt 0 ] && [ ! -e "$cudart" ]; then
  echo "$build has no CUDA runtime to link with: $(cat "$build/cuda_note.txt")" >&2
  exit 1
fi
if [ ${#of_nvcc[@]} -gt 0 ] && [ -s "$build/nvcc_note.txt" ]; then
  echo "without ${of_nvcc[*]}: $(cat "$build/nvcc_note.txt")" >&2
  of_nvcc=()
fi
gpu_programs+=("${of_nvcc[@]}")
[ $as_built = yes ] || cmake --build "$build" --parallel "${JOBS:-$(nproc)}" \
  --target unreftd_bin unreft_bin unreft_shared "${gpu_programs[@]}"
rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib,python/unreft,python/bench}
bundle=$(cd "$bundle" && pwd)

strip -o "$bundle/bin/unreftd" "$build/bin/unreftd"
strip -o "$bundle/bin/unreft" "$build/bin/unreft"
strip --strip-unneeded -o "$bundle/lib/libunreft.so" "$build/lib/libunreft.so"
for program in "${gpu_programs[@]}"; do
  strip -o "$bundle/bin/$program" "$build/gpu/$program"
done
for binary in "$build"/bin/unreft{d,} "$build/lib/libunreft.so" \
  "${gpu_programs[@]/#/$build/gpu/}"; do
  LD_LIBRARY_PATH=$(dirname "${cudart:-/none/none}") ldd "$binary" |
    awk '$2 == "=>" {print ($3 ~ /^\//) ? $3 : "missing:" $1}'
done | sort -u | while read -r library; do
  if [[ $library == missing:* ]]; then
    echo "${library#missing:} is not on this machine" >&2
    exit 1
  fi
  # Not again what is there, stripped.
  if [ ! -e "$bundle/lib/$(basename "$library")" ]; then
    grep -qE "$of_the_system" <<<"$(basename "$library")" || cp -L "$library" "$bundle/lib/"
  fi
done

python=$root/integrations/python
tar -C "$python" --exclude=__pycache__ -cf - unreft examples bench/training |
  tar -C "$bundle/python" -xf -
cp "$root/tools/setup/gpu_bundle_run.py" "$bundle/run.py"
install -m 755 "$root/tools/setup/gpu_bundle_run.sh" "$bundle/run.sh"

# The newest version of a symbol NAME_x.y that any file here needs of the system.
newest() {
  find "$bundle/bin" "$bundle/lib" -type f -exec objdump -T {} + 2>/dev/null |
    grep -oE "\b$1_[0-9.]+" | sort -uV | tail -1
}
glibc=$(newest GLIBC)
printf '%s\n' "glibc ${glibc#GLIBC_}" "libstdc++ with $(newest GLIBCXX)" "CPython 3.10" \
  "PyTorch 2.9 for CUDA 13" >"$bundle/needs.txt"

# Starts the programs and loads the library where nothing but $bundle and the system's libraries is.
prove() {
  local cage=$1 file
  mkdir "$cage/bundle"
  cp -r "$bundle"/{bin,lib} "$cage/bundle/"
  for file in "$bundle"/bin/* "$bundle"/lib/*; do
    ldd "$file" | awk '{for (i = 1; i <= NF; ++i) if ($i ~ /^\//) print $i}'
  done | sort -u | while read -r file; do
    if grep -qE "$of_the_system" <<<"$(basename "$file")"; then
      install -D "$file" "$cage$file"
    fi
  done
  local try=(unshare --user --map-root-user chroot "$cage")
  # By the loader's name: without /proc a program does not know where it lies.
  try+=(/lib64/ld-linux-x86-64.so.2)
  if ! "${try[@]}" --version >/dev/null 2>&1; then
    echo "not tried alone: this user may not make a user namespace"
    return 0
  fi
  for file in lib/libunreft.so "${gpu_programs[@]/#/bin/}"; do
    "${try[@]}" --list "/bundle/$file" >"$cage/listed" || {
      echo "$file does not load alone:" >&2
      cat "$cage/listed" >&2
      return 1
    }
  done
  "${try[@]}" /bundle/bin/unreftd --help >/dev/null
  "${try[@]}" /bundle/bin/unreft --help >/dev/null
  echo "programs start and libunreft.so loads with nothing else but the C and C++ libraries"
}
cage=$(mktemp -d)
trap 'rm -rf "$cage"' EXIT
prove "$cage"

size=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $size MiB, needs: $(paste -sd, "$bundle/needs.txt" | sed 's/,/, /g')"
if [ "$size" -ge "$megabytes_max" ]; then
  echo "needed less than $megabytes_max MiB" >&2
  exit 1
fi
