"""Token streams: one long uint16 array a domain, sampled in rows by weight."""

import glob
import os
import sys

import numpy as np
import torch


def load_streams(directory, device):
    """Reads `DOMAIN-NUMBER.npy` of a directory: `(training, held_out)`, each a dict of domain to int16 tensor.

    Domains whose name starts with `valid` are held out.
    """
    found = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.npy"))):
        if ".tmp" not in path:
            found.setdefault(os.path.basename(path).rsplit("-", 1)[0], []).append(np.load(path).astype(np.int16))
    if not found:
        sys.exit(f"{directory}: no token streams (DOMAIN-NUMBER.npy) here; make them with the recipe's `tokenise` step first")
    streams = {name: torch.from_numpy(np.concatenate(parts)).to(device) for name, parts in found.items()}
    held_out = {name: s for name, s in streams.items() if name.startswith("valid")}
    return {name: s for name, s in streams.items() if name not in held_out}, held_out


def random_rows(stream, count, length, generator):
    """`count` rows of `length` tokens from random places of a stream, int64 `[count, length]`."""
    starts = torch.randint(0, len(stream) - length, (count,), generator=generator, device=stream.device)
    return stream[starts[:, None] + torch.arange(length, device=stream.device)].long()


class Mixture:
    """Draws batches in which each domain has its share of the rows.

    Shares that are no whole number of rows are carried over to later batches. `start` and `end` are weights by domain; `batch(x)`
    draws with the weights `x` of the way from one to the other. Domains without a weight in either are left out, unless none has
    one: then all count the same.
    """

    def __init__(self, streams, rows, length, device, start, end=None, seed=7):
        self.streams = {name: s for name, s in streams.items() if len(s) > length + 1}
        if not self.streams:
            sys.exit(f"no token stream is longer than a row of {length + 1} tokens: shorten the rows or add text")
        self.rows, self.length = rows, length
        self.start, self.end = self._normal(start), self._normal(end or start)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.carry = dict.fromkeys(self.streams, 0.0)

    def _normal(self, weights):
        weights = {name: weights.get(name, 0.0) for name in self.streams}
        if not any(weights.values()):
            weights = dict.fromkeys(self.streams, 1.0)
        total = sum(weights.values())
        return {name: w / total for name, w in weights.items()}

    def batch(self, towards_end=0.0):
        """The next batch, int64 `[rows, length]`."""
        for name in self.streams:
            share = self.start[name] * (1 - towards_end) + self.end[name] * towards_end
            self.carry[name] += share * self.rows
        counts = {name: int(carry) for name, carry in self.carry.items()}
        while sum(counts.values()) < self.rows:
            counts[max(counts, key=lambda name: self.carry[name] - counts[name])] += 1
        while sum(counts.values()) > self.rows:
            taken = [name for name in counts if counts[name] > 0]
            counts[min(taken, key=lambda name: self.carry[name] - counts[name])] -= 1
        parts = []
        for name, stream in self.streams.items():
            self.carry[name] -= counts[name]
            if counts[name]:
                parts.append(random_rows(stream, counts[name], self.length, self.generator))
        return torch.cat(parts)


@torch.no_grad()
def held_out_losses(loss, streams, rows, length):
    """Cross-entropy in nats a token of each stream, cut into rows that each predict `length` tokens.

    `loss(ids, weights)` takes ids `[rows, length + 1]` and row weights `[rows, length]` and gives the weighted mean; it is always
    called with the same shape, so that it is compiled once.
    """
    result = {}
    for name, stream in streams.items():
        count = (len(stream) - 1) // length
        if count == 0:
            continue
        all_rows = torch.stack([stream[i * length : (i + 1) * length + 1] for i in range(count)]).long()
        total = 0.0
        for i in range(0, count, rows):
            part = all_rows[i : i + rows]
            real = len(part)
            weights = torch.zeros(rows, length, device=stream.device)
            weights[:real] = 1
            part = torch.cat([part, part[:1].expand(rows - real, -1)])
            total += loss(part, weights).item() * real
        result[name] = round(total / count, 4)
    return result
