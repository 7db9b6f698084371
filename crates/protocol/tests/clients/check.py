"""Has the official Python clients' own types read answers.json, strictly; exits 1 if one does not.

    pip install openai==3.57.0 anthropic==2.14.0
    python crates/protocol/tests/clients/check.py
"""

import copy
import json
import pathlib

import openai.types as o
import openai.types.chat
import openai.types.responses
import pydantic
from anthropic import types as a

answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())


def read(kind, value):
    """Reads `value` as `kind`, as it is and with each needed field taken away in turn: that must fail somewhere."""
    adapter = pydantic.TypeAdapter(kind)
    adapter.validate_python(value)
    failures = 0
    for name in value:
        less = copy.deepcopy(value)
        del less[name]
        try:
            adapter.validate_python(less)
        except pydantic.ValidationError:
            failures += 1
    assert failures > 0, f"{kind}: reads anything"


read(o.chat.ChatCompletion, answers["chat"])
for chunk in answers["chunks"]:
    read(o.chat.ChatCompletionChunk, chunk)
read(o.Completion, answers["completion"])
read(o.responses.Response, answers["response"])
for event in answers["response_events"]:
    read(o.responses.ResponseStreamEvent, event)
for model in answers["models"]["data"]:
    read(o.Model, model)
read(a.Message, answers["message"])
for event in answers["message_events"]:
    # The client takes pings and errors out of the stream itself.
    if event["type"] not in ("ping", "error"):
        read(a.RawMessageStreamEvent, event)
read(a.MessageTokensCount, answers["count"])
read(a.ErrorResponse, answers["anthropic_error"])
assert len(answers["response_events"]) == 16 and len(answers["message_events"]) == 11
print("read")
