//! A matrix with more rows than the tokenizer has ids, as many public checkpoints have: the rows beyond are nobody's, and
//! everything goes on as if they were not there.

mod common;

use std::sync::Arc;

use common::drafts::{Known, Plan};
use common::{Driver, demo, demo_dir, greedy, question, sampled};
use mlxcel_cpu::Precision;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Speculation};
use mlxcel_text::Tokenizer;
use serde_json::{Value, json};

/// Ids that are left.
const KEPT: usize = 16_000;

/// The demo's tokenizer without its last ids.
fn shorter() -> Arc<Tokenizer> {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["tokenizer_config.json", "generation_config.json", "config.json"] {
        std::fs::copy(demo_dir().join(name), dir.path().join(name)).expect("copied");
    }
    let text = std::fs::read_to_string(demo_dir().join("tokenizer.json")).expect("read");
    let mut file: Value = serde_json::from_str(&text).expect("JSON");
    let vocab = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocab.retain(|_, id| id.as_u64().is_some_and(|id| id < KEPT as u64));
    let left = vocab.clone();
    let merges = file["model"]["merges"].as_array_mut().expect("merges");
    merges.retain(|pair| {
        let part = |i: usize| pair[i].as_str().expect("a string");
        left.contains_key(&format!("{}{}", part(0), part(1)))
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).expect("written");
    let tokenizer = Tokenizer::load(dir.path()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(tokenizer.vocab_size(), KEPT);
    Arc::new(tokenizer)
}

#[test]
fn padding_rows_are_nobodys() {
    let tokenizer = shorter();
    let prompt = question("Tell me a story about a brave rabbit.");
    assert!(prompt.iter().all(|id| (*id as usize) < KEPT));
    let mut biased = sampled(prompt.clone(), 40, 3);
    // Padding, whatever is wished for it, is never chosen.
    biased.sampling.logit_bias = vec![(KEPT as u32 + 5, 100.0), (1743, -1.0)];
    for request in [greedy(prompt.clone(), 40), sampled(prompt.clone(), 40, 7), biased] {
        let mut plain = Driver::over(demo(Precision::Int8), Arc::clone(&tokenizer), EngineOptions::default());
        let want = plain.ask(request.clone()).answer;
        assert!(!matches!(want.reason, FinishReason::Error(_)), "{:?}", want.reason);
        assert!(want.tokens.len() > 10 && want.tokens.iter().all(|id| (*id as usize) < KEPT), "{:?}", want.tokens);
        let truths = vec![[prompt.clone(), want.tokens.clone()].concat()];
        for plan in [Plan::Oracle, Plan::Wild(5), Plan::Inject(1, KEPT as u32 + 5)] {
            let drafter = Known::boxed(truths.clone(), plan, KEPT);
            let speculation = Speculation { calibrate: 0, block_size: Some(4), ..Speculation::default() };
            let (model, options) = (demo(Precision::Int8), EngineOptions::default());
            let engine = Engine::with_drafter(model, Arc::clone(&tokenizer), options, drafter, speculation);
            let found = Driver::with(engine.unwrap_or_else(|e| panic!("{e}"))).ask(request.clone()).answer;
            assert_eq!(found, want);
        }
    }
}

/// The twin: without the cut, a bias would bring a padding row into the answer.
#[test]
fn with_all_rows_assigned_the_bias_would_win() {
    let mut request = greedy(question("Tell me a story."), 3);
    request.sampling.logit_bias = vec![(KEPT as u32 + 5, 100.0)];
    let answer = Driver::new(demo(Precision::Int8), EngineOptions::default()).ask(request).answer;
    assert_eq!(json!(answer.tokens[0]), json!(KEPT + 5));
}
