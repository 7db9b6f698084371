"""Canned outputs through parsers, statistics and page, and faults that each of them must see."""

import copy
import os
import tempfile

import floors
import models
import page
import peer
import runs
import speculation
from common import CONTEXTS, PROMPT, TOKENS, WIDTHS, BenchError, output_of, parse_json
from stats import all_verdicts, summary, verdicts

# Seconds of a block by width: ours a quarter of a pass a row, theirs half.
OURS = {k: 0.004 * (1 + 0.25 * (k - 1)) for k in WIDTHS}
THEIRS = {k: 0.008 * (1 + 0.5 * (k - 1)) for k in WIDTHS}


def timed(context, rows, seconds):
    return {"context": context, "rows": rows, "seconds": [seconds, seconds * 1.5, seconds * 0.9]}


def canned_ours():
    rates = {"prefill": timed(0, PROMPT, 0.5), "decode": [timed(c, TOKENS, 0.4) for c in CONTEXTS], "verify": [timed(128, 1, 0.004)],
             "kv_bytes": 1, "weight_bytes": 2, "backend": "cpu", "version": "0.1.0", "commit": None, "device": "a machine"}
    return [rates, {"verify": [timed(128, k, s) for k, s in OURS.items()]}]


def canned_test(prompt, generated, depth, rate):
    return {"n_threads": 2, "n_prompt": prompt, "n_gen": generated, "n_depth": depth, "samples_ts": [rate],
            "flash_attn": -1, "type_k": "f16", "type_v": "f16", "backends": "CPU"}


def canned_theirs():
    blocks = {"model": "llama Q4_0", "model_bytes": 3, "threads": 2, "verify": [timed(128, k, s) for k, s in THEIRS.items()]}
    return [[canned_test(PROMPT, 0, 0, 500.0)], [canned_test(0, TOKENS, c, 80.0) for c in CONTEXTS], blocks, 2]


def canned_report(pairs):
    linear = {"rows": [{"outputs": 65536, "inputs": 2048, "threads": 1, "read_gb_s": 20.0, "packed_bytes": 75e6,
                        "times": [{"width": k, "median_s": 0.004 + 0.0005 * (k - 1)} for k in WIDTHS]}]}
    side = {"peak_bytes": 3 << 20, "weight_bytes": 1 << 20, "kv_bytes": 1 << 20, "ratio": 1.5}
    row = {"prompt": "enumeration", "k": "4", "speedup": 2.5, "low": 2.4, "high": 2.6, "rate": 0.6, "tok_s": 100.0}
    speculated = [{"threads": 2, "copying": [row], "shape": [row], "shape_relative": {str(k): 1 + 0.05 * (k - 1) for k in WIDTHS},
                   "embedded": {"gemma": [row]}}]
    return {
        "machine": {"cpu": "a processor", "cores": 2, "isa": "avx2", "l3": "32 MiB", "memory_gib": 16.0, "os": "Linux"}, "load": [0.1, 1.0],
        "quick": False, "ours": pairs[0][0]["about"], "theirs": pairs[0][1]["about"], "peer_version": "1", "peer_flags": "F=ON", "compiler": "c++ 1",
        "models": {"head8": {"ours_bytes": 8e7, "theirs_bytes": 9e7, "theirs_types": {}}},
        "results": [{"pair": "head8", "threads": 2, "summary": summary(pairs)}],
        "floors": {"linear": floors.linear_rows(linear), "speculation": speculated, "first_token": {"model": "m", "ms": {"median": 1, "low": 1, "high": 2}},
                   "memory": {"pair": "head8", "ours": side, "theirs": side}},
    }


def refused(what, work):
    """The message of an error that must come."""
    try:
        work()
    except (BenchError, LookupError, TypeError) as e:
        return str(e)
    raise AssertionError(f"{what} passed")


def changed(make, change):
    value = make()
    change(value)
    return value


def parsers():
    """Faults in the outputs of both sides."""
    ours, theirs = runs.parse_ours(canned_ours()), runs.parse_theirs(*canned_theirs())
    assert ours["prefill"] == PROMPT / 0.5 and ours["decode"][2048] == TOKENS / 0.4 and ours["verify"] == OURS, ours
    assert theirs["prefill"] == 500 and theirs["decode"] == {c: 80.0 for c in CONTEXTS} and theirs["verify"] == THEIRS, theirs
    own = {
        "another prompt": lambda v: v[0]["prefill"].update(rows=128),
        "another context": lambda v: v[0]["decode"][1].update(context=128),
        "no time at all": lambda v: v[0]["prefill"].update(seconds=[0.0]),
        "no runs": lambda v: v[0]["decode"][0].update(seconds=[]),
        "a null": lambda v: v[0]["prefill"].update(seconds=[None]),
        "a missing width": lambda v: v[1]["verify"].pop(3),
        "blocks elsewhere": lambda v: v[1]["verify"][2].update(context=0),
        "a missing field": lambda v: v[0].pop("backend"),
    }
    peers = {
        "another thread count": lambda v: v[1][0].update(n_threads=1),
        "another depth": lambda v: v[1][1].update(n_depth=0),
        "a missing test": lambda v: v[1].pop(),
        "a rate of zero": lambda v: v[0][0].update(samples_ts=[0.0]),
        "no samples": lambda v: v[0][0].update(samples_ts=[]),
        "blocks of other threads": lambda v: v[2].update(threads=1),
        "another width": lambda v: v[2]["verify"][0].update(rows=9),
    }
    for what, change in own.items():
        refused(what, lambda: runs.parse_ours(changed(canned_ours, change)))
    for what, change in peers.items():
        refused(what, lambda: runs.parse_theirs(*changed(canned_theirs, change)))
    assert "JSON expected" in refused("no JSON", lambda: parse_json("no output", "llama-bench"))
    return len(own) + len(peers) + 1


def statistics():
    """Targets that are met, and each of them missed on its own."""
    def pairs_of(change=lambda a, b: None, turns=3):
        out = []
        for _ in range(turns):
            a, b = runs.parse_ours(canned_ours()), runs.parse_theirs(*canned_theirs())
            change(a, b)
            out.append((a, b))
        return out

    good = canned_report(pairs_of())
    assert all(row[3] for row in all_verdicts(good)), all_verdicts(good)
    assert len(all_verdicts(good)) == 3 + len(WIDTHS) + 3 + 2 + 3 + 1 + 1 + 2, len(all_verdicts(good))
    slow = {
        "decode at 2048": lambda a, b: a["decode"].update({2048: 119.0}),
        "decode at 128": lambda a, b: b["decode"].update({128: 107.0}),
        "prefill": lambda a, b: b.update(prefill=PROMPT / 0.5 / 1.19),
        "t(3)/t(1)": lambda a, b: a["verify"].update({3: b["verify"][3] / b["verify"][1] * a["verify"][1]}),
        "t(16)/t(1)": lambda a, b: b["verify"].update({16: 0.008}),
    }
    for what, change in slow.items():
        missed = [row[2] for row in all_verdicts(canned_report(pairs_of(change))) if not row[3]]
        # A third row as dear as theirs is dearer than our fourth.
        expected = [what] + ["no penalty at odd K"] * (what == "t(3)/t(1)")
        assert missed == expected, f"{what} missed, found {missed}"
        assert "| NO |" in page.render(canned_report(pairs_of(change)))
    own = {
        "linear t(4)/t(1)": lambda f: f["linear"][0]["relative"].update({"4": 1.61}),
        "process start to first token": lambda f: f["first_token"]["ms"].update(median=151),
        "memory above weights and KV": lambda f: f["memory"]["ours"].update(peak_bytes=63e6),
        "model t(2)/t(1)": lambda f: f["speculation"][0]["shape_relative"].update({"2": 1.11}),
        "prompt lookup, enumeration": lambda f: f["speculation"][0]["copying"][0].update(speedup=1.99),
        "speedup at K=4, acceptance rate 0.60": lambda f: f["speculation"][0]["shape"][0].update(speedup=2.19),
        "on enumeration": lambda f: f["speculation"][0]["embedded"]["gemma"][0].update(speedup=1.59),
    }
    for what, change in own.items():
        report = copy.deepcopy(good)
        for part in ("copying", "shape"):
            report["floors"]["speculation"][0][part] = [dict(report["floors"]["speculation"][0][part][0])]
        change(report["floors"])
        missed = [row[2] for row in all_verdicts(report) if not row[3]]
        assert missed == [what], f"{what} missed, found {missed}"
    narrow = copy.deepcopy(good)
    narrow["floors"]["linear"][0].update(threads=2, read_gb_s=24.0)
    assert "share of the read bandwidth" in [row[2] for row in all_verdicts(narrow) if not row[3]]
    # One slow run of three moves the spread and not the median.
    mixed = pairs_of()
    mixed[1][0]["prefill"] /= 10
    result = summary(mixed)
    assert result["prefill"]["ours"]["median"] == PROMPT / 0.5 and result["prefill"]["ours"]["low"] == PROMPT / 5, result["prefill"]
    assert result["prefill"]["ratio_low"] < 0.21 and all(met for _, met, _ in verdicts(result))
    other = copy.deepcopy(good)
    other["results"][0]["pair"] = "all4"
    assert not all(row[3] for row in all_verdicts(other)), "targets of a precision that was not measured were met"
    text = page.render(good)
    assert "NO" not in text and "a processor" in text and "20.0 GB/s with 1 thread;" not in text and "quick" not in text, text
    table = page.in_readme("a\n<!-- peers:begin -->\nold\n<!-- peers:end -->\nb\n", good)
    assert "old" not in table and table.startswith("a\n") and table.endswith("-->\nb\n") and "| 2 | decode behind 2048, tok/s | 160 | 80 | 2.00 |" in table, table
    refused("a README without the place", lambda: page.in_readme("text", good))
    assert "too few runs" in page.render({**good, "quick": True})
    assert page.render({**good, "floors": None}).count("not measured") == 1
    return len(slow) + len(own) + 4


def tables():
    """Rows of speculative_bench that are no measurement, or whose output differed."""
    head = "k,prompt,status,status_why,output_identical,speedup_median,speedup_min,speedup_max,acceptance_rate,tokens_per_second_median\n"
    good = "1,a,ok,,true,1,1,1,,9\nadaptive,a,ok,,true,2.5,2.4,2.6,0.5,100\n"
    (row,) = speculation.rows_of(head + good, "a table")
    assert row["speedup"] == 2.5 and row["rate"] == 0.5 and row["k"] == "adaptive", row
    faults = {"plain decoding alone": head + good.splitlines()[0] + "\n", "another output": head + good.replace("adaptive,a,ok,,true", "4,a,ok,,false"),
              "a failed row": head + good.replace("adaptive,a,ok", "4,a,failed"), "no table": ""}
    for what, text in faults.items():
        refused(what, lambda: speculation.rows_of(text, "a table"))
    return len(faults)


def order():
    """A B B A."""
    log = []
    pairs = runs.in_turns(4, lambda: log.append("A") or "a", lambda: log.append("B") or "b")
    assert "".join(log) == "ABBAABBA" and pairs == [("a", "b")] * 4, log


def programs():
    """Programs that fail, models of another precision, archives that are not the pinned one."""
    assert "exit code 0 expected, found 3: broken" in refused("a failing program", lambda: output_of(["/bin/sh", "-c", "echo broken >&2; exit 3"]))
    assert "no-such-program" in refused("a missing program", lambda: output_of(["/no-such-program"]))
    assert "an end within" in refused("a program that hangs", lambda: output_of(["/bin/sh", "-c", "exec sleep 30"], timeout=0.2))
    refused("a failing process", lambda: floors.run_for_peak(["/bin/sh", "-c", "exit 1"]))
    seconds, peak = floors.run_for_peak(["/bin/sh", "-c", "exit 0"])
    assert seconds > 0 and 0 < peak < 1 << 30, (seconds, peak)
    refused("a head at 4 bits", lambda: models.check_types("head8", {"types": {"Q4_0": 1, "F32": 1}}))
    refused("a head at 8 bits", lambda: models.check_types("all4", {"types": {"Q4_0": 1, "Q8_0": 1, "F32": 1}}))
    refused("a report without the size", lambda: floors.linear_rows({"rows": [{"outputs": 1, "inputs": 1}]}))
    with tempfile.TemporaryDirectory() as folder:
        built = peer.Peer(folder)
        fresh, done = built.stamped("step", {"flags": 1}, True)
        assert not fresh
        done()
        assert built.stamped("step", {"flags": 1}, True)[0] and not built.stamped("step", {"flags": 1}, False)[0]
        assert not built.stamped("step", {"flags": 2}, True)[0], "a build with other flags passed"
        with open(os.path.join(folder, peer.SDIST), "wb") as f:
            f.write(b"another archive")
        # The download, by a program that brings nothing, leaves the wrong archive where it was.
        built.python = "/bin/true"
        assert "SHA-256" in refused("another archive", built.unpack)
    return 9


def run():
    """Everything; an assertion fails otherwise."""
    order()
    count = parsers() + statistics() + tables() + programs()
    print(f"bench_peers: {count} faults planted and found")
