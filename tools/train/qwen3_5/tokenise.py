"""Turns corpus shards into token streams.

    python3 -m train.qwen3_5.tokenise --tokenizer TOK/tokenizer.json --out STREAMS --tool-chats 20000 SHARD...

Every document and every chat ends with `<|endoftext|>`. Turns after the last question carry no `<think>` block, an empty one or one
with a sentence, so that the model knows all three.
"""

import argparse
import json
import random
import re
import zlib

import numpy as np
from tokenizers import Tokenizer

from ..common.shards import break_markers, line_batches, stream_name, write_streams
from . import tool_chats
from .config import MARKERS

LEFT_OUT = ("chitchat",)  # sources that are too noisy for a demo
tokenizer = end_of_text = None


def initialise(path):
    """Loads the tokenizer in a worker process."""
    global tokenizer, end_of_text
    tokenizer = Tokenizer.from_file(path)
    end_of_text = tokenizer.token_to_id("<|endoftext|>")


def reasoning(question, answer, r):
    """One sentence of thought that fits question and answer."""
    if "<function=" in answer:
        return "A tool can answer this. I will call %s." % answer.split("<function=")[1].split(">")[0]
    if "```" in answer:
        return r.choice(["The user wants code. I will write a short function.", "I need to write code. A small function is enough."])
    if answer[:2] in ("- ", "1.", "| "):
        return r.choice(["The user wants a list or a table. I write one item on each line.",
                         "I should answer with one item on each line."])
    if answer[:1] in "[{":
        return "The answer must be valid JSON."
    if re.search(r"\d", question) and re.search(r"\d", answer):
        return r.choice(["There are numbers here. I work it out step by step and give the result.",
                         "I need to work with the numbers in the question."])
    if "story" in question.lower():
        return r.choice(["The user wants a story. I need a name, a problem and a good ending.",
                         "This is about a story. I keep the words simple."])
    if "mean" in question or "Define" in question:
        return "The user asks for the meaning of a word."
    return r.choice(["The user says: %s" % question[:80].split("\n")[0].strip(), "This is a simple question. A short answer is enough.",
                     "I think about the question and answer in a short way."])


def render(messages, r):
    """A chat `[(role, content)]` as the template prints it; empty where the assistant says nothing."""
    answers = [i for i, (role, _) in enumerate(messages) if role == "assistant"]
    if not answers:
        return ""
    if len(messages) > 4 and r.random() < 0.5:
        messages = messages[: r.choice(answers) + 1]
    questions = [i for i, (role, content) in enumerate(messages) if role == "user" and not content.startswith("<tool_response>")]
    last, mode, turns = max(questions, default=0), r.random(), []
    for i, (role, content) in enumerate(messages):
        if role == "assistant" and i > last and mode > 0.12:
            thought = reasoning(messages[last][1], content, r) if mode > 0.72 else ""
            content = f"<think>\n{thought}\n</think>\n\n{content}"
        turns.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
    return "".join(turns)


def corpus_tool_chat(messages):
    """A chat of the corpus with tool calls, in this model's form."""
    chat = []
    for m in messages:
        role, content = m["role"], m["content"]
        if role == "system":
            content = tool_chats.system_block(["get_weather", "get_time", "add"])
        elif role == "assistant" and content.startswith('{"name"'):
            call = json.loads(content)
            content = tool_chats.call(call["name"], call["arguments"])
        elif role == "tool":
            role, content = "user", tool_chats.response(content)
        chat.append((role, content))
    return chat


def record_text(record, r):
    """A corpus record as text; empty where it is left out."""
    if record["s"] in LEFT_OUT:
        return ""
    if "m" not in record:
        return break_markers(record["t"], MARKERS)
    if any(m["role"] == "tool" for m in record["m"]):
        return render(corpus_tool_chat(record["m"]), r)
    return render([(m["role"], break_markers(m["content"], MARKERS).strip()) for m in record["m"]], r)


def encode(job):
    """Ids of a job `(seed, lines or seeds of tool chats)`, uint16."""
    seed, items = job
    r = random.Random(seed)
    texts = [render(tool_chats.sample(random.Random(item)), r) if isinstance(item, int) else record_text(json.loads(item), r)
             for item in items]
    ids = []
    for encoding in tokenizer.encode_batch([t for t in texts if t], add_special_tokens=False):
        ids += encoding.ids
        ids.append(end_of_text)
    return np.array(ids, dtype=np.uint16)


def shard_jobs(path):
    name = stream_name(path)
    for number, lines in enumerate(line_batches(path)):
        yield zlib.crc32(f"{name} {number}".encode()), lines


def tool_jobs(count):
    for first in range(0, count, 1000):
        yield first, list(range(10**6 + first, 10**6 + min(first + 1000, count)))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="+", help="corpus shards, DOMAIN-NUMBER.jsonl.xz; domains valid* are held out")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--out", required=True, help="folder for the streams")
    parser.add_argument("--tool-chats", type=int, default=0, help="also make this many chats with tool calls (stream `tools`)")
    parser.add_argument("--processes", type=int, default=15, help="worker processes (default: 15)")
    args = parser.parse_args(argv)
    jobs = [(stream_name(path), shard_jobs(path)) for path in args.shards]
    if args.tool_chats:
        jobs.append(("tools-000", tool_jobs(args.tool_chats)))
    write_streams(jobs, args.out, args.processes, encode, initialise, args.tokenizer)


if __name__ == "__main__":
    main()
