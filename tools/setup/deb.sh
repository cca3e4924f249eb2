#!/usr/bin/env bash
# deb.sh BUILD DIR: packs what is built as a Debian package in DIR, and says where it is.
set -euo pipefail
build=$(cd "$1" && pwd)
mkdir -p "$2"
directory=$(cd "$2" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! (cd "$build" && cpack -G DEB -B "$scratch") >"$scratch/log" 2>&1; then
  cat "$scratch/log" >&2
  exit 1
fi
for package in "$scratch"/*.deb; do
  mv "$package" "$directory"
  echo "$directory/$(basename "$package")"
done
