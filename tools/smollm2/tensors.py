"""Tensors of a safetensors checkpoint as raw bytes, and a short digest of each layer. Standard library only."""

import hashlib
import json
import os
import re
import struct

LAYER = re.compile(r"model\.layers\.(\d+)\.")


class TensorError(Exception):
    """A file that is not what it should be; the message names it."""


def read_header(path):
    """The header of one file: (first byte of the data, {name: {"dtype", "shape", "data_offsets"}})."""
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        start = f.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise TensorError(f"{path}: a safetensors header expected, found {size} bytes that hold none")
        try:
            header = json.loads(f.read(length))
        except ValueError as e:
            raise TensorError(f"{path}: a header in JSON expected, found {e}") from None
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= size - 8 - length:
            raise TensorError(f"{path}: {name}: data within the file expected, found bytes {begin} to {end}")
    return 8 + length, header


def directory(path):
    """Where each tensor of a checkpoint lies: {name: (file, first byte, bytes, dtype, shape)}."""
    found = {}
    for file in sorted(os.listdir(path)):
        if not file.endswith(".safetensors"):
            continue
        file = os.path.join(path, file)
        base, header = read_header(file)
        for name, entry in header.items():
            if name in found:
                raise TensorError(f"{file}: {name}: one tensor of that name expected, found another in {found[name][0]}")
            begin, end = entry["data_offsets"]
            found[name] = (file, base + begin, end - begin, entry["dtype"], entry["shape"])
    if not found:
        raise TensorError(f"{path}: *.safetensors expected, found none")
    return found


def read(entry):
    """The bytes of one tensor."""
    file, begin, length = entry[:3]
    with open(file, "rb") as f:
        f.seek(begin)
        return f.read(length)


def group_of(name):
    """The part of the model that a tensor is digested with: `layers.N`, or the module's own name."""
    layer = LAYER.match(name)
    return f"layers.{layer.group(1)}" if layer else name.removeprefix("model.").split(".")[0]


def digests(path):
    """{group: digest}: 16 hexadecimal digits of the SHA-256 over names, dtypes, shapes and bytes of the group's tensors."""
    hashes = {}
    entries = directory(path)
    for name in sorted(entries):
        digest = hashes.setdefault(group_of(name), hashlib.sha256())
        digest.update(f"{name} {entries[name][3]} {list(entries[name][4])}\n".encode())
        digest.update(read(entries[name]))
    return {group: digest.hexdigest()[:16] for group, digest in hashes.items()}
