//! The state law through the engine: after thousands of rounds of accepting and rejecting, recurrent states are those of plain
//! decoding by bytes, what follows is said the same, and no page is lost.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::drafts::{Known, Plan};
use common::{Driver, Rng, tokenizer};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::speculate::MAX_BLOCK;
use mlxcel_engine::{Engine, EngineOptions, Request, Speculation};
use mlxcel_model::{Model, registry};

/// Rounds for each model.
const ROUNDS: u64 = 10_000;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn load<B: Backend>(name: &str, backend: B) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(&golden(name)).unwrap_or_else(|e| panic!("{e}"));
    registry::load(&checkpoint, Arc::new(backend)).unwrap_or_else(|e| panic!("{e}"))
}

fn options(reuse: bool) -> EngineOptions {
    // Steps are short, so that prompts come in chunks; the cache takes some snapshots.
    EngineOptions { reuse, step_rows: 20, state_cache: 1 << 20, ..EngineOptions::default() }
}

/// Bits of the state that the one sequence left.
fn state(driver: &Driver) -> Option<Vec<u32>> {
    let model = driver.engine.model();
    let snapshot = model.save_state(0)?;
    Some(model.read_state(&snapshot).iter().map(|v| v.to_bits()).collect())
}

/// Runs conversations with wild drafts and without until so many rounds are done; the first difference.
fn walk<B: Backend>(name: &str, backend: impl Fn() -> B, rounds: u64, seed: u64) -> Result<(u64, u64), String> {
    let mut rng = Rng(seed);
    let mut slow = Driver::new(load(name, backend()), options(true));
    let vocab = slow.engine.model().info().vocab_size;
    let context = slow.engine.context();
    // Tokens that stand for images are refused in the next turn's prompt.
    let media = slow.engine.model().info().media_tokens.clone();
    let (mut done, mut accepted) = (0, 0);
    for turn in 0.. {
        if done >= rounds {
            break;
        }
        let mut prompt: Vec<u32> = (0..4 + rng.below(30)).map(|_| 9 + rng.below(vocab - 9) as u32).collect();
        prompt.iter_mut().filter(|t| media.contains(t)).for_each(|t| *t = 13);
        let sampling = SamplingParams {
            temperature: if turn % 3 == 0 { 0.0 } else { 0.9 },
            seed: turn,
            logprobs: Some(1),
            logit_bias: media.iter().map(|t| (*t, -100.0)).collect(),
            ..SamplingParams::default()
        };
        let tokens = (context - prompt.len()).min(60 + rng.below(120));
        let request = Request {
            prompt: prompt.clone(),
            sampling,
            max_tokens: Some(tokens),
            ignore_eos: true,
            block_size: Some(2 + rng.below(MAX_BLOCK - 1)),
            ..Request::default()
        };
        // As fresh as the other one.
        slow.engine.clear_cache();
        let want = slow.ask(request.clone()).answer;
        let truths = vec![[prompt, want.tokens.clone()].concat()];
        let speculation = Speculation { calibrate: 0, ..Speculation::default() };
        let drafter = Known::boxed(truths.clone(), Plan::Wild(seed + turn), vocab);
        let engine = Engine::with_drafter(load(name, backend()), tokenizer(), options(true), drafter, speculation);
        let mut fast = Driver::with(engine.map_err(|e| e.to_string())?);
        let id = fast.submit(request.clone());
        fast.run();
        if fast.done[&id].answer != want {
            return Err(format!("{name}: turn {turn}: the answers differ"));
        }
        if state(&fast) != state(&slow) {
            return Err(format!("{name}: turn {turn}: the states differ"));
        }
        if fast.engine.pages_used() != slow.engine.pages_used() {
            return Err(format!("{name}: turn {turn}: {:?} pages", fast.engine.pages_used()));
        }
        done += fast.rounds[&id].rounds;
        accepted += fast.rounds[&id].accepted;
        // What follows goes on from that state: an answer that only a right one gives.
        let more = Request {
            prompt: [&truths[0][..truths[0].len() - 1], &[11, 12][..]].concat(),
            max_tokens: Some(12),
            block_size: None,
            ..request
        };
        if more.prompt.len() + 12 < context && fast.ask(more.clone()).answer != slow.ask(more).answer {
            return Err(format!("{name}: turn {turn}: the next turns differ"));
        }
    }
    Ok((done, accepted))
}

#[test]
fn ten_thousand_rounds_leave_what_plain_decoding_leaves() {
    for name in ["qwen3_5/dense", "gemma4/e2b"] {
        let (rounds, accepted) =
            walk(name, || CpuBackend::new(Precision::Int8, 1), ROUNDS, 5).unwrap_or_else(|e| panic!("{e}"));
        println!("{name}: {rounds} rounds, {accepted} drafts accepted");
        assert!(accepted > rounds, "{name}: {accepted} accepted in {rounds} rounds");
    }
}

/// The twins: taking back too little, and attention that depends on the block.
#[test]
fn a_state_that_is_not_taken_back_is_noticed() {
    for (name, fault) in [
        ("qwen3_5/dense", Fault::TakeBackShort),
        ("qwen3_5/dense", Fault::TakeBackWindow),
        ("gemma4/e2b", Fault::StaleKeys),
    ] {
        let found = walk(name, || Faulty::new(CpuBackend::new(Precision::Int8, 1), fault), 2_000, 6);
        println!("{name}, {fault:?}: {found:?}");
        assert!(found.is_err(), "{name}: {fault:?} was not noticed");
    }
}
