"""The whole recipe at a toy size, on a CPU: both recipes from corpus to answer. smoke.sh prepares the environment and calls this.

Checked of each recipe: that the held-out loss fell far enough; that the exported files, run by the reference code, give the logits of
the trained weights (target and drafter); that mlxcel loads them, answers with the reference's tokens, drafts with the drafter beside
the target, and says the same without it. The environment variable TRAIN_FAULT plants a fault; the run must then fail. --self-test
plants each one into a copy of what the run before left in OUT and ends with an error if a check does not find it.
"""

import argparse
import os
import shutil
import sys
import time

from ..common.export import read_json
from . import checks, faults, gemma4, qwen3_5

RECIPES = {"gemma4": gemma4, "qwen3_5": qwen3_5}
STEPS, SHORT_STEPS = 300, 30


def folders(recipe, out):
    """Paths of target and drafter."""
    return os.path.join(out, recipe.NAME + "-4bit"), os.path.join(out, recipe.NAME + recipe.DRAFTER)


def check_all(recipe, run, out, mlxcel):
    """Every check of a recipe; `run` has the weights, `out` the exported folders."""
    target, drafter = folders(recipe, out)
    checks.loss_fell(recipe.NAME, read_json(os.path.join(run, "target.json")), recipe.NATS)
    for ending, names in recipe.FILES.items():
        checks.folder_is_complete(os.path.join(out, recipe.NAME + ending), names)
    try:
        recipe.check_files(run, target, drafter)
        expected = recipe.expected_ids(target, drafter, recipe.QUESTIONS[0])
    except (RuntimeError, ValueError) as error:
        raise checks.CheckFailed(f"{target}: the reference cannot run the exported files: {error}") from error
    checks.answers_as_reference(mlxcel, target, recipe.QUESTIONS[0], expected)
    checks.drafts(mlxcel, target, os.path.basename(drafter), recipe.QUESTIONS)


def smoke(recipe, name, out, mlxcel, fault):
    """Trains, exports and checks one recipe."""
    work = os.path.join(out, "work-" + name)
    shutil.rmtree(work, ignore_errors=True)
    began = time.time()
    recipe.train(work, out, SHORT_STEPS if fault == faults.SHORT else STEPS)
    shutil.rmtree(os.path.join(out, recipe.NAME + "-assistant-bf16"), ignore_errors=True)  # mlxcel takes the smaller one anyway
    if fault in faults.EXPORT_FAULTS:
        faults.EXPORT_FAULTS[fault](*folders(recipe, out))
    check_all(recipe, os.path.join(work, "run"), out, mlxcel)
    print(f"== {recipe.NAME}: trained, exported and checked in {time.time() - began:.0f} s", flush=True)


def self_test(recipe, name, out, mlxcel):
    """Every fault in a copy of a good run must be found."""
    run = os.path.join(out, "work-" + name, "run")
    if not os.path.exists(os.path.join(run, "target.json")):
        sys.exit(f"{run}: no finished run to plant faults in; run smoke.sh {out} without --self-test first")
    for fault, plant in [(None, lambda *_: None), *faults.EXPORT_FAULTS.items()]:
        copy = os.path.join(out, f"fault-{fault}")
        shutil.rmtree(copy, ignore_errors=True)
        os.makedirs(copy)
        for ending in recipe.FILES:
            shutil.copytree(os.path.join(out, recipe.NAME + ending), os.path.join(copy, recipe.NAME + ending))
        plant(*folders(recipe, copy))
        expect(fault, lambda: check_all(recipe, run, copy, mlxcel))
        shutil.rmtree(copy)
    short = os.path.join(out, "fault-" + faults.SHORT)
    recipe.train(short, short, SHORT_STEPS)
    record = read_json(os.path.join(short, "run", "target.json"))
    expect(faults.SHORT, lambda: checks.loss_fell(recipe.NAME, record, recipe.NATS))
    shutil.rmtree(short)


def expect(fault, check):
    """Runs a check that must fail, unless there is no fault."""
    try:
        check()
    except checks.CheckFailed as failure:
        if fault is None:
            raise
        print(f"found: {fault}: {str(failure)[:200]}", flush=True)
        return
    if fault is not None:
        sys.exit(f"self-test: the planted fault {fault!r} was not found")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="smoke.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder for the models and the work files")
    parser.add_argument("--mlxcel", required=True, help="the program that runs the models")
    parser.add_argument("--only", choices=list(RECIPES), help="one recipe alone")
    parser.add_argument("--self-test", action="store_true", help="plant faults into what the run before left")
    args = parser.parse_args(argv)
    if not os.path.exists(args.mlxcel):
        sys.exit(f"{args.mlxcel}: no such program; build it (cargo build --release -p mlxcel-cli) or set MLXCEL to its path")
    fault = os.environ.get("TRAIN_FAULT")
    if fault and fault not in faults.ALL:
        sys.exit(f"TRAIN_FAULT={fault}: no such fault; there are {', '.join(faults.ALL)}")
    os.makedirs(args.out, exist_ok=True)
    try:
        for name, recipe in RECIPES.items():
            if args.only in (None, name):
                if args.self_test:
                    self_test(recipe, name, args.out, args.mlxcel)
                else:
                    smoke(recipe, name, args.out, args.mlxcel, fault)
    except checks.CheckFailed as failure:
        sys.exit(f"FAILED: {failure}")


if __name__ == "__main__":
    main()
