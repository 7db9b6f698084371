"""Shapes of published models with random weights: their probe, and what a step, a prompt, a block and drafting take."""

import json
import math
import os
import shutil
import struct

from common import CheckError, read_json, run, say, spread
from probes import probe
from workload import BATCH, BATCHES, COST, COST_WIDTHS, DRAFTS, LIMITS, LISTING, PROBABILITY, PROBE, SIMULATED_K, SIMULATED_TOKENS, STEPS


def headers(folder):
    """{tensor: (dtype, shape, bytes)} of a checkpoint, and the bytes of its files."""
    tensors, total = {}, 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            path = os.path.join(folder, name)
            total += os.path.getsize(path)
            with open(path, "rb") as f:
                head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            tensors.update({k: (v["dtype"], v["shape"], v["data_offsets"][1] - v["data_offsets"][0]) for k, v in head.items() if k != "__metadata__"})
    if not tensors:
        raise CheckError(f"{folder}: tensors expected, found none")
    return tensors, total


def experts_of(config, folder):
    """(experts of a layer, those that a token meets); None for a dense network."""
    text = config.get("text_config", config)
    count = text.get("num_experts")
    if not count:
        return None
    used = text.get("top_k_experts") or text.get("num_experts_per_tok")
    if not used or used > count:
        raise CheckError(f"{folder}/config.json: top_k_experts or num_experts_per_tok: 1 to {count} (num_experts) expected, found {used}")
    return count, used


def counted(folder):
    """Sizes of a checkpoint: what a single step of one sequence reads, and the parameters that every row of a prompt meets. Of a mixture of experts
    both have a token's share of them alone: a block or a batch reads more."""
    tensors, total = headers(folder)
    config = read_json(os.path.join(folder, "config.json"), "config.json")
    group, experts = config["quantization"]["group_size"], experts_of(config, folder)
    values, met, read, mixed = 0, 0, total, 0
    table, head = None, 0
    for name, (_, shape, _) in tensors.items():
        if not name.endswith(".scales"):
            continue
        stem, count = name.removesuffix(".scales"), math.prod(shape) * group
        size = sum(tensors[other][2] for other in (f"{stem}.{part}" for part in ("weight", "scales", "biases")) if other in tensors)
        values += count
        if stem.endswith("embed_tokens"):
            table = size
        elif stem.endswith("lm_head"):
            head = size
        elif experts and len(shape) == 3 and shape[0] == experts[0]:
            mixed += 1
            met += count // experts[0] * experts[1]
            read -= size // experts[0] * (experts[0] - experts[1])
        else:
            met += count
    if experts and not mixed:
        raise CheckError(f"{folder}: tensors [{experts[0]}, rows, columns] of experts expected, found none")
    # A table beside a head of its own gives a step one row; the head sees the last row of a prompt only.
    return {"file_bytes": total, "read_bytes": read - (table or 0 if head else 0), "parameters": values, "prompt_parameters": met,
            "experts": {"count": experts[0], "used": experts[1]} if experts else None}


def timed(cost, facts, peaks):
    """Rates of what `speculative_bench cost` printed."""
    step = spread([seconds / cost["decode"][0]["rows"] for seconds in cost["decode"][0]["seconds"]])
    prompt = spread(cost["prefill"]["seconds"])
    rows = cost["prefill"]["rows"]
    blocks = {row["rows"]: spread(row["seconds"]) for row in cost["verify"]}
    if set(blocks) != set(COST_WIDTHS):
        raise CheckError(f"speculative_bench cost: widths {COST_WIDTHS} expected, found {sorted(blocks)}")
    rate = facts["read_bytes"] / step["median"] / 1e12
    flop = 2 * facts["prompt_parameters"] * rows / 1e12
    read, matmul = peaks and peaks["read_tb_s"], peaks and peaks["matmul_tflop_s"]
    return {
        "backend": cost["backend"], "device": cost["device"], "version": cost["version"], "commit": cost["commit"], "kv_bytes": cost["kv_bytes"],
        "weight_bytes": cost["weight_bytes"], "context": cost["decode"][0]["context"], "prompt": rows, "runs": len(cost["prefill"]["seconds"]),
        "step_s": step, "decode_tok_s": {"median": 1 / step["median"], "low": 1 / step["high"], "high": 1 / step["low"]},
        "packed_tb_s": rate, "share_of_read": rate / read if read else None,
        "prefill_tok_s": {"median": rows / prompt["median"], "low": rows / prompt["high"], "high": rows / prompt["low"]},
        "prefill_tflop_s": flop / prompt["median"], "share_of_matmul": flop / prompt["median"] / matmul["median"] if matmul else None,
        "block_s": {str(k): blocks[k] for k in COST_WIDTHS},
        "relative": {str(k): blocks[k]["median"] / blocks[1]["median"] for k in COST_WIDTHS},
    }


def timed_batches(cost):
    """Steps of many sequences beside those of one, of what `speculative_bench cost --batches` printed."""
    rows = {row["batch"]: row for row in cost["decode"]}
    if set(rows) != set(BATCHES):
        raise CheckError(f"speculative_bench cost: single steps of batches {BATCHES} expected, found {sorted(rows)}")
    if wrong := [batch for batch, row in rows.items() if row["rows"] != batch * STEPS]:
        raise CheckError(f"speculative_bench cost: {wrong[0] * STEPS} rows of batch {wrong[0]} expected, found {rows[wrong[0]]['rows']}")
    seconds = {batch: spread(row["seconds"]) for batch, row in rows.items()}
    rate = lambda batch, key: batch * STEPS / seconds[batch][key]
    return {
        "context": cost["decode"][0]["context"], "runs": len(cost["decode"][0]["seconds"]), "kv_bytes": cost["kv_bytes"],
        "step_s": {str(b): {key: value / STEPS for key, value in seconds[b].items()} for b in BATCHES},
        "tok_s": {str(b): {"median": rate(b, "median"), "low": rate(b, "high"), "high": rate(b, "low")} for b in BATCHES},
        "relative": {str(b): rate(b, "median") / rate(1, "median") for b in BATCHES},
    }


def simulated_rows(report):
    """Rows with drafts of a simulated run."""
    out = []
    for row in report["rows"]:
        if row["kind"] == "none":
            continue
        if row["status"]["state"] != "ok":
            raise CheckError(f"speculative_bench, K={row['k']}: status ok expected, found {row['status'].get('why', row['status']['state'])}")
        out.append({key: row[key] for key in ("k", "speedup", "tokens_per_second", "acceptance_rate", "mean_accepted_len", "tokens_per_round", "round_cost",
                                              "ms_plain_step", "ms_draft", "ms_verify", "ms_rest", "output_identical", "probe", "simulated_acceptance")})
    if not out:
        raise CheckError("speculative_bench: rows with drafts expected, found none")
    return out


def shape_steps(shape, args, report, steps, folder):
    """Synthesis, probe, costs, batches and simulated drafts of one shape. The checkpoint is gone afterwards."""
    name, layers, work, repeat = shape
    label = f"{name}{f', {layers} layers' if layers else ''}"
    target = os.path.join(folder, f"{name}-{layers or 'all'}")
    mlxcel, bench = args.mlxcel, args.bench
    repeat = str(min(repeat or args.repeat, args.repeat))
    entry = {"shape": name, "layers": layers, "label": label}
    try:
        with steps.step(f"synth {label}") as step:
            command = [mlxcel, "synth", "--shape", name, *(["--layers", str(layers)] if layers else []), "--json", "--quiet", target]
            made = run(command, steps.budget.limit(LIMITS["synth"])).json()
            entry.update({key: made[key] for key in ("bits", "group_size", "layers_of_shape")}, synth_s=made["seconds"], drafter=None, **counted(target))
            drafter = (made["drafter"] or {}).get("path")
        if not step.ok:
            return
        if PROBE in work:
            with steps.step(f"probe {label}"):
                report["probes"].append({"shape": True, "label": label, "layers": layers, "layers_of_shape": entry["layers_of_shape"],
                                         **probe(args, target, drafter, steps.budget.limit(LIMITS["probe_shape"]))})
        if COST not in work:
            return
        report["speed"].append(entry)
        cost = [bench, "cost", "--target", target, "--backend", args.backend, "--contexts", str(args.context), "-n", str(STEPS), "--repeat", repeat, "--json"]
        with steps.step(f"cost {label}"):
            more = ["--prompt", str(args.prompt), "--widths", ",".join(map(str, COST_WIDTHS)), "--block-context", str(args.context)]
            entry["cost"] = timed(run(cost + more, steps.budget.limit(LIMITS["cost"])).json(), entry, report["peaks"])
        if BATCH in work:
            # Apart from the other costs, which are not lost with it where the KV of so many sequences does not fit.
            with steps.step(f"batch {label}"):
                more = ["--batches", ",".join(map(str, BATCHES)), "--prompt", "0", "--widths", "1", "--block-context", "0"]
                entry["batch"] = timed_batches(run(cost + more, steps.budget.limit(LIMITS["batch"])).json())
        if DRAFTS in work and drafter:
            with steps.step(f"drafts {label}"):
                entry["drafter"] = {"name": os.path.basename(drafter), "file_bytes": headers(drafter)[1]}
                rows = os.path.join(folder, "simulated.json")
                command = [bench, "--quiet", "--target", target, "--draft", drafter, "--simulate-acceptance", str(PROBABILITY), "--backend", args.backend,
                           "--k-values", ",".join(map(str, SIMULATED_K)), "-n", str(SIMULATED_TOKENS), "--ignore-eos", "--prompt", LISTING,
                           "--repeat", repeat, "--json", rows]
                # 3: an output differed, which the rows say.
                run(command, steps.budget.limit(LIMITS["simulated"])).must((0, 3))
                entry["simulated"] = simulated_rows(read_json(rows, "speculative_bench --json"))
    finally:
        for path in (target, f"{target}-assistant", f"{target}-mtp"):
            shutil.rmtree(path, ignore_errors=True)


def brief(entry):
    """A line of progress."""
    cost = entry.get("cost")
    if cost:
        relative = " ".join(f"{k}:{v:.2f}" for k, v in cost["relative"].items())
        say(f"{entry['label']}: {cost['decode_tok_s']['median']:.1f} tok/s, {cost['packed_tb_s']:.2f} TB/s, prefill {cost['prefill_tok_s']['median']:.0f} tok/s "
            f"({cost['prefill_tflop_s']:.0f} TFLOP/s), t(K)/t(1) {relative}")
    if batch := entry.get("batch"):
        say(f"{entry['label']}: " + ", ".join(f"{b} at once {batch['tok_s'][b]['median']:.1f} tok/s ({batch['relative'][b]:.2f})" for b in batch["tok_s"]))
    for row in entry.get("simulated") or []:
        say(f"{entry['label']}: K={row['k']} speedup {row['speedup']['median']:.2f} at rate {row['acceptance_rate']:.2f}")
