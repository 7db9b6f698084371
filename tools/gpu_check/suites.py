"""Test executables of crates/cuda, and the model that some of them walk."""

import os
import re
import shutil

from common import CheckError, last_line, run, say
from workload import FULL_SUITES, LIMITS, SUITES, SWITCHES, WALK_SHAPE, WALK_SUITES


def executables(folder):
    """{suite: newest executable} of a folder, called NAME or NAME-HASH."""
    found = {}
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        match = re.fullmatch(r"(\w+?)(-[0-9a-f]+)?", name)
        if match and match.group(1) in SUITES and os.path.isfile(path) and os.access(path, os.X_OK):
            if match.group(1) not in found or os.path.getmtime(path) > os.path.getmtime(found[match.group(1)]):
                found[match.group(1)] = path
    return found


def suite(name, path, seconds, environment):
    """One test executable: counts, time, what it printed."""
    ran = run([path, "--nocapture"], seconds, {"MLXCEL_NEED_GPU": "1", "RUST_BACKTRACE": "0", **environment})
    result = re.search(r"test result: (\w+)\. (\d+) passed; (\d+) failed", ran.out)
    lines = [line.strip() for line in ran.out.splitlines() if line.strip() and not re.match(r"running \d+ test|test result:", line)]
    out = {"name": name, "seconds": ran.seconds, "code": ran.code, "passed": int(result.group(2)) if result else 0,
           "failed": int(result.group(3)) if result else 0, "lines": lines[-120:], "why": None,
           "state": "ok" if ran.code == 0 and result and result.group(1) == "ok" and int(result.group(2)) else "failed"}
    skipped = [line for line in lines if line.startswith("skipped:")]
    if out["state"] == "ok" and skipped:
        out["state"], out["why"] = "skipped", f"in part: {skipped[0]}" if out["passed"] > len(skipped) else skipped[0]
    if out["state"] == "failed":
        panic = re.search(r"panicked at [^\n]*\n([^\n]*)", ran.err)
        out["why"] = (panic.group(1) if panic else last_line(ran.err or ran.out))[:600]
        out["err"] = ran.err.splitlines()[-40:]
    return out


def not_run(name, why):
    """What is kept of a suite that gave no verdict: nothing passed, and it says so."""
    return {"name": name, "seconds": 0.0, "code": None, "passed": 0, "failed": 0, "lines": [], "why": why, "state": "not run"}


def walk_model(args, steps, folder):
    """A checkpoint of WALK_SHAPE in the folder; None where it could not be made, which its step says."""
    shape, layers = WALK_SHAPE
    target = os.path.join(folder, "walk")
    with steps.step(f"synth {shape}, {layers} layers, for {' and '.join(WALK_SUITES)}") as step:
        run([args.mlxcel, "synth", "--shape", shape, "--layers", str(layers), "--json", "--quiet", target], steps.budget.limit(LIMITS["synth"])).must()
    return target if step.ok else None


def one(args, name, found, model, budget):
    """A suite with what it needs; an error where it is absent or does not end in time."""
    if name not in found:
        raise CheckError(f"{args.tests}: a test executable {name} or {name}-HASH expected, found none; build it with cargo test -p mlxcel-cuda --no-run --release")
    walks, full = name in WALK_SUITES, args.full and name in FULL_SUITES
    environment = {**dict.fromkeys(SWITCHES), **({"MLXCEL_WALK_MODEL": model} if walks and model else {}), **(FULL_SUITES[name] if full else {})}
    limit = budget.limit(LIMITS["full" if full else "walks" if walks else "suite"])
    return {**suite(name, found[name], limit, environment), "full": full, "model": f"{WALK_SHAPE[0]}, {WALK_SHAPE[1]} layers" if walks and model else None}


def run_all(args, report, steps, folder):
    """Every suite, in steps of their own. One that is absent, late or does not end stays in the report as not run, and its step as failed."""
    found = executables(args.tests)
    model = walk_model(args, steps, folder) if any(name in found for name in WALK_SUITES) else None
    try:
        for name in SUITES:
            with steps.step(f"suite {name}"):
                try:
                    report["suites"].append(one(args, name, found, model, steps.budget))
                except CheckError as e:
                    report["suites"].append(not_run(name, str(e)))
                    raise
                last = report["suites"][-1]
                say(f"        {last['state']}: {last['passed']} passed, {last['failed']} failed, {last['seconds']:.1f} s {last['why'] or ''}")
    finally:
        for ending in ("", "-assistant"):
            shutil.rmtree(os.path.join(folder, f"walk{ending}"), ignore_errors=True)
