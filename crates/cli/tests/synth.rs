//! Random-weight checkpoints of published shapes: they load, generate, draft, and say the same with drafts as without.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use mlxcel_bench::measure::{self, Ask, Run};
use mlxcel_bench::report::csv;
use mlxcel_bench::row::Status;
use mlxcel_checkpoint::Checkpoint;
use mlxcel_checkpoint::synth::{Made, Options, Shape, synth};
use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, Speculation};
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;
use serde_json::Value;

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).canonicalize().expect("in the tree")
}

/// A shape's checkpoint, a sixteenth as wide and seven layers deep: both kinds of layers, in the order of the whole.
fn small(shape: &Shape, dir: &Path) -> Made {
    let options = Options { layers: Some(7), ..Options::default() };
    let tokenizer = root("models").join(shape.demo());
    synth(&shape.shrunk(), &tokenizer, &dir.join(shape.name), &options, &mut |_| true)
        .unwrap_or_else(|e| panic!("{}: {e}", shape.name))
}

fn cpu() -> CpuBackend {
    CpuBackend::new(Precision::Int8, 2)
}

fn engine<B: Backend>(made: &Made, backend: B) -> Engine {
    let open = |path: &Path| Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
    let target = open(&made.model.path);
    let Pair { model, drafter } = match &made.drafter {
        Some(drafter) => registry::load_pair(&target, &open(&drafter.path), Arc::new(backend)).expect("a pair"),
        None => Pair { model: registry::load(&target, Arc::new(backend)).expect("a model"), drafter: None },
    };
    assert_eq!(model.info().warnings, Vec::<String>::new());
    let tokenizer = Arc::new(Tokenizer::load(&made.model.path).expect("a tokenizer"));
    assert!(tokenizer.vocab_size() < model.info().vocab_size, "padded");
    let options = EngineOptions { context: Some(512), reuse: false, ..EngineOptions::default() };
    let speculation = Speculation { calibrate: 0, ..Speculation::default() };
    match drafter {
        Some(drafter) => Engine::with_drafter(model, tokenizer, options, drafter, speculation),
        None => Engine::new(model, tokenizer, options),
    }
    .expect("an engine")
}

fn run(engine: &mut Engine, k: usize, max_tokens: usize) -> Result<Run, String> {
    let prompt: Vec<u32> = (0..30).map(|i| 300 + i * 37).collect();
    let sampling = SamplingParams::default();
    let ask =
        Ask { prompt: &prompt, k: Some(k), batch: 1, sampling: &sampling, max_tokens, ignore_eos: true, trace: true };
    measure::run(engine, &ask)
}

/// How many tokens differ from each other.
fn different(tokens: &[u32]) -> usize {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    tokens.dedup();
    tokens.len()
}

#[test]
fn every_shape_generates_and_drafts_change_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for shape in Shape::ALL {
        let made = small(&shape, dir.path());
        assert_eq!(made.layers, (7, shape.layers));
        let mut engine = engine(&made, cpu());
        // Rows that are not finite are an error.
        let plain = run(&mut engine, 1, 200).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
        let said = &plain.said[0].tokens;
        assert!(said.len() >= 200 && different(said) > 20, "{}: {said:?}", shape.name);
        let margins = plain.rounds[0].iter().flat_map(|round| round.rows.iter().map(|row| row.margin));
        assert!(margins.into_iter().all(|margin| (0.0..30.0).contains(&margin)), "{}", shape.name);
        assert_eq!(made.drafter.is_some(), shape.drafter_suffix().is_some());
        if made.drafter.is_some() {
            let drafted = run(&mut engine, 4, 60).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
            assert!(drafted.said[0].agrees(&plain.said[0]), "{}: {:?} {said:?}", shape.name, drafted.said[0].tokens);
            let proposed = drafted.rounds[0].iter().map(|round| round.proposed.len());
            // Rows of padding would have ended the drafts.
            assert!(proposed.filter(|drafts| *drafts == 3).count() > 10, "{}: few drafts", shape.name);
        }
    }
}

/// The twins: what is not finite is an error, blocks that see stale keys say something else, and a model that finds the last token
/// in its own stream repeats it.
#[test]
fn what_would_be_wrong_is_seen() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let shape = Shape::named("gemma-4-1b").expect("known");
    let made = small(&shape, dir.path());
    let plain = run(&mut engine(&made, cpu()), 1, 60).expect("a run");
    let mut faulty = engine(&made, Faulty::new(cpu(), Fault::StaleKeys));
    let drafted = run(&mut faulty, 4, 60).expect("a run");
    assert!(!drafted.said[0].agrees(&plain.said[0]), "stale keys went unseen");

    const NORM: &str = "language_model.model.norm.weight";
    let file = made.model.path.join("model.safetensors");
    let range = Checkpoint::open(&made.model.path).expect("opens").entry(NORM).expect("there").range.clone();
    let mut broken = std::fs::read(&file).expect("read");
    broken[range][..2].copy_from_slice(&[0xc0, 0x7f]);
    std::fs::write(&file, broken).expect("written");
    let error = run(&mut engine(&made, cpu()), 1, 60).expect_err("not finite");
    assert!(error.contains("finite") || error.contains("NaN"), "{error}");
}

fn command(binary: &str, dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(binary);
    command.args(args).env("MLXCEL_MODELS_DIR", dir.join("store")).env("MLXCEL_CACHE_DIR", dir.join("verdicts"));
    command.current_dir(root(".")).stdin(Stdio::null()).output().expect("the binary runs")
}

#[test]
fn the_bench_finds_what_the_verb_makes() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mlxcel = |args: &[&str]| command(env!("CARGO_BIN_EXE_mlxcel"), dir.path(), args);
    let target = dir.path().join("qwen");
    let path = target.to_str().expect("UTF-8");
    let arguments = ["synth", "--shape", "qwen3.5-0.8b", "--layers", "1", path, "--json"];
    let out = mlxcel(&arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&said["layers"], &said["layers_of_shape"]), (&1.into(), &24.into()));
    assert!(said["model"]["bytes"].as_u64() > Some(140_000_000) && said["drafter"]["path"] == format!("{path}-mtp"));

    let again = mlxcel(&arguments);
    assert!(!again.status.success() && text(&again.stderr).contains("--force"), "{}", text(&again.stderr));
    let unknown = mlxcel(&["synth", "--shape", "gemma-5", path]);
    assert!(text(&unknown.stderr).contains("gemma-4-26b-a4b"), "{}", text(&unknown.stderr));
    let help = text(&mlxcel(&["synth", "--help"]).stdout);
    assert!(Shape::ALL.iter().all(|shape| help.contains(shape.name)) && help.contains("Examples:"), "{help}");

    let rows = dir.path().join("rows.csv");
    let bench = |more: &[&str]| {
        let own =
            ["--target", path, "--block-size", "3", "-n", "16", "--repeat", "1", "--warmup", "0", "--prompt", "A"];
        let csv_file = ["--csv", rows.to_str().expect("UTF-8"), "--simulate-acceptance", "1"];
        let out = command(env!("CARGO_BIN_EXE_speculative_bench"), dir.path(), &[&own[..], &csv_file, more].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        let row = csv::read(&rows).expect("rows").remove(1);
        assert_eq!((&row.status, row.output_identical, row.acceptance_rate), (&Status::Ok, Some(true), Some(1.0)));
        (row, text(&out.stdout))
    };
    let (row, said) = bench(&[]);
    assert_eq!(row.drafter.as_deref(), Some(format!("{path}-mtp").as_str()));
    assert!(said.contains("simulated acceptance 1, drafter qwen-mtp's forward"), "{said}");
    let (row, said) = bench(&["--kind", "none"]);
    assert!(row.drafter.is_none() && !said.contains("forward"), "{said}");
}
