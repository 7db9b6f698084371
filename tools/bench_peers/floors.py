"""What our side is held to on its own: bandwidth of the quantised linear, time to a first token, memory."""

import json
import os
import subprocess
import time

from common import CONTEXTS, ROOT, TARGET, TOKENS, BenchError, last_line, output_of, say
from stats import spread

SIZE = (65536, 2048)
EMBEDDED = "gemma-4-tiny-it-4bit"


def linear_rows(report):
    """The size beyond every cache, by thread count, of the report of `cargo bench --bench linear`."""
    out = []
    for row in report["rows"]:
        if (row["outputs"], row["inputs"]) != SIZE:
            continue
        times = {t["width"]: t["median_s"] for t in row["times"]}
        out.append({"threads": row["threads"], "read_gb_s": row["read_gb_s"], "packed_gb_s": row["packed_bytes"] / times[1] / 1e9,
                    "relative": {str(k): t / times[1] for k, t in times.items()}})
    if not out:
        raise BenchError(f"linear.json: a row of {SIZE[0]}x{SIZE[1]} expected, found none")
    return out


def linear(cargo):
    """Runs the bench of the linear."""
    say("the quantised linear alone (cargo bench)")
    folder = os.path.join(TARGET, "linear")
    environment = {**os.environ, "MLXCEL_BENCH_WRITE": folder}
    output_of([cargo, "bench", "--locked", "-p", "mlxcel-cpu", "--bench", "linear"], environment=environment, timeout=1800)
    with open(os.path.join(folder, "linear.json"), encoding="utf-8") as f:
        return linear_rows(json.load(f))


def run_for_peak(command):
    """Seconds and peak resident bytes of a process."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
    err = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise BenchError(f"{command[0]}: exit code 0 expected, found {process.returncode}: {last_line(err.decode(errors='replace'))}")
    return seconds, usage.ru_maxrss * 1024


def first_token(mlxcel, runs):
    """Milliseconds of a process that answers with one token, the embedded model found by itself and warm in the page cache."""
    say("process start to first token")
    command = [mlxcel, "generate", "-p", "hi", "-n", "1", "--quiet"]
    run_for_peak(command)
    return {"model": EMBEDDED, "ms": spread([1e3 * run_for_peak(command)[0] for _ in range(runs)])}


def memory(bench, model, about, threads):
    """Peak resident bytes of a run behind the longest context, against weights and KV."""
    say("resident memory")
    command = [bench, "cost", "--target", model, "--threads", str(threads), "--prompt", "0", "--contexts", str(max(CONTEXTS)),
               "--tokens", str(TOKENS), "--widths", "1", "--repeat", "1"]
    peak = run_for_peak(command)[1]
    needed = about["weight_bytes"] + about["kv_bytes"]
    return {"peak_bytes": peak, "weight_bytes": about["weight_bytes"], "kv_bytes": about["kv_bytes"], "ratio": peak / needed}


def their_memory(peer, model):
    """The same of the peer, through its own program for a context of that length."""
    # llama-bench holds the whole context as well.
    command = [peer.program("llama-bench"), "-m", model, "-t", "1", "-r", "1", "-p", "0", "-n", str(TOKENS), "-d", str(max(CONTEXTS))]
    return {"peak_bytes": run_for_peak(command)[1], "weight_bytes": os.path.getsize(model)}
