//! Load: answers are those of an idle server, whoever else is served, and nothing is left behind.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Server, Setup};
use serde_json::{Value, json};

/// Eight kinds of requests.
fn kinds() -> Vec<(&'static str, Value)> {
    let question = |text: &str| json!([{ "role": "user", "content": text }]);
    vec![
        (
            "/v1/chat/completions",
            json!({ "messages": question("What is speculative decoding?"), "temperature": 0, "max_tokens": 30 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": question("Tell me a story."), "temperature": 0.9, "seed": 3, "max_tokens": 60 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": question("Why is the sky blue?"), "temperature": 0, "max_tokens": 25, "logprobs": true, "top_logprobs": 3 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": question("Count."), "temperature": 0, "max_tokens": 40, "speculative": "off" }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 50, "repetition_penalty": 1.2 }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "import os\n", "temperature": 0.7, "top_p": 0.9, "seed": 1, "max_tokens": 33, "stop": ["\n\n"] }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "The fox said. ".repeat(60), "temperature": 0, "max_tokens": 20, "speculative": { "block_size": 8 } }),
        ),
        ("/v1/messages", json!({ "messages": question("Tell me about rain."), "max_tokens": 20, "temperature": 0 })),
    ]
}

/// What must be the same: everything but names, times and what the cache held.
fn essence(answer: &Value) -> Value {
    let usage = &answer["usage"];
    json!([
        answer["choices"],
        answer["content"],
        answer["stop_reason"],
        usage["completion_tokens"],
        usage["output_tokens"]
    ])
}

fn run(server: &Server, requests: usize, threads: usize, cancels: bool) -> (usize, Vec<String>) {
    let kinds = kinds();
    let alone: Vec<Value> = kinds
        .iter()
        .map(|(path, body)| {
            let (status, answer) = server.post(path, body);
            assert_eq!(status, 200, "{answer}");
            essence(&answer)
        })
        .collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wrong = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= requests {
                        return;
                    }
                    let (path, body) = &kinds[i % kinds.len()];
                    if cancels && i % 5 == 4 {
                        let mut body = body.clone();
                        body["stream"] = json!(i % 2 == 0);
                        server.leave(path, &body, i % 7);
                        continue;
                    }
                    let (status, answer) = server.post(path, body);
                    if status != 200 || essence(&answer) != alone[i % kinds.len()] {
                        wrong.lock().expect("lock").push(format!("request {i}: {status} {answer}"));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (done.into_inner(), wrong.into_inner().expect("lock"))
}

/// 200 requests of 8 kinds from 16 clients at once, every fifth of which goes away.
#[test]
fn every_answer_is_its_solo_answer() {
    for (target, drafter) in
        [("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-4bit"), ("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit")]
    {
        let server = Server::start(Setup { target, drafter: Some(drafter), ..Setup::default() });
        let (done, wrong) = run(&server, 200, 16, true);
        assert!(wrong.is_empty(), "{target}: {} of {done} differ, first {}", wrong.len(), wrong[0]);
        assert_eq!(done, 160);
        is_idle(&server);
    }
}

/// Nothing is left of those who were served: no slot, no place in the queue, no page that the cache does not keep.
fn is_idle(server: &Server) {
    server.settle();
    let metrics = server.get("/metrics").1;
    for name in ["num_requests_running", "num_requests_waiting", "kv_pages_in_use"] {
        assert!(metrics.contains(&format!("\nmlxcel_{name} 0\n")), "{name} is not 0 in {metrics}");
    }
    let slots: Value = serde_json::from_str(&server.get("/slots").1).expect("JSON");
    assert!(slots.as_array().is_some_and(|all| all.iter().all(|slot| slot["is_processing"] == false)), "{slots}");
}

/// The twin: a request in a slot holds pages and is seen.
#[test]
fn a_busy_server_is_not_idle() {
    let server = Server::start(Setup { parallel: 1, ..Setup::default() });
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": true, "stream": true });
    std::thread::scope(|scope| {
        let call = scope.spawn(|| server.events("/v1/completions", &body).len());
        let late = std::time::Instant::now() + Duration::from_secs(20);
        while server.app.worker.status().pages_in_use == 0 {
            assert!(std::time::Instant::now() < late, "it never runs");
            std::thread::yield_now();
        }
        assert!(call.join().expect("answered") > 100);
    });
    is_idle(&server);
}

/// The twin: an answer that depends on who else is served would be seen. Sampling without a seed is such an answer.
#[test]
fn answers_that_differ_are_seen() {
    let server = Server::start(Setup::default());
    let body = json!({ "prompt": "Once upon a time", "temperature": 1.5, "max_tokens": 30 });
    let answers: Vec<Value> = (0..3).map(|_| essence(&server.post("/v1/completions", &body).1)).collect();
    assert!(answers[0] != answers[1] || answers[1] != answers[2]);
}

#[test]
fn clients_that_leave_free_their_slots() {
    let server = Server::start(Setup { parallel: 2, ..Setup::default() });
    let long = json!({ "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": true, "stream": true });
    let whole = json!({ "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": true });
    for i in 0..20 {
        // In the middle of a stream, before the first byte, and waiting for an answer in one piece.
        server.leave("/v1/completions", if i % 2 == 0 { &long } else { &whole }, if i % 4 == 0 { 12 } else { 0 });
    }
    soon_idle(&server);
}

/// Within two seconds nothing runs, and the engine steps no more.
fn soon_idle(server: &Server) {
    let begun = std::time::Instant::now();
    server.settle();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    is_idle(server);
    let steps = || {
        server.get("/metrics").1.lines().find(|line| line.starts_with("mlxcel_engine_steps_total ")).map(String::from)
    };
    let before = steps();
    std::thread::sleep(Duration::from_millis(100));
    assert!(before.is_some() && steps() == before, "an idle engine steps");
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 2 })).0, 200);
}

/// From four clients, at any time of an answer and while others are served to their end.
#[test]
fn a_hundred_that_leave_at_any_time_leave_nothing() {
    let server = Server::start(Setup { parallel: 4, ..Setup::default() });
    let kinds = kinds();
    std::thread::scope(|scope| {
        for client in 0..4_usize {
            let (server, kinds) = (&server, &kinds);
            scope.spawn(move || {
                for i in 0..25 {
                    let (path, body) = &kinds[(i + 3 * client) % kinds.len()];
                    let mut body = body.clone();
                    body["stream"] = json!(i % 3 > 0);
                    body["max_tokens"] = json!(400);
                    server.leave(path, &body, (i * 7 + client) % 31);
                }
                assert_eq!(server.post(kinds[client].0, &kinds[client].1).0, 200);
            });
        }
    });
    soon_idle(&server);
}

#[test]
fn a_full_queue_answers_503_and_when_to_come_back() {
    let server = Server::start(Setup { parallel: 1, queue: 2, ..Setup::default() });
    let long = json!({ "prompt": "Once upon a time", "max_tokens": 700, "temperature": 0, "ignore_eos": true });
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| server.post("/v1/completions", &long).0)).collect();
        calls.into_iter().map(|call| call.join().expect("answered")).collect()
    });
    // However quickly they come: even before the first step, one runs and two wait.
    assert!(codes.contains(&503) && codes.iter().filter(|code| **code == 200).count() >= 3, "{codes:?}");
    server.settle();
}

#[test]
fn a_stopping_server_ends_its_streams() {
    let mut server = Server::start(Setup::default());
    let long = json!({ "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": true, "stream": true });
    let address = server.address;
    let waiting = std::thread::scope(|scope| {
        let call = scope.spawn(|| server.call("POST", "/v1/completions", "", long.to_string().as_bytes()));
        call.join().expect("answered").0
    });
    assert_eq!(waiting, 200);
    server.stop();
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}
