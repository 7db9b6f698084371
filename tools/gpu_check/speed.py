"""Shapes of published models with random weights: their probe, and what a step, a prompt, a block and drafting take."""

import json
import os
import shutil
import struct

from common import CheckError, read_json, run, say, spread
from probes import probe
from workload import COST_WIDTHS, LIMITS, LISTING, PROBABILITY, SIMULATED_K, SIMULATED_TOKENS, STEPS


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


def counted(folder):
    """Sizes of a checkpoint: what a step reads, and the parameters that every row of a prompt meets."""
    tensors, total = headers(folder)
    config = read_json(os.path.join(folder, "config.json"), "config.json")
    group = config["quantization"]["group_size"]
    values, table, head, table_bytes = 0, 0, 0, 0
    for name, (_, shape, _) in tensors.items():
        if name.endswith(".scales"):
            count, stem = shape[0] * shape[1] * group if len(shape) == 2 else 0, name.removesuffix(".scales")
            values += count
            if stem.endswith("embed_tokens"):
                table = count
                table_bytes = sum(size for other, (_, _, size) in tensors.items() if other.startswith(f"{stem}."))
            elif stem.endswith("lm_head"):
                head = count
    # A table beside a head of its own gives a step one row; the head sees the last row of a prompt only.
    return {"file_bytes": total, "read_bytes": total - (table_bytes if head else 0), "parameters": values,
            "prompt_parameters": values - table - head}


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
    """Synthesis, probe, costs and simulated drafts of one shape. The checkpoint is gone afterwards."""
    name, layers, probed, is_timed = shape
    label = f"{name}{f', {layers} layers' if layers else ''}"
    target = os.path.join(folder, f"{name}-{layers or 'all'}")
    mlxcel, bench = args.mlxcel, args.bench
    entry = {"shape": name, "layers": layers, "label": label}
    try:
        with steps.step(f"synth {label}") as step:
            command = [mlxcel, "synth", "--shape", name, *(["--layers", str(layers)] if layers else []), "--json", "--quiet", target]
            made = run(command, steps.budget.limit(LIMITS["synth"])).json()
            entry.update({key: made[key] for key in ("bits", "group_size", "layers_of_shape")}, synth_s=made["seconds"], drafter=None, **counted(target))
            drafter = (made["drafter"] or {}).get("path")
        if not step.ok:
            return
        if probed:
            with steps.step(f"probe {label}"):
                report["probes"].append({"shape": True, "label": label, "layers": layers, "layers_of_shape": entry["layers_of_shape"],
                                         **probe(args, target, drafter, steps.budget.limit(LIMITS["probe_shape"]))})
        if not is_timed:
            return
        report["speed"].append(entry)
        with steps.step(f"cost {label}"):
            command = [bench, "cost", "--target", target, "--backend", args.backend, "--prompt", str(args.prompt), "--contexts", str(args.context),
                       "--widths", ",".join(map(str, COST_WIDTHS)), "--block-context", str(args.context), "-n", str(STEPS),
                       "--repeat", str(args.repeat), "--json"]
            entry["cost"] = timed(run(command, steps.budget.limit(LIMITS["cost"])).json(), entry, report["peaks"])
        if drafter:
            with steps.step(f"drafts {label}"):
                entry["drafter"] = {"name": os.path.basename(drafter), "file_bytes": headers(drafter)[1]}
                rows = os.path.join(folder, "simulated.json")
                command = [bench, "--quiet", "--target", target, "--draft", drafter, "--simulate-acceptance", str(PROBABILITY), "--backend", args.backend,
                           "--k-values", ",".join(map(str, SIMULATED_K)), "-n", str(SIMULATED_TOKENS), "--ignore-eos", "--prompt", LISTING,
                           "--repeat", str(args.repeat), "--json", rows]
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
    for row in entry.get("simulated") or []:
        say(f"{entry['label']}: K={row['k']} speedup {row['speedup']['median']:.2f} at rate {row['acceptance_rate']:.2f}")
