"""Prompts out of the corpus, and the target's continuations of them."""

import numpy as np
import torch

from ..common.layers import rms_norm
from ..common.onpolicy import continue_rows
from .config import BOS, NEWLINE, SLIDING, TURN


class Prompts:
    """Draws prompts from streams: chats cut after `<|turn>model` and its newline, and pieces of other text.

    `model_id` is the id of the word "model"; no prompt is longer than `longest` tokens.
    """

    def __init__(self, streams, chat, model_id, longest, rng):
        self.chat = streams[chat].cpu().numpy() if chat in streams else None
        self.others = [s.cpu().numpy() for name, s in streams.items() if name != "chat"]
        self.model_id, self.longest, self.rng = model_id, longest, rng

    def draw(self, count, chat_share):
        """`count` prompts, at most `chat_share` of them chats, shuffled."""
        chats = self._chats(int(count * chat_share)) if self.chat is not None else []
        prompts = chats + self._texts(count - len(chats))
        self.rng.shuffle(prompts)
        return prompts

    def _chats(self, count):
        starts, found = np.flatnonzero(self.chat == BOS), []
        for _ in range(20 * max(1, count)):
            if len(found) >= count or len(starts) < 2:
                break
            start = starts[self.rng.integers(len(starts) - 1)]
            document = self.chat[start : start + 400]
            following = np.flatnonzero(document[1:] == BOS)
            document = document[: following[0] + 1] if len(following) else document
            turns = [k for k in np.flatnonzero(document == TURN)
                     if k + 2 < len(document) and document[k + 2] == NEWLINE and document[k + 1] == self.model_id]
            if turns:
                turn = turns[0] if self.rng.random() < 0.7 else turns[self.rng.integers(len(turns))]
                if turn + 3 < self.longest:
                    found.append(document[: turn + 3].astype(np.int64))
        return found

    def _texts(self, count):
        found = []
        while len(found) < count:
            stream = self.others[self.rng.integers(len(self.others))]
            length = int(self.rng.integers(8, min(160, self.longest)))
            start = int(self.rng.integers(0, len(stream) - length - 1))
            piece = stream[start : start + length].astype(np.int64)
            documents = np.flatnonzero(piece == BOS)
            if len(documents):
                piece = piece[documents[-1] + 1 :]
            if len(piece) >= 6:
                found.append(np.concatenate([[BOS], piece]))
        return found


def decoder(target, rows, length, device, dtype):
    """A step for `continue_rows`: one token of every row at a time, with a K/V cache of `length` positions."""
    c, layers = target.config, target.model.layers
    keys = [torch.zeros(rows, l.self_attn.kv_heads, length, l.self_attn.head_dim, device=device, dtype=dtype) for l in layers]
    values = [torch.zeros_like(k) for k in keys]

    def step(ids, position):
        x = target.embed(ids[:, None])
        for layer, k_cache, v_cache in zip(layers, keys, values):
            a = layer.self_attn
            cos, sin = (t[position : position + 1] for t in target.tables[a.kind])
            n = layer.attention_input(x)
            q, (k, v) = a.queries(n, cos, sin), a.keys_values(n, cos, sin)
            k_cache[:, :, position : position + 1], v_cache[:, :, position : position + 1] = k, v
            first = max(0, position + 1 - c.window) if a.kind == SLIDING else 0
            k, v = k_cache[:, :, first : position + 1], v_cache[:, :, first : position + 1]
            grouped = q.reshape(rows, a.kv_heads, a.heads // a.kv_heads, a.head_dim)
            attended = torch.softmax((grouped @ k.mT).float(), -1).to(v.dtype) @ v
            x = layer.finish(x, attended.reshape(rows, 1, -1))
        return target.logits(rms_norm(x, target.model.norm.weight, c.eps))[:, 0]

    return step


def continuations(target, prompts, length, device, dtype, temperature=0.0):
    """The target's continuations of prompts: `(ids, prompt lengths)`."""
    return continue_rows(prompts, length, device, decoder(target, len(prompts), length, device, dtype), temperature)
