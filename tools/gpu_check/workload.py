"""What is run, and what it is held to: every parameter of the check stands here and nowhere else."""

SCHEMA = 1

# Test executables of crates/cuda. Some walk whole models as well, one of these sizes among them; some have more cases than the budget
# holds, which --full runs.
SUITES = ["row_law", "fusion", "wide", "walks", "identity"]
WALK_SUITES = ["walks", "identity"]
WALK_SHAPE = ("gemma-4-31b", 12)
FULL_SUITES = {"row_law": {"MLXCEL_GPU_FULL": "1"}}
# Variables that change what a suite does: set here or not at all, whatever the shell has.
SWITCHES = ["MLXCEL_GPU_FULL", "MLXCEL_GPU_QUICK", "MLXCEL_IDENTITY", "MLXCEL_WALK_BACKEND", "MLXCEL_WALK_MODEL"]

# The embedded pairs: target and drafter.
PAIRS = {"gemma-4-tiny-it-4bit": "gemma-4-tiny-it-assistant-4bit", "qwen3.5-tiny-4bit": "qwen3.5-tiny-mtp-4bit"}

# Blocks that are compared with single steps. Each draw has a sequence whose first row leaves the sliding window within two steps, so that
# its blocks lie before and behind that place, and short ones that never reach it.
PROBE_WIDTHS = list(range(2, 17))
PROBE_BATCHES = [1, 4, 8]
PROBE_DRAWS = 4

SWEEP_K = [2, 4, 8]
SWEEP_TOKENS = 128
AGREE_TOKENS = 64

# What is done with a shape: blocks against single steps; a prompt, single steps and blocks; single steps of many sequences; simulated drafts.
PROBE, COST, BATCH, DRAFTS = "probe", "cost", "batch", "drafts"
ALL_WORK = (PROBE, COST, BATCH, DRAFTS)
# Shapes as (name, layers or None for all of them, work, repetitions or None for those of the run), in this order: mixtures of experts come last,
# as no target hangs on them and time may run out.
SHAPES = [
    ("gemma-4-31b", 12, (PROBE,), None),
    ("gemma-4-31b", None, (COST, BATCH, DRAFTS), None),
    ("gemma-4-12b", None, (COST, BATCH, DRAFTS), None),
    ("qwen3.8-27b", None, (COST, BATCH, DRAFTS), None),
    ("gemma-4-26b-a4b", None, (COST,), 2),
    ("qwen3.5-35b-a3b", None, (COST,), 2),
]
QUICK_SHAPES = [("gemma-4-31b", 12, ALL_WORK, None)]

PREFILL = 4096
CONTEXT = 1024
STEPS = 64
COST_WIDTHS = [1, 2, 4, 8, 16]
# Sequences of single steps; each has positions of its own before them.
BATCHES = [1, 32]

# A published acceptance rate of 0.64 at K=4, 2.9 tokens a round: each draft right with this probability, given those before it.
PROBABILITY = 0.795
PUBLISHED = "0.64 at K=4"
SIMULATED_TOKENS = 128
SIMULATED_K = [2, 4, 8]
LISTING = "Count from one to one hundred in words, and say something about each number."

# Seconds that a step may take at most, whatever is left of the budget.
LIMITS = {"machine": 30, "peaks": 60, "suite": 150, "walks": 120, "full": 360, "probe": 60, "probe_shape": 150, "generate": 30, "sweep": 150, "synth": 150, "cost": 150, "batch": 90,
          "simulated": 150}
# What must be left for a step to be begun.
LEAST = 10

# Between backends bits differ, so a greedy answer may part from another where the two likeliest tokens are this close, in logits; nowhere else.
NEAR_TIE = 0.5

# Shapes that have figures and no targets: nobody named one.
UNTARGETED = ["gemma-4-26b-a4b", "qwen3.5-35b-a3b"]
# Targets of a timed shape: (key, what, at least or at most, bound). A bound by label has the others' under None; a bound of None is no target.
# Shares are of what the same run measured: bandwidth, matrix rate.
TARGETS = [
    ("share_of_read", "packed bytes a second of a decode step, of the read bandwidth", ">=", {"gemma-4-31b": 0.75, None: 0.7}),
    ("t4", "t(4)/t(1)", "<=", 1.05),
    ("t8", "t(8)/t(1)", "<=", 1.1),
    ("t16", "t(16)/t(1)", "<=", 1.2),
    ("batch32", "decode of 32 sequences at once, of one's", ">=", {"gemma-4-31b": 12, None: None}),
    ("speedup4", "speedup with drafts at K=4", ">=", 2.5),
    ("share_of_matmul", "prefill, of the bf16 matrix rate", ">=", 0.45),
]
