//! The identity law on trained models with their drafters: with speculation on, tokens, text, finish reason, usage and the bits of
//! log-probabilities are those of plain decoding, for every kind of sampling, block width and number of sequences.
//!
//! `MLXCEL_IDENTITY=full` runs every request at every width in every batch; by default each width and batch gets a part of the
//! requests, such that all of them meet several widths and batches.

mod common;

use std::sync::Arc;

use common::pairs::{Case, gemma, is_full, models, qwen};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::{Request, Rounds};
use mlxcel_model::registry::Pair;

const WIDTHS: [usize; 6] = [2, 3, 4, 5, 8, 16];
const BATCHES: [usize; 4] = [1, 2, 4, 8];

fn smollm2() -> Option<Case> {
    let target = models().join("../target/smollm2/4bit");
    target.join("config.json").is_file().then_some(Case {
        name: "SmolLM2 with prompt lookup",
        target,
        drafter: None,
        chat: |q| format!("<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n"),
        tokens: 10,
        parts: 6,
    })
}

/// The pair on the CPU as it runs by default.
fn pair(case: &Case) -> Pair {
    case.pair(Arc::new(CpuBackend::new(Precision::Int8, 2)))
}

/// Runs the matrix; answers compared, and the counts of all rounds.
fn matrix(case: &Case) -> (usize, Rounds) {
    let requests = case.requests();
    let want = case.plain(pair(case).model, &requests);
    let (mut compared, mut all) = (0, Rounds::default());
    for (column, b) in BATCHES.into_iter().enumerate() {
        let mut driver = case.engine(pair(case), b, false);
        for (row, k) in WIDTHS.into_iter().enumerate() {
            // Another part of the requests for each width of a batch and each batch of a width.
            let parts = BATCHES.len() * case.parts;
            let meets = |i: usize| is_full() || (i / 6 + i + row) % parts == column;
            let chosen: Vec<usize> = (0..requests.len()).filter(|i| meets(*i)).collect();
            let ask = |i: &usize| Request { block_size: Some(k), ..requests[*i].clone() };
            let ids: Vec<_> = chosen.iter().map(|i| driver.submit(ask(i))).collect();
            driver.run();
            for (i, id) in chosen.iter().zip(&ids) {
                let what = format!("{}, K={k}, B={b}, request {i} {:?}", case.name, requests[*i].sampling);
                assert_eq!(driver.done[id].answer, want[*i], "{what}");
            }
            compared += chosen.len();
            assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
        }
        let totals = driver.engine.speculator().expect("a drafter").totals();
        all.rounds += totals.rounds;
        all.proposed += totals.proposed;
        all.accepted += totals.accepted;
        assert_eq!(driver.engine.take_warnings(), Vec::<String>::new());
    }
    (compared, all)
}

fn report(case: &Case) -> Rounds {
    let (compared, rounds) = matrix(case);
    println!(
        "{}: {compared} answers equal those of plain decoding; {} rounds, {} of {} drafts accepted{}",
        case.name,
        rounds.rounds,
        rounds.accepted,
        rounds.proposed,
        if is_full() { "" } else { " (a part of the matrix; MLXCEL_IDENTITY=full runs all of it)" }
    );
    rounds
}

#[test]
fn gemma_with_its_assistant() {
    let rounds = report(&gemma("gemma-4-tiny-it-assistant-4bit"));
    // Biased, penalised and hot answers are hard to foresee, fifteen tokens ahead above all.
    assert!(rounds.acceptance_rate().expect("rounds") > 0.2, "{rounds:?}");
    if is_full() {
        report(&gemma("gemma-4-tiny-it-assistant-bf16"));
    }
}

#[test]
fn qwen_with_its_head() {
    let rounds = report(&qwen());
    // Biased, penalised and hot answers are hard to foresee, fifteen tokens ahead above all.
    assert!(rounds.acceptance_rate().expect("rounds") > 0.2, "{rounds:?}");
}

#[test]
fn smollm2_with_prompt_lookup() {
    match smollm2() {
        Some(case) => {
            let rounds = report(&case);
            assert!(rounds.rounds > 30, "{rounds:?}");
        }
        None => {
            // CI makes it first, and a skipped test must not look like one that passed there.
            assert!(std::env::var_os("MLXCEL_NEED_SMOLLM2").is_none(), "no SmolLM2 in target/smollm2");
            println!("skipped: no SmolLM2 in target/smollm2; tools/smollm2/check.py --convert makes it");
        }
    }
}

/// The next turn of a conversation, from what the last one left in the cache.
#[test]
fn warm_caches_answer_as_cold_ones() {
    for case in [gemma("gemma-4-tiny-it-assistant-4bit"), qwen()] {
        let first =
            |(i, request)| Request { block_size: Some(WIDTHS[i % WIDTHS.len()]), max_tokens: Some(60), ..request };
        let firsts = case.requests().into_iter().step_by(11).enumerate().map(first).collect();
        let reused = case.conversations(|| pair(&case), firsts);
        assert!(reused > 100, "{}: {reused} positions reused", case.name);
    }
}

/// Answers that run past the window's wrap and over many pages, with widths pinned and as they adapt.
#[test]
fn long_answers_are_those_of_plain_decoding() {
    for case in [gemma("gemma-4-tiny-it-assistant-4bit"), qwen()] {
        let mut requests: Vec<Request> = case.requests().into_iter().step_by(37).take(6).collect();
        for (i, request) in requests.iter_mut().enumerate() {
            (request.max_tokens, request.ignore_eos) = (Some(420), true);
            request.stop = Vec::new();
            request.block_size = [None, Some(4), Some(16)][i % 3];
        }
        let want = case.plain(pair(&case).model, &requests);
        for b in [1, 3] {
            let mut driver = case.engine(pair(&case), b, false);
            let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
            driver.run();
            for (i, id) in ids.iter().enumerate() {
                assert_eq!(driver.done[id].answer, want[i], "{}, B={b}, request {i}", case.name);
            }
        }
    }
}

/// The twin: a backend whose sums depend on the width is noticed by exactly these comparisons.
#[test]
fn a_width_dependent_backend_is_noticed() {
    let case = gemma("gemma-4-tiny-it-assistant-4bit");
    let requests: Vec<Request> = case.requests().into_iter().step_by(5).collect();
    let faulty = || Arc::new(Faulty::new(CpuBackend::new(Precision::Int8, 2), Fault::WidthDependentSum));
    let differs = case.differing(|| case.pair(faulty()), &requests, 8);
    println!("{differs} of {} answers differ", requests.len());
    assert!(differs > 0);
}
