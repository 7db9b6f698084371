#!/usr/bin/env python3
"""Decode and prefill speed of the demo checkpoints, end to end through the binary.

    python3 tools/bench_demo.py [--binary target/release/mlxcel] [--repeat 9]

All settings take turns, round after round, so that a slow moment of the machine hits them alike; medians and the range of
the rounds. Writes docs/benchmark_results/demo.{md,json} and the tables of README.md (this one and linear.md's).
Needs Python's standard library only.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "docs/benchmark_results")
PROMPT_FILE = os.path.join(ROOT, "crates/cli/tests/perplexity.txt")
TOKENS = 256
MODELS = ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"]


def machine():
    with open("/proc/cpuinfo") as f:
        model = re.search(r"model name\s*: (.*)", f.read())
    return f"{model.group(1) if model else os.uname().machine}, {os.cpu_count()} cores"


def once(binary, model, precision, threads):
    """One run: the file as a raw prompt, then TOKENS greedy tokens."""
    command = [binary, "generate", "-m", os.path.join(ROOT, "models", model), "--raw", "-f", PROMPT_FILE, "--temp", "0", "-n", str(TOKENS), "--ignore-eos", "--json", "-q", "-md", "none"]
    command += ["--cpu-precision", precision, "-t", str(threads)]
    start = time.monotonic()
    out = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    out["wall"] = time.monotonic() - start
    return out


def put(text, name, table):
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in text:
        sys.exit(f"README.md has no {begin}")
    return text[: text.index(begin) + len(begin)] + "\n" + table.strip() + "\n" + text[text.index(end) :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/mlxcel"))
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    settings = [(m, p, t) for m in MODELS for p in ("int8", "f32") for t in (1, 2)]
    runs = {s: [] for s in settings}
    for round_ in range(args.repeat + 1):
        for s in settings:
            result = once(args.binary, *s)
            if round_ > 0:  # the first round warms up
                runs[s].append(result)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for model in MODELS:
        for precision in ("int8", "f32"):
            if len({tuple(r["tokens"]) for s in settings if s[:2] == (model, precision) for r in runs[s]}) != 1:
                sys.exit(f"{model}, {precision}: runs gave different tokens: that must never happen")
    rows, table = [], "| model | precision | threads | prefill tok/s | decode tok/s |\n|---|---|---|---|---|\n"
    for (model, precision, threads), results in runs.items():
        rate = lambda key: sorted(r["timings"][key] for r in results)
        prefill, decode = rate("prefill_tokens_per_second"), rate("decode_tokens_per_second")
        show = lambda v: f"{statistics.median(v):.0f} ({v[0]:.0f}–{v[-1]:.0f})"
        table += f"| {model} | {precision} | {threads} | {show(prefill)} | {show(decode)} |\n"
        rows.append({"model": model, "precision": precision, "threads": threads, "prefill": prefill, "decode": decode,
                     "backend": results[0]["backend"], "wall_seconds": sorted(r["wall"] for r in results)})
    first = runs[settings[0]][0]
    version = subprocess.run([args.binary, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    prompts = sorted({runs[s][0]["usage"]["prompt_tokens"] for s in settings})
    about = (f"prompt of {' or '.join(map(str, prompts))} tokens, {TOKENS} greedy tokens; median (fastest and slowest) of "
             f"{args.repeat} runs in which all settings take turns; version {version}, {machine()}, {first['backend'].split()[2]}.")
    os.makedirs(RESULTS, exist_ok=True)
    with open(os.path.join(RESULTS, "demo.md"), "w") as f:
        f.write(f"# The demo checkpoints, end to end\n\nWritten by `python3 tools/bench_demo.py`: {about}\n\n{table}")
    with open(os.path.join(RESULTS, "demo.json"), "w") as f:
        json.dump({"machine": machine(), "version": version, "about": about, "rows": rows}, f, indent=1)
        f.write("\n")
    readme = os.path.join(ROOT, "README.md")
    with open(readme) as f:
        text = f.read()
    text = put(text, "demo", f"{about[0].upper()}{about[1:]}\n\n{table}")
    linear = os.path.join(RESULTS, "linear.md")
    if os.path.exists(linear):
        with open(linear) as f:
            text = put(text, "linear", f.read().split("\n\n", 1)[1])
    with open(readme, "w") as f:
        f.write(text)
    print(table)


if __name__ == "__main__":
    main()
