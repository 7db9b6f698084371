#!/usr/bin/env python3
"""Renders the cases here with Jinja2, set up as transformers sets it up, and writes expected.json.

Run after changing a template or a case: python3 make_expected.py   (needs jinja2 3.1; the Rust tests need no Python)
"""

import datetime
import json
import sys
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[3]
SPECIALS = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}


class Rejected(Exception):
    pass


class Generation(Extension):
    """The block that marks what a training run learns from; here it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise Rejected(message)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.filters["fromjson"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.now(datetime.timezone.utc).strftime(fmt)
    return env


def render(source, context):
    try:
        return {"text": environment().from_string(source).render(**context)}
    except Rejected as e:
        return {"rejected": str(e)}
    except Exception as e:  # any error will do: only that there is one is compared
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    expected = {"cases": {}, "expressions": {}}
    file = json.loads((HERE / "cases.json").read_text())
    for case in file["cases"]:
        path = ROOT / case["template"] if "/" in case["template"] else HERE / case["template"]
        context = {
            **SPECIALS,
            "documents": None,
            **case.get("extra", {}),
            "messages": file["conversations"][case["conversation"]],
            "tools": file["tools"] if case.get("tools") else None,
            "add_generation_prompt": case.get("add_generation_prompt", False),
        }
        expected["cases"][case["name"]] = render(path.read_text(), context)
    extra = json.loads((HERE / "expressions_context.json").read_text())
    for name in ["expressions.txt", "differs.txt"]:
        for source in (HERE / name).read_text().removesuffix("\n").split("\n----\n"):
            context = {**SPECIALS, "messages": [], "tools": None, "documents": None, "add_generation_prompt": False}
            expected["expressions"][source] = render(source, {**context, **extra})
    text = json.dumps(expected, indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv[1:]:
        if text != (HERE / "expected.json").read_text():
            sys.exit("expected.json is not what Jinja2 gives: run make_expected.py and look at the difference")
        print(f"{len(expected['cases'])} cases and {len(expected['expressions'])} expressions as Jinja2 gives them")
        return
    (HERE / "expected.json").write_text(text)


if __name__ == "__main__":
    main()
