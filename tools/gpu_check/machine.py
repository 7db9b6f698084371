"""The machine, its programs, and what it reads and multiplies at best."""

import json
import os
import re
import shutil
import sys

from common import CheckError, parse_json, run
from workload import LIMITS

# In a process of its own: importing torch takes seconds and may fail. Rates are medians of single repetitions between events.
PEAKS = r"""
import json, statistics, sys
try:
    import torch
except Exception as e:
    print(json.dumps({"why": "torch cannot be imported: " + type(e).__name__}))
    sys.exit()
if not torch.cuda.is_available():
    print(json.dumps({"why": "torch " + torch.__version__ + " finds no GPU"}))
    sys.exit()
def timed(work, count):
    for _ in range(3):
        work()
    seconds = []
    for _ in range(count):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); work(); b.record(); b.synchronize()
        seconds.append(a.elapsed_time(b) / 1e3)
    return seconds
def rates(amount, seconds):
    return {"median": amount / statistics.median(seconds), "low": amount / max(seconds), "high": amount / min(seconds)}
n = 1 << 31
a = torch.ones(n // 4, dtype=torch.float32, device="cuda")
b = torch.empty_like(a)
copy = timed(lambda: b.copy_(a), 20)
read = timed(lambda: torch.sum(a), 20)
del a, b
x = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
y = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
z = torch.empty_like(x)
product = timed(lambda: torch.matmul(x, y, out=z), 30)
print(json.dumps({"torch": torch.__version__, "bytes": n, "copy_tb_s": rates(2 * n / 1e12, copy), "sum_tb_s": rates(n / 1e12, read),
                  "matmul_tflop_s": rates(2 * 8192 ** 3 / 1e12, product), "why": None}))
"""
SMI = ["name", "driver_version", "memory.total", "compute_cap"]


def about(mlxcel, budget):
    """Processor, GPU, versions."""
    info = open("/proc/cpuinfo", encoding="utf-8").read() if os.path.exists("/proc/cpuinfo") else ""
    model = re.search(r"model name\s*: (.*)", info)
    out = {"cpu": model.group(1) if model else os.uname().machine, "cores": os.cpu_count(), "os": os.uname().sysname,
           "python": sys.version.split()[0], "load": os.getloadavg()[0], "gpu": None}
    if smi := shutil.which("nvidia-smi"):
        found = run([smi, f"--query-gpu={','.join(SMI)}", "--format=csv,noheader"], budget.limit(LIMITS["machine"])).must().out
        fields = [part.strip() for part in found.splitlines()[0].split(",")] if found.strip() else []
        if len(fields) != len(SMI):
            raise CheckError(f"nvidia-smi: {len(SMI)} fields expected, found {found.strip()!r}")
        out["gpu"] = {"name": fields[0], "driver": fields[1], "memory": fields[2], "compute_capability": fields[3], "count": len(found.splitlines())}
    out["mlxcel"] = run([mlxcel, "--version"], budget.limit(LIMITS["machine"])).must().out.strip()
    return out


def peaks(backend, budget):
    """Bandwidth and matrix rate by torch, or why there are none."""
    none = {"torch": None, "bytes": None, "copy_tb_s": None, "sum_tb_s": None, "matmul_tflop_s": None, "read_tb_s": None}
    if backend == "cpu":
        return {**none, "why": "the backend is the processor"}
    ran = run([sys.executable, "-c", PEAKS], budget.limit(LIMITS["peaks"]))
    found = {**none, **parse_json(ran.must().out, "the measurement of peaks")}
    if not found["why"]:
        # Whichever reached more: both are what the memory can do.
        found["read_tb_s"] = max(found["copy_tb_s"]["median"], found["sum_tb_s"]["median"])
    return json.loads(json.dumps(found))
