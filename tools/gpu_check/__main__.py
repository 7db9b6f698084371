#!/usr/bin/env python3
"""Everything that is said of a GPU, checked and measured on it in one run of minutes, and the pages written from what it found.

    python3 tools/gpu_check --bin bin --tests bin --out run.json           all of it on a GPU, within 9 minutes
    python3 tools/gpu_check --bin bin --tests bin --out run.json --quick   one shape, cut to 12 layers; fewer repetitions
    python3 tools/gpu_check --bin bin --backend cpu --only machine,sweep --out cpu.json
                                                                           a processor's side of acceptance across hosts
    python3 tools/gpu_check --bin bin --backend cpu --shape gemma-4-1b:2 --prompt 64 --context 64 --out t.json
                                                                           to see that it works, without a GPU
    python3 tools/gpu_check page run.json [--cpu cpu.json]                 docs/benchmark_results/{gpu,acceptance_across_hosts,
                                                                           gemma_4_31b_exactness}.md
    python3 tools/gpu_check --self-test                                    planted faults, each of them seen; no GPU, seconds

`--bin` holds mlxcel and speculative_bench, `--tests` the test executables of crates/cuda (row_law, fusion, wide, walks, identity, with or without
the hash that cargo gives them; one that is absent counts as not run, and is a problem). Python 3.9 and its standard library; bandwidth and matrix rate of the machine are measured where torch can be
imported, and are null elsewhere.

Steps (`--only`, `--skip`): machine, peaks, suites (walks and identity get a cut shape as MLXCEL_WALK_MODEL), probe (the embedded pairs), agreement (greedy answers beside those of the processor), sweep
(acceptance and speedup of the embedded pairs), shapes (probe and speed of random weights of published shapes, one sequence and 32 at once; a checkpoint is written, measured
and removed before the next; the largest takes 21 GB of --tmp). A step that fails is recorded and the next begins; one for which no time is left is
recorded as late. The JSON is written after each step. workload.py holds every parameter and target.

Exit status: 0 all laws kept and every step done, 1 a law is broken, a step failed or came too late, 2 bad arguments or files.
"""

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
import time

import machine
import probes
import speed
import suites
import verdict
import workload
from common import ROOT, Budget, CheckError, OutOfTime, say, write

STEPS = ["machine", "peaks", "suites", "probe", "agreement", "sweep", "shapes"]


class Steps:
    """The log of steps, kept in the report, which is written after each."""

    def __init__(self, report, budget, out):
        self.report, self.budget, self.out = report, budget, out

    def step(self, name):
        return Step(self, name)

    def save(self):
        self.report["budget"]["used"] = self.budget.used()
        if self.out:
            write(self.out, json.dumps(self.report, indent=1) + "\n")


class Step:
    """One step; its failure is recorded and goes no further."""

    def __init__(self, steps, name):
        self.steps, self.name, self.ok = steps, name, False

    def __enter__(self):
        self.began = time.monotonic()
        say(f"{self.steps.budget.used():4.0f} s  {self.name}")
        return self

    def __exit__(self, kind, error, _):
        known = kind is None or issubclass(kind, (CheckError, OSError, ValueError, LookupError, TypeError, ArithmeticError))
        state, why = "ok", None
        if kind is not None:
            state = "late" if kind is OutOfTime else "failed"
            why = f"a field {error} expected, found none" if issubclass(kind, LookupError) else str(error) or kind.__name__
            say(f"        {self.name}: {state}: {why}")
        self.ok = state == "ok"
        self.steps.report["steps"].append({"name": self.name, "state": state, "why": why, "seconds": round(time.monotonic() - self.began, 2)})
        self.steps.save()
        return known


def measure(args):
    """The whole report."""
    budget = Budget(args.minutes * 60, workload.LEAST)
    shapes = args.shapes or (workload.QUICK_SHAPES if args.quick else workload.SHAPES)
    report = {
        "schema": workload.SCHEMA, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "backend": args.backend,
        "quick": args.quick, "machine": None, "versions": {"mlxcel": None, "commit": None, "backend": None},
        "workload": {"shapes": shapes, "probe_widths": args.probe_widths, "probe_batches": workload.PROBE_BATCHES, "probe_draws": args.draws,
                     "sweep_k": workload.SWEEP_K, "sweep_tokens": workload.SWEEP_TOKENS, "agree_tokens": workload.AGREE_TOKENS, "prompt": args.prompt,
                     "context": args.context, "steps": workload.STEPS, "widths": workload.COST_WIDTHS, "batches": workload.BATCHES, "full": args.full, "probability": workload.PROBABILITY,
                     "published_rate": workload.PUBLISHED, "simulated_k": workload.SIMULATED_K, "simulated_tokens": workload.SIMULATED_TOKENS,
                     "repeat": args.repeat},
        "budget": {"seconds": budget.seconds, "used": 0.0}, "steps": [], "peaks": None, "suites": [], "probes": [], "sweep": None, "agreement": [],
        "speed": [],
    }
    steps = Steps(report, budget, args.out)
    folder = tempfile.mkdtemp(prefix="gpu_check-", dir=args.tmp)
    try:
        for name in STEPS:
            if name in args.only:
                WORK[name](args, report, steps, folder, shapes)
                versions(report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        steps.save()
    return report


def versions(report):
    """Of the program, as its own reports have it."""
    rows = (report["sweep"] or {}).get("rows", [])[-1:] + [e["cost"] for e in report["speed"] if e.get("cost")][-1:]
    if report["machine"]:
        report["versions"]["mlxcel"] = report["machine"]["mlxcel"]
    for row in rows:
        report["versions"].update(commit=row["commit"], backend=row["backend"])


def do_machine(args, report, steps, *_):
    with steps.step("machine"):
        report["machine"] = machine.about(args.mlxcel, steps.budget)
        gpu = report["machine"]["gpu"]
        say(f"        {gpu['name'] + ', driver ' + gpu['driver'] if gpu else 'no GPU seen'}; {report['machine']['cpu']}; {report['machine']['mlxcel']}")


def do_peaks(args, report, steps, *_):
    with steps.step("peaks"):
        report["peaks"] = machine.peaks(args.backend, steps.budget)
        found = report["peaks"]
        say(f"        none: {found['why']}" if found["why"] else f"        copy {found['copy_tb_s']['median']:.2f}, read {found['read_tb_s']:.2f} TB/s, "
            f"matrices {found['matmul_tflop_s']['median']:.0f} TFLOP/s")


def do_suites(args, report, steps, folder, _):
    if not args.tests:
        say("suites: not run, for want of --tests")
        return
    suites.run_all(args, report, steps, folder)


def do_probe(args, report, steps, *_):
    for model, drafter in workload.PAIRS.items():
        with steps.step(f"probe {model}"):
            found = probes.probe(args, model, drafter, steps.budget.limit(workload.LIMITS["probe"]))
            report["probes"].append({"shape": False, "label": model, "layers": None, "layers_of_shape": None, **found})
            say(f"        {found['verdict']}, {found['seconds']:.1f} s")


def do_agreement(args, report, steps, *_):
    with steps.step("agreement"):
        probes.agreement(args, steps.budget, report["agreement"])


def do_sweep(args, report, steps, folder, _):
    with steps.step("sweep"):
        report["sweep"] = probes.sweep(args, folder, steps.budget.limit(workload.LIMITS["sweep"]))
        rows = verdict.drafted(report["sweep"])
        say(f"        {sum(r['output_identical'] is True for r in rows)} of {len(rows)} rows identical, {report['sweep']['seconds']:.1f} s")


def do_shapes(args, report, steps, folder, shapes):
    for shape in shapes:
        speed.shape_steps(shape, args, report, steps, folder)
        if workload.COST in shape[2] and report["speed"]:
            speed.brief(report["speed"][-1])


WORK = {"machine": do_machine, "peaks": do_peaks, "suites": do_suites, "probe": do_probe, "agreement": do_agreement, "sweep": do_sweep, "shapes": do_shapes}


def shape_argument(text):
    name, _, layers = text.partition(":")
    if not name or (layers and not layers.isdigit()):
        raise argparse.ArgumentTypeError(f"NAME or NAME:LAYERS expected, found {text!r}")
    return (name, int(layers) if layers else None, workload.ALL_WORK, None)


def step_names(text):
    names = text.split(",")
    if unknown := [name for name in names if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"some of {', '.join(STEPS)} expected, found {unknown[0]!r}")
    return names


def parse(argv):
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", metavar="DIR", default=os.path.join(ROOT, "target", "release"), help="of mlxcel and speculative_bench [default: target/release]")
    parser.add_argument("--tests", metavar="DIR", help="of the test executables [default: the suites are not run]")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu"], help="[default: cuda]")
    parser.add_argument("--out", metavar="FILE", help="the report [default: standard output]")
    parser.add_argument("--quick", action="store_true", help="one cut shape, one repetition")
    parser.add_argument("--full", action="store_true", help=f"suites at full size where they have one ({', '.join(workload.FULL_SUITES)}); give them --minutes, or --only suites")
    parser.add_argument("--minutes", type=float, default=9, metavar="N", help="for all steps together [default: 9]")
    parser.add_argument("--only", type=step_names, default=STEPS, metavar="STEP,..", help="these steps alone")
    parser.add_argument("--skip", type=step_names, default=[], metavar="STEP,..", help="not these")
    parser.add_argument("--shape", dest="shapes", action="append", type=shape_argument, metavar="NAME[:LAYERS]",
                        help="probe and time this shape instead of the table's (repeatable)")
    parser.add_argument("--repeat", type=int, metavar="N", help="measured repetitions [default: 3, quick 1]")
    parser.add_argument("--draws", type=int, default=workload.PROBE_DRAWS, metavar="N", help=f"of the probe [default: {workload.PROBE_DRAWS}]")
    parser.add_argument("--prompt", type=int, default=workload.PREFILL, metavar="N", help=f"tokens of the timed prompt [default: {workload.PREFILL}]")
    parser.add_argument("--context", type=int, default=workload.CONTEXT, metavar="N", help=f"positions before steps and blocks [default: {workload.CONTEXT}]")
    parser.add_argument("--tmp", metavar="DIR", help="where checkpoints are written [default: the system's]")
    parser.add_argument("--self-test", action="store_true", help="see planted faults found, and exit")
    args = parser.parse_args(argv)
    args.repeat = args.repeat or (1 if args.quick else 3)
    args.only = [name for name in args.only if name not in args.skip]
    args.probe_widths = workload.PROBE_WIDTHS
    for name in ("bin", "tests", "out", "tmp"):
        if getattr(args, name):
            setattr(args, name, os.path.abspath(getattr(args, name)))
    args.mlxcel, args.bench = os.path.join(args.bin, "mlxcel"), os.path.join(args.bin, "speculative_bench")
    if min(args.repeat, args.draws, args.prompt, args.context, args.minutes) <= 0:
        parser.error("--repeat, --draws, --prompt, --context, --minutes: numbers above 0 expected")
    if not args.self_test:
        for path in (args.mlxcel, args.bench):
            if not os.access(path, os.X_OK):
                parser.error(f"{path}: a program expected, found none; name its folder with --bin")
        if args.tests and not os.path.isdir(args.tests):
            parser.error(f"--tests: {args.tests}: a folder expected, found none")
    return args


def check(argv):
    args = parse(argv)
    if args.self_test:
        import selftest
        return selftest.run()
    report = measure(args)
    if not args.out:
        print(json.dumps(report, indent=1))
    problems = verdict.problems(report)
    for what, kept, detail in verdict.laws(report):
        print(f"{'not run' if kept is None else 'kept' if kept else 'BROKEN'}: {what}: {detail}", file=sys.stderr)
    for shape, what, met, found, bound in verdict.targets(report):
        print(f"{'no figure' if found is None else 'no target' if met is None else 'met' if met else 'missed'}: {shape}: {what}: {'-' if found is None else f'{found:.2f}'}, {bound}", file=sys.stderr)
    for line in problems:
        print(line, file=sys.stderr)
    say(f"{len(problems)} problems in {report['budget']['used']:.0f} s")
    return 1 if problems else 0


def main(argv):
    try:
        if argv[:1] == ["page"]:
            import page
            return page.main(argv[1:])
        return check(argv)
    except (CheckError, OSError) as e:
        print(f"gpu_check: {e}", file=sys.stderr)
        return 2
    except LookupError as e:
        print(f"gpu_check: a field {e} expected in the report, found none; is it of another version?", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
