#!/usr/bin/env python3
"""Compare a converted model with the GGUF file it came from, by independent code.

    mlxcel convert model.gguf -o DIR --dtype f32
    python3 tools/gguf_check.py model.gguf DIR

Every tensor of a llama, qwen2, qwen3 or gemma3 file is dequantised with the Python package gguf, the changes that the
GGUF converter made are undone with numpy, and the result is compared with DIR's safetensors bit for bit. The ids that
DIR's tokenizer.json gives for texts in many scripts, and for random ones, are compared with a plain split-and-merge loop
(byte-level vocabularies only).

Needs numpy, gguf (0.19), regex, safetensors, tokenizers and what tools/gguf_vectors.py imports.
"""
import argparse
import pathlib
import random
import sys

import gguf
import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

import gguf_vectors as vectors

BLOCK = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "post_ffw_norm": "post_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
}
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}


def original_name(name, arch):
    if name in OUTER:
        return OUTER[name]
    _, block, stem, kind = name.split(".")
    if stem == "ffn_norm" and arch == "gemma3":
        return f"model.layers.{block}.pre_feedforward_layernorm.{kind}"
    return f"model.layers.{block}.{BLOCK[stem]}.{kind}"


def compare_tensors(reader, folder):
    field = lambda key: reader.fields[key].contents()  # noqa: E731
    arch = field("general.architecture")
    heads = {"attn_q.": field(f"{arch}.attention.head_count"), "attn_k.": field(f"{arch}.attention.head_count_kv")}
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = safe_open(path, "np")
        found.update({name: file for name in file.keys()})
    wrong = []
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        name = original_name(tensor.name, arch)
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        count = next((n for part, n in heads.items() if part in tensor.name), None)
        if count and arch == "llama":
            shape = values.shape
            values = values.reshape(count, shape[0] // count // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values - np.float32(1)
        if name not in found:
            wrong.append(f"{name}: absent")
            continue
        ours = found.pop(name).get_tensor(name)
        if ours.shape != values.shape or ours.dtype != np.float32:
            wrong.append(f"{name}: {ours.dtype} of {ours.shape}, expected float32 of {values.shape}")
        elif not np.array_equal(ours.view(np.uint32), values.view(np.uint32)):
            wrong.append(f"{name}: {np.count_nonzero(ours != values)} of {values.size} values differ")
    wrong += [f"{name}: not in the GGUF file" for name in found]
    print(f"{len(reader.tensors)} tensors, {len(wrong)} wrong")
    return wrong


def compare_tokens(reader, folder):
    field = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()  # noqa: E731
    if field("model") != "gpt2" or field("pre") not in vectors.SPLITS:
        print("tokenizer: not compared (only byte-level vocabularies with a split that gguf_vectors.py knows)")
        return []
    ids = {token: i for i, token in enumerate(field("tokens"))}
    rank = {tuple(merge.split(" ")): i for i, merge in enumerate(field("merges"))}
    pre, chars = field("pre"), vectors.alphabet()
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(1)
    texts = [text for text in vectors.TEXTS if "<" not in text] + [
        "".join(rng.choice(" \n\t'abcXYZ019.,!?éßж日🙂ا\u200b-_()|") for _ in range(rng.randint(1, 40)))
        for _ in range(1000)
    ]
    wrong = []
    for text in texts:
        expected = []
        composed = vectors.unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        for piece in vectors.split(composed, vectors.SPLITS[pre]):
            expected += vectors.merge([chars[b] for b in piece.encode()], rank, ids, pre in vectors.IGNORE_MERGES)
        got = ours.encode(text, add_special_tokens=False).ids
        if got != expected:
            wrong.append(f"{text!r}: {got}, expected {expected}")
    print(f"{len(texts)} texts, {len(wrong)} wrong")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("dir", type=pathlib.Path)
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.gguf)
    wrong = compare_tensors(reader, args.dir) + compare_tokens(reader, args.dir)
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
