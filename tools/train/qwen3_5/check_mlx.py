"""Loads exported folders with mlx-lm and mlx-vlm on a CPU and compares with golden.json and golden.safetensors.

    python3 -m train.qwen3_5.check_mlx models/NAME-4bit models/NAME-mtp-4bit

Needs mlx-lm and mlx-vlm (the published folders were checked with 0.32.2 and 0.7.10). In float32 the greedy ids must be the reference's
and the first eight rows of logits within 1e-3; in bfloat16, what MLX computes in by default, the figures are only shown.
"""

import argparse
import importlib
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from ..common.export import read_json

failed = []


def to_float32(module):
    """Scales, biases, norms and activations in float32; the packed codes stay as they are."""
    module.update(tree_map(lambda x: x.astype(mx.float32) if x.dtype == mx.bfloat16 else x, module.parameters()))


def greedy(model, ids, count):
    """`(ids, logits)` of plain decoding with a cache."""
    cache = make_prompt_cache(model)
    rows, out, step = [], [], mx.array(ids)[None]
    while len(out) < count:
        rows.append(model(step, cache=cache)[0, -1].astype(mx.float32))
        out.append(int(rows[-1].argmax()))
        step = mx.array([[out[-1]]])
    return out, rows


def check_target(folder, golden):
    """mlx-lm against the greedy references."""
    model, _ = load(folder)
    tensors = mx.load(os.path.join(folder, "golden.safetensors"))
    for dtype in ("bfloat16", "float32"):
        if dtype == "float32":
            to_float32(model)
        for name, expected in golden["prompts"].items():
            out, rows = greedy(model, expected["prompt_ids"], 64)
            wrong = [i for i, (a, b) in enumerate(zip(out, expected["continuation_ids"])) if a != b]
            comparable = min(8, (wrong[0] if wrong else 64) + 1)
            difference = max(float(mx.abs(rows[i] - tensors[name + ".logits"][i]).max()) for i in range(comparable))
            print(f"mlx-lm, {dtype}, {name}: {wrong[0] if wrong else 64} of 64 ids as the reference, logits within {difference:.1e}")
            if dtype == "float32" and (wrong or difference > 1e-3):
                failed.append(f"mlx-lm, {name}")


def float_target(folder, config):
    """mlx-vlm's text model with the folder's weights expanded to float32."""
    module = importlib.import_module("mlx_vlm.models.qwen3_5_text")
    target, weights = module.Model(module.ModelConfig.from_dict(dict(config["text_config"]))), {}
    packed = mx.load(os.path.join(folder, "model.safetensors"))
    for name, tensor in packed.items():
        base = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if base + ".scales" in packed:
            scales, biases = (packed[base + part].astype(mx.float32) for part in (".scales", ".biases"))
            tensor = mx.dequantize(tensor, scales, biases, 64, 4)
        weights[name] = tensor.astype(mx.float32)
    known = {name for name, _ in tree_flatten(target.parameters())}
    target.load_weights([(name, t) for name, t in target.sanitize(weights).items() if name in known])
    target.eval()
    return target


def check_head(target_folder, head_folder, golden):
    """mlx-vlm's drafter against the first drafts of the references at width 8."""
    from mlx_vlm.speculative.drafters.qwen3_5_mtp import Model, ModelConfig
    config, weights = read_json(os.path.join(head_folder, "config.json")), mx.load(os.path.join(head_folder, "model.safetensors"))
    head = Model(ModelConfig.from_dict(config))
    nn.quantize(head, group_size=64, bits=4, class_predicate=lambda path, _: path + ".scales" in weights)
    head.load_weights(list(head.sanitize(weights).items()))
    to_float32(head)
    head.eval()
    target = float_target(target_folder, read_json(os.path.join(target_folder, "config.json")))
    expected = golden["speculative"]["by_K"]["8"]["per_prompt"]
    for name, prompt in golden["speculative"]["prompts"].items():
        model, ids = target.language_model, mx.array(prompt["prompt_ids"])[None]
        out = model(ids, cache=model.make_cache(), return_hidden=True)
        hidden, token = out.hidden_states[-1], int(out.logits[0, -1].argmax())
        head.reset(target)
        head.prefill_from_target_hidden(ids, hidden, token, None, greedy=True)
        drafts = head.draft_block(token, hidden[:, -1:], None, 8, None, greedy=True)[0].tolist()
        same = token == prompt["greedy_ids"][0] and drafts == expected[name]["first_drafts"]
        print(f"mlx-vlm, {name}: first drafts {'as the reference' if same else drafts}")
        if not same:
            failed.append(f"mlx-vlm, {name}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="folder of the target")
    parser.add_argument("head", help="folder of the multi-token-prediction head")
    args = parser.parse_args(argv)
    mx.set_default_device(mx.cpu)
    golden = read_json(os.path.join(args.target, "golden.json"))
    check_target(args.target, golden)
    check_head(args.target, args.head, golden)
    if failed:
        sys.exit("not as the reference: " + ", ".join(failed))


if __name__ == "__main__":
    main()
