"""Faults to plant into a smoke run, each of which some check must find."""

import os

import torch
from safetensors.torch import load_file, save_file

from ..common.export import read_json, write_json


def _edit_tensors(folder, change):
    """Replaces tensors of a folder: `change(name, tensor)` gives the new one."""
    path = os.path.join(folder, "model.safetensors")
    save_file({name: change(name, tensor).contiguous() for name, tensor in load_file(path).items()}, path, metadata={"format": "mlx"})


def scales(target, drafter):
    """The scales of one matrix of the target are 3 % too large."""
    def change(name, tensor):
        return (tensor.float() * 1.03).bfloat16() if name.endswith("layers.0.mlp.down_proj.scales") else tensor
    _edit_tensors(target, change)


def codes(target, drafter):
    """The words of one matrix of the drafter hold their codes in reverse order of rows."""
    def change(name, tensor):
        return tensor.view(torch.int32).flip(0).view(torch.uint32) if name.endswith("layers.0.mlp.up_proj.weight") else tensor
    _edit_tensors(drafter, change)


def norm(target, drafter):
    """The target's final norm is missing: ones in its place."""
    _edit_tensors(target, lambda name, tensor: torch.ones_like(tensor) if name.endswith("model.norm.weight") else tensor)


def template(target, drafter):
    """The chat template does not open the model's turn."""
    path = os.path.join(target, "chat_template.jinja")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("if add_generation_prompt", "if false"))


def heads(target, drafter):
    """config.json gives the sizes of another model: twice the query heads of half the size each."""
    path = os.path.join(target, "config.json")
    config = read_json(path)
    text = config["text_config"]
    text["num_attention_heads"], text["head_dim"] = 2 * text["num_attention_heads"], text["head_dim"] // 2
    write_json(path, config)


EXPORT_FAULTS = {f.__name__: f for f in (scales, codes, norm, template, heads)}
SHORT = "short"  # a tenth of the steps
ALL = (SHORT, *EXPORT_FAULTS)
