#!/usr/bin/env python3
"""Writes how often the demo drafters are right into docs/speculation.md, from the engine's own test.

    python3 tools/acceptance_doc.py

Runs crates/engine/tests/acceptance.rs, which compares with the references, and keeps what it prints. Standard library only.
"""

import os
import re
import subprocess
import sys

from bench_demo import ROOT, put

TEST = ["cargo", "test", "--release", "--locked", "-p", "mlxcel-engine", "--test", "acceptance", "--", "--nocapture", "--test-threads", "1"]
GREEDY = re.compile(r"(\S+) with (\S+), greedy, K=(\d+): acceptance ([\d.]+) \(reference ([\d.]+)\), ([\d.]+) tokens a round$")
HELDOUT = re.compile(r"(\S+) with (\S+), (\d+) held-out prompts, K=(\d+): acceptance ([\d.]+) \(reference ([\d.]+), card ([\d.]+)\)$")
SAMPLED = re.compile(r"(\S+) with (\S+), T=0.8, top-p 0.95, K=4, (\w+) drafts: acceptance ([\d.]+) \(mean over prompts\), ([\d.]+) \(all drafts\), ([\d.]+) tokens")


def main():
    run = subprocess.run(TEST, cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    greedy = "| drafter | K | acceptance_rate | reference | tokens_per_round |\n|---|---|---|---|---|\n"
    heldout, prompts = "| drafter | K | acceptance_rate | reference | card, 512 prompts |\n|---|---|---|---|---|\n", None
    sampled = "| drafter | drafts | mean over prompts | all drafts | tokens_per_round |\n|---|---|---|---|---|\n"
    for line in run.stdout.splitlines():
        if found := GREEDY.search(line.strip()):
            _, drafter, k, rate, reference, tokens = found.groups()
            greedy += f"| {drafter} | {k} | {rate} | {reference} | {tokens} |\n"
        elif found := HELDOUT.search(line.strip()):
            _, drafter, prompts, k, rate, reference, card = found.groups()
            heldout += f"| {drafter} | {k} | {rate} | {reference} | {card} |\n"
        elif found := SAMPLED.search(line.strip()):
            _, drafter, coupling, mean, pooled, tokens = found.groups()
            sampled += f"| {drafter} | {coupling} | {mean} | {pooled} | {tokens} |\n"
    if [table.count("\n") for table in (greedy, heldout, sampled)] != [11, 5, 11]:
        sys.exit("nine greedy, three held-out and nine sampled rates expected in:\n" + run.stdout)
    text = (f"Greedy, f32, over the prompts of golden.json (written by `python3 tools/acceptance_doc.py`):\n\n{greedy}\n"
            f"Greedy, f32, over {prompts} held-out prompts as on the drafter's card:\n\n{heldout}\n"
            f"Sampled at T=0.8, top-p 0.95, K=4, int8, three seeds, by how drafts are chosen: with the request's own noise, the drafter's "
            f"likeliest token, or with noise of their own:\n\n{sampled}")
    path = os.path.join(ROOT, "docs/speculation.md")
    with open(path) as f:
        doc = put(f.read(), "acceptance", text)
    with open(path, "w") as f:
        f.write(doc)
    print(text)


if __name__ == "__main__":
    main()
