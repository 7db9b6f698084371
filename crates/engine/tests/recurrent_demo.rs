//! The trained demo of the recurrent family behind the engine: load, continued conversations and taking up the middle of one
//! change no byte.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{Answer, Driver, Rng, greedy, sampled};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::{EngineOptions, Request};
use mlxcel_model::{Model, registry};
use mlxcel_text::Tokenizer;

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/qwen3.5-tiny-4bit")
}

fn model(precision: Precision) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(&dir()).unwrap_or_else(|e| panic!("{e}"));
    registry::load(&checkpoint, Arc::new(CpuBackend::new(precision, 1))).unwrap_or_else(|e| panic!("{e}"))
}

fn driver(precision: Precision, options: EngineOptions) -> Driver {
    let tokenizer = Tokenizer::load(&dir()).unwrap_or_else(|e| panic!("{e}"));
    Driver::over(model(precision), Arc::new(tokenizer), options)
}

fn alone(precision: Precision, request: Request) -> Answer {
    let record = driver(precision, EngineOptions { reuse: false, ..EngineOptions::default() }).ask(request);
    assert_eq!(record.cached_tokens, 0);
    record.answer
}

fn ids(rng: &mut Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| 300 + rng.below(12_000) as u32).collect()
}

#[test]
fn conversations_equal_fresh_ones() {
    for precision in [Precision::F32, Precision::Int8] {
        for step_rows in [33, 512] {
            let mut rng = Rng(3);
            let mut chat = driver(precision, EngineOptions { step_rows, ..EngineOptions::default() });
            let mut prompt = ids(&mut rng, 150);
            let mut known = 0;
            for turn in 0..3 {
                let request = if turn == 1 { sampled(prompt.clone(), 20, 5) } else { greedy(prompt.clone(), 20) };
                let record = chat.ask(request.clone());
                assert_eq!(record.cached_tokens, known, "all but the last token of the turn before");
                assert_eq!(record.answer, alone(precision, request), "turn {turn}");
                known = prompt.len() + record.answer.tokens.len() - 1;
                prompt.extend(&record.answer.tokens);
                prompt.extend(ids(&mut rng, 90));
            }
            // Another end for the last question: from the snapshot before the place where it differs.
            let mut other = prompt[..310].to_vec();
            other.extend(ids(&mut rng, 40));
            let record = chat.ask(greedy(other.clone(), 12));
            assert!(record.cached_tokens >= 64 && record.cached_tokens.is_multiple_of(64), "{}", record.cached_tokens);
            assert_eq!(record.answer, alone(precision, greedy(other, 12)));
        }
    }
}

#[test]
fn beginnings_are_shared_at_snapshots() {
    let mut rng = Rng(12);
    let system = ids(&mut rng, 300);
    let options = EngineOptions { parallel: 2, step_rows: 200, cache_bytes: 64 << 20, ..EngineOptions::default() };
    let mut shared = driver(Precision::Int8, options);
    let requests: Vec<Request> = (0..5).map(|i| sampled([&system[..], &ids(&mut rng, 60)].concat(), 12, i)).collect();
    let cached: Vec<usize> = requests
        .iter()
        .map(|request| {
            let record = shared.ask(request.clone());
            assert_eq!(record.answer, alone(Precision::Int8, request.clone()));
            record.cached_tokens
        })
        .collect();
    // The first leaves snapshots where its steps ended, the second one where it parted from the first.
    assert_eq!(cached, [0, 192, 256, 256, 256]);
    shared.engine.audit_cache().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_loaded_engine_answers_as_an_idle_one() {
    let mut rng = Rng(9);
    let mut shared = driver(Precision::Int8, EngineOptions { parallel: 3, step_rows: 40, ..EngineOptions::default() });
    let requests: Vec<Request> = (0..7u64)
        .map(|i| {
            let length = 3 + rng.below(120);
            sampled(ids(&mut rng, length), 10 + i as usize, i)
        })
        .collect();
    let known: Vec<_> = requests.iter().map(|r| shared.submit(r.clone())).collect();
    shared.run();
    for (id, request) in known.iter().zip(&requests) {
        assert_eq!(shared.done[id].answer, alone(Precision::Int8, request.clone()));
    }
}

#[test]
fn without_a_budget_a_conversation_starts_afresh() {
    let mut rng = Rng(4);
    let mut chat = driver(Precision::Int8, EngineOptions { state_cache: 0, ..EngineOptions::default() });
    let prompt = ids(&mut rng, 200);
    chat.ask(greedy(prompt.clone(), 5));
    let other = [prompt[..190].to_vec(), ids(&mut rng, 5)].concat();
    let record = chat.ask(greedy(other.clone(), 5));
    assert_eq!((record.cached_tokens, record.answer), (0, alone(Precision::Int8, greedy(other, 5))));
}
