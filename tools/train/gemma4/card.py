"""Writes the model cards of target and bf16 drafter from the records of the published run and golden.json.

    python3 -m train.gemma4.card models/gemma-4-tiny-it-4bit models/gemma-4-tiny-it-assistant-bf16
"""

import argparse
import os

from ..common.card import fill, packages, records, sources, table, write_card
from ..common.export import read_json

HERE = os.path.dirname(os.path.abspath(__file__))
LOSSES = ["valid", "chat", "stories", "prose", "docs", "rust", "python", "js"]
WIDTHS = ("2", "4", "8")


def target_card(target):
    """The target's card; `target` is its record."""
    def row(name, losses):
        return [name] + [f"{losses[domain]:.4f}" for domain in LOSSES]

    before = target["before_rounding"]
    losses = table(["weights"] + LOSSES, [
        row("before QAT (78 % of the run), bf16", before["bf16"]), row("before QAT, rounded to 4 bits", before["rounded_to_4bit"]),
        row("final, bf16 masters", target["final_bf16"]), row("**final, 4 bits (this file)**", target["final_4bit"])])
    texts = [[s["name"], s["domain"], s["package"], s["version"], s["licence"], f"{s['clean_bytes'] / 1e6:.1f}"] for s in sources()]
    texts.append(["demo-qa", "chat", "`tools/train/gemma4/demo_chats.py`", "-", "own work", "3.0"])
    code = "\n".join(f"* {kind}: {packages(name)}" for kind, name in
                     (("Rust crates", "crates.tsv"), ("Python packages", "pypi.tsv"), ("npm packages", "npm.tsv")))
    return fill(os.path.join(HERE, "card_target.md"), {
        "LOSSES": losses, "SOURCES": table(["source", "kind", "package", "version", "licence", "MB"], texts), "PACKAGES": code})


def drafter_card(drafter, golden):
    """The drafter's card; `drafter` is its record, `golden` the target's golden.json."""
    held, by_width, rows = drafter["held_bf16"], golden["speculative"]["K"], []
    for k in WIDTHS:
        rows.append([k, f"{held['K' + k]['accept']:.3f}", f"{held['K' + k]['tokens_per_round']:.2f}",
                     f"{by_width[k]['accept_rate']:.3f}", f"{by_width[k]['tokens_per_round']:.2f}",
                     f"{held['by_kind']['chat-K' + k]:.3f}", f"{held['by_kind']['text-K' + k]:.3f}",
                     f"{drafter['held_bf16_at_bonus']['K' + k]['accept']:.3f}", f"{drafter['held_4bit']['K' + k]['accept']:.3f}"])
    rates = table(["K", "accepted/proposed", "tokens/round", "golden acc.", "golden tokens/round", "chat", "text", "bonus position",
                   "4-bit drafter"], rows)
    prompts = [[p["prompt"].replace("\n", "\\n")[:60]]
               + [f"{p['K'][k]['accept_rate']:.3f} ({p['K'][k]['accepted']}/{p['K'][k]['proposed']})" for k in WIDTHS]
               for p in golden["speculative"]["prompts"]]
    return fill(os.path.join(HERE, "card_assistant.md"), {
        "RATES": rates, "PROMPTS": table(["golden prompt", "K=2", "K=4", "K=8"], prompts),
        "CHAIN": ", ".join(f"{x:.2f}" for x in held["chain"])})


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="folder of the target")
    parser.add_argument("drafter", help="folder of the bf16 drafter")
    args = parser.parse_args(argv)
    target, drafter = records(__file__, "target.json", "drafter.json")
    write_card(args.target, target_card(target))
    write_card(args.drafter, drafter_card(drafter, read_json(os.path.join(args.target, "golden.json"))))


if __name__ == "__main__":
    main()
