"""Places, the error a user can mend, and running programs."""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(ROOT, "target", "bench_peers")
RESULTS = os.path.join(ROOT, "docs", "benchmark_results")
TIMEOUT = 900

# The workload, the same on both sides.
PROMPT = 512
CONTEXTS = [128, 2048]
TOKENS = 64
BLOCK_CONTEXT = 128
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 16]
POSITIONS = max(CONTEXTS) + TOKENS


class BenchError(Exception):
    """Something a user can mend; the message says how."""


def say(text):
    """Progress, on standard error."""
    print(f"[bench_peers] {text}", file=sys.stderr, flush=True)


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing on standard error"


def output_of(command, timeout=TIMEOUT, environment=None):
    """Standard output of a program, and its peak resident bytes."""
    name = os.path.basename(command[0])
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=ROOT,
                                   env=environment)
    except OSError as e:
        raise BenchError(f"{command[0]}: {e.strerror}") from None
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise BenchError(f"{name}: an end within {timeout} s expected; is the machine very busy?") from None
    if process.returncode != 0:
        why = last_line(err.decode(errors="replace"))
        raise BenchError(f"{name} {' '.join(command[1:3])}: exit code 0 expected, found {process.returncode}: {why}")
    return out.decode(errors="replace")


def parse_json(text, name):
    """A program's JSON."""
    try:
        return json.loads(text)
    except ValueError as e:
        raise BenchError(f"{name}: JSON expected, found {text[:60]!r}: {e}") from None
