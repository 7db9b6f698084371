"""Writes the extra chat shard: questions about the demo itself, about inference and basic facts (own work).

    python3 -m train.gemma4.demo_chats chat-900.jsonl.xz
"""

import argparse

from ..common.facts import fact_chats, read_facts
from ..common.shards import write_records


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the shard to write, .jsonl or .jsonl.xz")
    parser.add_argument("--count", type=int, default=14000, help="chats (default: 14000)")
    args = parser.parse_args(argv)
    write_records(args.out, fact_chats(read_facts("gemma4", "Gemma 4"), args.count, seed=42))


if __name__ == "__main__":
    main()
