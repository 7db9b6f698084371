#!/usr/bin/env bash
# The whole recipe at a toy size on one CPU core: corpus, tokenizer, training, drafter, export, and an answer by mlxcel.
#   bash tools/train/smoke.sh OUT               OUT/gemma-4-toy-4bit, OUT/qwen3.5-toy-4bit and their drafters; about three minutes
#   bash tools/train/smoke.sh OUT --self-test   see that it can fail: planted faults in what the run before left in OUT
# Needs Python 3.10 or newer, a C compiler, PyPI, and target/release/mlxcel (or MLXCEL=path).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:?usage: bash tools/train/smoke.sh OUT [--self-test] [--only gemma4|qwen3_5]}
shift
venv=${TRAIN_VENV:-$root/target/train-venv}
mlxcel=${MLXCEL:-${CARGO_TARGET_DIR:-$root/target}/release/mlxcel}
python3 "$here/install_cpu.py" "$venv"
OMP_NUM_THREADS=1 PYTHONPATH="$root/tools" "$venv/bin/python" -m train.smoke "$out" --mlxcel "$mlxcel" "$@"
