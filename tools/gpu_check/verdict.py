"""What a report shows: laws that are kept or broken, targets that are met or missed. From its JSON alone."""

from workload import NEAR_TIE, PROBE_BATCHES, SCHEMA, TARGETS, UNTARGETED

NEEDED = ["schema", "date", "backend", "quick", "machine", "workload", "versions", "budget", "steps", "peaks", "suites", "probes", "sweep", "agreement", "speed"]


def check_fields(report):
    """A LookupError names what a report lacks."""
    if not isinstance(report, dict):
        raise LookupError("schema")
    for field in NEEDED:
        if field not in report:
            raise LookupError(field)
    if report["schema"] != SCHEMA:
        raise LookupError(f"schema of {SCHEMA}, not {report['schema']}")


def drafted(sweep):
    return [row for row in sweep["rows"] if row["kind"] != "none"]


def laws(report):
    """[(what, kept, detail)]; kept is None for what was not run."""
    out = []
    if not report["suites"]:
        out.append(("suites", None, "not run"))
    for suite in report["suites"]:
        kept = {"ok": True, "failed": False}.get(suite["state"])
        detail = f"{suite['passed']} passed, {suite['failed']} failed, {suite['seconds']:.1f} s" + (f": {suite['why']}" if suite["why"] else "")
        detail += "; at full size" if suite.get("full") else ""
        detail += f"; with {suite['model']}" if suite.get("model") else ""
        if kept is None:
            detail = suite["why"] or "nothing to check on this device"
        out.append((f"suite {suite['name']}", kept, detail))
    if not report["probes"]:
        out.append(("probe", None, "not run"))
    for probe in report["probes"]:
        wrong = [o for o in probe["outcomes"] if not o["exact"]]
        rows = sum(o["rows"] for o in probe["outcomes"])
        detail = f"{probe['verdict']}: {rows} rows compared" + (f", first wrong at {place(wrong[0])}" if wrong else "")
        out.append((f"probe {probe['label']}", probe["verdict"] == "exact" and not wrong, detail))
    if report["sweep"]:
        rows = drafted(report["sweep"])
        measured = [r for r in rows if r["status"]["state"] == "ok"]
        other, same = [r for r in rows if r["status"]["state"] not in ("ok", "absent")], [r for r in measured if r["output_identical"] is True]
        detail = f"{len(same)} of {len(measured)} rows"
        if other:
            detail += f"; {len(other)} not measured: {other[0]['status'].get('why')}"
        out.append(("output with drafts is plain decoding's", len(same) == len(measured) and not other and bool(measured), detail))
    else:
        out.append(("output with drafts is plain decoding's", None, "not run"))
    if report["agreement"]:
        far = [r for r in report["agreement"] if not r["with_f32"]["equal"] and not (r["with_f32"]["margin"] or 0) <= NEAR_TIE]
        equal = sum(r["with_f32"]["equal"] for r in report["agreement"])
        detail = f"{equal} of {len(report['agreement'])} answers equal; the others part at near-ties"
        if far:
            detail = f"{far[0]['model']}, {far[0]['prompt']}: parts at token {far[0]['with_f32']['at']}, whose margin is {far[0]['with_f32']['margin']:.2f}"
        elif equal == len(report["agreement"]):
            detail = f"{equal} of {equal} answers equal"
        out.append(("answers leave those of the processor in f32 at near-ties only", not far, detail))
    else:
        out.append(("answers leave those of the processor in f32 at near-ties only", None, "not run"))
    for entry in report["speed"]:
        if entry.get("simulated"):
            wrong = [r["k"] for r in entry["simulated"] if r["output_identical"] is not True]
            detail = f"K = {', '.join(map(str, wrong))} differs" if wrong else f"K = {', '.join(str(r['k']) for r in entry['simulated'])}"
            out.append((f"output with drafts, {entry['label']}", not wrong, detail))
    return out


def place(outcome):
    """Where an outcome first differs."""
    first = outcome["first"]
    where = f"K={outcome['width']} B={outcome['batch']}{' mixed' if outcome['mixed'] else ''}"
    if not first:
        return where
    op = f", {'layer ' + str(first['layer']) + ', ' if first.get('layer') is not None else ''}{first['op']}" if first.get("op") else ""
    return f"{where}, position {first['position']}{op}"


def bound_of(entry, bound):
    """A target's bound for a shape, or None."""
    if entry["shape"] in UNTARGETED:
        return None
    return bound.get(entry["label"], bound[None]) if isinstance(bound, dict) else bound


def targets(report):
    """[(shape, what, met, found, bound)]; met is None where there is no figure or no target. What has neither is left out."""
    out = []
    for entry in report["speed"]:
        cost, batch = entry.get("cost") or {}, entry.get("batch") or {}
        four = next((r for r in entry.get("simulated") or [] if r["k"] == 4), None)
        found = {f"t{k}": (cost.get("relative") or {}).get(k) for k in ("4", "8", "16")}
        found |= {key: cost.get(key) for key in ("share_of_read", "share_of_matmul")}
        found["speedup4"] = four and four["speedup"]["median"]
        found["batch32"] = (batch.get("relative") or {}).get("32")
        for key, what, sign, bounds in TARGETS:
            value, bound = found[key], bound_of(entry, bounds)
            if bound is None and value is None:
                continue
            met = None if value is None or bound is None else value >= bound if sign == ">=" else value <= bound
            text = "none named" if bound is None else f"{'at least' if sign == '>=' else 'at most'} {bound}"
            out.append((entry["label"], what, met, value, text))
    return out


def probed_cell(probe, width, batch, after):
    """Verdict of a width and batch before or after the sliding window loses its first row: (text, exact)."""
    outcomes = [o for o in probe["outcomes"] if (o["width"], o["batch"]) == (width, batch) and not o["mixed"]]
    if not outcomes:
        return "not run", None
    if all(o["exact"] for o in outcomes):
        return "exact", True
    positions = [o["first"]["position"] for o in outcomes if o["first"]]
    if probe["window"] is None or not positions:
        return "INEXACT", False
    here = [p for p in positions if (p >= probe["window"]) == after]
    return (f"INEXACT from position {min(here)}", False) if here else ("not told: see the other side", None)


def all_batches(probe):
    return sorted({o["batch"] for o in probe["outcomes"]} | set(PROBE_BATCHES))


def problems(report):
    """Lines that say why a run did not pass; empty when it did."""
    out = [f"broken: {what}: {detail}" for what, kept, detail in laws(report) if kept is False]
    out += [f"{step['state']}: {step['name']}: {step['why']}" for step in report["steps"] if step["state"] in ("failed", "late")]
    return out
