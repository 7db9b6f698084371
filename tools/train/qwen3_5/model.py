"""Qwen 3.5's text architecture and its multi-token-prediction head, written for training speed.

Parameter names are those of MLX's layout without the leading `language_model.`; norm weights are whole factors (1 + w of the
published form).
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..common.layers import Scale, linear, rms_norm, rope_tables, rotate
from .delta_net import GatedDeltaNet


def rotary(c, positions, device):
    """Cosines and sines, `[positions, 1, rotary_dims]`."""
    exponents = torch.arange(0, c.rotary_dims, 2, dtype=torch.float32, device=device) / c.rotary_dims
    return rope_tables(c.theta**-exponents, positions)


class GatedAttention(nn.Module):
    """Full attention whose output is gated by the query projection's second half."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        std, size = 0.6 * c.hidden_size**-0.5, c.heads * c.head_dim
        self.q_proj = linear(c.hidden_size, 2 * size, std)
        self.k_proj = linear(c.hidden_size, c.kv_heads * c.head_dim, std)
        self.v_proj = linear(c.hidden_size, c.kv_heads * c.head_dim, std)
        self.o_proj = linear(size, c.hidden_size, 0.3 * size**-0.5)
        self.q_norm, self.k_norm = Scale(torch.ones(c.head_dim)), Scale(torch.ones(c.head_dim))

    def project(self, x, cos, sin):
        """Queries, keys, values `[..., heads, head_dim]`, and the gate `[..., heads * head_dim]`."""
        c, shape = self.c, x.shape[:-1]
        queries = self.q_proj(x).view(*shape, c.heads, 2 * c.head_dim)
        q, gate = queries[..., : c.head_dim], queries[..., c.head_dim :].reshape(*shape, -1)
        k, v = (p(x).view(*shape, c.kv_heads, c.head_dim) for p in (self.k_proj, self.v_proj))
        q = rotate(rms_norm(q, self.q_norm.weight, c.eps), cos, sin)
        return q, rotate(rms_norm(k, self.k_norm.weight, c.eps), cos, sin), v, gate

    def output(self, attended, gate):
        return self.o_proj(attended * torch.sigmoid(gate))

    def forward(self, x, cos, sin):
        q, k, v, gate = self.project(x, cos, sin)
        repeats = self.c.heads // self.c.kv_heads
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.output(o.transpose(1, 2).reshape(*x.shape[:2], -1), gate)

    def new_state(self, rows, length, device, dtype):
        """A K/V cache of `length` positions."""
        shape = (rows, self.c.kv_heads, length, self.c.head_dim)
        return {name: torch.zeros(shape, device=device, dtype=dtype) for name in ("keys", "values")}

    def step(self, x, position, cos, sin, state):
        """One token of each row at `position`, x `[B, hidden]`; changes the state."""
        c, rows = self.c, len(x)
        q, k, v, gate = self.project(x, cos, sin)
        state["keys"][:, :, position], state["values"][:, :, position] = k, v
        keys, values = state["keys"][:, :, : position + 1], state["values"][:, :, : position + 1]
        grouped = q.view(rows, c.kv_heads, c.heads // c.kv_heads, c.head_dim)
        p = torch.softmax((grouped @ keys.mT).float() * c.head_dim**-0.5, -1).to(x.dtype)
        return self.output((p @ values).reshape(rows, -1), gate)


class MLP(nn.Module):
    """Gated MLP with SiLU."""

    def __init__(self, c):
        super().__init__()
        std = 0.6 * c.hidden_size**-0.5
        self.gate_proj, self.up_proj = (linear(c.hidden_size, c.intermediate_size, std) for _ in range(2))
        self.down_proj = linear(c.intermediate_size, c.hidden_size, 0.3 * c.intermediate_size**-0.5)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Linear or full attention, then the MLP, each after a norm."""

    def __init__(self, c, is_linear):
        super().__init__()
        self.is_linear, self.eps = is_linear, c.eps
        if is_linear:
            self.linear_attn = GatedDeltaNet(c)
        else:
            self.self_attn = GatedAttention(c)
        self.input_layernorm, self.post_attention_layernorm = (Scale(torch.ones(c.hidden_size)) for _ in range(2))
        self.mlp = MLP(c)

    def attention_input(self, x):
        return rms_norm(x, self.input_layernorm.weight, self.eps)

    def feed_forward(self, x):
        return x + self.mlp(rms_norm(x, self.post_attention_layernorm.weight, self.eps))

    def forward(self, x, cos, sin):
        n = self.attention_input(x)
        return self.feed_forward(x + (self.linear_attn(n) if self.is_linear else self.self_attn(n, cos, sin)))


class Stack(nn.Module):
    """Embedding, layers and final norm: the part that is called `model` in a checkpoint."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.04)
        self.layers = nn.ModuleList(Layer(c, c.is_linear(i)) for i in range(c.layers))
        self.norm = Scale(torch.ones(c.hidden_size))


def summed_loss(hidden, embedding, targets, weights):
    """Weighted sum of cross-entropies; logits with the tied embedding."""
    logits = F.linear(hidden, embedding).float()
    return (F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none") * weights.flatten()).sum()


class Target(nn.Module):
    """The language model."""

    def __init__(self, c):
        super().__init__()
        self.config, self.model = c, Stack(c)

    def prepare(self, length, device, compiled=False):
        """For rows of up to `length` tokens; must be called before a forward pass."""
        self.cos, self.sin = rotary(self.config, length, device)
        self.run = [torch.compile(layer, dynamic=False) if compiled else layer for layer in self.model.layers]
        self.summed_loss = torch.compile(summed_loss, dynamic=False) if compiled else summed_loss
        return self

    def hidden(self, ids):
        """Hidden states after the final norm, `[B, T, hidden]`; T a multiple of the chunk length."""
        x, cos, sin = self.model.embed_tokens(ids), self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.run:
            x = layer(x, cos, sin)
        return rms_norm(x, self.model.norm.weight, self.config.eps)

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)

    def loss(self, ids, weights):
        """Mean cross-entropy of the next tokens; ids `[B, T + 1]`, weights `[B, T]`."""
        total = self.summed_loss(self.hidden(ids[:, :-1]), self.model.embed_tokens.weight, ids[:, 1:], weights)
        return total / weights.sum().clamp_min(1)

    def decoder(self, rows, length, device, dtype):
        """A step for `continue_rows`: one token of every row at a time, float32 logits of the next."""
        states = [layer.linear_attn.new_state(rows, device, dtype) if layer.is_linear
                  else layer.self_attn.new_state(rows, length, device, dtype) for layer in self.model.layers]

        def step(ids, position):
            return self.logits(self.step(ids, position, states)).float()

        return step

    def step(self, ids, position, states):
        """One token of each row: final hidden states `[B, hidden]`; changes the states."""
        x, cos, sin = self.model.embed_tokens(ids), self.cos[position], self.sin[position]
        for layer, state in zip(self.model.layers, states):
            n = layer.attention_input(x)
            attended = layer.linear_attn.step(n, state) if layer.is_linear else layer.self_attn.step(n, position, cos, sin, state)
            x = layer.feed_forward(x + attended)
        return rms_norm(x, self.model.norm.weight, self.config.eps)


class Head(nn.Module):
    """The multi-token-prediction head: a projection of embedding and hidden state, and one full-attention layer."""

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.fc = linear(2 * c.hidden_size, c.hidden_size, 0.6 * (2 * c.hidden_size) ** -0.5)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (Scale(torch.ones(c.hidden_size)) for _ in range(3))
        self.layers = nn.ModuleList([Layer(c, False)])

    def prepare(self, length, device):
        self.cos, self.sin = rotary(self.config, length + 16, device)
        return self

    def join(self, embedded, hidden):
        """The layer's input: embedding of the next token and hidden state of this one."""
        e = rms_norm(embedded, self.pre_fc_norm_embedding.weight, self.config.eps)
        return self.fc(torch.cat([e, rms_norm(hidden, self.pre_fc_norm_hidden.weight, self.config.eps)], -1))

    def unrolled_step(self, embedded, hidden, j, keys, values, mask):
        """Draft step j (from 0) of every position at once; the row of position p sits at p + j.

        embedded, hidden `[B, T, hidden]`. `keys` and `values` are lists: first the K/V of the true rows `[B, T, kv_heads, d]`, then
        those of each self-fed step, which only its own position sees. `mask` `[T, T]` is added to the scores of the true rows.
        Returns `(hidden, keys, values)` for the next step.
        """
        c, layer = self.config, self.layers[0]
        a, (B, T, _) = layer.self_attn, embedded.shape
        x = self.join(embedded, hidden)
        q, k, v, gate = a.project(layer.attention_input(x), self.cos[j : j + T], self.sin[j : j + T])
        keys, values = keys + [k], values + [v]
        q = q.view(B, T, c.kv_heads, c.heads // c.kv_heads, c.head_dim)
        scores = [torch.einsum("btgrd,bsgd->bgrts", q, keys[0]) + mask]
        scores += [torch.einsum("btgrd,btgd->bgrt", q, own)[..., None] for own in keys[1:]]
        p = torch.softmax(torch.cat(scores, -1).float() * c.head_dim**-0.5, -1).to(x.dtype)
        o = torch.einsum("bgrts,bsgd->btgrd", p[..., :T], values[0])
        for i, own in enumerate(values[1:]):
            o = o + p[..., T + i].permute(0, 3, 1, 2)[..., None] * own[:, :, :, None]
        x = layer.feed_forward(x + a.output(o.reshape(B, T, -1), gate))
        return rms_norm(x, self.norm.weight, c.eps), keys, values
