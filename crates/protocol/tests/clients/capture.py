"""Writes bodies.json: what the official Python clients send, call by call.

    pip install openai==3.57.0 anthropic==2.14.0
    python crates/protocol/tests/clients/capture.py

A server on the loopback interface records each body and answers 400, so that every call ends at once.
"""

import json
import pathlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import openai

bodies = []
current = ""


class Recorder(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        bodies.append({"call": current, "path": self.path.split("?")[0], "body": body})
        answer = b'{"error":{"message":"recorded","type":"invalid_request_error"}}'
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


def call(name, function, **arguments):
    """Makes one call, which must send exactly one body."""
    global current
    current = name
    before = len(bodies)
    try:
        result = function(**arguments)
        if hasattr(result, "__enter__"):
            with result:
                pass
    except (openai.BadRequestError, anthropic.BadRequestError):
        pass
    assert len(bodies) == before + 1, name


server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
o = openai.OpenAI(base_url=base + "/v1", api_key="k", max_retries=0)
a = anthropic.Anthropic(base_url=base, api_key="k", max_retries=0)

user = [{"role": "user", "content": "What is the weather in Oslo?"}]
schema = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": schema}}

# What a client keeps of an answer and sends back.
answered = openai.types.chat.ChatCompletionMessage.model_validate(
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
        ],
    }
)
result = {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": true}'}

chat = o.chat.completions
call("chat", chat.create, model="m", messages=user)
call("chat stream", chat.create, model="m", messages=user, stream=True, stream_options={"include_usage": True})
call("chat stream helper", chat.stream, model="m", messages=user)
call("chat tools", chat.create, model="m", messages=user, tools=[tool], tool_choice="auto", parallel_tool_calls=False)
call(
    "chat strict tool",
    chat.create,
    model="m",
    messages=user,
    tools=[{**tool, "function": {**tool["function"], "strict": True}}],
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
)
call("chat tool result, message object", chat.create, model="m", messages=[*user, answered, result], tools=[tool])
call("chat tool result, dumped", chat.create, model="m", messages=[*user, answered.model_dump(), result], tools=[tool])
call(
    "chat json_schema",
    chat.create,
    model="m",
    messages=user,
    response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}},
)
call("chat json_object", chat.create, model="m", messages=user, response_format={"type": "json_object"})
try:
    import pydantic

    class Weather(pydantic.BaseModel):
        """The weather of a day."""

        city: str
        days: list[int] | None = None

    call("chat parse", chat.parse, model="m", messages=user, response_format=Weather)
    call("responses parse", o.responses.parse, model="m", input="Hi", text_format=Weather)
    call("messages parse", a.messages.parse, model="m", max_tokens=64, messages=user, output_format=Weather)
finally:
    pass
call(
    "chat sampling",
    chat.create,
    model="m",
    messages=[{"role": "developer", "content": "Be brief."}, *user],
    temperature=0.7,
    top_p=0.95,
    seed=7,
    n=2,
    stop=["\n\n", "END"],
    logprobs=True,
    top_logprobs=5,
    logit_bias={"50256": -100},
    presence_penalty=0.1,
    frequency_penalty=-0.1,
    max_completion_tokens=64,
    reasoning_effort="low",
    user="u",
    store=True,
    metadata={"a": "b"},
    service_tier="auto",
    safety_identifier="s",
    prompt_cache_key="p",
    extra_body={
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "chat_template_kwargs": {"enable_thinking": False},
        "speculative": {"block_size": 4},
        "cache_prompt": False,
    },
)
call(
    "chat image",
    chat.create,
    model="m",
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
            ],
        }
    ],
)
call("completion", o.completions.create, model="m", prompt="Once", max_tokens=5, echo=True, logprobs=2, best_of=1)
call("completion ids", o.completions.create, model="m", prompt=[[1, 2], [3]], stream=True, suffix=None)

responses = o.responses
function = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": schema, "strict": True}
call("responses", responses.create, model="m", input="Hi", instructions="Be brief.", max_output_tokens=64)
call("responses stream", responses.create, model="m", input="Hi", stream=True, store=False)
call("responses stream helper", responses.stream, model="m", input="Hi")
call(
    "responses everything",
    responses.create,
    model="m",
    input=[
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    ],
    tools=[function],
    tool_choice={"type": "function", "name": "get_weather"},
    parallel_tool_calls=False,
    text={"format": {"type": "json_schema", "name": "w", "schema": schema, "strict": True}, "verbosity": "medium"},
    reasoning={"effort": "medium", "summary": "auto"},
    include=["reasoning.encrypted_content", "message.output_text.logprobs"],
    top_logprobs=3,
    temperature=1,
    top_p=1,
    truncation="disabled",
    metadata={"a": "b"},
    store=False,
)

messages = a.messages
a_tool = {"name": "get_weather", "description": "Weather", "input_schema": schema}
blocks = anthropic.types.Message.model_validate(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
).content
a_result = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "text", "text": "Well?"},
    ],
}
call("messages", messages.create, model="m", max_tokens=64, messages=user)
call("messages stream", messages.create, model="m", max_tokens=64, messages=user, stream=True)
call("messages stream helper", messages.stream, model="m", max_tokens=64, messages=user)
call(
    "messages everything",
    messages.create,
    model="m",
    max_tokens=4096,
    system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    messages=[*user, {"role": "assistant", "content": blocks}, a_result],
    tools=[{**a_tool, "cache_control": {"type": "ephemeral"}}],
    tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    thinking={"type": "enabled", "budget_tokens": 2048},
    stop_sequences=["END"],
    metadata={"user_id": "u"},
    service_tier="auto",
)
call(
    "messages image",
    messages.create,
    model="m",
    max_tokens=64,
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                {"type": "text", "text": "What is this?"},
            ],
        }
    ],
)
call(
    "messages format",
    messages.create,
    model="m",
    max_tokens=64,
    messages=user,
    output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"},
)
call("count", messages.count_tokens, model="m", messages=user, system="Be brief.", tools=[a_tool])

path = pathlib.Path(__file__).with_name("bodies.json")
path.write_text(json.dumps(bodies, indent=1) + "\n")
print(len(bodies), "bodies")
