"""What drafting gives where weights exceed the cache, and where they do not: our side alone, measured by speculative_bench."""

import csv
import os
import statistics
import tempfile

from common import BLOCK_CONTEXT, HERE, ROOT, WIDTHS, BenchError, output_of, parse_json, say

PROMPTS = os.path.join(os.path.dirname(HERE), "prompts", "copying.jsonl")
SHAPE = "gemma-4-1b"
# A published acceptance rate of 0.64 at K=4, 2.9 tokens a round: each draft right with this probability, given those before it.
PROBABILITY = 0.795
EMBEDDED = ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"]
LISTING = "Count from one to one hundred in words, and say something about each number."


def rows_of(text, what):
    """The rows with drafts of a table of speculative_bench, and what counts of them."""
    out = []
    for row in csv.DictReader(text.splitlines()):
        if row["k"] == "1":
            continue
        if row["status"] != "ok" or row["output_identical"] != "true":
            raise BenchError(f"{what}, {row['prompt']}: status ok and output_identical expected, found {row['status']} {row['status_why']}, "
                             f"{row['output_identical']}")
        out.append({"prompt": row["prompt"], "k": row["k"], "speedup": float(row["speedup_median"]), "low": float(row["speedup_min"]),
                    "high": float(row["speedup_max"]), "rate": float(row["acceptance_rate"] or 0), "tok_s": float(row["tokens_per_second_median"])})
    if not out:
        raise BenchError(f"{what}: rows with drafts expected, found none")
    return out


def bench(program, what, threads, runs, arguments):
    say(f"speculation: {what}, {threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "rows.csv")
        output_of([program, "--quiet", "--csv", table, "--threads", str(threads), "--repeat", str(runs), *arguments])
        with open(table, encoding="utf-8", newline="") as f:
            return rows_of(f.read(), what)


def relative(report):
    """t(K)/t(1) by width, of medians."""
    times = {row["rows"]: statistics.median(row["seconds"]) for row in report["verify"]}
    return {str(k): times[k] / times[1] for k in WIDTHS}


def measure(mlxcel, program, models, threads, runs):
    """The section of the report."""
    smol, shape = os.path.join(models.folder, "ours-8bit"), os.path.join(models.folder, SHAPE)
    if not os.path.exists(os.path.join(smol, "config.json")):
        output_of([mlxcel, "convert", models.source(), "-o", smol, "--bits", "8", "--group-size", "64", "--dtype", "bf16", "--quiet"])
    if not os.path.exists(os.path.join(f"{shape}-assistant", "config.json")):
        output_of([mlxcel, "synth", "--shape", SHAPE, "--bits", "4", "--quiet", "--force", shape])
    out = []
    for t in threads:
        cost = output_of([program, "cost", "--target", shape, "--threads", str(t), "--prompt", "0", "--contexts", str(BLOCK_CONTEXT), "--tokens", "8",
                          "--block-context", str(BLOCK_CONTEXT), "--widths", ",".join(map(str, WIDTHS)), "--repeat", str(runs), "--json"])
        out.append({
            "threads": t,
            "copying": bench(program, "SmolLM2 at 8 bits, prompt lookup", t, runs,
                             ["--target", smol, "--kind", "ngram", "--prompts", PROMPTS, "--k-values", "adaptive", "-n", "120"]),
            "shape": bench(program, f"{SHAPE}, simulated", t, runs,
                           ["--target", shape, "--simulate-acceptance", str(PROBABILITY), "--k-values", "4", "-n", "256", "--ignore-eos", "--prompt", LISTING]),
            "shape_relative": relative(parse_json(cost, "speculative_bench cost")),
            "embedded": {name: bench(program, name, t, runs, ["--target", os.path.join(ROOT, "models", name), "--k-values", "adaptive"])
                         for name in EMBEDDED},
        })
    return out
