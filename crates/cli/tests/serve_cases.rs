//! Drafters that do not fit stop a server before its first request, and one that starts without drafts says why.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("project root")
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel-server"));
    for name in ["MODEL", "MODEL_DRAFT", "DRAFT_KIND", "DRAFT_BLOCK_SIZE", "MTP_ADAPTIVE", "ENABLE_MTP_B1"] {
        command.env_remove(format!("MLXCEL_{name}"));
    }
    command.args(["--port", "0"]).args(args).current_dir(root()).env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// The server must end by itself, with an error that has all the words.
fn refused(args: &[&str], words: &[&str]) {
    let mut server = start(args);
    let late = Instant::now() + Duration::from_secs(30);
    let status = loop {
        match server.try_wait().expect("a process") {
            Some(status) => break status,
            None if Instant::now() > late => {
                server.kill().expect("killed");
                panic!("{args:?}: it still runs");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut said = String::new();
    server.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(!status.success() && !said.contains("listening on") && !said.contains("panicked"), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: {word:?} is not in {said}");
    }
}

#[test]
fn wrong_drafters_stop_the_start() {
    let empty = tempfile::tempdir().expect("a directory");
    let empty = empty.path().to_str().expect("UTF-8");
    refused(&["-md", "nowhere"], &["nowhere", "not found"]);
    refused(&["-md", empty], &[empty, "config.json"]);
    refused(&["--draft-kind", "mtp", "-md", "gemma-4-tiny-it-4bit"], &["--draft-kind mtp", "classic"]);
    refused(&["-md", "qwen3.5-tiny-mtp-4bit"], &["gemma-4-tiny-it-4bit", "qwen3.5-tiny-mtp-4bit"]);
    // A model of another vocabulary, and one whose tokens are others.
    refused(&["-md", "tests/golden/llama/qwen2"], &["vocab_size"]);
    refused(&["-md", "qwen3.5-tiny-4bit"], &["tokenizer.json"]);
}

/// A copy of a model whose configuration declares a drafting head that is not there.
fn headless(place: &Path) -> PathBuf {
    let (from, to) = (root().join("models/qwen3.5-tiny-4bit"), place.join("headless"));
    std::fs::create_dir(&to).expect("a directory");
    for file in std::fs::read_dir(&from).expect("the demo").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
    let config: Value = serde_json::from_slice(&std::fs::read(to.join("config.json")).expect("read")).expect("JSON");
    assert_eq!(config["text_config"]["mtp_num_hidden_layers"], 1, "it declares a head");
    to
}

/// What the server tells of itself.
fn props(address: &str) -> Value {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.write_all(b"GET /props HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
}

#[test]
fn a_head_that_is_not_there_is_told() {
    let place = tempfile::tempdir().expect("a directory");
    let model = headless(place.path());
    let model = model.to_str().expect("UTF-8");
    refused(&["-m", model, "--draft-kind", "mtp"], &["--draft-kind mtp", "no drafting head"]);
    let mut server = start(&["-m", model, "-c", "256"]);
    let mut lines = BufReader::new(server.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let mut said = String::new();
    let address = lines.find_map(|line| {
        said += &format!("{line}\n");
        Some(line.strip_prefix("listening on http://")?.to_owned())
    });
    let address = address.unwrap_or_else(|| panic!("it does not listen: {said}"));
    // Who reads that it listens is answered.
    let props = props(&address);
    server.kill().expect("killed");
    server.wait().expect("ended");
    let why = props["speculation"]["why"].as_str().unwrap_or_default();
    assert!(props["speculation"]["enabled"] == false && why.contains("no drafter"), "{props}");
    assert!(said.contains("no drafts: ") && said.contains(why), "{said}");
}
