#!/usr/bin/env python3
"""How often the Gemma assistants are right on held-out prompts, as their cards count it, in float32 numpy.

    python3 tests/golden/acceptance/heldout.py draw SHARD...     makes heldout_prompts.json (needs numpy, tokenizers)
    python3 tests/golden/acceptance/heldout.py measure [--write] answers and counts them all (needs numpy; five minutes on one core)
    python3 tests/golden/acceptance/heldout.py report            the rates in heldout_results.json and their errors (needs numpy)

The cards' 512 prompts were drawn on the training machine and not kept. `draw` draws as many from the same documents in the same way
(`prompts(512, 0.6, ...)` of tools/train/gemma4/train_drafter.py) with other random numbers: SHARDs are the valid*.jsonl.xz of
tools/train/corpus/prepare.py, that is documents whose hash kept them out of training. Three fifths are chats of one or more turns,
cut where the model is to speak; the others 8 to 160 tokens from anywhere in the documents. Answers are greedy and end at a stop token
or when prompt and answer have 384 tokens. Drafts beyond the end of an answer are not counted as proposed.

The kept prompts are of the packages and versions in tools/train/corpus/manifest.json, each source with as many documents and held-out
bytes as recorded there, except for 1 % of the held-out text, which was not fetched: PostgreSQL's and Django's manuals, crates' READMEs.
"""

import json
import os
import sys

import gemma4_acceptance  # noqa: F401  (one thread: before numpy)
import numpy as np
from gemma4_batch import STOP, T, Drafter, Target, rounds

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS, RESULTS = os.path.join(HERE, "heldout_prompts.json"), os.path.join(HERE, "heldout_results.json")
COUNT, CHAT_SHARE, LENGTH, WIDTHS = 512, 0.6, 384, (2, 4, 8)
EOS, BOS, TURN, NEWLINE = 1, 2, 105, 107
CARD = {"bf16": {2: 0.928, 4: 0.852, 8: 0.727}, "4bit": {2: 0.922, 4: 0.843, 8: 0.711}}


def documents(paths):
    """Token ids of all documents, one after the other in the order of the shards' names, and each token's source."""
    sys.path.insert(0, os.path.join(HERE, "../../../tools/train/gemma4"))
    import lzma

    import prep

    prep.init(T + "/tokenizer.json")
    ids, sources, names = [], [], []
    for path in sorted(paths, key=os.path.basename):
        with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as f:
            for line in f:
                ids.append(prep.work([line]))
                names.append(json.loads(line)["s"])
                sources.append(np.full(len(ids[-1]), len(names) - 1))
    return np.concatenate(ids).astype(int), np.concatenate(sources), names, prep.TOK.token_to_id("model")


def draw(paths):
    stream, sources, names, model = documents(paths)
    rng = np.random.default_rng(5)
    begins, out = np.flatnonzero(stream == BOS), []

    def keep(ids, at):
        out.append({"kind": "chat" if TURN in ids else "text", "source": names[sources[at]], "ids": [int(i) for i in ids]})

    while len(out) < int(COUNT * CHAT_SHARE):
        at = begins[rng.integers(len(begins) - 1)]
        document = stream[at : at + 400]
        end = np.flatnonzero(document[1:] == BOS)
        document = document[: end[0] + 1] if len(end) else document
        turns = [k for k in np.flatnonzero(document == TURN) if k + 2 < len(document) and tuple(document[k + 1 : k + 3]) == (model, NEWLINE)]
        if turns:
            turn = turns[0] if rng.random() < 0.7 else turns[rng.integers(len(turns))]
            if turn + 3 < LENGTH - 64:
                keep(document[: turn + 3], at)
    while len(out) < COUNT:
        length = int(rng.integers(8, 160))
        at = int(rng.integers(0, len(stream) - length - 1))
        ids = stream[at : at + length]
        begin = np.flatnonzero(ids == BOS)
        ids = ids[begin[-1] + 1 :] if len(begin) else ids
        if len(ids) >= 6:
            keep(np.concatenate([[BOS], ids]), at + length - 1)
    rng.shuffle(out)
    with open(PROMPTS, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(p, separators=(",", ":")) for p in out) + "\n]\n")


def measure(write):
    with open(PROMPTS) as f:
        prompts = [p["ids"] for p in json.load(f)]
    target = Target()
    drafters = {which: Drafter(which, target) for which in CARD}
    found, order, size = [None] * len(prompts), sorted(range(len(prompts)), key=lambda i: len(prompts[i])), 64
    for part in (order[i : i + size] for i in range(0, len(order), size)):
        starts = np.array([len(prompts[i]) for i in part])

        def ended(ids):
            answers = np.arange(ids.shape[1])[None] >= starts[:, None]
            return (np.isin(ids, list(STOP)) & answers).any(1).all()

        ids, hidden, kept = target.answer([prompts[i] for i in part], LENGTH, done=ended)
        for row, (i, start) in enumerate(zip(part, starts)):
            stops = np.flatnonzero(np.isin(ids[row, start:], list(STOP)))
            end = int(start + stops[0] + 1) if len(stops) else LENGTH
            own = {kind: tuple(x[row, :, :end] for x in pair) for kind, pair in kept.items()}
            entry = {"tokens": end - int(start)}
            for which, drafter in drafters.items():
                right = []
                for j, logits in enumerate(drafter.logits(ids[row, :end], hidden[row], own, start - 1, max(WIDTHS) - 1), 1):
                    right.append(np.append(logits.argmax(-1)[: max(0, end - start - j)] == ids[row, start + j : end], [False] * j))
                for width in WIDTHS:
                    accepted, _, proposed, count, _ = rounds(right, start, end, width).tolist()
                    entry[f"{which} K={width}"] = [accepted, proposed, count]
            found[i] = entry
        print(f"{sum(x is not None for x in found)} of {len(prompts)} answered and counted", flush=True)
    if write:
        with open(RESULTS, "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in found) + "\n]\n")
    else:
        with open(RESULTS) as f:
            kept = json.load(f)
        # Another BLAS may decide a near-tie otherwise, and with it the rest of an answer.
        for name in (f"{which} K={width}" for which in CARD for width in WIDTHS):
            rates = [np.sum([e[name][0] for e in all]) / np.sum([e[name][1] for e in all]) for all in (kept, found)]
            if len(kept) != len(found) or abs(rates[0] - rates[1]) > 0.003:
                sys.exit(f"{name}: the rates of {RESULTS} and of this run are {rates}; if that is right, give --write")
    report()


def report():
    """Pooled rates with their standard errors (bootstrap over prompts); answers of fewer than four tokens are left out, as on the cards."""
    with open(PROMPTS) as f:
        kinds = np.array([p["kind"] for p in json.load(f)])
    with open(RESULTS) as f:
        found = json.load(f)
    long = np.array([e["tokens"] >= 4 for e in found])
    print(f"{long.sum()} answers of {len(found)}, {np.sum([e['tokens'] for e in found])} tokens")
    for which, card in CARD.items():
        for width in WIDTHS:
            counts = np.array([e[f"{which} K={width}"] for e in found])
            parts = []
            for name, chosen in (("all", long), ("chat", long & (kinds == "chat")), ("text", long & (kinds == "text"))):
                some = counts[chosen]
                again = some[np.random.default_rng(0).integers(0, len(some), (4000, len(some)))].sum(1)
                rate, error = some[:, 0].sum() / some[:, 1].sum(), (again[:, 0] / again[:, 1]).std()
                parts.append(f"{name} {rate:.4f} +- {error:.4f} ({len(some)})")
            print(f"{which} K={width}: {', '.join(parts)}; the card has {card[width]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"] and len(sys.argv) > 2:
        draw(sys.argv[2:])
    elif sys.argv[1:2] == ["measure"]:
        measure("--write" in sys.argv[2:])
    elif sys.argv[1:] == ["report"]:
        report()
    else:
        sys.exit(__doc__)
