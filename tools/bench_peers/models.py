"""The two sides of a comparison: SmolLM2-135M-Instruct at the same precision for both."""

import os
import shutil
import sys

from common import BenchError, ROOT, TARGET, output_of, parse_json, say

sys.path.insert(0, os.path.join(ROOT, "tools", "smollm2"))
import fetch  # noqa: E402

# 4 bits and a scale and offset a group on our side, 4 bits and a scale a block on theirs: 4.5 bits a weight on both. The embedding is
# the output matrix as well; llama-quantize keeps it at 8 bits unless told otherwise.
PAIRS = {
    "head8": {
        "about": "4 bits, embedding and output matrix at 8",
        "ours": ["--mixed", "*embed_tokens=8:64"],
        "theirs": [],
        "types": {"Q4_0", "Q8_0", "F32"},
    },
    "all4": {
        "about": "4 bits throughout",
        "ours": [],
        "theirs": ["--token-embedding-type", "q4_0"],
        "types": {"Q4_0", "F32"},
    },
}
TYPES = """
import collections, json, sys, gguf
reader = gguf.GGUFReader(sys.argv[1])
count = collections.Counter(t.tensor_type.name for t in reader.tensors)
head = [t.tensor_type.name for t in reader.tensors if t.name in ("token_embd.weight", "output.weight")]
print(json.dumps({"types": count, "head": head, "bytes": sum(int(t.n_bytes) for t in reader.tensors)}))
"""


class Models:
    """Converts, once, what a pair needs."""

    def __init__(self, mlxcel, peer, folder=TARGET):
        self.mlxcel, self.peer, self.folder = mlxcel, peer, folder

    def source(self):
        try:
            return fetch.fetch(os.path.join(ROOT, "target", "smollm2"))
        except fetch.FetchError as e:
            raise BenchError(str(e)) from None

    def ours(self, pair):
        """Directory of our checkpoint."""
        target = os.path.join(self.folder, f"ours-{pair}")
        if not os.path.exists(os.path.join(target, "config.json")):
            say(f"converting {pair} for mlxcel")
            shutil.rmtree(target, ignore_errors=True)
            output_of([self.mlxcel, "convert", self.source(), "-o", target, "--bits", "4", "--group-size", "64", "--dtype", "bf16",
                       "--quiet", *PAIRS[pair]["ours"]])
        return target

    def theirs(self, pair):
        """Their file."""
        target = os.path.join(self.folder, f"theirs-{pair}.gguf")
        if not os.path.exists(target):
            say(f"quantising {pair} for llama.cpp")
            partial = f"{target}.partial"
            # The same tensors as ours, widened to float32 and quantised from there.
            output_of([self.peer.program("llama-quantize"), "--allow-requantize", *PAIRS[pair]["theirs"], self.source(), partial, "Q4_0", "2"])
            os.rename(partial, target)
        return target

    def their_types(self, pair):
        """Tensors of their file by type; an error where the precision is not the pair's."""
        found = parse_json(output_of([self.peer.python, "-c", TYPES, self.theirs(pair)]), "gguf")
        return check_types(pair, found)


def check_types(pair, found):
    if set(found["types"]) != PAIRS[pair]["types"]:
        raise BenchError(f"theirs-{pair}.gguf: tensors of {', '.join(sorted(PAIRS[pair]['types']))} expected, "
                         f"found {', '.join(sorted(found['types']))}; remove the file and run this again")
    return found
