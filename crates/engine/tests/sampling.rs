//! A choice is a function of the request and the logits: of no batch, no neighbour and no former request.

mod common;

use std::collections::HashSet;

use common::scripted::{self, hashing};
use common::{Driver, alone, argmax, demo, greedy, question, sampled};
use mlxcel_compute::{Batch, Wanted};
use mlxcel_cpu::Precision;
use mlxcel_engine::sample::{Sampler, SamplingParams};
use mlxcel_engine::{EngineOptions, Request};
use mlxcel_model::{Logits, Model};

/// Logits of every position of `tokens`, from one forward without an engine.
fn logits(model: &mut dyn Model, tokens: &[u32]) -> Vec<f32> {
    let pages = tokens.len().div_ceil(model.page_len());
    let groups = model.kv_layout().len();
    model.reserve(&vec![pages; groups], 1).expect("pages");
    let table: Vec<u32> = (0..pages as u32).rev().collect();
    let mut batch = Batch::new();
    batch.push(0, 0, tokens, &vec![&table[..]; groups], Wanted::All);
    model.forward(&batch).and_then(Logits::into_values).expect("forward")
}

#[test]
fn greedy_is_the_argmax_of_the_models_logits() {
    for precision in [Precision::F32, Precision::Int8] {
        let prompt = question("What is speculative decoding?");
        let answer = alone(demo(precision), greedy(prompt.clone(), 24));
        let tokens = [&prompt[..], &answer.tokens].concat();
        let rows = logits(&mut *demo(precision), &tokens);
        for (i, token) in answer.tokens.iter().enumerate() {
            let row = &rows[(prompt.len() + i - 1) * 16_384..][..16_384];
            assert_eq!(argmax(row), *token, "token {i}");
            // The log-probabilities are those of the same row.
            let max = f64::from(row[*token as usize]);
            let mass: f64 = row.iter().map(|l| (f64::from(*l) - max).exp()).sum();
            let (logprob, top) = &answer.logprobs[i];
            assert!((f64::from(f32::from_bits(*logprob)) + mass.ln()).abs() < 1e-5);
            assert_eq!((top.len(), top[0]), (2, (*token, *logprob)));
        }
    }
}

#[test]
fn sampled_is_what_the_sampler_chooses_from_the_models_logits() {
    let prompt = question("Tell me a story about a dragon.");
    let sampling = SamplingParams {
        temperature: 1.0,
        top_k: 50,
        top_p: 0.9,
        seed: 17,
        presence_penalty: 0.5,
        logprobs: Some(0),
        ..SamplingParams::default()
    };
    let request = Request { prompt: prompt.clone(), sampling, max_tokens: Some(20), ..Request::default() };
    let answer = alone(demo(Precision::F32), request.clone());
    let rows = logits(&mut *demo(Precision::F32), &[&prompt[..], &answer.tokens].concat());
    let mut sampler = Sampler::new(request.sampling, 16_384).expect("valid parameters");
    let mut history = mlxcel_engine::sample::History::new(&prompt);
    for token in &answer.tokens {
        let row = &rows[(history.len() - 1) * 16_384..][..16_384];
        assert_eq!(sampler.sample(row, history.len(), &history).expect("finite").token, *token);
        history.push(*token);
    }
}

#[test]
fn a_seed_names_an_answer_in_any_batch() {
    let prompt = question("Tell me a story about a dragon.");
    let hot = |seed| {
        let mut request = sampled(prompt.clone(), 14, seed);
        request.sampling.temperature = 2.0;
        request.sampling.top_p = 1.0;
        request
    };
    let want: Vec<_> = (0..3).map(|seed| alone(demo(Precision::F32), hot(seed))).collect();
    let texts: HashSet<&str> = want.iter().map(|a| a.text.as_str()).collect();
    assert_eq!(texts.len(), 3, "other seeds, other answers");

    // The same prompt under several seeds, some of them twice, all at once.
    let options = EngineOptions { parallel: 5, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(demo(Precision::F32), options);
    let seeds = [2, 0, 1, 0, 2];
    let ids: Vec<_> = seeds.iter().map(|seed| driver.submit(hot(*seed))).collect();
    driver.run();
    for (id, seed) in ids.iter().zip(seeds) {
        assert_eq!(driver.done[id].answer, want[seed as usize], "seed {seed}");
    }
}

#[test]
fn repeats_do_not_wear_a_seed_out() {
    let mut driver = Driver::new(hashing(), EngineOptions { parallel: 2, ..EngineOptions::default() });
    for temperature in [0.7, 1.0, 2.0] {
        let mut request = sampled(vec![2, 440, 441], 30, 42);
        request.sampling.temperature = temperature;
        request.ignore_eos = true;
        let want = scripted::plain(&request, 4096);
        for _ in 0..5 {
            let record = driver.ask(request.clone());
            assert_eq!(record.answer.tokens, want);
        }
        request.sampling.seed = 43;
        assert_ne!(driver.ask(request).answer.tokens, want);
    }
}

#[test]
fn penalties_count_the_answer_of_their_own_request() {
    // Two requests with one prompt: what one has said must not count against the other, nor in the next one.
    let mut driver = Driver::new(hashing(), EngineOptions { parallel: 2, ..EngineOptions::default() });
    let mut request = greedy(vec![2, 440, 441], 40);
    request.ignore_eos = true;
    request.sampling.frequency_penalty = 2.0;
    request.sampling.repetition_penalty = 1.3;
    request.sampling.logit_bias = (430..450).map(|t| (t, 6.0)).collect();
    let want = scripted::plain(&request, 4096);
    assert!(want.iter().collect::<HashSet<_>>().len() < want.len(), "tokens repeat, so counts matter");
    for _ in 0..2 {
        let ids = [driver.submit(request.clone()), driver.submit(request.clone())];
        driver.run();
        ids.iter().for_each(|id| assert_eq!(driver.done[id].answer.tokens, want));
    }
}
