//! Answers do not depend on load: not on who shares the batch, when the others came, or how prompts were cut.

mod common;

use common::{Answer, Driver, alone, demo, demo_on, greedy, question, sampled, scripted, story};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{EngineOptions, Request};
use mlxcel_model::Model;

/// Eight requests of all kinds and lengths; the first 1, 2, 4 or 8 of them make a load.
fn requests() -> Vec<Request> {
    let everything = |prompt: Vec<u32>, seed| {
        let base = sampled(prompt, 12, seed);
        let sampling = SamplingParams {
            top_k: 40,
            top_p: 0.9,
            min_p: 0.01,
            repetition_penalty: 1.1,
            presence_penalty: 0.4,
            frequency_penalty: 0.3,
            logit_bias: vec![(433, -1.5), (528, 0.75)],
            ..base.sampling
        };
        Request { sampling, stop: vec!["The end".into()], ..base }
    };
    vec![
        sampled(question("Tell me a story about a dragon."), 16, 42),
        everything(story(50), 7),
        greedy(question("What is speculative decoding?"), 12),
        everything(story(11), 8),
        sampled(vec![2], 14, 3),
        Request { ignore_eos: true, ..greedy(question("What is 12 + 7?"), 18) },
        sampled(story(80), 8, 42),
        greedy(story(270), 6),
    ]
}

/// The answers of requests that arrive two steps apart, newest work beside oldest.
fn together(model: Box<dyn Model>, requests: &[Request], step_rows: usize) -> Vec<Answer> {
    let options = EngineOptions { parallel: requests.len(), step_rows, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(model, options);
    let mut ids = Vec::new();
    for request in requests {
        ids.push(driver.submit(request.clone()));
        driver.steps(2);
    }
    driver.run();
    ids.iter().map(|id| driver.done[id].answer.clone()).collect()
}

/// The first answer that a load changes, in words.
fn first_difference(model: impl Fn() -> Box<dyn Model>, loads: &[usize], step_rows: &[usize]) -> Option<String> {
    let most = *loads.iter().max().expect("a load");
    let requests = &requests()[..most];
    let want: Vec<Answer> = requests.iter().map(|r| alone(model(), r.clone())).collect();
    for load in loads {
        for rows in step_rows {
            let got = together(model(), &requests[..*load], *rows);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                if got != want {
                    return Some(format!("request {i} of {load}, {rows} rows a step: {got:?}\nalone: {want:?}"));
                }
            }
        }
    }
    None
}

#[test]
fn int8_answers_do_not_depend_on_load() {
    assert_eq!(first_difference(|| demo(Precision::Int8), &[1, 2, 4, 8], &[1, 7, 64, 512]), None);
}

#[test]
fn f32_answers_do_not_depend_on_load() {
    assert_eq!(first_difference(|| demo(Precision::F32), &[1, 8], &[7, 64]), None);
    assert_eq!(first_difference(|| demo(Precision::F32), &[2, 4], &[1, 512]), None);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let requests = &requests()[..4];
    let one = together(demo(Precision::Int8), requests, 64);
    let two = together(demo_on(CpuBackend::new(Precision::Int8, 2)), requests, 64);
    assert_eq!(one, two);
}

#[test]
fn the_load_test_can_fail() {
    let faulty = |fault| move || demo_on(Faulty::new(CpuBackend::new(Precision::F32, 1), fault));
    for fault in [Fault::WidthDependentSum, Fault::WideLinear] {
        let difference = first_difference(faulty(fault), &[2], &[64]);
        assert!(difference.is_some(), "{fault:?} went unnoticed");
    }
}

#[test]
fn requests_beyond_the_slots_wait_their_turn() {
    let requests: Vec<Request> = (0..9).map(|i| sampled(vec![2, 430 + i, 450], 3 + i as usize % 4, 5)).collect();
    let options = EngineOptions { parallel: 2, step_rows: 8, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(scripted::hashing(), options);
    let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
    driver.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(driver.done[id].answer.tokens, scripted::plain(request, driver.engine.context()));
    }
}

#[test]
fn a_long_prompt_stalls_nobody_who_is_decoding() {
    let options = EngineOptions { parallel: 2, step_rows: 8, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(scripted::hashing(), options);
    let first = driver.submit(Request { ignore_eos: true, ..sampled(vec![2, 421], 50, 1) });
    driver.step();
    let long: Vec<u32> = (0..300).map(|i| 420 + i % 90).collect();
    let second = driver.submit(sampled(long, 4, 1));
    for step in 2..=40 {
        driver.step();
        assert_eq!(driver.tokens(first).len(), step, "a token every step");
        assert!(driver.tokens(second).is_empty());
    }
    driver.run();
}
