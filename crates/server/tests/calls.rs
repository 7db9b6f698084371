//! Forced calls, constraints behind thoughts, and answers that the client began, in all dialects, with drafts and without.

mod common;

use common::{Server, Setup};
use mlxcel_text::parse::ParserKind;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const GEMMA: (&str, &str) = ("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-4bit");
const QWEN: (&str, &str) = ("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit");

fn server((target, drafter): (&'static str, &'static str)) -> Server {
    Server::start(Setup { target, drafter: Some(drafter), ..Setup::default() })
}

fn with(mut body: Value, extra: &Value) -> Value {
    if let Value::Object(extra) = extra {
        body.as_object_mut().expect("an object").extend(extra.clone());
    }
    body
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "minLength": 1, "maxLength": 12 },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
            "unit": { "enum": ["celsius", "fahrenheit"] },
        },
        "required": ["city", "unit"],
    })
}

fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "w", "parameters": parameters(), "strict": true } })
}

fn chat(extra: &Value) -> Value {
    let body = json!({
        "messages": [{ "role": "user", "content": "What is the weather in Paris?" }],
        "tools": [tool("weather"), tool("forecast")], "max_tokens": 200, "temperature": 0,
    });
    with(body, extra)
}

/// What is wrong with a call's name and arguments.
fn fault(name: &Value, arguments: &Value, names: &[&str]) -> Option<String> {
    let city = arguments["city"].as_str().map(|city| city.chars().count());
    let unit = arguments["unit"] == "celsius" || arguments["unit"] == "fahrenheit";
    let days = arguments.get("days").is_none_or(|days| days.as_u64().is_some_and(|n| (1..10).contains(&n)));
    let named = name.as_str().is_some_and(|name| names.contains(&name));
    let sound = named && unit && days && city.is_some_and(|n| (1..13).contains(&n));
    (!sound).then(|| format!("{name} {arguments}"))
}

/// Checks the calls of a chat answer.
fn check(answer: &Value, names: &[&str]) {
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
    for call in calls {
        let arguments = call["function"]["arguments"].as_str().expect("text");
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{arguments}: {e}"));
        assert_eq!(fault(&call["function"]["name"], &arguments, names), None);
    }
}

/// Everything of a choice but the calls' ids.
fn essence(answer: &Value) -> Value {
    let mut choices = answer["choices"].clone();
    for choice in choices.as_array_mut().into_iter().flatten() {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            call["id"] = Value::Null;
        }
    }
    choices
}

#[test]
fn forced_calls_are_whole_and_the_same_with_drafts() {
    for pair in [GEMMA, QWEN] {
        let server = server(pair);
        for (choice, names) in [
            (json!("required"), vec!["weather", "forecast"]),
            (json!({ "type": "function", "function": { "name": "forecast" } }), vec!["forecast"]),
            (
                json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [
                { "type": "function", "function": { "name": "weather" } }] } }),
                vec!["weather"],
            ),
        ] {
            for seed in 0..3 {
                let temperature = [0.0, 0.7, 1.3][seed];
                let asked = json!({ "tool_choice": choice, "parallel_tool_calls": false, "temperature": temperature, "seed": seed });
                let ask = |speculative: Value| {
                    server.post(CHAT, &chat(&with(asked.clone(), &json!({ "speculative": speculative }))))
                };
                let (status, plain) = ask(json!("off"));
                assert_eq!(status, 200, "{plain}");
                check(&plain, &names);
                assert_eq!(plain["choices"][0]["message"]["content"], Value::Null, "{plain}");
                for k in [2, 8] {
                    let (_, wide) = ask(json!({ "block_size": k }));
                    assert_eq!(essence(&wide), essence(&plain), "K={k}");
                    let timings = &wide["timings"];
                    assert!(timings["draft_n"].as_u64() > Some(0), "{timings}");
                    let depths = timings["draft_accepted_by_depth"].as_array().cloned().unwrap_or_default();
                    let sum: u64 = depths.iter().filter_map(Value::as_u64).sum();
                    assert_eq!(Some(sum), timings["draft_n_accepted"].as_u64(), "{timings}");
                    assert!(depths.len() < k && timings["draft_block_size"] == k, "{timings}");
                }
            }
        }
        let streamed = chat(&json!({ "tool_choice": "required", "parallel_tool_calls": false, "stream": true }));
        let chunks = server.events(CHAT, &streamed);
        let deltas =
            || chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0]["function"].as_object());
        let text: String = deltas().filter_map(|function| function["arguments"].as_str()).collect();
        let arguments: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let name = deltas().find_map(|function| function.get("name")).expect("a name");
        assert_eq!(fault(name, &arguments, &["weather", "forecast"]), None);
        // Without being forced, this demo says something else.
        let (_, free) = server.post(CHAT, &chat(&json!({ "messages": [{ "role": "user", "content": "Hello" }] })));
        assert_ne!(free["choices"][0]["finish_reason"], "tool_calls", "{free}");
    }
}

#[test]
fn forced_calls_of_the_other_dialects() {
    for pair in [GEMMA, QWEN] {
        let server = server(pair);
        let tool = json!({ "name": "weather", "input_schema": parameters() });
        let message = |choice: Value| {
            let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 200, "temperature": 0,
                "tools": [tool], "tool_choice": choice });
            server.post("/v1/messages", &body)
        };
        for choice in
            [json!({ "type": "any", "disable_parallel_tool_use": true }), json!({ "type": "tool", "name": "weather" })]
        {
            let (status, answer) = message(choice);
            assert_eq!((status, &answer["stop_reason"]), (200, &json!("tool_use")), "{answer}");
            let blocks = answer["content"].as_array().expect("blocks");
            assert_eq!(blocks.len(), 1, "{answer}");
            assert_eq!(fault(&blocks[0]["name"], &blocks[0]["input"], &["weather"]), None);
        }
        for kind in ["auto", "none"] {
            let (status, answer) = message(json!({ "type": kind }));
            assert!(status == 200 && answer["stop_reason"] != "tool_use", "{answer}");
        }
        let tools = [with(json!({ "type": "function" }), &json!({ "name": "weather", "parameters": parameters() }))];
        for choice in [
            json!("required"),
            json!({ "type": "function", "name": "weather" }),
            json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "weather" }] }),
        ] {
            let body = json!({ "input": "Hello", "tools": tools, "tool_choice": choice, "parallel_tool_calls": false,
                "temperature": 0, "max_output_tokens": 200 });
            let (status, answer) = server.post("/v1/responses", &body);
            let item = &answer["output"][0];
            assert_eq!((status, &item["type"]), (200, &json!("function_call")), "{answer}");
            let arguments: Value = serde_json::from_str(item["arguments"].as_str().expect("text")).expect("JSON");
            assert_eq!(fault(&item["name"], &arguments, &["weather"]), None);
            assert_eq!((&answer["status"], &answer["tool_choice"]), (&json!("completed"), &choice), "{answer}");
        }
    }
}

#[test]
fn one_call_at_most_ends_the_answer_with_it() {
    let server = server(QWEN);
    let (_, free) = server.post(CHAT, &chat(&json!({})));
    let (_, one) = server.post(CHAT, &chat(&json!({ "parallel_tool_calls": false })));
    assert_eq!(one["choices"][0]["finish_reason"], "tool_calls", "{one}");
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(1), "{one}");
    let function = |answer: &Value| answer["choices"][0]["message"]["tool_calls"][0]["function"].clone();
    assert_eq!(function(&one), function(&free));
    assert!(one["usage"]["completion_tokens"].as_u64() <= free["usage"]["completion_tokens"].as_u64());
}

#[test]
fn choices_that_cannot_be_kept_to_are_refused() {
    let qwen = server(QWEN);
    let unwritable = json!({ "type": "function", "function": { "name": "f", "parameters": {
        "type": "object", "properties": { "a>b": {} }, "required": ["a>b"] } } });
    for (extra, param, words) in [
        (json!({ "tool_choice": { "type": "function", "function": { "name": "nowhere" } } }), "tool_choice", "nowhere"),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [
            { "type": "function", "function": { "name": "nowhere" } }] } } }),
            "tool_choice",
            "nowhere",
        ),
        (json!({ "tool_choice": "required", "grammar": "root ::= \"a\"" }), "tool_choice", "grammar"),
        (json!({ "tool_choice": "required", "tools": [unwritable] }), "tools", "a>b"),
        (json!({ "tool_choice": "required", "tools": [] }), "tool_choice", "at least one tool"),
    ] {
        let (status, error) = qwen.post(CHAT, &chat(&extra));
        assert_eq!((status, error["error"]["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
    }
    let plain = Server::start(Setup { parser: Some(ParserKind::PLAIN), ..Setup::default() });
    let (status, error) = plain.post(CHAT, &chat(&json!({ "tool_choice": "required" })));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tool_choice")), "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains("no form of calls")), "{error}");
    assert_eq!(plain.post(CHAT, &chat(&json!({ "max_tokens": 4 }))).0, 200, "they may be offered");
}

#[test]
fn a_form_begins_behind_thoughts() {
    let server = server(QWEN);
    let schema = json!({ "type": "object", "additionalProperties": false, "required": ["sky"],
        "properties": { "sky": { "enum": ["blue", "grey"] } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "sky", "schema": schema } });
    let thinking = json!({ "chat_template_kwargs": { "enable_thinking": true }, "tools": [], "max_tokens": 300 });
    let (_, free) = server.post(CHAT, &chat(&with(thinking.clone(), &json!({ "max_tokens": 12 }))));
    let thoughts = free["choices"][0]["message"]["reasoning_content"].as_str().expect("thoughts").to_string();
    let forced = json!({ "tools": [tool("weather")], "tool_choice": "required", "parallel_tool_calls": false });
    for form in [json!({ "response_format": format }), json!({ "grammar": "root ::= \"yes\" | \"no\"" }), forced] {
        let ask = |speculative: Value, seed: u64| {
            let sampling =
                json!({ "speculative": speculative, "seed": seed, "temperature": if seed == 0 { 0.0 } else { 0.6 } });
            server.post(CHAT, &chat(&with(with(thinking.clone(), &form), &sampling)))
        };
        for seed in 0..2 {
            let (status, plain) = ask(json!("off"), seed);
            assert_eq!(status, 200, "{plain}");
            let message = &plain["choices"][0]["message"];
            let thought = message["reasoning_content"].as_str().unwrap_or_else(|| panic!("{plain}"));
            if seed == 0 {
                assert!(thought.starts_with(thoughts.trim_end()), "the thoughts are those without a form: {thought}");
            }
            if plain["choices"][0]["finish_reason"] != "length" {
                let said = message["content"].as_str().unwrap_or_default();
                match &form {
                    form if form["response_format"].is_object() => {
                        let sky: Value = serde_json::from_str(said).unwrap_or_else(|e| panic!("{said:?}: {e}"));
                        assert!(sky["sky"] == "blue" || sky["sky"] == "grey", "{said}");
                    }
                    form if form["grammar"].is_string() => assert!(said == "yes" || said == "no", "{said:?}"),
                    _ => check(&plain, &["weather"]),
                }
            } else {
                assert!(seed > 0, "{plain}");
            }
            let (_, wide) = ask(json!({ "block_size": 4 }), seed);
            assert_eq!(essence(&wide), essence(&plain));
            assert!(wide["timings"]["draft_n_accepted"].as_u64() > Some(0), "{}", wide["timings"]);
        }
    }
    // What ends within thoughts is cut, and says nothing.
    let cut = with(thinking, &json!({ "response_format": format, "max_tokens": 3 }));
    let (_, cut) = server.post(CHAT, &chat(&cut));
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], &cut["choices"][0]["message"]["content"]),
        (&json!("length"), &json!(""))
    );
}

/// The prompt of an answer that the client began is what the template prints of it, up to where it ends: a completion of that text
/// says the same.
#[test]
fn an_answer_that_the_client_began_is_continued() {
    for pair in [GEMMA, QWEN] {
        let server = server(pair);
        for begun in ["Speculative decoding is", "  In short, a draft", "<think", "|>", "m"] {
            let messages = json!([{ "role": "user", "content": "What is it?" }, { "role": "assistant", "content": "A way." },
                { "role": "user", "content": "Explain." }, { "role": "assistant", "content": begun }]);
            let template = json!({ "messages": messages, "add_generation_prompt": false });
            let whole = server.post("/apply-template", &template).1["prompt"].as_str().expect("a prompt").to_string();
            let prompt = whole.strip_suffix("<|im_end|>\n").or(whole.strip_suffix("<turn|>\n")).expect("a turn");
            assert!(prompt.ends_with(begun.trim_start()), "{prompt:?}");
            let completion = json!({ "prompt": prompt, "max_tokens": 16, "temperature": 0 });
            let (_, expected) = server.post("/v1/completions", &completion);
            for speculative in [json!("off"), json!({ "block_size": 4 })] {
                let body =
                    json!({ "messages": messages, "max_tokens": 16, "temperature": 0, "speculative": speculative });
                let (status, answer) = server.post(CHAT, &body);
                assert_eq!(status, 200, "{answer}");
                assert_eq!(answer["usage"]["prompt_tokens"], expected["usage"]["prompt_tokens"], "{prompt:?}");
                assert_eq!(answer["choices"][0]["message"]["content"], expected["choices"][0]["text"], "{prompt:?}");
                let (_, message) = server.post("/v1/messages", &body);
                let said = message["content"][0]["text"].as_str().unwrap_or_default();
                assert_eq!(said, expected["choices"][0]["text"], "{message}");
            }
            let count = json!({ "messages": messages });
            let (_, count) = server.post("/v1/messages/count_tokens", &count);
            assert_eq!(count["input_tokens"], expected["usage"]["prompt_tokens"]);
        }
    }
}

#[test]
fn answers_that_cannot_be_continued_are_refused() {
    let server = server(QWEN);
    let (user, said) = (json!({ "role": "user", "content": "Hi" }), json!({ "role": "assistant", "content": "Well" }));
    let call = json!({ "role": "assistant", "tool_calls": [{ "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{}" } }] });
    let thinking = json!({ "enable_thinking": true });
    for (messages, extra, param) in [
        (json!([user, said, said]), json!({}), "messages[2].role"),
        (json!([user, call]), json!({}), "messages[1].tool_calls"),
        (json!([user, said]), json!({ "chat_template_kwargs": thinking }), "messages[1].role"),
        (json!([user, said]), json!({ "reasoning_effort": "high" }), "messages[1].role"),
    ] {
        let (status, error) = server.post(CHAT, &chat(&with(json!({ "messages": messages }), &extra)));
        assert_eq!((status, error["error"]["param"].as_str()), (400, Some(param)), "{error}");
    }
    let trailing = json!([user, { "role": "assistant", "content": "Well " }]);
    let (status, error) = server.post("/v1/messages", &json!({ "messages": trailing, "max_tokens": 4 }));
    assert!(status == 400 && error["error"]["message"].as_str().is_some_and(|m| m.contains("white space")), "{error}");
    let enabled = json!({ "messages": [user, said], "max_tokens": 2000, "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    assert_eq!(server.post("/v1/messages", &enabled).0, 400);
}

/// The twin: calls that break their schema would be seen.
#[test]
fn wrong_calls_are_seen() {
    let good = json!({ "city": "Ulm", "unit": "celsius" });
    assert_eq!(fault(&json!("weather"), &good, &["weather"]), None);
    for (name, wrong) in [
        ("other", good.clone()),
        ("weather", json!({ "city": "Ulm" })),
        ("weather", json!({ "city": "Ulm", "unit": "kelvin" })),
        ("weather", json!({ "city": "A city of many letters", "unit": "celsius" })),
        ("weather", json!({ "city": "Ulm", "unit": "celsius", "days": "three" })),
    ] {
        assert!(fault(&json!(name), &wrong, &["weather"]).is_some(), "{wrong}");
    }
}
