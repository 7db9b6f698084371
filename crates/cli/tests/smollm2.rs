//! A real public model: SmolLM2-135M-Instruct, imported from GGUF and quantised to 8 bits, chats.
//!
//! The model is not part of the project. `tools/smollm2/README.md` says how to fetch and convert it (CI does); without it these
//! tests say so and pass nothing off as checked.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The converted model, where the tools put it or where `MLXCEL_SMOLLM2` says.
fn model() -> Option<PathBuf> {
    let place = std::env::var_os("MLXCEL_SMOLLM2")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/smollm2"), PathBuf::from)
        .join("8bit");
    if place.join("config.json").is_file() {
        return Some(place);
    }
    println!("SKIPPED: no model at {}; tools/smollm2/README.md says how to get it", place.display());
    None
}

fn mlxcel(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mlxcel"))
        .args(arguments)
        .env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mlxcel starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let out = child.wait_with_output().expect("mlxcel ends");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{arguments:?}: {stderr}");
    stdout.into_owned()
}

#[test]
fn it_answers_through_its_own_template() {
    let Some(model) = model() else { return };
    let model = model.to_str().expect("a path");
    let ask = |question: &str| mlxcel(&["generate", "-m", model, "-p", question, "--temp", "0", "-n", "64", "-q"], "");
    let answer = ask("What is the capital of France?");
    assert!(answer.contains("Paris"), "{answer}");
    assert!(!answer.contains("<|im"), "the template's marks are no text: {answer}");
    let answer = ask("What is two plus two? Answer with one number.");
    assert!(answer.contains('4') || answer.to_lowercase().contains("four"), "{answer}");
}

#[test]
fn it_remembers_the_conversation() {
    let Some(model) = model() else { return };
    let model = model.to_str().expect("a path");
    let chat = |lines: &str| mlxcel(&["run", "-m", model, "--temp", "0", "-n", "48"], lines);
    let question = "Say my name again.\n";
    let with = chat(&format!("My name is Nora. Please greet me by name.\n{question}"));
    assert!(with.matches("Nora").count() >= 2, "{with}");
    // The twin: asked afresh, it cannot know.
    let without = chat(question);
    assert!(!without.contains("Nora"), "{without}");
}

#[test]
fn one_thread_and_two_say_the_same() {
    let Some(model) = model() else { return };
    let model = model.to_str().expect("a path");
    let tokens = |threads: &str| {
        let arguments = [
            "generate",
            "-m",
            model,
            "-p",
            "Name three fruits.",
            "--temp",
            "0",
            "-n",
            "40",
            "-q",
            "--json",
            "-t",
            threads,
        ];
        let json: serde_json::Value = serde_json::from_str(&mlxcel(&arguments, "")).expect("JSON");
        json["tokens"].clone()
    };
    assert_eq!(tokens("1"), tokens("2"));
}
