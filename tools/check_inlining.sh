#!/usr/bin/env bash
# Fails when a kernel calls an intrinsic as a function: a closure handed to a library function is compiled without the
# kernel's instruction set, and every intrinsic in it becomes a call (docs/SPEED.md).
#
# Looks at a test binary of mlxcel-cpu, which holds every kernel and no other crate's vector code, and at all its functions:
# the calls stand in instances of library functions, whose names do not mention this crate.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(uname -m)" != x86_64 ] || ! command -v objdump >/dev/null; then
    echo "skipped: needs objdump on x86-64"
    exit 0
fi
binary=$(cargo test --release --quiet --locked -p mlxcel-cpu --test order --no-run --message-format=json |
    grep -o '"executable":"[^"]*/order-[^"]*"' | cut -d'"' -f4)
listing=$(mktemp)
trap 'rm -f "$listing"' EXIT
objdump -d --no-show-raw-insn "$binary" >"$listing"
grep -q vpdpbusd "$listing" || { echo "$binary: no AVX-512 kernel found, so there is nothing to check"; exit 1; }
calls=$(awk '/^[0-9a-f]+ <.*>:$/ { f = $2 } /call.*core_arch.*_mm/ { print f, $NF }' "$listing" | sort | uniq -c)
if [ -n "$calls" ]; then
    echo "intrinsics called as functions, by caller:"
    echo "$calls"
    exit 1
fi
echo "none in $(grep -c '^[0-9a-f]* <.*>:$' "$listing") functions"
