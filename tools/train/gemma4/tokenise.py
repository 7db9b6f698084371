"""Turns corpus shards into token streams.

    python3 -m train.gemma4.tokenise --tokenizer TOK/tokenizer.json --out STREAMS SHARD...

A document becomes `<bos> text <eos>`; a chat is rendered as the chat template renders it, between the same two.
"""

import argparse
import json

import numpy as np
from tokenizers import Tokenizer

from ..common.shards import break_markers, line_batches, stream_name, write_streams
from .config import BOS, EOS

MARKERS = ("<|turn>", "<turn|>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>")
PIECE_CHARACTERS = 3000
tokenizer = None


def initialise(path):
    """Loads the tokenizer in a worker process."""
    global tokenizer
    tokenizer = Tokenizer.from_file(path)


def render(messages):
    """The chat as the template prints it, without `<bos>`."""
    turns = []
    for m in messages:
        role = "model" if m["role"] == "assistant" else m["role"]
        turns.append(f"<|turn>{role}\n{break_markers(m['content'], MARKERS).strip()}<turn|>\n")
    return "".join(turns)


def pieces(text):
    """A document in pieces that end at line ends or before spaces: without a pre-tokenizer, BPE's cost grows with length."""
    start = 0
    while start < len(text):
        end = min(len(text), start + PIECE_CHARACTERS)
        if end < len(text):
            cut = text.rfind("\n", start + 1, end)
            if cut > start:
                while cut + 1 < len(text) and text[cut + 1] == "\n":
                    cut += 1
                end = cut + 1
            else:
                cut = text.rfind(" ", start + 1, end)
                end = cut if cut > start else end
        yield text[start:end]
        start = end


def encode(lines):
    """Ids of a batch of records, uint16."""
    ids = []
    for line in lines:
        record = json.loads(line)
        texts = [render(record["m"])] if "m" in record else pieces(break_markers(record["t"], MARKERS))
        ids.append(BOS)
        for text in texts:
            ids += tokenizer.encode(text, add_special_tokens=False).ids
        ids.append(EOS)
    return np.array(ids, dtype=np.uint16)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="+", help="corpus shards, DOMAIN-NUMBER.jsonl.xz; domains valid* are held out")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--out", required=True, help="folder for the streams")
    parser.add_argument("--processes", type=int, default=16, help="worker processes (default: 16)")
    args = parser.parse_args(argv)
    jobs = ((stream_name(path), line_batches(path)) for path in args.shards)
    write_streams(jobs, args.out, args.processes, encode, initialise, args.tokenizer)


if __name__ == "__main__":
    main()
