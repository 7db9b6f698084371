#!/usr/bin/env bash
# Runs the CPU crate's tests (row law, instruction sets, tables, pool) on AArch64 under emulation, so that the NEON lanes are
# exercised on an x86-64 machine. Needs the packages named in README.md beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."

for need in aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v "$need" >/dev/null || { echo "$need is missing: see tools/aarch64/README.md"; exit 1; }
done
target=aarch64-unknown-linux-gnu
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || { echo "the standard library of $target is missing: rustup target add $target"; exit 1; }

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
exec cargo test --release --locked --target "$target" -p mlxcel-cpu "$@"
