"""What the smoke run checks. Every check raises CheckFailed with what was expected and found."""

import json
import os
import subprocess

from ..common.export import read_json
from ..common.masters import load_run
from ..common.quantise import fake_quantise

LOGIT_TOLERANCE = 2e-3


class CheckFailed(Exception):
    """A check of the smoke run failed."""


def loss_fell(name, record, nats):
    """The held-out losses of the 4-bit weights are at least `nats` below those of the untrained model, on average."""
    start, end = record["at_start"], record["final_4bit"]
    fell = sum(start.values()) / len(start) - sum(end.values()) / len(end)
    if not fell >= nats:
        raise CheckFailed(f"{name}: the held-out loss fell by {fell:.2f} nats, at least {nats} expected ({start} -> {end})")
    print(f"ok: {name}: held-out loss fell by {fell:.2f} nats (at least {nats})")


def rounded_state(path, is_matrix, keep_float32=()):
    """The weights of a run's .pt as the exported file should hold them, float32."""
    masters = load_run(path)["master"]
    state = {}
    for name, weight in masters.items():
        if is_matrix(name, weight):
            state[name] = fake_quantise(weight)
        elif keep_float32 and name.endswith(keep_float32):
            state[name] = weight
        else:
            state[name] = weight.bfloat16().float()
    return state


def same_logits(name, trained, exported):
    """Two sets of logits `[T, vocabulary]` agree."""
    if trained.shape != exported.shape:
        raise CheckFailed(f"{name}: logits {tuple(exported.shape)} from the exported files, {tuple(trained.shape)} expected")
    difference = (trained - exported).abs().max().item()
    if not difference <= LOGIT_TOLERANCE:
        raise CheckFailed(f"{name}: logits of the exported files are {difference:.4f} from the trained weights', at most "
                          f"{LOGIT_TOLERANCE} expected: the export does not hold what was trained")
    print(f"ok: {name}: exported files give the trained weights' logits within {difference:.1e}")


def ask(mlxcel, model, question, *options):
    """mlxcel's answer as its JSON object."""
    command = [mlxcel, "generate", "-m", model, "-p", question, "--temp", "0", "--json", "--quiet", "-t", "1", "-n", "48", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXCEL_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise CheckFailed(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def answers_as_reference(mlxcel, model, question, expected):
    """In float32, mlxcel's greedy ids are the reference's, up to the reference's first stop token."""
    answer = ask(mlxcel, model, question, "--cpu-precision", "f32", "--model-draft", "none")
    found = answer["tokens"]
    if not found or found != expected[: len(found)] or (answer["finish_reason"] == "length" and len(found) < min(48, len(expected))):
        raise CheckFailed(f"{model}: {question!r} gave ids {found}, the reference {expected[:48]}")
    print(f"ok: {os.path.basename(model)}: {question!r} -> {answer['text']!r}, the reference's {len(found)} ids")


def drafts(mlxcel, model, drafter, questions):
    """mlxcel finds the drafter beside the target, some drafts are right, and the answers are those without drafts."""
    proposed = accepted = 0
    for question in questions:
        plain = ask(mlxcel, model, question, "--model-draft", "none")
        drafted = ask(mlxcel, model, question, "--draft-block-size", "3")
        used = drafted["speculation"]
        if not used or used["drafter"] != drafter or used["failure"] or plain["speculation"]:
            raise CheckFailed(f"{model}: drafting with {drafter} expected, and none with --model-draft none; found {used} and "
                              f"{plain['speculation']}")
        if (drafted["text"], drafted["tokens"]) != (plain["text"], plain["tokens"]):
            raise CheckFailed(f"{model}: {question!r} gave {drafted['text']!r} with drafts and {plain['text']!r} without")
        proposed, accepted = proposed + used["proposed"], accepted + used["accepted"]
    if accepted == 0:
        raise CheckFailed(f"{model}: none of {proposed} drafts was right")
    print(f"ok: {os.path.basename(model)}: same answers with {drafter}, {accepted} of {proposed} drafts right")


def folder_is_complete(folder, names):
    """A folder has the files, and its JSON files can be read."""
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            raise CheckFailed(f"{path}: missing")
        if name.endswith(".json"):
            read_json(path)
