"""Places, errors, running programs within a budget of time."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RESULTS = os.path.join(ROOT, "docs", "benchmark_results")


class CheckError(Exception):
    """A step that did not give what it should have; the message says why."""


class OutOfTime(CheckError):
    """A step for which too little of the budget is left."""


def say(text):
    """Progress, on standard error."""
    print(f"[gpu_check] {text}", file=sys.stderr, flush=True)


class Budget:
    """Seconds that all steps share."""

    def __init__(self, seconds, least):
        self.began, self.seconds, self.least = time.monotonic(), seconds, least

    def used(self):
        return time.monotonic() - self.began

    def limit(self, wanted):
        """Seconds that a program may take."""
        left = self.seconds - self.used()
        if left < min(self.least, wanted):
            raise OutOfTime(f"{left:.0f} s of {self.seconds:.0f} were left")
        return min(wanted, left)


class Ran:
    """A program that ended."""

    def __init__(self, name, code, out, err, seconds):
        self.name, self.code, self.out, self.err, self.seconds = name, code, out, err, seconds

    def json(self, codes=(0,)):
        """Its output as JSON; an error where the exit code is none of these."""
        self.must(codes)
        return parse_json(self.out, self.name)

    def must(self, codes=(0,)):
        if self.code not in codes:
            raise CheckError(f"{self.name}: exit code {' or '.join(map(str, codes))} expected, found {self.code}: {last_line(self.err or self.out)}")
        return self


def run(command, seconds, environment=None):
    """Runs a program from the root of the project; past the limit it and its children are ended. A variable of None is taken out of its environment."""
    name = " ".join([os.path.basename(command[0]), *[a for a in command[1:2] if not a.startswith("-")]])
    began = time.monotonic()
    variables = {name: value for name, value in {**os.environ, **(environment or {})}.items() if value is not None}
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=ROOT,
                                   env=variables, start_new_session=True)
    except OSError as e:
        raise CheckError(f"{command[0]}: {e.strerror}") from None
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException as e:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            said = last_line((out or err).decode(errors="replace"))[:200]
            raise CheckError(f"{name}: an end within {seconds:.0f} s expected; it said last: {said}") from None
        raise
    text = lambda b: b.decode(errors="replace")
    return Ran(name, process.returncode, text(out), text(err), time.monotonic() - began)


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "nothing was printed"


def parse_json(text, name):
    try:
        return json.loads(text)
    except ValueError as e:
        raise CheckError(f"{name}: JSON expected, found {text[:60]!r}: {e}") from None


def read_json(path, name):
    try:
        with open(path, encoding="utf-8") as f:
            return parse_json(f.read(), name)
    except OSError as e:
        raise CheckError(f"{name}: {path}: {e.strerror}") from None


def write(path, text):
    """Whole or not at all."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(partial, path)


def spread(values):
    """Median, lowest, highest; an error where they are not times or rates."""
    if not values or not all(isinstance(v, (int, float)) and v > 0 for v in values):
        raise CheckError(f"numbers above 0 expected, found {str(values)[:60]}")
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
