#!/usr/bin/env bash
# Runs the copiers' suite on this machine's GPU and the copy benchmark; writes results.json here.
#
#   run.sh [BYTES] [ROUNDS]
#
# Ends with 77 where there is no GPU, and not with 0 if a test fails.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

bin/device_copier_gpu_test
tests=$?
[ "$tests" -eq 77 ] && exit 77
copies=$(bin/unreft_gpu_bench "$@") || copies=null
gpu=$(nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max --format=csv,noheader \
  2>/dev/null | head -1)
cat >results.json <<JSON
{"gpu": "${gpu:-unknown}", "kernel": "$(uname -sr)", "cores": $(nproc),
 "suite_passed": $([ "$tests" -eq 0 ] && echo true || echo false),
 "copies": $copies}
JSON
cat results.json
[ "$tests" -eq 0 ] && [ "$copies" != null ]
