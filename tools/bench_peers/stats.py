"""Medians, spreads, ratios, and whether the targets are met."""

import statistics

from common import CONTEXTS, WIDTHS

DECODE_TARGET = 1.5
PREFILL_TARGET = 1.2
# Precision at which the targets count.
TARGET_PAIR = "head8"


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
    return out


def all_verdicts(report):
    """[(pair, threads, what, met, detail)] of every summary that counts."""
    rows = [(r["pair"], r["threads"], *v) for r in report["results"] if r["pair"] == TARGET_PAIR for v in verdicts(r["summary"])]
    if not rows:
        rows = [(TARGET_PAIR, 0, "measurement", False, f"{TARGET_PAIR} was not measured; leave --pairs out")]
    return rows
