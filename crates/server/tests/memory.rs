//! Memory: a server that has warmed up stays as large as it is, whatever it is asked.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Server, Setup};
use mlxcel_server::{Observer, Options};
use serde_json::{Value, json};

/// Requests until all caches are full and all threads have run.
const WARM_UP: usize = 300;
const REQUESTS: usize = 2000;
/// Most growth over all requests, in KiB: 2 KiB a request.
const GROWTH: u64 = 4096;

/// Resident memory of this process, in KiB; `None` where the system does not tell.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

/// Chats, streams, completions, constrained answers, refused ones and ones that nobody waits for.
fn request(server: &Server, i: usize) {
    let question = json!([{ "role": "user", "content": format!("What is {}?", i % 97) }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": question, "max_tokens": 4, "temperature": 0 });
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        body
    };
    let path = "/v1/chat/completions";
    let status = match i % 7 {
        0 => server.post(path, &chat(json!({}))).0,
        1 => server.events(path, &chat(json!({ "stream": true }))).len().min(1) as u16 * 200,
        2 => {
            server.post("/v1/completions", &json!({ "prompt": format!("{i} foxes"), "max_tokens": 4, "logprobs": 2 })).0
        }
        3 => {
            let schema = json!({ "type": "object", "properties": { "a": { "type": "integer", "maximum": i % 5 } } });
            let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
            server.post(path, &chat(json!({ "response_format": format }))).0
        }
        4 => {
            server.leave(path, &chat(json!({ "stream": true, "max_tokens": 100 })), i % 9);
            200
        }
        5 => server.post("/v1/messages", &json!({ "messages": question, "max_tokens": 3 })).0,
        _ => 600 - server.post(path, &chat(json!({ "temperature": "hot" }))).0,
    };
    assert_eq!(status, 200, "request {i}");
}

fn run(server: &Server, requests: usize) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        i if i < requests => request(server, i),
                        _ => return,
                    }
                }
            });
        }
    });
    server.settle();
}

/// How much the process grows, in KiB, over `requests` requests after the warm-up.
fn growth(options: Options, requests: usize) -> Option<u64> {
    resident()?;
    let server = Server::start(Setup { context: 256, cache: 1 << 20, options, ..Setup::default() });
    run(&server, WARM_UP);
    let before = resident()?;
    run(&server, requests);
    Some(resident()?.saturating_sub(before))
}

/// One test, since a second one in the same process would be measured with it.
#[test]
fn two_thousand_requests_leave_nothing_behind() {
    let Some(clean) = growth(Options::default(), REQUESTS) else {
        println!("skipped: /proc/self/status has no VmRSS here");
        return;
    };
    println!("{clean} KiB more after {REQUESTS} requests");
    assert!(clean < GROWTH, "{clean} KiB more after {REQUESTS} requests, fewer than {GROWTH} expected");
    // The twin: a server that keeps 16 KiB of each request is seen after a quarter of them.
    static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    let leak = Observer::new(|exchange| KEPT.lock().expect("lock").push(vec![exchange.status as u8 | 1; 16 << 10]));
    let leaky = growth(Options { observer: Some(leak), ..Options::default() }, REQUESTS / 4);
    assert!(leaky.is_some_and(|leaky| leaky >= GROWTH), "a leak was not seen: {leaky:?} KiB");
}
