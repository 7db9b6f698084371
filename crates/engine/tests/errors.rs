//! Bad requests are refused by name, bad models fail the request they belong to, and the engine goes on.

mod common;

use std::collections::HashSet;

use common::scripted::{self, IMAGE, Row, SMALL, Scripted, hash_row, hashing};
use common::{Driver, demo, greedy, sampled, tokenizer};
use mlxcel_cpu::Precision;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request};

type Change = fn(&mut Request);

#[test]
fn refusals_name_the_parameter() {
    let bad: Vec<(&str, Change)> = vec![
        ("prompt: at least one token expected, found an empty prompt", |r| r.prompt.clear()),
        ("prompt: token ids below 512 expected, found 512 at index 1", |r| r.prompt = vec![2, 512, 4]),
        ("prompt: token ids below 512 expected, found 4294967295 at index 0", |r| r.prompt = vec![u32::MAX]),
        ("prompt: token 8 at index 2 stands for image or audio input", |r| r.prompt = vec![2, 3, IMAGE]),
        ("prompt: 64 tokens found, but the context holds 64", |r| r.prompt = vec![2; 64]),
        ("max_tokens: at least 1 expected, found 0", |r| r.max_tokens = Some(0)),
        ("temperature: expected a finite number, 0 or more, found -1", |r| r.sampling.temperature = -1.0),
        ("temperature: expected a finite number, 0 or more, found NaN", |r| r.sampling.temperature = f32::NAN),
        ("top_p: expected above 0, at most 1, found 0", |r| r.sampling.top_p = 0.0),
        ("min_p: expected 0 to 1, found 2", |r| r.sampling.min_p = 2.0),
        ("repetition_penalty: expected a finite number above 0, found 0", |r| r.sampling.repetition_penalty = 0.0),
        ("presence_penalty: expected -2 to 2, found 3", |r| r.sampling.presence_penalty = 3.0),
        ("frequency_penalty: expected -2 to 2, found inf", |r| r.sampling.frequency_penalty = f32::INFINITY),
        ("logit_bias token: expected a token id below 512, found 512", |r| r.sampling.logit_bias = vec![(512, 1.0)]),
        ("logit_bias: expected -100 to 100, found 101", |r| r.sampling.logit_bias = vec![(1, 101.0)]),
        ("logprobs: expected 0 to 20, found 21", |r| r.sampling.logprobs = Some(21)),
        ("stop[1]: expected a string of at least one character", |r| r.stop = vec!["x".into(), String::new()]),
    ];
    let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let mut driver = Driver::new(hashing(), options);
    let good = sampled(vec![2, 440, 441], 6, 4);
    for (message, change) in bad {
        let mut request = good.clone();
        change(&mut request);
        let error = driver.engine.submit(request).expect_err(message).to_string();
        assert!(error.starts_with(message), "{error}\nexpected: {message}");
        assert!(driver.engine.is_idle(), "{message}: something was queued");
        assert_eq!(driver.engine.pages_used(), [0, 0]);
    }
    assert_eq!(driver.ask(good.clone()).answer.tokens, scripted::plain(&good, 64));
}

#[test]
fn the_demo_refuses_and_goes_on() {
    let mut driver = Driver::new(demo(Precision::F32), EngineOptions::default());
    let want = driver.ask(greedy(vec![2, 421], 4)).answer;
    let error = driver.engine.submit(greedy(vec![2, 16_384], 4)).expect_err("no such token").to_string();
    assert_eq!(error, "prompt: token ids below 16384 expected, found 16384 at index 1");
    let error = driver.engine.submit(greedy(vec![2; 2048], 4)).expect_err("no room").to_string();
    assert!(error.ends_with("the model's limit of 2048"), "{error}");
    assert_eq!(driver.ask(greedy(vec![2, 421], 4)).answer, want);
}

#[test]
fn engine_options_out_of_range() {
    let refused = |change: fn(&mut EngineOptions)| {
        let mut options = EngineOptions::default();
        change(&mut options);
        Engine::new(hashing(), tokenizer(), options).err().expect("accepted").to_string()
    };
    assert_eq!(refused(|o| o.context = Some(4097)), "--ctx-size: 2 to 4096 expected, found 4097");
    assert_eq!(refused(|o| o.context = Some(1)), "--ctx-size: 2 to 4096 expected, found 1");
    assert_eq!(refused(|o| o.parallel = 0), "--parallel: 1 to 1024 expected, found 0");
    assert_eq!(refused(|o| o.step_rows = 0), "step rows: 1 to 65536 expected, found 0");
}

/// A hashing model in which a sequence that begins with 430 fails at `position`.
fn damaged(position: usize, fault: fn() -> Row) -> Box<dyn mlxcel_model::Model> {
    Scripted::model(SMALL, move |seen| match seen[0] {
        430 if seen.len() == position + 1 => fault(),
        _ => Row::Logits(hash_row(seen)),
    })
}

#[test]
fn damaged_logits_end_their_own_request_only() {
    // The sampler names the token to be chosen, the model the row it came from.
    let faults: [(fn() -> Row, usize); 2] = [(|| Row::Nan, 1), (|| Row::Broken, 0)];
    for (fault, ahead) in faults {
        for position in [5, 6, 12] {
            for reuse in [false, true] {
                let options = EngineOptions { parallel: 4, step_rows: 7, reuse, ..EngineOptions::default() };
                let mut driver = Driver::new(damaged(position, fault), options);
                let prompt = |first: u32| vec![first, 441, 442, 443, 444, 445];
                let request = |first| Request { ignore_eos: true, ..sampled(prompt(first), 20, 6) };
                let ids: Vec<_> = (428..434).map(|first| driver.submit(request(first))).collect();
                driver.run();
                for (id, first) in ids.iter().zip(428..) {
                    let answer = &driver.done[id].answer;
                    let want = scripted::plain(&request(first), 4096);
                    if first != 430 {
                        assert_eq!((&answer.tokens, &answer.reason), (&want, &FinishReason::Length));
                        continue;
                    }
                    assert_eq!(answer.tokens, want[..position - 5], "what came before the fault stays");
                    let FinishReason::Error(message) = &answer.reason else { panic!("{:?}", answer.reason) };
                    let found = format!("position {}", position + ahead);
                    assert!(message.contains(&found) && message.contains("finite"), "{message}");
                    assert_eq!(answer.reason.name(), "error");
                }
                // The engine goes on, and nothing of the damaged sequence is reused.
                let again = driver.ask(request(430));
                assert_eq!((again.cached_tokens, again.answer.tokens.len()), (0, position - 5));
                assert_eq!(driver.ask(request(431)).answer.tokens, scripted::plain(&request(431), 4096));
                let used = driver.engine.pages_used();
                assert_eq!(used.iter().all(|n| *n == 0), !reuse, "{used:?}");
            }
        }
    }
}

#[test]
fn nothing_of_a_damaged_sequence_is_kept() {
    let faults: [fn() -> Row; 2] = [|| Row::Nan, || Row::Broken];
    for fault in faults {
        let mut driver = Driver::new(damaged(6, fault), EngineOptions::default());
        let request = Request { ignore_eos: true, ..sampled(vec![430, 441, 442, 443, 444, 445], 20, 6) };
        for _ in 0..2 {
            let record = driver.ask(request.clone());
            assert_eq!((record.cached_tokens, record.answer.tokens.len()), (0, 1));
            assert!(matches!(record.answer.reason, FinishReason::Error(_)));
            assert_eq!(driver.engine.pages_used(), [0, 0]);
        }
    }
}

#[test]
fn a_model_that_always_fails_fails_every_request() {
    let options = EngineOptions { parallel: 3, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(Scripted::model(SMALL, |_| Row::Broken), options);
    let ids: HashSet<_> = (0..7).map(|_| driver.submit(greedy(vec![2, 440], 9))).collect();
    driver.run();
    assert_eq!(driver.done.len(), ids.len());
    assert!(driver.done.values().all(|r| matches!(r.answer.reason, FinishReason::Error(_))));
    assert_eq!(driver.engine.pages_used(), [0, 0]);
}

#[test]
fn an_error_is_not_hidden_by_a_stop_string() {
    // The unfinished character is flushed as U+FFFD, which the request happens to stop at.
    let half = tokenizer().token_to_id("<0xF0>").expect("byte fallback");
    let model = Scripted::model(SMALL, move |seen| if seen.len() == 2 { Row::Token(half) } else { Row::Nan });
    let request = Request { stop: vec!["\u{FFFD}".into()], ..greedy(vec![2, 440], 9) };
    let answer = Driver::new(model, EngineOptions::default()).ask(request).answer;
    assert!(matches!(answer.reason, FinishReason::Error(_)), "{:?}", answer.reason);
    assert_eq!(answer.text, "");
}
