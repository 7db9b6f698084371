"""Trains a byte-level BPE tokenizer of the Qwen 3.5 kind and writes tokenizer.json, tokenizer_config.json and the chat template.

    python3 -m train.qwen3_5.tokenizer --out TOK SHARD...

NFC, the family's rule for splitting words, the learned pieces, then seven added tokens.
"""

import argparse
import json
import os
import shutil
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..common.export import write_json
from ..common.shards import open_shard, plain_text
from .config import MARKERS, SHAPES

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
SPECIAL = MARKERS[:3]  # left out when text is shown; the others are text that the model writes
MEGABYTES = {"prose": 9, "stories": 2, "chat": 5, "docs": 7, "rust": 8, "python": 7, "js": 3}  # sample by domain


def sample_texts(paths):
    """A sample of each shard, spread over the whole of it, since records are grouped by source."""
    for path in paths:
        with open_shard(path) as shard:
            lines = shard.readlines()
        limit = MEGABYTES.get(os.path.basename(path).split("-")[0], 0) * 1e6
        stride = max(1, int(sum(map(len, lines)) / limit)) if limit else len(lines)
        for line in lines[::stride]:
            yield plain_text(json.loads(line))


def train(paths, size):
    """The tokenizer with `size` pieces, the added ones included."""
    tok = Tokenizer(models.BPE(dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                               byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated", invert=False),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.train_from_iterator(sample_texts(paths), trainers.BpeTrainer(
        vocab_size=size - len(MARKERS), min_frequency=2, special_tokens=[], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=32, show_progress=False))
    for marker in MARKERS:
        added = [AddedToken(marker, special=marker in SPECIAL, normalized=False)]
        tok.add_special_tokens(added) if marker in SPECIAL else tok.add_tokens(added)
    if tok.get_vocab_size() != size:
        raise SystemExit(f"the text gave {tok.get_vocab_size()} pieces instead of {size}: add text or lower --vocabulary")
    return tok


def config(tok):
    """tokenizer_config.json."""
    added = {str(tok.token_to_id(m)): dict(content=m, lstrip=False, normalized=False, rstrip=False, single_word=False,
                                           special=m in SPECIAL) for m in MARKERS}
    return dict(add_bos_token=False, add_prefix_space=False, bos_token=None, clean_up_tokenization_spaces=False,
                eos_token="<|im_end|>", errors="replace", model_max_length=4096, pad_token="<|endoftext|>",
                split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", unk_token=None, pretokenize_regex=SPLIT,
                additional_special_tokens=["<|im_start|>", "<|im_end|>"], added_tokens_decoder=added)


def check(tok):
    """A text must come back as it was."""
    text = "def add(a, b):\n    return a + b\n\n\n# 1234 na\u00efve \u6f22\u5b57 \U0001f600\t\tx I'll <think>\n\n</think>"
    back = tok.decode(tok.encode(text).ids, skip_special_tokens=False)
    if back != text:
        raise SystemExit(f"tokenizer: a text did not survive encoding and decoding: {text!r} became {back!r}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="+", help="corpus shards, DOMAIN-NUMBER.jsonl or .jsonl.xz")
    parser.add_argument("--out", required=True, help="folder for the tokenizer's files")
    parser.add_argument("--vocabulary", type=int, default=SHAPES["demo"].vocab_size, help="pieces in all (default: 16384)")
    args = parser.parse_args(argv)
    began = time.time()
    tok = train(args.shards, args.vocabulary)
    check(tok)
    os.makedirs(args.out, exist_ok=True)
    tok.save(os.path.join(args.out, "tokenizer.json"), pretty=False)
    write_json(os.path.join(args.out, "tokenizer_config.json"), config(tok))
    shutil.copy(os.path.join(os.path.dirname(__file__), "chat_template.jinja"), args.out)
    print(f"{args.out}: {tok.get_vocab_size()} pieces, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
