"""The Gemma demo pair in float32 numpy over many sequences at once: answers, and the drafter's logits after every token of them.

Parts come from gemma4_acceptance.py. Speculation changes no token, so the target answers once, alone, and keeps the K/V and hidden
rows that drafters read; a drafter is then asked from every position at once, each time fed the tokens that follow. As long as its
drafts are right these are its own, so whether draft j is right given that those before it were is exactly what rounds see. Needs numpy.
"""

import json

import numpy as np

from gemma4_acceptance import M, T, f4, load, mix, query, rms, rope

STOP = {1, 106}


class Target:
    """The target's weights; `embedding` [V, H] is also the head."""

    def __init__(self):
        self.weights, _ = load(T)
        with open(T + "/config.json") as f:
            self.config = json.load(f)["text_config"]
        self.embedding = self.weights["language_model.model.embed_tokens.weight"]

    def answer(self, prompts, length, choose=None, done=lambda ids: False):
        """Sequences of `prompts` (lists of ids) continued to `length` tokens; `choose(rows, logits [n, V], position)` gives the token for
        `position`, by default the likeliest. All step together from position 0, prompt tokens forced. Returns ids [n, length], the
        last hidden rows after the final norm [n, length, H], and K/V [n, heads, length, D] of the last layer of each kind. Ends
        early where `done(ids[:, :t])`; what is beyond is 0."""
        cfg, w, n = self.config, self.weights, len(prompts)
        prefix, eps, window = "language_model.model.", cfg["rms_norm_eps"], cfg["sliding_window"]
        ids = np.zeros((n, length), int)
        starts = np.array([len(p) for p in prompts])
        for row, prompt in zip(ids, prompts):
            row[: len(prompt)] = prompt
        hidden = np.zeros((n, length, cfg["hidden_size"]), f4)
        caches = []
        for l, kind in enumerate(cfg["layer_types"]):
            size = len(w[f"{prefix}layers.{l}.self_attn.k_norm.weight"])
            heads = len(w[f"{prefix}layers.{l}.self_attn.k_proj.weight"]) // size
            caches.append(tuple(np.zeros((n, heads, length, size), f4) for _ in "kv"))
        for t in range(length):
            x = self.embedding[ids[:, t]] * f4(np.sqrt(cfg["hidden_size"]))
            for l, kind in enumerate(cfg["layer_types"]):
                p = f"{prefix}layers.{l}."
                keys, values = caches[l]
                heads, size = keys.shape[1], keys.shape[3]
                a, q = query(x, w, p, cfg, kind, [t])
                k = (a @ w[p + "self_attn.k_proj.weight"].T).reshape(n, heads, size)
                v = k if kind == "full_attention" else (a @ w[p + "self_attn.v_proj.weight"].T).reshape(n, heads, size)
                keys[:, :, t] = rope(rms(k, w[p + "self_attn.k_norm.weight"], eps), [t], kind, cfg)
                values[:, :, t] = rms(v, None, eps)
                low = 0 if kind == "full_attention" else max(0, t + 1 - window)
                scores = q.reshape(n, heads, -1, size) @ keys[:, :, low : t + 1].swapaxes(2, 3)
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                scores /= scores.sum(-1, keepdims=True)
                x = mix(x, (scores @ values[:, :, low : t + 1]).reshape(n, -1), w, p, eps)
            hidden[:, t] = rms(x, w[prefix + "norm.weight"], eps)
            if t + 1 == length or done(ids[:, : t + 1]):
                break
            rows = np.flatnonzero(starts <= t + 1)
            if len(rows) == 0:
                continue
            cap = f4(cfg["final_logit_softcapping"])
            logits = cap * np.tanh(hidden[rows, t] @ self.embedding.T / cap)
            ids[rows, t + 1] = logits.argmax(-1) if choose is None else choose(rows, logits, t + 1)
        kept = {kind: caches[l] for l, kind in enumerate(cfg["layer_types"])}
        return ids, hidden, kept


class Drafter:
    """An assistant of that target, `which` = bf16 or 4bit."""

    def __init__(self, which, target):
        path = M + "gemma-4-tiny-it-assistant-" + which
        self.weights, _ = load(path)
        with open(path + "/config.json") as f:
            self.config = json.load(f)["text_config"]
        self.embedding = target.embedding

    def logits(self, ids, hidden, kept, start, drafts):
        """For one sequence (ids [L], hidden [L, H], K/V [heads, L, D] by kind) and each position t of start..L-2: yields for
        j = 1..`drafts` the logits [L-1-start, V] of the draft for t+1+j, after ids[t+1..t+j]. Beyond the end they mean nothing."""
        w, cfg, eps = self.weights, self.config, self.config["rms_norm_eps"]
        at = np.arange(start, len(ids) - 1)
        distance = at[:, None] - np.arange(len(ids))[None]
        masks = {"full_attention": distance >= 0, "sliding_attention": (distance >= 0) & (distance < cfg["sliding_window"])}
        state = hidden[at]
        for j in range(1, drafts + 1):
            tokens = ids[np.minimum(at + j, len(ids) - 1)]
            e = self.embedding[tokens] * f4(np.sqrt(self.embedding.shape[1]))
            x = np.concatenate([e, state], -1) @ w["pre_projection.weight"].T
            for l, kind in enumerate(cfg["layer_types"]):
                p = f"model.layers.{l}."
                _, q = query(x, w, p, cfg, kind, at)
                x = mix(x, attend(q, *kept[kind], masks[kind]), w, p, eps)
            y = rms(x, w["model.norm.weight"], eps)
            state = y @ w["post_projection.weight"].T
            yield y @ w["model.embed_tokens.weight"].T


def attend(q, keys, values, mask):
    """q [n, heads, D]; keys, values [K/V heads, L, D]; mask [n, L]."""
    n, heads, size = q.shape
    groups = heads // len(keys)
    q = q.reshape(n, len(keys), groups, size).transpose(1, 2, 0, 3)
    scores = np.where(mask, q @ keys[:, None].swapaxes(2, 3), f4(-np.inf))
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return (scores @ values[:, None]).transpose(2, 0, 1, 3).reshape(n, -1)


def rounds(right, start, end, width):
    """Rounds of block width `width` over an answer that begins at `start` and ends before `end`, where right[j-1][t-(start-1)] says
    whether draft j from position t is the answer's. Returns [accepted, proposed, proposed up to the end, rounds, emitted]; the
    first token is the prompt's and not counted."""
    t, out = start - 1, np.zeros(5, int)
    while t + 2 < end:
        room = min(width - 1, end - (t + 2))
        accepted = 0
        while accepted < room and right[accepted][t - (start - 1)]:
            accepted += 1
        out += (accepted, width - 1, room, 1, min(accepted + 1, end - (t + 2)))
        t += accepted + 1
    return out
