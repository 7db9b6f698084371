"""The Qwen 3.5 recipe at a toy size, and its checks."""

import os

import torch
import torch.nn.functional as F

from ..qwen3_5 import export, tokenise, tokenizer, train_head, train_target
from ..qwen3_5.config import KEEP_FLOAT32, SHAPES, is_matrix
from ..qwen3_5.model import Head, Target
from ..qwen3_5.reference import Reference, chat
from . import checks
from .corpus import write_corpus

NAME, ARCHITECTURE = "qwen3.5-toy", "Qwen 3.5"
NATS = 3.5  # what the held-out loss must fall by
QUESTIONS = ["What is the capital of France?", "What is a token?", "Who are you?"]
FILES = {"-4bit": ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
                   "tokenizer_config.json", "chat_template.jinja"],
         "-mtp-4bit": ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]}
DRAFTER = "-mtp-4bit"
POSITIONS = 128  # two chunks of the delta rule


def train(work, out, steps):
    """Corpus, tokenizer, streams, target (two thirds of `steps` optimiser steps), head (a fifth as many), export."""
    shards = write_corpus(os.path.join(work, "corpus"), "qwen3_5", ARCHITECTURE)
    tok, streams, run = (os.path.join(work, name) for name in ("tokenizer", "streams", "run"))
    tokenizer.main([*shards[:-1], "--out", tok, "--vocabulary", str(SHAPES["toy"].vocab_size)])
    tokenise.main([*shards, "--tokenizer", f"{tok}/tokenizer.json", "--out", streams, "--processes", "1", "--tool-chats", "50"])
    train_target.main(["--streams", streams, "--out", run, "--steps", str(steps * 2 // 3), "--device", "cpu", "--shape", "toy",
                       "--batch", "8", "--length", "128", "--warmup", "20", "--report", "50"])
    train_head.main(["--streams", streams, "--target", f"{run}/target.pt", "--tokenizer", f"{tok}/tokenizer.json", "--out", run,
                     "--steps", str(steps // 5), "--device", "cpu", "--batch", "6", "--length", "128", "--row", "128", "--room", "48",
                     "--prompts", "64", "--rounds", "1", "--windows", "200", "--evaluate", "16", "--draft-steps", "3", "--warmup", "10",
                     "--report", "20"])
    export.main(["--run", run, "--tokenizer", tok, "--out", os.path.join(out, NAME)])


@torch.no_grad()
def check_files(run, target_folder, drafter_folder):
    """The reference code over the exported files against the training code over the trained weights."""
    config = SHAPES["toy"]
    target, head = Target(config).prepare(POSITIONS, "cpu"), Head(config).prepare(POSITIONS, "cpu")
    target.load_state_dict(checks.rounded_state(os.path.join(run, "target.pt"), is_matrix, KEEP_FLOAT32))
    head.load_state_dict(checks.rounded_state(os.path.join(run, "head.pt"), is_matrix))
    reference = Reference(target_folder, drafter_folder)
    ids = (reference.encode(chat(QUESTIONS[0])) + reference.encode(" tokens and words") * POSITIONS)[:POSITIONS]
    hidden = target.hidden(torch.tensor([ids]))
    found, _ = reference.model.run(torch.tensor(ids))
    checks.same_logits(NAME, target.logits(hidden)[0], reference.model.logits(found))
    following, positions = torch.tensor(ids[1:] + ids[:1]), torch.arange(POSITIONS)
    mask = torch.zeros(POSITIONS, POSITIONS).masked_fill(positions[:, None] < positions[None], float("-inf"))
    embedded = F.embedding(following, target.model.embed_tokens.weight)[None]
    expected, _, _ = head.unrolled_step(embedded, hidden, 0, [], [], mask)
    drafted = reference.model.mtp(following, found, {}, positions)
    checks.same_logits(f"{NAME}'s head", target.logits(expected)[0], reference.model.logits(drafted))


def expected_ids(target_folder, drafter_folder, question):
    """The reference's greedy answer in the chat template, up to the first stop token."""
    reference = Reference(target_folder, drafter_folder)
    ids, _ = reference.greedy(reference.encode(chat(question)), 48)
    stops = [reference.tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
    ends = [i for i, token in enumerate(ids) if token in stops]
    return ids[: ends[0] + 1] if ends else ids
