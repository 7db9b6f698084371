#!/usr/bin/env python3
"""Where a step's time goes on a GPU, from what every block of threads noted (crates/cuda/src/timeline.rs).

    MLXCEL_CUDA_TIMELINE=t target/release/speculative_bench cost --target MODEL --prompt 0 --widths 1 --repeat 1 --backend cuda
    python3 tools/gpu_timeline t                    a table of one step: per kernel, and launch by launch with --launches
    python3 tools/gpu_timeline t --json
    python3 tools/gpu_timeline --self-test          planted faults, each of them seen; no GPU

A launch is told from the next of its kernel by a block that comes again. Its critical time is from the last block's end of the launch before to
its own; the gap, the part of that before its first block went on. A step begins with an embedding; the last whole one is shown. Kernels are
compiled anew for this, and noting takes time, most from kernels of many short blocks: compare tables with tables.

Exit status: 0, 2 when there is nothing to read or it is damaged.
"""

import argparse
import json
import os
import re
import statistics
import struct
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNELS = os.path.join(ROOT, "crates", "cuda", "kernels")
STAY = struct.Struct("<QQQIIII")  # came, went on, ended; line, block, blocks, processor
HEAD = re.compile(r"EXPORT\b(?:\s+CLUSTER\(\d+\))?(?:\s+__launch_bounds__\(.*?\))?\s+(\w+)\(|void (tile|item)\(", re.S)
NAMES = {"tile": "narrow", "item": "attend"}


class Fault(Exception):
    """What is wrong with the records."""


def text_of(source):
    """A kernel file as it was compiled: module.rs puts the same files one behind the other."""
    listed = re.search(rf'^\s*\w+ "{re.escape(source)}"((?: "[\w.]+")*);', read(os.path.join(ROOT, "crates", "cuda", "src", "module.rs")), re.M)
    if not listed:
        raise Fault(f"{source}: a kernel file that module.rs lists expected")
    files = ["ptx.cuh", "common.cuh", source, *re.findall(r'"([\w.]+)"', listed.group(1))]
    return "\n".join(read(os.path.join(KERNELS, name)) for name in files)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def kernel_at(text, line):
    """The kernel, or function of many, that a line of a text belongs to."""
    end = sum(len(one) + 1 for one in text.split("\n")[: line - 1])
    found = None
    for found in HEAD.finditer(text, 0, end):
        pass
    name = (found.group(1) or found.group(2)) if found else f"line {line}"
    return NAMES.get(name, name)


def launches_of(path):
    """Launches of the kernels of a file of records."""
    source = os.path.basename(path).split(".", 1)[1].removesuffix(".stays")
    with open(path, "rb") as f:
        data = f.read()
    if len(data) % STAY.size:
        raise Fault(f"{path}: records of {STAY.size} bytes expected, found {len(data)} bytes")
    stays = sorted(STAY.iter_unpack(data))
    text, names, last, out = text_of(source), {}, {}, []
    for came, went_on, ended, line, block, blocks, _ in stays:
        if not came <= went_on <= ended:
            raise Fault(f"{path}: a block that came, went on and ended in this order expected, found {came}, {went_on}, {ended}")
        if line not in names:
            names[line] = kernel_at(text, line)
        launch = last.get((line, blocks))
        if launch is None or block in launch["seen"]:
            launch = {"kernel": names[line], "blocks": blocks, "came": came, "first": went_on, "last": ended, "seen": set(), "stays": []}
            last[line, blocks] = launch
            out.append(launch)
        launch["seen"].add(block)
        launch["stays"].append(ended - went_on)
        launch["first"], launch["last"] = min(launch["first"], went_on), max(launch["last"], ended)
    return out


def steps_of(folder):
    """Steps, each a list of launches in the order of their ends."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".stays")) if os.path.isdir(folder) else []
    if not paths:
        raise Fault(f"{folder}: files of records expected, found none (was it written with MLXCEL_CUDA_TIMELINE={folder} and --backend cuda?)")
    launches = sorted((launch for path in paths for launch in launches_of(path)), key=lambda launch: launch["last"])
    steps = []
    for launch in launches:
        if launch["kernel"] == "embed" or not steps:
            steps.append([])
        steps[-1].append(launch)
    return steps


def summary(steps):
    """The last step that another begins after, or the only one."""
    step = steps[-2] if len(steps) > 1 else steps[-1]
    begun, kernels, rows = step[0]["first"], {}, []
    before = begun
    for launch in step:
        row = {"kernel": launch["kernel"], "blocks": launch["blocks"], "came": launch["came"] - begun, "first": launch["first"] - begun,
               "last": launch["last"] - begun, "critical": launch["last"] - before, "gap": launch["first"] - before,
               "block": statistics.mean(launch["stays"])}
        rows.append(row)
        kernels.setdefault((launch["kernel"], launch["blocks"]), []).append(row)
        before = launch["last"]
    table = [{"kernel": name, "blocks": blocks, "launches": len(all_), "total": sum(row["critical"] for row in all_),
              **{key: statistics.median(row[key] for row in all_) for key in ("critical", "gap", "block")}} for (name, blocks), all_ in kernels.items()]
    ends = [one[-1]["last"] for one in steps[:-1]]
    return {"step": before - begun, "period": statistics.median(b - a for a, b in zip(ends, ends[1:])) if len(ends) > 1 else None,
            "kernels": sorted(table, key=lambda row: -row["total"]), "launches": rows}


def show(found, launches):
    us = lambda ns: f"{ns / 1e3:.2f}"
    period = f", the next one's end {us(found['period'])} us after its own" if found["period"] else ""
    print(f"a step of {len(found['launches'])} launches, {us(found['step'])} us{period}\n")
    print("| kernel | blocks in x | launches | critical us | of it gap | a block | all launches |\n|---|---|---|---|---|---|---|")
    for row in found["kernels"]:
        print(f"| {row['kernel']} | {row['blocks']} | {row['launches']} | {us(row['critical'])} | {us(row['gap'])} | {us(row['block'])} | {us(row['total'])} |")
    if launches:
        print("\n| launch | blocks in x | first came | first went on | last ended |\n|---|---|---|---|---|")
        for row in found["launches"]:
            print(f"| {row['kernel']} | {row['blocks']} | {us(row['came'])} | {us(row['first'])} | {us(row['last'])} |")


def self_test():
    text = text_of("rows.cu")
    lines = text.split("\n")
    line_in = lambda head: next(i for i, one in enumerate(lines, 1) if i > next(j for j, l in enumerate(lines, 1) if head in l) and "_others()" in one)
    assert kernel_at(text, line_in("EXPORT argmax(")) == "argmax" and kernel_at(text, line_in("EXPORT norms(")) == "norms"
    linear = text_of("linear.cu")
    waits = [i for i, one in enumerate(linear.split("\n"), 1) if "wait_for_others();" in one and "__device__" not in one]
    assert {"narrow", "split_8", "wide_128", "linear_pairs"} <= {kernel_at(linear, i) for i in waits}, "a kernel is not told from its line"
    embed = next(i for i, one in enumerate(linear.split("\n"), 1) if "EXPORT embed(" in one) + 1
    # Three steps: an embedding of two blocks, then a norm that came early and waited.
    norm, stays = line_in("EXPORT norms("), {"linear.cu": [], "rows.cu": []}
    for at in (0, 100_000, 200_000):
        stays["linear.cu"] += [(at, at, at + 1000, embed, b, 2, b) for b in range(2)]
        stays["rows.cu"] += [(at + 10, at + 1500, at + 4000, norm, 0, 1, 5)]
    with tempfile.TemporaryDirectory() as folder:
        def put(records, damage=b""):
            for i, (source, all_) in enumerate(records.items()):
                with open(os.path.join(folder, f"{i}.{source}.stays"), "wb") as f:
                    f.write(b"".join(STAY.pack(*one) for one in all_) + damage)
        put(stays)
        found = summary(steps_of(folder))
        kernels = {row["kernel"]: row for row in found["kernels"]}
        assert found["step"] == 4000 and found["period"] == 100_000 and set(kernels) == {"embed", "norms"}, found
        assert kernels["norms"]["critical"] == 3000 and kernels["norms"]["gap"] == 500 and kernels["norms"]["block"] == 2500, kernels
        for damaged, damage, words in [(stays, b"x", "records of 40 bytes"), ({"rows.cu": [(5, 4, 6, norm, 0, 1, 0)]}, b"", "in this order"),
                                       ({"other.cu": []}, b"", "module.rs lists")]:
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            put(damaged, damage)
            try:
                steps_of(folder)
            except Fault as fault:
                assert words in str(fault), fault
            else:
                raise AssertionError(f"{words}: not seen")
    try:
        steps_of(os.path.join(folder, "none"))
    except Fault as fault:
        assert "MLXCEL_CUDA_TIMELINE" in str(fault)
    else:
        raise AssertionError("an absent folder: not seen")
    print("gpu_timeline: 4 planted faults of 4 seen")


def main():
    parser = argparse.ArgumentParser(prog="gpu_timeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--launches", action="store_true", help="every launch of the step, too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if not args.folder:
        parser.error("a folder of records expected")
    try:
        found = summary(steps_of(args.folder))
    except (Fault, OSError) as fault:
        print(f"gpu_timeline: {fault}", file=sys.stderr)
        sys.exit(2)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, args.launches)


main()
