"""Chats about the demo itself, about inference, and about a few basic facts: own work, from the questions in facts.txt."""

import os
import random

PREFIXES = ["", "", "", "", "Please answer: ", "Question: ", "Quick question: ", "Can you tell me: "]
SYSTEM_MESSAGES = [None, None, None, "You are a helpful assistant.", "You are a tiny demo model. Be brief."]


def read_facts(recipe, architecture):
    """`(questions, answers)` of every block of facts.txt that belongs to `recipe` ("gemma4" or "qwen3_5")."""
    facts = []
    with open(os.path.join(os.path.dirname(__file__), "facts.txt"), encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            lines = [line for line in block.splitlines() if line and not line.startswith("#")]
            only = [line.removeprefix("only: ") for line in lines if line.startswith("only: ")]
            questions = [line.removeprefix("Q: ") for line in lines if line.startswith("Q: ")]
            answers = [line.removeprefix("A: ").replace("{architecture}", architecture) for line in lines if line.startswith("A: ")]
            if questions and (not only or recipe in only):
                facts.append((questions, answers))
    return facts


def fact_chats(facts, count, seed, other=None, other_share=0.4):
    """`count` corpus records of one to three questions each.

    `other(rng)` may give other `(question, answer)` pairs; it is asked for `other_share` of the turns.
    """
    rng = random.Random(seed)
    for _ in range(count):
        messages = []
        system = rng.choice(SYSTEM_MESSAGES)
        if system:
            messages.append({"role": "system", "content": system})
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if other and rng.random() < other_share:
                question, answer = other(rng)
            else:
                questions, answers = rng.choice(facts)
                question = rng.choice(PREFIXES) + rng.choice(questions)
                if rng.random() < 0.15:
                    question = question.lower()
                if rng.random() < 0.1:
                    question = question.rstrip("?.!")
                answer = rng.choice(answers)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        yield {"s": "demo-qa", "m": messages}
