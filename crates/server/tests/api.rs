//! What clients get from each route.

mod common;

use std::time::Duration;

use common::{Server, Setup};
use mlxcel_server::Options;
use serde_json::{Value, json};

fn chat(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What is speculative decoding?" }],
        "temperature": 0, "max_tokens": 40,
    });
    if let Value::Object(extra) = extra {
        body.as_object_mut().expect("an object").extend(extra);
    }
    body
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_chat_is_answered_the_same_whole_and_in_pieces_with_and_without_drafts() {
    let server = Server::start(Setup::default());
    let (status, plain) =
        server.post(CHAT, &chat(json!({ "speculative": "off", "logprobs": true, "top_logprobs": 2 })));
    assert_eq!(status, 200, "{plain}");
    let said = &plain["choices"][0]["message"]["content"];
    assert!(said.as_str().is_some_and(|text| text.contains("draft model")), "{plain}");
    assert_eq!((&plain["usage"]["completion_tokens"], &plain["timings"]["draft_n"]), (&json!(40), &json!(0)));
    assert_eq!(plain["choices"][0]["finish_reason"], "length");
    assert_eq!(plain["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(40));
    for k in [2, 4, 8] {
        let asked = json!({ "speculative": { "block_size": k }, "logprobs": true, "top_logprobs": 2 });
        let (_, wide) = server.post(CHAT, &chat(asked.clone()));
        assert_eq!(wide["choices"], plain["choices"], "K={k}");
        assert!(wide["timings"]["draft_n_accepted"].as_u64() > Some(10), "{}", wide["timings"]);
        let mut streamed = asked;
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({ "include_usage": true });
        let chunks = server.events(CHAT, &chat(streamed));
        let texts = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
        assert_eq!(&json!(texts.collect::<String>()), said);
        let probs: Vec<Value> = chunks
            .iter()
            .filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(probs), plain["choices"][0]["logprobs"]["content"]);
        let last = chunks.last().expect("chunks");
        assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(40)));
        let ends: Vec<&Value> =
            chunks.iter().map(|c| &c["choices"][0]["finish_reason"]).filter(|r| r.is_string()).collect();
        assert_eq!(ends, [&json!("length")]);
    }
}

#[test]
fn timings_come_with_every_piece_where_they_are_asked_for() {
    let server = Server::start(Setup::default());
    let text = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 40 });
    for (path, body) in [(CHAT, chat(json!({}))), ("/v1/completions", text)] {
        let ask = |timed: bool| {
            let mut body = body.clone();
            body["speculative"] = json!({ "block_size": 4 });
            (body["stream"], body["timings_per_token"]) = (json!(true), json!(timed));
            server.events(path, &body)
        };
        let counts = |chunks: &[Value]| -> Vec<u64> {
            chunks.iter().filter_map(|chunk| chunk["timings"]["predicted_n"].as_u64()).collect()
        };
        let chunks = ask(true);
        let seen = counts(&chunks);
        assert!(seen.len() >= chunks.len() - 1 && seen.is_sorted() && seen.len() > 10, "{path}: {seen:?}");
        assert_eq!(seen.last(), Some(&40), "{path}");
        let prompt = |chunk: &Value| chunk["timings"]["prompt_n"].as_u64().zip(chunk["timings"]["cache_n"].as_u64());
        let half = &chunks[chunks.len() / 2];
        assert!(prompt(half).is_some() && prompt(half) == chunks.last().and_then(prompt), "{half}");
        assert!(half["timings"]["predicted_per_second"].as_f64() > Some(0.0), "{half}");
        assert!(half["timings"]["draft_n"].as_u64() >= half["timings"]["draft_rounds"].as_u64(), "{half}");
        assert_eq!(counts(&ask(false)), [40], "{path}: only the last without");
    }
}

#[test]
fn several_answers_have_seeds_of_their_own() {
    let server = Server::start(Setup::default());
    let body = json!({ "n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 12 });
    let (status, answer) = server.post(CHAT, &chat(body.clone()));
    assert_eq!(status, 200, "{answer}");
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 3);
    assert_eq!(server.post(CHAT, &chat(body)).1["choices"], answer["choices"], "the same seed, the same answers");
    let (_, second) = server.post(CHAT, &chat(json!({ "temperature": 1.0, "seed": 6, "max_tokens": 12 })));
    assert_eq!(second["choices"][0]["message"], choices[1]["message"]);
    assert_eq!(answer["usage"]["prompt_tokens"], second["usage"]["prompt_tokens"], "the prompt counts once");
}

#[test]
fn completions_continue_text() {
    let server = Server::start(Setup::default());
    let body = json!({ "prompt": ["Once upon a time", "The numbers are: 1, 2, 3,"], "max_tokens": 8, "temperature": 0, "logprobs": 1 });
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    let (_, one) = server.post(
        "/v1/completions",
        &json!({ "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "echo": true }),
    );
    let text = one["choices"][0]["text"].as_str().expect("text");
    assert_eq!(text, format!("Once upon a time{}", answer["choices"][0]["text"].as_str().expect("text")));
    let list = &answer["choices"][0]["logprobs"];
    assert_eq!(list["tokens"].as_array().map(Vec::len), Some(8));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let pieces = server.events("/v1/completions", &streamed);
    for index in 0..2 {
        let own = pieces.iter().filter(|p| p["choices"][0]["index"] == index);
        let text: String = own.filter_map(|p| p["choices"][0]["text"].as_str()).collect();
        assert_eq!(json!(text), answer["choices"][index]["text"]);
    }
}

#[test]
fn messages_speak_anthropics_dialect() {
    let server = Server::start(Setup::default());
    let body = json!({
        "model": "alias", "max_tokens": 30, "temperature": 0,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "What is speculative decoding?" }] }],
    });
    let (status, answer) = server.post("/v1/messages", &body);
    assert_eq!(status, 200, "{answer}");
    let (_, chat) = server.post(CHAT, &chat(json!({ "max_tokens": 30 })));
    assert_eq!(answer["content"], json!([{ "type": "text", "text": chat["choices"][0]["message"]["content"] }]));
    assert_eq!((&answer["stop_reason"], &answer["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(30)));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = server.events("/v1/messages", &streamed);
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    assert_eq!((kinds[0], kinds[1]), ("message_start", "content_block_start"));
    assert_eq!(&kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let text: String = events.iter().filter_map(|e| e["delta"]["text"].as_str()).collect();
    assert_eq!(json!(text), answer["content"][0]["text"]);
    let (_, count) =
        server.post("/v1/messages/count_tokens", &json!({ "model": "alias", "messages": body["messages"] }));
    let usage = &answer["usage"];
    let prompt = usage["input_tokens"].as_u64().expect("n") + usage["cache_read_input_tokens"].as_u64().expect("n");
    assert_eq!(count["input_tokens"], prompt);
    let (status, error) = server.post("/v1/messages", &json!({ "messages": [] }));
    assert_eq!((status, &error["type"]), (400, &json!("error")));
}

#[test]
fn the_server_tells_about_itself() {
    let server = Server::start(Setup::default());
    let (status, page) = server.get("/");
    assert!(status == 200 && page.contains("<html"), "{page}");
    assert_eq!((server.get("/page/main.js").0, server.get("/page/other.js").0), (200, 404));
    let (_, models) = server.get("/v1/models");
    assert!(models.contains("gemma-4-tiny-it-4bit") && models.contains("\"alias\""), "{models}");
    assert_eq!(server.get("/v1/models/alias").0, 200);
    assert_eq!(server.get("/v1/models/other").0, 404);
    let (_, tokens) = server.post("/tokenize", &json!({ "content": "Hello world", "with_pieces": true }));
    let ids: Vec<&Value> = tokens["tokens"].as_array().expect("tokens").iter().map(|t| &t["id"]).collect();
    assert_eq!(server.post("/detokenize", &json!({ "tokens": ids })).1["content"], "Hello world");
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [4_000_000] })).0, 400);
    let conversation = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let (_, prompt) = server.post("/apply-template", &conversation);
    assert_eq!(prompt["prompt"], "<bos><|turn>user\nHi<turn|>\n<|turn>model\n");
    let (_, props) = server.get("/props");
    assert!(props.contains("\"enabled\":true") && props.contains("\"total_slots\":4"), "{props}");
    assert!(server.get("/v1/internal/mtp-policy").1.contains("\"adaptive\":true"));
    server.post(CHAT, &chat(json!({ "speculative": { "block_size": 4 } })));
    let (_, metrics) = server.get("/metrics");
    let value = |name: &str| -> f64 {
        let line =
            metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} not in {metrics}"));
        line.rsplit(' ').next().and_then(|v| v.parse().ok()).expect("a number")
    };
    let (drafted, accepted) =
        (value("mlxcel_spec_decode_num_draft_tokens_total"), value("mlxcel_spec_decode_num_accepted_tokens_total"));
    assert!(drafted >= accepted && accepted > 0.0 && value("mlxcel_spec_decode_num_drafts_total") > 0.0);
    assert_eq!(value("mlxcel_time_to_first_token_seconds_count"), 1.0);
    let slots: Value = serde_json::from_str(&server.get("/slots").1).expect("JSON");
    assert!(slots.as_array().expect("slots").iter().all(|slot| slot["is_processing"] == false));
}

#[test]
fn prompts_that_come_again_are_found_and_answered_the_same() {
    let server = Server::start(Setup::default());
    let prompt = "Once upon a time, there was a little fox named Nora. ".repeat(12);
    let body = json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2 });
    let (_, cold) = server.post("/v1/completions", &body);
    let (_, warm) = server.post("/v1/completions", &body);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached(&cold) == 0 && cached(&warm) >= 64, "{} {}", cold["usage"], warm["usage"]);
    assert_eq!(warm["choices"], cold["choices"]);
    let mut fresh = body;
    fresh["cache_prompt"] = json!(false);
    let (_, fresh) = server.post("/v1/completions", &fresh);
    assert_eq!((cached(&fresh), &fresh["choices"]), (0, &cold["choices"]));
    assert!(
        server
            .get("/metrics")
            .1
            .lines()
            .any(|l| l.starts_with("mlxcel_prefix_cache_hit_tokens_total ") && !l.ends_with(" 0"))
    );
}

#[test]
fn constrained_text_is_the_same_with_drafts_and_keeps_its_form() {
    let server = Server::start(Setup::default());
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": { "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer", "minimum": 0, "maximum": 99 } },
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema } });
    let ask = |speculative: Value, seed: u64| {
        let extra = json!({ "response_format": format, "speculative": speculative, "temperature": 0.7, "seed": seed, "max_tokens": 60 });
        server.post(CHAT, &chat(extra))
    };
    for seed in 0..4 {
        let (status, plain) = ask(json!("off"), seed);
        assert_eq!(status, 200, "{plain}");
        let text = plain["choices"][0]["message"]["content"].as_str().expect("text");
        let person: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(person["name"].is_string() && person["age"].as_u64() < Some(100), "{person}");
        for k in [2, 8] {
            assert_eq!(ask(json!({ "block_size": k }), seed).1["choices"], plain["choices"]);
        }
    }
    let (_, free) = server.post(CHAT, &chat(json!({})));
    let text = free["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(serde_json::from_str::<Value>(text).is_err(), "without a schema it says what it likes");
    for (name, value) in [
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": { "type": 7 } } })),
        ("grammar", json!("root ::= \"a\" nowhere")),
    ] {
        let mut body = chat(json!({}));
        body[name] = value;
        let (status, error) = server.post(CHAT, &body);
        let param = error["error"]["param"].as_str().unwrap_or_default();
        assert!(status == 400 && param.starts_with(name), "{error}");
    }
    let yes = json!({ "prompt": "Is it? ", "grammar": "root ::= \"yes\" | \"no\"", "max_tokens": 8 });
    let (_, answer) = server.post("/v1/completions", &yes);
    assert!(["yes", "no"].contains(&answer["choices"][0]["text"].as_str().expect("text")), "{answer}");
}

#[test]
fn bad_requests_are_the_clients_fault_and_name_the_field() {
    let server = Server::start(Setup { context: 256, ..Setup::default() });
    for (path, body, status, param) in [
        (CHAT, json!({ "messages": {} }), 400, "messages"),
        (CHAT, json!({ "messages": [] }), 400, "messages"),
        (CHAT, chat(json!({ "temperature": -1 })), 400, "temperature"),
        (CHAT, chat(json!({ "model": "other" })), 404, "model"),
        (CHAT, chat(json!({ "speculative": { "block_size": 99 } })), 400, "speculative.block_size"),
        (CHAT, chat(json!({ "logit_bias": { "99999999": 1 } })), 400, "logit_bias"),
        (CHAT, chat(json!({ "no_such_field": 1 })), 400, "no_such_field"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": "long ".repeat(400) }] }), 400, "messages"),
        ("/v1/completions", json!({ "prompt": [4_000_000] }), 400, "prompt"),
    ] {
        let (found, error) = server.post(path, &body);
        assert_eq!((found, error["error"]["param"].as_str()), (status, Some(param)), "{body}: {error}");
    }
    let (status, error) =
        server.post(CHAT, &json!({ "messages": [{ "role": "user", "content": "long ".repeat(400) }] }));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(server.call("POST", CHAT, "", b"{\"messages\": [").0, 400);
    assert_eq!(server.call("GET", CHAT, "", b"").0, 405);
    assert_eq!(server.get("/nowhere").0, 404);
    assert_eq!(server.post(CHAT, &chat(json!({}))).0, 200, "and it goes on");
}

#[test]
fn keys_and_sizes_are_checked() {
    let options = Options { api_keys: vec!["secret".into(), "other".into()], max_body: 10_000, ..Options::default() };
    let server = Server::start(Setup { options, ..Setup::default() });
    let body = chat(json!({ "max_tokens": 2 })).to_string();
    let with = |header: &str| server.call("POST", CHAT, header, body.as_bytes());
    assert_eq!(with("").0, 401);
    assert_eq!(with("authorization: Bearer wrong\r\n").0, 401);
    assert_eq!(with("authorization: Bearer secre\r\n").0, 401);
    assert_eq!(with("authorization: Bearer other\r\n").0, 200);
    assert_eq!(with("x-api-key: secret\r\n").0, 200);
    assert_eq!(server.get("/health").0, 200, "whoever watches has no key");
    assert_eq!(server.get("/metrics").0, 401);
    let large = chat(json!({ "user": "x".repeat(20_000) })).to_string();
    assert_eq!(server.call("POST", CHAT, "x-api-key: secret\r\n", large.as_bytes()).0, 413);
}

#[test]
fn loading_and_dead_engines_are_said_to_be_so() {
    let server = Server::begin(Setup { delay: Duration::from_millis(700), ..Setup::default() });
    assert_eq!(server.get("/health").0, 503);
    let (status, error) = server.post(CHAT, &chat(json!({})));
    assert!(status == 503 && error["error"]["message"].as_str().is_some_and(|m| m.contains("loaded")), "{error}");
    let broken = Server::begin(Setup { broken: true, ..Setup::default() });
    std::thread::sleep(Duration::from_millis(200));
    let (status, health) = broken.get("/health");
    assert!(status == 503 && health.contains("damaged"), "{health}");
}
