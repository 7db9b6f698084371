#!/usr/bin/env python3
"""Compares two checkpoints in MLX's layout tensor by tensor and bit by bit: packed words, scales, biases, everything.

    python3 tools/smollm2/compare_packed.py target/smollm2/4bit target/smollm2/mlx-lm/4bit

The first is mlxcel's conversion, the second mlx-lm's own of the same weights (reference.py leaves it there). For each kind of tensor
that differs: how many tensors and elements, the first place, and for packed words how many codes and how far apart. The
quantisation in config.json is compared too. Exit code 1 on any difference. --self-test plants some. Needs numpy.
"""

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile

import numpy as np

import tensors

KINDS = {"U32": np.uint32, "BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "I32": np.uint32, "U8": np.uint8}


def quantization(folder):
    """(config of the quantisation, its bits) of a checkpoint; (None, None) when it has none."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f).get("quantization")
    return config, (config or {}).get("bits")


def codes(words, bits):
    """Codes of packed rows, least significant first; a code of 3, 5 or 6 bits may cross a word."""
    bit = np.unpackbits(words.view(np.uint8).reshape(words.shape[0], -1), axis=1, bitorder="little")
    weights = 1 << np.arange(bits, dtype=np.int32)
    return bit[:, : bit.shape[1] // bits * bits].reshape(words.shape[0], -1, bits) @ weights


def compare(ours, theirs):
    """Lines that say what differs; none when nothing does."""
    a, b = tensors.directory(ours), tensors.directory(theirs)
    lines = [f"{name}: expected, found none" for name in sorted(set(b) - set(a))]
    lines += [f"{name}: not expected, found" for name in sorted(set(a) - set(b))]
    (config_a, _), (config_b, bits) = quantization(ours), quantization(theirs)
    if config_a != config_b:
        lines.append(f"config.json: quantization {json.dumps(config_b)} expected, found {json.dumps(config_a)}")
    equal = 0
    for name in sorted(set(a) & set(b)):
        if a[name][3:] != b[name][3:]:
            lines.append(f"{name}: {b[name][3]} {b[name][4]} expected, found {a[name][3]} {a[name][4]}")
            continue
        kind = b[name][3]
        x, y = (np.frombuffer(tensors.read(t[name]), KINDS.get(kind, np.uint8)) for t in (a, b))
        if not (wrong := np.flatnonzero(x != y)).size:
            equal += 1
            continue
        at = int(wrong[0])
        line = f"{name}: {wrong.size} of {x.size} elements differ, first {at}: {int(y[at]):#x} expected, found {int(x[at]):#x}"
        if kind == "U32" and bits and x.size:
            shape = (-1, b[name][4][-1])
            apart = np.abs(codes(x.reshape(shape), bits) - codes(y.reshape(shape), bits))
            line += f"; {np.count_nonzero(apart)} codes, at most {apart.max()} apart"
        lines.append(line)
    return lines, equal, sum(entry[2] for entry in b.values())


def write(folder, contents, config):
    """A small checkpoint for the self-test: {name: (dtype, array)}."""
    header, data = {}, b""
    for name, (dtype, array) in contents.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    os.makedirs(folder, exist_ok=True)
    head = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


def self_test():
    """One bit in each tensor, names, dtypes, shapes and settings must be seen; every width of code must unpack."""
    random = np.random.default_rng(7)
    for bits in (2, 3, 4, 5, 6, 8):
        want = random.integers(0, 1 << bits, (3, 64))
        stream = ((want[..., None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(3, -1)
        words = np.packbits(stream, axis=1, bitorder="little").view(np.uint32)
        assert (codes(words, bits) == want).all(), f"codes of {bits} bits"
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        one, two = os.path.join(folder, "a"), os.path.join(folder, "b")
        good = {
            "model.layers.0.q.weight": ("U32", random.integers(0, 1 << 32, (2, 8), dtype=np.uint32)),
            "model.layers.0.q.scales": ("BF16", random.integers(0, 1 << 16, (2, 1), dtype=np.uint16)),
            "model.layers.0.q.biases": ("BF16", random.integers(0, 1 << 16, (2, 1), dtype=np.uint16)),
        }  # fmt: skip
        config = {"quantization": {"bits": 4, "group_size": 64, "mode": "affine"}}
        write(two, good, config)
        write(one, good, config)
        assert compare(one, two)[:2] == ([], 3), "equal checkpoints differ"
        planted = []
        for name, (dtype, array) in good.items():
            for at in (0, array.size - 1):
                other = array.copy()
                other.reshape(-1)[at] ^= array.dtype.type(1 << (at % 16))
                planted.append(({**good, name: (dtype, other)}, config, name))
            planted.append(({**good, name: (dtype, array[:1])}, config, name))
            planted.append(({n: t for n, t in good.items() if n != name}, config, name))
        name = "model.layers.0.q.scales"
        planted.append(({**good, name: ("F16", good[name][1])}, config, name))
        planted.append(({**good, "lm_head.weight": good["model.layers.0.q.weight"]}, config, "lm_head.weight"))
        planted.append((good, {"quantization": {**config["quantization"], "group_size": 32}}, "config.json"))
        planted.append((good, {}, "config.json"))
        for contents, settings, where in planted:
            shutil.rmtree(one)
            write(one, contents, settings)
            lines = compare(one, two)[0]
            assert len(lines) == 1 and lines[0].startswith(f"{where}: "), f"{where}: {lines}"
            found += 1
    print(f"compare_packed.py: {found} planted differences found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", nargs="?", metavar="OURS", help="checkpoint of `mlxcel convert`")
    parser.add_argument("theirs", nargs="?", metavar="THEIRS", help="checkpoint of mlx-lm")
    parser.add_argument("--self-test", action="store_true", help="see planted differences found, and exit")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return 0
    if not args.theirs:
        parser.error("two checkpoints expected")
    try:
        lines, equal, size = compare(args.ours, args.theirs)
    except (tensors.TensorError, OSError, ValueError) as e:
        print(f"compare_packed.py: {e}", file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    print(f"{equal} tensors equal bit for bit ({size / 1e6:.1f} MB compared), {len(lines)} differences")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
