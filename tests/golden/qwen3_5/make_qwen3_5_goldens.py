#!/usr/bin/env python3
"""Tiny seeded Qwen3.5 checkpoints and float32 golden numbers.

Written from a description of the architecture.  Two independent
computations are compared for everything that is written:

  * the installed `transformers` classes, where a class exists, and
  * `Ref`, a plain torch implementation of the spec in this file (recurrent
    delta rule, gated attention, MoE, MTP head, DFlash / DFlash2 drafter).

No transformers class runs the MTP head (it drops every `mtp.*` tensor), so the
MTP numbers come from `Ref`; with mlx + mlx-vlm installed (`--mlx`) they are
checked against mlx-vlm's drafter, and MLX-layout copies of the checkpoints
are written (float32 and 4-bit) with the logits that mlx-lm computes from them.

    python make_qwen3_5_goldens.py --out DIR [--mlx]

Each variant folder holds
    config.json, model.safetensors      HF layout, float32, with mtp.* tensors
    goldens.safetensors, goldens.json   inputs, activations, logits, states
and, with --mlx, a sibling folder NAME-mlx holds
    f32/, 4bit/                         MLX layout, whole and 4-bit affine (group 32)
    mtp-drafter/, mtp-drafter-4bit/     stand-alone drafters
"""

import argparse
import json
import math
import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

torch.set_grad_enabled(False)
torch.set_default_dtype(torch.float32)
torch.set_num_threads(2)

VOCAB = 192
PLAIN = 176  # ids below this are ordinary tokens
IMAGE_ID, VIDEO_ID, VSTART_ID, VEND_ID, MASK_ID = 180, 181, 182, 183, 191
SEQ = 72  # longer than one 64-token chunk
TRACE_ROWS = 16
BLOCK_PROMPT = 16  # prompt length of the draft / verify / rollback case

TEXT = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    hidden_act="silu",
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    attention_bias=False,
    attention_dropout=0.0,
    attn_output_gate=True,
    full_attention_interval=4,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    linear_conv_kernel_dim=4,
    linear_key_head_dim=32,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    mamba_ssm_dtype="float32",
    mtp_num_hidden_layers=1,
    mtp_use_dedicated_embeddings=False,
    partial_rotary_factor=0.25,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=10000.0,
        partial_rotary_factor=0.25,
        mrope_section=[3, 3, 2],
        mrope_interleaved=True,
    ),
    eos_token_id=190,
)
VISION = dict(
    depth=2,
    hidden_size=16,
    hidden_act="gelu_pytorch_tanh",
    intermediate_size=24,
    num_heads=2,
    in_channels=3,
    patch_size=8,
    spatial_merge_size=2,
    temporal_patch_size=2,
    out_hidden_size=64,
    num_position_embeddings=36,
    deepstack_visual_indexes=[],
)


def text_config(kind, **over):
    cfg = json.loads(json.dumps(TEXT))
    if kind == "moe":
        cfg.update(
            model_type="qwen3_5_moe_text",
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            router_aux_loss_coef=0.001,
        )
    else:
        cfg.update(model_type="qwen3_5_text", intermediate_size=64)
    cfg.update(over)
    return cfg


# ---------------------------------------------------------------------------
# seeded weights
# ---------------------------------------------------------------------------


class Rng:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def normal(self, *shape, std=1.0, mean=0.0):
        return torch.randn(*shape, generator=self.g) * std + mean

    def uniform(self, *shape, lo=0.0, hi=1.0):
        return torch.rand(*shape, generator=self.g) * (hi - lo) + lo


def fill(name, shape, rng):
    """A value for one HF tensor.  Zero-centred norms get non-zero deviations
    so that a missing '+1' cannot go unnoticed."""
    leaf = name.rsplit(".", 2)[-2:]
    leaf = ".".join(leaf)
    if name.endswith("A_log"):
        return rng.uniform(*shape, lo=0.02, hi=1.5).log()
    if name.endswith("dt_bias"):
        return rng.normal(*shape, std=0.7)
    if name.endswith("linear_attn.norm.weight"):
        return rng.normal(*shape, std=0.2, mean=1.0)  # plain, not zero-centred
    if ".visual." in name and ("norm" in leaf) and leaf.endswith("weight"):
        return rng.normal(*shape, std=0.2, mean=1.0)
    if leaf.endswith("norm.weight") or "layernorm.weight" in leaf or "pre_fc_norm" in leaf:
        return rng.normal(*shape, std=0.25)
    if name.endswith(".bias"):
        return rng.normal(*shape, std=0.1)
    if "conv1d" in name:
        return rng.normal(*shape, std=0.45)
    if "embed_tokens" in name or "pos_embed" in name:
        return rng.normal(*shape, std=0.6)
    fan_in = math.prod(shape[1:]) if len(shape) != 3 or "experts" not in name else shape[-1]
    return rng.normal(*shape, std=1.0 / math.sqrt(fan_in))


def mtp_shapes(cfg):
    h, hd = cfg["hidden_size"], cfg["head_dim"]
    nq, nk = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    s = {
        "mtp.fc.weight": (h, 2 * h),
        "mtp.pre_fc_norm_embedding.weight": (h,),
        "mtp.pre_fc_norm_hidden.weight": (h,),
        "mtp.norm.weight": (h,),
    }
    p = "mtp.layers.0."
    s |= {
        p + "input_layernorm.weight": (h,),
        p + "post_attention_layernorm.weight": (h,),
        p + "self_attn.q_proj.weight": (2 * nq * hd, h),
        p + "self_attn.k_proj.weight": (nk * hd, h),
        p + "self_attn.v_proj.weight": (nk * hd, h),
        p + "self_attn.o_proj.weight": (h, nq * hd),
        p + "self_attn.q_norm.weight": (hd,),
        p + "self_attn.k_norm.weight": (hd,),
    }
    if "num_experts" in cfg:
        e, mi, si = cfg["num_experts"], cfg["moe_intermediate_size"], cfg["shared_expert_intermediate_size"]
        s |= {
            p + "mlp.gate.weight": (e, h),
            p + "mlp.experts.gate_up_proj": (e, 2 * mi, h),
            p + "mlp.experts.down_proj": (e, h, mi),
            p + "mlp.shared_expert.gate_proj.weight": (si, h),
            p + "mlp.shared_expert.up_proj.weight": (si, h),
            p + "mlp.shared_expert.down_proj.weight": (h, si),
            p + "mlp.shared_expert_gate.weight": (1, h),
        }
    else:
        i = cfg["intermediate_size"]
        s |= {
            p + "mlp.gate_proj.weight": (i, h),
            p + "mlp.up_proj.weight": (i, h),
            p + "mlp.down_proj.weight": (h, i),
        }
    return s


# ---------------------------------------------------------------------------
# plain torch reference (batch of one, no batch axis)
# ---------------------------------------------------------------------------


def rms1(x, w, eps):  # zero-centred: scale is 1 + w
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + w)


def rms0(x, w, eps):  # plain: scale is w
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rope_tables(pos, rot, theta, section=None):
    """pos: [T] or [3, T].  Returns cos, sin [T, rot]; half-split pairing."""
    inv = theta ** (-torch.arange(0, rot, 2).float() / rot)
    if pos.ndim == 1:
        ang = pos.float()[:, None] * inv
    else:
        ang3 = pos.float()[:, :, None] * inv  # [3, T, rot/2]
        ang = ang3[0].clone()
        for axis in (1, 2):
            for j in range(rot // 2):
                if j % 3 == axis and j < 3 * section[axis]:
                    ang[:, j] = ang3[axis, :, j]
    ang = torch.cat([ang, ang], -1)
    return ang.cos(), ang.sin()


def rotate(x, cos, sin):  # x [T, heads, d]; only the first cos.shape[-1] dims
    r = cos.shape[-1]
    a, b = x[..., :r], x[..., r:]
    half = torch.cat([-a[..., r // 2 :], a[..., : r // 2]], -1)
    return torch.cat([a * cos[:, None] + half * sin[:, None], b], -1)


def attend(q, k, v, scale, visible):
    """q [T,Hq,d], k/v [S,Hk,d], visible [T,S] bool -> [T, Hq*d]."""
    rep = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
    s = torch.einsum("thd,shd->hts", q, k) * scale
    s = s.masked_fill(~visible[None], float("-inf"))
    return torch.einsum("hts,shd->thd", s.softmax(-1), v).flatten(1)


def mlp(x, w, p):
    return (F.silu(x @ w[p + "gate_proj.weight"].T) * (x @ w[p + "up_proj.weight"].T)) @ w[p + "down_proj.weight"].T


class Ref:
    """Text model of the spec, straight from HF-layout weights."""

    def __init__(self, w, cfg, prefix, head):
        self.w, self.c, self.p = w, cfg, prefix
        self.embed = w[prefix + "embed_tokens.weight"]
        self.head = w[head] if head in w else self.embed
        self.kinds = cfg["layer_types"]
        rp = cfg["rope_parameters"]
        self.rot = int(cfg["head_dim"] * rp["partial_rotary_factor"])
        self.theta, self.section = rp["rope_theta"], rp["mrope_section"]

    # -- caches ------------------------------------------------------------
    def new_cache(self):
        return [dict() for _ in self.kinds]

    # -- blocks ------------------------------------------------------------
    def delta_net(self, x, p, st, trace=None):
        c, w, T = self.c, self.w, x.shape[0]
        hk, hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv, K = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
        qkv = x @ w[p + "in_proj_qkv.weight"].T
        z = x @ w[p + "in_proj_z.weight"].T
        b = x @ w[p + "in_proj_b.weight"].T
        a = x @ w[p + "in_proj_a.weight"].T
        hist = st.get("conv", torch.zeros(K - 1, qkv.shape[1]))
        win = torch.cat([hist, qkv])
        taps = w[p + "conv1d.weight"][:, 0]  # [C, K]; last tap = current token
        mixed = F.silu(sum(win[j : j + T] * taps[:, j] for j in range(K)))
        st["conv"] = win[-(K - 1) :].clone()
        st["conv_window"] = win.clone()
        q, k, v = mixed.split([hk * dk, hk * dk, hv * dv], -1)
        q, k, v = q.view(T, hk, dk), k.view(T, hk, dk), v.view(T, hv, dv)
        l2 = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)
        q, k = l2(q) * dk**-0.5, l2(k)
        q, k = q.repeat_interleave(hv // hk, 1), k.repeat_interleave(hv // hk, 1)
        g = -w[p + "A_log"].exp() * F.softplus(a + w[p + "dt_bias"])
        beta = b.sigmoid()
        S = st.get("S", torch.zeros(hv, dk, dv))
        outs, states = [], []
        for t in range(T):
            S = S * g[t].exp()[:, None, None]
            read = torch.einsum("hk,hkv->hv", k[t], S)
            d = beta[t][:, None] * (v[t] - read)
            S = S + k[t][:, :, None] * d[:, None, :]
            outs.append(torch.einsum("hk,hkv->hv", q[t], S))
            states.append(S)
        st["S"], st["S_each"] = S, torch.stack(states)
        core = torch.stack(outs)
        y = rms0(core, w[p + "norm.weight"], c["rms_norm_eps"]) * F.silu(z.view(T, hv, dv))
        if trace is not None:
            trace |= dict(conv_out=mixed, g=g, beta=beta, core=core.flatten(1), gated=y.flatten(1))
        return y.flatten(1) @ w[p + "out_proj.weight"].T

    def attention(self, x, p, st, pos, trace=None):
        c, w, T, hd = self.c, self.w, x.shape[0], self.c["head_dim"]
        qg = (x @ w[p + "q_proj.weight"].T).view(T, -1, 2 * hd)
        q, gate = qg[..., :hd], qg[..., hd:].flatten(1)  # per head: [query | gate]
        k = (x @ w[p + "k_proj.weight"].T).view(T, -1, hd)
        v = (x @ w[p + "v_proj.weight"].T).view(T, -1, hd)
        q, k = rms1(q, w[p + "q_norm.weight"], c["rms_norm_eps"]), rms1(k, w[p + "k_norm.weight"], c["rms_norm_eps"])
        cos, sin = rope_tables(pos, self.rot, self.theta, self.section)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if "k" in st:
            k, v = torch.cat([st["k"], k]), torch.cat([st["v"], v])
        st["k"], st["v"] = k, v
        S = k.shape[0]
        vis = torch.arange(S)[None] <= torch.arange(S - T, S)[:, None]
        o = attend(q, k, v, hd**-0.5, vis)
        if trace is not None:
            trace |= dict(q=q.flatten(1), gate=gate, attn=o)
        return (o * gate.sigmoid()) @ w[p + "o_proj.weight"].T

    def moe(self, x, p):
        c, w = self.c, self.w
        probs = (x @ w[p + "gate.weight"].T).softmax(-1)
        top, idx = probs.topk(c["num_experts_per_tok"], -1)
        top = top / top.sum(-1, keepdim=True)
        gu, dn, mi = w[p + "experts.gate_up_proj"], w[p + "experts.down_proj"], c["moe_intermediate_size"]
        y = torch.zeros_like(x)
        for t in range(x.shape[0]):
            for s, e in zip(top[t], idx[t]):
                h = gu[e] @ x[t]
                y[t] += s * (dn[e] @ (F.silu(h[:mi]) * h[mi:]))
        return y + (x @ w[p + "shared_expert_gate.weight"].T).sigmoid() * mlp(x, w, p + "shared_expert.")

    def ffn(self, x, p):
        return self.moe(x, p) if "num_experts" in self.c else mlp(x, self.w, p)

    def layer(self, x, p, kind, st, pos, trace=None):
        eps, w = self.c["rms_norm_eps"], self.w
        n = rms1(x, w[p + "input_layernorm.weight"], eps)
        if kind == "linear_attention":
            r = self.delta_net(n, p + "linear_attn.", st, trace)
        else:
            r = self.attention(n, p + "self_attn.", st, pos, trace)
        x = x + r
        return x + self.ffn(rms1(x, w[p + "post_attention_layernorm.weight"], eps), p + "mlp.")

    def run(self, ids=None, cache=None, pos=None, embeds=None, start=None, traces=None):
        """-> (hidden after final norm [T,H], list of layer outputs)."""
        x = self.embed[ids] if embeds is None else embeds
        cache = self.new_cache() if cache is None else cache
        start = cache[-1]["k"].shape[0] if start is None and "k" in cache[-1] else (start or 0)
        pos = torch.arange(x.shape[0]) + start if pos is None else pos
        hs = [x]
        for i, kind in enumerate(self.kinds):
            tr = None if traces is None else traces.setdefault(i, {})
            x = self.layer(x, f"{self.p}layers.{i}.", kind, cache[i], pos, tr)
            hs.append(x)
        return rms1(x, self.w[self.p + "norm.weight"], self.c["rms_norm_eps"]), hs

    def logits(self, h):
        return h @ self.head.T

    # -- MTP head ----------------------------------------------------------
    def mtp(self, tokens, hidden, st, pos):
        """tokens [T] are the NEXT tokens, hidden [T,H] the post-final-norm target
        hidden (or the head's own output when chaining)."""
        eps, w = self.c["rms_norm_eps"], self.w
        e = rms1(self.embed[tokens], w["mtp.pre_fc_norm_embedding.weight"], eps)
        h = rms1(hidden, w["mtp.pre_fc_norm_hidden.weight"], eps)
        x = torch.cat([e, h], -1) @ w["mtp.fc.weight"].T
        x = self.layer(x, "mtp.layers.0.", "full_attention", st, pos)
        return rms1(x, w["mtp.norm.weight"], eps)

    def mtp_chain(self, st, tok, hidden, pos, n):
        """n further draft tokens, feeding the head's own output back."""
        toks, outs = [], []
        for i in range(n):
            hidden = self.mtp(torch.tensor([tok]), hidden, st, torch.tensor([pos + i]))
            tok = int(self.logits(hidden).argmax(-1))
            toks.append(tok)
            outs.append(hidden)
        return toks, torch.cat(outs) if outs else torch.zeros(0, self.c["hidden_size"])


def rollback(before, after, keep, n):
    """State after keeping `keep` of the `n` block tokens: the three recipes of
    the spec reduce to picking a window, a recorded state and a KV length."""
    new = []
    for b, a in zip(before, after):
        if "S" in a:
            K1 = a["conv"].shape[0]
            new.append(
                dict(
                    conv=a["conv_window"][keep : keep + K1].clone(),
                    S=a["S_each"][keep - 1].clone() if keep else b["S"].clone(),
                )
            )
        else:
            m = a["k"].shape[0] - (n - keep)
            new.append(dict(k=a["k"][:m].clone(), v=a["v"][:m].clone()))
    return new


def clone_cache(c):
    return [{k: v.clone() for k, v in d.items()} for d in c]


# ---------------------------------------------------------------------------
# DFlash drafters (plain torch)
# ---------------------------------------------------------------------------


class DFlashRef:
    def __init__(self, w, cfg, embed, head):
        self.w, self.c, self.embed, self.head = w, cfg, embed, head
        self.d = cfg["dflash_config"]
        self.v2 = "selector_rank" in self.d

    def new_cache(self):
        return [dict(n=0) for _ in range(self.c["num_hidden_layers"])]

    def conv(self, x, dyn, base):
        """x [L,H], dyn [L,K,G] per-group dynamic taps, base [K,H]."""
        g = self.d["conv_group_size"]
        out = torch.zeros_like(x)
        for j in range(base.shape[0]):
            shifted = x if j == 0 else torch.cat([torch.zeros(j, x.shape[1]), x[:-j]])
            out = out + (base[j] + dyn[:, j].repeat_interleave(g, -1)) * shifted
        return out

    def attn(self, x, ctx, p, st, i):
        c, w, hd, L = self.c, self.w, self.c["head_dim"], x.shape[0]
        proj = lambda t, n: (t @ w[p + n].T).view(t.shape[0], -1, hd)
        nrm = lambda t, n: rms0(t, w[p + n], c["rms_norm_eps"])
        theta = c["rope_parameters"]["rope_theta"]
        pos_c = torch.arange(st["n"], st["n"] + ctx.shape[0])
        pos_q = torch.arange(L) + st["n"] + ctx.shape[0]
        tab = lambda ps: rope_tables(ps, hd, theta)
        q = rotate(nrm(proj(x, "q_proj.weight"), "q_norm.weight"), *tab(pos_q))
        kc = rotate(nrm(proj(ctx, "k_proj.weight"), "k_norm.weight"), *tab(pos_c))
        kq = rotate(nrm(proj(x, "k_proj.weight"), "k_norm.weight"), *tab(pos_q))
        vc, vq = proj(ctx, "v_proj.weight"), proj(x, "v_proj.weight")
        st["k"] = torch.cat([st["k"], kc]) if "k" in st else kc
        st["v"] = torch.cat([st["v"], vc]) if "v" in st else vc
        st["n"] += ctx.shape[0]
        k, v = torch.cat([st["k"], kq]), torch.cat([st["v"], vq])
        vis = torch.ones(L, k.shape[0], dtype=torch.bool)
        return attend(q, k, v, hd**-0.5, vis) @ w[p + "o_proj.weight"].T

    def hidden(self, block, feats, cache):
        c, w, eps = self.c, self.w, self.c["rms_norm_eps"]
        x = self.embed[block]
        ctx = rms0(feats @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
        for i, st in enumerate(cache):
            p = f"layers.{i}."
            n = rms0(x, w[p + "input_layernorm.weight"], eps)
            if self.v2:
                G = x.shape[1] // self.d["conv_group_size"]
                K = self.d["conv_kernel_size"]
                dyn = (n @ w[p + "attention_conv.kernel_projection.weight"].T).view(-1, 2, K, G)
                base = w[p + "attention_conv.base_kernel"]
                y = self.attn(self.conv(n, dyn[:, 0], base[0]), ctx, p + "self_attn.", st, i)
                x = x + self.conv(y, dyn[:, 1], base[1])
                n = rms0(x, w[p + "post_attention_layernorm.weight"], eps)
                dyn = (n @ w[p + "mlp_conv.kernel_projection.weight"].T).view(-1, 2, K, G)
                base = w[p + "mlp_conv.base_kernel"]
                x = x + self.conv(mlp(self.conv(n, dyn[:, 0], base[0]), w, p + "mlp."), dyn[:, 1], base[1])
            else:
                x = x + self.attn(n, ctx, p + "self_attn.", st, i)
                x = x + mlp(rms0(x, w[p + "post_attention_layernorm.weight"], eps), w, p + "mlp.")
        return rms0(x, w["norm.weight"], eps)

    def draft(self, bonus, feats, cache, block):
        mask = self.d["mask_token_id"]
        h = self.hidden(torch.tensor([bonus] + [mask] * (block - 1)), feats, cache)[1:]
        lg = h @ self.head.T
        if not self.v2:
            return lg.argmax(-1).tolist(), h, lg
        sel, hp, prev, path = "candidate_selector.", None, bonus, []
        hp = h @ self.w[sel + "hidden_projection.weight"].T
        for t in range(block - 1):
            cand = lg[t].topk(self.d["selector_top_k"]).indices
            edge = (self.w[sel + "predecessor_codebook"][prev] * hp[t] * self.w[sel + "successor_codebook"][cand]).sum(-1)
            prev = int(cand[(lg[t][cand] + edge).argmax()])
            path.append(prev)
        return path, h, lg


def dflash_config(v2):
    d = dict(mask_token_id=MASK_ID, target_layer_ids=[0, 2], block_size=6)
    if v2:
        d |= dict(conv_group_size=16, conv_kernel_size=2, selector_rank=8, selector_top_k=5)
    return dict(
        architectures=["DFlash2DraftModel" if v2 else "DFlashDraftModel"],
        model_type="qwen3",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        rope_theta=10000.0,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        attention_bias=False,
        tie_word_embeddings=False,
        num_target_layers=4,
        block_size=6,
        is_causal=False,
        layer_types=["full_attention"] * 2,
        dflash_config=d,
    )


def dflash_weights(cfg, rng):
    h, hd, i = cfg["hidden_size"], cfg["head_dim"], cfg["intermediate_size"]
    nq, nk, d = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["dflash_config"]
    s = {"fc.weight": (h, h * len(d["target_layer_ids"])), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for l in range(cfg["num_hidden_layers"]):
        p = f"layers.{l}."
        s |= {
            p + "input_layernorm.weight": (h,),
            p + "post_attention_layernorm.weight": (h,),
            p + "self_attn.q_proj.weight": (nq * hd, h),
            p + "self_attn.k_proj.weight": (nk * hd, h),
            p + "self_attn.v_proj.weight": (nk * hd, h),
            p + "self_attn.o_proj.weight": (h, nq * hd),
            p + "self_attn.q_norm.weight": (hd,),
            p + "self_attn.k_norm.weight": (hd,),
            p + "mlp.gate_proj.weight": (i, h),
            p + "mlp.up_proj.weight": (i, h),
            p + "mlp.down_proj.weight": (h, i),
        }
        if "selector_rank" in d:
            K, G = d["conv_kernel_size"], h // d["conv_group_size"]
            for n in ("attention_conv", "mlp_conv"):
                s |= {p + n + ".base_kernel": (2, K, h), p + n + ".kernel_projection.weight": (2 * K * G, h)}
    if "selector_rank" in d:
        r = d["selector_rank"]
        s |= {
            "candidate_selector.predecessor_codebook": (VOCAB, r),
            "candidate_selector.successor_codebook": (VOCAB, r),
            "candidate_selector.hidden_projection.weight": (r, h),
        }
    out = {}
    for n, shape in sorted(s.items()):
        if len(shape) == 1:
            out[n] = rng.normal(*shape, std=0.2, mean=1.0)  # plain RMSNorm weights
        elif "base_kernel" in n:
            out[n] = rng.normal(*shape, std=0.3)
        elif "codebook" in n:
            out[n] = rng.normal(*shape, std=0.8)
        else:
            out[n] = rng.normal(*shape, std=1.0 / math.sqrt(shape[-1]))
    return out


# ---------------------------------------------------------------------------
# building one variant
# ---------------------------------------------------------------------------


def close(what, a, b, report, tol=2e-4):
    d = (a.float() - b.float()).abs().max().item()
    report[what] = d
    status = "ok " if d <= tol else "BAD"
    print(f"  {status} {what:<52} max|diff| {d:.2e}")
    if d > tol:
        raise SystemExit(f"{what}: {d}")


def to_rows(image, patch, merge, tps):
    """[3,H,W] -> [(H/p)*(W/p), 3*tps*p*p] in merge-block order."""
    c, H, W = image.shape
    gh, gw = H // patch, W // patch
    x = image.view(c, gh // merge, merge, patch, gw // merge, merge, patch)
    x = x.permute(1, 4, 2, 5, 0, 3, 6)  # bh bw mh mw c p p
    x = x.reshape(gh * gw, c, 1, patch, patch).expand(-1, -1, tps, -1, -1)
    return x.reshape(gh * gw, -1).contiguous(), (1, gh, gw)


def smart_resize(h, w, factor, lo, hi):
    if max(h, w) / min(h, w) > 200:
        raise ValueError("aspect ratio above 200")
    H, W = round(h / factor) * factor, round(w / factor) * factor
    if H * W > hi:
        s = math.sqrt(h * w / hi)
        H, W = (max(factor, math.floor(v / s / factor) * factor) for v in (h, w))
    elif H * W < lo:
        s = math.sqrt(lo / (h * w))
        H, W = (math.ceil(v * s / factor) * factor for v in (h, w))
    return H, W


def mrope_positions(ids, grids, merge):
    """[3, T] positions and the decode delta, from the spec."""
    pos, cur, i, g = [], 0, 0, 0
    while i < len(ids):
        if ids[i] == IMAGE_ID:
            t, h, w = grids[g]
            g += 1
            h, w = h // merge, w // merge
            for a in range(t):
                for y in range(h):
                    for x in range(w):
                        pos.append((cur + a, cur + y, cur + x))
            i += t * h * w
            cur += max(h, w)
        else:
            pos.append((cur,) * 3)
            cur += 1
            i += 1
    p = torch.tensor(pos).T
    return p, int(p.max()) + 1 - len(ids)


def build(kind, wrap, tied, seed, out, report):
    import transformers as tf

    moe = kind == "moe"
    tcfg = text_config(kind, tie_word_embeddings=tied)
    suf = "Moe" if moe else ""
    if wrap:
        base = "qwen3_5_moe" if moe else "qwen3_5"
        cfg = dict(
            architectures=[f"Qwen3_5{suf}ForConditionalGeneration"],
            model_type=base,
            language_model_only=False,
            image_token_id=IMAGE_ID,
            video_token_id=VIDEO_ID,
            vision_start_token_id=VSTART_ID,
            vision_end_token_id=VEND_ID,
            tie_word_embeddings=tied,
            text_config=tcfg,
            vision_config=dict(VISION, model_type=base + ("_vision" if moe else "")),
        )
        conf = getattr(tf, f"Qwen3_5{suf}Config")(**json.loads(json.dumps(cfg)))
        model = getattr(tf, f"Qwen3_5{suf}ForConditionalGeneration")(conf)
        prefix, head = "model.language_model.", "lm_head.weight"
    else:
        cfg = dict(tcfg, architectures=[f"Qwen3_5{suf}ForCausalLM"])
        conf = getattr(tf, f"Qwen3_5{suf}TextConfig")(**json.loads(json.dumps(tcfg)))
        model = getattr(tf, f"Qwen3_5{suf}ForCausalLM")(conf)
        prefix, head = "model.", "lm_head.weight"
    model.eval()

    rng = Rng(seed)
    weights = {}
    for n, prm in sorted(dict(model.named_parameters()).items()):
        prm.copy_(fill(n, tuple(prm.shape), rng))
        weights[n] = prm.detach().clone().contiguous()
    for n, shape in sorted(mtp_shapes(tcfg).items()):
        weights[n] = fill(n, shape, rng)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(cfg, indent=2, sort_keys=True) + "\n")

    # the saved folder must load through from_pretrained and ignore mtp.*
    again = type(model).from_pretrained(str(out), dtype=torch.float32, attn_implementation="eager").eval()
    for n, prm in again.named_parameters():
        assert torch.equal(prm, weights[n]), n
    model = again

    ref = Ref(weights, tcfg, prefix, head if not tied else "(tied)")
    ids = torch.randint(0, PLAIN, (SEQ,), generator=torch.Generator().manual_seed(seed + 1))
    G, meta = {"input_ids": ids}, {}

    # ---- whole sequence and step by step ---------------------------------
    o = model(ids[None], output_hidden_states=True, use_cache=True)
    full = o.logits[0]
    traces = {}
    cache = ref.new_cache()
    h_ref, hs_ref = ref.run(ids, cache, traces=traces)
    close("whole-sequence logits, transformers vs Ref", full, ref.logits(h_ref), report)
    for i in range(5):
        mine = h_ref if i == 4 else hs_ref[i]  # HF's last entry is post-final-norm
        close(f"hidden_states[{i}], transformers vs Ref", o.hidden_states[i][0], mine, report)
    step, kv = [], None
    for t in range(SEQ):
        so = model(ids[None, t : t + 1], cache=kv, use_cache=True)
        kv = so.cache
        step.append(so.logits[0, 0])
    step = torch.stack(step)
    close("step-by-step vs whole-sequence logits (transformers)", step, full, report)
    st, sr = ref.new_cache(), []
    for t in range(SEQ):
        sr.append(ref.logits(ref.run(ids[t : t + 1], st)[0])[0])
    close("step-by-step vs whole-sequence logits (Ref)", torch.stack(sr), full, report)
    for i in range(3):
        close(f"layer {i} recurrent state, transformers cache vs Ref", kv.get_recurrent_state(i, 0)[0], cache[i]["S"], report)
        close(f"layer {i} conv state, transformers cache vs Ref", kv.get_conv_state(i, 0)[0].T[-3:], cache[i]["conv"], report)
    G |= {
        "logits_full": full,
        "logits_step": step,
        "final_hidden": h_ref,
        "layer_outputs": torch.stack(hs_ref),
    }
    for i in range(3):
        G[f"state.layer{i}.recurrent"] = cache[i]["S"]
        G[f"state.layer{i}.conv"] = cache[i]["conv"]
    for n, v in traces[0].items():
        G[f"trace.layer0.{n}"] = v[:TRACE_ROWS]
    for n, v in traces[3].items():
        G[f"trace.layer3.{n}"] = v[:TRACE_ROWS]

    # ---- greedy continuation ---------------------------------------------
    P = ids[:BLOCK_PROMPT]
    cache = ref.new_cache()
    hp, _ = ref.run(P, cache)
    bonus = int(ref.logits(hp[-1]).argmax())
    greedy, c2, tok = [], clone_cache(cache), bonus
    for _ in range(12):
        greedy.append(tok)
        tok = int(ref.logits(ref.run(torch.tensor([tok]), c2)[0])[0].argmax())
    gen = model.generate(P[None], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert gen[0, BLOCK_PROMPT:].tolist() == greedy, "greedy continuation differs"
    meta["greedy"] = dict(prompt=P.tolist(), continuation=greedy)

    # ---- MTP: prefill, chain, verify, partial acceptance -----------------
    shifted = torch.cat([P[1:], torch.tensor([bonus])])
    ms = {}
    mh = ref.mtp(shifted, hp, ms, torch.arange(BLOCK_PROMPT))
    d0 = int(ref.logits(mh[-1]).argmax())
    draft_state = {k: v.clone() for k, v in ms.items()}
    rest, chain_h = ref.mtp_chain(draft_state, d0, mh[-1:], BLOCK_PROMPT, 2)
    drafts = [d0] + rest
    G |= {
        "mtp.prefill_tokens": shifted,
        "mtp.prefill_target_hidden": hp,
        "mtp.prefill_hidden": mh,
        "mtp.prefill_logits": ref.logits(mh),
        "mtp.chain_hidden": torch.cat([mh[-1:], chain_h]),
        "mtp.chain_logits": ref.logits(torch.cat([mh[-1:], chain_h])),
    }
    # random weights never agree by themselves, so the acceptance case uses two
    # right drafts, then a wrong one
    fake = [greedy[1], greedy[2], (greedy[3] + 1) % PLAIN]
    block = torch.tensor([bonus] + fake)
    before = clone_cache(cache)
    vh, _ = ref.run(block, cache)
    vt = ref.logits(vh).argmax(-1).tolist()
    acc = next((i for i, (a, b) in enumerate(zip(fake, vt)) if a != b), len(fake))
    assert acc == 2 and vt[:3] == greedy[1:4]
    kept = rollback(before, cache, acc + 1, len(block))
    truth = ref.new_cache()
    ref.run(torch.cat([P, block[: acc + 1]]), truth)
    for i in range(4):
        for n in ("S", "conv", "k", "v"):
            if n in kept[i]:
                close(f"rolled-back layer {i} {n} vs fresh prefill", kept[i][n], truth[i][n], report)
    # head cache after acceptance: every accepted pair re-run with the true
    # target hidden ("exact" policy of the spec)
    ex = {k: v.clone() for k, v in ms.items()}
    toks = torch.tensor(fake[:acc] + [vt[acc]])
    eh = ref.mtp(toks, vh[: acc + 1], ex, torch.arange(acc + 1) + BLOCK_PROMPT)
    G |= {
        "verify.block": block,
        "verify.hidden": vh,
        "verify.logits": ref.logits(vh),
        "verify.mtp_next_hidden_exact": eh,
        "verify.mtp_next_logits_exact": ref.logits(eh),
    }
    for i in range(3):
        G[f"verify.layer{i}.recurrent_each"] = cache[i]["S_each"]
        G[f"verify.layer{i}.conv_window"] = cache[i]["conv_window"]
        G[f"verify.layer{i}.recurrent_kept"] = kept[i]["S"]
        G[f"verify.layer{i}.conv_kept"] = kept[i]["conv"]
    meta["mtp"] = dict(bonus=bonus, drafts_block_size_4=drafts, verify_drafts=fake, target_tokens=vt, accepted=acc, new_tokens=vt[: acc + 1])

    # ---- image prompt -----------------------------------------------------
    if wrap:
        img = torch.rand(3, 32, 48, generator=torch.Generator().manual_seed(seed + 2))
        rows, grid = to_rows(img * 2 - 1, VISION["patch_size"], 2, 2)
        n = grid[1] * grid[2] // 4
        mid = ids[:5].tolist() + [VSTART_ID] + [IMAGE_ID] * n + [VEND_ID] + ids[5:12].tolist()
        mids = torch.tensor(mid)
        types = (mids == IMAGE_ID).int()
        pos, delta = mrope_positions(mid, [grid], 2)
        hpos, hdelta = model.model.get_rope_index(mids[None], types[None], torch.tensor([grid]))
        assert torch.equal(pos, hpos[:, 0]) and int(hdelta) == delta
        vis = model.model.visual(rows, torch.tensor([grid]))
        close("vision tower, transformers vs Ref", vis.pooler_output, vision_ref(weights, rows, grid), report)
        vo = model(mids[None], pixel_values=rows, image_grid_thw=torch.tensor([grid]), mm_token_type_ids=types[None])
        emb = ref.embed[mids].clone()
        emb[mids == IMAGE_ID] = vis.pooler_output
        close("image-prompt logits, transformers vs Ref", vo.logits[0], ref.logits(ref.run(embeds=emb, pos=pos)[0]), report)
        G |= {
            "image.pixels": img,
            "image.pixel_rows": rows,
            "image.grid_thw": torch.tensor([grid]),
            "image.vision_last_hidden": vis.last_hidden_state,
            "image.vision_merged": vis.pooler_output,
            "image.input_ids": mids,
            "image.mrope_positions": pos,
            "image.logits": vo.logits[0],
        }
        meta["image"] = dict(rope_delta=delta, normalisation="(x - 0.5) / 0.5")
        cases = [(480, 640), (1080, 1920), (37, 53), (224, 224), (4000, 6000), (100, 19000)]
        meta["smart_resize"] = [
            dict(height=a, width=b, factor=32, min_pixels=65536, max_pixels=16777216, result=smart_resize(a, b, 32, 65536, 16777216))
            for a, b in cases
        ]
        check_resize(cases)

    G = {k: v.contiguous().clone() for k, v in G.items()}
    save_file(G, str(out / "goldens.safetensors"))
    return weights, cfg, tcfg, ref, G, meta


def check_resize(cases):
    try:
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize as theirs
    except ImportError:  # needs torchvision; the PIL twin holds the same function
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as theirs

    for a, b in cases:
        assert smart_resize(a, b, 32, 65536, 16777216) == theirs(a, b, 32, 65536, 16777216), (a, b)


def vision_ref(w, rows, grid):
    v, p = VISION, "model.visual."
    H, nh = v["hidden_size"], v["num_heads"]
    t, gh, gw = grid
    m, side = v["spatial_merge_size"], int(v["num_position_embeddings"] ** 0.5)
    x = rows @ w[p + "patch_embed.proj.weight"].reshape(H, -1).T + w[p + "patch_embed.proj.bias"]
    order = [
        (bh * m + ih, bw * m + iw) for bh in range(gh // m) for bw in range(gw // m) for ih in range(m) for iw in range(m)
    ]
    table = w[p + "pos_embed.weight"].view(side, side, H)
    pe = []
    for r, c in order:
        fy, fx = r * (side - 1) / max(gh - 1, 1), c * (side - 1) / max(gw - 1, 1)
        y0, x0 = int(fy), int(fx)
        y1, x1 = min(y0 + 1, side - 1), min(x0 + 1, side - 1)
        dy, dx = fy - y0, fx - x0
        pe.append(
            table[y0, x0] * (1 - dy) * (1 - dx) + table[y0, x1] * (1 - dy) * dx + table[y1, x0] * dy * (1 - dx) + table[y1, x1] * dy * dx
        )
    x = x + torch.stack(pe)
    hd = H // nh
    inv = 10000.0 ** (-torch.arange(0, hd // 2, 2).float() / (hd // 2))
    rc = torch.tensor(order).float()
    ang = torch.cat([rc[:, :1] * inv, rc[:, 1:] * inv], -1)
    ang = torch.cat([ang, ang], -1)
    cos, sin = ang.cos(), ang.sin()
    ln = lambda y, n: F.layer_norm(y, (y.shape[-1],), w[n + ".weight"], w[n + ".bias"], 1e-6)
    lin = lambda y, n: y @ w[n + ".weight"].T + w[n + ".bias"]
    for i in range(v["depth"]):
        b = f"{p}blocks.{i}."
        q, k, u = lin(ln(x, b + "norm1"), b + "attn.qkv").view(-1, 3, nh, hd).unbind(1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = attend(q, k, u, hd**-0.5, torch.ones(len(q), len(q), dtype=torch.bool))
        x = x + lin(a, b + "attn.proj")
        x = x + lin(F.gelu(lin(ln(x, b + "norm2"), b + "mlp.linear_fc1"), approximate="tanh"), b + "mlp.linear_fc2")
    y = ln(x, p + "merger.norm").view(-1, H * m * m)
    return lin(F.gelu(lin(y, p + "merger.linear_fc1")), p + "merger.linear_fc2")


# ---------------------------------------------------------------------------
# MLX copies and cross-checks
# ---------------------------------------------------------------------------

SHIFTED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)


def to_mlx_layout(weights, tied):
    """HF -> MLX names and layouts, written from the spec (not a library call)."""
    out = {}
    for k, v in weights.items():
        if k.startswith("mtp."):
            continue
        if tied and k == "lm_head.weight":
            continue
        if k.startswith("model.language_model."):
            n = "language_model.model." + k[len("model.language_model.") :]
        elif k.startswith("model.visual."):
            n = "vision_tower." + k[len("model.visual.") :]
        else:
            n = "language_model." + k
        if n.endswith("conv1d.weight"):
            v = v.permute(0, 2, 1)  # [C,1,K] -> [C,K,1]
        if n.endswith("patch_embed.proj.weight"):
            v = v.permute(0, 2, 3, 4, 1)  # NCDHW -> NDHWC
        if n.startswith("language_model.") and n.endswith(SHIFTED):
            v = v + 1.0
        if n.endswith("experts.gate_up_proj"):
            half = v.shape[1] // 2
            b = n[: -len("experts.gate_up_proj")] + "switch_mlp."
            out[b + "gate_proj.weight"] = v[:, :half].contiguous()
            out[b + "up_proj.weight"] = v[:, half:].contiguous()
            continue
        if n.endswith("experts.down_proj"):
            n = n[: -len("experts.down_proj")] + "switch_mlp.down_proj.weight"
        out[n] = v.contiguous()
    return out


def to_drafter_layout(weights):
    out = {}
    for k, v in weights.items():
        if not k.startswith("mtp."):
            continue
        n = k[4:]
        if v.ndim == 1:
            v = v + 1.0  # every 1-D tensor of the head is a zero-centred norm
        if n.endswith("experts.gate_up_proj"):
            half = v.shape[1] // 2
            b = n[: -len("experts.gate_up_proj")] + "switch_mlp."
            out[b + "gate_proj.weight"], out[b + "up_proj.weight"] = v[:, :half].contiguous(), v[:, half:].contiguous()
            continue
        if n.endswith("experts.down_proj"):
            n = n[: -len("experts.down_proj")] + "switch_mlp.down_proj.weight"
        out[n] = v.contiguous()
    return out


def mlx_side(out, weights, cfg, tcfg, ref, G, meta, report):
    import mlx.core as mx
    import numpy as np
    from mlx_lm.utils import load_model, quantize_model, save_model

    tied = tcfg["tie_word_embeddings"]
    top = out.parent / f"{out.name}-mlx"
    shutil.rmtree(top, ignore_errors=True)
    d = top / "f32"
    d.mkdir(parents=True)
    save_file(to_mlx_layout(weights, tied), str(d / "model.safetensors"), metadata={"format": "mlx"})
    mcfg = cfg
    if "text_config" not in cfg:  # mlx-lm picks its module by top-level model_type
        mcfg = dict(cfg, model_type="qwen3_5_moe" if "num_experts" in cfg else "qwen3_5")
    (d / "config.json").write_text(json.dumps(mcfg, indent=2, sort_keys=True) + "\n")

    npf = lambda a: torch.from_numpy(np.array(a.astype(mx.float32)))
    x = mx.array(G["input_ids"].numpy())[None]
    for src, what in ((d, "mlx layout"), (out, "HF layout")):
        try:
            model, conf = load_model(src if src == d else hf_as_mlx(out, mcfg))
        finally:
            shutil.rmtree(out / "_tmp", ignore_errors=True)
        model.eval()
        lg = npf(model(x)[0])
        close(f"mlx-lm logits from {what} vs transformers", lg, G["logits_full"], report, 5e-4)
        cache = model.make_cache()
        lg = torch.cat([npf(model(x[:, t : t + 1], cache=cache)[0]) for t in range(SEQ)])
        close(f"mlx-lm step-by-step logits from {what}", lg, G["logits_full"], report, 5e-4)
    # mlx-lm keeps [Dv, Dk] states: the transpose of the spec's [Dk, Dv]
    close("mlx-lm layer 0 state transposed vs Ref", npf(cache[0][1])[0].transpose(1, 2), G["state.layer0.recurrent"], report, 5e-4)
    close("mlx-lm layer 0 conv state vs Ref", npf(cache[0][0])[0], G["state.layer0.conv"], report, 5e-4)

    q = top / "4bit"
    q.mkdir()
    qmodel, qconf = quantize_model(model, dict(mcfg), 32, 4, quant_predicate=getattr(model, "quant_predicate", None))
    save_model(q, qmodel, donate_model=False)
    (q / "config.json").write_text(json.dumps(qconf, indent=2, sort_keys=True) + "\n")
    qm, _ = load_model(q)
    qm.eval()
    lg = npf(qm(x)[0])
    save_file({"input_ids": G["input_ids"].clone(), "logits": lg.contiguous()}, str(q / "goldens.safetensors"))
    meta["mlx_4bit"] = dict(
        quantization=qconf["quantization"],
        max_abs_diff_from_float=float((lg - G["logits_full"]).abs().max()),
        note="logits computed by mlx-lm on CPU in float32 activations",
    )

    # MTP drafter folder and mlx-vlm cross-check
    dd = top / "mtp-drafter"
    dd.mkdir()
    save_file(to_drafter_layout(weights), str(dd / "model.safetensors"), metadata={"format": "mlx"})
    dcfg = dict(model_type="qwen3_5_mtp", block_size=3, text_config=tcfg, tie_word_embeddings=tied)
    (dd / "config.json").write_text(json.dumps(dcfg, indent=2, sort_keys=True) + "\n")
    mtp_vs_mlx_vlm(dd, d, weights, mcfg, G, meta, report, npf)
    quantized_drafter(dd, top / "mtp-drafter-4bit", d, mcfg, G, meta, npf)


def quantized_drafter(dd, qd, d, mcfg, G, meta, npf):
    """4-bit head over the float target: its own seed hidden and drafts."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_vlm.speculative.drafters.qwen3_5_mtp import Model, ModelConfig

    dcfg = json.loads((dd / "config.json").read_text())
    m = Model(ModelConfig.from_dict(json.loads(json.dumps(dcfg))))
    m.load_weights(str(dd / "model.safetensors"))
    keep = lambda p, mod: hasattr(mod, "to_quantized") and not p.endswith("mlp.gate")
    nn.quantize(m, group_size=32, bits=4, class_predicate=keep)
    qd.mkdir()
    mx.save_safetensors(str(qd / "model.safetensors"), dict(tree_flatten(m.parameters())), metadata={"format": "mlx"})
    dcfg |= dict(quantization=dict(group_size=32, bits=4, mode="affine"))
    dcfg["quantization_config"] = dcfg["quantization"]
    (qd / "config.json").write_text(json.dumps(dcfg, indent=2, sort_keys=True) + "\n")
    m.eval()
    target = vlm_target(mcfg, load_file(str(d / "model.safetensors")))
    m.reset(target)
    P = mx.array(G["input_ids"][:BLOCK_PROMPT].numpy())[None]
    hid = mx.array(G["mtp.prefill_target_hidden"].numpy())[None]
    m.prefill_from_target_hidden(P, hid, meta["mtp"]["bonus"], None, greedy=True)
    seed = npf(m._seed_hidden[0])
    dr = m.draft_block(meta["mtp"]["bonus"], hid[:, -1:], None, 4, None, greedy=True)[0].tolist()
    save_file({"seed_hidden": seed.contiguous()}, str(qd / "goldens.safetensors"))
    meta["mtp_drafter_4bit"] = dict(drafts_block_size_4=dr, seed_max_abs_diff=float((seed - G["mtp.prefill_hidden"][-1:]).abs().max()))


def hf_as_mlx(out, mcfg):
    t = out / "_tmp"
    t.mkdir(exist_ok=True)
    shutil.copy(out / "model.safetensors", t / "model.safetensors")
    (t / "config.json").write_text(json.dumps(mcfg))
    return t


def vlm_target(mcfg, layout):
    """mlx-vlm language model built by hand, so that no tokenizer is needed."""
    import importlib

    import mlx.core as mx
    from mlx.utils import tree_flatten

    name = mcfg["model_type"] if "text_config" in mcfg else ("qwen3_5_moe_text" if "num_experts" in mcfg else "qwen3_5_text")
    mod = importlib.import_module(f"mlx_vlm.models.{name}")
    c = json.loads(json.dumps(mcfg))
    if "text_config" not in c:
        c["model_type"] = name
    conf = mod.ModelConfig.from_dict(c)
    model = mod.Model(conf)
    w = {k: mx.array(v.numpy()) for k, v in layout.items()}
    have = {k for k, _ in tree_flatten(model.parameters())}
    model.load_weights([(k, v) for k, v in model.sanitize(w).items() if k in have], strict=False)
    model.eval()
    return model


def mtp_vs_mlx_vlm(dd, d, weights, mcfg, G, meta, report, npf):
    import mlx.core as mx
    from mlx_vlm.speculative.drafters.qwen3_5_mtp import Model, ModelConfig

    target = vlm_target(mcfg, load_file(str(d / "model.safetensors")))
    lm = target.language_model
    dcfg = json.loads((dd / "config.json").read_text())
    # the drafter must load from its own folder and from raw mtp.* tensors alike
    for src, what in ((load_file(str(dd / "model.safetensors")), "drafter folder"), ({k: v for k, v in weights.items() if k.startswith("mtp.")}, "raw mtp.* tensors")):
        m = Model(ModelConfig.from_dict(json.loads(json.dumps(dcfg))))
        m.load_weights(list(m.sanitize({k: mx.array(v.numpy()) for k, v in src.items()}).items()))
        m.eval()
        m.reset(target)
        P = mx.array(G["input_ids"][:BLOCK_PROMPT].numpy())[None]
        cache = lm.make_cache()
        o = lm(P, cache=cache, return_hidden=True)
        hid = o.hidden_states[-1]
        close(f"mlx-vlm MTP input hidden = post-final-norm ({what})", npf(hid[0]), G["mtp.prefill_target_hidden"], report, 5e-4)
        m.prefill_from_target_hidden(P, hid, meta["mtp"]["bonus"], None, greedy=True)
        close(f"mlx-vlm MTP seed hidden ({what})", npf(m._seed_hidden[0]), G["mtp.prefill_hidden"][-1:], report, 5e-4)
        dr = m.draft_block(meta["mtp"]["bonus"], hid[:, -1:], None, 4, None, greedy=True)
        assert dr[0].tolist() == meta["mtp"]["drafts_block_size_4"], (dr.tolist(), meta["mtp"])
    print("  ok  mlx-vlm draft_block(block_size=4) gives the same three drafts")

    # verify block through mlx-vlm's own verifier, partial commit
    blk = mx.array(G["verify.block"].numpy())[None]
    vo = lm.speculative_verify_hidden(blk, cache)
    close("mlx-vlm verify hidden", npf(vo[0][0]), G["verify.hidden"], report, 2e-3)
    lm.rollback_speculative_cache(cache, vo[2], meta["mtp"]["accepted"], len(G["verify.block"]))
    for i in range(3):
        close(f"mlx-vlm rolled-back layer {i} recurrent", npf(cache[i][1])[0].transpose(1, 2), G[f"verify.layer{i}.recurrent_kept"], report, 2e-3)
        close(f"mlx-vlm rolled-back layer {i} conv", npf(cache[i][0])[0], G[f"verify.layer{i}.conv_kept"], report, 2e-3)
    assert cache[3].offset == BLOCK_PROMPT + meta["mtp"]["accepted"] + 1


def build_dflash(v2, seed, target, root, report, mlx):
    """Drafter for the dense target; two rounds (prompt context, then accepted rows)."""
    _, _, tcfg, ref, G0, m0 = target
    name = "dflash2" if v2 else "dflash"
    out = root / name
    out.mkdir(parents=True, exist_ok=True)
    cfg = dflash_config(v2)
    w = dflash_weights(cfg, Rng(seed))
    save_file(w, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(cfg, indent=2, sort_keys=True) + "\n")
    P = G0["input_ids"][:BLOCK_PROMPT]
    layers = cfg["dflash_config"]["target_layer_ids"]
    feat = lambda hs: torch.cat([hs[i + 1] for i in layers], -1)  # layer OUTPUTS
    tc = ref.new_cache()
    hp, hs = ref.run(P, tc)
    bonus = int(ref.logits(hp[-1]).argmax())
    dr = DFlashRef(w, cfg, ref.embed, ref.head)
    dc = dr.new_cache()
    t1, h1, l1 = dr.draft(bonus, feat(hs), dc, 6)
    f1 = feat(hs)
    # round 2: pretend that two drafts were right (target's own greedy tokens)
    greedy = m0["greedy"]["continuation"]
    blk = torch.tensor([bonus, greedy[1], greedy[2], 7, 8, 9])
    _, vhs = ref.run(blk, tc)
    f2 = feat(vhs)[:3]
    t2, h2, l2 = dr.draft(greedy[3], f2, dc, 6)
    assert dc[0]["n"] == BLOCK_PROMPT + 3
    G = {
        "round1.features": f1,
        "round1.hidden": h1,
        "round1.logits": l1,
        "round2.features": f2,
        "round2.hidden": h2,
        "round2.logits": l2,
    }
    meta = dict(
        target="dense",
        prompt=P.tolist(),
        round1=dict(anchor=bonus, proposals=t1),
        round2=dict(anchor=greedy[3], proposals=t2, context_rows=3),
    )
    save_file({k: v.contiguous().clone() for k, v in G.items()}, str(out / "goldens.safetensors"))
    (out / "goldens.json").write_text(json.dumps(meta, indent=2) + "\n")
    if not mlx:
        return
    import mlx.core as mx
    import mlx.nn as nn
    import numpy as np

    npf = lambda a: torch.from_numpy(np.array(a.astype(mx.float32)))
    if v2:
        from mlx_vlm.speculative.drafters.dflash2 import Model, ModelConfig
    else:
        from mlx_vlm.speculative.drafters.qwen3_dflash import Model, ModelConfig
    m = Model(ModelConfig.from_dict(json.loads(json.dumps(cfg))))
    m.load_weights(list(m.sanitize({k: mx.array(v.numpy()) for k, v in w.items()}).items()))
    m.embed_tokens = nn.Embedding(VOCAB, 64)
    m.embed_tokens.weight = mx.array(ref.embed.numpy())
    hw = mx.array(ref.head.numpy())
    m.lm_head = lambda z: z @ hw.T
    m.eval()
    c = m.make_cache()
    pick = lambda z: mx.argmax(z, axis=-1)
    for n, anchor, f, want, hid in ((1, bonus, f1, t1, h1), (2, greedy[3], f2, t2, h2)):
        c0 = [type(k)() for k in c]
        for a, b in zip(c0, c):
            a.__dict__.update(b.__dict__)
        blk = mx.array([[anchor] + [MASK_ID] * 5])
        got = m._hidden(blk, mx.array(f.numpy())[None], c0)[0, 1:]
        close(f"{name} round {n} hidden, mlx-vlm vs Ref", npf(got), hid, report, 5e-4)
        toks = m.draft_block(anchor, mx.array(f.numpy())[None], c, 6, pick)
        assert toks[0].tolist() == want, (toks.tolist(), want)
    print(f"  ok  mlx-vlm {name} draft_block gives the same proposals in both rounds")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--mlx", action="store_true", help="also write MLX layouts and check against mlx-lm / mlx-vlm")
    a = ap.parse_args()
    import transformers

    versions = dict(torch=torch.__version__, transformers=transformers.__version__)
    if a.mlx:
        import importlib.metadata as im

        versions |= {n: im.version(n) for n in ("mlx", "mlx-lm", "mlx-vlm")}
    summary, dense = {}, None
    for name, kind, wrap, tied, seed in (
        ("dense", "dense", True, False, 3501),
        ("dense-tied", "dense", False, True, 3502),
        ("moe", "moe", True, False, 3503),
    ):
        print(name)
        report, out = {}, a.out / name
        shutil.rmtree(out, ignore_errors=True)
        got = build(kind, wrap, tied, seed, out, report)
        weights, cfg, tcfg, ref, G, meta = got
        if a.mlx:
            mlx_side(out, weights, cfg, tcfg, ref, G, meta, report)
        meta |= dict(seed=seed, versions=versions, checks=report)
        (out / "goldens.json").write_text(json.dumps(meta, indent=2) + "\n")
        dense = got if name == "dense" else dense
        summary[name] = report
    for v2, seed in ((False, 3511), (True, 3512)):
        name = "dflash2" if v2 else "dflash"
        print(name)
        report = {}
        shutil.rmtree(a.out / name, ignore_errors=True)
        build_dflash(v2, seed, dense, a.out, report, a.mlx)
        summary[name] = report
    for d in sorted(p for p in a.out.iterdir() if p.is_dir()):
        size = sum(f.stat().st_size for f in d.rglob("*") if f.is_file())
        print(f"{d.name:12} {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
