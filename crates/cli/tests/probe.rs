//! `mlxcel probe` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).canonicalize().expect("in the tree")
}

fn probe(model: &Path, args: &[&str]) -> Output {
    let cache = tempfile::tempdir().expect("temporary directory");
    mlxcel(&[&["probe", "-m", model.to_str().expect("UTF-8 path")], args].concat(), cache.path())
}

fn mlxcel(args: &[&str], cache: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    for name in ["MLXCEL_MODEL", "MLXCEL_MODEL_DRAFT", "MLXCEL_DRAFT_KIND", "MLXCEL_DRAFT_BLOCK_SIZE"] {
        command.env_remove(name);
    }
    command.args(args).env("MLXCEL_CACHE_DIR", cache).stdin(Stdio::null()).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn both_families_are_exact() {
    for name in ["gemma4/dense", "qwen3_5/dense"] {
        let model = root("tests/golden").join(name);
        let args = ["--backend", "cpu", "--widths", "2,5", "--batch", "1,3", "--draws", "2"];
        let out = probe(&model, &args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let (said, errors) = (text(&out.stdout), text(&out.stderr));
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("K=")).collect();
        let begins = [
            "K=2 B=1  exact  ",
            "K=5 B=1  exact  ",
            "K=1 B=3  exact  ",
            "K=2 B=3  exact  ",
            "K=5 B=3  exact  ",
            "K=1..5 mixed with a prompt, B=3  exact  ",
        ];
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
        assert_eq!(sizes, [(2, 1), (5, 1), (1, 3), (2, 3), (5, 3), (5, 3)].map(|(k, b)| (Some(k), Some(b))));
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
        // What cannot be read as arguments is told apart from a model that cannot be run.
        assert_eq!(out.status.code(), Some(if args[0] == "--model-draft" { 1 } else { 2 }), "{args:?}: {message}");
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
    for part in ["0 exact", "3 inexact", "1 error", "2 bad arguments", "2 to 16", "--widths", "--model-draft"] {
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

/// What the verb finds is what the next start knows: all widths are probed, and a kept difference is mended by it.
#[test]
fn findings_are_kept_for_the_next_start() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let generate = ["generate", "-p", "Hi.", "--temp", "0", "-n", "4", "--json", "-m"];
    let model = root("models/gemma-4-tiny-it-4bit");
    let model = model.to_str().expect("UTF-8 path");
    let start = || {
        let out = mlxcel(&[&generate[..], &[model]].concat(), cache.path());
        let answer: Value = serde_json::from_slice(&out.stdout).expect("one object");
        (answer["speculation"].clone(), text(&out.stderr))
    };
    let out = mlxcel(&["probe", "-m", model, "--draws", "1"], cache.path());
    let lines = text(&out.stdout);
    for k in 2..=16 {
        assert!(
            lines.contains(&format!("K={k} B=1  exact")) && lines.contains(&format!("K={k} B=4  exact")),
            "{lines}"
        );
    }
    let file = || {
        let files: Vec<_> = std::fs::read_dir(cache.path().join("probe")).expect("kept").flatten().collect();
        assert_eq!(files.len(), 1, "one model, one build");
        files[0].path()
    };
    let read = || -> Value { serde_json::from_slice(&std::fs::read(file()).expect("read")).expect("JSON") };
    let kept = read();
    assert_eq!(start().0["exact"], json!(true));
    assert_eq!(read(), kept, "the start found all it wants and probed nothing");
    let mut planted = kept.clone();
    planted["inexact"] = json!({ "width": 2, "batch": 1, "draws": 1, "line": "planted" });
    std::fs::write(file(), planted.to_string()).expect("written");
    let (speculation, said) = start();
    assert!(speculation["declined"].as_str().is_some_and(|why| why.contains("planted")), "{speculation}");
    assert!(said.contains("WARN: ") && said.contains(&format!("mlxcel probe -m {model}")), "{said}");
    // A probe of less leaves it, a whole one mends it.
    mlxcel(&["probe", "-m", model, "--draws", "1", "--widths", "4", "--batch", "1"], cache.path());
    assert!(start().0["declined"].is_string());
    mlxcel(&["probe", "-m", model, "--draws", "1", "--batch", "1"], cache.path());
    assert_eq!(start().0["exact"], json!(true));
}
