//! Drafting as a user meets it: which drafter is taken, what is refused, and that no flag changes an answer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_cli::args::DraftArgs;
use mlxcel_cli::draft;
use mlxcel_cli::locate::Environment;
use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::{Engine, EngineOptions, Event, Request};
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("project root")
}

fn models() -> PathBuf {
    root().join("models")
}

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let cache = tempfile::tempdir().expect("temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    for name in
        ["MODEL", "MODEL_DRAFT", "DRAFT_KIND", "DRAFT_BLOCK_SIZE", "MTP_ADAPTIVE", "ENABLE_MTP_B1", "MTP_ALLOW_INEXACT"]
    {
        command.env_remove(format!("MLXCEL_{name}"));
    }
    command.args(args).current_dir(root()).stdin(Stdio::null()).env("MLXCEL_CACHE_DIR", cache.path());
    command.envs(variables.iter().copied()).output().expect("the binary runs")
}

/// The object of a short greedy answer.
fn answer(args: &[&str], variables: &[(&str, &str)]) -> Value {
    let common = ["generate", "-p", "What is speculative decoding?", "--temp", "0", "-n", "24", "--json", "-q"];
    let out = run(&[&common, args].concat(), variables);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {stderr}");
    assert!(stderr.is_empty(), "{args:?}: {stderr}");
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn fails(args: &[&str], variables: &[(&str, &str)], words: &[&str]) {
    let out = run(&[&["generate", "-p", "Hello", "-n", "1"], args].concat(), variables);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} succeeded");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: {word:?} is not in {message:?}");
    }
}

#[test]
fn no_flag_changes_the_answer() {
    for model in ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit"] {
        let of = |args: &[&str]| answer(&[&["-m", model], args].concat(), &[]);
        let plain = of(&["-md", "none"]);
        assert_eq!(plain["speculation"], Value::Null);
        for (args, kind) in [
            (&[][..], "mtp"),
            (&["--draft-block-size", "2"], "mtp"),
            (&["--draft-block-size", "16"], "mtp"),
            (&["--draft-kind", "ngram"], "ngram"),
            (&["--draft-model", model, "--draft-kind", "classic", "--draft-block-size", "4"], "classic"),
        ] {
            let drafted = of(args);
            for field in ["text", "tokens", "finish_reason", "usage"] {
                assert_eq!(drafted[field], plain[field], "{model} {args:?}: {field}");
            }
            let counts = &drafted["speculation"];
            assert_eq!((counts["kind"].as_str(), &counts["exact"]), (Some(kind), &Value::Bool(true)), "{counts}");
            if args.contains(&"classic") {
                // The model drafts for itself.
                assert_eq!(counts["acceptance_rate"], 1.0, "{counts}");
            }
            if args.contains(&"16") {
                assert!(counts["rounds"].as_u64().is_some_and(|n| n > 0), "{counts}");
                assert!(counts["speedup"].is_number() && counts["tokens_per_round"].as_f64() > Some(1.0), "{counts}");
            }
        }
    }
}

#[test]
fn the_drafter_beside_the_model_is_taken() {
    for (model, drafter) in
        [("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-4bit"), ("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit")]
    {
        assert_eq!(answer(&["-m", model], &[])["speculation"]["drafter"], drafter);
    }
    let named = answer(&["--model-draft", "gemma-4-tiny-it-assistant-bf16"], &[]);
    assert_eq!(named["speculation"]["drafter"], "gemma-4-tiny-it-assistant-bf16");
    let variable = answer(&[], &[("MLXCEL_MODEL_DRAFT", "gemma-4-tiny-it-assistant-bf16")]);
    assert_eq!(variable["speculation"]["drafter"], "gemma-4-tiny-it-assistant-bf16");
    assert_eq!(answer(&["--draft-kind", "none"], &[])["speculation"], Value::Null);
    assert_eq!(answer(&["--draft-block-size", "1"], &[])["speculation"], Value::Null);
}

#[test]
fn the_summary_counts_rounds() {
    let out = run(&["generate", "-p", "Count to ten.", "--temp", "0", "-n", "24", "--draft-block-size", "4"], &[]);
    let line = String::from_utf8_lossy(&out.stderr).into_owned();
    for word in ["rounds", "acceptance_rate", "mean_accepted_len", "tokens_per_round", "speedup"] {
        assert!(line.contains(word), "{line}");
    }
    assert!(!line.contains("INEXACT"), "{line}");
}

#[test]
fn drafters_that_do_not_fit_are_refused() {
    let both = ["gemma-4-tiny-it-4bit", "qwen3.5-tiny-mtp-4bit"];
    fails(&["-m", both[0], "-md", both[1]], &[], &[both[0], both[1], "qwen3_5_mtp", "gemma4"]);
    fails(
        &["-m", "qwen3.5-tiny-4bit", "-md", "gemma-4-tiny-it-assistant-4bit"],
        &[],
        &["qwen3.5-tiny-4bit", "assistant"],
    );
    // The same vocabulary size, other tokens.
    fails(
        &["-m", "gemma-4-tiny-it-4bit", "-md", "qwen3.5-tiny-4bit"],
        &[],
        &["gemma-4-tiny-it-4bit", "qwen3.5-tiny-4bit", "tokenizer.json", "token "],
    );
    let golden = root().join("tests/golden/llama/qwen2");
    fails(&["-md", &golden.display().to_string()], &[], &["vocab_size", "16384", "gemma-4-tiny-it-4bit", "qwen2"]);
    fails(&["-md", "nowhere"], &[], &["nowhere", "was not found"]);
    fails(&["--draft-kind", "classic"], &[], &["--model-draft"]);
    fails(&["--draft-kind", "ngram", "-md", both[1]], &[], &["--draft-kind ngram", both[1]]);
    fails(&["--draft-kind", "mtp", "-md", both[0]], &[], &["--draft-kind mtp", "classic"]);
    fails(&["--draft-kind", "mtp", "-m", &golden.display().to_string()], &[], &["no drafting head", "qwen2-assistant"]);
    fails(&["--draft-block-size", "17"], &[], &["--draft-block-size", "1 to 16"]);
    fails(&[], &[("MLXCEL_MTP_ADAPTIVE", "maybe")], &["MLXCEL_MTP_ADAPTIVE", "maybe"]);
}

#[test]
fn variables_pin_the_width() {
    let four = answer(&[], &[("MLXCEL_MTP_ADAPTIVE", "0")]);
    let four = &four["speculation"];
    // The assistant's own width is 4: rounds of three drafts, but for the first steps and the last.
    let (rounds, proposed) = (four["rounds"].as_u64().expect("rounds"), four["proposed"].as_u64().expect("proposed"));
    assert!(rounds > 2 && proposed > 2 * rounds && proposed <= 3 * rounds, "{four}");
    let never = answer(&[], &[("MLXCEL_ENABLE_MTP_B1", "0")]);
    assert_eq!(never["speculation"]["rounds"], 0);
    let always = answer(&[], &[("MLXCEL_ENABLE_MTP_B1", "1")]);
    assert_eq!(always["speculation"]["rounds"], rounds);
    let block = answer(&[], &[("MLXCEL_DRAFT_BLOCK_SIZE", "2")]);
    assert_eq!(block["speculation"]["rounds"], block["speculation"]["proposed"]);
}

fn pair<B: Backend>(backend: B) -> Pair {
    let open = |name: &str| Checkpoint::open(&models().join(name)).unwrap_or_else(|e| panic!("{e}"));
    registry::load_pair(&open("gemma-4-tiny-it-4bit"), &open("gemma-4-tiny-it-assistant-4bit"), Arc::new(backend))
        .unwrap_or_else(|e| panic!("{e}"))
}

fn tokens(mut engine: Engine) -> Vec<u32> {
    let prompt = engine.tokenizer().encode_raw("Once upon a time").expect("ids");
    engine.submit(Request { prompt, max_tokens: Some(12), ..Request::default() }).expect("valid");
    let mut out = Vec::new();
    while !engine.is_idle() {
        out.extend(engine.step().into_iter().filter_map(|event| match event {
            Event::Token(token) => Some(token.token),
            Event::Finished(_) => None,
        }));
    }
    out
}

/// On a backend that is not exact the gate closes: the engine does not draft, and still answers.
#[test]
fn an_inexact_backend_serves_plain_decoding() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let environment = Environment { cache: Some(cache.path().into()), ..Environment::default() };
    let tokenizer = || Arc::new(Tokenizer::load(&models().join("gemma-4-tiny-it-4bit")).expect("tokenizer"));
    let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
    let faulty = || Faulty::new(CpuBackend::new(Precision::Int8, 2), Fault::WideLinear);
    let args = DraftArgs::default();
    let plain = tokens(Engine::new(pair(faulty()).model, tokenizer(), options.clone()).expect("engine"));
    // The second time the verdict is read back.
    for _ in 0..2 {
        let (engine, inexact) =
            draft::engine(pair(faulty()), tokenizer(), options.clone(), &args, &environment).expect("engine");
        assert!(engine.speculator().is_none() && !inexact);
        assert_eq!(tokens(engine), plain);
    }
    // An honest backend drafts.
    let honest = pair(CpuBackend::new(Precision::Int8, 2));
    let (engine, inexact) = draft::engine(honest, tokenizer(), options, &args, &environment).expect("engine");
    assert!(engine.speculator().is_some() && !inexact);
}
