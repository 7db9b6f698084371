"""Trains the multi-token-prediction head on the frozen 4-bit target.

    python3 -m train.qwen3_5.train_head --streams STREAMS --target RUN/target.pt --tokenizer TOK/tokenizer.json --out RUN --seconds 74

Four draft steps are unrolled as at inference (own K/V rows, the hidden state fed back after the final norm), five sixths of the rows
on text that the target itself wrote. The target's hidden states of all training rows are computed once, before the run. Writes
RUN/head.pt and RUN/head.json.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from ..common.device import add_device_arguments, open_device
from ..common.export import write_json
from ..common.masters import MasterWeights, load_run
from ..common.onpolicy import cut_at_end
from ..common.optimiser import MuonAdam
from ..common.schedule import Schedule, add_length_arguments
from ..common.shards import open_tokenizer
from ..common.streams import load_streams, random_rows
from .config import KEEP_FLOAT32, Config, is_matrix
from .model import Head, Target
from .onpolicy import Prompts, continuations

STEP_WEIGHTS = [1.0, 0.9, 0.8, 0.65, 0.5, 0.4, 0.35]  # of the losses of the draft steps
CORPUS_SHARE = 6  # one row in so many is corpus text


def loss_and_gradient(logits, target_logits, target_lse, choice, weights):
    """Half cross-entropy to the target's choice, half KL to its distribution, and the gradient in the logits.

    logits, target_logits `[R, V]`; `target_lse` their log-sum-exp, choice and weights `[R]`. Returns the weighted losses `[R]`, the
    gradient `[R, V]` in the type of the logits, and where the head agrees.
    """
    dtype = logits.dtype
    logits, target_logits = logits.float(), target_logits.float()
    lse = torch.logsumexp(logits, -1, keepdim=True)
    log_p = target_logits - target_lse[:, None]
    p = torch.exp(log_p)
    chosen = torch.arange(logits.shape[1], device=logits.device)[None] == choice[:, None]
    goal = 0.5 * p + 0.5 * chosen
    loss = (goal * (lse - logits)).sum(-1) + 0.5 * (p * log_p).sum(-1)
    gradient = (torch.exp(logits - lse) - goal) * weights[:, None]
    return loss * weights, gradient.to(dtype), logits.argmax(-1) == choice


class HeadLoss(torch.autograd.Function):
    """The loss of one draft step with its gradient computed on the way forward, so that no logits are kept."""

    compute = staticmethod(loss_and_gradient)

    @staticmethod
    def forward(ctx, hidden, embedding, target_logits, target_lse, choice, weights):
        rows = weights.numel()
        logits = F.linear(hidden.reshape(rows, -1), embedding)
        loss, gradient, agrees = HeadLoss.compute(logits, target_logits.reshape(rows, -1), target_lse.reshape(rows),
                                                  choice.reshape(rows), weights.reshape(rows))
        ctx.save_for_backward((gradient @ embedding).view(hidden.shape))
        ctx.mark_non_differentiable(agrees)
        return loss.sum(), agrees.view(weights.shape)

    @staticmethod
    def backward(ctx, upstream, _):
        return (ctx.saved_tensors[0] * upstream.to(ctx.saved_tensors[0].dtype), None, None, None, None, None)


class HeadTraining:
    """Frozen target, head, and the rows to train on."""

    def __init__(self, args):
        self.args = args
        self.dtype = open_device(args.device, args.seed)
        self.rng = np.random.default_rng(args.seed)
        saved = load_run(args.target)
        self.config = Config(**saved["config"])
        self.target = Target(self.config)
        self.target.load_state_dict(saved["master"])
        MasterWeights(self.target, args.device, self.dtype, is_matrix, KEEP_FLOAT32).refresh(True)  # exactly what is exported
        self.target.requires_grad_(False)
        self.target.prepare(max(args.length, args.row), args.device)
        self.embedding = self.target.model.embed_tokens.weight
        self.tokenizer = open_tokenizer(args.tokenizer)
        self.ends = [self.tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
        self.positions = args.length - args.draft_steps  # of a row whose drafts all lie in the row
        p = torch.arange(self.positions, device=args.device)
        self.mask = torch.zeros(self.positions, self.positions, device=args.device, dtype=self.dtype)
        self.mask = self.mask.masked_fill(p[:, None] < p[None], float("-inf"))
        self.every = torch.ones(args.batch, self.positions, device=args.device)
        self.prepare_rows(*load_streams(args.streams, args.device))
        self.prepare_head(saved["master"])

    # ---- rows

    def prepare_rows(self, streams, held_out):
        """The target's own text, windows of it and of the corpus with their hidden states, and held-out continuations."""
        args, began = self.args, time.time()
        prompts = Prompts(self.tokenizer, args.row - args.room, self.rng)
        written = []
        for _ in range(args.rounds):
            rows = continuations(self.target, prompts.draw(streams, args.prompts), args.row, args.device, self.dtype)
            written += cut_at_end(*rows, self.ends[1:])
            print(f"the target wrote {len(written)} rows, {time.time() - began:.1f} s", flush=True)
        own = torch.from_numpy(np.concatenate([ids for ids, _ in written])).to(args.device)
        self.own_tokens = len(own)
        self.held_out, self.held_out_prompts = continuations(
            self.target, prompts.draw(held_out or streams, args.evaluate), args.row, args.device, self.dtype)
        self.own = self.windows(own, args.windows)
        corpus = [self.windows(s, max(2, args.windows // 4 // len(streams))) for s in streams.values() if len(s) > args.length]
        self.corpus = tuple(torch.cat(parts) for parts in zip(*corpus))
        self.generator = torch.Generator(device=args.device).manual_seed(8)
        print(f"rows: {len(self.own[0])} own, {len(self.corpus[0])} corpus, {time.time() - began:.1f} s", flush=True)

    @torch.no_grad()
    def windows(self, stream, count):
        """Up to `count` rows from random places of a stream, fewer where it is short, and the target's hidden states of them."""
        count = min(count, max(1, len(stream) // self.args.length * 3))
        ids = torch.cat([random_rows(stream, min(256, count - i), self.args.length, None) for i in range(0, count, 256)])
        return ids, torch.cat([self.target.hidden(ids[i : i + 64]) for i in range(0, count, 64)])

    def batch(self):
        """Rows and their hidden states."""
        from_corpus = self.args.batch // CORPUS_SHARE
        parts = []
        for (ids, hidden), count in ((self.own, self.args.batch - from_corpus), (self.corpus, from_corpus)):
            chosen = torch.randint(0, len(ids), (count,), generator=self.generator, device=self.args.device)
            parts.append((ids[chosen], hidden[chosen]))
        return tuple(torch.cat(part) for part in zip(*parts))

    # ---- head

    def prepare_head(self, masters):
        """A head that passes the hidden state through, with the target's last attention layer."""
        args, size = self.args, self.config.hidden_size
        self.head = Head(self.config).prepare(args.length, args.device)
        last = max(i for i in range(self.config.layers) if not self.config.is_linear(i))
        with torch.no_grad():
            for name, p in self.head.layers[0].named_parameters():
                p.copy_(masters[f"model.layers.{last}.{name}"])
            self.head.norm.weight.copy_(masters["model.norm.weight"])
            for half in (slice(size, None), slice(0, size)):
                self.head.fc.weight[:, half] = 0.5 * torch.eye(size) + 0.01 * torch.randn(size, size)
        self.weights = MasterWeights(self.head, args.device, self.dtype, is_matrix)
        self.optimiser = MuonAdam(self.weights, args.muon_rate, args.other_rate, args.other_rate, compiled=False)
        if args.device == "cuda":
            HeadLoss.compute = staticmethod(torch.compile(loss_and_gradient, dynamic=False))

    def unroll(self, ids, hidden, weights):
        """All draft steps of every position: `(loss, [agreement [B, positions] of each step])`.

        ids `[B, length]` and the target's hidden states; weights `[B, positions]`. Later steps weigh less after a wrong one.
        """
        n, steps = self.positions, self.args.draft_steps
        with torch.no_grad():
            logits = self.target.logits(hidden)
            lse, choice = torch.logsumexp(logits.float(), -1), logits.argmax(-1)
            embedded = F.embedding(ids, self.embedding)
        x, keys, values, total, agreement = hidden[:, :n], [], [], 0.0, []
        share = sum(STEP_WEIGHTS[:steps]) * weights.numel()
        for j in range(steps):
            x, keys, values = self.head.unrolled_step(embedded[:, 1 + j : 1 + j + n], x, j, keys, values, self.mask)
            at = slice(1 + j, 1 + j + n)
            loss, agrees = HeadLoss.apply(x, self.embedding, logits[:, at], lse[:, at], choice[:, at], weights * (STEP_WEIGHTS[j] / share))
            total = total + loss
            agreement.append(agrees)
            weights = weights * (0.25 + 0.75 * agrees.float())
        return total, agreement

    @torch.no_grad()
    def evaluate(self):
        """Over held-out continuations: share of positions whose first 1, 2, ... drafts are all right, and tokens a round."""
        args = self.args
        right, counted = torch.zeros(args.draft_steps, device=args.device), 0.0
        position = torch.arange(self.positions, device=args.device)[None]
        for i in range(0, len(self.held_out), args.batch):
            rows = self.held_out[i : i + args.batch]
            real, prompts = len(rows), self.held_out_prompts[i : i + args.batch, None]
            end = torch.full((real,), args.row - args.draft_steps - 2, device=args.device)
            for token in self.ends:
                hit = (rows == token) & (torch.arange(args.row, device=args.device)[None] >= prompts)
                end = torch.minimum(end, torch.where(hit.any(1), hit.float().argmax(1), args.row) - 1)
            weights = torch.zeros(args.batch, self.positions, device=args.device)
            weights[:real] = ((position >= prompts - 1) & (position < end[:, None])).float()
            ids = torch.zeros(args.batch, args.length, dtype=torch.long, device=args.device)
            ids[:real, : args.row] = rows
            chain = weights
            for j, agrees in enumerate(self.unroll(ids, self.target.hidden(ids), weights)[1]):
                chain = chain * agrees.float()
                right[j] += chain.sum()
            counted += weights.sum()
        shares = (right / counted).tolist()
        rounds = {width: round(1 + sum(shares[: width - 1]), 3) for width in range(2, args.draft_steps + 2)}
        return dict(chain=[round(s, 4) for s in shares], tokens_per_round=rounds)

    def run(self):
        args = self.args
        self.unroll(*self.batch(), self.every)[0].backward()  # compiles
        self.optimiser.step(0.0)
        self.optimiser.reset()
        print("before training:", json.dumps(self.evaluate()), flush=True)
        s = Schedule(args.seconds, args.steps, args.warmup, args.decay, floor=0.005)
        rounding, before, log, totals, counted = False, None, [], torch.zeros(args.draft_steps + 1, device=args.device), 0
        s.begin()
        while (fraction := s.fraction()) < 1:
            if not rounding and fraction >= args.rounding_from:
                rounding = True
                with s.pause():
                    before = self.evaluate()
            loss, agreement = self.unroll(*self.batch(), self.every)
            loss.backward()
            self.optimiser.step(s.multiplier(fraction))
            self.weights.refresh(rounding)
            s.step += 1
            totals += torch.stack([loss.detach()] + [a.float().mean() for a in agreement])
            counted += 1
            if s.step % args.report == 0:
                means = [round(x, 4) for x in (totals / counted).tolist()]
                print(f"step {s.step} at {fraction:.3f}: loss {means[0]}, agreement {means[1:]}", flush=True)
                log.append((s.step, means))
                totals, counted = torch.zeros_like(totals), 0
        seconds = s.elapsed()
        self.weights.refresh(True)
        rounded = self.evaluate()
        self.weights.refresh(False)
        return dict(steps=s.step, rows=s.step * args.batch * self.positions, seconds=round(seconds, 1), draft_steps=args.draft_steps,
                    length=args.length, batch=args.batch, muon_rate=args.muon_rate, generated_tokens=self.own_tokens,
                    before_rounding=before, held_4bit=rounded, held_bf16=self.evaluate(),
                    parameters=sum(p.numel() for p in self.head.parameters()), log=log)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", required=True, help="folder of token streams")
    parser.add_argument("--target", required=True, help="target.pt of train_target")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--out", required=True, help="folder for head.pt and head.json")
    add_length_arguments(parser)
    add_device_arguments(parser)
    parser.add_argument("--batch", type=int, default=24, help="rows a step (24)")
    parser.add_argument("--length", type=int, default=512, help="tokens a row (512)")
    parser.add_argument("--draft-steps", type=int, default=4, choices=range(1, 8), help="draft steps unrolled (4)")
    parser.add_argument("--windows", type=int, default=12000, help="rows of own text; a quarter as many of corpus text (12000)")
    parser.add_argument("--rounds", type=int, default=2, help="times that --prompts prompts are continued (2)")
    parser.add_argument("--prompts", type=int, default=4096, help="prompts continued side by side (4096)")
    parser.add_argument("--row", type=int, default=384, help="tokens of prompt and continuation, at most --length (384)")
    parser.add_argument("--room", type=int, default=100, help="tokens of a row that are left for the continuation, at least (100)")
    parser.add_argument("--evaluate", type=int, default=256, help="held-out prompts (256)")
    parser.add_argument("--rounding-from", type=float, default=0.6, help="part of the run after which weights are rounded (0.6)")
    parser.add_argument("--decay", type=float, default=0.5, help="last part of the run in which the rate falls (0.5)")
    parser.add_argument("--warmup", type=int, default=100, help="steps to the full rate (100)")
    parser.add_argument("--muon-rate", type=float, default=0.02, help="learning rate of the matrices (0.02)")
    parser.add_argument("--other-rate", type=float, default=0.002, help="learning rate of the norms (0.002)")
    parser.add_argument("--report", type=int, default=400, help="steps between reports (400)")
    parser.add_argument("--seed", type=int, default=3, help="seed of weights and prompts (3)")
    args = parser.parse_args(argv)
    if args.row > args.length or args.row < args.room + 20:
        parser.error(f"--row {args.row}: must be --room + 20 ({args.room + 20}) to --length ({args.length})")
    return args


def main(argv=None):
    args = arguments(argv)
    training = HeadTraining(args)
    record = training.run()
    print("finished:", json.dumps({k: v for k, v in record.items() if k != "log"}), flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save({"master": training.weights.state(), "config": training.target.config.__dict__}, os.path.join(args.out, "head.pt"))
    write_json(os.path.join(args.out, "head.json"), record)
    return record


if __name__ == "__main__":
    main()
