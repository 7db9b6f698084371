"""How far a run has come, and the learning rate's multiplier there."""

import sys
import time
from contextlib import contextmanager


class Schedule:
    """Warm-up, a constant rate, then a linear fall over the last `decay` of the run to `floor`.

    The run's length is either `seconds` of wall clock, as the published checkpoints were trained, or a number of `steps`, which
    makes it repeatable. Both can be given; the one that ends first ends the run.
    """

    def __init__(self, seconds=None, steps=None, warmup=100, decay=0.45, floor=0.01):
        if not seconds and not steps:
            sys.exit("the length of the run is missing: give --seconds or --steps")
        self.seconds, self.steps = seconds, steps
        self.warmup, self.decay, self.floor = warmup, decay, floor
        self.step = 0
        self.paused = 0.0
        self.start = time.time()

    def begin(self):
        """Starts the clock; call it when everything is compiled."""
        self.start, self.paused = time.time(), 0.0

    def elapsed(self):
        """Seconds of training so far, evaluations left out."""
        return time.time() - self.start - self.paused

    @contextmanager
    def pause(self):
        """What runs inside does not count as training time."""
        began = time.time()
        yield
        self.paused += time.time() - began

    def fraction(self):
        """0 at the start, 1 or more at the end."""
        by_time = self.elapsed() / self.seconds if self.seconds else 0.0
        by_step = self.step / self.steps if self.steps else 0.0
        return max(by_time, by_step)

    def multiplier(self, fraction):
        """What the learning rates are multiplied by at `fraction`."""
        warm = min(1.0, (self.step + 1) / self.warmup)
        if fraction > 1 - self.decay:
            warm *= max(self.floor, (1 - fraction) / self.decay)
        return warm


def add_length_arguments(parser):
    """--seconds and --steps."""
    parser.add_argument("--seconds", type=float, help="length of the run in seconds of training")
    parser.add_argument("--steps", type=int, help="length of the run in optimiser steps")
