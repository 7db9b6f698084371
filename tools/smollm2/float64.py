"""A Llama forward pass in numpy and float64: what MLX's float32 is held against. Plain and slow."""

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rope(x, theta):
    """Rotary embedding by halves of (heads, positions, d) from position 0."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    cos, sin, a, b = np.cos(angle), np.sin(angle), x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q, k, v):
    """Causal attention of (heads, positions, d) with fewer key heads than query heads."""
    share = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, share, axis=0), np.repeat(v, share, axis=0)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    mass = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return mass / mass.sum(axis=-1, keepdims=True) @ v


def logits(weights, config, ids):
    """(positions, vocabulary) float64 logits behind each of `ids`; `weights` are dense, of any float type, by their names."""
    wide = lambda name: weights[f"model.{name}.weight"].astype(np.float64)
    eps, size = config["rms_norm_eps"], config["head_dim"]

    def heads(x, projection):
        return (x @ wide(projection).T).reshape(len(ids), -1, size).swapaxes(0, 1)

    embedding = wide("embed_tokens")
    h = embedding[ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        x = rms_norm(h, wide(f"{at}.input_layernorm"), eps)
        q, k, v = (heads(x, f"{at}.self_attn.{p}_proj") for p in "qkv")
        mixed = attention(rope(q, config["rope_theta"]), rope(k, config["rope_theta"]), v)
        h = h + mixed.swapaxes(0, 1).reshape(len(ids), -1) @ wide(f"{at}.self_attn.o_proj").T
        x = rms_norm(h, wide(f"{at}.post_attention_layernorm"), eps)
        gate = x @ wide(f"{at}.mlp.gate_proj").T
        h = h + gate / (1 + np.exp(-gate)) * (x @ wide(f"{at}.mlp.up_proj").T) @ wide(f"{at}.mlp.down_proj").T
    return rms_norm(h, wide("norm"), eps) @ embedding.T


def negative_log_likelihood(rows, ids):
    """Of each id under the logits in the same row, in nats."""
    top = rows.max(axis=1)
    return np.log(np.exp(rows - top[:, None]).sum(axis=1)) + top - rows[np.arange(len(rows)), ids]
