"""References out of the exported files: expanded to float32, on the CPU, in plain PyTorch, one token after another.

    python3 -m train.gemma4.reference models/NAME-4bit models/NAME-assistant-bf16            writes golden.safetensors, golden.json
    python3 -m train.gemma4.reference models/NAME-4bit models/NAME-assistant-bf16 --check    compares with those in the folder
"""

import argparse
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from ..common.export import read_folder, read_json, write_json
from ..common.layers import rms_norm
from .config import END_OF_TURN, EOS, FULL, SLIDING, read_config
from .model import Drafter, Target, attend, rotary

POSITIONS = 1024
STOP = {EOS, END_OF_TURN}
GREEDY_TEXTS = [
    ("prose", "Once upon a time, there was a little fox named Nora. Nora lived in the forest with"),
    ("code", "import os\nimport sys\n\n\nclass Config:\n    def __init__(self, path):\n        self.path = path\n\n    def"),
    ("enumeration", "The numbers are: 1, 2, 3, 4, 5, 6, 7,")]
DRAFTED_PROMPTS = [
    ("chat", "Tell me a story about a brave rabbit."), ("chat", "Write a Python function to add two numbers."),
    ("chat", "What is speculative decoding?"), ("text", "Once upon a time, there was a kind bear named Otto."),
    ("text", "The captain of the ship looked at the sea and"), ("text", "use std::collections::HashMap;\n\nimpl ")]
WIDTHS = (2, 4, 8)
DEFINITION = ("K counts the bonus token: K-1 tokens drafted a round; accepted/proposed; tokens_per_round = accepted+1 on average; "
              "query position = last verified position (kv length - 1), frozen; stops at ids 1/106 or 128 tokens")


class Reference:
    """Target and drafter of two exported folders."""

    def __init__(self, target_folder, drafter_folder):
        self.config = read_config(read_json(os.path.join(target_folder, "config.json")),
                                  read_json(os.path.join(drafter_folder, "config.json")))
        self.target, self.drafter = Target(self.config).eval(), Drafter(self.config).eval()
        self.target.load_state_dict(read_folder(target_folder, "language_model."))
        self.drafter.load_state_dict(read_folder(drafter_folder))
        self.drafter.attention = lambda kind, q, k, v: attend(q, k, v, None)
        self.target.tables = self.drafter.tables = rotary(self.config, POSITIONS, "cpu")
        self.tokenizer = Tokenizer.from_file(os.path.join(target_folder, "tokenizer.json"))
        kinds = self.config.layer_types
        self.last = {kind: max(i for i, k in enumerate(kinds) if k == kind) for kind in (SLIDING, FULL)}

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, kind, text):
        """Ids of a prompt: `chat` in the template, `text` as it is."""
        return self.encode(f"<bos><|turn>user\n{text}<turn|>\n<|turn>model\n" if kind == "chat" else "<bos>" + text)

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @torch.no_grad()
    def draft(self, sequence, hidden, token, count, position):
        """`count` drafts after `token`; K/V of the verified positions only, and the query stays at `position`."""
        first, verified = max(0, position - self.config.window + 1), sequence.length
        shared = {SLIDING: tuple(t[:, :, first:verified] for t in sequence.kv[self.last[SLIDING]]), FULL: sequence.kv[self.last[FULL]]}
        tables = {kind: (cos[position : position + 1], sin[position : position + 1])
                  for kind, (cos, sin) in self.drafter.tables.items()}
        drafts, hidden = [], hidden.view(1, 1, -1)
        for _ in range(count):
            hidden, own = self.drafter.step(self.target.embed(torch.tensor([[token]])), hidden, shared, tables)
            token = int(self.drafter.logits(own)[0, 0].argmax())
            drafts.append(token)
        return drafts

    def greedy(self, ids, count, stop=True):
        """Plain decoding: `(ids, the rows of logits that chose them)`."""
        sequence = Sequence(self)
        row = sequence.feed(ids)[1][-1]
        out, rows = [int(row.argmax())], [row]
        while len(out) < count and not (stop and out[-1] in STOP):
            row = sequence.feed([out[-1]])[1][-1]
            out.append(int(row.argmax()))
            rows.append(row)
        return out, rows

    def speculate(self, ids, count, width, at_bonus=False):
        """Rounds of draft and verify; returns `(ids, statistics)`."""
        sequence = Sequence(self)
        hidden, logits = sequence.feed(ids)
        out, hidden, drafted = [int(logits[-1].argmax())], hidden[-1], width - 1
        accepted = proposed = rounds = 0
        tested, right = [0] * drafted, [0] * drafted
        while len(out) < count and out[-1] not in STOP:
            verified = sequence.length
            drafts = self.draft(sequence, hidden, out[-1], drafted, verified if at_bonus else verified - 1)
            states, logits = sequence.feed([out[-1]] + drafts)
            choice = logits.argmax(-1).tolist()
            taken = 0
            while taken < drafted and drafts[taken] == choice[taken]:
                tested[taken] += 1
                right[taken] += 1
                taken += 1
            if taken < drafted:
                tested[taken] += 1
            new = choice[: taken + 1]
            stops = [i for i, token in enumerate(new) if token in STOP]
            new = new[: stops[0] + 1] if stops else new
            new = new[: count - len(out)]
            out += new
            rounds, proposed, accepted = rounds + 1, proposed + drafted, accepted + min(taken, len(new))
            sequence.crop(verified + taken + 1)
            hidden = states[taken]
        return out, {"accepted": accepted, "proposed": proposed, "rounds": rounds, "tokens": len(out),
                     "accept_rate": round(accepted / proposed, 4) if proposed else None,
                     "tokens_per_round": round((len(out) - 1) / max(1, rounds), 3),
                     "accepted_at_position": right, "tested_at_position": tested}


class Sequence:
    """The target with a growing K/V cache."""

    def __init__(self, reference):
        self.reference, self.length = reference, 0
        self.kv = [None] * len(reference.config.layer_types)

    @torch.no_grad()
    def feed(self, ids):
        """Appends tokens: final hidden states and logits of each, `[T, hidden]` and `[T, vocabulary]`."""
        target, window, start, end = self.reference.target, self.reference.config.window, self.length, self.length + len(ids)
        x = target.embed(torch.tensor([ids]))
        queries, keys = torch.arange(start, end)[:, None], torch.arange(end)[None]
        for i, layer in enumerate(target.model.layers):
            a = layer.self_attn
            cos, sin = (t[start:end] for t in target.tables[a.kind])
            n = layer.attention_input(x)
            q, (k, v) = a.queries(n, cos, sin), a.keys_values(n, cos, sin)
            if self.kv[i] is not None:
                k, v = torch.cat([self.kv[i][0], k], 2), torch.cat([self.kv[i][1], v], 2)
            self.kv[i] = (k, v)
            seen = keys <= queries
            if a.kind == SLIDING:
                seen = seen & (queries - keys < window)
            x = layer.finish(x, attend(q, k, v, seen))
        self.length = end
        h = rms_norm(x, target.model.norm.weight, target.config.eps)
        return h[0], target.logits(h)[0]

    def crop(self, length):
        """Forgets everything from position `length` on."""
        self.kv = [(k[:, :, :length], v[:, :, :length]) for k, v in self.kv]
        self.length = length


def greedy_references(reference):
    """Three prompts, 64 ids each and the first eight rows of logits: `(tensors, JSON entries)`."""
    tensors, entries = {}, []
    for name, text in GREEDY_TEXTS:
        ids = reference.prompt("text", text)
        out, rows = reference.greedy(ids, 64, stop=False)
        at_once = Sequence(reference).feed(ids + out[:8])[1]
        error = max((at_once[len(ids) - 1 + i] - rows[i]).abs().max().item() for i in range(8))
        tensors[name + ".prompt_ids"] = torch.tensor(ids, dtype=torch.int32)
        tensors[name + ".continuation_ids"] = torch.tensor(out, dtype=torch.int32)
        tensors[name + ".logits"] = torch.stack(rows[:8]).float().contiguous()
        margins = [float(top[0] - top[1]) for top in (row.topk(2).values for row in rows)]
        entries.append({"name": name, "prompt": reference.tokenizer.decode(ids, skip_special_tokens=True), "prompt_ids": ids,
                        "continuation": reference.decode(out), "continuation_ids": out, "min_top2_margin": min(margins),
                        "cached_vs_oneshot_max_abs": error})
        print(f"{name}: {entries[-1]['continuation']!r}, smallest margin {min(margins):.4f}", flush=True)
    return tensors, entries


def drafted_references(reference):
    """Draft-and-verify statistics at each width, by prompt and in all."""
    prompts, totals = [], {width: [0, 0, 0, 0] for width in WIDTHS}
    for kind, text in DRAFTED_PROMPTS:
        ids = reference.prompt(kind, text)
        plain, _ = reference.greedy(ids, 128)
        entry = {"kind": kind, "prompt": text, "prompt_ids": ids, "greedy_ids": plain, "text": reference.decode(plain), "K": {}}
        for width in WIDTHS:
            out, counts = reference.speculate(ids, 128, width)
            if out != plain:
                sys.exit(f"drafting changed the text of {text!r} at width {width}: an error of this script")
            entry["K"][str(width)] = counts
            for i, value in enumerate((counts["accepted"], counts["proposed"], counts["rounds"], len(out) - 1)):
                totals[width][i] += value
        entry["K4_query_at_bonus_position_accept"] = reference.speculate(ids, 128, 4, at_bonus=True)[1]["accept_rate"]
        prompts.append(entry)
        print(f"{kind} {text!r}: {entry['text'][:200]!r} {({k: v['accept_rate'] for k, v in entry['K'].items()})}", flush=True)
    by_width = {str(width): {"accepted": a, "proposed": p, "rounds": r, "tokens": t, "accept_rate": round(a / p, 4),
                             "tokens_per_round": round(t / r, 3)} for width, (a, p, r, t) in totals.items()}
    return {"prompts": prompts, "K": by_width, "definition": DEFINITION}


def compare(folder, tensors, record):
    """Ends with an error where a reference in the folder is not what was computed just now."""
    if not os.path.exists(os.path.join(folder, "golden.safetensors")):
        sys.exit(f"{folder}/golden.safetensors: missing; leave --check out to write the references")
    stored = load_file(os.path.join(folder, "golden.safetensors"))
    for name, tensor in tensors.items():
        same = torch.equal(tensor, stored[name]) if tensor.dtype == torch.int32 else torch.allclose(tensor, stored[name], atol=1e-3)
        if not same:
            sys.exit(f"{folder}/golden.safetensors: {name} differs from what the files give")
    if read_json(os.path.join(folder, "golden.json"))["speculative"] != record["speculative"]:
        sys.exit(f"{folder}/golden.json: the drafting statistics differ from what the files give")
    print(f"{folder}: the references are what the files give")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="folder of the target")
    parser.add_argument("drafter", help="folder of the drafter")
    parser.add_argument("--check", action="store_true", help="compare with the references in the folder instead of writing them")
    args = parser.parse_args(argv)
    reference = Reference(args.target, args.drafter)
    tensors, entries = greedy_references(reference)
    record = {"prompts": entries, "stop_ids_not_applied_in_continuations": True,
              "note": "float32 CPU reference computed from the exported (dequantised) files; greedy; argmax ties: lowest id",
              "speculative": drafted_references(reference)}
    if args.check:
        compare(args.target, tensors, record)
    else:
        save_file(tensors, os.path.join(args.target, "golden.safetensors"), metadata={"format": "pt"})
        write_json(os.path.join(args.target, "golden.json"), record)


if __name__ == "__main__":
    main()
