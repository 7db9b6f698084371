#!/usr/bin/env bash
# Runs the CPU crate's tests (row law, instruction sets, pool) on AArch64 under emulation, so that the NEON lanes are
# exercised on an x86-64 machine. Needs a Debian with the packages named below; see README.md beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."

std=${AARCH64_STD:-/usr/lib/rustlib/aarch64-unknown-linux-gnu}
for need in /usr/bin/rustc aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v "$need" >/dev/null || { echo "$need is missing: see tools/aarch64/README.md"; exit 1; }
done
[ -d "$std" ] || { echo "$std is missing: see tools/aarch64/README.md"; exit 1; }

export RUSTC=/usr/bin/rustc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/aarch64}
exec cargo test --release --target aarch64-unknown-linux-gnu -p mlxcel-cpu "$@"
