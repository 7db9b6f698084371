"""Medians, spreads, ratios, and whether the targets are met."""

import statistics

from common import CONTEXTS, WIDTHS

DECODE_TARGET = 1.5
PREFILL_TARGET = 1.2
# Precision at which the targets count.
TARGET_PAIR = "head8"
# t(K)/t(1) by threads, where weights exceed the cache.
BLOCK_TARGETS = {1: {"2": 1.2, "4": 1.6, "8": 2.9}, 2: {"2": 1.1, "4": 1.25, "8": 1.9}}
SHARE_TARGET = 0.85
FIRST_TOKEN_MS = 150
MEMORY_ABOVE = 60e6
COPYING, SIMULATED, EMBEDDED, ENUMERATION = 2.0, 2.2, 1.3, 1.6
# An odd block may cost this much of the next wider one.
ODD = 1.05


def spread(values):
    """Median, lowest, highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def compared(pairs, pick):
    """Both sides of a rate, and ours over theirs: of the medians, and by turn."""
    a, b = [pick(one) for one, _ in pairs], [pick(other) for _, other in pairs]
    by_turn = [x / y for x, y in zip(a, b)]
    return {"ours": spread(a), "theirs": spread(b), "ratio": statistics.median(a) / statistics.median(b),
            "ratio_low": min(by_turn), "ratio_high": max(by_turn)}


def relative(pairs, width):
    """t(K)/t(1) of both sides, each inside its own runs; and what K rows take, ours over theirs."""
    cost = lambda run: run["verify"][width] / run["verify"][1]
    return {"ours": spread([cost(a) for a, _ in pairs]), "theirs": spread([cost(b) for _, b in pairs]),
            "ours_ms": spread([1e3 * a["verify"][width] for a, _ in pairs]), "theirs_ms": spread([1e3 * b["verify"][width] for _, b in pairs])}


def summary(pairs):
    """All of a precision and thread count."""
    return {
        "runs": len(pairs),
        "prefill": compared(pairs, lambda run: run["prefill"]),
        "decode": {str(context): compared(pairs, lambda run: run["decode"][context]) for context in CONTEXTS},
        "verify": {str(width): relative(pairs, width) for width in WIDTHS},
    }


def verdicts(result):
    """[(what, met, detail)] of the targets, for a summary."""
    out = []
    for context, row in result["decode"].items():
        out.append((f"decode at {context}", row["ratio"] >= DECODE_TARGET, f"{row['ratio']:.2f} of {DECODE_TARGET}"))
    ratio = result["prefill"]["ratio"]
    out.append(("prefill", ratio >= PREFILL_TARGET, f"{ratio:.2f} of {PREFILL_TARGET}"))
    for width, row in result["verify"].items():
        if width != "1":
            ours, theirs = row["ours"]["median"], row["theirs"]["median"]
            out.append((f"t({width})/t(1)", ours < theirs, f"{ours:.2f}, theirs {theirs:.2f}"))
    ours = {int(width): row["ours"]["median"] for width, row in result["verify"].items()}
    steps = [(k, ours[k] / ours[k + 1]) for k in ours if k % 2 == 1 and k > 1 and k + 1 in ours]
    worst, ratio = max(steps, key=lambda step: step[1])
    out.append(("no penalty at odd K", ratio <= ODD, f"t({worst}) {ratio:.2f} of t({worst + 1}), at most {ODD}"))
    return out


def at_most(what, relative, limits):
    return [(f"{what} t({k})/t(1)", relative[k] <= limit, f"{relative[k]:.2f} of at most {limit}") for k, limit in limits.items()]


def at_least(what, found, target):
    return what, found >= target, f"{found:.2f} of {target}"


def own_verdicts(own):
    """[(model, threads, what, met, detail)] of what our side is held to alone."""
    out = []
    for row in own.get("linear") or []:
        name, threads = "65536x2048", row["threads"]
        if threads == 2:
            out.append((name, threads, *at_least("share of the read bandwidth", row["packed_gb_s"] / row["read_gb_s"], SHARE_TARGET)))
        out += [(name, threads, *v) for v in at_most("linear", row["relative"], BLOCK_TARGETS.get(threads, {}))]
    ms = own["first_token"]["ms"]["median"]
    out.append((own["first_token"]["model"], 2, "process start to first token", ms <= FIRST_TOKEN_MS, f"{ms:.0f} ms of at most {FIRST_TOKEN_MS}"))
    ours = own["memory"]["ours"]
    above = ours["peak_bytes"] - ours["weight_bytes"] - ours["kv_bytes"]
    out.append((own["memory"]["pair"], 2, "memory above weights and KV", above <= MEMORY_ABOVE, f"{above / 1e6:.0f} MB of at most {MEMORY_ABOVE / 1e6:.0f}"))
    for part in own.get("speculation") or []:
        threads = part["threads"]
        out += [("gemma-4-1b shape", threads, *v) for v in at_most("model", part["shape_relative"], BLOCK_TARGETS.get(threads, {}))]
        out += [("SmolLM2 8 bits", threads, *at_least(f"prompt lookup, {row['prompt']}", row["speedup"], COPYING)) for row in part["copying"]]
        out += [("gemma-4-1b shape", threads, *at_least(f"speedup at K={row['k']}, acceptance rate {row['rate']:.2f}", row["speedup"], SIMULATED))
                for row in part["shape"]]
        for name, rows in part["embedded"].items():
            out.append((name, threads, *at_least("speedup, adaptive K", statistics.median(row["speedup"] for row in rows), EMBEDDED)))
            out += [(name, threads, *at_least("on enumeration", row["speedup"], ENUMERATION)) for row in rows if row["prompt"] == "enumeration"]
    return out


def all_verdicts(report):
    """[(pair, threads, what, met, detail)] of every summary that counts."""
    rows = [(r["pair"], r["threads"], *v) for r in report["results"] if r["pair"] == TARGET_PAIR for v in verdicts(r["summary"])]
    if not rows:
        rows = [(TARGET_PAIR, 0, "measurement", False, f"{TARGET_PAIR} was not measured; leave --pairs out")]
    return rows + (own_verdicts(report["floors"]) if report.get("floors") else [])
