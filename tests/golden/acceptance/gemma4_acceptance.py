#!/usr/bin/env python3
"""Acceptance of the Gemma demo pair, bf16 and 4-bit drafter, by a second implementation in float32 numpy.

    python3 tests/golden/acceptance/gemma4_acceptance.py [--write]

Greedy rounds over the prompts of golden.json as its `definition` says. Speculation changes no token, so one pass over prompt and
answer gives all K/V and hidden rows of the target, and only the drafter runs step by step. The bf16 drafter must give
golden.json's counts, the 4-bit one those in gemma4_4bit.json (which --write makes). Needs numpy.
"""
import os
for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"): os.environ[v] = "1"
import json, sys
import numpy as np
f4 = np.float32
HERE = os.path.dirname(os.path.abspath(__file__))
M = os.path.join(HERE, "../../../models/")
KEPT = os.path.join(HERE, "gemma4_4bit.json")
T = M + "gemma-4-tiny-it-4bit"
STOP = {1, 106}

def load(path):
    raw = open(path + "/model.safetensors", "rb").read()
    n = int.from_bytes(raw[:8], "little"); head = json.loads(raw[8:8 + n]); base = 8 + n
    t = {}
    for k, e in head.items():
        if k == "__metadata__": continue
        b = raw[base + e["data_offsets"][0]: base + e["data_offsets"][1]]
        if e["dtype"] == "BF16": a = (np.frombuffer(b, "<u2").astype(np.uint32) << 16).view(f4)
        elif e["dtype"] == "U32": a = np.frombuffer(b, "<u4")
        elif e["dtype"] == "F32": a = np.frombuffer(b, "<f4")
        else: raise ValueError(e["dtype"])
        t[k] = a.reshape(e["shape"])
    out, nq = {}, 0
    for k, a in t.items():
        if k.endswith((".scales", ".biases")): continue
        if a.dtype == np.uint32:
            nq += 1
            p = k[: -len("weight")]
            q = np.stack([(a >> np.uint32(4 * j)) & np.uint32(15) for j in range(8)], -1).reshape(a.shape[0], -1, 64).astype(f4)
            a = (q * t[p + "scales"][..., None] + t[p + "biases"][..., None]).reshape(a.shape[0], -1)
        out[k] = np.ascontiguousarray(a, f4)
    return out, nq

def rms(x, w=None, eps=1e-6):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + f4(eps))
    return (y if w is None else y * w).astype(f4)

def gelu(x): return f4(0.5) * x * (1 + np.tanh(f4(np.sqrt(2 / np.pi)) * (x + f4(0.044715) * x * x * x)))

def rope(x, pos, kind, cfg):                      # x [L, heads, D]
    D = x.shape[-1]; rp = cfg["rope_parameters"][kind]
    f = np.zeros(D // 2)
    r = D // 2 if rp["rope_type"] == "default" else int(rp["partial_rotary_factor"] * D / 2)
    f[:r] = float(rp["rope_theta"]) ** (-2 * np.arange(r) / D)
    a = np.asarray(pos, np.float64)[:, None] * f
    c, s = np.cos(a).astype(f4)[:, None], np.sin(a).astype(f4)[:, None]
    x1, x2 = x[..., : D // 2], x[..., D // 2:]
    return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], -1)

def attend(q, k, v, mask):                        # [L,Nq,D] [S,Nk,D] [S,Nk,D] [L,S]
    L, nq, D = q.shape; g = nq // k.shape[1]
    o = np.empty_like(q)
    for h in range(nq):
        s = q[:, h] @ k[:, h // g].T              # scale 1.0
        s = np.where(mask, s, f4(-np.inf))
        s = np.exp(s - s.max(-1, keepdims=True)); s /= s.sum(-1, keepdims=True)
        o[:, h] = s @ v[:, h // g]
    return o.reshape(L, -1)

def mix(x, o, w, p, eps):
    x = x + rms(o @ w[p + "self_attn.o_proj.weight"].T, w[p + "post_attention_layernorm.weight"], eps)
    h = rms(x, w[p + "pre_feedforward_layernorm.weight"], eps)
    h = (gelu(h @ w[p + "mlp.gate_proj.weight"].T) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    x = x + rms(h, w[p + "post_feedforward_layernorm.weight"], eps)
    return x * w[p + "layer_scalar"]

def query(x, w, p, cfg, kind, pos):
    a = rms(x, w[p + "input_layernorm.weight"], cfg["rms_norm_eps"])
    qn = w[p + "self_attn.q_norm.weight"]
    q = (a @ w[p + "self_attn.q_proj.weight"].T).reshape(len(x), -1, qn.shape[0])
    return a, rope(rms(q, qn, cfg["rms_norm_eps"]), pos, kind, cfg)

def target(w, cfg, ids):
    P = "language_model.model."; eps = cfg["rms_norm_eps"]
    x = w[P + "embed_tokens.weight"][ids] * f4(np.sqrt(cfg["hidden_size"]))
    pos = np.arange(len(ids)); d = pos[:, None] - pos[None]
    masks = {"full_attention": d >= 0, "sliding_attention": (d >= 0) & (d < cfg["sliding_window"])}
    store = {}
    for l, kind in enumerate(cfg["layer_types"]):
        p = f"{P}layers.{l}."
        a, q = query(x, w, p, cfg, kind, pos)
        kn = w[p + "self_attn.k_norm.weight"]
        kr = (a @ w[p + "self_attn.k_proj.weight"].T).reshape(len(ids), -1, kn.shape[0])
        if kind == "full_attention": assert p + "self_attn.v_proj.weight" not in w; vr = kr
        else: vr = (a @ w[p + "self_attn.v_proj.weight"].T).reshape(kr.shape)
        kv = (rope(rms(kr, kn, eps), pos, kind, cfg), rms(vr, None, eps))
        store[kind] = kv                          # last layer of each type remains
        x = mix(x, attend(q, *kv, masks[kind]), w, p, eps)
    y = rms(x, w[P + "norm.weight"], eps)
    lg = y @ w[P + "embed_tokens.weight"].T
    c = f4(cfg["final_logit_softcapping"])
    return y, c * np.tanh(lg / c), store

def draft(d, cfg, E, hid, tok, kv, m, n, pos):
    """n greedy drafts from bonus `tok`; K/V positions 0..m-1, query frozen at pos"""
    out, s, gap = [], hid[None], []
    lo = max(0, pos - cfg["sliding_window"] + 1)
    cut = {"full_attention": tuple(z[:m] for z in kv["full_attention"]), "sliding_attention": tuple(z[lo:m] for z in kv["sliding_attention"])}
    for _ in range(n):
        e = E[[tok]] * f4(np.sqrt(E.shape[1]))
        x = np.concatenate([e, s], -1) @ d["pre_projection.weight"].T
        for l, kind in enumerate(cfg["layer_types"]):
            p = f"model.layers.{l}."; k, v = cut[kind]
            _, q = query(x, d, p, cfg, kind, [pos])
            x = mix(x, attend(q, k, v, np.ones((1, len(k)), bool)), d, p, cfg["rms_norm_eps"])
        y = rms(x, d["model.norm.weight"], cfg["rms_norm_eps"])
        lg = (y @ d["model.embed_tokens.weight"].T)[0]
        s = y @ d["post_projection.weight"].T
        tok = int(lg.argmax()); out.append(tok)
        t2 = np.partition(lg, -2)[-2:]; gap.append(float(t2[1] - t2[0]))
    return out, gap

def main():
    w, nq = load(T); tcfg = json.load(open(T + "/config.json"))["text_config"]
    sp = json.load(open(T + "/golden.json"))["speculative"]
    E = w["language_model.model.embed_tokens.weight"]
    print("target quantised matrices", nq)
    fwd = []
    for e in sp["prompts"]:
        ids, g = e["prompt_ids"], e["greedy_ids"]
        y, lg, kv = target(w, tcfg, np.array(ids + g))
        am = lg.argmax(-1)[len(ids) - 1: len(ids) - 1 + len(g)].tolist()
        rows = np.sort(lg[len(ids) - 1: len(ids) - 1 + len(g)], -1)
        assert am == g, ("teacher-forced argmax differs", e["prompt"])
        assert len(g) == 128 or g[-1] in STOP
        assert not STOP & set(g[:-1])
        fwd.append((len(ids), g, y, kv))
        print(f"{e['prompt'][:30]!r}: prompt {len(ids)}, answer {len(g)}, argmax all equal, min margin {(rows[:, -1] - rows[:, -2]).min():.4f}", flush=True)
    found = {}
    for name in ("bf16", "4bit"):
        D = M + "gemma-4-tiny-it-assistant-" + name
        d, nq = load(D); dc = json.load(open(D + "/config.json")); cfg = dc["text_config"]
        assert not dc["use_ordered_embeddings"] and dc["backbone_hidden_size"] == E.shape[1]
        print("\ndrafter", name, "quantised matrices", nq, "tensors", len(d))
        for K in (2, 4, 8):
            tot = np.zeros(4, int); per = []; mg = 9e9; ok = True
            for e, (L, g, y, kv) in zip(sp["prompts"], fwd):
                n, acc, prop, rounds = 1, 0, 0, 0          # n = emitted tokens; g[n-1] is the bonus
                pa, pt = [0] * (K - 1), [0] * (K - 1)
                while n < 128 and g[n - 1] not in STOP:
                    m = L + n - 1                          # verified K/V entries
                    dr, gap = draft(d, cfg, E, y[m - 1], g[n - 1], kv, m, K - 1, m - 1)
                    a = 0
                    while a < K - 1 and n + a < len(g) and dr[a] == g[n + a]: a += 1
                    mg = min(mg, min(gap[: a + 1]))
                    for i in range(a): pa[i] += 1; pt[i] += 1
                    if a < K - 1: pt[a] += 1
                    acc += a; prop += K - 1; rounds += 1   # a already clipped to the remaining tokens
                    n = min(n + a + 1, len(g))
                assert n == len(g)
                r = e["K"][str(K)]
                if (acc, prop, rounds) != (r["accepted"], r["proposed"], r["rounds"]): ok = False
                per.append(f"{acc}/{prop}"); tot += (acc, prop, rounds, len(g) - 1)
            j = sp["K"][str(K)]
            if name == "4bit": found[str(K)] = {"accepted": int(tot[0]), "proposed": int(tot[1]), "rounds": int(tot[2])}
            same = (tot[0], tot[1], tot[2]) == (j["accepted"], j["proposed"], j["rounds"])
            print(f"K={K}: {tot[0]}/{tot[1]} = {tot[0] / tot[1]:.4f}, rounds {tot[2]}, tokens/round {tot[3] / tot[2]:.3f}{(', golden.json has ' + ('the same' if same and ok else 'others')) if name == 'bf16' else ''}; {' '.join(per)}; smallest drafter top-2 gap used {mg:.2e}", flush=True)
            if name == "bf16" and not (same and ok):
                sys.exit("the bf16 drafter's counts are not golden.json's")
    if "--write" in sys.argv:
        with open(KEPT, "w") as f:
            json.dump({"K": found}, f, indent=1)
            f.write("\n")
    elif json.load(open(KEPT))["K"] != found:
        sys.exit(f"the 4-bit drafter's counts are {found}, {KEPT} has others")


if __name__ == "__main__":
    main()
