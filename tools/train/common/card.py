"""Parts of the model cards that both recipes have."""

import os

from .export import read_json

CORPUS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "corpus")


def records(recipe_file, *names):
    """The records of the published run that lie beside a recipe."""
    folder = os.path.join(os.path.dirname(os.path.abspath(recipe_file)), "records")
    return [read_json(os.path.join(folder, name)) for name in names]


def sources():
    """The corpus's sources, as its manifest lists them."""
    return read_json(os.path.join(CORPUS, "manifest.json"))["sources"]


def packages(name):
    """`package (licence), ...` of crates.tsv, pypi.tsv or npm.tsv."""
    with open(os.path.join(CORPUS, name), encoding="utf-8") as table:
        rows = [line.rstrip("\n").split("\t") for line in table][1:]
    return ", ".join(f"{row[0]} ({row[2][:60]})" for row in rows)


def table(header, rows):
    """A Markdown table; `header` and each row are lists of cells."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_card(folder, text):
    """Writes MODEL_CARD.md."""
    with open(os.path.join(folder, "MODEL_CARD.md"), "w", encoding="utf-8") as card:
        card.write(text)


def fill(template, values):
    """The template beside a recipe's card.py with its `@NAME@` replaced."""
    with open(template, encoding="utf-8") as file:
        text = file.read()
    for name, value in values.items():
        if f"@{name}@" not in text:
            raise ValueError(f"{template}: @{name}@ is missing")
        text = text.replace(f"@{name}@", str(value))
    return text
