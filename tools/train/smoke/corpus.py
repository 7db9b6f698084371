"""The smoke run's corpus: a few hundred kilobytes of synthetic chats and stories and of this repository's own files."""

import glob
import os
import random

from ..common.facts import fact_chats, read_facts
from ..common.shards import write_records
from ..corpus import synth

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
CHATS, STORIES, FACTS, HELD_OUT = 500, 300, 1500, 40


def repository_texts(pattern, limit):
    """Records of the repository's files that match, in order of their names, up to `limit` characters."""
    taken = 0
    for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
        with open(path, encoding="utf-8") as file:
            text = file.read()[:20_000]
        if taken + len(text) > limit:
            return
        taken += len(text)
        yield {"s": "repository", "t": text}


def chats(seed, count):
    """Records of the synthetic chats, without those about facts of WordNet and the Factbook."""
    source = synth.chats(random.Random(seed), [], [])
    records = ({"s": "synth-chat", "m": next(source)} for _ in range(count))
    return [r for r in records if all(m["role"] in ("system", "user", "assistant") for m in r["m"])]


def stories(seed, count):
    rng = random.Random(seed)
    return [{"s": "synth-stories", "t": synth.story(rng)[0]} for _ in range(count)]


def write_corpus(folder, recipe, architecture):
    """Writes the shards for one recipe and returns their paths."""
    os.makedirs(folder, exist_ok=True)
    facts = read_facts(recipe, architecture)
    shards = {
        "chat-000": chats(1, CHATS),
        "chat-001": fact_chats(facts, FACTS, seed=2),
        "stories-000": stories(3, STORIES),
        "docs-000": repository_texts("docs/*.md", 150_000),
        "rust-000": repository_texts("crates/*/src/*.rs", 150_000),
        "validsynth-000": chats(4, HELD_OUT) + list(fact_chats(facts, HELD_OUT, seed=5)) + stories(6, HELD_OUT),
    }
    paths = []
    for name, records in shards.items():
        paths.append(os.path.join(folder, name + ".jsonl"))
        write_records(paths[-1], records)
    return paths
