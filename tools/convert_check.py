#!/usr/bin/env python3
"""Check `mlxcel convert` against MLX itself.

Three parts, all on the CPU:

quantiser   Random matrices of many kinds (normal, uniform, constant groups, zeros, all negative, outliers, ties, tiny and
            huge magnitudes) in f32, bf16 and f16 are converted with every width (2, 3, 4, 5, 6, 8) and group size (32, 64,
            128), and codes, scales and biases are compared with `mlx.core.quantize` bit by bit.

models      Each --model SRC (a directory as transformers writes it) is converted, and compared with what mlx-lm's own
            conversion gives: every tensor bit by bit, then the converted directory is loaded by mlx-lm and its logits
            over random tokens are compared with those of mlx-lm's conversion, in f32.

memory      With --memory GB, a random bf16 model of that size is converted, alone in its process, and its peak memory,
            time and speed are printed.

Needs a Python with mlx (mlx[cpu] off a Mac), mlx-lm and numpy, and a built mlxcel:

    python3 -m venv venv && venv/bin/pip install 'mlx[cpu]' mlx-lm numpy
    cargo build --release
    venv/bin/python tools/convert_check.py --mlxcel target/release/mlxcel --model tests/golden/qwen3_5/dense

Prints one line a comparison, exits with 1 when anything differs. `--plant` flips bits of every converted file first:
then every comparison must fail (logits are not compared then), and the exit status says whether all did.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
WIDTH = 256
ROWS = 64


def kinds(rng, dtype):
    """Matrices by name, as float64; the caller rounds them to `dtype`."""
    n = (ROWS, WIDTH)
    limits = {"f32": (1e-38, 1e37), "bf16": (1e-38, 1e37), "f16": (6e-8, 3e4)}[dtype]
    normal = rng.standard_normal(n)
    outlier = normal * 0.02
    outlier[np.arange(ROWS), rng.integers(0, WIDTH, ROWS)] = 8.0
    constant = np.repeat(rng.standard_normal((ROWS, WIDTH // 32)), 32, axis=1)
    few = normal * 0.1
    few[:, ::2] = 0.0
    return {
        "normal": normal,
        "weights": normal * 0.02,
        "uniform": rng.uniform(-1, 1, n),
        "positive": rng.uniform(0.5, 1, n),
        "negative": -rng.uniform(0.5, 1, n),
        "constant groups": constant,
        "zeros": np.zeros(n),
        "negative zeros": -np.zeros(n),
        "half zeros": few,
        "outliers": outlier,
        # Multiples of a power of two: ends, codes and ties are exact.
        "ties": rng.integers(-16, 17, n) / 32.0,
        "two values": rng.choice([-0.75, 0.25], n),
        "wide": normal * np.exp2(rng.integers(-12, 6, n)),
        "below the smallest step": normal * 1e-8,
        "tiny": normal * limits[0] * 4,
        "huge": np.clip(normal, -2, 2) * limits[1],
        "symmetric ends": np.where(rng.random(n) < 0.5, 1.0, -1.0) * rng.choice([0.5, 1.0], n),
    }


def write_llama(directory, matrices, dtype):
    """A Llama checkpoint whose layers hold the matrices; returns the tensors by name."""
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
    matrices = list(matrices)
    # These two have the other shape and are not compared.
    filler = mx.zeros((WIDTH, ROWS), dtype=dtype)
    layers = -(-len(matrices) // len(names))
    tensors = {"model.norm.weight": mx.ones((WIDTH,), dtype=dtype), "model.embed_tokens.weight": matrices[0]}
    for index in range(layers * len(names)):
        layer, name = divmod(index, len(names))
        tensors[f"model.layers.{layer}.{names[name]}.weight"] = matrices[index % len(matrices)]
    for layer in range(layers):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.layers.{layer}.{name}.weight"] = filler
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = mx.ones((WIDTH,), dtype=dtype)
    directory.mkdir()
    mx.save_safetensors(str(directory / "model.safetensors"), tensors, metadata={"format": "pt"})
    config = {"model_type": "llama", "num_hidden_layers": layers, "tie_word_embeddings": True, "vocab_size": ROWS,
              "hidden_size": WIDTH, "intermediate_size": ROWS, "num_attention_heads": 2, "num_key_value_heads": 2,
              "head_dim": ROWS // 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 128}
    (directory / "config.json").write_text(json.dumps(config))
    return tensors


def convert(args, source, target, *options):
    command = [args.mlxcel, "convert", str(source), "-o", str(target), "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    if args.plant:
        for file in sorted(target.glob("*.safetensors")):
            data = bytearray(file.read_bytes())
            (header,) = struct.unpack_from("<Q", data)
            entries = json.loads(data[8:8 + header])
            # A byte of the first words of a matrix that is compared.
            name = next((n for n in sorted(entries) if n.endswith("gate_proj.weight")), None)
            if name is None:
                continue
            data[8 + header + entries[name]["data_offsets"][0] + 4] ^= 0x55
            file.write_bytes(data)


def bits_of(array):
    """The array's bytes; numpy has no bf16."""
    return np.array(array.view(mx.uint8) if array.dtype != mx.uint32 else array.view(mx.uint8))


def load_all(directory):
    tensors = {}
    for file in sorted(directory.glob("model*.safetensors")):
        tensors.update(mx.load(str(file)))
    return tensors


class Report:
    def __init__(self):
        self.same, self.different = 0, 0

    def line(self, same, text):
        self.same, self.different = self.same + same, self.different + (not same)
        print(("equal      " if same else "DIFFERENT  ") + text, flush=True)


def check_quantiser(args, report, work):
    rng = np.random.default_rng(args.seed)
    for name, dtype in DTYPES.items():
        made = kinds(rng, name)
        source = work / f"source-{name}"
        tensors = write_llama(source, (mx.array(m.astype(np.float32)).astype(dtype) for m in made.values()), dtype)
        compared = (n for n in tensors if n.endswith("proj.weight") and "o_proj" not in n and "down_proj" not in n)
        labels = dict(zip(compared, list(made) * 2))
        for bits in BITS:
            for group in GROUPS:
                target = work / f"{name}-{bits}-{group}"
                convert(args, source, target, "--bits", str(bits), "--group-size", str(group))
                ours, wrong, values = load_all(target), {}, 0
                for tensor, kind in labels.items():
                    path = tensor.removesuffix(".weight")
                    theirs = dict(zip(("weight", "scales", "biases"), mx.quantize(tensors[tensor], group, bits)))
                    for part, array in theirs.items():
                        found = ours[f"{path}.{part}"]
                        assert (found.dtype, found.shape) == (array.dtype, array.shape), (path, part)
                        values += found.size
                        bad = int((bits_of(found) != bits_of(array)).sum())
                        if bad:
                            wrong[f"{kind}: {part}"] = bad
                text = f"{name} {bits}-bit group {group}: {len(labels)} matrices, {values} words, scales and biases"
                report.line(not wrong, text + "".join(f"\n             {k}: {v} bytes" for k, v in wrong.items()))


def check_models(args, report, work):
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model, quantize_model

    for number, path in enumerate(args.model):
        source = Path(path)
        for bits, group in ((None, 64), (4, 32), (8, 32), (3, 32)):
            what = f"{source.name}, " + (f"{bits}-bit group {group}" if bits else "no quantisation")
            target = work / f"model-{number}-{bits}"
            options = ["--bits", str(bits), "--group-size", str(group)] if bits else []
            convert(args, source, target, *options)
            # mlx-lm has no module of the text-only names, but reads a flat configuration under the wrapper's.
            model_type = json.loads((source / "config.json").read_text())["model_type"]
            flat = {"model_type": model_type.removesuffix("_text")} if model_type.startswith("qwen3_5") else None
            theirs, config = load_model(source, model_config=flat)
            ours, _ = load_model(target)
            vocab = config.get("text_config", config)["vocab_size"]
            tokens = mx.array(np.random.default_rng(args.seed).integers(0, vocab, (1, 40)))
            logits = ours(tokens).astype(mx.float32)
            if bits:
                predicate = getattr(theirs, "quant_predicate", None)
                theirs, _ = quantize_model(theirs, config, group, bits, quant_predicate=predicate)
            expected, found = dict(tree_flatten(theirs.parameters())), load_all(target)
            wrong = sorted(expected.keys() ^ found.keys())
            for name in expected.keys() & found.keys():
                a, b = expected[name], found[name]
                if a.dtype != b.dtype or a.shape != b.shape or not (bits_of(a) == bits_of(b)).all():
                    wrong.append(name)
            report.line(not wrong, f"{what}: {len(expected)} tensors" + "".join(f"\n             {n}" for n in wrong[:8]))
            if args.plant:
                # Whether one weight shows in the logits is chance; the line above must have seen it.
                continue
            difference = mx.abs(logits - theirs(tokens).astype(mx.float32)).max().item()
            same = difference == 0.0 and bool(mx.isfinite(logits).all().item())
            report.line(same, f"{what}: finite logits in mlx-lm, largest difference {difference:g}")


# Runs a command from a small process: what is started from a large one is charged with the pages of its parent.
ALONE = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_maxrss, used.ru_utime + used.ru_stime]), file=sys.stderr)
sys.exit(code)
"""


def measure_memory(args, work):
    gib = 1 << 30
    # Two matrices of half the size each: nothing that is held by the tensor goes unseen.
    rows = int(args.memory * gib / 2 / 2 / 4096)
    rng = np.random.default_rng(args.seed)
    source = work / "large"
    source.mkdir()
    one = (rng.standard_normal((rows, 4096), dtype=np.float32) * 0.02).view(np.uint32) >> 16
    big = mx.array(one.astype(np.uint16)).view(mx.bfloat16)
    ones = lambda *shape: mx.ones(shape, mx.bfloat16)
    at = "model.layers.0"
    tensors = {"lm_head.weight": big, "model.embed_tokens.weight": big, "model.norm.weight": ones(4096)}
    tensors |= {f"{at}.{n}.weight": ones(4096) for n in ("input_layernorm", "post_attention_layernorm")}
    tensors |= {f"{at}.self_attn.{n}_proj.weight": ones(64, 4096) for n in "qkv"}
    tensors |= {f"{at}.mlp.{n}_proj.weight": ones(64, 4096) for n in ("gate", "up")}
    tensors |= {f"{at}.{n}.weight": ones(4096, 64) for n in ("self_attn.o_proj", "mlp.down_proj")}
    mx.save_safetensors(str(source / "model.safetensors"), tensors, metadata={"format": "pt"})
    del one, big, tensors
    config = {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False, "vocab_size": rows,
              "hidden_size": 4096, "intermediate_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1,
              "head_dim": 64, "rms_norm_eps": 1e-6, "max_position_embeddings": 128}
    (source / "config.json").write_text(json.dumps(config))
    for options in ([], ["--bits", "4"], ["--bits", "8", "--group-size", "32"], ["--bits", "3"]):
        command = [args.mlxcel, "convert", str(source), "-o", str(work / "large-out"), "--force", "--json", "-q", *options]
        done = subprocess.run([sys.executable, "-c", ALONE, *command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        out, (peak, seconds) = json.loads(done.stdout), json.loads(done.stderr)
        # Kilobytes, but bytes on a Mac.
        peak *= 1 if sys.platform == "darwin" else 1024
        print(f"memory     {out['source_bytes'] / gib:.2f} GiB {' '.join(options) or 'no quantisation'}: peak "
              f"{peak / (1 << 20):.0f} MiB, {out['seconds']:.1f} s, processor {seconds:.1f} s, "
              f"{out['parameters'] / out['seconds'] / 1e6:.0f} million values a second")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlxcel", required=True, help="path of the mlxcel binary")
    parser.add_argument("--model", action="append", default=[], metavar="SRC", help="a checkpoint to compare (repeatable)")
    parser.add_argument("--seed", type=int, default=1, help="seed of matrices and tokens")
    parser.add_argument("--plant", action="store_true", help="damage what was converted: every comparison must see it")
    parser.add_argument("--memory", type=float, metavar="GB", help="measure memory on a model of this size")
    parser.add_argument("--skip-quantiser", action="store_true", help="only the models")
    args = parser.parse_args()
    args.mlxcel = str(Path(args.mlxcel).resolve())
    mx.set_default_device(mx.cpu)
    report = Report()
    with tempfile.TemporaryDirectory() as work:
        if not args.skip_quantiser:
            check_quantiser(args, report, Path(work))
        check_models(args, report, Path(work))
        if args.memory:
            measure_memory(args, Path(work))
    print(f"{report.same} equal, {report.different} different")
    if args.plant:
        sys.exit(0 if report.same == 0 else "a planted difference was not seen")
    sys.exit(1 if report.different else 0)


if __name__ == "__main__":
    main()
