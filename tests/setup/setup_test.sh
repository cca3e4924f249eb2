#!/usr/bin/env bash
# Tests tools/setup on a faked system: setup_test.sh CASE. The fakes come first in PATH, and record
# what they were asked to do in $calls.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/bin"
calls=$tmp/calls
: >"$calls"

fail() { echo "FAIL: $*"; cat "$tmp/out" "$calls"; exit 1; }
expect() { grep -qE -- "$1" "$2" || fail "no '$1' in $(basename "$2")"; }
expect_no_calls() { [ ! -s "$calls" ] || fail "something was called"; }

fake() {  # fake NAME: an executable whose body is stdin
  { echo '#!/bin/bash'; cat; } >"$tmp/bin/$1"
  chmod +x "$tmp/bin/$1"
}

# PATH holds only what the script needs, so that the host's sudo and dpkg do not leak in.
for tool in bash sh env awk grep tr dirname cat sed; do
  ln -s "$(command -v $tool)" "$tmp/bin/$tool"
done
fake apt-get <<<"echo apt-get \"\$@\" >>$calls"

dpkg_with_all_but() {  # dpkg-query answers "installed" for all but the given package
  fake dpkg-query <<END
for p in "\$@"; do
  case \$p in -*|$1) ;; *) echo "\$p installed" ;; esac
done
END
}
uid() { fake id <<<"echo $1"; }

run_setup() {  # run_setup [WHAT]
  rc=0
  PATH=$tmp/bin "$root/tools/setup/setup.sh" "${1:-packages}" >"$tmp/out" 2>&1 || rc=$?
}

complete_installs_nothing() {
  uid 1000
  dpkg_with_all_but nothing
  run_setup
  [ $rc = 0 ] || fail "exit $rc"
  expect_no_calls
}

missing_as_root() {
  uid 0
  dpkg_with_all_but ninja-build
  run_setup
  [ $rc = 0 ] || fail "exit $rc"
  expect 'installing: ninja-build' "$tmp/out"
  expect 'apt-get -q update' "$calls"
  expect 'apt-get .*install .*ninja-build$' "$calls"
}

missing_with_sudo() {
  uid 1000
  dpkg_with_all_but ninja-build
  fake sudo <<<"echo sudo >>$calls; exec \"\$@\""
  run_setup
  [ $rc = 0 ] || fail "exit $rc"
  expect '^sudo$' "$calls"
  expect 'apt-get .*install .*ninja-build$' "$calls"
}

clang_for_sanitizers() {
  uid 0
  dpkg_with_all_but libclang-rt-19-dev
  run_setup packages
  [ $rc = 0 ] || fail "exit $rc"
  expect_no_calls
  run_setup sanitize
  [ $rc = 0 ] || fail "exit $rc"
  expect 'apt-get .*install .*libclang-rt-19-dev$' "$calls"
}

missing_without_sudo() {
  uid 1000
  dpkg_with_all_but ninja-build
  run_setup
  [ $rc != 0 ] || fail "exit 0"
  expect 'missing packages.*: ninja-build' "$tmp/out"
  expect_no_calls
}

foreign_system() {  # no dpkg at all: the list is named, nothing is tried
  uid 0
  run_setup
  [ $rc != 0 ] || fail "exit 0"
  expect 'librocksdb-dev' "$tmp/out"
  expect_no_calls
}

no_interpreter() {
  rc=0
  UNREFT_PYTHON=$tmp/nowhere "$root/tools/setup/python_env.sh" >"$tmp/out" 2>&1 || rc=$?
  [ $rc != 0 ] || fail "exit 0"
  expect "no Python interpreter at '$tmp/nowhere'" "$tmp/out"
}

# Not a fake: CMake itself, of which two packages are hidden.
missing_for_cmake() {
  cmake -S "$root" -B "$tmp/build" -G Ninja -DCMAKE_DISABLE_FIND_PACKAGE_RocksDB=ON \
    -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON >"$tmp/out" 2>&1 && fail "configured"
  expect 'Not found on this system: gRPC, RocksDB' "$tmp/out"
  tr -s ' \n' ' ' <"$tmp/out" >"$tmp/flat"
  expect 'apt-get install -y protobuf-compiler-grpc libgrpc\+\+-dev librocksdb-dev elsewhere' \
    "$tmp/flat"
  cmake -S "$root" -B "$tmp/build" -G Ninja -DPKG_CONFIG_EXECUTABLE=/none >"$tmp/out" 2>&1 &&
    fail "configured without pkg-config"
  expect 'apt-get install -y pkg-config ' "$tmp/out"
  for tool in cmake ninja; do ln -s "$(command -v $tool)" "$tmp/bin/$tool"; done
  env -u CC -u CXX PATH="$tmp/bin" cmake -S "$root" -B "$tmp/no-compiler" -G Ninja \
    >"$tmp/out" 2>&1 && fail "configured without a compiler"
  expect 'apt-get install -y g\+\+' "$tmp/out"
}

totals() {
  cat >"$tmp/ctest.xml" <<'END'
<testsuite><testcase name="a" classname="a" status="run"/>
<testcase name="b" classname="b" status="fail"><failure message=""/></testcase>
<testcase name="c" classname="c" status="disabled"/>
<testcase name="f" classname="f" status="notrun">
<skipped message="Unable to find executable"/></testcase></testsuite>
END
  cat >"$tmp/pytest.xml" <<'END'
<testsuites><testsuite><testcase name="d" classname="m"/>
<testcase name="e" classname="m"><skipped message=""/></testcase></testsuite></testsuites>
END
  local python=${UNREFT_PYTHON:-/usr/bin/python3}
  "$python" "$root/tools/setup/totals.py" 1 "$tmp"/*.xml >"$tmp/out" && fail "exit 0"
  [ "$(tail -n 1 "$tmp/out")" = "2 passed, 2 failed, 2 skipped" ] || fail "wrong totals"
  expect 'failed: b$' "$tmp/out"
  expect 'failed: f$' "$tmp/out"
  # A runner that failed without a failed case is a failure too.
  "$python" "$root/tools/setup/totals.py" 1 "$tmp/pytest.xml" >"$tmp/out" && fail "exit 0"
  [ "$(tail -n 1 "$tmp/out")" = "1 passed, 1 failed, 1 skipped" ] || fail "wrong totals"
  "$python" "$root/tools/setup/totals.py" 0 "$tmp/pytest.xml" >"$tmp/out" || fail "exit 1"
}

"$1"
