#!/usr/bin/env python3
"""Checks mlxcel against mlx-lm on a real model: SmolLM2-135M-Instruct, by what tests/golden/smollm2/reference.json holds.

    python3 tools/smollm2/check.py --convert                 fetch the GGUF file, convert it three ways, check
    python3 tools/smollm2/check.py --models target/smollm2   check the conversions bf16, 8bit and 4bit that lie there
    python3 tools/smollm2/check.py --self-test               plant differences and see each of them found (no model needed)

For each form, with --cpu-precision f32:

  weights     each layer's tensors as stored, packed words, scales and biases included, equal mlx-lm's own conversion bit for bit
  NAME        the greedy answer to a prompt has mlx-lm's tokens, all of them, and its log-probabilities within 0.0005; at the first
              difference both runners-up are shown, since a near-tie is no error of arithmetic (the reference has none)
  perplexity  of text.txt within 0.01 % of mlx-lm's, and with int8 activations within 1 %

Exit code 1 when something differs. Needs Python's standard library, and pip for --convert.
"""

import argparse
import copy
import hashlib
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile
import time

import fetch
import tensors

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
REFERENCE = os.path.join(ROOT, "tests/golden/smollm2/reference.json")
LOGPROB_TOLERANCE = 5e-4
PERPLEXITY_TOLERANCE = {"f32": 1e-4, "int8": 1e-2}
TIMEOUT = 600


class CheckError(Exception):
    """A result that cannot be had."""


class Binary:
    """mlxcel on converted checkpoints."""

    def __init__(self, binary, models, text, threads=None):
        self.binary, self.models, self.text = binary, models, text
        self.threads = ["-t", str(threads)] if threads else []

    def folder(self, form):
        return os.path.join(self.models, form)

    def _json(self, arguments):
        try:
            done = subprocess.run([self.binary, *arguments], capture_output=True, text=True, encoding="utf-8", timeout=TIMEOUT)
        except (OSError, ValueError, subprocess.TimeoutExpired) as e:
            raise CheckError(f"{self.binary}: {e}") from None
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["nothing on standard error"]
            raise CheckError(f"{self.binary} {arguments[0]}: exit code 0 expected, found {done.returncode}: {said[-1]}")
        try:
            out = json.loads(done.stdout)
        except ValueError as e:
            raise CheckError(f"{self.binary} {arguments[0]} --json: JSON expected, found {e}") from None
        if not isinstance(out, dict):
            raise CheckError(f"{self.binary} {arguments[0]} --json: an object expected, found {done.stdout[:40]!r}")
        return out

    def generate(self, form, prompt, tokens):
        return self._json(["generate", "-m", self.folder(form), "-p", prompt, "--temp", "0", "--cpu-precision", "f32",
                           "--json", "--quiet", "-n", str(tokens), "--logprobs", "2", *self.threads])

    def perplexity(self, form, context):
        """{precision: result}."""
        out = self._json(["perplexity", self.text, "-m", self.folder(form), "--ctx-size", str(context), "--compare", "--json",
                          *self.threads])
        if len(out.get("results", [])) != 2:
            raise CheckError(f"{self.binary} perplexity --compare: two results expected, found {len(out.get('results', []))}")
        return dict(zip(("f32", "int8"), out["results"]))

    def digests(self, form):
        return tensors.digests(self.folder(form))


def compare_answer(reference, prompt, got, tokens):
    """(passed, detail) of one greedy answer of at most `tokens` tokens."""
    if got["usage"]["prompt_tokens"] != len(prompt["ids"]):
        return False, f"{len(prompt['ids'])} prompt tokens expected, found {got['usage']['prompt_tokens']}"
    want = reference["ids"][:tokens]
    whole = len(want) == len(reference["ids"])
    found = got["tokens"]
    for step, (a, b) in enumerate(zip(want, found)):
        if a != b:
            top = got.get("logprobs", [{}] * len(found))[step].get("top", [])
            ours = f", here {top[0][1] - top[1][1]:.5f}" if len(top) == 2 else ""
            return False, (f"step {step}: token {a} expected, found {b}; best above second: in the reference "
                           f"{reference['gaps'][step]:.5f}{ours}")
    if len(found) != len(want):
        return False, f"{len(want)} tokens expected, found {len(found)}"
    reason = reference["finish_reason"] if whole else "length"
    if got["finish_reason"] != reason:
        return False, f"finish reason {reason} expected, found {got['finish_reason']}"
    # A character that was cut at the end reads as U+FFFD in a shortened answer.
    text = got["text"]
    same = text == reference["text"] if whole else reference["text"].startswith(text.rstrip("\ufffd"))
    if not same or not text:
        return False, f"the text {reference['text']!r}{'' if whole else ' or its beginning'} expected, found {text!r}"
    if len(got.get("logprobs", [])) != len(found):
        return False, f"{len(found)} log-probabilities expected, found {len(got.get('logprobs', []))}"
    away = [abs(a - b["logprob"]) for a, b in zip(reference["logprobs"], got["logprobs"])]
    worst = max(range(len(away)), key=lambda i: away[i] if away[i] == away[i] else float("inf"))
    if not away[worst] <= LOGPROB_TOLERANCE:
        return False, (f"step {worst}: log-probability {reference['logprobs'][worst]} within {LOGPROB_TOLERANCE} expected, "
                       f"found {got['logprobs'][worst]['logprob']}")
    return True, f"{len(found)} tokens equal, log-probabilities within {away[worst]:.1e}"


def compare_perplexity(reference, got, precision):
    if (got["context"], got["tokens"]) != (reference["context"], reference["tokens"]):
        return False, (f"{reference['tokens']} tokens in windows of {reference['context']} expected, found {got['tokens']} "
                       f"in windows of {got['context']}")
    ratio = got["perplexity"] / reference["perplexity"] - 1
    detail = f"{got['perplexity']:.4f}, mlx-lm {reference['perplexity']:.4f}, {ratio:+.4%}"
    limit = PERPLEXITY_TOLERANCE[precision]
    return abs(ratio) <= limit, detail if abs(ratio) <= limit else f"{detail}: within {limit:.2%} expected"


def compare_digests(reference, got):
    if missing := sorted(set(reference) - set(got)):
        return False, f"{', '.join(missing)} expected, found none"
    if extra := sorted(set(got) - set(reference)):
        return False, f"no other tensors expected, found {', '.join(extra)}"
    if wrong := [group for group in reference if reference[group] != got[group]]:
        some = ", ".join(wrong[:4] + ["..."] * (len(wrong) > 4))
        return False, f"{len(wrong)} of {len(reference)} groups differ: {some}; compare_packed.py says where"
    return True, f"{len(reference)} groups of tensors equal bit for bit"


def check(reference, runner, forms, tokens, perplexity_forms, report=lambda row: None):
    """Rows {"form", "check", "passed", "detail", "seconds"}; an error of one check leaves the others running."""
    rows = []

    def row(form, name, work):
        start = time.monotonic()
        try:
            results = work()
        except (CheckError, tensors.TensorError, OSError, LookupError, TypeError, AttributeError, ValueError) as e:
            results = [(name, False, f"{type(e).__name__}: {e}" if not isinstance(e, CheckError) else str(e))]
        seconds = time.monotonic() - start
        for name, passed, detail in results:
            rows.append({"form": form, "check": name, "passed": passed, "detail": detail, "seconds": round(seconds, 1)})
            report(rows[-1])
            seconds = 0.0

    for form in forms:
        want = reference["forms"][form]
        row(form, "weights", lambda: [("weights", *compare_digests(want["digests"], runner.digests(form)))])
        for prompt, answer in zip(reference["prompts"], want["answers"]):
            name = prompt["name"]
            work = lambda: [(name, *compare_answer(answer, prompt, runner.generate(form, prompt["text"], tokens), tokens))]
            row(form, name, work)
        if form in perplexity_forms:
            def work():
                got = runner.perplexity(form, want["perplexity"]["context"])
                return [(f"perplexity {p}", *compare_perplexity(want["perplexity"], got[p], p)) for p in ("f32", "int8")]
            row(form, "perplexity", work)
    return rows


def convert(binary, models, reference):
    """Fetches the GGUF file into `models` and converts it, as a user would."""
    source = fetch.fetch(models)
    for form, record in reference["forms"].items():
        bits = [] if record["bits"] is None else ["--bits", str(record["bits"]), "--group-size", str(record["group_size"])]
        command = [binary, "convert", source, "-o", os.path.join(models, form), "--dtype", "bf16", "--force", "--quiet", *bits]
        done = subprocess.run(command, stdout=sys.stderr)
        if done.returncode != 0:
            raise CheckError(f"{' '.join(command)}: exit code 0 expected, found {done.returncode}")


class Echo:
    """Answers what the reference says, unless a fault is planted."""

    def __init__(self, reference, fault=None):
        self.reference, self.fault = reference, fault or (lambda kind, form, result: None)

    def _planted(self, kind, form, result):
        self.fault(kind, form, result)
        return result

    def generate(self, form, prompt, tokens):
        which = next(p for p in self.reference["prompts"] if p["text"] == prompt)
        answer = next(a for a in self.reference["forms"][form]["answers"] if a["name"] == which["name"])
        whole = len(answer["ids"]) <= tokens
        return self._planted("generate", form, {
            "tokens": answer["ids"][:tokens],
            "text": answer["text"] if whole else answer["text"][:5],
            "finish_reason": answer["finish_reason"] if whole else "length",
            "usage": {"prompt_tokens": len(which["ids"])},
            "logprobs": [{"logprob": l, "top": [[i, l], [0, l - g]]}
                         for i, l, g in zip(answer["ids"][:tokens], answer["logprobs"], answer["gaps"])],
        })  # fmt: skip

    def perplexity(self, form, context):
        want = self.reference["forms"][form]["perplexity"]
        return self._planted("perplexity", form, {"f32": dict(want), "int8": dict(want)})

    def digests(self, form):
        return self._planted("digests", form, dict(self.reference["forms"][form]["digests"]))


def planted():
    """(name, kind of result, change) of faults, each of which must fail exactly one row a form and result; then of changes that
    must not."""

    def put(*path, value):
        def change(result):
            for key in path[:-1]:
                result = result[key]
            result[path[-1]] = value(result[path[-1]]) if callable(value) else value
        return change

    def scale(by, precision):
        return put(precision, "perplexity", value=lambda p: p * by)

    g, p, d = "generate", "perplexity", "digests"
    faults = [
        ("the first token", g, put("tokens", 0, value=lambda t: t + 1)),
        ("the last token", g, put("tokens", -1, value=lambda t: t ^ 1)),
        ("a token too few", g, put("tokens", value=lambda t: t[:-1])),
        ("a token too many", g, put("tokens", value=lambda t: t + [5])),
        ("no tokens", g, put("tokens", value=[])),
        ("a prompt token too many", g, put("usage", "prompt_tokens", value=lambda n: n + 1)),
        ("another finish reason", g, put("finish_reason", value="cancelled")),
        ("another text", g, put("text", value=lambda t: "?" + t)),
        ("an empty text", g, put("text", value="")),
        ("a log-probability beyond the tolerance", g, put("logprobs", 3, "logprob", value=lambda l: l - 1.05 * LOGPROB_TOLERANCE)),
        ("a log-probability that is no number", g, put("logprobs", 3, "logprob", value=float("nan"))),
        ("no log-probabilities", g, put("logprobs", value=[])),
        ("a field that is missing", g, lambda r: r.pop("finish_reason")),
        ("perplexity a little worse", p, scale(1 + 1.05 * PERPLEXITY_TOLERANCE["f32"], "f32")),
        ("perplexity a little better", p, scale(1 - 1.05 * PERPLEXITY_TOLERANCE["f32"], "f32")),
        ("int8 perplexity worse", p, scale(1 + 1.05 * PERPLEXITY_TOLERANCE["int8"], "int8")),
        ("perplexity that is no number", p, scale(float("nan"), "f32")),
        ("fewer predicted tokens", p, put("int8", "tokens", value=lambda n: n - 1)),
        ("another window", p, put("f32", "context", value=256)),
        ("another digest", d, put("layers.7", value="0" * 16)),
        ("a lost layer", d, lambda r: r.pop("layers.7")),
        ("a head that nobody asked for", d, put("lm_head", value="0" * 16)),
    ]  # fmt: skip
    harmless = [
        ("a log-probability within the tolerance", g, put("logprobs", 3, "logprob", value=lambda l: l + 0.9 * LOGPROB_TOLERANCE)),
        ("perplexity within the tolerance", p, scale(1 + 0.9 * PERPLEXITY_TOLERANCE["f32"], "f32")),
        ("int8 perplexity within the tolerance", p, scale(1 - 0.9 * PERPLEXITY_TOLERANCE["int8"], "int8")),
    ]  # fmt: skip
    return faults, harmless


def self_test(reference):
    """Every planted difference must be found, and found where it was planted; exact and tolerated results must pass."""
    forms = list(reference["forms"])
    longest = reference["max_tokens"]

    def failures(fault, tokens=longest):
        return [r for r in check(reference, Echo(reference, fault), forms, tokens, forms) if not r["passed"]]

    for tokens in (1, 8, longest - 1, longest, longest + 1):
        assert not failures(None, tokens), f"the reference differs from itself with {tokens} tokens: {failures(None, tokens)}"
    faults, harmless = planted()
    for bad, cases in ((True, faults), (False, harmless)):
        for name, kind, change in cases:
            for form in forms:
                seen = []

                def fault(k, f, result):
                    if (k, f) == (kind, form):
                        seen.append(f)
                        change(result)

                failed = failures(fault)
                assert seen, f"{name}: planted nowhere"
                expected = len(seen) if bad else 0
                assert len(failed) == expected and all(r["form"] == form for r in failed), f"{name} in {form}: {failed}"

    # One bit of one tensor in a file; a file that is cut.
    with tempfile.TemporaryDirectory() as folder:
        header = json.dumps({"model.layers.0.a.weight": {"dtype": "U32", "shape": [4], "data_offsets": [0, 16]},
                             "model.norm.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]}}).encode()  # fmt: skip
        path = os.path.join(folder, "model.safetensors")
        whole = struct.pack("<Q", len(header)) + header + bytes(range(24))

        def digest_of(data):
            with open(path, "wb") as f:
                f.write(data)
            return tensors.digests(folder)

        good = digest_of(whole)
        assert set(good) == {"layers.0", "norm"} and compare_digests(good, digest_of(whole))[0]
        for at, group in ((len(whole) - 1, "norm"), (len(whole) - 9, "layers.0"), (len(whole) - 24, "layers.0")):
            flipped = digest_of(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            assert [g for g in good if good[g] != flipped[g]] == [group], f"byte {at}: {flipped}"
        renamed = digest_of(whole.replace(b"BF16", b"F16 "))
        assert not compare_digests(good, renamed)[0], "another dtype passed"
        for length in (4, 40, len(whole) - 1):
            try:
                digest_of(whole[:length])
            except tensors.TensorError:
                continue
            raise AssertionError(f"a file cut to {length} bytes passed")

        # A binary that fails, talks nonsense, or is not there: rows that fail, no traceback.
        program = os.path.join(folder, "mlxcel")
        for body in ("echo broken >&2; exit 3", "echo hello", "echo '{}'", "echo '[]'", "echo '{\"results\": 7}'", None):
            if body is None:
                os.remove(program)
            else:
                with open(program, "w") as f:
                    f.write(f"#!/bin/sh\n{body}\n")
                os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
            rows = check(reference, Binary(program, folder, "text"), forms[:1], 4, forms)
            assert rows and not any(r["passed"] for r in rows), f"{body}: {rows}"
    changed = copy.deepcopy(reference)
    changed["text"]["sha256"] = "0" * 64
    try:
        text_file(changed)
    except CheckError:
        pass
    else:
        raise AssertionError("another text.txt passed")
    print(f"check.py: {len(faults)} faults planted in each of {len(forms)} forms and found; {len(harmless)} tolerated changes passed; "
          "flipped bits, cut files and broken binaries found")


def text_file(reference):
    """The text that the reference was measured on."""
    path = os.path.join(ROOT, reference["text"]["file"])
    with open(path, "rb") as f:
        found = hashlib.sha256(f.read()).hexdigest()
    if found != reference["text"]["sha256"]:
        raise CheckError(f"{path}: SHA-256 {reference['text']['sha256']} expected, found {found}; run reference.py again")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/mlxcel"), metavar="FILE",
                        help="[default: target/release/mlxcel]")
    parser.add_argument("--models", default=os.path.join(ROOT, "target", "smollm2"), metavar="DIR",
                        help="folder of the conversions bf16, 8bit and 4bit [default: target/smollm2]")
    parser.add_argument("--convert", action="store_true", help="fetch the GGUF file into --models and convert it first")
    parser.add_argument("--reference", default=REFERENCE, metavar="FILE", help="[default: tests/golden/smollm2/reference.json]")
    parser.add_argument("--forms", default="bf16,8bit,4bit", metavar="LIST", help="[default: bf16,8bit,4bit]")
    parser.add_argument("-n", "--tokens", type=int, default=64, metavar="N", help="tokens of an answer to compare [default: 64]")
    parser.add_argument("--perplexity", default="4bit", metavar="LIST", help="forms to measure; none = none [default: 4bit]")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads of the binary")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--self-test", action="store_true", help="see planted differences found, and exit")
    args = parser.parse_args()
    try:
        with open(args.reference, encoding="utf-8") as f:
            reference = json.load(f)
        if args.self_test:
            self_test(reference)
            return 0
        forms = [f for f in args.forms.split(",") if f]
        measured = [f for f in args.perplexity.split(",") if f and f != "none"]
        if unknown := [f for f in forms + measured if f not in reference["forms"]] or ([] if forms else [""]):
            raise CheckError(f"--forms, --perplexity: some of {', '.join(reference['forms'])} expected, found {unknown[0]!r}")
        if not 1 <= args.tokens <= reference["max_tokens"]:
            raise CheckError(f"--tokens: 1 to {reference['max_tokens']} expected, found {args.tokens}")
        text = text_file(reference)
        if args.convert:
            convert(args.binary, args.models, reference)
    except (CheckError, fetch.FetchError, OSError, ValueError) as e:
        print(f"check.py: {e}", file=sys.stderr)
        return 1

    def report(row):
        if not args.json:
            word = "ok  " if row["passed"] else "FAIL"
            print(f"{word} {row['form']:<5} {row['check']:<15} {row['seconds']:>6.1f} s  {row['detail']}", flush=True)

    rows = check(reference, Binary(args.binary, args.models, text, args.threads), forms, args.tokens, measured, report)
    failed = sum(not row["passed"] for row in rows)
    if args.json:
        print(json.dumps({"passed": not failed, "rows": rows}, indent=1))
    else:
        print(f"{len(rows) - failed} of {len(rows)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
