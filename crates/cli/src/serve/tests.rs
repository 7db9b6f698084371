use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use mlxcel_compute::fault::Fault;
use mlxcel_cpu::Precision;
use mlxcel_server::Options;

use super::{args, load, serve};
use crate::backend::Chosen;
use crate::locate::Environment;

/// Status and body of a request, whose connection is closed after it; `None` where nobody answers.
fn ask(port: u16, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_string()))
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Starts the demo on a processor that is lost after so many forward passes.
fn start(port: u16, reads: usize, drafter: &str) -> std::thread::JoinHandle<anyhow::Result<std::process::ExitCode>> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let path = |name: &str| models.join(name).display().to_string();
    let drafter = if drafter == "none" { drafter.to_string() } else { path(drafter) };
    let (model, port) = (path("gemma-4-tiny-it-4bit"), port.to_string());
    let typed = ["mlxcel-server", "-m", &model, "-md", &drafter, "--port", &port, "-t", "2"].map(Into::into);
    let args = args::parse(typed.into_iter()).serve;
    std::thread::spawn(move || {
        let own = args.clone();
        let lost = Chosen::faulty(Some(2), Precision::Int8, Fault::DeviceLost(reads));
        let load = move || load(&own, &Environment::default(), |_| Ok(lost));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(serve(&args, Options::default(), load))
    })
}

const CHAT: &str = r#"{"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 400,
    "ignore_eos": true"#;

#[test]
fn a_lost_device_is_said_and_ends_the_server() {
    let port = free_port();
    let server = start(port, 60, "none");
    let late = Instant::now() + Duration::from_secs(60);
    while ask(port, "GET", "/health", "").is_none_or(|(status, _)| status != 200) {
        assert!(Instant::now() < late, "not ready after a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    let chat = |more: &str| ask(port, "POST", "/v1/chat/completions", &format!("{CHAT}{more}}}"));
    let (plain, streamed) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| chat(""));
        let streamed = scope.spawn(|| chat(r#", "stream": true"#));
        (plain.join().expect("asked"), streamed.join().expect("asked"))
    });
    // Those under way were told, in the form of their answers.
    let lost =
        "the device failed, and nothing that it computes can be trusted any more: the device was taken away on purpose";
    let (status, body) = plain.expect("an answer");
    assert!(status == 503 && body.contains(lost), "{status} {body}");
    let (status, body) = streamed.expect("an answer");
    assert!(status == 200 && body.contains(lost) && body.contains("[DONE]"), "{status} {body}");
    // Whoever asks now is told, too.
    for (method, path) in [("GET", "/health"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models")] {
        let body = if method == "POST" { format!("{CHAT}}}") } else { String::new() };
        let (status, body) = ask(port, method, path, &body).expect("still there");
        assert!(
            status == 503 && body.contains("the engine has stopped") && body.contains(lost),
            "{path}: {status} {body}"
        );
    }
    let error = server.join().expect("no panic").expect_err("the process ends with an error");
    assert_eq!(format!("{error:#}"), format!("the engine has stopped: {lost}"));
    assert!(ask(port, "GET", "/health", "").is_none(), "nobody listens any more");
}

#[test]
fn a_device_that_fails_while_loading_keeps_it_from_starting() {
    let port = free_port();
    let began = Instant::now();
    // With a drafter, the probe computes first.
    let error =
        start(port, 3, "gemma-4-tiny-it-assistant-4bit").join().expect("no panic").expect_err("it cannot start");
    let lost =
        "the device failed, and nothing that it computes can be trusted any more: the device was taken away on purpose";
    assert_eq!(format!("{error:#}"), lost);
    assert!(began.elapsed() < Duration::from_secs(60) && ask(port, "GET", "/health", "").is_none());
}
