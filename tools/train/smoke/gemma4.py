"""The Gemma 4 recipe at a toy size, and its checks."""

import os

import torch

from ..gemma4 import export, tokenise, tokenizer, train_drafter, train_target
from ..gemma4.config import FULL, SHAPES, SLIDING, is_matrix
from ..gemma4.model import Drafter, Target
from ..gemma4.reference import Reference, Sequence
from . import checks
from .corpus import write_corpus

NAME, ARCHITECTURE = "gemma-4-toy", "Gemma 4"
NATS = 5.0  # what the held-out loss must fall by
QUESTIONS = ["What is a token?", "What is a KV cache?", "Who are you?"]
FILES = {"-4bit": ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
                   "tokenizer_config.json", "chat_template.jinja"],
         "-assistant-4bit": ["config.json", "generation_config.json", "model.safetensors"]}
DRAFTER = "-assistant-4bit"
POSITIONS = 72  # longer than the window


def train(work, out, steps):
    """Corpus, tokenizer, streams, target (`steps` optimiser steps), drafter (a third as many), export."""
    shards = write_corpus(os.path.join(work, "corpus"), "gemma4", ARCHITECTURE)
    tok, streams, run = (os.path.join(work, name) for name in ("tokenizer", "streams", "run"))
    tokenizer.main([*shards[:-1], "--out", tok, "--vocabulary", str(SHAPES["toy"].vocab_size), "--characters", "3000000",
                    "--minimum-count", "30"])
    tokenise.main([*shards, "--tokenizer", f"{tok}/tokenizer.json", "--out", streams, "--processes", "1"])
    train_target.main(["--streams", streams, "--out", run, "--steps", str(steps), "--device", "cpu", "--shape", "toy", "--batch", "8",
                       "--length", "128", "--warmup", "20", "--report", "50"])
    train_drafter.main(["--streams", streams, "--target", f"{run}/target.pt", "--tokenizer", f"{tok}/tokenizer.json", "--out", run,
                        "--steps", str(steps // 3), "--device", "cpu", "--batch", "6", "--length", "128", "--row", "128", "--prompts", "64",
                        "--rows-at-once", "64", "--evaluate", "16", "--draft-steps", "3", "--warmup", "10", "--report", "20", "--rounded"])
    export.main(["--run", run, "--tokenizer", tok, "--out", os.path.join(out, NAME)])


def trained_models(run):
    """Target and drafter with the weights that the files should hold."""
    config = SHAPES["toy"]
    target, drafter = Target(config).prepare(POSITIONS, "cpu"), Drafter(config).prepare(POSITIONS, "cpu")
    target.load_state_dict(checks.rounded_state(os.path.join(run, "target.pt"), is_matrix))
    drafter.load_state_dict(checks.rounded_state(os.path.join(run, "drafter.pt"), is_matrix))
    return target, drafter


@torch.no_grad()
def check_files(run, target_folder, drafter_folder):
    """The reference code over the exported files against the training code over the trained weights."""
    target, drafter = trained_models(run)
    reference = Reference(target_folder, drafter_folder)
    ids = (reference.prompt("chat", QUESTIONS[0]) + reference.encode(" tokens and words") * POSITIONS)[:POSITIONS]
    hidden, shared = target.hidden(torch.tensor([ids]), with_kv=True)
    expected = target.logits(hidden)[0]
    sequence = Sequence(reference)
    found = [sequence.feed(ids[start : start + 8])[1] for start in range(0, POSITIONS, 8)]  # as in verification: blocks on a cache
    checks.same_logits(NAME, expected, torch.cat(found))
    tables = {kind: tuple(t[:POSITIONS] for t in drafter.tables[kind]) for kind in (SLIDING, FULL)}
    embedded = target.embed(torch.tensor([ids[1:] + ids[:1]]))
    states = [drafter.step(embedded, hidden, shared, tables)[1]]
    reference.drafter.attention = drafter.attention
    states.append(reference.drafter.step(embedded, hidden, shared, tables)[1])
    checks.same_logits(f"{NAME}'s drafter", drafter.logits(states[0])[0], reference.drafter.logits(states[1])[0])


def expected_ids(target_folder, drafter_folder, question):
    """The reference's greedy answer in the chat template."""
    reference = Reference(target_folder, drafter_folder)
    return reference.greedy(reference.prompt("chat", question), 48)[0]
