#!/usr/bin/env python3
"""Make the vectors of tests/golden/gguf: random blocks of every storage type with the values that the Python package
gguf gives them, a SentencePiece vocabulary with the ids that the sentencepiece package gives, and a byte-level
vocabulary with the ids that each pre-tokenizer leads to, by the plain splits and merges below.

    python3 tools/gguf_vectors.py [--check] [DIR]

Needs numpy, gguf (0.19), regex, sentencepiece (0.2) and tokenizers (only to train merges). --check makes the block
vectors again and compares, writing nothing.
"""
import argparse
import io
import json
import pathlib
import sys
import unicodedata

import gguf
import numpy as np
import regex
import sentencepiece
import tokenizers

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the halves of a block lie: random bits there would often be infinite or not a number.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}
VIEWS = {"F32": np.float32, "F16": np.float16}
BLOCKS = 12
EXTREMES = [0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00]


def blocks(kind, rng):
    """Blocks of random bytes: all codes and scales occur; halves are finite, ordinary or extreme."""
    quant = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    if elements == 1:
        # Finite numbers of every magnitude, both zeros, subnormals.
        raw = rng.integers(0, 256, (256, size), dtype=np.uint8)
        values = gguf.quants.dequantize(raw.reshape(1, -1).view(VIEWS.get(kind, np.uint8)), quant)
        return raw[np.isfinite(values.reshape(-1))].reshape(1, -1)
    raw = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for place in HALVES[kind]:
        halves = rng.normal(0, 0.05, BLOCKS).astype(np.float16).view(np.uint16)
        halves[: len(EXTREMES)] = rng.permutation(EXTREMES)
        raw[:, place: place + 2] = halves.astype("<u2").view(np.uint8).reshape(-1, 2)
    return raw.reshape(1, -1)


def block_vectors():
    rng = np.random.default_rng(20261129)
    out = {}
    for kind in KINDS:
        raw = blocks(kind, rng)
        quant = gguf.GGMLQuantizationType[kind]
        data = raw.view(VIEWS.get(kind, np.uint8))
        with np.errstate(over="ignore", invalid="ignore"):
            values = gguf.quants.dequantize(data, quant).astype("<f4").reshape(-1)
        out[kind + ".blocks"] = raw.tobytes()
        out[kind + ".values"] = values.tobytes()
    return out


TEXTS = [
    "", " ", "  ", "   leading and trailing   ", "Hello, world!", "the model reads the text", "a\nb\n\nc\td",
    "Grüße aus Zürich – naïve café", "Привет, мир! Как дела?", "日本語のテキストと漢字", "한국어 문장입니다",
    "مرحبا بالعالم", "שלום עולם",
    "हिन्दी में पाठ", "ไทย",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈", "x = [i**2 for i in range(10)]  # 12345", "3.14159 1,000,000", "ﬁ ½ ① Ⅷ", "▁ is a piece",
    "e\u0301 \u00e9", "\u200b zero\u00a0width", "<0x41> <s> </s> <unk>", "aaaaaaaaaaaaaaaa", "   \t  \n  mixed",
    "tokentokentoken models' model's", "0\u0000nul", "\u2028line\u2029para",
]

CORPUS = """The model reads the text and gives the next token. A token is a piece of text; a text is a list of tokens.
Models are trained on texts of many languages. Der Text wird in Stücke zerlegt, und jedes Stück hat eine Nummer.
Le texte est découpé en morceaux. El texto se divide en piezas. Текст делится на части, и у каждой части есть номер.
Привет, мир. Как у вас дела сегодня? 日本語のテキスト。 def function(x): return [i for i in range(x)] # 1 2 3 45 678
models model's modelling text texts reading reads read readable the then there their these those hello world worlds
"""


def sentencepiece_vectors():
    """A BPE model trained on a few sentences, as the metadata of a GGUF file has it, with its own ids of TEXTS."""
    out = {}
    for name, prefix in [("prefix", True), ("no_prefix", False)]:
        writer = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS.splitlines()), model_writer=writer, vocab_size=520, model_type="bpe",
            byte_fallback=True, add_dummy_prefix=prefix, remove_extra_whitespaces=False,
            normalization_rule_name="identity", character_coverage=1.0, user_defined_symbols=["<user>"],
            split_digits=True, num_threads=1, minloglevel=2,
        )
        model = sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())
        kinds = []
        for i in range(model.get_piece_size()):
            kinds.append(2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i)
                         else 4 if model.id_to_piece(i) == "<user>" else 1)
        out[name] = {
            "add_space_prefix": prefix,
            "tokens": [model.id_to_piece(i) for i in range(model.get_piece_size())],
            "scores": [model.get_score(i) for i in range(model.get_piece_size())],
            "types": kinds,
            # Control tokens in a text are text to SentencePiece and tokens to a chat model: not comparable.
            "texts": [[text, model.encode(text), model.decode(model.encode(text))]
                      for text in TEXTS if not any(t in text for t in ("<s>", "</s>", "<unk>", "▁ is"))],
        }
    return out


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Each list's patterns are applied one after another to what the one before left, matches and gaps alike.
SPLITS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST],
    "qwen2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST],
    "tekken": [r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
               r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
               r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
IGNORE_MERGES = {"llama-bpe", "tekken"}


def alphabet():
    """GPT-2's characters for the 256 bytes: printable Latin-1 as it is, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


def split(text, patterns):
    pieces = [text]
    for pattern in patterns:
        after = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(pattern, piece):
                after += [piece[at:match.start()], match.group()]
                at = match.end()
            after.append(piece[at:])
        pieces = [piece for piece in after if piece]
    return pieces


def merge(symbols, rank, ids, whole):
    """The ids of a piece: it itself where that is a token and `whole` allows, else merged by rank, leftmost first."""
    if whole and "".join(symbols) in ids:
        return [ids["".join(symbols)]]
    while len(symbols) > 1:
        best, at = min((rank.get(pair, len(rank)), i) for i, pair in enumerate(zip(symbols, symbols[1:])))
        if best == len(rank):
            break
        symbols[at: at + 2] = ["".join(symbols[at: at + 2])]
    return [ids[symbol] for symbol in symbols]


def byte_level_vectors():
    """A BPE vocabulary with two control tokens, and the ids of TEXTS for each `pre`."""
    chars = alphabet()
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(CORPUS.splitlines() * 3, vocab_size=600, min_frequency=2, show_progress=False)
    model = json.loads(trained.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    # One token that no merge makes, so that taking a piece whole shows.
    tokens = ["<|end|>", "<|im_start|>", *sorted(model["vocab"], key=model["vocab"].get), "zzzz"]
    ids = {token: i for i, token in enumerate(tokens)}
    rank = {tuple(pair.split(" ")): i for i, pair in enumerate(merges)}

    def encode(text, pre):
        out = []
        for part in regex.split(r"(<\|end\|>|<\|im_start\|>)", text):
            if part in ("<|end|>", "<|im_start|>"):
                out.append(ids[part])
                continue
            part = unicodedata.normalize("NFC", part) if pre == "qwen2" else part
            for piece in split(part, SPLITS[pre]):
                out += merge([chars[b] for b in piece.encode("utf-8")], rank, ids, pre in IGNORE_MERGES)
        return out

    texts = [*TEXTS, "<|im_start|>user\nHi<|end|>\n", "zzzz zzzz", "1234567 12 ab12cd", "DON'T don't We'LL we'll",
             "CamelCaseTEXT a/b//\n c", "$5 + <tag> ~x^2 | y", "x\r\n\r\ny"]
    return {"tokens": tokens, "types": [3, 3] + [1] * (len(tokens) - 2), "merges": merges,
            "texts": {pre: [[text, encode(text, pre)] for text in texts] for pre in SPLITS}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("dir", nargs="?", default=pathlib.Path(__file__).parent.parent / "tests/golden/gguf",
                        type=pathlib.Path)
    args = parser.parse_args()
    failed = False
    for name, content in block_vectors().items():
        path = args.dir / name
        if args.check:
            if path.read_bytes() != content:
                print(f"{path}: differs", file=sys.stderr)
                failed = True
        else:
            path.write_bytes(content)
    if args.check:
        sys.exit("not equal" if failed else 0)
    for name, content in [("sentencepiece", sentencepiece_vectors()), ("byte_level", byte_level_vectors())]:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (args.dir / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
