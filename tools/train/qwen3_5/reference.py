"""References out of the exported files: expanded to float32, on the CPU.

    python3 -m train.qwen3_5.reference models/NAME-4bit models/NAME-mtp-4bit            writes golden.safetensors, golden.json
    python3 -m train.qwen3_5.reference models/NAME-4bit models/NAME-mtp-4bit --check    compares with those in the folder

The forward pass is not the one that was trained with but that of tests/golden/qwen3_5, written from the architecture's description.
"""

import argparse
import importlib.util
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from ..common.export import read_folder, read_json, write_json

GOLDENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/golden/qwen3_5/make_qwen3_5_goldens.py")


def chat(question):
    """A question in the template, with an empty thought."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


GREEDY_TEXTS = {
    "prose": "Once upon a time, there was a little boy named Sam. Sam lived on an island.",
    "code": chat("Write a Rust function to check whether a number is prime."),
    "enumeration": chat("Count from 1 to 40."),
    "explain": chat("What is a Gated DeltaNet?")}
DRAFTED_TEXTS = {
    "story": chat("Write a short story about a fox named Leo."),
    "code": ("use std::collections::HashMap;\n\n/// Counts the words of a text.\n"
             "pub fn count_words(text: &str) -> HashMap<String, usize> {\n"),
    "prose": "It was a bright cold morning, and the old man walked slowly along the road to the village.",
    "list": chat("Give me a numbered list of six animals."),
    "docs": "# Reading files\n\nTo read a file in Python, use the built-in function"}
WIDTHS = (2, 3, 4, 8)


def load_forward():
    """The module with the reference forward pass. It changes gradients and threads for itself; they are as before on return."""
    spec = importlib.util.spec_from_file_location("make_qwen3_5_goldens", GOLDENS)
    module = importlib.util.module_from_spec(spec)
    gradients, threads = torch.is_grad_enabled(), torch.get_num_threads()
    spec.loader.exec_module(module)
    torch.set_grad_enabled(gradients)
    torch.set_num_threads(threads)
    return module


def published_layout(weights, prefix):
    """MLX's layout as the published one: norms without the one, convolution kernels turned; names after `prefix`."""
    turned = {}
    for name, weight in weights.items():
        if name.endswith("conv1d.weight"):
            weight = weight.permute(0, 2, 1).contiguous()
        elif weight.ndim == 1 and not name.endswith((".linear_attn.norm.weight", "A_log", "dt_bias")):
            weight = weight - 1.0
        turned[prefix + name] = weight
    return turned


class Reference:
    """Target and head of two exported folders."""

    def __init__(self, target_folder, head_folder):
        self.forward = load_forward()
        weights = published_layout(read_folder(target_folder, "language_model."), "")
        weights.update(published_layout(read_folder(head_folder), "mtp."))
        self.config = read_json(os.path.join(target_folder, "config.json"))["text_config"]
        self.model = self.forward.Ref(weights, self.config, "model.", "lm_head.weight")
        self.tokenizer = Tokenizer.from_file(os.path.join(target_folder, "tokenizer.json"))

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @torch.no_grad()
    def greedy(self, ids, count):
        """Plain decoding: `(ids, logits [count, vocabulary] that chose them)`. Stop tokens do not stop it."""
        m, cache = self.model, self.model.new_cache()
        hidden, _ = m.run(torch.tensor(ids), cache)
        rows, out = [m.logits(hidden[-1])], []
        out.append(int(rows[0].argmax()))
        while len(out) < count:
            hidden, _ = m.run(torch.tensor([out[-1]]), cache)
            rows.append(m.logits(hidden[-1]))
            out.append(int(rows[-1].argmax()))
        return out, torch.stack(rows)

    @torch.no_grad()
    def speculate(self, ids, width, count):
        """Rounds of one certain token and `width - 1` drafts; the head's cache holds true rows only. `(ids, statistics)`."""
        m, cache, head_cache = self.model, self.model.new_cache(), {}
        hidden, _ = m.run(torch.tensor(ids), cache)
        token = int(m.logits(hidden).argmax(-1)[-1])
        out, position = [token], len(ids)
        head = m.mtp(torch.tensor(ids[1:] + [token]), hidden, head_cache, torch.arange(len(ids)))[-1:]
        proposed = accepted = rounds = 0
        histogram, first, lengths = [0] * width, None, []
        while len(out) < count:
            drafts, own, own_cache = [int(m.logits(head[-1]).argmax())], head, dict(head_cache)
            for i in range(width - 2):
                own = m.mtp(torch.tensor([drafts[-1]]), own, own_cache, torch.tensor([position + i]))
                drafts.append(int(m.logits(own[-1]).argmax()))
            first = first or list(drafts)
            before = self.forward.clone_cache(cache)
            verified, _ = m.run(torch.tensor([token] + drafts), cache)
            choice, taken = m.logits(verified).argmax(-1).tolist(), 0
            while taken < width - 1 and drafts[taken] == choice[taken]:
                taken += 1
            cache = self.forward.rollback(before, cache, taken + 1, width)
            new, token = drafts[:taken] + [choice[taken]], choice[taken]
            out += new
            rounds, proposed, accepted = rounds + 1, proposed + width - 1, accepted + taken
            histogram[taken] += 1
            lengths.append(taken + 1)
            head = m.mtp(torch.tensor(new), verified[: taken + 1], head_cache, torch.arange(position, position + taken + 1))[-1:]
            position += taken + 1
        return out[:count], dict(rounds=rounds, proposed=proposed, accepted=accepted, tokens_per_round=round(sum(lengths) / rounds, 4),
                                 accepted_histogram=histogram, first_drafts=first)


def greedy_references(reference):
    """64 ids of each prompt and the first eight rows of logits: `(tensors, JSON entries)`."""
    tensors, entries = {}, {}
    for name, text in GREEDY_TEXTS.items():
        ids = reference.encode(text)
        out, logits = reference.greedy(ids, 64)
        top = logits.topk(2, -1).values
        margin = top[:, 0] - top[:, 1]
        tensors[name + ".prompt_ids"], tensors[name + ".continuation_ids"] = torch.tensor(ids), torch.tensor(out)
        tensors[name + ".logits"] = logits[:8].contiguous()
        entries[name] = dict(text=text, prompt_ids=ids, continuation_ids=out, continuation_text=reference.decode(out),
                             min_top2_margin=round(margin.min().item(), 4), min_top2_margin_at=int(margin.argmin()),
                             margins_below_0_1=int((margin < 0.1).sum()))
        print(f"{name}: {entries[name]['continuation_text']!r}", flush=True)
    return tensors, entries


def drafted_references(reference, count):
    """Draft-and-verify statistics of each prompt at each width."""
    ids = {name: reference.encode(text) for name, text in DRAFTED_TEXTS.items()}
    plain = {name: reference.greedy(prompt, count)[0] for name, prompt in ids.items()}
    by_width = {}
    for width in WIDTHS:
        per_prompt = {}
        for name, prompt in ids.items():
            out, statistics = reference.speculate(prompt, width, count)
            if out != plain[name]:
                sys.exit(f"drafting changed the text of {name!r} at width {width}: an error of this script")
            per_prompt[name] = dict(statistics, lossless=True)
        proposed, accepted, rounds = (sum(p[key] for p in per_prompt.values()) for key in ("proposed", "accepted", "rounds"))
        by_width[str(width)] = dict(proposed=proposed, accepted=accepted, acceptance=round(accepted / proposed, 4), rounds=rounds,
                                    mean_accepted_length=round(accepted / rounds + 1, 4), all_lossless=True, per_prompt=per_prompt)
        print(f"width {width}: {accepted} of {proposed} accepted in {rounds} rounds", flush=True)
    prompts = {name: dict(text=text, prompt_ids=ids[name], greedy_ids=plain[name], greedy_text=reference.decode(plain[name]))
               for name, text in DRAFTED_TEXTS.items()}
    return dict(policy="exact head cache; K = verify rows = 1 certain token + K-1 drafts", tokens_per_prompt=count,
                by_K=by_width, prompts=prompts)


def compare(folder, tensors, record):
    """Ends with an error where a reference in the folder is not what was computed just now."""
    if not os.path.exists(os.path.join(folder, "golden.safetensors")):
        sys.exit(f"{folder}/golden.safetensors: missing; leave --check out to write the references")
    stored, golden = load_file(os.path.join(folder, "golden.safetensors")), read_json(os.path.join(folder, "golden.json"))
    for name, tensor in tensors.items():
        same = torch.allclose(tensor, stored[name], atol=1e-3) if tensor.is_floating_point() else torch.equal(tensor, stored[name])
        if not same:
            sys.exit(f"{folder}/golden.safetensors: {name} differs from what the files give")
    if golden["speculative"] != record["speculative"]:
        sys.exit(f"{folder}/golden.json: the drafting statistics differ from what the files give")
    print(f"{folder}: the references are what the files give")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="folder of the target")
    parser.add_argument("head", help="folder of the multi-token-prediction head")
    parser.add_argument("--check", action="store_true", help="compare with the references in the folder instead of writing them")
    args = parser.parse_args(argv)
    reference = Reference(args.target, args.head)
    tensors, entries = greedy_references(reference)
    end_ids = sorted(reference.tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    record = dict(note="float32 CPU reference from the dequantised exported weights (scale*q+bias in float32). Greedy. EOS tokens do "
                       "not stop the loops: counts and ids run to the full length.",
                  vocab=reference.config["vocab_size"], eos_token_ids=end_ids, prompts=entries,
                  speculative=drafted_references(reference, 128))
    if args.check:
        compare(args.target, tensors, record)
    else:
        save_file(tensors, os.path.join(args.target, "golden.safetensors"))
        write_json(os.path.join(args.target, "golden.json"), record)


if __name__ == "__main__":
    main()
