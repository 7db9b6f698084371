#!/usr/bin/env python3
"""Checks the stored reference outputs against a second implementation (gemma4_ref.py, plain numpy in float64).

Needs numpy and safetensors. Prints the largest difference of each checkpoint; exits with 1 when one is above 2e-4.
"""

import json
import os
import sys

import numpy as np
from safetensors.numpy import load_file

from gemma4_ref import W, text

HERE = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 2e-4


def main():
    failed = False
    for name in ("e2b", "e4b", "moe", "dense", "unified", "text_only"):
        folder = os.path.join(HERE, name)
        config = json.load(open(os.path.join(folder, "config.json")))
        weights = load_file(os.path.join(folder, "model.safetensors"))
        golden = load_file(os.path.join(folder, "golden.safetensors"))
        fields = config.get("text_config", config)
        prefix = "model." if name == "text_only" else "model.language_model."
        logits, normed, hidden, _ = text(fields, W(weights, prefix), golden["input_ids"][0])
        pairs = [(logits, golden["logits"][0]), (normed, golden["hidden_final_normed"][0])]
        pairs += [(h, golden[f"hidden.{i}"][0]) for i, h in enumerate(hidden[:-1])]
        worst = max(float(np.abs(a - b).max()) for a, b in pairs)
        print(f"{name}: within {worst:.1e}")
        failed |= not worst <= TOLERANCE
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
