"""Writes the model cards of target and head from the records of the published run and golden.json.

    python3 -m train.qwen3_5.card models/qwen3.5-tiny-4bit models/qwen3.5-tiny-mtp-4bit
"""

import argparse
import os

from ..common.card import fill, records, sources, table, write_card
from ..common.export import read_json
from .tokenise import LEFT_OUT

HERE = os.path.dirname(os.path.abspath(__file__))


def source_table():
    """Sources that the run used, and the recipe's own."""
    rows = [[f"{s['name']} ({s['domain']})", f"{s['package']}, {s['version']}", s["licence"], f"{s['clean_bytes'] / 1e6:.1f}"]
            for s in sources() if s["name"] not in LEFT_OUT and s["clean_bytes"]]
    rows += [["tool chats", "tool_chats.py", "own work", "made on the fly"],
             ["demo questions, enumerations", "demo_chats.py", "own work", "2.5"]]
    return table(["source", "package", "licence", "MB"], rows)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="folder of the target")
    parser.add_argument("head", help="folder of the head")
    args = parser.parse_args(argv)
    target, head = records(__file__, "target.json", "head.json")
    golden = read_json(os.path.join(args.target, "golden.json"))
    before, final = target["before_rounding"], target["final_4bit"]
    losses = table(["held-out text", "bf16 before 4-bit training", "same, rounded to 4 bits", "final 4-bit"],
                   [[name, f"{before['bf16'][name]:.3f}", f"{before['rounded_to_4bit'][name]:.3f}", f"{final[name]:.3f}"] for name in final])
    rates = table(["K (verify rows)", "proposed", "accepted", "acceptance", "tokens per target forward"],
                  [[k, v["proposed"], v["accepted"], f"{v['acceptance']:.3f}", f"{v['mean_accepted_length']:.2f}"]
                   for k, v in golden["speculative"]["by_K"].items()])
    write_card(args.target, fill(os.path.join(HERE, "card_target.md"), {
        "LOSSES": losses, "RATES": rates, "SOURCES": source_table(), "PARAMETERS": f"{target['parameters'] / 1e6:.1f}",
        "TOKENS": f"{target['tokens'] / 1e6:.0f}", "MINUTES": f"{target['seconds'] / 60:.1f}", "STEPS": target["steps"],
        "BATCH": target["batch"], "LENGTH": target["length"]}))
    write_card(args.head, fill(os.path.join(HERE, "card_head.md"), {
        "RATES": rates, "PARAMETERS": f"{head['parameters'] / 1e6:.2f}", "SECONDS": f"{head['seconds']:.0f}", "STEPS": head["steps"],
        "BATCH": head["batch"], "LENGTH": head["length"], "GENERATED": f"{head['generated_tokens'] / 1e6:.1f}",
        "BF16": head["held_bf16"]["chain"], "ROUNDED": head["held_4bit"]["chain"]}))


if __name__ == "__main__":
    main()
