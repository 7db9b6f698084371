"""The same checkpoints, prompts and widths on two hosts: acceptance side by side, and where their rounds part."""

from verdict import drafted
from workload import NEAR_TIE


def rounds_of(text):
    """[[..], ..] of a kept trace's field."""
    return [part.split(",") if part else [] for part in text.split(";")]


def flat(rows):
    return [x for row in rows for x in row]


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def closest(*texts):
    """The smallest of margins that may be absent."""
    found = [float(t) for t in texts if t]
    return min(found) if found else None


def element(rows, *index):
    for i in index:
        if i >= len(rows):
            return None
        rows = rows[i]
    return rows


def parting(a, b):
    """What differs between two kept traces of a row: (kind, text). Kinds: same, drafts, tokens, other, unknown."""
    if a is None or b is None:
        return "unknown", "no trace on both hosts"
    for field, what in (("checkpoint", "checkpoint"), ("prompt_ids", "prompt")):
        if a[field] != b[field]:
            return "other", f"another {what}"
    drafts, tokens = [[rounds_of(t[key]) for t in (a, b)] for key in ("drafts", "tokens")]
    start = len(a["prompt_ids"].split(","))
    answers = [flat(t) for t in tokens]
    at = first_difference(*answers)
    text = None
    if at is not None:
        margin = closest(*(element(flat(rounds_of(t["margins"])), at) for t in (a, b)))
        text = f"answers part at position {start + at}, the target's two likeliest tokens {near(margin)}"
    position = start
    for number, (one, other) in enumerate(zip(*drafts)):
        which = first_difference(one, other)
        same_text = at is None or position <= start + at
        if which is not None and same_text and (at is None or position + which < start + at):
            margin = closest(*(element(rounds_of(t["draft_margins"]), number, which) for t in (a, b)))
            drafts_text = f"other drafts from position {position + which}, the drafter's two likeliest {near(margin)}"
            return ("tokens", f"{drafts_text}; {text}") if text else ("drafts", f"{drafts_text}; the same answer")
        if which is not None or len(one) != len(other) or element(tokens[0], number) != element(tokens[1], number):
            break
        position += len(element(tokens[0], number) or [])
    if text:
        return "tokens", text
    return "same", f"the same drafts and tokens in all {min(map(len, drafts))} rounds"


def near(margin):
    if margin is None:
        return "at an unknown margin"
    return f"{margin:.2g} apart" + ("" if margin <= NEAR_TIE else ", no near-tie")


def key(row):
    return row["pairing"], row["prompt"], row["k"]


def side_by_side(gpu, cpu):
    """Rows of the GPU's sweep, each with the processor's and what became of the difference."""
    here = {key(row): row for row in drafted(cpu["sweep"])} if cpu else {}
    traces = [{key(t): t for t in report["sweep"]["traces"]} if report else {} for report in (gpu, cpu)]
    out = []
    for row in drafted(gpu["sweep"]):
        other = here.get(key(row))
        kind, text = parting(traces[0].get(key(row)), traces[1].get(key(row))) if cpu else ("unknown", "")
        out.append({"gpu": row, "cpu": other, "kind": kind, "text": text})
    return out


def pooled(rows):
    """acceptance_rate and mean_accepted_len over rows, all drafts alike; None where nothing was measured."""
    rows = [r for r in rows if r and r["rounds"]]
    proposed, accepted, rounds = (sum(r[name] for r in rows) for name in ("proposed", "accepted", "rounds"))
    return (accepted / proposed, accepted / rounds) if proposed and rounds else (None, None)
