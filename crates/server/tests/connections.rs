//! Connections: how long a client may take, how many there may be, and what becomes of them at the end.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{Server, Setup};
use mlxcel_server::Options;
use serde_json::{Value, json};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n";

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

/// A connection whose system takes little that is not read.
fn connect_small(address: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a size");
        socket.connect(address).await.expect("connected").into_std().expect("a stream")
    });
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

/// Reads one answer with a content-length; `None` when the connection is closed instead.
fn answer(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    loop {
        if let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
            let length = head.split("content-length: ").nth(1)?.lines().next()?.trim().parse::<usize>().ok()?;
            if text.len() >= end + 4 + length {
                return Some(String::from_utf8_lossy(&text).into_owned());
            }
        }
        let mut some = [0; 1024];
        match stream.read(&mut some) {
            Ok(0) => return None,
            Ok(n) => text.extend_from_slice(&some[..n]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("neither an answer nor the end: {error}"),
        }
    }
}

fn status(stream: &mut TcpStream) -> Option<u16> {
    answer(stream)?.split(' ').nth(1)?.parse().ok()
}

fn post(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!("POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A stream of about 2 KB a token.
fn wide(tokens: usize) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true,
        "logprobs": 5, "speculative": "off" })
}

#[test]
fn a_head_that_trickles_in_is_not_waited_for() {
    let idle_timeout = Duration::from_millis(400);
    let server = Server::start(Setup { options: options(|o| o.idle_timeout = idle_timeout), ..Setup::default() });
    let mut stream = connect(server.address);
    let begun = Instant::now();
    // A byte now and then, and never the end.
    let closed = loop {
        let sent = stream.write_all(b"x");
        if sent.is_err() || begun.elapsed() > Duration::from_secs(10) {
            break sent.is_err();
        }
        std::thread::sleep(Duration::from_millis(40));
    };
    assert!(closed, "still open after {:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    // A body may take longer than a head: it has a time of its own.
    let mut stream = connect(server.address);
    let whole = post(&json!({ "prompt": "Hi", "max_tokens": 1 }));
    let (head, body) = whole.split_at(whole.len() - 5);
    stream.write_all(head).expect("sent");
    std::thread::sleep(2 * idle_timeout);
    stream.write_all(body).expect("sent");
    assert_eq!(status(&mut stream), Some(200));
}

#[test]
fn a_connection_may_be_idle_for_a_while_and_no_longer() {
    let idle_timeout = Duration::from_millis(700);
    let server = Server::start(Setup { options: options(|o| o.idle_timeout = idle_timeout), ..Setup::default() });
    let mut stream = connect(server.address);
    for _ in 0..3 {
        // Together longer than the limit: each answer begins it anew.
        stream.write_all(HEALTH).expect("sent");
        assert_eq!(status(&mut stream), Some(200));
        std::thread::sleep(idle_timeout / 2);
    }
    let begun = Instant::now();
    assert_eq!(answer(&mut stream), None, "closed");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn connections_beyond_the_most_are_told_so_at_once() {
    let server = Server::start(Setup { options: options(|o| o.max_connections = 2), ..Setup::default() });
    let late = Instant::now() + Duration::from_secs(20);
    let mut open: Vec<TcpStream> = Vec::new();
    while open.len() < 2 {
        // The connection that asked for the server's health may not be quite gone.
        assert!(Instant::now() < late, "no room for two");
        let mut stream = connect(server.address);
        stream.write_all(HEALTH).expect("sent");
        if status(&mut stream) == Some(200) {
            open.push(stream);
        }
    }
    let begun = Instant::now();
    let said = answer(&mut connect(server.address)).expect("an answer, though nothing was asked");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("retry-after: 1"), "{said}");
    let error: Value = serde_json::from_str(said.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("--max-connections")), "{error}");
    // With a request under way the answer arrives as well.
    let mut asking = connect(server.address);
    asking.write_all(&post(&json!({ "prompt": "x".repeat(100_000) }))).expect("sent");
    assert_eq!(status(&mut asking), Some(503));
    // Those within the most are served on, and one that ends makes room.
    open[0].write_all(HEALTH).expect("sent");
    assert_eq!(status(&mut open[0]), Some(200));
    open.pop();
    loop {
        let mut stream = connect(server.address);
        stream.write_all(HEALTH).expect("sent");
        match status(&mut stream) {
            Some(200) => return,
            other => assert!(Instant::now() < late, "no room was made: {other:?}"),
        }
    }
}

#[test]
fn a_client_that_does_not_read_loses_its_slot() {
    let write_timeout = Duration::from_millis(200);
    let server = Server::start(Setup {
        parallel: 1,
        send_buffer: Some(8192),
        options: options(|o| o.write_timeout = write_timeout),
        ..Setup::default()
    });
    let mut stalled = connect_small(server.address);
    stalled.write_all(&post(&wide(900))).expect("sent");
    let late = Instant::now() + Duration::from_secs(20);
    while server.app.worker.status().running.is_empty() {
        assert!(Instant::now() < late, "it does not run");
        std::thread::sleep(Duration::from_millis(2));
    }
    // Its slot goes to whoever waits, long before its answer is complete.
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 2 })).0, 200);
    let metrics = server.get("/metrics").1;
    assert!(metrics.contains("mlxcel_requests_total{reason=\"cancelled\"} 1"), "{metrics}");
    let mut rest = Vec::new();
    let _ = stalled.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
}

/// The twin: whoever reads slowly, but reads, gets all of it.
#[test]
fn a_client_that_reads_slowly_is_served() {
    let write_timeout = Duration::from_millis(400);
    let setup = Setup {
        parallel: 1,
        send_buffer: Some(8192),
        options: options(|o| o.write_timeout = write_timeout),
        ..Setup::default()
    };
    let server = Server::start(setup);
    let mut slow = connect_small(server.address);
    slow.write_all(&post(&wide(80))).expect("sent");
    let (begun, mut text, mut some) = (Instant::now(), Vec::new(), [0; 2048]);
    while !text.windows(6).any(|six| six == b"[DONE]") {
        let n = slow.read(&mut some).expect("more");
        assert!(n > 0, "cut off after {:?} and {} bytes", begun.elapsed(), text.len());
        text.extend_from_slice(&some[..n]);
        std::thread::sleep(Duration::from_millis(25));
    }
    assert!(begun.elapsed() > write_timeout, "too quick to show anything: {:?}", begun.elapsed());
}

#[test]
fn a_stream_that_ends_in_time_survives_the_shutdown() {
    let mut server = Server::start(Setup::default());
    let (mut idle, mut reading) = (connect(server.address), connect(server.address));
    idle.write_all(HEALTH).expect("sent");
    assert_eq!(status(&mut idle), Some(200));
    reading.write_all(&post(&wide(60))).expect("sent");
    let mut text = vec![0; 200];
    reading.read_exact(&mut text).expect("it has begun");
    let reader = std::thread::spawn(move || {
        reading.read_to_end(&mut text).expect("whole");
        String::from_utf8_lossy(&text).into_owned()
    });
    let begun = Instant::now();
    server.stop();
    let text = reader.join().expect("read");
    assert!(text.contains("[DONE]"), "{text}");
    // A connection that is merely open holds nothing up; the grace is two seconds.
    assert!(begun.elapsed() < Duration::from_millis(1900), "{:?}", begun.elapsed());
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

/// The twin: a stream that does not end is cut off when the grace is over.
#[test]
fn a_stream_that_does_not_end_is_cut_off() {
    let mut server = Server::start(Setup { send_buffer: Some(8192), ..Setup::default() });
    let mut stalled = connect_small(server.address);
    stalled.write_all(&post(&wide(900))).expect("sent");
    let mut text = vec![0; 200];
    stalled.read_exact(&mut text).expect("it has begun");
    let begun = Instant::now();
    server.stop();
    let took = begun.elapsed();
    assert!((Duration::from_millis(1900)..Duration::from_secs(6)).contains(&took), "{took:?}");
    let _ = stalled.read_to_end(&mut text);
    assert!(!String::from_utf8_lossy(&text).contains("[DONE]"));
}
