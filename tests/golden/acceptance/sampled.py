#!/usr/bin/env python3
"""How often sampled drafts of the Gemma assistants are right, and how far that is luck, in float32 numpy.

    python3 tests/golden/acceptance/sampled.py [--write]

Answers to the prompts of golden.json at T=0.8, top-p 0.95 with the engine's noise for seeds 1..SEEDS, block width 4, 128 tokens, ended by
stop tokens; drafts by the engine's rule and by others. Three numbers each, as in docs/speculation.md, with the standard deviation of
what three seeds give. The results are kept in sampled.json (which --write makes). Needs numpy; two minutes on one core.
"""

import json
import os
import sys

import gemma4_acceptance  # noqa: F401  (one thread: before numpy)
import numpy as np
from gemma4_batch import STOP, T, Drafter, Target, rounds

KEPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampled.json")
SEEDS, TEMPERATURE, TOP_P, WIDTH, LENGTH, CANDIDATES = 48, 0.8, 0.95, 4, 128, 64
U = np.uint64
GAMMA = U(0x9E3779B97F4A7C15)
# Name: drafter's temperature (0: the likeliest), top-p, and what is added to the seed.
WAYS = {
    "coupled": (0.8, 0.95, 0),
    "greedy": (0, 0, 0),
    "independent": (0.8, 0.95, 1000),
    "coupled, top-p 0.90": (0.8, 0.9, 0),
    "coupled, top-p 0.98": (0.8, 0.98, 0),
    "coupled, unfiltered": (0.8, 1, 0),
    "coupled, T 0.6": (0.6, 0.95, 0),
    "coupled, T 0.7": (0.7, 0.95, 0),
    "coupled, T 0.9": (0.9, 0.95, 0),
    "coupled, T 1": (1, 0.95, 0),
}


def mix(x):
    x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
    return x ^ (x >> U(31))


def gumbel(seed, position, token):
    """The engine's noise (crates/engine/src/sample/noise.rs), elementwise over uint64 arrays."""
    seed = mix(seed + GAMMA)
    stream = mix(seed + (position + U(1)) * GAMMA)
    key = mix(stream ^ (seed << U(32) | seed >> U(32)))
    bits = mix(mix(stream + (token + U(1)) * GAMMA) + key) >> U(12)
    return -np.log(-np.log((U(2) * bits + U(1)).astype(float) / 2.0**53))


def best(logits, count):
    """The `count` largest logits of each row, best first: tokens and values."""
    some = np.argpartition(logits, -count, axis=-1)[:, -count:]
    order = np.argsort(-np.take_along_axis(logits, some, -1), -1, kind="stable")
    tokens = np.take_along_axis(some, order, -1)
    return tokens, np.take_along_axis(logits, tokens, -1).astype(float)


def pick(tokens, values, total, temperature, top_p, noise):
    """The token of largest logit / T + noise among the nucleus; `total` = the softmax's denominator at T, None = that of `values`."""
    d = (values - values[..., :1]) / temperature
    weights = np.exp(d)
    mass = np.cumsum(weights, -1)
    nucleus = mass - weights < top_p * (mass[..., -1:] if total is None else total)
    chosen = np.where(nucleus, d + noise, -np.inf).argmax(-1)
    return np.take_along_axis(tokens, chosen[..., None], -1)[..., 0]


def run(prompts):
    """Counts [prompt, seed, (accepted, proposed, rounds, emitted)] by drafter and way."""
    target = Target()
    drafters = {which: Drafter(which, target) for which in ("bf16", "4bit")}
    counts = {which: {way: np.zeros((len(prompts), SEEDS, 4), int) for way in WAYS} for which in drafters}
    seeds = np.arange(1, SEEDS + 1, dtype=U)
    for p, prompt in enumerate(prompts):
        start = len(prompt)

        def choose(rows, logits, position):
            tokens, values = best(logits, 1024)
            noise = gumbel(seeds[rows, None], U(position), tokens.astype(U))
            total = np.exp((logits - values[:, :1]) / TEMPERATURE).sum(-1, keepdims=True)
            return pick(tokens, values, total, TEMPERATURE, np.float32(TOP_P), noise)

        ids, hidden, kept = target.answer([prompt] * SEEDS, start + LENGTH, choose)
        for s in range(SEEDS):
            stops = np.flatnonzero(np.isin(ids[s, start:], list(STOP)))
            end = start + int(stops[0]) + 1 if len(stops) else start + LENGTH
            own = {kind: tuple(x[s, :, :end] for x in pair) for kind, pair in kept.items()}
            for which, drafter in drafters.items():
                right = {way: [] for way in WAYS}
                for j, logits in enumerate(drafter.logits(ids[s, :end], hidden[s], own, start - 1, WIDTH - 1), 1):
                    tokens, values = best(logits, CANDIDATES)
                    position = np.arange(start + j, start + j + len(tokens), dtype=U)[:, None]
                    for way, (temperature, top_p, other) in WAYS.items():
                        if temperature == 0:
                            drafts = tokens[:, 0]
                        else:
                            noise = gumbel(seeds[s] + U(other), position, tokens.astype(U))
                            drafts = pick(tokens, values, None, temperature, top_p, noise)
                        right[way].append(np.append(drafts[: max(0, end - start - j)] == ids[s, start + j : end], [False] * j))
                for way in WAYS:
                    accepted, proposed, _, count, emitted = rounds(right[way], start, end, WIDTH)
                    counts[which][way][p, s] = accepted, proposed, count, emitted
        print(f"{p + 1} of {len(prompts)} prompts", flush=True)
    return counts


def numbers(counts):
    """Mean over prompts, all drafts, tokens a round."""
    prompts, (accepted, proposed, count, emitted) = counts.sum(1), counts.sum((0, 1))
    return np.array([(prompts[:, 0] / prompts[:, 1]).mean(), accepted / proposed, emitted / count])


def main():
    np.seterr(over="ignore")
    with open(T + "/golden.json") as f:
        prompts = [p["prompt_ids"] for p in json.load(f)["speculative"]["prompts"]]
    found = {"seeds": SEEDS}
    threes = np.array([np.random.default_rng(i).choice(SEEDS, 3, replace=False) for i in range(1000)])
    for which, ways in run(prompts).items():
        for way, counts in ways.items():
            all_seeds = numbers(counts)
            spread = np.std([numbers(counts[:, three]) for three in threes], 0)
            against = np.std([numbers(counts[:, c])[:2] - numbers(ways["coupled"][:, c])[:2] for c in np.random.default_rng(0).integers(0, SEEDS, (300, SEEDS))], 0)
            entry = {"mean over prompts": all_seeds[0], "all drafts": all_seeds[1], "tokens_per_round": all_seeds[2]}
            entry = {k: round(float(v), 4) for k, v in entry.items()}
            entry["deviation of three seeds"] = [round(float(x), 4) for x in spread]
            entry["error of the difference to coupled"] = [round(float(x), 4) for x in against]
            found.setdefault(which, {})[way] = entry
            print(which, way, entry)
    if "--write" in sys.argv:
        with open(KEPT, "w") as f:
            json.dump(found, f, indent=1)
            f.write("\n")
    else:
        with open(KEPT) as f:
            kept = json.load(f)
        # Another BLAS may decide a near-tie otherwise, and with it the rest of an answer.
        for which, way, name in ((a, b, c) for a in ("bf16", "4bit") for b in WAYS for c in ("mean over prompts", "all drafts")):
            if abs(kept[which][way][name] - found[which][way][name]) > 0.01:
                sys.exit(f"{which}, {way}, {name}: {KEPT} has {kept[which][way]}, this run {found[which][way]}; if that is right, give --write")


if __name__ == "__main__":
    main()
