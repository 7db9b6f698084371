//! What an operator sets and sees: names of requests, the log, observers, and routes that fail.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use common::{Server, Setup};
use mlxcel_server::{Exchange, Observer, Options};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// The lines that this process logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of all tests together.
    fn get() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
            log
        })
    }

    fn lines_with(&self, word: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().expect("lock")).into_owned();
        text.lines().filter(|line| line.contains(word)).map(str::to_string).collect()
    }
}

/// What a server's observer heard.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Exchange>>>);

impl Heard {
    fn observer(&self) -> Observer {
        let own = self.clone();
        Observer::new(move |exchange| own.0.lock().expect("lock").push(exchange.clone()))
    }

    /// The exchange of that name, when it is over.
    fn of(&self, id: &str) -> Exchange {
        let late = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(exchange) = self.0.lock().expect("lock").iter().find(|exchange| exchange.id == id) {
                return exchange.clone();
            }
            assert!(Instant::now() < late, "nothing was heard of {id}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Head and body of an answer.
fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &Value) -> (String, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(server.address).expect("connected");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_string(), body.to_string())
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_string))
}

fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "What is speculative decoding?" }], "max_tokens": 24,
        "temperature": 0, "speculative": { "block_size": 4 } });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

#[test]
fn a_route_that_panics_answers_500_and_the_server_lives() {
    let log = Log::get();
    let server = Server::start(Setup { options: Options { faults: true, ..Options::default() }, ..Setup::default() });
    let fault = "x-fault: route\r\nx-request-id: panicking\r\n";
    let (head, body) = ask(&server, "POST", CHAT, fault, &chat(json!({})));
    assert!(head.starts_with("HTTP/1.1 500"), "{head}");
    assert_eq!(header(&head, "x-request-id").as_deref(), Some("panicking"));
    let error: Value = serde_json::from_str(&body).expect("JSON");
    assert!(error["error"]["message"].is_string() && error["type"].is_null(), "{error}");
    let (head, body) = ask(&server, "POST", "/v1/messages", fault, &chat(json!({})));
    assert!(head.starts_with("HTTP/1.1 500"), "{head}");
    let error: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (error["type"].as_str(), error["error"]["type"].as_str()),
        (Some("error"), Some("api_error")),
        "{error}"
    );
    assert!(log.lines_with("panicking").iter().any(|line| line.contains("ERROR") && line.contains("panicked")));
    // The twin: the same request without the fault.
    assert_eq!(server.post(CHAT, &chat(json!({}))).0, 200);
}

#[test]
fn a_stream_that_panics_ends_with_an_error() {
    let server = Server::start(Setup { options: Options { faults: true, ..Options::default() }, ..Setup::default() });
    let fault = "x-fault: stream\r\n";
    let (head, body) = ask(&server, "POST", CHAT, fault, &chat(json!({ "stream": true })));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.contains("\"error\"") && body.contains("[DONE]"), "{body}");
    let (_, body) = ask(
        &server,
        "POST",
        "/v1/messages",
        fault,
        &json!({ "stream": true, "max_tokens": 20,
        "messages": [{ "role": "user", "content": "Hello" }] }),
    );
    assert!(body.contains("event: error") && !body.contains("message_stop"), "{body}");
    server.settle();
    // The twin: without the fault, an end and no error.
    let (_, body) = ask(&server, "POST", CHAT, "", &chat(json!({ "stream": true })));
    assert!(!body.contains("\"error\"") && body.contains("[DONE]"), "{body}");
}

/// Without the operator's leave, the header is a header.
#[test]
fn faults_are_off() {
    let server = Server::start(Setup::default());
    let (head, _) = ask(&server, "POST", CHAT, "x-fault: route\r\n", &chat(json!({})));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[test]
fn every_answer_has_its_request_id() {
    let options = Options { api_keys: vec!["secret".into()], ..Options::default() };
    let server = Server::start(Setup { options, ..Setup::default() });
    for (method, path) in
        [("GET", "/health"), ("GET", "/nowhere"), ("GET", CHAT), ("POST", CHAT), ("GET", "/v1/models")]
    {
        let (head, _) = ask(&server, method, path, "x-request-id: mine-42\r\n", &Value::Null);
        assert_eq!(header(&head, "x-request-id").as_deref(), Some("mine-42"), "{method} {path}: {head}");
        let (head, _) = ask(&server, method, path, "x-request-id: not \"sane\"\r\n", &Value::Null);
        assert!(header(&head, "x-request-id").is_some_and(|id| id.starts_with("req_")), "{method} {path}: {head}");
    }
}

#[test]
fn an_observer_hears_what_the_client_was_told() {
    let heard = Heard::default();
    let options = Options { observer: Some(heard.observer()), ..Options::default() };
    let server = Server::start(Setup { options, ..Setup::default() });
    let (_, body) = ask(&server, "POST", CHAT, "x-request-id: whole\r\n", &chat(json!({ "model": "alias" })));
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    let usage = |field: &str| answer["usage"][field].as_u64().expect("a number");
    let whole = heard.of("whole");
    assert_eq!((whole.status, whole.route.as_deref(), whole.operation()), (200, Some(CHAT), Some("chat")));
    assert_eq!((whole.prompt_tokens, whole.completion_tokens), (usage("prompt_tokens"), usage("completion_tokens")));
    assert_eq!((whole.asked.as_deref(), whole.model.as_deref()), (Some("alias"), Some("gemma-4-tiny-it-4bit")));
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(Some(whole.accepted), details["accepted_prediction_tokens"].as_u64());
    assert!(whole.drafted > 0 && whole.accepted <= whole.drafted, "{whole:?}");
    let (first, per) = (whole.first_token.expect("tokens"), whole.per_token.expect("several"));
    assert!(first <= whole.duration && per < whole.duration && !whole.streamed, "{whole:?}");
    assert!(whole.peer.is_some_and(|peer| peer.ip().is_loopback()), "{whole:?}");

    ask(&server, "POST", CHAT, "x-request-id: streamed\r\n", &chat(json!({ "stream": true, "n": 2 })));
    let streamed = heard.of("streamed");
    assert!(streamed.streamed && streamed.finish.len() == 2, "{streamed:?}");
    assert_eq!(streamed.completion_tokens, 2 * whole.completion_tokens);

    ask(&server, "POST", "/v1/completions", "x-request-id: refused\r\n", &json!({ "prompt": "x", "temperature": -1 }));
    let refused = heard.of("refused");
    assert_eq!((refused.status, refused.completion_tokens, refused.first_token), (400, 0, None), "{refused:?}");
    assert_eq!(refused.operation(), Some("text_completion"));
    // A name that is not served is not counted by.
    ask(&server, "POST", CHAT, "x-request-id: unknown\r\n", &chat(json!({ "model": "no-such" })));
    assert_eq!((heard.of("unknown").status, heard.of("unknown").asked), (404, None));
}

#[test]
fn a_client_that_leaves_is_noted() {
    let heard = Heard::default();
    let options = Options { observer: Some(heard.observer()), ..Options::default() };
    let server = Server::start(Setup { options, ..Setup::default() });
    let long = json!({ "prompt": "Once", "max_tokens": 900, "temperature": 0, "ignore_eos": true });
    for (id, streamed) in [("left-stream", true), ("left-whole", false)] {
        let mut body = long.clone();
        body["stream"] = json!(streamed);
        let (text, mut stream) = (body.to_string(), TcpStream::connect(server.address).expect("connected"));
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: test\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all((head + &text).as_bytes()).expect("sent");
        let late = Instant::now() + Duration::from_secs(20);
        while server.app.worker.status().running.is_empty() {
            assert!(Instant::now() < late, "it does not run");
            std::thread::sleep(Duration::from_millis(2));
        }
        if streamed {
            stream.read_exact(&mut [0; 40]).expect("begun");
        }
        drop(stream);
        let left = heard.of(id);
        assert_eq!(left.finish, ["cancelled"], "{left:?}");
        assert_eq!(left.status, if streamed { 200 } else { 499 }, "{left:?}");
        server.settle();
    }
}

#[test]
fn the_log_has_a_line_a_request() {
    let log = Log::get();
    let server = Server::start(Setup::default());
    ask(&server, "POST", CHAT, "x-request-id: logged-one\r\n", &chat(json!({})));
    let late = Instant::now() + Duration::from_secs(20);
    while log.lines_with("logged-one").is_empty() {
        assert!(Instant::now() < late, "no line");
        std::thread::sleep(Duration::from_millis(5));
    }
    let lines = log.lines_with("logged-one");
    let [line] = &lines[..] else { panic!("one line expected: {lines:?}") };
    for field in [
        "INFO",
        "method=\"POST\"",
        "route=\"/v1/chat/completions\"",
        "status=200",
        "model=\"gemma-4-tiny-it-4bit\"",
        "prompt_tokens=",
        "cached_tokens=",
        "completion_tokens=24",
        "finish=\"length\"",
        "ttft_ms=",
        "tpot_ms=",
        "drafted=",
        "accepted=",
        "peer=127.0.0.1",
    ] {
        assert!(line.contains(field), "{field} not in {line}");
    }
    // What is asked for again and again has no line, and nothing has one when the operator says so.
    ask(&server, "GET", "/health", "x-request-id: polled-one\r\n", &Value::Null);
    let quiet =
        Server::start(Setup { options: Options { log_requests: false, ..Options::default() }, ..Setup::default() });
    ask(&quiet, "POST", CHAT, "x-request-id: quiet-one\r\n", &chat(json!({})));
    drop((server, quiet));
    assert!(log.lines_with("polled-one").is_empty() && log.lines_with("quiet-one").is_empty());
}

#[test]
fn the_template_thinks_as_the_operator_says() {
    let prompt = |reasoning: Option<bool>, more: Value| {
        let setup = Setup { target: "qwen3.5-tiny-4bit", drafter: None, reasoning, ..Setup::default() };
        let server = Server::start(setup);
        let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
        body["chat_template_kwargs"] = more;
        let (status, answer) = server.post("/apply-template", &body);
        assert_eq!(status, 200, "{answer}");
        answer["prompt"].as_str().expect("text").to_string()
    };
    let (on, off) = (prompt(Some(true), json!({})), prompt(Some(false), json!({})));
    assert_ne!(on, off, "the template does not know enable_thinking");
    assert!([&on, &off].contains(&&prompt(None, json!({}))), "left alone, it does one of the two");
    // A request that says so itself is heard.
    assert_eq!(prompt(Some(true), json!({ "enable_thinking": false })), off);
    assert_eq!(prompt(Some(false), json!({ "enable_thinking": true })), on);
}
