"""Prompts out of the corpus, and the target's continuations of them."""

import numpy as np

from ..common.onpolicy import continue_rows

CHAT_STREAMS = ("chat", "validchat", "validsynth")
TEMPLATE_STREAMS = ("tools", "demo")


class Prompts:
    """Draws prompts from streams: chats cut after an assistant's header, and pieces of other text; none longer than `longest`."""

    def __init__(self, tokenizer, longest, rng):
        def encode(text):
            return tokenizer.encode(text, add_special_tokens=False).ids

        self.header = encode("<|im_start|>assistant\n")
        self.no_thought, self.thought = encode("<think>\n\n</think>\n\n"), encode("<think>\n")
        self.start, self.end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|endoftext|>")
        self.longest, self.rng = longest, rng

    def draw(self, streams, count):
        """`count` prompts, shuffled: about half chats, 6 % from each stream of template chats, the rest pieces of text."""
        chats = [name for name in streams if name in CHAT_STREAMS]
        templates = [name for name in streams if name in TEMPLATE_STREAMS]
        others = [name for name in streams if name not in chats + templates and len(streams[name]) > 200]
        prompts = []
        for name in chats:
            prompts += self._chats(streams[name], int(count * 0.5 / len(chats)))
        for name in templates:
            prompts += self._chats(streams[name], int(count * 0.06))
        for name in others:
            last = name == others[-1]
            prompts += self._texts(streams[name], max(1, count - len(prompts) if last else (count - len(prompts)) // len(others)))
        self.rng.shuffle(prompts)
        prompts = prompts[:count]
        while len(prompts) < count:
            prompts.append(prompts[self.rng.integers(len(prompts))])
        return prompts

    def _chats(self, stream, count):
        """Most with an empty `<think>` block, some with an open one, some with none."""
        stream = stream.cpu().numpy().astype(np.int64)
        ends, found = np.flatnonzero(stream == self.end), []
        for _ in range(20 * count):
            if len(found) >= count or len(ends) < 2:
                break
            i = self.rng.integers(len(ends) - 1)
            document = stream[ends[i] + 1 : ends[i + 1]]
            headers = [k for k in np.flatnonzero(document == self.start) if list(document[k : k + len(self.header)]) == self.header]
            if not headers:
                continue
            prompt = list(document[: headers[self.rng.integers(len(headers))] + len(self.header)])
            draw = self.rng.random()
            if draw < 0.7:
                prompt += self.no_thought
            elif draw < 0.85:
                prompt += self.thought
            if 4 < len(prompt) < self.longest:
                found.append(np.array(prompt))
        return found

    def _texts(self, stream, count):
        found = []
        for _ in range(count):
            length = int(self.rng.integers(12, min(128, self.longest)))
            start = int(self.rng.integers(0, len(stream) - length))
            found.append(stream[start : start + length].cpu().numpy().astype(np.int64))
        return found


def continuations(target, prompts, length, device, dtype):
    """The target's greedy continuations of prompts: `(ids, prompt lengths)`."""
    return continue_rows(prompts, length, device, target.decoder(len(prompts), length, device, dtype))
