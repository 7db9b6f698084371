//! The binaries on an emulated GPU (tools/cuda_emulator): what a machine can lack, memory that is too small, a device that fails under
//! way, and answers that are the same twice. Where there is no C++ compiler nothing is checked, and it says so.

#[path = "../../cuda/tests/common/emulator.rs"]
mod emulator;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("project root")
}

/// A program on the device that `variables` describe. Compiled kernels are kept for all tests here.
fn program(path: &str, libraries: &Path, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MLXCEL_")) {
        command.env_remove(name);
    }
    command.args(args).current_dir(root()).stdin(Stdio::null()).env("LD_LIBRARY_PATH", libraries);
    command.env("MLXCEL_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated_cache"));
    command.envs(variables.iter().copied());
    command
}

fn mlxcel(libraries: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    program(env!("CARGO_BIN_EXE_mlxcel"), libraries, args, variables).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Four greedy tokens.
fn generate<'a>(more: &[&'a str]) -> Vec<&'a str> {
    answer("Hi.", "4", more)
}

fn answer<'a>(prompt: &'a str, most: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let model = "models/gemma-4-tiny-it-4bit";
    [&["generate", "-m", model, "-p", prompt, "--temp", "0", "-n", most, "-c", "256"], more].concat()
}

/// Must fail with status 1 and all of `words`, having said nothing.
fn refused(out: &Output, words: &[&str]) {
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(out.stdout.is_empty() && !said.contains("panicked"), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
}

/// `--backend cuda` and a backend chosen by itself, where something is missing.
fn missing(libraries: &Path, variables: &[(&str, &str)], words: &[&str]) {
    let asked = mlxcel(libraries, &generate(&["--backend", "cuda"]), variables);
    refused(&asked, &[&["--backend cuda: ", "--backend cpu computes on the processor"], words].concat());
    let auto = mlxcel(libraries, &generate(&["-md", "none", "--backend", "auto"]), variables);
    let said = text(&auto.stderr);
    assert!(auto.status.success() && !auto.stdout.is_empty(), "{said}");
    let line = said.lines().find(|line| line.starts_with("backend: cpu (auto: ")).unwrap_or_else(|| panic!("{said}"));
    words.iter().for_each(|word| assert!(line.contains(word), "{word:?} is not in {line}"));
}

#[test]
fn what_a_machine_lacks_is_said() {
    let Some(libraries) = emulator::built() else { return };
    let old = ["the CUDA driver is too old: version 12.0 or newer expected, 11.0 found"];
    missing(libraries, &[("MLXCEL_EMULATOR_DRIVER", "11000")], &old);
    missing(libraries, &[("MLXCEL_EMULATOR_DEVICES", "0")], &["the CUDA driver shows no device"]);
    let weak = ["has compute capability 7.5, 8.0 or newer expected"];
    missing(libraries, &[("MLXCEL_EMULATOR_CAPABILITY", "75")], &weak);
    // A device that was named and is not there is an error however the backend was chosen.
    for backend in ["auto", "cuda"] {
        let out = mlxcel(libraries, &generate(&["--backend", backend, "--device", "1"]), &[]);
        refused(&out, &["CUDA device 1: 0 to 0 expected"]);
    }
}

#[test]
fn a_missing_compiler_is_said() {
    let Some(libraries) = emulator::built() else { return };
    let own = Command::new("sh").args(["-c", "PATH=$PATH:/sbin:/usr/sbin; ldconfig -p"]).output();
    if own.is_ok_and(|own| text(&own.stdout).contains("libnvrtc")) {
        return println!("skipped: this machine has NVRTC where the loader always looks");
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(libraries.join("libcuda.so"), folder.path().join("libcuda.so")).expect("copied");
    let cache = folder.path().join("cache");
    let empty = [("MLXCEL_CACHE_DIR", cache.to_str().expect("UTF-8"))];
    missing(folder.path(), &empty, &["NVRTC", "libnvrtc.so.13 or .12", "nvidia-cuda-nvrtc"]);
}

/// What is asked for first, in the middle and last while a model is loaded.
#[test]
fn a_memory_too_small_is_said_with_numbers() {
    let Some(libraries) = emulator::built() else { return };
    for (bytes, what) in
        [(1_000_000, "a forward's inputs"), (6_000_000, "activations"), (16_000_000, "language_model.")]
    {
        let memory = [("MLXCEL_EMULATOR_MEMORY", &*bytes.to_string())];
        let out = mlxcel(libraries, &generate(&["--backend", "cuda", "-md", "none"]), &memory);
        refused(&out, &["the GPU's memory is full: ", &format!(" bytes needed for {what}")]);
        let said = text(&out.stderr);
        let numbers: Vec<u64> = said
            .split(|c: char| !c.is_ascii_alphanumeric())
            .zip(said.split(|c: char| !c.is_ascii_alphanumeric()).skip(1))
            .filter_map(|(number, next)| matches!(next, "bytes" | "of").then(|| number.parse().ok())?)
            .collect();
        // Needed, free, of how many.
        assert!(numbers.len() == 3 && numbers[0] > numbers[1] && numbers[1] <= bytes && numbers[2] == bytes, "{said}");
    }
}

const LOST: &str = "the GPU failed in cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED";

#[test]
fn a_device_lost_under_way_ends_the_answer() {
    let Some(libraries) = emulator::built() else { return };
    // Some tokens of the answer are there by then.
    let lost = [("MLXCEL_EMULATOR_FAIL_AFTER", "700")];
    let story = |most| answer("Tell me a story.", most, &["--backend", "cuda", "-md", "none"]);
    let out = mlxcel(libraries, &story("40"), &lost);
    let (said, errors) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{errors}");
    assert!(errors.contains(LOST) && !errors.contains("panicked"), "{errors}");
    assert!(errors.contains("nothing that it computes can be trusted any more"), "{errors}");
    // What came before is what comes without the fault.
    let whole = text(&mlxcel(libraries, &story("10"), &[]).stdout);
    assert!(!said.trim().is_empty() && whole.starts_with(said.trim_end()), "{said:?}, {whole:?}");
}

#[test]
fn a_device_lost_under_way_ends_the_server() {
    let Some(libraries) = emulator::built() else { return };
    let args = ["-m", "models/gemma-4-tiny-it-4bit", "-md", "none", "-c", "256", "--backend", "cuda", "--port", "0"];
    let lost = [("MLXCEL_EMULATOR_FAIL_AFTER", "700")];
    let mut server = program(env!("CARGO_BIN_EXE_mlxcel-server"), libraries, &args, &lost);
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(server.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let mut said = String::new();
    let address = lines.find_map(|line| {
        said += &format!("{line}\n");
        Some(line.strip_prefix("listening on http://")?.to_owned())
    });
    let address = address.unwrap_or_else(|| panic!("it does not listen: {said}"));
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me a story." }], "temperature": 0, "max_tokens": 100, "ignore_eos": true,
    });
    let body = body.to_string();
    let mut stream = TcpStream::connect(&address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(LOST), "{answer}");
    // Its other end closes when it ends.
    lines.for_each(|line| said += &format!("{line}\n"));
    let status = server.wait().expect("ended");
    assert!(status.code() == Some(1) && said.contains("the engine has stopped: "), "{status}: {said}");
    assert!(said.contains(LOST) && !said.contains("panicked"), "{said}");
}

/// Run again, in another order of threads, and with drafts: the same tokens. The probe of the start finds drafts exact.
#[test]
fn an_answer_is_the_same_again() {
    let Some(libraries) = emulator::built() else { return };
    let run = |more: &[&str], variables: &[(&str, &str)]| -> Value {
        let args = answer("Hi.", "10", &[&["--backend", "cuda", "--json"], more].concat());
        let out = mlxcel(libraries, &args, variables);
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("one object")
    };
    let first = run(&["-md", "none"], &[]);
    assert!(first["backend"].as_str().is_some_and(|b| b.starts_with("cuda ")), "{first}");
    assert!(first["tokens"].as_array().is_some_and(|tokens| tokens.len() > 4), "{first}");
    let other = [("MLXCEL_EMULATOR_ORDER", "reverse"), ("MLXCEL_EMULATOR_THREADS", "3")];
    assert_eq!(run(&["-md", "none"], &other)["tokens"], first["tokens"]);
    let drafted = run(&["-md", "models/gemma-4-tiny-it-assistant-4bit"], &[]);
    assert_eq!(drafted["tokens"], first["tokens"]);
    let speculation = &drafted["speculation"];
    assert!(speculation["exact"] == true && speculation["accepted"].as_u64() > Some(0), "{speculation}");
}

#[test]
fn the_probe_finds_blocks_exact() {
    let Some(libraries) = emulator::built() else { return };
    for model in ["tests/golden/gemma4/dense", "tests/golden/qwen3_5/dense"] {
        let few = ["--widths", "2,5", "--batch", "1", "--draws", "1", "--json", "--quiet"];
        let out = mlxcel(libraries, &[&["probe", "--backend", "cuda", "-m", model], &few[..]].concat(), &[]);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let value: Value = serde_json::from_slice(&out.stdout).expect("one object");
        assert_eq!(
            (&value["verdict"], &value["outcomes"][0]["differing_bytes"]),
            (&json!("exact"), &json!(0)),
            "{value}"
        );
    }
}
