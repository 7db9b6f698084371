//! Any body at all gives a request or a 400 that names a parameter: never a panic, never another status.

mod common;

use mlxcel_protocol::anthropic::{CountTokensRequest, MessagesRequest};
use mlxcel_protocol::native::{ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest};
use mlxcel_protocol::openai::responses::ResponsesRequest;
use mlxcel_protocol::openai::{ChatRequest, CompletionRequest};
use mlxcel_protocol::{ApiError, MAX_DEPTH, Request};
use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Decodes `body` as `T`; what is accepted must survive being written and read again.
fn check<T: Request + Serialize + PartialEq + std::fmt::Debug>(body: &[u8]) -> Result<(), ApiError> {
    let request = T::from_bytes(body)?;
    let written = serde_json::to_vec(&request).expect("requests are JSON");
    let again = T::from_bytes(&written);
    assert_eq!(again.as_ref(), Ok(&request), "{}", String::from_utf8_lossy(&written));
    Ok(())
}

type Check = fn(&[u8]) -> Result<(), ApiError>;

const ROUTES: [Check; 8] = [
    check::<ChatRequest>,
    check::<CompletionRequest>,
    check::<ResponsesRequest>,
    check::<MessagesRequest>,
    check::<CountTokensRequest>,
    check::<TokenizeRequest>,
    check::<DetokenizeRequest>,
    check::<ApplyTemplateRequest>,
];

/// A body for each route that uses most of its fields.
fn seeds() -> [Value; 8] {
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"}
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let chat = json!({"model": "m", "messages": messages, "tools": tools, "tool_choice": "auto", "stream": true,
        "stream_options": {"include_usage": true}, "max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 5,
        "min_p": 0.1, "seed": 1, "n": 1, "stop": ["a"], "logprobs": true, "top_logprobs": 2, "logit_bias": {"1": 1},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        "speculative": {"block_size": 4}, "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low", "user": "u"});
    let completion = json!({"prompt": ["a", "b"], "max_tokens": 5, "echo": true, "logprobs": 2, "stop": "x", "best_of": 1,
        "suffix": null, "stream": false, "seed": 3});
    let responses = json!({"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "t", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"}
    ], "instructions": "i", "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "reasoning": {"effort": "low"},
        "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}, "truncation": "disabled"});
    let anthropic = json!({"model": "m", "max_tokens": 50, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "t"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}], "is_error": false}]}
    ], "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 20},
        "stop_sequences": ["x"], "temperature": 1, "top_k": 3, "output_config": {"format": {"type": "json_schema", "schema": {}}, "effort": "max"}});
    let mut count = anthropic.clone();
    for name in ["max_tokens", "stop_sequences", "temperature", "top_k"] {
        count.as_object_mut().expect("an object").remove(name);
    }
    [
        chat.clone(),
        completion,
        responses,
        anthropic,
        count,
        json!({"content": "c", "add_special": true, "parse_special": false, "with_pieces": true}),
        json!({"tokens": [1, 2]}),
        json!({"messages": chat["messages"], "tools": chat["tools"], "add_generation_prompt": false}),
    ]
}

/// Whether a refusal says all it must.
fn well_formed(error: &ApiError) {
    assert_eq!(error.status(), 400, "{error}");
    let place = error.param.as_deref().unwrap_or("request body");
    assert!(error.message.starts_with(&format!("{place}: expected ")), "{error:?}");
    assert!(error.message.contains("found"), "{error:?}");
    assert!(error.message.len() < 1000, "{error:?}");
    assert!(!error.message.contains(char::is_control), "{error:?}");
}

/// A request that forgets what it read.
#[derive(Debug, PartialEq, Serialize)]
struct Lossy {
    #[serde(skip)]
    prompt: Value,
}

impl Request for Lossy {
    fn from_json(body: Value) -> Result<Self, ApiError> {
        Ok(Lossy { prompt: body["prompt"].clone() })
    }
}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn a_request_that_forgets_is_noticed() {
    let _ = check::<Lossy>(br#"{"prompt": "a"}"#);
}

#[test]
#[should_panic(expected = "request body: expected 1")]
fn a_refusal_that_does_not_say_where_is_noticed() {
    well_formed(&ApiError { param: Some("n".into()), ..ApiError::parameter("", "expected 1, found 2") });
}

/// One of each JSON type, and the values that break naive readers.
fn oddities() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x\u{0}\u{1b}"),
        json!([]),
        json!([[]]),
        json!([null]),
        json!({}),
        json!({"": null}),
        json!({"type": "text"}),
        json!({"type": 7}),
    ]
}

/// Paths of all values in `value`, as JSON pointers.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(i, item)| pointers(item, &format!("{at}/{i}"), out)),
        Value::Object(fields) => fields.iter().for_each(|(name, item)| pointers(item, &format!("{at}/{name}"), out)),
        _ => {}
    }
}

#[test]
fn the_seeds_are_accepted() {
    for (route, seed) in ROUTES.iter().zip(seeds()) {
        route(seed.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}\n{seed}"));
    }
}

#[test]
fn every_value_replaced_by_every_type() {
    let (mut refusals, mut total) = (0, 0);
    for (route, seed) in ROUTES.iter().zip(seeds()) {
        let mut all = Vec::new();
        pointers(&seed, "", &mut all);
        for pointer in &all {
            for odd in oddities() {
                let mut body = seed.clone();
                *body.pointer_mut(pointer).expect("a pointer into the seed") = odd;
                total += 1;
                if let Err(error) = route(body.to_string().as_bytes()) {
                    well_formed(&error);
                    refusals += 1;
                }
            }
        }
    }
    // The check can fail: most such bodies are wrong, and some are not.
    assert!(refusals * 10 > total * 5 && refusals < total, "{refusals} of {total}");
}

#[test]
fn a_field_refused_is_the_field_changed() {
    // A value of a type that its field never has is found where it is, not somewhere above.
    for (route, seed) in ROUTES.iter().zip(seeds()) {
        for (name, value) in seed.as_object().expect("an object") {
            let free = ["user", "metadata", "suffix", "chat_template_kwargs"].contains(&name.as_str());
            let odd = if value.is_object() || value.is_array() { json!(true) } else { json!([{}]) };
            let mut body = seed.clone();
            body[name] = odd;
            match route(body.to_string().as_bytes()) {
                Err(error) => assert!(error.param.expect("a field").starts_with(name.as_str()) || free, "{name}"),
                Ok(()) => assert!(free || name == "speculative", "{name} was accepted"),
            }
        }
    }
}

#[test]
fn bodies_cut_anywhere_are_no_json() {
    for (route, seed) in ROUTES.iter().zip(seeds()) {
        let text = seed.to_string();
        for end in 0..text.len() {
            let error = route(&text.as_bytes()[..end]).expect_err("half a body");
            assert_eq!((error.status(), error.code, error.param), (400, Some("invalid_json"), None));
        }
    }
}

#[test]
fn deep_and_large_bodies() {
    for route in ROUTES {
        for depth in [MAX_DEPTH + 1, 1000, 1_000_000] {
            for (open, close) in [("[", "]"), ("{\"messages\":", "}"), ("{\"input\":[", "]}")] {
                let body = format!("{}1{}", open.repeat(depth), close.repeat(depth));
                assert_eq!(route(body.as_bytes()).expect_err("too deep").code, Some("invalid_json"));
            }
        }
        let large = format!("{{\"{}\":\"{}\"}}", "k".repeat(100_000), "v".repeat(10_000_000));
        well_formed(&route(large.as_bytes()).expect_err("no such field"));
    }
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(10_000_000)}]});
    assert!(check::<ChatRequest>(long.to_string().as_bytes()).is_ok());
}

/// JSON that knows the words of the API.
fn any_json() -> impl Strategy<Value = Value> {
    let words =
        "role|content|messages|type|text|user|function|name|tools|input|prompt|stop|stream|model|[a-z]{0,3}|\\PC{0,4}";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((words, inner), 0..6).prop_map(|fields| Value::Object(Map::from_iter(fields))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_a_request_or_a_refusal(body in any_json()) {
        for route in ROUTES {
            if let Err(error) = route(body.to_string().as_bytes()) {
                well_formed(&error);
            }
        }
    }

    #[test]
    fn any_json_in_any_place_is_a_request_or_a_refusal(
        route in 0usize..8, place in any::<prop::sample::Index>(), value in any_json(), name in "[a-z_]{1,8}", add in any::<bool>(),
    ) {
        let mut body = seeds()[route].clone();
        let mut all = Vec::new();
        pointers(&body, "", &mut all);
        let target = body.pointer_mut(all[place.index(all.len())].as_str()).expect("a pointer into the seed");
        match target {
            Value::Object(fields) if add => { fields.insert(name, value); }
            _ => *target = value,
        }
        if let Err(error) = ROUTES[route](body.to_string().as_bytes()) {
            well_formed(&error);
        }
    }

    #[test]
    fn any_bytes_are_a_request_or_a_refusal(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for route in ROUTES {
            if let Err(error) = route(&body) {
                well_formed(&error);
            }
        }
    }
}
