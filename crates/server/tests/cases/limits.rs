//! The end of the context and of `max_tokens`.

use serde_json::{Value, json};

use crate::common::{Server, Setup};
use crate::{CHAT, PAIRS, TEXT, ask, ask_all, essence, is_well, number, question, said, serve, tokens, width, with};

#[test]
fn a_prompt_over_the_context_is_no_empty_stream() {
    for pair in PAIRS {
        let server = serve(pair, Setup { context: 256, ..Setup::default() });
        for stream in [false, true] {
            for count in [256, 257, 1000] {
                let (status, error) = server.post(TEXT, &tokens(count, json!({ "stream": stream })));
                let error = &error["error"];
                assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{count}: {error}");
                assert!(error["message"].as_str().is_some_and(|m| m.contains(&count.to_string())), "{error}");
            }
        }
        let body = tokens(255, json!({ "ignore_eos": true }));
        let last = ask(&server, TEXT, &body);
        assert_eq!(
            (number(&last, "/usage/completion_tokens"), &last["choices"][0]["finish_reason"]),
            (1, &json!("length"))
        );
        let streamed = server.events(TEXT, &with(body, json!({ "stream": true })));
        let text: String = streamed.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(json!(text), last["choices"][0]["text"]);
        is_well(&server);
    }
}

#[test]
fn look_ahead_ends_with_the_context() {
    for pair in PAIRS {
        let server = serve(pair, Setup { context: 256, ..Setup::default() });
        let body = |k| {
            let more = json!({ "max_tokens": 1_000_000, "ignore_eos": true, "logprobs": 2, "speculative": width(k) });
            tokens(250, more)
        };
        let plain = ask(&server, TEXT, &body(1));
        assert_eq!(number(&plain, "/usage/completion_tokens"), 6);
        assert_eq!(plain["choices"][0]["finish_reason"], "length");
        for k in 2..=16 {
            assert_eq!(essence(&ask(&server, TEXT, &body(k))), essence(&plain), "K={k}");
        }
        let bodies: Vec<Value> = (1..=16).map(body).collect();
        for (k, answer) in (1..).zip(ask_all(&server, TEXT, &bodies)) {
            assert_eq!(essence(&answer), essence(&plain), "K={k}, sixteen at once");
        }
        is_well(&server);
    }
}

#[test]
fn large_max_tokens_are_all_the_room() {
    let server = Server::start(Setup { context: 256, ..Setup::default() });
    let (question, prompt) = (json!([{ "role": "user", "content": "Hi" }]), json!("Hi"));
    let routes = [
        (CHAT, "messages", &question, "max_tokens"),
        (CHAT, "messages", &question, "max_completion_tokens"),
        (TEXT, "prompt", &prompt, "max_tokens"),
        ("/v1/responses", "input", &prompt, "max_output_tokens"),
        ("/v1/messages", "messages", &question, "max_tokens"),
    ];
    let count = |answer: &Value| {
        let usage = &answer["usage"];
        let used = |a: &str, b: &str| usage[a].as_u64().or(usage[b].as_u64()).expect("a number");
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        (used("prompt_tokens", "input_tokens") + cached, used("completion_tokens", "output_tokens"))
    };
    for (path, field, value, name) in routes {
        let mut body = json!({ "temperature": 0 });
        body[field] = value.clone();
        if matches!(path, CHAT | TEXT) {
            body["ignore_eos"] = json!(true);
        }
        for most in ["11977", "2147483648", "9223372036854775808", "18446744073709551615"] {
            let text = format!("{}, \"{name}\": {most}}}", body.to_string().trim_end_matches('}'));
            let (status, text) = server.call("POST", path, "", text.as_bytes());
            assert_eq!(status, 200, "{path} {name} {most}: {text}");
            let answer: Value = serde_json::from_str(&text).expect("JSON");
            let (prompt, said) = count(&answer);
            assert!(said > 0 && prompt + said <= 256, "{path} {most}: {answer}");
            assert!(body.get("ignore_eos").is_none() || prompt + said == 256, "{path} {most}: {answer}");
        }
        for most in ["-1", "0", "1.5", "-9223372036854775809", "\"5\"", "true", "[5]", "{}", "1e999"] {
            let text = format!("{}, \"{name}\": {most}}}", body.to_string().trim_end_matches('}'));
            let (status, text) = server.call("POST", path, "", text.as_bytes());
            let error: Value = serde_json::from_str(&text).expect("JSON");
            let message = error["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 400, "{path} {name} {most}: {status} {text}");
            assert!(message.contains(name) || most == "1e999", "{path} {name} {most}: {text}");
        }
    }
    is_well(&server);
}

#[test]
fn no_more_than_max_tokens_and_no_draft_beyond() {
    for pair in PAIRS {
        let server = serve(pair, Setup::default());
        for most in [1, 2, 3, 7, 8, 9] {
            let body = |k| {
                question(json!({ "max_tokens": most, "logprobs": true, "ignore_eos": true, "speculative": width(k) }))
            };
            let plain = ask(&server, CHAT, &body(1));
            for k in [4, 8, 16] {
                let wide = ask(&server, CHAT, &body(k));
                assert_eq!(essence(&wide), essence(&plain), "K={k}, {most} tokens");
                assert_eq!(number(&wide, "/usage/completion_tokens"), most);
                let drafted = number(&wide, "/timings/draft_n");
                let rounds = number(&wide, "/timings/draft_rounds");
                // The first token is the prompt's, the last of a block the target's own: a round that could emit r drafts r-1 at most.
                assert!(drafted <= most.saturating_sub(2) * rounds.max(1), "K={k}, {most} tokens: {}", wide["timings"]);
            }
            assert_eq!(plain["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(most as usize));
        }
        let short = ask(&server, CHAT, &question(json!({ "max_tokens": 3, "speculative": width(8) })));
        assert!(number(&short, "/timings/draft_n") <= 1, "room for one draft, not seven: {}", short["timings"]);
    }
}

#[test]
fn a_stop_goes_before_the_length() {
    for pair in PAIRS {
        let server = serve(pair, Setup::default());
        let free = ask(&server, CHAT, &question(json!({ "logprobs": true, "speculative": "off" })));
        let list = free["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
        // The answer up to some token, and that token as the stop string.
        let at = (6..list.len()).find(|i| {
            let token = list[*i]["token"].as_str().expect("text");
            let before: String = list[..*i].iter().filter_map(|t| t["token"].as_str()).collect();
            token.len() > 2 && !before.contains(token)
        });
        let at = at.expect("a token that is new");
        let stop = list[at]["token"].clone();
        for more in 0..4 {
            for k in [1, 2, 6, 16] {
                let most = at + 1 + more;
                let body = json!({ "max_tokens": most, "stop": [stop], "logprobs": true, "speculative": width(k) });
                let answer = ask(&server, CHAT, &question(body));
                let what = format!("K={k}, {most} tokens: {answer}");
                assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{what}");
                assert_eq!(number(&answer, "/usage/completion_tokens") as usize, at + 1, "{what}");
                let kept = answer["choices"][0]["logprobs"]["content"].as_array().map(Vec::len);
                assert_eq!(kept, Some(at + 1), "{what}");
                assert!(
                    said(&free).starts_with(said(&answer)) && !said(&answer).contains(stop.as_str().expect("text"))
                );
            }
        }
        let cut = question(json!({ "max_tokens": at, "stop": [stop], "speculative": width(8) }));
        assert_eq!(ask(&server, CHAT, &cut)["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn no_more_thoughts_than_tokens() {
    let server = serve(PAIRS[1], Setup::default());
    let body = |i: usize| {
        question(json!({ "max_tokens": 64 - i % 3, "reasoning_effort": "high", "ignore_eos": i.is_multiple_of(2) }))
    };
    let bodies: Vec<Value> = (0..12).map(body).collect();
    for (body, answer) in bodies.iter().zip(ask_all(&server, CHAT, &bodies)) {
        let (thought, all) = (
            number(&answer, "/usage/completion_tokens_details/reasoning_tokens"),
            number(&answer, "/usage/completion_tokens"),
        );
        assert!(thought > 0 && thought <= all && all <= number(body, "/max_tokens"), "{answer}");
        let plain = ask(&server, CHAT, &with(body.clone(), json!({ "speculative": "off" })));
        assert_eq!(essence(&answer), essence(&plain));
    }
}
