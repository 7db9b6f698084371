#!/usr/bin/env python3
"""Tiny random checkpoints of the Llama family with reference logits.

    make_llama_goldens.py --write    makes every folder beside this file again (needs numpy, safetensors, mlx, mlx-lm)
    make_llama_goldens.py --check    computes the stored references again in numpy (needs numpy and safetensors), and,
                                     where mlx-lm is installed, in float32 with mlx-lm

Folders in transformers' layout hold `input_ids` and `logits`, some of them `hidden_final_normed` and `hidden.i` too (input
of layer i, the last layer's output is not stored), by `forward`, a float64 forward pass in plain numpy. Folders in MLX's
layout (NAME-mlx-SCHEME) are quantised by mlx-lm and hold its float32 `logits`. `--check` prints the largest differences and
exits with 1 when one is above 2e-4.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).resolve().parent
TOLERANCE = 2e-4
VOCAB, HIDDEN = 160, 64

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_act="silu",
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=256,
)

# Name -> (fields of config.json, dtype of the tensors, tokens). With heads of 16 values and L = 256 llama3 leaves three
# frequencies as they are, blends one and slows four down. Sequences of more than 64 tokens have a second block of keys.
WHOLE = {
    "llama-gqa-untied": (dict(model_type="llama", num_hidden_layers=3), np.float16, 72),
    "llama-tied-llama3": (
        dict(model_type="llama", num_hidden_layers=3, tie_word_embeddings=True, rope_scaling=LLAMA3),
        np.float16,
        72,
    ),
    "llama-linear": (
        dict(model_type="llama", num_key_value_heads=4, rope_scaling=dict(type="linear", factor=4.0)),
        np.float16,
        40,
    ),
    "llama-biases": (
        dict(model_type="llama", num_hidden_layers=1, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        np.float32,
        24,
    ),
    # The newer spelling, and one K/V head.
    "mistral": (
        dict(
            model_type="mistral",
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=None,
            rope_theta=None,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        ),
        np.float16,
        40,
    ),
    "qwen2": (
        dict(model_type="qwen2", rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False),
        np.float16,
        40,
    ),
    "qwen3": (
        dict(
            model_type="qwen3",
            num_hidden_layers=3,
            head_dim=24,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            attention_bias=False,
        ),
        np.float16,
        40,
    ),
}
# Name -> (the folder whose tensors are quantised, bits and group of most modules).
TRACED = ("llama-gqa-untied", "qwen3")  # with hidden states
QUANTISED = {"llama-tied-llama3-mlx-mixed": ("llama-tied-llama3", 4, 32), "qwen3-mlx-q4": ("qwen3", 4, 32)}
ARCHITECTURES = dict(llama="Llama", mistral="Mistral", qwen2="Qwen2", qwen3="Qwen3")


def make_config(fields):
    config = {**COMMON, **fields}
    config = {k: v for k, v in config.items() if v is not None or k == "sliding_window"}
    return dict(architectures=[ARCHITECTURES[config["model_type"]] + "ForCausalLM"], **config)


def sizes(config):
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    return heads, kv, config.get("head_dim", config["hidden_size"] // heads)


def make_weights(config, dtype, seed):
    """Random tensors. Norms are far from 1 and biases from 0, so that a missing one shows; scores spread by about 2."""
    rng = np.random.default_rng(seed)
    heads, kv, dim = sizes(config)
    width = config["intermediate_size"]
    tensors = {}

    def matrix(name, outputs, inputs, gain=1.0, bias=False):
        tensors[f"{name}.weight"] = rng.normal(0, gain / math.sqrt(inputs), (outputs, inputs))
        if bias:
            tensors[f"{name}.bias"] = rng.normal(0, 0.5, outputs)

    def norm(name, size):
        tensors[f"{name}.weight"] = rng.uniform(0.4, 1.8, size)

    biased = config.get("attention_bias", False)
    qkv_bias = biased or config["model_type"] == "qwen2"
    matrix("model.embed_tokens", VOCAB, HIDDEN, 4.0)
    for l in range(config["num_hidden_layers"]):
        at = f"model.layers.{l}"
        norm(f"{at}.input_layernorm", HIDDEN)
        norm(f"{at}.post_attention_layernorm", HIDDEN)
        matrix(f"{at}.self_attn.q_proj", heads * dim, HIDDEN, 1.4, qkv_bias)
        matrix(f"{at}.self_attn.k_proj", kv * dim, HIDDEN, 1.4, qkv_bias)
        matrix(f"{at}.self_attn.v_proj", kv * dim, HIDDEN, 1.0, qkv_bias)
        matrix(f"{at}.self_attn.o_proj", HIDDEN, heads * dim, 1.0, biased)
        if config["model_type"] == "qwen3":
            norm(f"{at}.self_attn.q_norm", dim)
            norm(f"{at}.self_attn.k_norm", dim)
        mlp_bias = config.get("mlp_bias", False)
        matrix(f"{at}.mlp.gate_proj", width, HIDDEN, 1.0, mlp_bias)
        matrix(f"{at}.mlp.up_proj", width, HIDDEN, 1.0, mlp_bias)
        matrix(f"{at}.mlp.down_proj", HIDDEN, width, 1.0, mlp_bias)
    norm("model.norm", HIDDEN)
    if not config["tie_word_embeddings"]:
        matrix("lm_head", VOCAB, HIDDEN, 4.0)
    return {name: values.astype(dtype) for name, values in tensors.items()}


def frequencies(config, dim):
    """Angle of a pair for each position."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config["rope_theta"]
    freq = theta ** (-np.arange(0, dim, 2) / dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        return freq / rope["factor"]
    if kind == "llama3":
        length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        out = []
        for f in freq:
            wave = 2 * math.pi / f
            if wave < length / high:
                out.append(f)
            elif wave > length / low:
                out.append(f / rope["factor"])
            else:
                s = (length / wave - low) / (high - low)
                out.append((1 - s) * f / rope["factor"] + s * f)
        return np.array(out)
    assert kind == "default", kind
    return freq


def forward(config, weights, ids):
    """Logits `[tokens, vocab]`, the final norm's output, and the inputs of each layer, all in float64."""
    heads, kv, dim = sizes(config)
    eps = config["rms_norm_eps"]
    n = len(ids)

    def rms(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[f"{name}.weight"]

    def linear(x, name):
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    angle = np.arange(n)[:, None] * frequencies(config, dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rotate(x):  # [tokens, heads, dim]
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def head_norm(x, name):
        return rms(x, name) if f"{name}.weight" in weights else x

    x = weights["model.embed_tokens.weight"][ids]
    hidden = []
    for l in range(config["num_hidden_layers"]):
        hidden.append(x)
        attn, mlp = f"model.layers.{l}.self_attn", f"model.layers.{l}.mlp"
        h = rms(x, f"model.layers.{l}.input_layernorm")
        q = rotate(head_norm(linear(h, f"{attn}.q_proj").reshape(n, heads, dim), f"{attn}.q_norm"))
        k = rotate(head_norm(linear(h, f"{attn}.k_proj").reshape(n, kv, dim), f"{attn}.k_norm"))
        v = linear(h, f"{attn}.v_proj").reshape(n, kv, dim)
        k, v = (np.repeat(t, heads // kv, axis=1) for t in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        scores[:, np.arange(n)[:, None] < np.arange(n)] = -np.inf
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hij,jhd->ihd", share, v).reshape(n, heads * dim), f"{attn}.o_proj")
        h = rms(x, f"model.layers.{l}.post_attention_layernorm")
        gate = linear(h, f"{mlp}.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{mlp}.up_proj"), f"{mlp}.down_proj")
    normed = rms(x, "model.norm")
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return normed @ weights[f"{head}.weight"].T, normed, hidden


def dequantise(config, tensors):
    """Affine codes, the lowest bits first in words of 32, to `code * scale + bias`."""
    out = {}
    for name, values in tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{module}.scales" not in tensors:
            out[name] = values.astype(np.float64)
            continue
        block = config["quantization"]
        own = block.get(module, block)
        bits, group = own["bits"], own["group_size"]
        codes = (values[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & (2**bits - 1)
        codes = codes.reshape(values.shape[0], -1, group).astype(np.float64)
        scales, biases = (tensors[f"{module}.{part}"].astype(np.float64)[..., None] for part in ("scales", "biases"))
        out[name] = (codes * scales + biases).reshape(values.shape[0], -1)
    return out


def mlx_logits(folder, ids):
    """Logits of a folder by mlx-lm, everything in float32."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    # Its Llama class does not read the newer spelling.
    rope = json.loads((folder / "config.json").read_text()).get("rope_parameters")
    model, _ = load_model(folder, model_config={"rope_theta": rope["rope_theta"]} if rope else {})
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def write():
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_model

    for seed, (name, (fields, dtype, tokens)) in enumerate(WHOLE.items()):
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        config = make_config(fields)
        weights = make_weights(config, dtype, seed)
        ids = np.random.default_rng(100 + seed).integers(3, VOCAB, tokens)
        logits, normed, hidden = forward(config, {k: v.astype(np.float64) for k, v in weights.items()}, ids)
        golden = {"logits": logits}
        if name in TRACED:
            golden |= {"hidden_final_normed": normed, **{f"hidden.{l}": h for l, h in enumerate(hidden)}}
        golden = {k: v.astype(np.float32) for k, v in golden.items()}
        write_json(folder / "config.json", config)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        save_file({"input_ids": ids.astype(np.int32), **golden}, folder / "golden.safetensors")

    for name, (source, bits, group) in QUANTISED.items():

        def choose(path, module):
            if not hasattr(module, "to_quantized"):
                return False
            # A wider format where it matters most, as mixed checkpoints do.
            wide = "mixed" in name and path.endswith(("v_proj", "embed_tokens"))
            return dict(bits=8, group_size=64) if wide else True

        folder = HERE / name
        folder.mkdir(exist_ok=True)
        model, config = load_model(HERE / source)
        model, config = quantize_model(model, config, group, bits, quant_predicate=choose)
        with tempfile.TemporaryDirectory() as scratch:
            save_model(scratch, model)
            shutil.copy(Path(scratch) / "model.safetensors", folder)
        write_json(folder / "config.json", config)
        ids = load_file(HERE / source / "golden.safetensors")["input_ids"]
        golden = {"input_ids": ids, "logits": mlx_logits(folder, ids.tolist())}
        save_file(golden, folder / "golden.safetensors")


def check():
    try:
        import mlx_lm  # noqa: F401
    except ImportError:
        print("mlx-lm is not installed: only numpy is compared")
        mlx_lm = None
    failed = False
    for name in [*WHOLE, *QUANTISED]:
        folder = HERE / name
        config = json.loads((folder / "config.json").read_text())
        golden = load_file(folder / "golden.safetensors")
        ids = golden["input_ids"]
        logits, normed, hidden = forward(config, dequantise(config, load_file(folder / "model.safetensors")), ids)
        pairs = {"logits": logits}
        if name in TRACED:
            pairs |= {"hidden_final_normed": normed, **{f"hidden.{l}": h for l, h in enumerate(hidden)}}
        worst = {"numpy": max(float(np.abs(golden[key] - value).max()) for key, value in pairs.items())}
        if mlx_lm is not None:
            worst["mlx-lm"] = float(np.abs(golden["logits"] - mlx_logits(folder, ids.tolist())).max())
        size = float(np.abs(golden["logits"]).max())
        print(f"{name} (logits up to {size:.1f}):", ", ".join(f"{who} within {e:.1e}" for who, e in worst.items()))
        failed |= any(not e <= TOLERANCE for e in worst.values())
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    if parser.parse_args().write:
        write()
    return check()


if __name__ == "__main__":
    sys.exit(main())
