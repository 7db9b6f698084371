#!/usr/bin/env python3
"""Throughput and latency of mlxcel-server under load, with drafts and without.

    python3 tools/bench_server.py [--binary target/release/mlxcel-server] [--requests 32] [--repeat 3]

Starts the server on the embedded pair, then lets 1, 4 and 16 clients at once ask streamed chat questions, drafts off and on in turns.
Every answer is compared with the one that an idle server gave. Writes docs/benchmark_results/server.{md,json}. Loopback only; needs
Python's standard library only.
"""

import argparse
import http.client
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

from bench_demo import RESULTS, ROOT, machine

CLIENTS = [1, 4, 16]
PROMPTS = [
    "Tell me a story about a brave rabbit.",
    "Write a Python function to add two numbers.",
    "What is speculative decoding?",
    "Why is the sky blue?",
    "Tell me a story about a kind bear.",
    "Write a Rust function to check whether a number is prime.",
    "Explain what a compiler does.",
    "Tell me about rain.",
]
TOKENS = 128


def start(binary, log):
    """The server and its port."""
    process = subprocess.Popen([binary, "--port", "0", "--parallel", "16"], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    for line in process.stderr:
        log.append(line)
        if line.startswith("listening on http://"):
            threading.Thread(target=lambda: log.extend(process.stderr), daemon=True).start()
            return process, int(line.rsplit(":", 1)[1])
    sys.exit("the server did not start:\n" + "".join(log))


def ask(port, prompt, speculative):
    """One streamed answer: its text, seconds to the first piece and to the last, tokens."""
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "speculative": speculative, "cache_prompt": False}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{response.status}: {response.read().decode()}")
    text, first, last, tokens = [], None, None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content")
            if piece:
                last = time.perf_counter()
                first = first or last
                text.append(piece)
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
    connection.close()
    return "".join(text), first - began, last - began, tokens


def load(port, clients, requests, speculative, alone):
    """`requests` answers to `clients` at once."""
    work, results, wrong = queue.SimpleQueue(), [], []
    for i in range(requests):
        work.put(PROMPTS[i % len(PROMPTS)])

    def client():
        while True:
            try:
                prompt = work.get_nowait()
            except queue.Empty:
                return
            answer = ask(port, prompt, speculative)
            if answer[0] != alone[prompt]:
                wrong.append(prompt)
            results.append(answer)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if wrong or len(results) != requests:
        sys.exit(f"{len(wrong)} answers differ from an idle server's, {len(results)} of {requests} came: that must never happen")
    return {"seconds": seconds, "tokens": sum(r[3] for r in results), "ttft": [r[1] for r in results],
            "tpot": [(r[2] - r[1]) / (r[3] - 1) for r in results]}


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/mlxcel-server"))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the table and write nothing")
    args = parser.parse_args()
    log = []
    process, port = start(args.binary, log)
    try:
        alone = {prompt: ask(port, prompt, "off")[0] for prompt in PROMPTS}
        runs = {(clients, mode): [] for clients in CLIENTS for mode in ("off", "auto")}
        for round_ in range(args.repeat + 1):
            for clients in CLIENTS:
                for mode in ("off", "auto") if round_ % 2 else ("auto", "off"):
                    result = load(port, clients, args.requests, mode, alone)
                    if round_ > 0:  # the first round warms up
                        runs[clients, mode].append(result)
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    finally:
        process.terminate()
        process.wait(timeout=30)
    table = "| clients | drafts | tok/s, all clients | speedup | TTFT ms, p50 | p95 | TPOT ms, p50 | p95 |\n|---|---|---|---|---|---|---|---|\n"
    rows = []
    for (clients, mode), results in runs.items():
        rates = sorted(r["tokens"] / r["seconds"] for r in results)
        plain = [r["tokens"] / r["seconds"] for r in runs[clients, "off"]]
        speedup = statistics.median([r["tokens"] / r["seconds"] / p for r, p in zip(results, plain)])
        ttft = [1e3 * t for r in results for t in r["ttft"]]
        tpot = [1e3 * t for r in results for t in r["tpot"]]
        row = {"clients": clients, "drafts": mode, "tokens_per_second": rates, "speedup": speedup,
               "ttft_ms": [percentile(ttft, s) for s in (0.5, 0.95)], "tpot_ms": [percentile(tpot, s) for s in (0.5, 0.95)]}
        rows.append(row)
        table += (f"| {clients} | {'on' if mode == 'auto' else 'off'} | {statistics.median(rates):.0f} ({rates[0]:.0f}–{rates[-1]:.0f}) | {speedup:.2f} | "
                  f"{row['ttft_ms'][0]:.1f} | {row['ttft_ms'][1]:.1f} | {row['tpot_ms'][0]:.2f} | {row['tpot_ms'][1]:.2f} |\n")
    version = subprocess.run([args.binary, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    backend = next((line.split("positions, ")[1].strip() for line in log if "positions, " in line), "")
    about = (f"{args.requests} streamed greedy chats of {TOKENS} tokens ({len(PROMPTS)} prompts) a run, 16 slots, the embedded Gemma pair; median (lowest and highest) of "
             f"{args.repeat} runs, drafts off and on in turns; the clients run on the same cores. Every answer was that of an idle server without drafts. "
             f"Version {version}, {machine()}, {backend}.")
    print(table)
    if args.dry:
        return
    with open(os.path.join(RESULTS, "server.md"), "w") as f:
        f.write(f"# mlxcel-server under load\n\nWritten by `python3 tools/bench_server.py`: {about}\n\n{table}")
    with open(os.path.join(RESULTS, "server.json"), "w") as f:
        json.dump({"about": about, "rows": rows}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
