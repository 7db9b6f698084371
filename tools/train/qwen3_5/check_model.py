"""Checks the training code itself, on a CPU.

    python3 -m train.qwen3_5.check_model

The chunked delta rule against the recurrence (values and gradients), whole rows against decoding token by token, the head's unrolled
steps against one at a time; and, where they are installed, the target against transformers and the rounding against MLX.
"""

import argparse
import sys

import torch

from ..common.quantise import fake_quantise, quantise
from .config import Config
from .delta_net import delta_rule_chunked, l2_norm
from .model import Head, Target, rms_norm

failed = []


def report(name, error, limit):
    """Prints one figure and remembers a failure."""
    print(f"{name}: {error:.2e} (limit {limit:.0e})", flush=True)
    if not error <= limit:
        failed.append(name)


def recurrence(q, k, v, g, beta):
    """The gated delta rule, one position at a time."""
    repeats = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(repeats, 2), k.repeat_interleave(repeats, 2)
    memory, out = torch.zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=q.dtype), []
    for t in range(q.shape[1]):
        memory = memory * g[:, t].exp()[..., None, None]
        correction = beta[:, t][..., None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], memory))
        memory = memory + k[:, t][..., None] * correction[:, :, None]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory))
    return torch.stack(out, 1)


def check_delta_rule():
    length = 128
    q, k = l2_norm(torch.randn(1, length, 4, 64)) / 8, l2_norm(torch.randn(1, length, 4, 64) + 1.0)
    inputs = (q, k, torch.randn(1, length, 8, 64), -torch.rand(1, length, 8) * 0.2, torch.rand(1, length, 8))
    exact = [t.double().requires_grad_() for t in inputs]
    single = [t.clone().requires_grad_() for t in inputs]
    expected, found = recurrence(*exact), delta_rule_chunked(*single, 64)
    weights = torch.randn_like(expected)
    report("delta rule, values", ((expected - found).norm() / expected.norm()).item(), 1e-5)
    gradients = zip(torch.autograd.grad((expected * weights).sum(), exact), torch.autograd.grad((found * weights.float()).sum(), single))
    report("delta rule, gradients", max(((a - b).norm() / a.norm()).item() for a, b in gradients), 1e-4)


@torch.no_grad()
def check_target(config):
    target = Target(config).prepare(192, "cpu")
    for name, p in target.named_parameters():
        if p.dim() == 1 and not name.endswith(("A_log", "dt_bias")):
            p += torch.randn_like(p) * 0.1
    ids = torch.randint(0, config.vocab_size, (2, 192))
    whole = target.logits(target.hidden(ids))
    step = target.decoder(2, 192, "cpu", torch.float32)
    one_by_one = torch.stack([step(ids[:, t], t) for t in range(192)], 1)
    report("whole rows against decoding", (whole - one_by_one).abs().max().item(), 1e-3)
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: the target was not compared with it")
        return
    published = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads, head_dim=config.head_dim,
        linear_num_key_heads=config.key_heads, linear_num_value_heads=config.value_heads, linear_key_head_dim=config.key_dim,
        linear_value_head_dim=config.value_dim, linear_conv_kernel_dim=config.conv_width, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=config.theta, partial_rotary_factor=config.rotary_dims / config.head_dim,
                             mrope_section=[6, 5, 5], mrope_interleaved=True))).eval()
    from .reference import published_layout
    state = published_layout(dict(target.state_dict()), "")
    published.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    report("target against transformers", (published(ids).logits - whole).abs().max().item(), 1e-3)


@torch.no_grad()
def check_head(config):
    head, length, start = Head(config).prepare(64, "cpu"), 24, 11
    layer, attention = head.layers[0], head.layers[0].self_attn
    embedded, hidden = torch.randn(1, length + 4, config.hidden_size), torch.randn(1, length, config.hidden_size)
    position = torch.arange(length)
    mask = torch.zeros(length, length).masked_fill(position[:, None] < position[None], float("-inf"))
    x, keys, values, unrolled = hidden, [], [], []
    for j in range(3):
        x, keys, values = head.unrolled_step(embedded[:, j : j + length], x, j, keys, values, mask)
        unrolled.append(x[0, start])
    cache = {"k": torch.zeros(0, config.kv_heads, config.head_dim), "v": torch.zeros(0, config.kv_heads, config.head_dim)}

    def rows(embedded, hidden, positions):  # the head as at inference, with a cache
        x = head.join(embedded, hidden)
        q, k, v, gate = attention.project(layer.attention_input(x), head.cos[positions], head.sin[positions])
        cache["k"], cache["v"] = torch.cat([cache["k"], k]), torch.cat([cache["v"], v])
        repeats, n, total = config.heads // config.kv_heads, len(x), len(cache["k"])
        scores = torch.einsum("thd,shd->hts", q, cache["k"].repeat_interleave(repeats, 1)) * config.head_dim**-0.5
        scores = scores.masked_fill(torch.arange(total)[None] > torch.arange(total - n, total)[:, None], float("-inf"))
        o = torch.einsum("hts,shd->thd", scores.softmax(-1), cache["v"].repeat_interleave(repeats, 1)).flatten(1)
        return rms_norm(layer.feed_forward(x + attention.output(o, gate)), head.norm.weight, config.eps)

    x = rows(embedded[0, : start + 1], hidden[0, : start + 1], position[: start + 1])[-1:]
    errors = [(x - unrolled[0]).abs().max().item()]
    for j in (1, 2):
        x = rows(embedded[0, start + j : start + j + 1], x, torch.tensor([start + j]))
        errors.append((x - unrolled[j]).abs().max().item())
    report("head, unrolled against one by one", max(errors), 1e-4)


def check_rounding():
    try:
        import mlx.core as mx
    except ImportError:
        print("mlx is not installed: the rounding was not compared with it")
        return
    weight = torch.randn(8, 256)
    words, scales, biases = mx.quantize(mx.array(weight.numpy()), 64, 4)
    theirs = torch.tensor(mx.dequantize(words, scales, biases, 64, 4).tolist())
    _, ours, _ = quantise(weight)  # the same scales and biases, rounded to bfloat16
    report("scales against mlx, relative", (ours.flatten() / torch.tensor(scales.tolist()).flatten() - 1).abs().max().item(), 2**-8)
    errors = [(w - weight).pow(2).mean().item() for w in (fake_quantise(weight), theirs)]
    report("squared rounding error against mlx, relative", abs(errors[0] / errors[1] - 1), 0.02)


def main(argv=None):
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    torch.manual_seed(0)
    config = Config(vocab_size=512)
    check_delta_rule()
    check_target(config)
    check_head(config)
    check_rounding()
    if failed:
        sys.exit("beyond its limit: " + ", ".join(failed))


if __name__ == "__main__":
    main()
