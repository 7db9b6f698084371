#!/usr/bin/env python3
"""Runs speculative_bench over the embedded pairs and writes what the docs show of it.

    python3 tools/bench_results.py [--binary target/release/speculative_bench] [--repeat 9]

Writes docs/benchmark_results/NAME.{md,csv,svg} for each of SWEEPS, the index of their rows (docs/benchmark_results/README.md) and the
table of README.md. Every figure is the bench's own. Wants an idle machine. Needs Python's standard library only.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys

from bench_demo import RESULTS, ROOT, put

WIDTHS = "2,3,4,5,8,adaptive"
SWEEPS = {
    "model_tests": ("all cores, one sequence", ["--k-values", WIDTHS]),
    "model_tests_1_thread": ("one thread, one sequence", ["--k-values", WIDTHS, "--threads", "1"]),
    "model_tests_batch_4": ("all cores, four sequences at once", ["--k-values", "2,4,8,adaptive", "--batch", "4"]),
    "model_tests_sampled": ("all cores, temperature 0.8, top-p 0.95", ["--k-values", "2,4,8,adaptive", "--temperature", "0.8", "--top-p", "0.95", "--seed", "1"]),
}
GPU_PAGES = {"gpu": "laws and speed of a GPU", "acceptance_across_hosts": "acceptance of the embedded pairs on a CPU and a GPU",
             "gemma_4_31b_exactness": "blocks against single steps at the shape of Gemma 4 31B"}
# The default drafter of each embedded target.
SHOWN = ["gemma-4-tiny-4bit", "qwen3.5-tiny-4bit"]


def measure(binary, name, extra, repeat):
    """One sweep with its reports; the rows."""
    at = lambda ending: os.path.join(RESULTS, f"{name}.{ending}")
    command = [binary, "--sweep", "--repeat", str(repeat), *extra, "--csv", at("csv"), "--markdown", at("md"), "--plot", at("svg")]
    status = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
    if status != 0:
        sys.exit(f"{name}: speculative_bench ended with {status}")
    with open(at("csv"), newline="") as f:
        rows = list(csv.DictReader(f))
    # The tree may lie anywhere.
    text = open(at("csv")).read().replace(ROOT + "/", "").replace("./models", "models")
    open(at("csv"), "w").write(text)
    return rows


def ranges(numbers):
    """[1, 2, 3, 7] -> '1-3, 7'."""
    out = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def index(sweeps):
    """Which rows of which file hold what."""
    text = ("# Benchmark results\n\nWritten by `python3 tools/bench_results.py` (speculation) and the commands named in the other files. "
            "[../benchmarks.md](../benchmarks.md) explains every column.\n\n"
            "| file | what | rows |\n|---|---|---|\n")
    for name, rows in sweeps.items():
        links = f"[{name}.md]({name}.md), [plot]({name}.svg), [csv]({name}.csv)"
        text += f"| {links} | the embedded pairs: {SWEEPS[name][0]} | {len(rows)} |\n"
    text += "| [demo.md](demo.md) | plain decoding and prefill of the demo checkpoints | |\n| [linear.md](linear.md) | the 4-bit linear on its own, by rows | |\n| [server.md](server.md) | the server under load, drafts off and on | |\n"
    if os.path.exists(os.path.join(RESULTS, "cpu_peers.md")):
        text += "| [cpu_peers.md](cpu_peers.md) | beside llama.cpp on a CPU (`tools/bench_peers`) | |\n"
    for page, about in GPU_PAGES.items():
        if os.path.exists(os.path.join(RESULTS, f"{page}.md")):
            text += f"| [{page}.md]({page}.md) | {about} (`tools/gpu_check`) | |\n"
    for name, rows in sweeps.items():
        text += f"\n## {name}.csv\n\nRow n is line n + 1 of the file.\n\n| pairing | prompt | rows |\n|---|---|---|\n"
        seen = {}
        for number, row in enumerate(rows, 1):
            seen.setdefault((row["pairing"], row["prompt"]), []).append(number)
        text += "".join(f"| {pairing} | {prompt} | {ranges(numbers)} |\n" for (pairing, prompt), numbers in seen.items())
    with open(os.path.join(RESULTS, "README.md"), "w") as f:
        f.write(text)


def summary(rows):
    """A line a pairing and width: medians over the prompts, rates over all drafts."""
    table = "| pair | K | decode tok/s | speedup | best prompt | worst prompt | acceptance_rate | tokens_per_round | identical |\n|---|---|---|---|---|---|---|---|---|\n"
    for pairing in SHOWN:
        widths = list(dict.fromkeys(row["k"] for row in rows if row["pairing"] == pairing))
        for k in widths:
            own = [row for row in rows if row["pairing"] == pairing and row["k"] == k]
            floats = lambda key: [float(row[key]) for row in own]
            total = lambda key: sum(int(row[key] or 0) for row in own)
            speed, ratio = floats("tokens_per_second_median"), floats("speedup_median")
            identical = "yes" if all(row["output_identical"] == "true" for row in own) else "NO"
            cells = [pairing, k, f"{statistics.median(speed):.0f}"]
            if k == "1":
                cells += ["1", "", "", "", "", ""]
            else:
                accepted, proposed, rounds = total("accepted"), total("proposed"), total("rounds")
                cells += [f"{statistics.median(ratio):.2f}", f"{max(ratio):.2f}", f"{min(ratio):.2f}", f"{accepted / proposed:.3f}",
                          f"{1 + accepted / rounds:.2f}", identical]
            table += "| " + " | ".join(cells) + " |\n"
    first = rows[0]
    about = (f"{len({row['prompt'] for row in rows})} built-in prompts, 128 greedy tokens each, medians over the prompts of medians of {first['repeat']} runs, in which plain "
             f"decoding and all widths take turns; version {first['version']}, {first['device']}, {first['backend']}, {first['date']}. "
             f"All prompts and figures: [model_tests.md](docs/benchmark_results/model_tests.md).")
    return f"{about}\n\n{table}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/speculative_bench"))
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    os.makedirs(RESULTS, exist_ok=True)
    sweeps = {name: measure(args.binary, name, extra, args.repeat) for name, (_, extra) in SWEEPS.items()}
    index(sweeps)
    readme = os.path.join(ROOT, "README.md")
    with open(readme) as f:
        text = f.read()
    table = summary(sweeps["model_tests"])
    with open(readme, "w") as f:
        f.write(put(text, "speculation", table))
    print(table)


if __name__ == "__main__":
    main()
