#!/usr/bin/env python3
"""Speculative against plain decoding of the demo pairs, side by side, end to end through the binary.

    python3 tools/bench_speculation.py [--binary target/release/mlxcel] [--repeat 9] [--threads 1,2]

Every run answers the same prompts greedily; plain decoding and every block width take turns, round after round, so that a
slow moment of the machine hits them alike. Speedups are ratios inside a round; medians and the range of the rounds. The
answers of all settings must be the same tokens. Writes docs/benchmark_results/speculation.{md,json} and the table of
README.md. Needs Python's standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from bench_demo import RESULTS, ROOT, machine, put

PAIRS = ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"]
WIDTHS = [2, 3, 4, 5, 8]
TOKENS = 128
PROMPTS = [
    "Tell me a story about a brave rabbit.",
    "Write a Python function to add two numbers.",
    "What is speculative decoding?",
    "Why is the sky blue?",
]


def answer(binary, model, threads, setting, prompt):
    """One answer. A setting is a block width, `plain` or `adaptive`."""
    command = [binary, "generate", "-m", os.path.join(ROOT, "models", model), "-p", prompt, "--temp", "0", "-n", str(TOKENS),
               "--ignore-eos", "--json", "-q", "-t", str(threads)]
    if setting == "plain":
        command += ["--model-draft", "none"]
    elif setting != "adaptive":
        command += ["--draft-block-size", str(setting)]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL_MTP", "MLXCEL_ENABLE", "MLXCEL_DRAFT", "MLXCEL_MODEL"))}
    return json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=env).stdout)


def once(binary, model, threads, setting):
    """All prompts: tokens, decode rate over them, and the sums of the rounds."""
    out = {"tokens": [], "seconds": 0.0, "decoded": 0, "rounds": 0, "proposed": 0, "accepted": 0, "steps": 0}
    for prompt in PROMPTS:
        result = answer(binary, model, threads, setting, prompt)
        out["tokens"].append(result["tokens"])
        out["seconds"] += result["timings"]["decode_seconds"]
        out["decoded"] += len(result["tokens"]) - 1
        drafting = result["speculation"] or {}
        for key in ("rounds", "proposed", "accepted"):
            out[key] += drafting.get(key, 0)
        out["steps"] += drafting.get("rounds", 0) + drafting.get("plain_steps", 0)
        out["drafter"] = drafting.get("drafter") or out.get("drafter")
        out["backend"] = result["backend"]
    out["rate"] = out["decoded"] / out["seconds"]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/mlxcel"))
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dry", action="store_true", help="print the table and write nothing")
    args = parser.parse_args()
    settings = ["plain", *WIDTHS, "adaptive"]
    places = [(m, int(t)) for m in PAIRS for t in args.threads.split(",")]
    runs = {(place, s): [] for place in places for s in settings}
    for round_ in range(args.repeat + 1):
        for place in places:
            # The order turns with the rounds: nobody always runs after the same neighbour.
            for i in range(len(settings)):
                s = settings[(i + round_) % len(settings)]
                result = once(args.binary, *place, s)
                if round_ > 0:  # the first round warms up
                    runs[place, s].append(result)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = []
    table = "| pair | threads | K | decode tok/s | speedup | acceptance_rate | mean_accepted_len | tokens_per_round |\n|---|---|---|---|---|---|---|---|\n"
    for model, threads in places:
        plain = runs[(model, threads), "plain"]
        for s in settings:
            results = runs[(model, threads), s]
            if any(r["tokens"] != plain[0]["tokens"] for r in results):
                sys.exit(f"{model}, {s}: other tokens than plain decoding: that must never happen")
            rates = sorted(r["rate"] for r in results)
            ratios = sorted(r["rate"] / p["rate"] for r, p in zip(results, plain))
            show = lambda v, d: f"{statistics.median(v):.{d}f} ({v[0]:.{d}f}–{v[-1]:.{d}f})"
            last = results[-1]
            drafted = ["", "", ""]
            if last["rounds"]:
                drafted = [f"{last['accepted'] / last['proposed']:.3f}", f"{last['accepted'] / last['rounds']:.2f}",
                           f"{last['accepted'] / last['rounds'] + 1:.2f}"]
            speedup = "1" if s == "plain" else show(ratios, 2)
            table += f"| {model} | {threads} | {1 if s == 'plain' else s} | {show(rates, 0)} | {speedup} | {' | '.join(drafted)} |\n"
            rows.append({"model": model, "drafter": last["drafter"], "threads": threads, "setting": s, "rates": rates, "ratios": ratios,
                         "rounds": last["rounds"], "proposed": last["proposed"], "accepted": last["accepted"], "steps": last["steps"]})
    print(table)
    if args.dry:
        return
    version = subprocess.run([args.binary, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    backend = runs[places[0], "plain"][0]["backend"].split()[2]
    about = (f"{len(PROMPTS)} chat prompts, {TOKENS} greedy tokens each, int8, drafters as found beside the models; K = 1 is plain decoding, "
             f"`adaptive` the default; median (lowest and highest) of {args.repeat} rounds in which all settings take turns, speedups inside "
             f"each round; version {version}, {machine()}, {backend}.")
    os.makedirs(RESULTS, exist_ok=True)
    with open(os.path.join(RESULTS, "speculation.md"), "w") as f:
        f.write(f"# Speculative decoding of the demo pairs\n\nWritten by `python3 tools/bench_speculation.py`: {about}\n\n{table}")
    with open(os.path.join(RESULTS, "speculation.json"), "w") as f:
        json.dump({"machine": machine(), "version": version, "about": about, "prompts": PROMPTS, "rows": rows}, f, indent=1)
        f.write("\n")
    readme = os.path.join(ROOT, "README.md")
    with open(readme) as f:
        text = f.read()
    keep = [line for line in table.splitlines(True) if line.startswith(("| pair", "|---")) or "| 2 | 1 |" in line or "| 2 | adaptive |" in line or "| 2 | 4 |" in line]
    with open(readme, "w") as f:
        f.write(put(text, "speculation", f"{about[0].upper()}{about[1:]} More in [speculation.md](docs/benchmark_results/speculation.md).\n\n{''.join(keep)}"))


if __name__ == "__main__":
    main()
