//! The loss of the device ends every request with its reason, and the engine: no answer is made of what a lost device gives.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Driver, greedy, question, sampled, tokenizer};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request, RequestError, Speculation};
use mlxcel_model::registry;
use mlxcel_text::Tokenizer;

const REASON: &str =
    "the device failed, and nothing that it computes can be trusted any more: the device was taken away on purpose";

/// A demo, with its drafter or without, whose device goes after so many reads.
fn driver(target: &str, drafter: Option<&str>, reads: usize) -> Driver {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let open = |name: &str| Checkpoint::open(&models.join(name)).unwrap_or_else(|e| panic!("{e}"));
    let backend = Arc::new(Faulty::new(CpuBackend::new(Precision::Int8, 1), Fault::DeviceLost(reads)));
    let words = Arc::new(Tokenizer::load(&models.join(target)).unwrap_or_else(|e| panic!("{e}")));
    let options = EngineOptions { parallel: 3, step_rows: 16, context: Some(256), ..EngineOptions::default() };
    let engine = match drafter {
        None => Engine::new(registry::load(&open(target), backend).expect("a model"), words, options),
        Some(name) => {
            let pair = registry::load_pair(&open(target), &open(name), backend).expect("a pair");
            let speculation = Speculation { block_size: Some(3), calibrate: 0, ..Speculation::default() };
            Engine::with_drafter(pair.model, words, options, pair.drafter.expect("a drafter"), speculation)
        }
    };
    Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
}

fn requests() -> Vec<Request> {
    let prompt = |i: u32| [question("What is speculative decoding?"), vec![430 + i]].concat();
    (0..5).map(|i| Request { ignore_eos: true, ..sampled(prompt(i), 3 + 2 * i as usize, 7) }).collect()
}

#[test]
fn everything_ends_and_nothing_is_made_up() {
    for (target, drafter) in [
        ("gemma-4-tiny-it-4bit", None),
        ("gemma-4-tiny-it-4bit", Some("gemma-4-tiny-it-assistant-4bit")),
        ("gemma-4-tiny-it-4bit", Some("gemma-4-tiny-it-4bit")),
        ("qwen3.5-tiny-4bit", Some("qwen3.5-tiny-mtp-4bit")),
    ] {
        let mut whole = driver(target, drafter, usize::MAX);
        let honest: Vec<_> = requests().into_iter().map(|r| whole.ask(r).answer).collect();
        assert!(whole.engine.failure().is_none());
        let mut ended = 0;
        for reads in [0, 1, 2, 3, 5, 8, 13, 21] {
            let mut driver = driver(target, drafter, reads);
            let ids: Vec<_> = requests().into_iter().map(|request| driver.submit(request)).collect();
            driver.run();
            for (id, honest) in ids.iter().zip(&honest) {
                let answer = &driver.done[id].answer;
                assert!(honest.tokens.starts_with(&answer.tokens), "{target}, {reads} reads");
                match &answer.reason {
                    FinishReason::DeviceLost(why) => assert_eq!((&**why, answer.reason.name()), (REASON, "error")),
                    reason => assert_eq!((reason, &answer.tokens), (&honest.reason, &honest.tokens)),
                }
                ended += usize::from(answer.reason.failure().is_some());
            }
            if driver.engine.failure().is_none() {
                continue; // they were done before
            }
            assert_eq!(driver.engine.failure(), Some(REASON));
            assert!(driver.engine.is_idle() && driver.engine.step().is_empty() && driver.engine.panics() == 0);
            assert_eq!(driver.engine.pages_in_use().iter().sum::<usize>(), 0);
            let refused = driver.engine.submit(requests().remove(0)).expect_err("no more requests");
            assert!(matches!(refused, RequestError::DeviceLost(why) if why == REASON));
        }
        assert!(ended > 20, "{target} with {drafter:?}: {ended} of 40 requests");
    }
}

/// What a request costs in reads: the index of each token, and the values of its row if more than that decides. Seen by how far an
/// answer comes before the device goes.
#[test]
fn greedy_answers_read_indices_and_no_values() {
    let prompt = question("What is speculative decoding?");
    let full = greedy(prompt.clone(), 24);
    let bare = Request { sampling: SamplingParams::default(), ..greedy(prompt, 24) };
    let tokens = |request: &Request, reads: usize| {
        driver("gemma-4-tiny-it-4bit", None, reads).ask(request.clone()).answer.tokens.len()
    };
    let begun = (0..24).find(|reads| tokens(&bare, *reads) > 0).expect("a prompt of a few steps");
    for more in [2, 4, 6, 8] {
        assert_eq!((tokens(&bare, begun + more), tokens(&full, begun + more)), (1 + more, 1 + more / 2 - 1));
    }
}

/// The indices alone give the answers that whole rows give, in blocks and in batches as well.
#[test]
fn answers_are_the_same_with_and_without_values() {
    for (target, drafter) in [
        ("gemma-4-tiny-it-4bit", None),
        ("gemma-4-tiny-it-4bit", Some("gemma-4-tiny-it-assistant-4bit")),
        ("gemma-4-tiny-it-4bit", Some("gemma-4-tiny-it-4bit")),
        ("qwen3.5-tiny-4bit", Some("qwen3.5-tiny-mtp-4bit")),
    ] {
        let mut driver = driver(target, drafter, usize::MAX);
        let prompt = |i: u32| [question("What is speculative decoding?"), vec![430 + i]].concat();
        let full: Vec<Request> =
            (0..4).map(|i| Request { ignore_eos: true, fresh: true, ..greedy(prompt(i), 20) }).collect();
        let bare = full.iter().map(|r| Request { sampling: SamplingParams::default(), ..r.clone() });
        let ids: Vec<_> = full.iter().cloned().chain(bare).map(|request| driver.submit(request)).collect();
        driver.run();
        let (full, bare) = ids.split_at(4);
        for (full, bare) in full.iter().zip(bare) {
            let [full, bare] = [full, bare].map(|id| &driver.done[id].answer);
            assert_eq!((full.tokens.len(), &full.text, full.logprobs.len()), (20, &bare.text, 20));
            assert_eq!(full.tokens, bare.tokens, "{target} with {drafter:?}");
            assert!(bare.logprobs.is_empty());
        }
    }
}

/// The twin: one damaged row ends one request, and the engine goes on.
#[test]
fn damage_alone_is_no_loss() {
    use common::scripted::{Row, SMALL, Scripted, hash_row};
    let model = Scripted::model(SMALL, |seen| match seen[0] {
        430 => Row::Broken,
        _ => Row::Logits(hash_row(seen)),
    });
    let mut driver = Driver::over(model, tokenizer(), EngineOptions::default());
    let ask = |first: u32| sampled(vec![first, 441, 442], 4, 6);
    assert!(matches!(driver.ask(ask(430)).answer.reason, FinishReason::Error(_)));
    assert!(driver.engine.failure().is_none());
    assert_eq!(driver.ask(ask(431)).answer.tokens.len(), 4);
}
