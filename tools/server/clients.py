#!/usr/bin/env python3
"""A session of the official OpenAI and Anthropic clients, and of llama-server's routes, with a server started here.

    pip install openai anthropic
    python3 tools/server/clients.py [--binary target/release/mlxcel-server] [--self-test]

One line a check; exit code 1 when one fails. --self-test shows that the checks can fail: with a key that the clients do
not have, with an expected text that the demo does not say, and with functions of other names than the forced ones.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import anthropic
import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTION = [{"role": "user", "content": "What is speculative decoding?"}]
SAID = "draft model"
STORY = [{"role": "user", "content": "Tell me a story."}]
# The demo that calls tools.
CALLER = "qwen3.5-tiny-4bit"
CHECKS = []


def check(function):
    """Makes a function one of the session's checks, in the order of this file."""
    CHECKS.append(function)
    return function


def expect(condition, found):
    """Fails a check, and says what was found instead."""
    if not condition:
        raise AssertionError(str(found)[:400])


class Server:
    """A server on a port of its own."""

    def __init__(self, binary, *arguments):
        command = [str(binary), "--port", "0", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.log, self.listens, self.url = [], threading.Event(), None
        threading.Thread(target=self.read, daemon=True).start()
        late = time.monotonic() + 30
        if not self.listens.wait(30) or self.url is None:
            self.process.kill()
            raise SystemExit("the server did not start:\n" + "".join(self.log))
        while self.status("/health") != 200:
            if time.monotonic() > late or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit("the server was not ready after 30 s:\n" + "".join(self.log))
            time.sleep(0.02)

    def read(self):
        """Keeps what the server says, so that it never waits for a reader."""
        for line in self.process.stderr:
            self.log.append(line)
            if "listening on http://" in line:
                self.url = line.split("listening on ")[1].split()[0]
                self.listens.set()
        self.listens.set()

    def call(self, path, body=None):
        """The text that a path answers, to a JSON body if there is one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as answer:
            return answer.read().decode()

    def json(self, path, body=None):
        """The same, read as JSON."""
        return json.loads(self.call(path, body))

    def status(self, path):
        """The status of a GET."""
        try:
            self.call(path)
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def idle(self, seconds):
        """Whether all slots are idle before so many seconds have passed."""
        late = time.monotonic() + seconds
        while any(slot["is_processing"] for slot in self.json("/slots")):
            if time.monotonic() > late:
                return False
            time.sleep(0.02)
        return True

    def stop(self):
        """Ends it as an operator would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "still there after 20 s"


class Session:
    """What the checks share."""

    def __init__(self, server, said, model, forced="get_weather"):
        self.server, self.said, self.model, self.forced = server, said, model, forced
        self.openai = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30)
        self.anthropic = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=30)

    def chat(self, **more):
        """A chat completion of the question, greedy."""
        given = {"model": self.model, "messages": QUESTION, "temperature": 0, "max_tokens": 40, **more}
        return self.openai.chat.completions.create(**given)

    def response(self, **more):
        """A response to the question, greedy."""
        given = {"model": self.model, "input": QUESTION, "temperature": 0, "max_output_tokens": 40, **more}
        return self.openai.responses.create(**given)

    def message(self, **more):
        """A message that answers the question, greedy."""
        given = {"model": self.model, "messages": QUESTION, "max_tokens": 40, "extra_body": {"temperature": 0}, **more}
        return self.anthropic.messages.create(**given)


@check
def models_are_listed(s):
    listed = [model.id for model in s.openai.models.list()]
    expect(s.model in listed, listed)
    expect(s.openai.models.retrieve(s.model).id == s.model, listed)
    meta = s.server.json("/v1/models")["data"][0]["meta"]
    expect(meta["n_params"] > 1_000_000 and meta["n_embd"] > 0 and meta["size"] > 0, meta)


@check
def chat(s):
    answer = s.chat()
    choice = answer.choices[0]
    expect(s.said in choice.message.content, choice)
    expect((choice.message.role, choice.finish_reason) == ("assistant", "length"), choice)
    expect(answer.usage.completion_tokens == 40 and answer.usage.prompt_tokens > 5, answer.usage)


@check
def chat_streamed_with_usage(s):
    chunks = list(s.chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(text == s.chat().choices[0].message.content, text)
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 40, chunks[-1])
    expect(len(chunks) > 5, len(chunks))


@check
def plain_and_speculative_are_identical(s):
    plain = s.chat(extra_body={"speculative": "off"}, logprobs=True)
    wide = s.chat(extra_body={"speculative": {"block_size": 4}}, logprobs=True)
    expect(plain.choices == wide.choices, (plain.choices, wide.choices))
    drafted = wide.model_extra["timings"]["draft_n_accepted"], plain.model_extra["timings"]["draft_n"]
    expect(drafted[0] > 0 and drafted[1] == 0, drafted)


@check
def logprobs(s):
    tokens = s.chat(logprobs=True, top_logprobs=3, max_tokens=6).choices[0].logprobs.content
    expect(len(tokens) == 6, tokens)
    for token in tokens:
        best = token.top_logprobs[0]
        expect(len(token.top_logprobs) == 3 and (best.token, best.logprob) == (token.token, token.logprob), token)
        expect(token.logprob <= 0, token)


@check
def several_answers(s):
    answer = s.chat(messages=STORY, n=2, temperature=1.5, seed=3, max_tokens=20)
    expect([choice.index for choice in answer.choices] == [0, 1], answer)
    expect(answer.choices[0].message.content != answer.choices[1].message.content, answer)


@check
def stop_strings(s):
    choice = s.chat(stop=[" draft"]).choices[0]
    expect(choice.finish_reason == "stop" and " draft" not in choice.message.content, choice)
    expect(s.chat().choices[0].message.content.startswith(choice.message.content + " draft"), choice)


@check
def seeds_repeat(s):
    answers = [s.chat(messages=STORY, temperature=1.5, seed=seed) for seed in (7, 7, 8)]
    texts = [answer.choices[0].message.content for answer in answers]
    expect(texts[0] == texts[1] != texts[2], texts)


@check
def completions(s):
    given = {"model": s.model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    answer = s.openai.completions.create(**given, logprobs=1)
    expect(answer.choices[0].text and len(answer.choices[0].logprobs.tokens) == 12, answer)
    streamed = "".join(chunk.choices[0].text for chunk in s.openai.completions.create(**given, stream=True))
    expect(streamed == answer.choices[0].text, streamed)


@check
def responses(s):
    answer = s.response()
    expect(s.said in answer.output_text and answer.output_text == s.chat().choices[0].message.content, answer)
    expect((answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens"), answer)
    expect(answer.usage.output_tokens == 40 and answer.usage.input_tokens > 5, answer.usage)
    again = s.response(input=[*QUESTION, *answer.output, {"role": "user", "content": "And why?"}])
    expect(again.usage.input_tokens > answer.usage.input_tokens + 40, again.usage)


@check
def responses_streamed(s):
    with s.openai.responses.stream(model=s.model, input=QUESTION, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    names = [event.type for event in events]
    expect(names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed", names)
    expect([event.sequence_number for event in events] == list(range(len(events))), names)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    whole = s.response(max_output_tokens=None)
    expect(text == final.output_text == whole.output_text and whole.status == "completed", (text, whole))


@check
def tools_may_be_offered(s):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "weather", "description": "The weather in a city.", "parameters": parameters}
    choice = s.chat(tools=[{"type": "function", "function": function}]).choices[0]
    expect(choice.finish_reason in ("stop", "length", "tool_calls"), choice)
    tool = {"name": "weather", "description": "The weather in a city.", "input_schema": parameters}
    answer = s.message(tools=[tool])
    expect(answer.stop_reason in ("end_turn", "max_tokens", "tool_use"), answer)


FORCED = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}


def fits(arguments):
    """Whether arguments fit the schema of a forced call."""
    city, unit = arguments.get("city"), arguments.get("unit")
    return set(arguments) == {"city", "unit"} and isinstance(city, str) and len(city) < 13 and unit in ("C", "F")


@check
def calls_are_forced(s):
    function = {"name": s.forced, "description": "The weather in a city.", "parameters": FORCED}
    tools = [{"type": "function", "function": function}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    allowed = {"mode": "required", "tools": [named]}
    for choice in ("required", named, {"type": "allowed_tools", "allowed_tools": allowed}):
        given = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
        plain = s.chat(**given, extra_body={"speculative": "off"}).choices[0]
        drafted = s.chat(**given, extra_body={"speculative": {"block_size": 4}})
        call, other = (c.message.tool_calls[0].function for c in (plain, drafted.choices[0]))
        expect((plain.finish_reason, call.name) == ("tool_calls", "get_weather"), plain)
        expect(fits(json.loads(call.arguments)) and call == other, (call, other))
        timings = drafted.model_extra["timings"]
        expect(sum(timings["draft_accepted_by_depth"]) == timings["draft_n_accepted"], timings)


@check
def calls_are_forced_in_messages(s):
    tool = {"name": s.forced, "description": "The weather in a city.", "input_schema": FORCED}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
        answer = s.message(tools=[tool], tool_choice=choice, max_tokens=200)
        used = answer.content[0]
        expect((answer.stop_reason, used.type, used.name) == ("tool_use", "tool_use", "get_weather"), answer)
        expect(fits(used.input), used)
    answer = s.message(tools=[tool], tool_choice={"type": "none"})
    expect(answer.stop_reason != "tool_use", answer)


@check
def messages_are_continued(s):
    whole = s.message().content[0].text
    begun = whole[: whole.index(" ", len(whole) // 2)]
    more = s.message(messages=[*QUESTION, {"role": "assistant", "content": begun}])
    expect(whole.startswith(begun + more.content[0].text[:8]), (begun, more))
    again = s.chat(messages=[*QUESTION, {"role": "assistant", "content": begun}])
    expect(again.choices[0].message.content == more.content[0].text, (again, more))
    blank = {"role": "assistant", "content": begun + " "}
    refusal(anthropic.BadRequestError, lambda: s.message(messages=[*QUESTION, blank]))


@check
def messages(s):
    answer = s.message()
    expect(s.said in answer.content[0].text and answer.stop_reason == "max_tokens", answer)
    expect(answer.content[0].text == s.chat().choices[0].message.content, answer)
    expect(answer.usage.output_tokens == 40, answer.usage)
    stopped = s.message(stop_sequences=[" draft"])
    expect((stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " draft"), stopped)


@check
def messages_streamed(s):
    given = {"model": s.model, "messages": QUESTION, "max_tokens": 40, "extra_body": {"temperature": 0}}
    with s.anthropic.messages.stream(**given) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = s.message()
    expect(text == whole.content[0].text == final.content[0].text, (text, final))
    expect((final.stop_reason, final.usage.output_tokens) == ("max_tokens", 40), final)


@check
def tokens_are_counted(s):
    count = s.anthropic.messages.count_tokens(model=s.model, messages=QUESTION).input_tokens
    expect(count == s.chat(max_tokens=1).usage.prompt_tokens, count)


def refusal(kind, call):
    """The error of a kind that a call must raise."""
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, found {str(answer)[:200]}")


@check
def errors_have_their_types(s):
    error = refusal(openai.BadRequestError, lambda: s.chat(temperature=-1))
    expect(error.param == "temperature" and error.status_code == 400, error)
    error = refusal(openai.BadRequestError, lambda: s.chat(extra_body={"no_such_field": 1}))
    expect(error.param == "no_such_field", error)
    error = refusal(openai.NotFoundError, lambda: s.chat(model="another"))
    expect(error.param == "model", error)
    refusal(openai.NotFoundError, lambda: s.openai.models.retrieve("another"))
    error = refusal(anthropic.BadRequestError, lambda: s.message(messages=[]))
    expect(error.body["error"]["type"] == "invalid_request_error", error.body)
    error = refusal(anthropic.NotFoundError, lambda: s.message(model="another"))
    expect(error.body["error"]["type"] == "not_found_error", error.body)


@check
def closed_streams_free_their_slots(s):
    stream = s.chat(stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    expect(any(slot["is_processing"] for slot in s.server.json("/slots")), "no slot was busy during the stream")
    stream.close()
    expect(s.server.idle(2), "a slot was busy 2 s after its client left")


@check
def llama_server_routes(s):
    tokens = s.server.json("/tokenize", {"content": "Hello world"})["tokens"]
    expect(s.server.json("/detokenize", {"tokens": tokens})["content"] == "Hello world", tokens)
    prompt = s.server.json("/apply-template", {"messages": QUESTION})["prompt"]
    expect(QUESTION[0]["content"] in prompt and prompt != QUESTION[0]["content"], prompt)
    props = s.server.json("/props")
    slots = s.server.json("/slots")
    expect(props["total_slots"] == len(slots) > 0 and "chat_template" in props, props)
    expect(s.server.json("/health") == {"status": "ok"}, "/health")
    metrics = s.server.call("/metrics")
    expect("mlxcel_spec_decode_num_accepted_tokens_total" in metrics and metrics.endswith("# EOF\n"), metrics[-300:])


def tools_are_called(s):
    """With a model that calls tools: the calls of all three dialects, and answers to their results."""
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "The weather in a city.", "parameters": parameters}
    given = {"messages": asked, "model": s.model, "max_tokens": 120}
    tools = [{"type": "function", "function": function}]
    choice = s.chat(**given, tools=tools).choices[0]
    call = choice.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    expect((choice.finish_reason, call.function.name) == ("tool_calls", s.said) and "city" in arguments, choice)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    more = s.chat(**{**given, "messages": [*asked, choice.message, result]}, tools=tools)
    expect(more.usage.prompt_tokens > 20, more)

    tool = {"name": "get_weather", "description": "The weather in a city.", "input_schema": parameters}
    answer = s.message(**given, tools=[tool])
    used = answer.content[-1]
    expect((answer.stop_reason, used.type, used.input) == ("tool_use", "tool_use", arguments), answer)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "sunny"}]}
    said = {"role": "assistant", "content": answer.content}
    s.message(**{**given, "messages": [*asked, said, result]}, tools=[tool])

    given = {"input": asked, "model": s.model, "max_output_tokens": 120, "tools": [{"type": "function", **function}]}
    item = s.response(**given).output[-1]
    expect(item.type == "function_call" and json.loads(item.arguments) == arguments, item)
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    s.response(**{**given, "input": [*asked, item, result]})


def run(
    binary, arguments=(), said=SAID, quiet=False, checks=CHECKS, model="gemma-4-tiny-it-4bit", forced="get_weather"
):
    """A session; the names of the checks that failed."""
    server = Server(binary, *arguments)
    failed = []
    try:
        session = Session(server, said, model, forced)
        for function in checks:
            name, began = function.__name__.replace("_", " "), time.monotonic()
            try:
                function(session)
                result = "ok"
            except Exception as error:  # Whatever goes wrong is this check's failure; the others still run.
                failed.append(function.__name__)
                result = f"FAILED: {type(error).__name__}: {error}"
            if not quiet:
                print(f"{name}: {result} ({time.monotonic() - began:.2f} s)", flush=True)
    finally:
        code = server.stop()
    if not quiet:
        print(f"the server ends at SIGTERM: {'ok' if code == 0 else f'FAILED: exit code {code}'}")
    if code != 0:
        failed.append("stop")
        sys.stderr.writelines(server.log[-20:])
    return failed


def run_calls(binary, function="get_weather", quiet=False):
    """A session about tools; the names of the checks that failed."""
    checks = [tools_are_called, *(() if quiet else (calls_are_forced, calls_are_forced_in_messages))]
    return run(binary, ["--model", CALLER], function, quiet, checks, CALLER)


def self_test(binary):
    """Whether faults are seen; an exit code."""
    every = {function.__name__ for function in CHECKS}
    locked = set(run(binary, ["--api-key", "another"], quiet=True))
    # A server that lets nobody in still ends well.
    expect(locked == every, f"passed without a key: {every - locked}, failed besides: {locked - every}")
    speaking = {"chat", "messages", "responses"}
    wrong = set(run(binary, said="a text that the demo does not say", quiet=True))
    expect(wrong == speaking, f"expected {speaking} to fail with a wrong text, found {wrong}")
    forcing = {"calls_are_forced", "calls_are_forced_in_messages"}
    other = set(run(binary, quiet=True, forced="another"))
    expect(other == forcing, f"expected {forcing} to fail with another function, found {other}")
    calls = run_calls(binary, "another function", quiet=True)
    expect(calls == ["tools_are_called"], f"a wrong call was not seen: {calls}")
    counts = f"{len(every)} checks fail without a key, {len(wrong)} with a wrong text, {len(other)} with another"
    print(f"self-test: {counts} function, one with a wrong call")
    return 0


def main():
    """Runs what was asked for; an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/mlxcel-server")
    parser.add_argument("--self-test", action="store_true")
    given = parser.parse_args()
    if not given.binary.exists():
        raise SystemExit(f"{given.binary} expected; build it first: cargo build --release -p mlxcel-cli")
    if given.self_test:
        return self_test(given.binary)
    began = time.monotonic()
    failed = run(given.binary) + run_calls(given.binary)
    every = len(CHECKS) + 5
    print(f"{every - len(failed)} of {every} checks passed in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
