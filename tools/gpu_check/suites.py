"""Test executables of crates/cuda."""

import os
import re

from common import last_line, run
from workload import SUITES


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


def suite(name, path, seconds):
    """One test executable: counts, time, what it printed."""
    ran = run([path, "--nocapture"], seconds, {"MLXCEL_NEED_GPU": "1", "RUST_BACKTRACE": "0"})
    result = re.search(r"test result: (\w+)\. (\d+) passed; (\d+) failed", ran.out)
    lines = [line.strip() for line in ran.out.splitlines() if line.strip() and not re.match(r"running \d+ test|test result:", line)]
    out = {"name": name, "seconds": ran.seconds, "code": ran.code, "passed": int(result.group(2)) if result else 0,
           "failed": int(result.group(3)) if result else 0, "lines": lines[-120:], "why": None,
           "state": "ok" if ran.code == 0 and result and result.group(1) == "ok" and int(result.group(2)) else "failed"}
    if out["state"] == "ok" and any(line.startswith("skipped:") for line in lines):
        out["state"] = "skipped"
    if out["state"] == "failed":
        panic = re.search(r"panicked at [^\n]*\n([^\n]*)", ran.err)
        out["why"] = (panic.group(1) if panic else last_line(ran.err or ran.out))[:600]
        out["err"] = ran.err.splitlines()[-40:]
    return out
