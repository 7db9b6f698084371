//! Whatever is sent, the server answers or refuses: no 5xx, no broken answer, nothing left behind.

#[path = "../common/mod.rs"]
mod common;

mod bodies;
mod seeds;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Server, Setup};
use mlxcel_server::Options;
use serde_json::{Value, json};

use bodies::{Dice, mutated};
use seeds::{CHAT, seeds};

/// Bodies sent.
const BODIES: u64 = 10_000;

/// What is wrong with an answer.
fn verdict(path: &str, status: u16, text: &str) -> Result<(), &'static str> {
    match status {
        200..=299 => {
            let streamed = text.starts_with("data:") || text.starts_with("event:");
            let last =
                ["data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete"];
            if ["\"server_error\"", "\"api_error\"", "unavailable"].iter().any(|error| text.contains(error)) {
                Err("an error in the stream")
            } else if streamed && !last.iter().any(|last| text.contains(last)) {
                Err("a stream without an end")
            } else if !streamed && serde_json::from_str::<Value>(text).is_err() {
                Err("an answer that is no JSON")
            } else {
                Ok(())
            }
        }
        400..=499 => {
            let body: Value = serde_json::from_str(text).map_err(|_| "an error that is no JSON")?;
            let error = &body["error"];
            if error["message"].as_str().is_none_or(str::is_empty) || error["type"].as_str().is_none() {
                Err("an error without message or type")
            } else if path.starts_with("/v1/messages") != (body["type"] == "error") {
                Err("an error in another dialect")
            } else {
                Ok(())
            }
        }
        0 => Err("no answer"),
        _ => Err("neither an answer nor the client's fault"),
    }
}

/// Number of the first body: MLXCEL_FUZZ_FIRST, for other bodies than those of every run.
fn first() -> u64 {
    std::env::var("MLXCEL_FUZZ_FIRST").map_or(0, |number| number.parse().expect("MLXCEL_FUZZ_FIRST: a number expected"))
}

/// Sends bodies from four threads: how many were answered, how many refused, and what was wrong.
fn bombard(server: &Server, bodies: u64) -> (u64, u64, Vec<String>) {
    let seeds = seeds();
    let [next, answered, refused, slowest] = [const { AtomicU64::new(0) }; 4];
    let wrong = Mutex::new(Vec::new());
    // For bodies that end the process.
    let show = std::env::var_os("MLXCEL_FUZZ_SHOW").is_some();
    let first = first();
    let one = |number: u64| {
        let number = first + number;
        let mut dice = Dice::of(number);
        let (path, seed) = &seeds[number as usize % seeds.len()];
        let other = &seeds[dice.roll(seeds.len())].1;
        let body = mutated(seed, other, &mut dice);
        if show {
            eprintln!("body {number} to {path}: {}", String::from_utf8_lossy(&body));
        }
        let began = Instant::now();
        let (status, text) = server.call("POST", path, "content-type: application/json\r\n", &body);
        slowest.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        if status < 300 { &answered } else { &refused }.fetch_add(1, Ordering::Relaxed);
        if let Err(why) = verdict(path, status, &text) {
            let (sent, text) = (String::from_utf8_lossy(&body), &text);
            let sent: String = sent.chars().take(600).collect();
            wrong.lock().expect("lock").push(format!("body {number} to {path}: {why}: {status} {text}\nsent: {sent}"));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= bodies {
                        return;
                    }
                    one(number);
                }
            });
        }
    });
    // Whatever a grammar or a pattern asks for, compiling it has an end.
    let slowest = Duration::from_millis(slowest.into_inner());
    println!("the slowest took {slowest:?}");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    (answered.into_inner(), refused.into_inner(), wrong.into_inner().expect("lock"))
}

fn setup() -> Setup {
    let options = Options { max_body: 1 << 20, read_timeout: Duration::from_millis(500), ..Options::default() };
    Setup { queue: 100_000, context: 192, options, ..Setup::default() }
}

/// The server answers as it did before, and nothing of what came is left in it.
fn is_well(server: &Server, before: &Value) {
    server.settle();
    assert_eq!(server.get("/health").0, 200);
    let slots: Value = serde_json::from_str(&server.get("/slots").1).expect("JSON");
    assert!(slots.as_array().expect("slots").iter().all(|slot| slot["is_processing"] == false), "{slots}");
    assert_eq!(answer(server), *before);
}

fn answer(server: &Server) -> Value {
    let body = json!({ "messages": [{ "role": "user", "content": "What is speculative decoding?" }], "temperature": 0, "max_tokens": 30 });
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{answer}");
    answer["choices"].clone()
}

#[test]
fn ten_thousand_odd_bodies() {
    let server = Server::start(setup());
    let before = answer(&server);
    let began = Instant::now();
    let (answered, refused, wrong) = bombard(&server, BODIES);
    let seconds = began.elapsed().as_secs_f64();
    println!("{answered} answered, {refused} refused, {} wrong in {seconds:.1} s", wrong.len());
    assert!(wrong.is_empty(), "{} wrong, among them:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n\n"));
    assert_eq!(answered + refused, BODIES);
    assert!(seconds < 60.0 || cfg!(debug_assertions), "{seconds:.1} s");
    // Both halves of the server were reached.
    assert!(answered > BODIES / 10 && refused > BODIES / 10, "{answered} answered, {refused} refused");
    is_well(&server, &before);
}

/// Each field of each body, replaced by a value of each type of JSON: an answer or a 4xx that names the field.
#[test]
fn every_field_with_every_type() {
    let server = Server::start(setup());
    let before = answer(&server);
    let values = ["null", "true", "-7", "2.5", "1e999", "\"text\"", "[]", "{}", "[[1]]", "{\"a\": {\"b\": null}}"];
    let (mut wrong, mut unnamed) = (Vec::new(), Vec::new());
    for (path, seed) in seeds() {
        let fields: Vec<String> = seed.as_object().expect("an object").keys().cloned().collect();
        for (field, value) in fields.iter().flat_map(|field| values.map(|value| (field, value))) {
            let mut body = seed.clone();
            body[field] = json!(bodies::RAW);
            let sent = body.to_string().replace(&format!("\"{}\"", bodies::RAW), value);
            let (status, text) = server.call("POST", path, "", sent.as_bytes());
            let what = format!("{field} = {value} to {path}: {status} {text}");
            if let Err(why) = verdict(path, status, &text) {
                wrong.push(format!("{why}: {what}"));
            } else if status >= 400 && value != "1e999" && !text.contains(field.as_str()) {
                unnamed.push(what);
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, among them:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
    assert!(
        unnamed.is_empty(),
        "{} do not name the field:\n{}",
        unnamed.len(),
        unnamed[..unnamed.len().min(9)].join("\n")
    );
    is_well(&server, &before);
}

/// Statuses of all that comes back for bytes that are sent as they are; the writing end is closed after them.
fn raw(server: &Server, bytes: &[u8]) -> Vec<u16> {
    let mut stream = TcpStream::connect(server.address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    // The server may have hung up already, as it should.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    let waited = end.is_err_and(|error| matches!(error.kind(), std::io::ErrorKind::WouldBlock));
    assert!(!waited, "20 s without an end, after {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)]));
    statuses(&answer)
}

fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    text.split("HTTP/1.").skip(1).map(|part| part.get(2..5).and_then(|s| s.parse().ok()).unwrap_or(0)).collect()
}

fn is_fine(status: &u16) -> bool {
    (200..300).contains(status) || (400..500).contains(status)
}

/// Bytes that are hardly HTTP.
fn garbage(dice: &mut Dice) -> Vec<u8> {
    let body = r#"{"prompt": "Hi", "max_tokens": 2}"#;
    let head = |length: &str| {
        format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{length}\r\n")
    };
    let whole = format!("{}{body}", head(&format!("content-length: {}\r\n", body.len())));
    match dice.roll(13) {
        0 => (0..dice.roll(2000)).map(|_| dice.byte()).collect(),
        // Half a request.
        1 => whole.as_bytes()[..dice.roll(whole.len())].to_vec(),
        // A length that is not the body's.
        2 => format!("{}{body}", head(&format!("content-length: {}\r\n", dice.roll(2 * body.len())))).into(),
        3 => {
            let lengths = ["-1", "1e3", "99999999999999999999999", "5, 6", "0x10", " ", "4\r\ncontent-length: 5"];
            format!("{}{body}", head(&format!("content-length: {}\r\n", lengths[dice.roll(lengths.len())]))).into()
        }
        4 => format!("{}{body}", head("")).into(),
        // Headers: one that is huge, many, and those that are none.
        5 => head(&format!("x: {}\r\n", "y".repeat(dice.roll(1_000_000)))).into(),
        6 => head(&"x: y\r\n".repeat(dice.roll(5000))).into(),
        7 => head(": \r\n\0: \x01\r\n \r\nx\r\n").into(),
        8 => format!("GET /{} HTTP/1.1\r\nhost: t\r\n\r\n", "a".repeat(dice.roll(100_000))).into(),
        // Requests one after the other, with junk between them.
        9 => format!("{whole}{whole}\0\x7fjunk\r\n\r\n{whole}").into(),
        10 => "GET /health HTTP/1.1\r\nhost: t\r\n\r\n".repeat(dice.roll(50)).into(),
        // Chunks that are none.
        11 => {
            let chunks =
                ["zz\r\n", "ffffffffffffffffff\r\n", "5\r\nab", "-1\r\n\r\n", "0\r\n\r\n", "3;x=y\r\nabc\r\n0\r\n\r\n"];
            format!("{}{}", head("transfer-encoding: chunked\r\n"), chunks[dice.roll(chunks.len())]).into()
        }
        // Bits that fell over.
        _ => {
            let mut bytes = whole.into_bytes();
            for _ in 0..1 + dice.roll(6) {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 << dice.roll(8);
            }
            bytes
        }
    }
}

#[test]
fn bytes_that_are_no_requests() {
    let server = Server::start(setup());
    let before = answer(&server);
    // Clients that never finish their headers hold up nobody.
    let slow: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).expect("connected");
            stream.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\nx: ").expect("written");
            stream
        })
        .collect();
    let next = AtomicU64::new(0);
    let wrong = Mutex::new(Vec::new());
    let answers = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= 2000 {
                        return;
                    }
                    let bytes = garbage(&mut Dice::of(first() + number));
                    let found = raw(&server, &bytes);
                    answers.fetch_add(found.len() as u64, Ordering::Relaxed);
                    if !found.iter().all(is_fine) {
                        let sent = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
                        wrong.lock().expect("lock").push(format!("garbage {number}: {found:?}\nsent: {sent}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("lock");
    assert!(wrong.is_empty(), "{} wrong, among them:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n\n"));
    assert!(answers.into_inner() > 1000);
    drop(slow);
    is_well(&server, &before);
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let server = Server::start(setup());
    let mut stream = TcpStream::connect(server.address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
        .write_all(b"POST /tokenize HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{")
        .expect("written");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(statuses(&answer), [408]);
}

/// The twin: a 5xx, no answer, and half an answer would be seen.
#[test]
fn failures_are_seen() {
    let broken = Server::begin(Setup { broken: true, ..setup() });
    let (_, _, wrong) = bombard(&broken, 100);
    assert!(wrong.len() > 10 && wrong[0].contains("neither"), "{wrong:?}");
    let chat = CHAT;
    let error = r#"{"error": {"message": "m", "type": "t"}}"#;
    assert_eq!(verdict(chat, 400, error), Ok(()));
    for (path, status, text) in [
        (chat, 500, error),
        (chat, 503, error),
        (chat, 0, ""),
        (chat, 400, "no"),
        (chat, 400, r#"{"error": {}}"#),
        ("/v1/messages", 400, error),
        (chat, 200, "data: {}\n\n"),
        (chat, 200, "{"),
        (chat, 200, "data: {\"error\": {\"type\": \"server_error\"}}\n\ndata: [DONE]\n\n"),
    ] {
        assert!(verdict(path, status, text).is_err(), "{path} {status} {text}");
    }
    assert_eq!(statuses(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 502 Bad"), [200, 502]);
    assert!(!is_fine(&502) && !is_fine(&0) && !is_fine(&101));
}
