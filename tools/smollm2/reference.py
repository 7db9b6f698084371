#!/usr/bin/env python3
"""Makes tests/golden/smollm2/reference.json: what mlx-lm says about SmolLM2-135M-Instruct.

    python3 tools/smollm2/reference.py --venv target/smollm2/venv [--work target/smollm2] [-o tests/golden/smollm2/reference.json]

The GGUF file (fetch.py) becomes a float32 checkpoint in transformers' layout (gguf_to_hf.py, which shares nothing with mlxcel's
importer), and mlx-lm's own `convert` makes three forms of it, all from the weights rounded to bfloat16: `bf16`, `8bit` and `4bit`
(affine, groups of 64). Each form is loaded with scales, biases and norms widened to float32, which is exact, and run on MLX's CPU
backend in float32. Recorded for each form:

  - greedy answers to the prompts below through the chat template, with the log-probability of each token and its distance from the
    second best, so that a near-tie shows
  - the 20 largest logits behind the first prompt
  - the perplexity of text.txt in windows of 512 without BOS, as `mlxcel perplexity` measures it
  - a digest of each layer's tensors as stored: packed words, scales and biases

MLX's CPU matmul takes a tenth of a second a row, so the perplexities are summed over a numpy forward pass in float64 (float64.py) with
the same weights, as mlx-lm dequantises them, and MLX itself scores the first --window tokens, which must agree. The float64 pass also goes
over every answer: it must choose the same tokens, and how far MLX's logits are from it is recorded as `logit_noise`. A token whose
runner-up is nearer than --margin could change with the order of a float32 sum, so such a step is an error: choose other prompts or
fewer tokens.

--venv DIR makes a virtual environment in DIR (if it is not there) with what requirements.txt names, and works in it. Without it the
packages are expected where this Python finds them. The forms run side by side; about a quarter of an hour and 6 GB on two idle cores.
"""

import argparse
import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TEXT = os.path.join(HERE, "text.txt")
PACKAGES = ("gguf", "mlx", "mlx-lm", "numpy", "tokenizers", "transformers")
CONTEXT = 512
TOP = 20
GROUP_SIZE = 64
MARK = "made-by-reference.py"  # only what has it is replaced
AGREEMENT = 1e-5  # nats a token between MLX and float64 over the first window
FORMS = {"bf16": None, "8bit": 8, "4bit": 4}
PROMPTS = {
    "fact": "What is the capital of France, and which river flows through it?",
    "story": "Write a short story about a lighthouse keeper and a lost whale.",
    "code": "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "list": "List ten things to pack for a week of hiking in the mountains.",
    "emoji": "Übersetze ins Englische: „Schöne Grüße aus Zürich! 🏔️“ 日本語でも挨拶してください。 😀",
}


def in_venv(folder):
    """Runs this script again with the Python of `folder`, made first if need be."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", os.path.join(HERE, "requirements.txt")]
    subprocess.run(pip, check=True)
    arguments = sys.argv[1:]
    at = next(i for i, a in enumerate(arguments) if a.split("=")[0] == "--venv")
    del arguments[at : at + (1 if "=" in arguments[at] else 2)]
    return subprocess.run([python, os.path.abspath(__file__), *arguments]).returncode


def say(line):
    print(line, file=sys.stderr, flush=True)


def convert(work):
    """The checkpoints under `work`/mlx-lm: `hf` in float32, and mlx-lm's conversions of it."""
    import mlx_lm

    import fetch
    import gguf_to_hf

    out = os.path.join(work, "mlx-lm")
    mark = os.path.join(out, MARK)
    if os.path.lexists(out) and not os.path.isfile(mark):
        raise SystemExit(f"{out}: there is something that this script did not make; move it away, or choose another --work")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    open(mark, "w").close()
    hf = os.path.join(out, "hf")
    gguf_to_hf.write(fetch.fetch(work), hf)
    for form, bits in FORMS.items():
        how = {} if bits is None else {"quantize": True, "q_bits": bits, "q_group_size": GROUP_SIZE, "q_mode": "affine"}
        mlx_lm.convert(hf, mlx_path=os.path.join(out, form), dtype="bfloat16", **how)
    return out


class Form:
    """One checkpoint: on MLX in float32, and its dense weights for float64."""

    def __init__(self, path):
        import mlx.core as mx
        import mlx_lm

        mx.set_default_device(mx.cpu)
        self.mx, self.path = mx, path
        self.model, _ = mlx_lm.load(path)
        self.model.set_dtype(mx.float32)
        mx.eval(self.model.parameters())
        with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.dense = self._dense()

    def _dense(self):
        import mlx_lm
        import numpy as np
        from mlx.utils import tree_flatten
        from mlx_lm.utils import dequantize_model

        model, _ = mlx_lm.load(self.path)
        model.set_dtype(self.mx.float32)
        if "quantization" in self.config:
            model = dequantize_model(model)
        return {name: np.array(value) for name, value in tree_flatten(model.parameters())}

    def logits(self, ids, cache=None):
        """(positions, vocabulary) float32 logits of MLX behind each id."""
        import numpy as np

        out = self.model(self.mx.array([ids]), cache=cache)[0]
        assert out.dtype == self.mx.float32, out.dtype
        return np.array(out)

    def exact(self, ids):
        """The same in float64 and numpy."""
        import float64

        return float64.logits(self.dense, self.config, ids)

    def answer(self, prompt, tokens, eos):
        """Greedy answer to the ids `prompt`: the prompt in one pass, then one token a pass."""
        import float64
        import numpy as np
        from mlx_lm.models.cache import make_prompt_cache

        cache = make_prompt_cache(self.model)
        ids, gaps, rows = [], [], [self.logits(prompt, cache)[-1]]
        while True:
            second, best = np.argsort(rows[-1])[-2:]
            ids.append(int(best))
            gaps.append(float(rows[-1][best]) - float(rows[-1][second]))
            if ids[-1] == eos or len(ids) == tokens:
                break
            rows.append(self.logits([ids[-1]], cache)[-1])
        rows = np.array(rows, np.float64)
        exact = self.exact(prompt + ids[:-1])[len(prompt) - 1 :]
        if (wrong := np.flatnonzero(exact.argmax(axis=1) != ids)).size:
            raise SystemExit(f"{self.path}: step {wrong[0]}: MLX and float64 choose different tokens")
        answer = {
            "finish_reason": "stop" if ids[-1] == eos else "length",
            "ids": ids,
            "logprobs": (-float64.negative_log_likelihood(rows, ids)).tolist(),
            "gaps": gaps,
        }
        top = [[int(i), float(rows[0][i])] for i in np.argsort(-rows[0])[:TOP]]
        return answer, float(np.abs(rows - exact).max()), top

    def perplexity(self, ids, window):
        """Mean negative log-likelihood over windows, each started afresh; a window's first token is not predicted."""
        import float64
        import numpy as np

        scores = []
        for start in range(0, len(ids), CONTEXT):
            part = ids[start : start + CONTEXT]
            if len(part) > 1:
                scores.append(float64.negative_log_likelihood(self.exact(part[:-1]), part[1:]))
        mlx = float64.negative_log_likelihood(self.logits(ids[: window - 1]).astype(np.float64), ids[1:window]).mean()
        apart = abs(mlx - scores[0][: window - 1].mean())
        if not apart <= AGREEMENT:
            raise SystemExit(f"{self.path}: {AGREEMENT} nats between MLX and float64 expected at most, found {apart}")
        scores = np.concatenate(scores)
        nll = float(scores.mean())
        say(f"{os.path.basename(self.path)}: MLX and float64 are {apart:.1e} nats apart over {window - 1} tokens")
        return {"context": CONTEXT, "tokens": len(scores), "nll": nll, "perplexity": float(np.exp(nll))}


def rounded(value, digits):
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, list):
        return [rounded(v, digits) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    return value


def measure(form, path, prompts, text_ids, eos, tokens, window, tokenizer_file):
    """The record of one form."""
    from tokenizers import Tokenizer

    import tensors

    start = time.monotonic()
    plain = Tokenizer.from_file(tokenizer_file)
    model = Form(path)
    record = {"bits": FORMS[form], "group_size": FORMS[form] and GROUP_SIZE}
    answers, noises = [], []
    for prompt in prompts:
        answer, noise, top = model.answer(prompt["ids"], tokens, eos)
        record.setdefault("top_logits", {"prompt": prompt["name"], "id_and_logit": rounded(top, 5)})
        noises.append(noise)
        text = plain.decode(answer["ids"], skip_special_tokens=True)
        answers.append({"name": prompt["name"], "text": text, **rounded(answer, 5)})
        say(f"{form} {prompt['name']}: {len(answer['ids'])} tokens, smallest gap {min(answer['gaps']):.4f}, "
            f"logits within {noise:.1e} of float64, {time.monotonic() - start:.0f} s")
    record["logit_noise"] = float(f"{max(noises):.1e}")
    record["answers"] = answers
    record["perplexity"] = rounded(model.perplexity(text_ids, window), 6)
    record["digests"] = tensors.digests(path)
    say(f"{form}: perplexity {record['perplexity']['perplexity']:.4f}, {time.monotonic() - start:.0f} s")
    return record


def dump(value, indent=0):
    """JSON with a line for each list of numbers."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        items = [f"{pad}{json.dumps(k)}: {dump(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    if isinstance(value, list) and value and not all(isinstance(v, (int, float)) for v in value):
        return "[\n" + ",\n".join(pad + dump(v, indent + 1) for v in value) + "\n" + " " * indent + "]"
    return json.dumps(value, ensure_ascii=False)


def make(args):
    import importlib.metadata

    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    import fetch

    checkpoints = convert(args.work)
    hf = os.path.join(checkpoints, "hf")
    tokenizer_file = os.path.join(hf, "tokenizer.json")
    plain = Tokenizer.from_file(tokenizer_file)
    chat = AutoTokenizer.from_pretrained(hf)
    with open(TEXT, "rb") as f:
        text = f.read()
    text_ids = plain.encode(text.decode(), add_special_tokens=False).ids
    prompts = []
    for name, prompt in PROMPTS.items():
        message = [{"role": "user", "content": prompt}]
        rendered = chat.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        prompts.append({"name": name, "text": prompt, "ids": plain.encode(rendered, add_special_tokens=False).ids})
    fixed = (prompts, text_ids, chat.eos_token_id, args.tokens, args.window, tokenizer_file)
    with concurrent.futures.ProcessPoolExecutor(len(FORMS), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {form: pool.submit(measure, form, os.path.join(checkpoints, form), *fixed) for form in FORMS}
        forms = {form: future.result() for form, future in futures.items()}
    near = 0
    for form, record in forms.items():
        for answer in record["answers"]:
            for step in (s for s, gap in enumerate(answer["gaps"]) if gap < args.margin):
                say(f"{form} {answer['name']}: step {step}: a runner-up at least {args.margin} below expected, "
                    f"found {answer['gaps'][step]:.5f}")
                near += 1
    reference = {
        "about": "SmolLM2-135M-Instruct by mlx-lm in float32 on MLX's CPU backend; made by tools/smollm2/reference.py",
        "versions": {p: importlib.metadata.version(p) for p in PACKAGES},
        "source": {"package": f"{fetch.PACKAGE} {fetch.VERSION}", "file": fetch.FILE, "sha256": fetch.SHA256},
        "text": {"file": "tools/smollm2/text.txt", "sha256": hashlib.sha256(text).hexdigest(), "tokens": len(text_ids)},
        "max_tokens": args.tokens,
        "margin": args.margin,
        "prompts": prompts,
        "forms": forms,
    }
    if near:
        args.output += ".rejected"
        say(f"{near} near-ties: written to {args.output} instead")
    partial = f"{args.output}.partial"
    with open(partial, "w", encoding="utf-8") as f:
        f.write(dump(reference) + "\n")
    os.replace(partial, args.output)
    return 1 if near else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", metavar="DIR", help="make this virtual environment if need be, and work in it")
    parser.add_argument("--work", metavar="DIR", default=os.path.join(ROOT, "target", "smollm2"),
                        help="where the GGUF file is or goes, and the checkpoints in DIR/mlx-lm [default: target/smollm2]")
    parser.add_argument("-o", "--output", metavar="FILE", default=os.path.join(ROOT, "tests/golden/smollm2/reference.json"))
    parser.add_argument("-n", "--tokens", type=int, default=96, help="longest answer in tokens [default: 96]")
    parser.add_argument("--margin", type=float, default=0.005, help="smallest distance between best and second logit [default: 0.005]")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="tokens that MLX scores too, 2 to 512 [default: 256]")
    args = parser.parse_args()
    if not 2 <= args.window <= CONTEXT:
        parser.error(f"--window: 2 to {CONTEXT} expected, found {args.window}")
    import fetch

    try:
        return in_venv(args.venv) if args.venv else make(args)
    except (fetch.FetchError, ImportError, OSError, subprocess.CalledProcessError) as e:
        hint = "; --venv DIR installs what is needed" if isinstance(e, ImportError) else ""
        say(f"reference.py: {e}{hint}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
