//! `mlxcel probe` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).canonicalize().expect("in the tree")
}

fn probe(model: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    for name in ["MLXCEL_MODEL", "MLXCEL_MODEL_DRAFT", "MLXCEL_DRAFT_KIND", "MLXCEL_DRAFT_BLOCK_SIZE"] {
        command.env_remove(name);
    }
    command.arg("probe").arg("-m").arg(model).args(args).stdin(Stdio::null()).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn both_families_are_exact() {
    for name in ["gemma4/dense", "qwen3_5/dense"] {
        let model = root("tests/golden").join(name);
        let args = ["--widths", "2,5", "--batch", "1,3", "--draws", "2"];
        let out = probe(&model, &args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let (said, errors) = (text(&out.stdout), text(&out.stderr));
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("K=")).collect();
        let begins =
            ["K=2 B=1  exact  ", "K=5 B=1  exact  ", "K=1 B=3  exact  ", "K=2 B=3  exact  ", "K=5 B=3  exact  "];
        assert_eq!(lines.len(), begins.len(), "{said}");
        for (line, begin) in lines.iter().zip(begins) {
            assert!(line.starts_with(begin), "{begin:?} expected: {said}");
            assert_eq!(line.contains(" states"), name.starts_with("qwen"), "{line}");
        }
        assert!(said.contains(&model.display().to_string()) && said.contains("\nEXACT: "), "{said}");
        assert!(errors.is_empty(), "{errors}");

        let json = probe(&model, &[&args[..], &["--json", "--quiet"]].concat());
        let value: Value = serde_json::from_slice(&json.stdout).expect("one object");
        assert_eq!((&value["verdict"], &value["draws"]), (&json!("exact"), &json!(2)));
        let outcomes = value["outcomes"].as_array().expect("outcomes");
        let sizes: Vec<_> = outcomes.iter().map(|o| (o["width"].as_u64(), o["batch"].as_u64())).collect();
        assert_eq!(sizes, [(2, 1), (5, 1), (1, 3), (2, 3), (5, 3)].map(|(k, b)| (Some(k), Some(b))));
        for outcome in outcomes {
            assert_eq!(outcome["exact"], json!(true), "{outcome}");
            assert_eq!((&outcome["differing_bytes"], &outcome["first"]), (&json!(0), &Value::Null), "{outcome}");
            assert!(
                outcome["rows"].as_u64() > Some(0) && outcome["bytes"].as_u64() > outcome["rows"].as_u64(),
                "{outcome}"
            );
        }
        let quiet = probe(&model, &["--widths", "2", "--batch", "1", "--draws", "1", "--quiet"]);
        assert_eq!((quiet.status.code(), quiet.stdout.len(), quiet.stderr.len()), (Some(0), 0, 0));
    }
}

#[test]
fn a_drafter_is_checked_and_named() {
    let target = root("tests/golden/gemma4/dense");
    let few = ["--widths", "2", "--batch", "1", "--draws", "1"];
    let with = |draft: &Path| {
        let draft = draft.to_str().expect("UTF-8 path");
        probe(&target, &[&few[..], &["--model-draft", draft]].concat())
    };
    // A model drafts for itself: slow, but it fits.
    let classic = with(&root("tests/golden/gemma4/dense-mlx-q4"));
    assert_eq!(classic.status.code(), Some(0), "{}", text(&classic.stderr));
    assert!(text(&classic.stdout).contains("dense-mlx-q4 (classic)"), "{}", text(&classic.stdout));
    let refused = with(&root("models/qwen3.5-tiny-4bit"));
    assert_eq!(refused.status.code(), Some(1));
    let message = text(&refused.stderr);
    for part in ["gemma4/dense", "qwen3.5-tiny-4bit"] {
        assert!(message.contains(part), "{part:?} not in {message}");
    }
    assert!(refused.stdout.is_empty());
}

#[test]
fn bad_input_is_an_error_and_no_verdict() {
    let model = root("tests/golden/gemma4/dense");
    for (args, words) in [
        (["--widths", "1,2"], ["--widths", "2..=16"]),
        (["--widths", "17"], ["--widths", "2..=16"]),
        (["--widths", "two"], ["--widths", "invalid"]),
        (["--batch", "0"], ["--batch", "1..=64"]),
        (["--batch", "65"], ["--batch", "1..=64"]),
        (["--draws", "0"], ["--draws", "1.."]),
        (["--model-draft", "no/such/place"], ["no/such/place", "no such"]),
    ] {
        let out = probe(&model, &args);
        let message = text(&out.stderr);
        assert!(out.status.code().is_some_and(|code| code == 1 || code == 2), "{args:?}: {message}");
        assert!(out.stdout.is_empty() && !message.contains("panicked"), "{args:?}: {message}");
        words.iter().for_each(|word| assert!(message.contains(word), "{args:?}: {word:?} not in {message}"));
    }
    let nowhere = probe(Path::new("/no/such/model"), &[]);
    assert_eq!(nowhere.status.code(), Some(1), "{}", text(&nowhere.stderr));
}

#[test]
fn help_names_the_exit_statuses() {
    let out = Command::new(env!("CARGO_BIN_EXE_mlxcel")).args(["probe", "--help"]).output().expect("the binary runs");
    let help = text(&out.stdout);
    for part in ["0 exact", "3 inexact", "1 error", "--widths", "--model-draft"] {
        assert!(help.contains(part), "{part:?} not in {help}");
    }
}

/// A model whose rows cannot be compared is an error with the place of the damage, not a verdict.
#[test]
fn damage_is_an_error() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let model = root("tests/golden/gemma4/dense");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(model.join(file), dir.path().join(file)).expect("copied");
    }
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    // All ones are NaN in every float type; the header, with its length before it, stays.
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8 + header..].fill(0xff);
    std::fs::write(&path, bytes).expect("written");
    let out = probe(dir.path(), &["--widths", "2", "--batch", "1", "--draws", "1"]);
    let message = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{message}");
    assert!(message.contains("not finite") && message.contains(&dir.path().display().to_string()), "{message}");
}
