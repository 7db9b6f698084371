"""Corpus shards: JSON lines, plain or xz, each `{"s": source, "t": text}` or `{"s": source, "m": [{"role", "content"}, ...]}`."""

import json
import lzma
import os
import sys
import time
from multiprocessing import Pool

import numpy as np
from tokenizers import Tokenizer


def open_shard(path, mode="rt"):
    """Opens a shard, through xz where its name says so."""
    if mode == "rt" and not os.path.exists(path):
        sys.exit(f"{path}: no such shard; corpus/prepare.py makes the shards (see README.md)")
    opener = lzma.open if path.endswith(".xz") else open
    return opener(path, mode, encoding="utf-8")


def open_tokenizer(path):
    """Loads a tokenizer.json."""
    if not os.path.exists(path):
        sys.exit(f"{path}: no such tokenizer; make it with the recipe's `tokenizer` step first")
    return Tokenizer.from_file(path)


def plain_text(record):
    """A record as one text: its own, or its messages a line each."""
    if "t" in record:
        return record["t"]
    return "\n".join(m["content"] for m in record["m"] if isinstance(m["content"], str))


def write_records(path, records):
    """Writes a shard; the folder must exist."""
    with open_shard(path, "wt") as shard:
        for record in records:
            shard.write(json.dumps(record) + "\n")


def line_batches(path, count=100):
    """The lines of a shard in lists of `count`."""
    lines = []
    with open_shard(path) as shard:
        for line in shard:
            lines.append(line)
            if len(lines) >= count:
                yield lines
                lines = []
    if lines:
        yield lines


def break_markers(text, markers):
    """Puts a space into every marker (control token) found in the text, so that corpus text never gives a control token."""
    if "<" in text:
        for marker in markers:
            text = text.replace(marker, marker[0] + " " + marker[1:])
    return text


def write_streams(jobs_by_name, out, processes, work, initialise, tokenizer):
    """Tokenises in parallel and writes one `NAME.npy` (uint16) for each `(name, jobs)`.

    `work(job)` gives a job's ids; `initialise(tokenizer)` runs first in every process, with the path of the tokenizer. A file
    appears under its name only when it is whole.
    """
    open_tokenizer(tokenizer)  # says what is wrong before any process starts
    os.makedirs(out, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    with Pool(processes, initialise, (tokenizer,)) as pool:
        for name, jobs in jobs_by_name:
            began = time.time()
            ids = np.concatenate(list(pool.imap(work, jobs)))
            path = os.path.join(out, name + ".npy")
            np.save(path + ".tmp.npy", ids)
            os.replace(path + ".tmp.npy", path)
            print(f"{name}: {len(ids) / 1e6:.2f} M tokens, {time.time() - began:.1f} s", flush=True)


def stream_name(path):
    """`prose-000` for `some/where/prose-000.jsonl.xz`."""
    return os.path.basename(path).split(".")[0]
