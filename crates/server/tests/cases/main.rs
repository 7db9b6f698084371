//! Small inputs that broke other engines, each as a test; docs/cases.md lists them and those that other suites cover.

#[path = "../common/mod.rs"]
mod common;

mod drafts;
mod limits;
mod shapes;
mod streams;
mod turns;

use common::{Server, Setup};
use serde_json::{Value, json};

/// Chats.
pub const CHAT: &str = "/v1/chat/completions";
/// Continued text.
pub const TEXT: &str = "/v1/completions";
/// What the demos can answer.
pub const QUESTION: &str = "What is speculative decoding?";

/// The demo pairs: the first has sliding windows, the second recurrent layers.
pub const PAIRS: [(&str, &str); 2] =
    [("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-4bit"), ("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit")];

/// A pair that is served.
pub fn serve(pair: (&'static str, &'static str), setup: Setup) -> Server {
    Server::start(Setup { target: pair.0, drafter: Some(pair.1), ..setup })
}

/// A greedy question with more fields, or others.
pub fn question(extra: Value) -> Value {
    with(json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 40 }), extra)
}

/// A greedy continuation of tokens with more fields, or others.
pub fn tokens(count: usize, extra: Value) -> Value {
    let prompt: Vec<usize> = (0..count).map(|i| 430 + i % 40).collect();
    with(json!({ "prompt": prompt, "temperature": 0, "max_tokens": 40 }), extra)
}

/// A body with more fields, or others.
pub fn with(mut body: Value, extra: Value) -> Value {
    if let Value::Object(extra) = extra {
        body.as_object_mut().expect("an object").extend(extra);
    }
    body
}

/// The answer to a request that is served.
pub fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{body}: {answer}");
    answer
}

/// Answers to bodies sent at the same time.
pub fn ask_all(server: &Server, path: &str, bodies: &[Value]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let calls: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(server, path, body))).collect();
        calls.into_iter().map(|call| call.join().expect("answered")).collect()
    })
}

/// A width as a request asks for it; 1 = no drafts.
pub fn width(k: usize) -> Value {
    if k == 1 { json!("off") } else { json!({ "block_size": k }) }
}

/// What drafts must not change: text, log-probabilities, finish reason, number of tokens.
pub fn essence(answer: &Value) -> Value {
    let usage = &answer["usage"];
    let reasoning = &usage["completion_tokens_details"]["reasoning_tokens"];
    json!([answer["choices"], usage["prompt_tokens"], usage["completion_tokens"], reasoning])
}

/// What a chat answer says.
pub fn said(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("text")
}

/// A number in an answer.
pub fn number(answer: &Value, place: &str) -> u64 {
    answer.pointer(place).and_then(Value::as_u64).unwrap_or_else(|| panic!("{place} in {answer}"))
}

/// The value of a metric.
pub fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").1;
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

/// The server is as it was: no slot busy, nothing waiting, no page held, and it answers.
pub fn is_well(server: &Server) {
    server.settle();
    for name in ["mlxcel_num_requests_running", "mlxcel_num_requests_waiting", "mlxcel_kv_pages_in_use"] {
        assert_eq!(metric(server, name), 0.0, "{name}");
    }
    let slots: Value = serde_json::from_str(&server.get("/slots").1).expect("JSON");
    assert!(slots.as_array().expect("slots").iter().all(|slot| slot["is_processing"] == false), "{slots}");
    ask(server, CHAT, &question(json!({ "max_tokens": 2 })));
}
