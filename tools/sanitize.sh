#!/usr/bin/env bash
# Memory errors and data races in the crates that hold `unsafe`, looked for by LLVM's sanitizers:
#
#   tools/sanitize.sh              AddressSanitizer, debug assertions on: the tests of mlxcel-cpu (every instruction set of this machine and
#                                  the portable one, the pool, slabs, tables) and of the mapped files; then ThreadSanitizer: the pool
#   tools/sanitize.sh --row-law    the same, and the row law in all its cases (two minutes more)
#   tools/sanitize.sh --self-test  planted: a read beyond an allocation and an unguarded write, each of which must be reported
#
# Needs a nightly toolchain (rustup toolchain install nightly), which alone has the sanitizers; without one it says so and leaves.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
libs=$(rustc +nightly --print target-libdir 2>/dev/null || true)
if [ -z "$libs" ] || ! compgen -G "$libs/librustc*_rt.asan.a" >/dev/null; then
    echo "skipped: no nightly toolchain with sanitizers for $host (rustup toolchain install nightly)"
    exit 0
fi
# The pinned version's file names a toolchain; the sanitizers' builds are kept apart.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/sanitize
export CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_INCREMENTAL=0

# The standard library is not instrumented, which the compiler calls another ABI for threads: what it synchronises by itself is not
# seen, but the pool's data pass through atomics of its own.
flags() { echo "-Zsanitizer=$1 -Cunsafe-allow-abi-mismatch=sanitizer"; }

# sanitized KIND cargo-arguments...
sanitized() {
    local kind=$1
    shift
    RUSTFLAGS=$(flags "$kind") CARGO_TARGET_DIR="$CARGO_TARGET_DIR/$kind" \
        cargo +nightly test --release --locked --quiet --target "$host" "$@"
}

# planted KIND MESSAGE PROGRAM: the program must end with that report.
planted() {
    local kind=$1 message=$2 folder=$CARGO_TARGET_DIR/planted
    mkdir -p "$folder"
    printf '%s\n' "$3" >"$folder/$kind.rs"
    # shellcheck disable=SC2046 # two flags
    rustc +nightly $(flags "$kind") -O --target "$host" -o "$folder/$kind" "$folder/$kind.rs"
    if "$folder/$kind" 2>"$folder/$kind.log"; then
        echo "$kind: the planted fault passed"
        exit 1
    fi
    grep -q "$message" "$folder/$kind.log" || { echo "$kind: '$message' expected, found:"; cat "$folder/$kind.log"; exit 1; }
    echo "$kind: the planted fault was seen ($message)"
}

if [ "${1:-}" = --self-test ]; then
    planted address heap-buffer-overflow '
fn main() {
    let bytes = vec![std::env::args().count() as u8; 64];
    let at = 63 + std::env::args().count();
    println!("{}", unsafe { *bytes.as_ptr().add(at) });
}'
    planted thread "data race" '
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
static mut SHARED: usize = 0;
static TURNS: AtomicUsize = AtomicUsize::new(0);
fn count() {
    for _ in 0..10_000 {
        unsafe { SHARED += TURNS.fetch_add(1, Relaxed) };
    }
}
fn main() {
    let other = std::thread::spawn(count);
    count();
    other.join().unwrap();
    println!("{}", unsafe { *(&raw const SHARED) });
}'
    exit 0
fi

echo "AddressSanitizer: mlxcel-cpu"
tests=(--lib --test isa --test order --test order_recurrent --test tables --test threads)
[ "${1:-}" = --row-law ] && tests=(--lib --tests)
sanitized address -p mlxcel-cpu "${tests[@]}"
echo "AddressSanitizer: mapped files"
sanitized address -p mlxcel-checkpoint --lib mmap
echo "ThreadSanitizer: the pool"
# One test answers over a channel of the standard library, and the harness over another: synchronised where this cannot see it.
known=$CARGO_TARGET_DIR/known-races
echo "race:test::event" >"$known"
TSAN_OPTIONS="suppressions=$known" sanitized thread -p mlxcel-cpu --lib pool -- --skip a_job_inside_a_job_runs_in_place
