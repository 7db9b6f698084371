//! Bodies of the wrong shape, empty ones, and failures that are the server's own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Server, Setup, models};
use crate::{CHAT, PAIRS, TEXT, ask, is_well, metric, question, serve, tokens};

#[test]
fn empty_prompts_begin_at_bos_or_are_refused() {
    // Gemma's tokenizer begins texts with BOS, Qwen's does not.
    for (pair, begins) in PAIRS.into_iter().zip([true, false]) {
        let server = serve(pair, Setup::default());
        for prompt in [json!(""), json!([""]), json!(["", ""])] {
            let (status, answer) = server.post(TEXT, &json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 }));
            assert_eq!(status, if begins { 200 } else { 400 }, "{} {prompt}: {answer}", pair.0);
            assert!(begins || answer["error"]["param"].as_str().is_some_and(|p| p.starts_with("prompt")), "{answer}");
        }
        for prompt in [json!([]), json!([[]]), json!(null), json!({}), json!(7), json!([null]), json!(["a", 1])] {
            let (status, answer) = server.post(TEXT, &json!({ "prompt": prompt, "max_tokens": 4 }));
            let param = answer["error"]["param"].as_str().unwrap_or_default();
            assert!(status == 400 && param.starts_with("prompt"), "{} {prompt}: {status} {answer}", pair.0);
        }
        is_well(&server);
    }
}

#[test]
fn empty_messages_are_answered_or_refused_at_once() {
    for pair in PAIRS {
        let server = serve(pair, Setup::default());
        for (messages, status) in [
            (json!([{ "role": "user", "content": "" }]), 200),
            (json!([{ "role": "user", "content": [] }]), 0),
            (json!([{ "role": "user", "content": [{ "type": "text", "text": "" }] }]), 200),
            (json!([{ "role": "user", "content": null }]), 400),
            (json!([{ "role": "user" }]), 400),
            (json!([]), 400),
            (json!(null), 400),
            (json!([null]), 400),
            (json!([{}]), 400),
            (json!({ "role": "user", "content": "Hi" }), 400),
            (json!("Hi"), 400),
        ] {
            let begun = Instant::now();
            let (found, answer) = server.post(CHAT, &json!({ "messages": messages, "max_tokens": 4 }));
            assert!(found == status || (status == 0 && [200, 400].contains(&found)), "{messages}: {found} {answer}");
            let param = answer["error"]["param"].as_str().unwrap_or("messages");
            assert!(param.starts_with("messages"), "{messages}: {answer}");
            assert!(begun.elapsed() < Duration::from_secs(1), "{messages}: {:?}", begun.elapsed());
        }
        is_well(&server);
    }
}

#[test]
fn broken_deep_and_large_bodies_are_refused() {
    let server = Server::start(Setup::default());
    let whole = question(json!({})).to_string();
    for end in 0..whole.len() {
        assert_eq!(server.call("POST", CHAT, "", &whole.as_bytes()[..end]).0, 400, "{}", &whole[..end]);
    }
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in [200, 5_000, 500_000] {
            for close in [close.repeat(depth), String::new()] {
                let value = format!("{}1{close}", open.repeat(depth));
                for body in [
                    value.clone(),
                    format!("{{\"messages\": {value}}}"),
                    format!("{{\"prompt\": \"a\", \"user\": {value}}}"),
                ] {
                    for path in [CHAT, TEXT, "/v1/responses", "/v1/messages", "/tokenize", "/apply-template"] {
                        let status = server.call("POST", path, "", body.as_bytes()).0;
                        assert_eq!(status, 400, "{depth} levels to {path}");
                    }
                }
            }
        }
    }
    // Ten megabytes are over the limit of eight; below it, they are too many tokens.
    for (megabytes, expected) in [(10, 413), (6, 400)] {
        let text = "word ".repeat(megabytes * 200_000);
        let begun = Instant::now();
        let (status, error) = server.post(CHAT, &json!({ "messages": [{ "role": "user", "content": text }] }));
        assert_eq!(status, expected, "{megabytes} MB: {}", error["error"]["code"]);
        println!("{megabytes} MB: {status} after {:?}", begun.elapsed());
    }
    is_well(&server);
}

#[test]
fn what_is_missing_is_404_and_nothing_else_is() {
    let server = Server::start(Setup::default());
    assert_eq!(server.post(CHAT, &question(json!({ "model": "other" }))).0, 404);
    assert_eq!((server.get("/v1/models/other").0, server.get("/nowhere").0), (404, 404));
    for (path, body, status) in [
        (CHAT, question(json!({ "temperature": 9 })), 400),
        (
            CHAT,
            question(
                json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": 7 } } } }),
            ),
            400,
        ),
        (CHAT, question(json!({ "system_prompt": "s" })), 400),
        (CHAT, question(json!({ "stop": [""] })), 400),
        (CHAT, question(json!({ "stop_token_ids": [4_000_000_000_u64] })), 200),
        (TEXT, tokens(2000, json!({})), 400),
        (TEXT, json!({ "prompt": [4_000_000] }), 400),
        ("/detokenize", json!({ "tokens": [4_000_000] }), 400),
    ] {
        let (found, answer) = server.post(path, &body);
        assert_eq!(found, status, "{path} {body}: {answer}");
        assert_eq!(server.post(CHAT, &question(json!({ "max_tokens": 1 }))).0, 200, "and it goes on");
    }
}

/// A schema whose compiler would call itself without end, and take the process along.
#[test]
fn the_smallest_integer_in_a_schema_is_refused() {
    let server = Server::start(Setup::default());
    for schema in
        [json!({ "const": i64::MIN }), json!({ "enum": ["a", i64::MIN] }), json!({ "items": { "const": [i64::MIN] } })]
    {
        let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
        let (status, error) = server.post(CHAT, &question(json!({ "response_format": format })));
        assert!(status == 400 && error["error"]["message"].as_str().is_some_and(|m| m.contains("-9e18")), "{error}");
    }
    let hidden = json!({ "grammar": format!("start: %json {{\"const\": {}}}", i64::MIN) });
    assert_eq!(server.post(CHAT, &question(hidden)).0, 400);
    is_well(&server);
}

/// A copy of the demo with NaN for a scale of layer 3.
fn damaged() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("damaged-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    for file in std::fs::read_dir(models().join(PAIRS[0].0)).expect("the demo").flatten() {
        std::fs::copy(file.path(), dir.join(file.file_name())).expect("copied");
    }
    let path = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let names: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let offset = names["language_model.model.layers.3.mlp.up_proj.scales"]["data_offsets"][0].as_u64();
    let at = 8 + header + offset.expect("a tensor") as usize;
    bytes[at..at + 2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    dir
}

/// Logits that are no numbers fail the request; they are not taken for token 0.
#[test]
fn nan_weights_are_an_error_and_a_metric() {
    let dir = damaged();
    let target: &'static str = Box::leak(dir.display().to_string().into_boxed_str());
    let server = Server::start(Setup { target, drafter: None, ..Setup::default() });
    let (status, error) = server.post(CHAT, &question(json!({})));
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 500 && message.contains("not finite"), "{status} {error}");
    assert_eq!(error["error"]["type"], "server_error");
    let (status, text) = server.call("POST", CHAT, "", question(json!({ "stream": true })).to_string().as_bytes());
    assert!(status == 200 && text.contains("not finite") && !text.contains("\"content\":\"!"), "{text}");
    let (status, error) =
        server.post("/v1/messages", &json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4 }));
    assert_eq!((status, &error["error"]["type"]), (500, &json!("api_error")), "{error}");
    assert_eq!(metric(&server, "mlxcel_non_finite_logits_total"), 3.0);
    assert_eq!(server.get("/health").0, 200, "the next request may be another's");
    drop(server);
    std::fs::remove_dir_all(dir).expect("removed");
    let whole = Server::start(Setup::default());
    ask(&whole, CHAT, &question(json!({})));
    assert_eq!(metric(&whole, "mlxcel_non_finite_logits_total"), 0.0);
}
