"""The whole check over programs that print canned outputs, and faults that it, the verdict and the pages must see. No GPU, no model."""

import copy
import io
import json
import os
import shutil
import struct
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout

import __main__ as check
import hosts
import page
import probes
import suites
import verdict
import workload
from common import Budget, CheckError, OutOfTime, run as run_program
from fake import FAKE

# What a shell may have set, and no suite may see.
SWITCHES = {"MLXCEL_GPU_QUICK": "1", "MLXCEL_WALK_BACKEND": "cpu", "MLXCEL_IDENTITY": "full", "MLXCEL_GPU_FULL": "1"}
EXECUTABLES = ("row_law-0a", "fusion", "wide", "walks", "identity-1b")


def programs(folder):
    for name in ("mlxcel", "speculative_bench", *EXECUTABLES):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(FAKE.replace("@PYTHON@", sys.executable))
        os.chmod(path, 0o755)


def checked(folder, fault, *more):
    """Exit status, report and what was said, of a check over the programs with a fault."""
    out, said = os.path.join(folder, f"{fault or 'good'}.json"), io.StringIO()
    os.environ.update(GPU_CHECK_FAULT=fault, **SWITCHES)
    try:
        with redirect_stderr(said), redirect_stdout(said):
            code = check.main(["--bin", folder, "--tests", folder, "--out", out, "--quick", "--tmp", folder, "--skip", "peaks", *more])
    finally:
        for name in ("GPU_CHECK_FAULT", *SWITCHES):
            del os.environ[name]
    with open(out, encoding="utf-8") as f:
        return code, json.load(f), said.getvalue()


def expect(what, holds, detail=""):
    if not holds:
        raise AssertionError(f"{what}: {detail}")


def refused(what, work):
    try:
        work()
    except (CheckError, LookupError) as e:
        return str(e)
    raise AssertionError(f"{what} passed")


# Fault, steps to run, what the check must say, page and text on it (None: the pages need not say).
FAULTS = [
    ("suite", "suites", "broken: suite fusion: 1 passed, 1 failed", "gpu", "| suite fusion | NO |"),
    ("walks", "suites", "broken: suite walks: 1 passed, 1 failed", "gpu", "the row law is broken; with gemma-4-31b, 12 layers |"),
    ("identity", "suites", "broken: suite identity: 1 passed, 1 failed", "gpu", "| suite identity | NO |"),
    ("walk_synth", "suites", "failed: synth gemma-4-31b, 12 layers, for walks and identity: mlxcel synth: exit code 0 expected, found 1: no space is left", "gpu",
     "| suite walks | not run | in part: skipped: MLXCEL_WALK_MODEL names no checkpoint |"),
    ("batch_row", "shapes", "single steps of batches [1, 32] expected, found [1]", "gpu", "| - | - |"),
    ("batch_rows", "shapes", "2048 rows of batch 32 expected, found 64", "gpu", "2048 rows of batch 32 expected, found 64"),
    ("batch_memory", "shapes", "failed: batch gemma-4-31b, 12 layers: speculative_bench cost: exit code 0 expected, found 1: 36 GB of KV pages do not fit", "gpu",
     "36 GB of KV pages do not fit"),
    ("probe", "shapes", "broken: probe gemma-4-31b, 12 layers: inexact", "gemma_4_31b_exactness", "INEXACT from position 1030"),
    ("width", "probe", "outcomes of every width and batch expected", "gpu", "did not pass"),
    ("sweep", "sweep", "broken: output with drafts is plain decoding's: 0 of 3", "gpu", "| NO | 0 of 3 rows"),
    ("unmeasured", "sweep", "3 not measured: a failing probe", "gpu", "a failing probe"),
    ("simulated", "shapes", "broken: output with drafts, gemma-4-31b, 12 layers: K = 2, 4, 8 differs", "gpu", "gemma-4-31b, 12 layers | NO | K = 2, 4, 8 differs"),
    ("far", "agreement", "parts at token 7, whose margin is 3.00", "gpu", "token 7, margin 3.000"),
    ("tokens", "agreement", "tokens of prompt expected", "gpu", "did not pass"),
    ("crash", "shapes", "exit code 0 expected, found 1: out of memory", "gpu", "out of memory"),
    ("zero", "shapes", "numbers above 0 expected", "gpu", "numbers above 0 expected"),
    ("field", "shapes", "a field 'prefill' expected", "gpu", "a field 'prefill' expected"),
]


def whole(folder):
    """A run without a fault passes; each fault is told by exit status, by words and by a page."""
    code, good, said = checked(folder, "")
    expect("a good run", code == 0 and "0 problems" in said, said)
    expect("a good run's steps", {s["state"] for s in good["steps"]} == {"ok"} and len(good["steps"]) == 16, good["steps"])
    expect("checkpoints are gone", not [n for n in os.listdir(folder) if n.startswith("gpu_check-")], os.listdir(folder))
    texts = page.render(good, good)
    expect("good pages", "NO" not in texts["gpu"].replace("not ", "") and "did not pass" not in texts["gpu"], texts["gpu"])
    expect("good exactness", "INEXACT" not in texts["gemma_4_31b_exactness"] and "**EXACT**" in texts["gemma_4_31b_exactness"], texts["gemma_4_31b_exactness"])
    expect("batches and sides", "batch 8, after the wrap" in texts["gemma_4_31b_exactness"])
    expect("hosts", "the same drafts and tokens in all 2 rounds" in texts["acceptance_across_hosts"], texts["acceptance_across_hosts"])
    expect("the GPU alone", "The same checkpoints" in page.render(good)["acceptance_across_hosts"] and "CPU |" not in page.render(good)["acceptance_across_hosts"])
    cost = good["speed"][0]["cost"]
    expect("a step", abs(cost["step_s"]["median"] - 0.01) < 1e-12 and cost["relative"]["16"] == 1 and cost["share_of_read"] is None, cost)
    sizes = {key: good["speed"][0][key] for key in ("parameters", "prompt_parameters")}
    expect("parameters", sizes == {"parameters": 164 * 128, "prompt_parameters": 64 * 128} and good["speed"][0]["read_bytes"] == good["speed"][0]["file_bytes"], sizes)
    batch = good["speed"][0]["batch"]
    expect("a batch", abs(batch["step_s"]["32"]["median"] - 0.02) < 1e-12 and abs(batch["relative"]["32"] - 16) < 1e-9 and batch["relative"]["1"] == 1, batch)
    expect("a batch on the page", "| decode of 32 at once, tok/s | of one's |" in texts["gpu"] and "| 1600 (1333–1778) | 16.0 |" in texts["gpu"], texts["gpu"])
    expect("suites with a model", [s.get("model") is not None for s in good["suites"]] == [False, False, False, True, True], good["suites"])
    for fault, only, words, where, text in FAULTS:
        code, report, said = checked(folder, fault, "--only", only)
        expect(f"fault {fault}: exit status", code == 1, code)
        expect(f"fault {fault}: words", words in said, said)
        expect(f"fault {fault}: page", text in page.render(report)[where], page.render(report)[where])
        path = os.path.join(folder, f"{fault}.json")
        with redirect_stderr(io.StringIO()):
            expect(f"fault {fault}: status of page", check.main(["page", path, "--out", os.path.join(folder, "pages")]) == 1)
    # Near-ties are no fault, a slow block is a missed target and no broken law.
    code, report, said = checked(folder, "tie", "--only", "agreement")
    expect("a near-tie", code == 0 and "6 of 7 answers equal; the others part at near-ties" in said, said)
    code, report, said = checked(folder, "wide", "--only", "shapes")
    expect("a slow block", code == 0 and "missed: gemma-4-31b, 12 layers: t(16)/t(1): 11.00" in said and "| at most 1.2 | NO |" in page.render(report)["gpu"], said)
    return good, len(FAULTS) + 2


def budgets_and_suites(folder):
    """Programs that hang, suites that are not there: late, failed, not run, and never a verdict."""
    # The budget: a program that hangs is ended, what comes after is late.
    least, workload.LEAST = workload.LEAST, 0.5
    try:
        code, report, said = checked(folder, "hang", "--only", "probe,shapes", "--minutes", "0.02")
    finally:
        workload.LEAST = least
    states = [s["state"] for s in report["steps"]]
    expect("a program that hangs", code == 1 and states[0] == "failed" and set(states[1:]) == {"late"} and "late: synth" in said, said)
    limit, workload.LIMITS["walks"] = workload.LIMITS["walks"], 1
    try:
        code, report, said = checked(folder, "endless", "--only", "suites")
    finally:
        workload.LIMITS["walks"] = limit
    states = {s["name"]: s["state"] for s in report["suites"]}
    expect("a suite that hangs", code == 1 and states["walks"] == "not run" and states["identity"] == "ok", said)
    expect("a suite that hangs, on the page", "| suite walks | not run | walks: an end within 1 s expected" in page.render(report)["gpu"], page.render(report)["gpu"])
    code, report, said = checked(folder, "full", "--only", "suites", "--full")
    expect("full size", code == 0 and report["workload"]["full"] and "; at full size |" in page.render(report)["gpu"], said)
    # Absent, all of them and one of them.
    nothing = os.path.join(folder, "nothing")
    os.makedirs(nothing)
    code, report, said = checked(folder, "", "--only", "suites", "--tests", nothing)
    expect("suites that are not there", code == 1 and "a test executable row_law or row_law-HASH expected" in said and "synth" not in said, said)
    expect("nothing ran", {s["state"] for s in report["suites"]} == {"not run"} and len(report["suites"]) == len(workload.SUITES), report["suites"])
    for name in EXECUTABLES:
        if name != "walks":
            shutil.copy(os.path.join(folder, name), os.path.join(nothing, name))
    code, report, said = checked(folder, "", "--only", "suites", "--tests", nothing)
    expect("one suite that is not there", code == 1 and "not run: suite walks: " in said and "kept: suite identity" in said and "failed: suite walks" in said, said)
    expect("one suite, on the page", "| suite walks | not run | " in page.render(report)["gpu"], page.render(report)["gpu"])
    return 5


def shapes(folder, good):
    """Targets that are missed, figures without a target, mixtures of experts, reports from before there were batches."""
    for fault, verdict_of, cell in (("", "met", "16.00 | at least 12 | yes"), ("ratio", "missed", "10.67 | at least 12 | NO")):
        code, report, said = checked(folder, fault, "--only", "shapes", "--shape", "gemma-4-31b")
        expect(f"a batch {verdict_of}", code == 0 and f"{verdict_of}: gemma-4-31b: decode of 32 sequences at once, of one's" in said, said)
        expect(f"a batch {verdict_of}, on the page", cell in page.render(report)["gpu"], page.render(report)["gpu"])
    expect("no target of another shape", "| 16.00 | none named | - |" in page.render(good)["gpu"], page.render(good)["gpu"])
    for name in workload.UNTARGETED:
        code, report, said = checked(folder, "ratio", "--only", "shapes", "--shape", name)
        text, entry = page.render(report)["gpu"], report["speed"][0]
        expect(f"{name}: figures", code == 0 and f"no target: {name}: t(16)/t(1): 1.00, none named" in said and "missed" not in said and "at most" not in text, said)
        expect(f"{name}: experts on the page", f"{name}: 2 of 8" in text, text)
        # Two of eight experts of 64 x 128; beside them the table and a dense matrix. A group of 64 values weighs 36 bytes.
        expert, header = 64 * 2 * (32 + 4), entry["file_bytes"] - (164 + 512) * 2 * (32 + 4)
        sizes = {key: entry[key] for key in ("parameters", "prompt_parameters", "read_bytes")}
        expected = {"parameters": (164 + 512) * 128, "prompt_parameters": (64 + 128) * 128, "read_bytes": header + 164 * 2 * (32 + 4) + 2 * expert}
        expect(f"{name}: sizes", sizes == expected, (sizes, expected))
    for fault, words in (("top_k", "top_k_experts or num_experts_per_tok: 1 to 8 (num_experts) expected, found None"), ("dense", "tensors [8, rows, columns] of experts expected")):
        code, report, said = checked(folder, fault, "--only", "shapes", "--shape", "gemma-4-26b-a4b")
        expect(f"fault {fault}", code == 1 and words in said and words in page.render(report)["gpu"], said)
    old = copy.deepcopy(good)
    del old["speed"][0]["batch"], old["speed"][0]["experts"], old["workload"]["batches"], old["workload"]["full"]
    for suite in old["suites"]:
        suite.pop("model"), suite.pop("full")
    text = page.render(old)["gpu"]
    expect("a report from before", "| decode of many at once, tok/s | of one's |" in text and "| - | - |" in text and "none named" not in text, text)
    old["speed"][0]["label"] = "gemma-4-31b"
    expect("a report from before, of the target's shape", "one's | - | at least 12 | - |" in page.render(old)["gpu"], page.render(old)["gpu"])
    expect("README", "| 16.0 |" in page.readme_text(good) and "| - |" in page.readme_text(old), page.readme_text(good))
    cut = copy.deepcopy(good["speed"][0]) | {"layers": 12, "label": "of 12 layers"}
    both, alone = ({**good, "speed": speed} for speed in ([cut, {**good["speed"][0], "layers": None}], [cut]))
    expect("README without what is cut", "of 12 layers" not in page.readme_text(both) and "of 12 layers" in page.readme_text(alone), page.readme_text(both))
    return 9


def reports(folder, good):
    """Reports that lack a field, are of another version, or none at all."""
    count = 0
    path = os.path.join(folder, "bad.json")
    for field in verdict.NEEDED + ["another version"]:
        bad = {key: value for key, value in good.items() if key != field}
        if field == "another version":
            bad["schema"] = workload.SCHEMA + 1
        with open(path, "w", encoding="utf-8") as f:
            json.dump(bad, f)
        said = io.StringIO()
        with redirect_stderr(said):
            code = check.main(["page", path, "--out", os.path.join(folder, "pages")])
        expect(f"a report without {field}", code == 2 and "expected" in said.getvalue(), said.getvalue())
        count += 1
    deep = copy.deepcopy(good)
    del deep["probes"][0]["verdict"]
    expect("a probe without a verdict", "verdict" in refused("a probe without a verdict", lambda: page.render(deep)))
    expect("--cpu without a sweep", "step sweep expected" in refused("--cpu without a sweep", lambda: page.render(good, {**good, "sweep": None})))
    with open(path, "w", encoding="utf-8") as f:
        f.write("no JSON")
    with redirect_stderr(io.StringIO()):
        expect("no JSON", check.main(["page", path]) == 2)
        expect("no file", check.main(["page", path + ".absent"]) == 2)
    lying = copy.deepcopy(good)
    lying["probes"][0]["outcomes"][0].update(exact=False, first={"position": 3})
    expect("a verdict that its outcomes do not bear out", verdict.problems(lying))
    return count + 5


def partings():
    """Where two hosts part, and why."""
    base = {"checkpoint": "c", "prompt_ids": "1,2,3", "drafts": "5,7;8,9", "tokens": "5,6;8,9,4", "margins": "2,3;1,0.2,4", "draft_margins": "1,1;0.3,2"}
    cases = [
        ({}, "same", "all 2 rounds"),
        ({"drafts": "5,7;8,1", "draft_margins": "1,1;0.3,0.04"}, "drafts", "position 6, the drafter's two likeliest 0.04 apart; the same answer"),
        ({"tokens": "5,6;8,7,4"}, "tokens", "part at position 6, the target's two likeliest tokens 0.2 apart"),
        ({"tokens": "5,1;8,9,4"}, "tokens", "part at position 4, the target's two likeliest tokens 3 apart, no near-tie"),
        ({"drafts": "5,7;1,9", "tokens": "5,6;8,7,4"}, "tokens", "other drafts from position 5, the drafter's two likeliest 0.3 apart; answers part at position 6"),
        ({"checkpoint": "d"}, "other", "another checkpoint"),
        ({"prompt_ids": "1,2,4"}, "other", "another prompt"),
    ]
    for change, kind, words in cases:
        found = hosts.parting(base, {**base, **change})
        expect(f"parting {change}", found[0] == kind and words in found[1], found)
    expect("no trace", hosts.parting(base, None)[0] == "unknown")
    probe = {"window": 1024, "outcomes": [{"width": 2, "batch": 1, "mixed": False, "exact": False, "first": {"position": 50}}]}
    expect("before the wrap", verdict.probed_cell(probe, 2, 1, False) == ("INEXACT from position 50", False))
    expect("behind the wrap", "not told" in verdict.probed_cell(probe, 2, 1, True)[0] and verdict.probed_cell(probe, 3, 1, True)[0] == "not run")
    expect("a difference of length", probes.parting([1, 2], [1]) == 1 and probes.parting([1], [1]) is None)
    return len(cases) + 4


def basics(folder):
    expect("a missing program", "no-such" in refused("a missing program", lambda: run_program(["/no-such"], 1)))
    expect("time", isinstance(Budget(0.5, 10).limit(0.1), float))
    try:
        Budget(0.5, 10).limit(20)
        raise AssertionError("a budget that is spent passed")
    except OutOfTime:
        pass
    path = os.path.join(folder, "row_law-0b")
    shutil.copy(os.path.join(folder, "row_law-0a"), path)
    os.utime(path, (1, 1))
    expect("the newest executable", suites.executables(folder)["row_law"].endswith("row_law-0a"))
    os.remove(path)
    with open(os.path.join(folder, "x.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", 2) + b"{}")
    for arguments in (["--minutes", "0"], ["--only", "nothing"], ["--shape", "x:y"], ["--bin", os.path.join(folder, "absent")]):
        with redirect_stderr(io.StringIO()):
            try:
                check.parse(["--bin", folder, *arguments])
                raise AssertionError(f"{arguments} passed")
            except SystemExit as e:
                expect(f"{arguments}", e.code == 2)
    return 8


def run():
    """Everything; an assertion fails otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        programs(folder)
        good, count = whole(folder)
        count += budgets_and_suites(folder) + shapes(folder, good) + reports(folder, good) + partings() + basics(folder)
    print(f"gpu_check: {count} faults planted and found")
    return 0
