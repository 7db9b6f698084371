"""The pages, from the JSON of a run alone."""

import argparse
import os

import hosts
import verdict
from common import RESULTS, ROOT, CheckError, read_json, say, write

PAGES = ["gpu", "acceptance_across_hosts", "gemma_4_31b_exactness"]
EXACT_SHAPE = "gemma-4-31b"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def ranged(s, digits=1):
    """median (low–high)"""
    if s is None:
        return "-"
    low, high = (s["low"], s["high"]) if "low" in s else (s["min"], s["max"])
    return f"{s['median']:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def yes(met):
    return {True: "yes", False: "NO", None: "-"}[met]


def table(head, rows):
    return "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n" + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def device(report):
    """What computed, in a few words."""
    machine = report["machine"]
    if not machine:
        return "an unknown machine"
    gpu = machine["gpu"]
    if report["backend"] != "cpu" and gpu:
        return f"{gpu['name']}, compute capability {gpu['compute_capability']}, {gpu['memory']}, driver {gpu['driver']}"
    return f"{machine['cpu']}, {machine['cores']} cores"


def heading(report, command="python3 tools/gpu_check"):
    versions = report["versions"]
    commit = (versions["commit"] or "unknown")[:12]
    quick = "**A quick look: one shape, too few repetitions to quote.**\n\n" if report["quick"] else ""
    return f"Written by `{command}`; {versions['mlxcel'] or 'mlxcel'} (commit {commit}), {report['date']}.\n\n{quick}"


def peaks_text(report):
    peaks = report["peaks"]
    if not peaks or peaks["why"]:
        return f"bandwidth and matrix rate not measured ({peaks['why'] if peaks else 'not run'})"
    return (f"copies {ranged(peaks['copy_tb_s'], 2)} TB/s (read and written), sums {ranged(peaks['sum_tb_s'], 2)} TB/s, of which the higher counts as its read "
            f"bandwidth ({peaks['read_tb_s']:.2f}), multiplies bf16 matrices of 8192 at {ranged(peaks['matmul_tflop_s'], 0)} TFLOP/s (torch {peaks['torch']})")


def gpu_page(report):
    machine = report["machine"]
    text = f"# On a GPU\n\n{heading(report)}"
    text += f"- Device: {device(report)}; {peaks_text(report)}.\n"
    if machine:
        text += f"- Beside it: {machine['cpu']}, {machine['cores']} cores, {machine['os']}.\n"
    bad = verdict.problems(report)
    if bad:
        text += "\n**This run did not pass:**\n\n" + "".join(f"- {line}\n" for line in bad)
    text += "\n## Laws\n\n" + table(["law", "kept", "found"], [[w, {True: "yes", False: "NO", None: "not run"}[k], d] for w, k, d in verdict.laws(report)])
    text += suites_text(report) + agreement_text(report) + speed_text(report) + drafts_text(report) + embedded_text(report) + targets_text(report)
    late = [s for s in report["steps"] if s["state"] != "ok"]
    text += f"\nThe run took {report['budget']['used']:.0f} s of {report['budget']['seconds']:.0f}; {len(late)} of {len(report['steps'])} steps did not succeed.\n"
    return text


def suites_text(report):
    """What the test executables counted."""
    parts = [(s["name"], [line for line in s["lines"] if not line.startswith(("test ", "failures"))]) for s in report["suites"]]
    parts = [(name, lines) for name, lines in parts if lines]
    return "\nWhat the suites printed:\n\n```\n" + "\n".join(f"[{name}] {line}" for name, lines in parts for line in lines) + "\n```\n" if parts else ""


def agreement_text(report):
    rows = report["agreement"]
    if not rows:
        return ""
    count = lambda key: f"{sum(r[key]['equal'] for r in rows)} of {len(rows)}"
    text = (f"\n## Beside the processor\n\nGreedy answers of {rows[0]['count']} tokens to the prompts of golden.json, without drafts; {rows[0]['backend']}. Between backends bits "
            f"differ, so an answer may part where two tokens are as good as equally likely. Equal throughout: with the processor in f32 {count('with_f32')}, in int8 "
            f"{count('with_int8')}, with the reference of golden.json {count('with_golden')}; the processor's own int8 with its f32: {count('int8_with_f32')}.\n\n")
    cell = lambda a: "equal" if a["equal"] else f"token {a['at']}, margin {number(a['margin'], 3)}"
    return text + table(["model", "prompt", "parts from f32", "from int8", "from the reference"],
                        [[r["model"], r["prompt"], cell(r["with_f32"]), cell(r["with_int8"]), cell(r["with_golden"])] for r in rows])


def batch_cells(entry):
    """Tokens a second of the largest batch, and of how many single sequences that is; dashes for a report that has none."""
    batch = entry.get("batch")
    if not batch:
        return ["-", "-"]
    most = max(batch["tok_s"], key=int)
    return [ranged(batch["tok_s"][most], 0), number(batch["relative"][most], 1)]


def batch_head(timed):
    most = max((b for e in timed if e.get("batch") for b in e["batch"]["tok_s"]), key=int, default="many")
    return [f"decode of {most} at once, tok/s", "of one's"]


def batch_text(timed, work):
    """How batches were measured."""
    batches = [(e["label"], e["batch"]) for e in timed if e.get("batch")]
    if not batches:
        return ""
    most = max(batches[0][1]["tok_s"], key=int)
    memory = "; ".join(f"{label}: {batch['kv_bytes'] / 1e9:.1f} GB" for label, batch in batches)
    return (f"Decoding {most} at once: steps of {most} sequences, each behind {work['context']} positions of its own, in turns with steps of one; tokens of all of them a second, and "
            f"how many times those of one. The KV reserved for them, which a step reads beside the weights ({memory}). ")


def experts_text(timed):
    """What the figures of mixtures of experts count."""
    mixed = [f"{e['label']}: {e['experts']['used']} of {e['experts']['count']}" for e in timed if e.get("experts")]
    if not mixed:
        return ""
    return (f"Of a mixture of experts bytes and parameters are those of the experts that one token meets ({'; '.join(mixed)}), the least that a step of one sequence reads: rows of a block "
            "meet experts of their own, so t(K) grows with them. ")


def speed_text(report):
    work = report["workload"]
    timed = [e for e in report["speed"] if e.get("cost")]
    if not timed:
        return "\n## Speed\n\nNot measured.\n"
    share = lambda v: "-" if v is None else f"{v:.0%}"
    runs = timed[0]["cost"]["runs"]
    fewer = "".join(f"; {e['label']}: {e['cost']['runs']}" for e in timed if e["cost"]["runs"] != runs)
    text = (f"\n## Speed\n\nRandom weights of published shapes, {timed[0]['bits']} bits in groups of {timed[0]['group_size']}: {work['steps']} single steps behind {work['context']} "
            f"positions, a prompt of {work['prompt']} in steps of as many rows as the backend says. Medians of {runs} runs (lowest–highest){fewer}. Packed bytes are those of the checkpoint's "
            "files, less an embedding table that a step takes one row of; TFLOP/s are two a parameter and row of the quantised matrices, the vocabulary's left out, "
            f"which the last row of a prompt alone meets. {experts_text(timed)}{batch_text(timed, work)}".rstrip() + "\n\n")
    text += table(["shape", "packed GB", "ms a step", "decode tok/s", "packed TB/s", "of the read bandwidth", *batch_head(timed), "prefill tok/s", "TFLOP/s", "of the matrix rate"],
                  [[e["label"], f"{e['read_bytes'] / 1e9:.2f}", number(1e3 * c["step_s"]["median"]), f"**{ranged(c['decode_tok_s'])}**", number(c["packed_tb_s"]),
                    share(c["share_of_read"]), *batch_cells(e), ranged(c["prefill_tok_s"], 0), number(c["prefill_tflop_s"], 0), share(c["share_of_matmul"])]
                   for e in timed for c in [e["cost"]]])
    widths = list(timed[0]["cost"]["relative"])
    text += f"\nA block of K rows with the logits of all, behind {work['context']} positions: t(K)/t(1), and milliseconds.\n\n"
    rows = []
    for e in timed:
        rows.append([e["label"], "t(K)/t(1)", *(number(e["cost"]["relative"][k]) for k in widths)])
        rows.append([e["label"], "ms", *(number(1e3 * e["cost"]["block_s"][k]["median"]) for k in widths)])
    return text + table(["shape", "", *(f"K={k}" for k in widths)], rows)


def drafts_text(report):
    work = report["workload"]
    rows = []
    for e in report["speed"]:
        for r in e.get("simulated") or []:
            rows.append([e["label"], e["drafter"]["name"], str(r["k"]), number(r["tokens_per_second"]["median"], 1), f"**{ranged(r['speedup'], 2)}**", number(r["acceptance_rate"]),
                         number(r["tokens_per_round"]), number(r["round_cost"]), f"{number(r['ms_draft'])} / {number(r['ms_verify'])} / {number(r['ms_rest'])}",
                         yes(r["output_identical"])])
    if not rows:
        return ""
    return (f"\n## Drafts\n\nThe same shapes with their drafter's forward; each draft is right with probability {work['probability']}, given those before it, which is a published "
            f"acceptance rate of {work['published_rate']} ([../benchmarks.md](../benchmarks.md)). Acceptance is an assumption here, the cost is measured.\n\n"
            + table(["shape", "drafter", "K", "tok/s", "speedup", "acceptance_rate", "tokens_per_round", "round_cost", "ms draft / verify / rest", "identical"], rows))


def embedded_text(report):
    if not report["sweep"]:
        return ""
    found = {}
    for row in verdict.drafted(report["sweep"]):
        found.setdefault((row["pairing"], row["k"]), []).append(row)
    rows = []
    for (pairing, k), group in found.items():
        rate, length = hosts.pooled(group)
        speeds = sorted(r["speedup"]["median"] for r in group if r["speedup"])
        same = sum(r["output_identical"] is True for r in group)
        middle = f"{(speeds[(len(speeds) - 1) // 2] + speeds[len(speeds) // 2]) / 2:.2f} ({speeds[0]:.2f}–{speeds[-1]:.2f})" if speeds else "-"
        rows.append([pairing, str(k), number(rate, 3), number(length), middle, f"{same} of {len(group)}"])
    return ("\n## The embedded pairs\n\nAll drafts of all prompts; speedups are the medians of single prompts: their median (lowest–highest).\n\n"
            + table(["pairing", "K", "acceptance_rate", "mean_accepted_len", "speedup", "output identical"], rows))


def targets_text(report):
    rows = [[shape, what, number(found), bound, yes(met)] for shape, what, met, found, bound in verdict.targets(report)]
    return "\n## Targets\n\n" + table(["shape", "what", "found", "target", "met"], rows) if rows else ""


def hosts_page(report, cpu):
    text = f"# Acceptance across hosts\n\n{heading(report, 'python3 tools/gpu_check page')}"
    if not report["sweep"]:
        return text + "The sweep was not run.\n"
    rows = hosts.side_by_side(report, cpu)
    work = report["workload"]
    text += (f"The same checkpoints, prompts and block widths, greedy, {work['sweep_tokens']} tokens. GPU: {device(report)} ({report['versions']['backend']}). "
             + (f"CPU: {device(cpu)} ({cpu['versions']['backend']}), commit {(cpu['versions']['commit'] or 'unknown')[:12]}, {cpu['date']}.\n" if cpu else "No processor's run was given: the GPU alone.\n"))
    differ = lambda row: row["kind"] in ("drafts", "tokens")
    text += "\n## All prompts together\n\n"
    groups = {}
    for row in rows:
        groups.setdefault((row["gpu"]["pairing"], row["gpu"]["k"]), []).append(row)
    if cpu:
        body = []
        for (pairing, k), group in groups.items():
            (rate, length), (other, other_length) = hosts.pooled([r["gpu"] for r in group]), hosts.pooled([r["cpu"] for r in group])
            gap = None if rate is None or other is None else rate - other
            body.append([pairing, str(k), number(other, 3), number(rate, 3), "-" if gap is None else f"{gap:+.3f}", number(other_length), number(length),
                         f"{sum(r['kind'] == 'same' for r in group)} of {len(group)}"])
        text += table(["pairing", "K", "acceptance_rate, CPU", "GPU", "difference", "mean_accepted_len, CPU", "GPU", "prompts with the same rounds"], body)
        kinds = {kind: sum(r["kind"] == kind for r in rows) for kind in ("same", "drafts", "tokens", "other", "unknown")}
        far = [r for r in rows if "no near-tie" in r["text"]]
        text += (f"\nOf {len(rows)} rows {kinds['same']} have the same drafts and tokens in every round, {kinds['drafts']} the same answer with other drafts somewhere, {kinds['tokens']} part in "
                 f"the answer; {kinds['other']} are of another checkpoint or prompt and {kinds['unknown']} cannot be told apart for want of traces. ")
        if any(map(differ, rows)):
            text += (f"**{len(far)} of those that part do so where the two likeliest tokens are further than {verdict.NEAR_TIE} apart, which rounding alone does not explain.**\n" if far else
                     f"All that part do so where the two likeliest tokens are within {verdict.NEAR_TIE} of each other: the hosts round otherwise, and behind that place the text is another.\n")
        else:
            text += "No gap comes from the hosts.\n"
    else:
        text += table(["pairing", "K", "acceptance_rate, GPU", "mean_accepted_len, GPU"],
                      [[pairing, str(k), *(number(v, d) for v, d in zip(hosts.pooled([r["gpu"] for r in group]), (3, 2)))] for (pairing, k), group in groups.items()])
    text += "\n## Prompt by prompt\n\n"
    figure = lambda row: [number(row["acceptance_rate"], 3), number(row["mean_accepted_len"])] if row else ["-", "-"]
    body = []
    for row in rows:
        start = [row["gpu"]["pairing"], row["gpu"]["prompt"], str(row["gpu"]["k"])]
        (rate, length), (other, other_length) = figure(row["gpu"]), figure(row["cpu"])
        same = yes(row["gpu"]["output_identical"])
        body.append(start + ([other, rate, other_length, length, same, row["text"]] if cpu else [rate, length, same]))
    head = ["pairing", "prompt", "K"]
    head += ["acceptance_rate, CPU", "GPU", "mean_accepted_len, CPU", "GPU", "output identical (GPU)", "where they part"] if cpu else ["acceptance_rate", "mean_accepted_len", "output identical"]
    text += table(head, body)
    if cpu and any(differ(row) for row in rows):
        text += "\nA margin is the distance of the two largest logits, on the host where it is smaller.\n"
    return text


def exactness_page(report):
    text = f"# Exactness of the Gemma 4 31B shape\n\n{heading(report)}"
    found = [p for p in report["probes"] if p["shape"] and p["label"].startswith(EXACT_SHAPE)]
    if not found:
        return text + "Not probed in this run.\n"
    for probe in found:
        cut = f"{probe['layers']} of its {probe['layers_of_shape']} layers, in the sizes of the whole" if probe["layers"] else "all its layers"
        rows, size = (sum(o[key] for o in probe["outcomes"]) for key in ("rows", "bytes"))
        text += (f"`mlxcel probe` on random weights of the shape, {cut}, drafter {probe['drafter'] or 'none'}; {device(report)} "
                 f"({probe['backend']}): **{probe['verdict'].upper()}**. Blocks of K rows against single steps, byte by byte, logits and cache: {rows} rows, {size / 1e9:.2f} GB "
                 f"compared over {probe['draws']} draws (seed {probe['seed']}) in {probe['seconds']:.0f} s.\n\n"
                 f"Each draw prefills a sequence to within two positions of the sliding window of {probe['window'] or '-'}, so that its blocks lie on both sides of the place where the "
                 "window loses its first row, and short sequences that stay before it; at batch 1 each is run alone, in larger batches all run together.\n\n")
        batches = verdict.all_batches(probe)
        sides = [("before", False), ("after", True)] if probe["window"] else [("", False)]
        widths = sorted({o["width"] for o in probe["outcomes"] if not o["mixed"] and o["width"] > 1})
        head = ["K", *(f"batch {b}{', ' + side + ' the wrap' if side else ''}" for b in batches for side, _ in sides)]
        body = [[str(k), *(verdict.probed_cell(probe, k, b, after)[0] for b in batches for _, after in sides)] for k in widths]
        text += table(head, body)
        for o in probe["outcomes"]:
            if o["mixed"] or o["width"] == 1:
                what = "blocks of several widths beside a prompt" if o["mixed"] else "single steps together"
                text += f"\n- {what}, batch {o['batch']}: {'exact' if o['exact'] else 'INEXACT, first at ' + verdict.place(o)}, {o['rows']} rows"
        text += "\n"
        wrong = [o for o in probe["outcomes"] if not o["exact"]]
        text += "".join(f"- {verdict.place(o)}: {o['differing_bytes']} of {o['bytes']} bytes differ\n" for o in wrong) + "\n"
    return text.rstrip("\n") + "\n"


def render(report, cpu=None):
    """{page: text}; a LookupError names what the report lacks."""
    for one in (report, cpu):
        if one is not None:
            verdict.check_fields(one)
    if cpu is not None and not cpu["sweep"]:
        raise CheckError("--cpu: a run with the step sweep expected, found none in it")
    return {"gpu": gpu_page(report), "acceptance_across_hosts": hosts_page(report, cpu), "gemma_4_31b_exactness": exactness_page(report)}


README_BEGIN, README_END = "<!-- gpu:begin -->", "<!-- gpu:end -->"


def readme_text(report):
    """The README's table of a run: speed of published shapes, alone and with drafts."""
    rows = []
    whole = [entry for entry in report["speed"] if not entry.get("layers")]
    for entry in whole or report["speed"]:  # what is cut is for gpu.md, unless there is nothing else
        c = entry.get("cost")
        if not c:
            continue
        four = next((r for r in entry.get("simulated") or [] if r["k"] == 4), None)
        rows.append([entry["label"], number(c["decode_tok_s"]["median"], 1), number((c.get("relative") or {}).get("4")), number((c.get("relative") or {}).get("8")),
                     number(four["speedup"]["median"]) if four else "-", batch_cells(entry)[1], number(c["prefill_tok_s"]["median"], 0)])
    head = ["shape, 4 bits", "decode, tok/s", "a block of 4, in steps", "a block of 8", "speedup with drafts, K=4", f"{batch_head(report['speed'])[0].split(',')[0]}, of one's", "prefill, tok/s"]
    return (f"{device(report)}; random weights of published shapes, batch 1 unless said, behind {report['workload']['context']} positions; drafts accepted as published "
            f"({report['workload']['published_rate']}), their cost measured; {report['versions']['mlxcel']}. Bandwidth and matrix rate of the same run, and the targets that are "
            f"missed: [gpu.md](docs/benchmark_results/gpu.md).\n\n" + table(head, rows))


def main(argv):
    parser = argparse.ArgumentParser(prog="gpu_check page", description="Writes the pages of a run, from its JSON alone.")
    parser.add_argument("run", metavar="RUN.json")
    parser.add_argument("--cpu", metavar="CPU.json", help="a run of --backend cpu with the step sweep: the other side of acceptance across hosts")
    parser.add_argument("--out", metavar="DIR", default=RESULTS, help="[default: docs/benchmark_results]")
    args = parser.parse_args(argv)
    report = read_json(args.run, "the report")
    for name, text in render(report, read_json(args.cpu, "--cpu") if args.cpu else None).items():
        path = os.path.join(args.out, f"{name}.md")
        write(path, text)
        say(f"wrote {os.path.relpath(path, ROOT)}")
    if args.out == RESULTS and report["speed"]:
        readme = os.path.join(ROOT, "README.md")
        with open(readme, encoding="utf-8") as file:
            before, rest = file.read().split(README_BEGIN)
        write(readme, before + README_BEGIN + "\n" + readme_text(report) + README_END + rest.split(README_END)[1])
        say("wrote README.md")
    return 1 if verdict.problems(report) else 0
