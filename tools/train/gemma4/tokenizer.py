"""Trains a BPE tokenizer of the Gemma kind and writes tokenizer.json, tokenizer_config.json and the chat template.

    python3 -m train.gemma4.tokenizer --out TOK SHARD_OR_TEXT...

The layout is the family's: spaces become U+2581, rare characters fall back to bytes, special tokens have the low ids (`<|turn>` 105,
`<turn|>` 106, newline 107), runs of newlines, spaces and tabs are single pieces.
"""

import argparse
import collections
import json
import os
import shutil
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..common.export import write_json
from ..common.shards import open_shard, plain_text
from .config import BOS, END_OF_TURN, NEWLINE, SHAPES, TURN

SPACE = "\u2581"
SPECIAL = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>", 46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>",
           49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>", 100: "<|channel>",
           101: "<channel|>", TURN: "<|turn>", END_OF_TURN: "<turn|>"}
NEWLINES, SPACES, TABS = 16, 32, 8  # the longest runs that are one piece
# While learning, no merge crosses from letters to digits, punctuation or runs of spaces.
WORDS = Regex(rf"{SPACE}{{2,}}|\n+|\t+|{SPACE}?[\p{{L}}\p{{M}}]+|'(?:s|t|re|ve|m|ll|d)\b|{SPACE}?\p{{N}}"
              rf"|{SPACE}?[^\s{SPACE}\p{{L}}\p{{M}}\p{{N}}]{{1,8}}|{SPACE}")
CONFIG = {"add_bos_token": True, "add_eos_token": False, "backend": "tokenizers", "bos_token": "<bos>", "eos_token": "<eos>",
          "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", "sot_token": "<|turn>", "eot_token": "<turn|>",
          "soc_token": "<|channel>", "eoc_token": "<channel|>", "think_token": "<|think|>", "clean_up_tokenization_spaces": False,
          "model_max_length": 2048, "padding_side": "left", "spaces_between_special_tokens": False,
          "tokenizer_class": "GemmaTokenizer"}


def special_tokens():
    """Ids 0..106: the named ones and `<unusedN>` between them."""
    unused = iter(range(END_OF_TURN + 1))
    return [SPECIAL.get(i) or f"<unused{next(unused)}>" for i in range(END_OF_TURN + 1)]


def sample_texts(paths, characters):
    """About `characters` of text in equal parts from every file: every third record of a shard, or plain text in pieces."""
    share = characters // max(1, len(paths))
    for path in paths:
        taken = 0
        with open_shard(path) as file:
            if ".jsonl" not in path:
                text = file.read()[:share]
                yield from (text[i : i + 4000] for i in range(0, len(text), 4000))
                continue
            for number, line in enumerate(file):
                if number % 3 == 0:
                    text = plain_text(json.loads(line))
                    taken += len(text)
                    yield text
                    if taken > share:
                        break


def learn(texts, learned, minimum_count):
    """Learns merges; returns `(alphabet, merges)` with about 4000 merges more than `learned` pieces need."""
    counts = collections.Counter()
    for text in texts:
        counts.update(text)
    alphabet = [c for c, n in counts.most_common() if n >= minimum_count and c not in "\n\t "][:700]
    alphabet += [c for c in map(chr, range(33, 127)) if c not in alphabet]
    alphabet = [SPACE] + alphabet
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = normalizers.Replace(" ", SPACE)
    learner.pre_tokenizer = pre_tokenizers.Split(WORDS, "isolated")
    learner.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=learned + 4000, min_frequency=3, special_tokens=[], initial_alphabet=alphabet, limit_alphabet=len(alphabet),
        max_token_length=24, show_progress=False))
    merges = json.loads(learner.to_str())["model"]["merges"]
    return alphabet, [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in merges]


def run_merges(unit, longest):
    """Merges that make a run of up to `longest` units one piece: doublings first, so that merging by rank always gets there."""
    doublings = [n for n in (2, 4, 8, 16, 32) if n <= longest]
    merges = [(unit * (n // 2), unit * (n // 2)) for n in doublings]
    for n in range(3, longest + 1):
        if n not in doublings:
            half = 2 ** (n.bit_length() - 1)
            merges.append((unit * half, unit * (n - half)))
    return merges


def build_vocabulary(size, alphabet, learned_merges):
    """Fixed ids first, then the alphabet, then learned pieces in order until the vocabulary is full: `(vocabulary, merges)`."""
    fixed = special_tokens() + ["\n" * n for n in range(1, NEWLINES + 1)] + [SPACE * n for n in range(2, SPACES + 1)]
    fixed += ["\t" * n for n in range(1, TABS + 1)] + [f"<0x{b:02X}>" for b in range(256)]
    vocabulary = {piece: i for i, piece in enumerate(fixed)}
    merges = run_merges("\n", NEWLINES) + run_merges(SPACE, SPACES) + run_merges("\t", TABS)
    for character in alphabet:
        vocabulary.setdefault(character, len(vocabulary))
    for left, right in learned_merges:
        piece = left + right
        if any(set(piece) <= {blank} for blank in (SPACE, "\n", "\t")) or left not in vocabulary or right not in vocabulary:
            continue
        if piece not in vocabulary:
            if len(vocabulary) >= size:
                break
            vocabulary[piece] = len(vocabulary)
        merges.append((left, right))
    if len(vocabulary) != size:
        raise SystemExit(f"the text gave {len(vocabulary)} pieces instead of {size}: add text or lower --vocabulary")
    return vocabulary, merges


def assemble(vocabulary, merges):
    """The tokenizer that is saved."""
    tok = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Replace(" ", SPACE)
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS)])
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special_tokens()])
    return tok


def check(tok):
    """Ids that everything else relies on, and a text that must come back as it was."""
    expected = {"<bos>": BOS, "<|turn>": TURN, "<turn|>": END_OF_TURN, "\n": NEWLINE}
    for piece, i in expected.items():
        if tok.token_to_id(piece) != i:
            raise SystemExit(f"tokenizer: {piece!r} has id {tok.token_to_id(piece)}, expected {i}")
    text = "def add(a, b):\n    return a + b\n\n\n# 1234 tokens \u2014 na\u00efve \u6f22\u5b57 \U0001f600\t\tx"
    back = tok.decode(tok.encode(text).ids, skip_special_tokens=True)
    if back != text:
        raise SystemExit(f"tokenizer: a text did not survive encoding and decoding: {text!r} became {back!r}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", help="corpus shards (.jsonl, .jsonl.xz) or plain text files")
    parser.add_argument("--out", required=True, help="folder for the tokenizer's files")
    parser.add_argument("--vocabulary", type=int, default=SHAPES["demo"].vocab_size, help="pieces in all (default: 16384)")
    parser.add_argument("--characters", type=int, default=70_000_000, help="characters to learn from (default: 70 million)")
    parser.add_argument("--minimum-count", type=int, default=60, help="rarer characters fall back to bytes (default: 60)")
    args = parser.parse_args(argv)
    began = time.time()
    texts = list(sample_texts(args.texts, args.characters))
    fixed = END_OF_TURN + 1 + NEWLINES + SPACES - 1 + TABS + 256
    if args.vocabulary < fixed + 400:
        parser.error(f"--vocabulary {args.vocabulary} leaves no room: at least {fixed + 400} pieces are needed")
    tok = assemble(*build_vocabulary(args.vocabulary, *learn(texts, args.vocabulary - fixed, args.minimum_count)))
    check(tok)
    os.makedirs(args.out, exist_ok=True)
    tok.save(os.path.join(args.out, "tokenizer.json"), pretty=False)
    write_json(os.path.join(args.out, "tokenizer_config.json"), CONFIG)
    shutil.copy(os.path.join(os.path.dirname(__file__), "chat_template.jinja"), args.out)
    few = [t[:4000] for t in texts[:2000]]
    rate = sum(map(len, few)) / sum(len(e.ids) for e in tok.encode_batch(few))
    print(f"{args.out}: {tok.get_vocab_size()} pieces, {rate:.2f} characters a token, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
