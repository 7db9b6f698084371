//! Conversations that go on from the cache answer as those that begin afresh.

use serde_json::{Value, json};

use crate::common::{Server, Setup};
use crate::{CHAT, PAIRS, TEXT, ask, essence, is_well, number, said, serve, tokens, with};

const CACHED: &str = "/usage/prompt_tokens_details/cached_tokens";

/// A conversation of ten turns; every turn from the cache and without it. Positions taken from the cache.
fn session(server: &Server, name: usize) -> u64 {
    let questions = ["Tell me a story.", "And then?", "Why?", "Who was it?", "What is rain?"];
    let mut messages = vec![json!({ "role": "system", "content": format!("You are agent {name}.") })];
    let mut reused = 0;
    for turn in 0..10 {
        messages.push(json!({ "role": "user", "content": questions[(turn + name) % questions.len()] }));
        let body = json!({
            "messages": messages, "max_tokens": 14 + turn, "temperature": if turn % 2 == 0 { 0.0 } else { 0.8 },
            "seed": name, "logprobs": true, "speculative": if turn % 4 == 3 { "off" } else { "auto" },
        });
        let warm = ask(server, CHAT, &body);
        let cold = ask(server, CHAT, &with(body, json!({ "cache_prompt": false, "speculative": "off" })));
        assert_eq!(number(&cold, CACHED), 0);
        assert_eq!(essence(&warm), essence(&cold), "session {name}, turn {turn}");
        reused += number(&warm, CACHED);
        messages.push(json!({ "role": "assistant", "content": said(&warm) }));
    }
    reused
}

#[test]
fn three_sessions_of_ten_turns_do_not_drift() {
    for pair in PAIRS {
        let server = serve(pair, Setup::default());
        let reused: u64 = std::thread::scope(|scope| {
            let server = &server;
            let sessions: Vec<_> = (0..3).map(|name| scope.spawn(move || session(server, name))).collect();
            sessions.into_iter().map(|session| session.join().expect("it ended well")).sum()
        });
        assert!(reused > 1000, "{}: {reused} positions from the cache", pair.0);
        is_well(&server);
    }
}

#[test]
fn a_few_shared_tokens_are_nobodys_text() {
    for pair in PAIRS {
        let server = serve(pair, Setup { parallel: 1, ..Setup::default() });
        ask(&server, TEXT, &tokens(700, json!({})));
        for shared in [4, 64, 300, 699] {
            let mut body = tokens(shared, json!({ "logprobs": 1 }));
            body["prompt"].as_array_mut().expect("tokens").extend((0..90).map(|i| json!(500 + (i * 7) % 60)));
            let warm = ask(&server, TEXT, &body);
            let cold = ask(&server, TEXT, &with(body, json!({ "cache_prompt": false, "speculative": "off" })));
            assert_eq!(essence(&warm), essence(&cold), "{}: {shared} shared tokens", pair.0);
        }
    }
}

/// An answer that ends inside a wide block leaves what plain decoding leaves.
#[test]
fn an_end_inside_a_block_is_the_end_of_what_is_kept() {
    for pair in PAIRS {
        let drafting = serve(pair, Setup { parallel: 1, ..Setup::default() });
        let plain = Server::start(Setup { target: pair.0, drafter: None, parallel: 1, ..Setup::default() });
        let mut messages = vec![json!({ "role": "user", "content": crate::QUESTION })];
        let mut ended = 0;
        for (turn, width) in [16, 8, 5].into_iter().enumerate() {
            let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 200, "logprobs": true });
            let wide = ask(&drafting, CHAT, &with(body.clone(), json!({ "speculative": { "block_size": width } })));
            let want = ask(&plain, CHAT, &body);
            assert_eq!(essence(&wide), essence(&want), "{}, turn {turn}", pair.0);
            assert_eq!(number(&wide, CACHED), number(&want, CACHED), "{}, turn {turn}", pair.0);
            let of = |name: &str| number(&wide, &format!("/timings/{name}"));
            // What was drafted beyond the end was not accepted.
            assert!(of("draft_n_accepted") + of("draft_rounds") <= of("predicted_n"), "{}", wide["timings"]);
            ended += usize::from(wide["choices"][0]["finish_reason"] == "stop");
            messages.push(json!({ "role": "assistant", "content": said(&wide) }));
            messages.push(json!({ "role": "user", "content": "And why?" }));
        }
        assert!(ended > 0, "no answer came to its end");
    }
}

/// The twin: a turn answered from another conversation's cache would be seen.
#[test]
fn another_conversation_is_another_answer() {
    let server = Server::start(Setup::default());
    let of = |name: &str| {
        let messages: Value =
            json!([{ "role": "system", "content": name }, { "role": "user", "content": "Tell me a story." }]);
        essence(&ask(
            &server,
            CHAT,
            &json!({ "messages": messages, "temperature": 0.8, "seed": 1, "max_tokens": 30, "logprobs": true }),
        ))
    };
    assert_ne!(of("You are agent 0."), of("You are agent 1."));
}
