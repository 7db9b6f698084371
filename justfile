# Everyday commands; `just` lists them.

default:
    @just --list

# Build everything
build:
    cargo build --release

# All tests
test *args:
    cargo test --release --workspace {{args}}

# Speculation against plain decoding: every request at every width in every batch (a quarter of an hour on two cores)
identity:
    MLXCEL_IDENTITY=full cargo test --release -p mlxcel-engine --test identity --test speculation -- --nocapture

# What CI runs
ci:
    bash .ci/run

# The web page's tests, in Node and headless Chromium
page:
    bash tools/page_test.sh

# Format and lint
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# Known vulnerabilities of dependencies (needs a network)
advisories:
    cargo deny check advisories

# Benchmarks; writes docs/benchmark_results and the tables of README.md. Wants an idle machine.
bench: build
    MLXCEL_BENCH_WRITE="$PWD/docs/benchmark_results" cargo bench -p mlxcel-cpu --bench linear
    python3 tools/bench_demo.py
    python3 tools/bench_results.py
    python3 tools/bench_server.py
    python3 tools/acceptance_doc.py

# Beside llama.cpp on this CPU, and what our side is held to alone: fetches and builds it, half an hour on two idle cores (needs PyPI and a C++ compiler)
peers *args: build
    python3 tools/bench_peers {{args}}

# Laws and speed of a GPU in one run of 9 minutes, then the pages: needs one, and the test executables of crates/cuda for its suites
gpu *args: build
    python3 tools/gpu_check --out target/gpu_check.json {{args}}
    python3 tools/gpu_check page target/gpu_check.json

# Train toy checkpoints by the recipe of the demos, on one CPU core, and answer with them (three minutes; needs PyPI)
train-smoke out="target/train-smoke": build
    bash tools/train/smoke.sh {{out}}
    bash tools/train/smoke.sh {{out}} --self-test

# Memory errors and data races, by LLVM's sanitizers (needs a nightly toolchain)
sanitize *args:
    bash tools/sanitize.sh {{args}}

# The CPU crate's tests on AArch64 under emulation (tools/aarch64/README.md says what it needs)
aarch64:
    bash tools/aarch64/test.sh

# Fuzz a parser for a minute from its corpus and its seeds (needs nightly and cargo-fuzz): just fuzz safetensors_header
fuzz target seconds="60":
    mkdir -p fuzz/corpus/{{target}}
    cargo +nightly fuzz run {{target}} fuzz/corpus/{{target}} \
        $(ls -d fuzz/seeds/{{target}} 2>/dev/null) -- -max_total_time={{seconds}}
