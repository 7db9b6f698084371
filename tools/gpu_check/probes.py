"""The probe, the sweep and the agreement with the processor: what must be exact."""

import os

from common import ROOT, CheckError, read_json, run, say
from workload import AGREE_TOKENS, LIMITS, PAIRS, PROBE_BATCHES, SWEEP_K, SWEEP_TOKENS


def window_of(model):
    """The sliding window of a checkpoint, or None."""
    config = read_json(os.path.join(model, "config.json"), "config.json")
    return config.get("text_config", config).get("sliding_window")


def probe(args, model, drafter, seconds):
    """The verdict of `mlxcel probe`."""
    command = [args.mlxcel, "probe", "-m", model, "--backend", args.backend, "--widths", ",".join(map(str, args.probe_widths)),
               "--batch", ",".join(map(str, PROBE_BATCHES)), "--draws", str(args.draws), "--json", "--quiet"]
    found = run(command + (["--model-draft", drafter] if drafter else []), seconds).json((0, 3))
    path = model if os.path.isabs(model) else os.path.join(ROOT, "models", model)
    outcomes = [{key: one[key] for key in ("width", "batch", "mixed", "exact", "rows", "bytes", "differing_bytes", "first")} for one in found["outcomes"]]
    wanted = {(w, b) for w in args.probe_widths for b in PROBE_BATCHES}
    if missing := wanted - {(one["width"], one["batch"]) for one in outcomes}:
        raise CheckError(f"mlxcel probe: outcomes of every width and batch expected, found none of (width, batch) {sorted(missing)[0]}")
    verdict = found["verdict"] if found["verdict"] == "exact" and all(one["exact"] for one in outcomes) else "inexact"
    return {"model": os.path.basename(model), "drafter": os.path.basename(drafter) if drafter else None, "backend": found["backend"], "verdict": verdict,
            "draws": found["draws"], "seed": found["seed"], "seconds": found["seconds"], "window": window_of(path), "outcomes": outcomes}


def kept_trace(trace):
    """A trace without hashes, a round between semicolons: enough to see where two hosts part, and how close the choice was there."""
    rounds = trace["rounds"]
    of = lambda key, text: ";".join(",".join(map(text, r[key])) for r in rounds)
    margin = lambda v: "" if v is None else f"{v:.3g}"
    return {"pairing": trace["pairing"], "k": trace["k"], "prompt": trace["prompt"], "checkpoint": trace["checkpoint"],
            "prompt_ids": ",".join(map(str, trace["prompt_ids"])), "drafts": of("proposed", str), "tokens": of("tokens", str),
            "margins": of("margins", margin), "draft_margins": of("draft_margins", margin)}


def sweep(args, folder, seconds):
    """Rows and traces of the embedded pairs."""
    rows, traces = os.path.join(folder, "sweep.json"), os.path.join(folder, "trace.json")
    command = [args.bench, "--sweep", "--quiet", "--backend", args.backend, "--k-values", ",".join(map(str, SWEEP_K)), "-n", str(SWEEP_TOKENS),
               "--repeat", str(args.repeat), "--models-dir", os.path.join(ROOT, "models"), "--json", rows, "--trace", traces]
    # 3: an output differed, 1: some rows could not be measured; the rows say which.
    ran = run(command, seconds).must((0, 1, 3))
    report = read_json(rows, "speculative_bench --json")
    keys = ("pairing", "kind", "batch", "k", "prompt", "prompt_tokens", "generated_tokens", "repeat", "tokens_per_second", "speedup", "rounds", "proposed",
            "accepted", "acceptance_rate", "mean_accepted_len", "tokens_per_round", "ms_plain_step", "round_cost", "output_identical", "probe", "status",
            "backend", "device", "version", "commit", "date")
    kept = [{key: row[key] for key in keys} for row in report["rows"]]
    if not any(row["kind"] != "none" for row in kept):
        raise CheckError("speculative_bench --sweep: rows with drafts expected, found none")
    return {"code": ran.code, "seconds": ran.seconds, "machine": report["machine"], "rows": kept,
            "traces": [kept_trace(t) for t in read_json(traces, "speculative_bench --trace")["traces"] if t["sequence"] == 0]}


def golden_prompts(model):
    """[(name, text, prompt ids, continuation ids)] of a golden.json, either of its two forms."""
    prompts = read_json(os.path.join(ROOT, "models", model, "golden.json"), "golden.json")["prompts"]
    items = prompts.items() if isinstance(prompts, dict) else [(p["name"], p) for p in prompts]
    return [(name, p.get("prompt") or p["text"], p["prompt_ids"], p["continuation_ids"]) for name, p in items]


def parting(a, b):
    """Index of the first token that differs, or None."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None if len(a) == len(b) else min(len(a), len(b)))


def answer(args, model, text, where, budget):
    """Tokens and top-2 margins of a greedy answer without drafts."""
    command = [args.mlxcel, "generate", "-m", model, "--raw", "-p", text, "--temp", "0", "-n", str(AGREE_TOKENS), "--ignore-eos", "--model-draft", "none",
               "--logprobs", "2", "--json", "--quiet", *where]
    found = run(command, budget.limit(LIMITS["generate"])).json()
    margins = [abs(p["top"][0][1] - p["top"][1][1]) if len(p["top"]) > 1 else None for p in found["logprobs"]]
    return {"tokens": found["tokens"], "margins": margins, "backend": found["backend"], "prompt_tokens": found["usage"]["prompt_tokens"]}


def agree(a, b):
    """Where answer b leaves answer a, and how close a's two likeliest tokens were there."""
    at = parting(a["tokens"], b["tokens"])
    return {"equal": at is None, "at": at, "margin": a["margins"][at] if at is not None and at < len(a["margins"]) else None,
            "tokens": None if at is None else [t["tokens"][at] if at < len(t["tokens"]) else None for t in (a, b)]}


def agreement(args, budget, out):
    """Greedy answers of the embedded models on the golden prompts, on the backend and on the processor; appended to `out`."""
    sides = {"f32": ["--backend", "cpu", "--cpu-precision", "f32"], "int8": ["--backend", "cpu", "--cpu-precision", "int8"], "backend": ["--backend", args.backend]}
    for model in PAIRS:
        for name, text, ids, golden in golden_prompts(model):
            found = {side: answer(args, model, text, where, budget) for side, where in sides.items()}
            if found["backend"]["prompt_tokens"] != len(ids):
                raise CheckError(f"{model}, {name}: {len(ids)} tokens of prompt expected, found {found['backend']['prompt_tokens']}")
            reference = {"tokens": golden[:AGREE_TOKENS], "margins": found["f32"]["margins"]}
            out.append({"model": model, "prompt": name, "count": AGREE_TOKENS, "backend": found["backend"]["backend"], "cpu": found["f32"]["backend"],
                        "with_f32": agree(found["f32"], found["backend"]), "with_int8": agree(found["int8"], found["backend"]),
                        "with_golden": agree(reference, found["backend"]), "int8_with_f32": agree(found["f32"], found["int8"])})
    say(f"agreement: {sum(r['with_f32']['equal'] for r in out)} of {len(out)} answers equal those of the processor in f32")
    return out
