//! What comes piece by piece: characters, ends, constrained text.

use serde_json::{Value, json};

use crate::common::{Server, Setup};
use crate::{CHAT, PAIRS, TEXT, ask, ask_all, essence, is_well, metric, number, question, said, serve, width, with};

const WIDE: &str = "hi😀👩\u{200d}👩\u{200d}👧 你好";

/// The texts of a stream's pieces.
fn pieces(events: &[Value]) -> Vec<&str> {
    let text = |event: &'_ Value| event["choices"][0]["delta"]["content"].as_str().map(str::len);
    events.iter().filter(|e| text(e).is_some()).filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn characters_of_several_tokens_come_whole() {
    for pair in PAIRS {
        let server = serve(pair, Setup::default());
        let body = |most: u64, k: usize| {
            let grammar = format!("root ::= \"{WIDE}\"");
            question(json!({ "grammar": grammar, "max_tokens": most, "logprobs": true, "speculative": width(k) }))
        };
        let all = ask(&server, CHAT, &body(100, 1));
        let count = number(&all, "/usage/completion_tokens");
        assert!(said(&all) == WIDE && count > 12, "{all}");
        let mut cut = 0;
        for k in [1, 4, 16] {
            for most in 1..=count {
                let whole = ask(&server, CHAT, &body(most, k));
                assert_eq!(essence(&whole), essence(&ask(&server, CHAT, &body(most, 1))), "{most} tokens, K={k}");
                let events = server.events(CHAT, &with(body(most, k), json!({ "stream": true })));
                let pieces = pieces(&events);
                let text = pieces.concat();
                assert_eq!(text, said(&whole), "{most} tokens, K={k}");
                // A character that max_tokens cuts is one U+FFFD at the very end; none is sent before.
                let known = text.trim_end_matches('\u{fffd}');
                assert!(WIDE.starts_with(known) && text.len() - known.len() <= 3, "{most} tokens, K={k}: {pieces:?}");
                cut += usize::from(known.len() < text.len());
            }
        }
        assert!(cut > 3, "{cut} answers end inside a character");
        is_well(&server);
    }
}

/// Whatever ends an answer inside a block, nothing follows it, and text, tokens and log-probabilities are cut alike.
#[test]
fn nothing_comes_after_the_end() {
    for pair in PAIRS {
        let server = serve(pair, Setup::default());
        let free = ask(&server, CHAT, &question(json!({ "max_tokens": 300, "speculative": "off" })));
        assert_eq!(free["choices"][0]["finish_reason"], "stop", "it ends by itself: {free}");
        let letters: Vec<char> = said(&free).chars().collect();
        let stops =
            (0..letters.len().saturating_sub(3)).step_by(9).map(|at| letters[at..at + 3].iter().collect::<String>());
        // Its own end, and stop strings all over the answer.
        let wanted: Vec<Value> = std::iter::once(json!([])).chain(stops.map(|stop| json!([stop]))).take(14).collect();
        for stop in wanted {
            let body = |k| {
                question(
                    json!({ "max_tokens": 300, "stop": stop, "logprobs": true, "top_logprobs": 2, "speculative": width(k) }),
                )
            };
            let plain = ask(&server, CHAT, &body(1));
            let count = number(&plain, "/usage/completion_tokens") as usize;
            assert_eq!(plain["choices"][0]["finish_reason"], "stop");
            assert_eq!(plain["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(count));
            for k in [3, 16] {
                let wide = ask(&server, CHAT, &body(k));
                assert_eq!(essence(&wide), essence(&plain), "K={k}, stop {stop}");
                let events = server.events(CHAT, &with(body(k), json!({ "stream": true })));
                let end = events.iter().position(|e| e["choices"][0]["finish_reason"] == "stop").expect("an end");
                assert_eq!(end, events.len() - 1, "something follows the end: {:?}", &events[end..]);
                assert_eq!(pieces(&events).concat(), said(&plain), "K={k}, stop {stop}");
                let sent = |e: &Value| e["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len);
                assert_eq!(events.iter().map(sent).sum::<usize>(), count);
            }
        }
    }
}

#[test]
fn repeated_text_is_cut_with_its_log_probabilities() {
    let server = Server::start(Setup::default());
    let prompt = "ha ".repeat(60);
    let body = |k| json!({ "prompt": prompt, "temperature": 0, "max_tokens": 60, "stop": ["ha ha ha"], "logprobs": 2, "ignore_eos": true, "speculative": width(k) });
    let plain = ask(&server, TEXT, &body(1));
    for k in [2, 8, 16] {
        assert_eq!(essence(&ask(&server, TEXT, &body(k))), essence(&plain));
    }
    let kept = plain["choices"][0]["logprobs"]["tokens"].as_array().map(Vec::len);
    assert_eq!(kept, Some(number(&plain, "/usage/completion_tokens") as usize), "{plain}");
}

#[test]
fn thirty_objects_at_once() {
    for pair in PAIRS {
        let server = serve(pair, Setup { parallel: 8, ..Setup::default() });
        let body = |seed: u64| {
            let messages = json!([{ "role": "user", "content": "say hello world 500 times" }]);
            let format = json!({ "type": "json_object" });
            json!({ "messages": messages, "response_format": format, "max_tokens": 40, "temperature": 0.8, "seed": seed % 6 })
        };
        let plain: Vec<Value> =
            (0..6).map(|seed| ask(&server, CHAT, &with(body(seed), json!({ "speculative": "off" })))).collect();
        let drafted = metric(&server, "mlxcel_spec_decode_num_draft_tokens_total");
        let bodies: Vec<Value> = (0..30).map(body).collect();
        for (i, answer) in ask_all(&server, CHAT, &bodies).iter().enumerate() {
            assert_eq!(essence(answer), essence(&plain[i % 6]), "{}, request {i}", pair.0);
            let whole = answer["choices"][0]["finish_reason"] == "stop";
            let object = serde_json::from_str::<Value>(said(answer));
            assert!(
                said(answer).trim_start().starts_with('{') && (!whole || object.is_ok_and(|o| o.is_object())),
                "{answer}"
            );
        }
        assert!(metric(&server, "mlxcel_spec_decode_num_draft_tokens_total") > drafted, "nothing was drafted");
        is_well(&server);
    }
}
