"""Programs that print canned outputs, for the self-test."""

# Stands for mlxcel, speculative_bench and the suites; FAULT names what is wrong with it.
FAKE = r'''#!@PYTHON@
import json, math, os, struct, sys
name, argv, fault = os.path.basename(sys.argv[0]), sys.argv[1:], os.environ.get("GPU_CHECK_FAULT", "")
def option(key, other=None):
    return argv[argv.index(key) + 1] if key in argv else other
def put(path, value):
    with open(path, "w") as f:
        json.dump(value, f)
def ranged(x):
    return {"median": x, "min": x * 0.9, "max": x * 1.1}
def checkpoint(folder, experts):
    os.makedirs(folder)
    text = {"sliding_window": 1024, "num_experts": 8 if experts else None}
    if fault != "top_k":
        text["num_experts_per_tok" if experts == "qwen" else "top_k_experts"] = 2 if experts else None
    put(os.path.join(folder, "config.json"), {"quantization": {"bits": 4, "group_size": 64}, "text_config": text})
    tensors, at = {}, 0
    mixed = [("experts.up_proj", [8, 64])] if experts and fault != "dense" else []
    for stem, out in [("embed_tokens", [100]), ("q_proj", [64]), *mixed]:
        for part, dtype, width, size in (("weight", "U32", 16, 4), ("scales", "BF16", 2, 2), ("biases", "BF16", 2, 2)):
            size = math.prod(out) * width * size
            tensors[f"{stem}.{part}"] = {"dtype": dtype, "shape": [*out, width], "data_offsets": [at, at + size]}
            at += size
    head = json.dumps(tensors).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + bytes(at))
def row(kind, k, simulated):
    drafts = kind != "none"
    same = not (drafts and fault == ("simulated" if simulated else "sweep"))
    status = {"state": "skipped", "why": "a failing probe"} if drafts and fault == "unmeasured" and not simulated else {"state": "ok"}
    if status["state"] != "ok":
        same = None
    return {"pairing": "pair", "kind": kind, "batch": 1, "k": k, "prompt": "prose", "prompt_tokens": 3, "generated_tokens": 9, "repeat": 1,
            "tokens_per_second": ranged(100.0), "speedup": ranged(2.5 if drafts else 1.0), "rounds": 10 if drafts else None,
            "proposed": 10 * (k - 1) if drafts else None, "accepted": 6 * (k - 1) if drafts else None, "acceptance_rate": 0.6 if drafts else None,
            "mean_accepted_len": 0.6 * (k - 1) if drafts else None, "tokens_per_round": 1 + 0.6 * (k - 1) if drafts else None, "ms_plain_step": 1.0,
            "ms_draft": 0.1, "ms_verify": 1.1, "ms_rest": 0.1, "round_cost": 1.3, "output_identical": same, "probe": "exact", "status": status,
            "simulated_acceptance": 0.795 if simulated else None, "backend": "cuda fake", "device": "fake", "version": "0", "commit": "c" * 40, "date": "2000-01-01"}
if fault == "hang" and name == "mlxcel" and argv[0] == "probe":
    import time
    time.sleep(60)
if name in ("row_law-0a", "fusion", "wide", "walks", "identity-1b"):
    assert os.environ["MLXCEL_NEED_GPU"] == "1"
    assert ("MLXCEL_GPU_FULL" in os.environ) == (name == "row_law-0a" and fault == "full")
    model = os.environ.get("MLXCEL_WALK_MODEL")
    assert (model is not None) == (name in ("walks", "identity-1b") and fault != "walk_synth")
    assert not model or os.path.isfile(os.path.join(model, "config.json"))
    assert not any(name in os.environ for name in ("MLXCEL_GPU_QUICK", "MLXCEL_WALK_BACKEND", "MLXCEL_IDENTITY"))
    if fault == "walk_synth" and model is None and name == "walks":
        print("skipped: MLXCEL_WALK_MODEL names no checkpoint")
    broken = (fault, name) in (("suite", "fusion"), ("walks", "walks"), ("identity", "identity-1b"))
    if fault == "endless" and name == "walks":
        import time
        time.sleep(60)
    print("running 1 test\n7 values compared\ntest result: " + ("FAILED. 1 passed; 1" if broken else "ok. 2 passed; 0") + " failed; 0 ignored")
    if broken:
        print("thread 'x' panicked at y:1:\nthe row law is broken", file=sys.stderr)
    sys.exit(101 if broken else 0)
if name == "mlxcel" and argv[0] == "--version":
    print("mlxcel 0")
elif name == "mlxcel" and argv[0] == "synth":
    if fault == "walk_synth" and argv[-1].endswith("walk"):
        print("no space is left", file=sys.stderr)
        sys.exit(1)
    assert not any(other.startswith("walk") for other in os.listdir(os.path.dirname(argv[-1]))), "the walked model is still there"
    checkpoint(argv[-1], "gemma" if "a4b" in option("--shape") else "qwen" if "a3b" in option("--shape") else None)
    checkpoint(argv[-1] + "-assistant", None)
    print(json.dumps({"bits": 4, "group_size": 64, "layers_of_shape": 60, "seconds": 0.1, "drafter": {"path": argv[-1] + "-assistant"}}))
elif name == "mlxcel" and argv[0] == "probe":
    outcomes = []
    for b in map(int, option("--batch").split(",")):
        for k in map(int, option("--widths").split(",")):
            wrong = fault == "probe" and (k, b) == (5, 4) and "gemma-4-31b" in option("-m")
            outcomes.append({"width": k, "batch": b, "mixed": False, "exact": not wrong, "rows": 4, "bytes": 64, "differing_bytes": 3 * wrong,
                             "first": {"position": 1030, "layer": 2, "op": "attend"} if wrong else None})
    if fault == "width":
        outcomes.pop()
    wrong = not all(o["exact"] for o in outcomes)
    print(json.dumps({"backend": "cuda fake", "verdict": "inexact" if wrong else "exact", "draws": 4, "seed": 0, "seconds": 1.0, "outcomes": outcomes}))
    sys.exit(3 if wrong else 0)
elif name == "mlxcel" and argv[0] == "generate":
    golden = json.load(open(os.path.join("models", option("-m"), "golden.json")))["prompts"]
    text = option("-p")
    one = next(p for p in (golden.values() if isinstance(golden, dict) else golden) if text in (p.get("prompt"), p.get("text")))
    tokens = list(one["continuation_ids"])
    if fault in ("far", "tie") and option("--backend") == "cuda" and one.get("name") == "code":
        tokens[7] += 1
    margin = 0.01 if fault == "tie" else 3.0
    print(json.dumps({"backend": "cuda fake", "tokens": tokens, "usage": {"prompt_tokens": len(one["prompt_ids"]) + (fault == "tokens")},
                      "logprobs": [{"top": [[1, -0.1], [2, -0.1 - margin]]} for _ in tokens]}))
elif argv[0] == "cost":
    if fault == "crash":
        print("out of memory", file=sys.stderr)
        sys.exit(1)
    timed = lambda context, rows, s, batch=1: {"context": context, "batch": batch, "rows": rows, "seconds": [s, s * 0.9, s * 1.2]}
    batches, steps = [int(b) for b in option("--batches", "1").split(",")], int(option("-n"))
    # Sixteen sequences take as long as one.
    dear = 3 if fault == "ratio" else 2
    found = {"prefill": timed(0, int(option("--prompt")), 1.0), "kv_bytes": 1, "weight_bytes": 2,
             "decode": [timed(1024, b * steps, 0.01 * steps * (1 if b == 1 else dear), b) for b in batches],
             "verify": [timed(1024, k, 0.01 + (0.1 if fault == "wide" and k == 16 else 0)) for k in map(int, option("--widths").split(","))],
             "backend": "cuda fake", "device": "fake", "version": "0", "commit": "c" * 40}
    if len(batches) > 1 and fault == "batch_memory":
        print("36 GB of KV pages do not fit", file=sys.stderr)
        sys.exit(1)
    if len(batches) > 1 and fault == "batch_row":
        found["decode"].pop()
    if len(batches) > 1 and fault == "batch_rows":
        found["decode"][1]["rows"] = steps
    if fault == "zero":
        found["decode"][0]["seconds"] = [0.0]
    if fault == "field":
        del found["prefill"]
    print(json.dumps(found))
else:
    simulated = "--simulate-acceptance" in argv
    rows = [row("none", 1, simulated)] + [row("simulated" if simulated else "mtp", k, simulated) for k in map(int, option("--k-values").split(","))]
    put(option("--json"), {"machine": {}, "rows": rows})
    if option("--trace"):
        rounds = [{"proposed": [5], "tokens": [5, 6], "margins": [2.0, 3.0], "draft_margins": [1.0]}] * 2
        put(option("--trace"), {"traces": [{"pairing": "pair", "k": r["k"], "sequence": 0, "prompt": "prose", "checkpoint": "c", "prompt_ids": [1, 2, 3],
                                            "rounds": rounds} for r in rows[1:]]})
    sys.exit(3 if any(r["output_identical"] is False for r in rows) else 1 if any(r["status"]["state"] != "ok" for r in rows) else 0)
'''
