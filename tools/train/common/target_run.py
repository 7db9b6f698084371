"""The training run of a target: constant rate and linear fall, the last part with the matrices rounded to 4 bits."""

import argparse
import dataclasses
import json
import os
import time

import torch

from .device import add_device_arguments, wait_for
from .export import write_json
from .masters import MasterWeights
from .optimiser import MuonAdam
from .schedule import Schedule, add_length_arguments
from .streams import held_out_losses

MIX_CHANGES = (0.5, 0.7)  # from the first mixture to the second between these parts of the run


def argument_parser(description, shapes, batch, warmup):
    """The command line of a target's training; `batch` and `warmup` are the recipe's defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", required=True, help="folder of token streams (the recipe's `tokenise` step)")
    parser.add_argument("--out", required=True, help="folder for target.pt and target.json")
    add_length_arguments(parser)
    add_device_arguments(parser)
    parser.add_argument("--shape", choices=list(shapes), default="demo", help="sizes of the model (default: demo)")
    parser.add_argument("--batch", type=int, default=batch, help=f"rows a step ({batch})")
    parser.add_argument("--length", type=int, default=1024, help="tokens a row (1024)")
    parser.add_argument("--rounding-from", type=float, default=0.78, help="part of the run after which weights are rounded (0.78)")
    parser.add_argument("--decay", type=float, default=0.45, help="last part of the run in which the rate falls (0.45)")
    parser.add_argument("--warmup", type=int, default=warmup, help=f"steps to the full rate ({warmup})")
    parser.add_argument("--muon-rate", type=float, default=0.02, help="learning rate of the layers' matrices (0.02)")
    parser.add_argument("--embedding-rate", type=float, default=0.003, help="learning rate of the embedding (0.003)")
    parser.add_argument("--report", type=int, default=100, help="steps between reports (100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the initial weights (1)")
    return parser


class TargetRun:
    """One run.

    `loss(ids, weights)` is the model's mean cross-entropy of ids `[batch, length + 1]`; `mixture` (streams.Mixture) gives rows of
    `length + 1`; `held_out` are streams to evaluate on; `rounds(name, parameter)` says what is stored in 4 bits; the rate falls to
    `floor` times its value.
    """

    def __init__(self, args, config, model, loss, mixture, held_out, dtype, rounds, keep_float32=(), floor=0.01):
        self.args, self.config, self.mixture, self.held_out, self.loss = args, config, mixture, held_out, loss
        self.weights = MasterWeights(model, args.device, dtype, rounds, keep_float32)
        self.optimiser = MuonAdam(self.weights, args.muon_rate, args.embedding_rate, compiled=args.device == "cuda")
        self.schedule = Schedule(args.seconds, args.steps, args.warmup, args.decay, floor)
        self.every = torch.ones(args.batch, args.length, device=args.device)
        self.log, self.before_rounding = [], None
        self.parameters = sum(p.numel() for p in model.parameters())
        print(f"parameters {self.parameters}, in 4 bits {self.weights.quantised_count}, "
              f"tokens {({name: len(s) for name, s in mixture.streams.items()})}", flush=True)

    def evaluate(self):
        return held_out_losses(self.loss, self.held_out, self.args.batch, self.args.length)

    def warm_up(self):
        """Compiles everything outside the schedule; the weights stay as they are."""
        self.loss(self.mixture.batch(), self.every).backward()
        self.optimiser.step(0.0)
        self.optimiser.reset()
        self.weights.refresh(True)
        self.weights.refresh(False)
        self.at_start = self.evaluate()
        wait_for(self.args.device)
        print("held-out losses at the start:", json.dumps(self.at_start), flush=True)

    def begin_rounding(self):
        """From here on the compute weights are the rounded ones; records the losses before and after."""
        plain = self.evaluate()
        self.weights.refresh(True)
        self.before_rounding = {"step": self.schedule.step, "bf16": plain, "rounded_to_4bit": self.evaluate()}
        print("rounding to 4 bits from here:", json.dumps(self.before_rounding), flush=True)

    def train(self):
        """The whole run; returns its record."""
        args, s = self.args, self.schedule
        total, counted, rounding, since = 0.0, 0, False, time.time()
        self.warm_up()
        s.begin()
        while (fraction := s.fraction()) < 1:
            if not rounding and fraction >= args.rounding_from:
                rounding = True
                with s.pause():
                    self.begin_rounding()
            first, last = MIX_CHANGES
            ids = self.mixture.batch(min(1.0, max(0.0, (fraction - first) / (last - first))))
            loss = self.loss(ids, self.every)
            loss.backward()
            self.optimiser.step(s.multiplier(fraction))
            self.weights.refresh(rounding)
            s.step += 1
            total, counted = total + loss.detach(), counted + 1
            if s.step % args.report == 0:
                mean, now = (total / counted).item(), time.time()
                rate = counted * args.batch * args.length / (now - since)
                print(f"step {s.step} at {fraction:.3f}: loss {mean:.4f}, {rate:.0f} tokens/s, 4-bit {int(rounding)}", flush=True)
                self.log.append((s.step, round(fraction, 4), round(mean, 4)))
                total, counted, since = 0.0, 0, now
        return self.record(s.elapsed())

    def record(self, seconds):
        """What the model card needs. Leaves the rounded weights in place."""
        args = self.args
        self.weights.refresh(False)
        masters = self.evaluate()
        self.weights.refresh(True)
        return dict(
            steps=self.schedule.step, tokens=self.schedule.step * args.batch * args.length, seconds=round(seconds, 1),
            parameters=self.parameters, length=args.length, batch=args.batch, muon_rate=args.muon_rate,
            embedding_rate=args.embedding_rate, rounding_from=args.rounding_from, decay_from=1 - args.decay, mix=self.mixture.start,
            mix_end=self.mixture.end, stream_tokens={name: len(s) for name, s in self.mixture.streams.items()},
            at_start=self.at_start, before_rounding=self.before_rounding, final_4bit=self.evaluate(), final_bf16=masters,
            config=dataclasses.asdict(self.config), log=self.log)

    def save(self, record):
        """Writes target.pt (float32 masters, sizes) and target.json (the record)."""
        summary = {k: record[k] for k in ("steps", "tokens", "seconds", "before_rounding", "final_4bit", "final_bf16")}
        print("finished:", json.dumps(summary), flush=True)
        os.makedirs(self.args.out, exist_ok=True)
        torch.save({"master": self.weights.state(), "config": record["config"]}, os.path.join(self.args.out, "target.pt"))
        write_json(os.path.join(self.args.out, "target.json"), record)
        return record
