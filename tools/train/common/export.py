"""Checkpoint folders in MLX's layout: writing one from master weights, and reading one back as float32."""

import json
import os
import shutil
import sys

from safetensors.torch import load_file, save_file

from .quantise import pack, unpack

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def file_tensors(masters, quantised, prefix="", keep_float32=()):
    """Master weights as a file's tensors.

    Names in `quantised` become `.weight` (words), `.scales` and `.biases`; names that end in `keep_float32` stay float32; all
    others are rounded to bfloat16. `prefix` comes before every name.
    """
    tensors = {}
    for name, weight in masters.items():
        if name in quantised:
            base = prefix + name.removesuffix(".weight")
            tensors[base + ".weight"], tensors[base + ".scales"], tensors[base + ".biases"] = pack(weight)
        elif keep_float32 and name.endswith(keep_float32):
            tensors[prefix + name] = weight.float().contiguous()
        else:
            tensors[prefix + name] = weight.bfloat16().contiguous()
    return tensors


def write_folder(folder, tensors, config, generation_config=None, parameters=None, tokenizer=None):
    """Writes a checkpoint folder.

    `model.safetensors` and `config.json` always; `generation_config.json` if given; with `parameters` (their number) also
    `model.safetensors.index.json`; with `tokenizer` (a folder) copies of its tokenizer and template.
    """
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "mlx"})
    write_json(os.path.join(folder, "config.json"), config, sort_keys=True)
    if generation_config:
        write_json(os.path.join(folder, "generation_config.json"), generation_config)
    if parameters:
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": size, "total_parameters": parameters},
                 "weight_map": {name: "model.safetensors" for name in sorted(tensors)}}
        write_json(os.path.join(folder, "model.safetensors.index.json"), index)
    if tokenizer:
        for name in TOKENIZER_FILES:
            source = os.path.join(tokenizer, name)
            if not os.path.exists(source):
                sys.exit(f"{source}: missing; make the tokenizer with the recipe's `tokenizer` step first")
            shutil.copy(source, folder)
    files = sorted(os.listdir(folder))
    print(folder, sum(os.path.getsize(os.path.join(folder, f)) for f in files), "bytes:", " ".join(files))


def read_folder(folder, prefix=""):
    """The float32 weights of a folder's `model.safetensors`, 4-bit matrices expanded, names without `prefix`."""
    raw = load_file(os.path.join(folder, "model.safetensors"))
    weights = {}
    for name, tensor in raw.items():
        if name.endswith((".scales", ".biases")):
            continue
        if not name.startswith(prefix):
            raise ValueError(f"{folder}: the tensor {name} does not begin with {prefix}")
        base = name.removesuffix(".weight")
        if base + ".scales" in raw:
            tensor = unpack(tensor, raw[base + ".scales"], raw[base + ".biases"])
        weights[name.removeprefix(prefix)] = tensor.float()
    return weights


def write_json(path, value, **options):
    """Writes a JSON file, indented, with a newline at its end."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, **options)
        file.write("\n")


def read_json(path):
    """Reads a JSON file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)
