"""Gated DeltaNet: the linear attention of Qwen 3.5, in chunks for training and token by token for decoding."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..common.layers import Scale, linear, rms_norm


def l2_norm(x):
    """Unit vectors over the last dimension."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def triangular_inverse(a):
    """`(I + a)^-1` for strictly lower triangular `a` `[..., n, n]`, n a power of two of at least 8.

    Diagonal blocks of 8 by the finite product (small enough that equal keys do not blow up in reduced precision), then merged in
    pairs; one Newton step at the end removes rounding and carries the exact gradient.
    """
    n = a.shape[-1]
    with torch.no_grad():
        size = 8
        x = torch.stack([a[..., i : i + size, i : i + size] for i in range(0, n, size)], -3)
        inverse, power = torch.eye(size, device=a.device, dtype=a.dtype) - x, x @ x
        inverse, power = inverse + inverse @ power, power @ power
        inverse = inverse + inverse @ power
        while size < n:
            below = torch.stack([a[..., i + size : i + 2 * size, i : i + size] for i in range(0, n, 2 * size)], -3)
            upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
            corner = -(lower @ (below @ upper))
            inverse = torch.cat([torch.cat([upper, torch.zeros_like(upper)], -1), torch.cat([corner, lower], -1)], -2)
            size *= 2
        inverse = inverse[..., 0, :, :]
    return inverse + inverse @ (torch.eye(n, device=a.device, dtype=a.dtype) - inverse - a @ inverse)


def delta_rule_chunked(q, k, v, g, beta, length, state=None):
    """The gated delta rule over a whole row, in chunks of `length` positions; all float32.

    q, k `[B, T, key heads, d]` (normalised, q scaled), v `[B, T, value heads, d]`, g (log decay) and beta `[B, T, value heads]`;
    T is a multiple of `length`. Returns `[B, T, value heads, d]`.
    """
    B, T, key_heads, key_dim = q.shape
    value_heads, value_dim = v.shape[2], v.shape[3]
    chunks, repeats = T // length, value_heads // key_heads

    def in_chunks(t):  # [chunks, B, heads, length, ...]
        return t.view(B, chunks, length, *t.shape[2:]).movedim(3, 2).transpose(0, 1)

    def per_value_head(t):
        t = t.unsqueeze(3).expand(chunks, B, key_heads, repeats, *t.shape[3:])
        return t.reshape(chunks, B, value_heads, *t.shape[4:])

    q, k, v, g, beta = in_chunks(q), in_chunks(k), in_chunks(v), in_chunks(g).cumsum(-1), in_chunks(beta)
    i = torch.arange(length, device=q.device)
    decay = torch.exp((g[..., :, None] - g[..., None, :]).masked_fill(i[:, None] < i[None, :], float("-inf")))
    key_key, query_key = per_value_head(k @ k.mT), per_value_head(q @ k.mT)
    corrections = (beta[..., :, None] * key_key * decay).masked_fill(i[:, None] <= i[None, :], 0.0)
    inverse = triangular_inverse(corrections)
    keys, queries, from_start = per_value_head(k), per_value_head(q), g.exp()
    u = inverse @ (v * beta[..., None])
    w = inverse @ (keys * (beta * from_start)[..., None])
    last = g[..., -1:]
    to_end = keys * torch.exp(last - g)[..., None]
    added = (to_end.mT @ u).reshape(chunks, B * value_heads, key_dim, value_dim)
    kept = torch.eye(key_dim, device=q.device) * last.exp()[..., None] - to_end.mT @ w
    kept = kept.reshape(chunks, B * value_heads, key_dim, key_dim)
    states = [torch.zeros(B * value_heads, key_dim, value_dim, device=q.device) if state is None else state]
    for c in range(chunks - 1):
        states.append(torch.baddbmm(added[c], kept[c], states[-1]))
    states = torch.stack(states).view(chunks, B, value_heads, key_dim, value_dim)
    o = (queries * from_start[..., None]) @ states + (query_key * decay) @ (u - w @ states)
    return o.permute(1, 0, 3, 2, 4).reshape(B, T, value_heads, value_dim)


class GatedDeltaNet(nn.Module):
    """One linear-attention layer."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        mixed = 2 * c.keys_size + c.values_size
        std = 0.6 * c.hidden_size**-0.5
        self.in_proj_qkv, self.in_proj_z = linear(c.hidden_size, mixed, std), linear(c.hidden_size, c.values_size, std)
        self.in_proj_b, self.in_proj_a = linear(c.hidden_size, c.value_heads, std), linear(c.hidden_size, c.value_heads, std)
        taps = torch.randn(mixed, c.conv_width, 1) * 0.2
        taps[:, -1] += 0.8  # mostly the token itself
        self.conv1d = Scale(taps)
        self.A_log = nn.Parameter(torch.empty(c.value_heads).uniform_(1, 8).log())
        step = torch.exp(torch.empty(c.value_heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = Scale(torch.ones(c.value_dim))
        self.out_proj = linear(c.values_size, c.hidden_size, 0.3 * c.values_size**-0.5)

    def _parts(self, x, mixed):
        """Queries, keys, values, log decays and betas of `x` and its convolved projection; `[..., heads, dim]` and `[..., heads]`."""
        c, shape = self.c, mixed.shape[:-1]
        q, k, v = mixed.split([c.keys_size, c.keys_size, c.values_size], -1)
        q = l2_norm(q.reshape(*shape, c.key_heads, c.key_dim)) * c.key_dim**-0.5
        k = l2_norm(k.reshape(*shape, c.key_heads, c.key_dim))
        beta = self.in_proj_b(x).float().sigmoid()
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return q, k, v.reshape(*shape, c.value_heads, c.value_dim), g, beta

    def _output(self, o, z):
        c, shape = self.c, z.shape[:-1]
        y = rms_norm(o, self.norm.weight.float(), c.eps) * F.silu(z.float()).view(*shape, c.value_heads, c.value_dim)
        return self.out_proj(y.reshape(*shape, -1).to(z.dtype))

    def forward(self, x):
        """x `[B, T, hidden]`, T a multiple of the chunk length."""
        c, T = self.c, x.shape[1]
        padded = F.pad(self.in_proj_qkv(x), (0, 0, c.conv_width - 1, 0))
        taps = self.conv1d.weight[..., 0].float()
        mixed = F.silu(sum(padded[:, j : j + T].float() * taps[:, j] for j in range(c.conv_width)))
        return self._output(delta_rule_chunked(*self._parts(x, mixed), c.chunk), self.in_proj_z(x))

    def new_state(self, rows, device, dtype):
        """The state of `rows` empty sequences."""
        c = self.c
        return {"conv": torch.zeros(rows, c.conv_width - 1, 2 * c.keys_size + c.values_size, device=device, dtype=dtype),
                "memory": torch.zeros(rows, c.value_heads, c.key_dim, c.value_dim, device=device)}

    def step(self, x, state):
        """One token of each row, x `[B, hidden]`; changes the state."""
        window = torch.cat([state["conv"], self.in_proj_qkv(x)[:, None]], 1)
        state["conv"] = window[:, 1:]
        mixed = F.silu((window.float() * self.conv1d.weight[..., 0].float().T).sum(1))
        q, k, v, g, beta = self._parts(x, mixed)
        repeats = self.c.value_heads // self.c.key_heads
        q, k = q.repeat_interleave(repeats, 1), k.repeat_interleave(repeats, 1)
        memory = state["memory"] * g.exp()[..., None, None]
        correction = beta[..., None] * (v - (k[..., None] * memory).sum(-2))
        state["memory"] = memory + k[..., None] * correction[..., None, :]
        return self._output((q[..., None] * state["memory"]).sum(-2), self.in_proj_z(x))
