//! Every page comes back, however a request ends.

mod common;

use common::{Driver, demo, greedy, sampled, scripted, story};
use mlxcel_cpu::Precision;
use mlxcel_engine::{EngineOptions, FinishReason, Request, RequestId};
use proptest::prelude::*;

#[test]
fn nothing_is_in_use_when_all_have_finished() {
    let options = EngineOptions { parallel: 3, step_rows: 50, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(demo(Precision::F32), options);
    assert_eq!(driver.engine.pages_used(), [0, 0]);
    for (len, max) in [(150, 5), (3, 9), (64, 1), (65, 2)] {
        driver.submit(greedy(story(len), max));
    }
    driver.step();
    assert!(driver.engine.pages_used().iter().all(|n| *n > 0));
    driver.run();
    assert_eq!(driver.engine.pages_used(), [0, 0]);
}

#[test]
fn cancelling_frees_pages_at_any_time() {
    let options = EngineOptions { parallel: 2, step_rows: 40, reuse: false, ..EngineOptions::default() };
    let mut driver = Driver::new(demo(Precision::F32), options);
    let decoding = driver.submit(Request { ignore_eos: true, ..greedy(story(20), 1000) });
    let filling = driver.submit(greedy(story(200), 1000));
    let waiting = driver.submit(greedy(story(30), 1000));
    driver.steps(3);
    assert_eq!(driver.tokens(decoding).len(), 3);
    assert!(driver.tokens(filling).is_empty() && driver.tokens(waiting).is_empty());
    let before = driver.engine.pages_used();

    assert!(driver.cancel(waiting));
    assert_eq!(driver.engine.pages_used(), before, "a waiting request holds no pages");
    assert!(driver.cancel(filling));
    let after = driver.engine.pages_used();
    assert!(after.iter().zip(&before).all(|(a, b)| a < b), "{before:?} to {after:?}");
    driver.step();
    assert!(driver.cancel(decoding));
    assert_eq!(driver.engine.pages_used(), [0, 0]);
    assert!(driver.engine.is_idle());
    for id in [decoding, filling, waiting, RequestId(77)] {
        assert!(!driver.cancel(id), "cancelled twice");
    }
    assert_eq!(driver.done[&waiting].answer.prompt_tokens, 30);
    assert_eq!(driver.ask(greedy(story(200), 3)).answer.completion_tokens, 3);
}

#[test]
fn beginnings_are_kept_once() {
    let options = EngineOptions { parallel: 4, step_rows: 64, reuse: true, ..EngineOptions::default() };
    let mut driver = Driver::new(demo(Precision::F32), options);
    for len in [130, 40, 150, 70] {
        driver.submit(greedy(story(len), 4));
    }
    driver.run();
    assert_eq!(driver.engine.pages_in_use(), [0, 0]);
    // Two full pages that they share, and a tail of each.
    assert_eq!(driver.engine.pages_cached(), [6, 6]);
    driver.ask(greedy(vec![2], 1));
    driver.engine.audit_cache().unwrap_or_else(|e| panic!("{e}"));
    driver.engine.clear_cache();
    assert_eq!(driver.engine.pages_used(), [0, 0]);
}

#[test]
fn kept_answers_yield_to_a_full_house() {
    // Every slot filled to the last position while an answer is kept: the pool has no page to spare for it.
    let options =
        EngineOptions { parallel: 2, context: Some(64), step_rows: 16, reuse: true, ..EngineOptions::default() };
    let mut driver = Driver::new(scripted::hashing(), options);
    let long = |first| Request { ignore_eos: true, ..sampled(vec![first; 30], 1000, 1) };
    let short = driver.submit(Request { ignore_eos: true, ..sampled(vec![440; 50], 8, 1) });
    let ids = [driver.submit(long(430)), driver.submit(long(431))];
    driver.run();
    assert_eq!(driver.done[&short].answer.reason, FinishReason::Length);
    for (id, first) in ids.iter().zip([430, 431]) {
        assert_eq!(driver.done[id].answer.tokens, scripted::plain(&long(first), 64));
        assert_eq!(driver.done[id].answer.completion_tokens, 34);
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Prompt: this many tokens of an earlier sequence, then new ones.
    Submit {
        share: usize,
        fresh: Vec<u32>,
        max_tokens: usize,
        seed: Option<u64>,
    },
    Cancel(usize),
    Step(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let fresh = prop::collection::vec(430_u32..434, 0..14);
    let submit = (0_usize..50, fresh, 1_usize..16, prop::option::of(0_u64..3))
        .prop_map(|(share, fresh, max_tokens, seed)| Op::Submit { share, fresh, max_tokens, seed });
    prop_oneof![3 => submit, 1 => (0_usize..8).prop_map(Op::Cancel), 4 => (1_usize..6).prop_map(Op::Step)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(160) })]

    #[test]
    fn random_lives_leak_nothing_and_change_no_answer(
        ops in prop::collection::vec(op(), 1..120),
        parallel in 1_usize..5,
        step_rows in 1_usize..24,
        reuse in any::<bool>(),
    ) {
        let context = 64;
        let options = EngineOptions { parallel, context: Some(context), step_rows, reuse, ..EngineOptions::default() };
        let mut driver = Driver::new(scripted::hashing(), options);
        let mut asked: Vec<(RequestId, Request)> = Vec::new();
        let mut text = vec![2, 440, 441];
        for op in ops {
            match op {
                Op::Submit { share, fresh, max_tokens, seed } => {
                    let mut prompt = text[..share.clamp(1, text.len())].to_vec();
                    prompt.extend(fresh);
                    prompt.truncate(context - 1);
                    let mut request = greedy(prompt.clone(), max_tokens);
                    if let Some(seed) = seed {
                        request = sampled(prompt.clone(), max_tokens, seed);
                    }
                    text = [prompt, scripted::plain(&request, context)].concat();
                    asked.push((driver.submit(request.clone()), request));
                }
                Op::Cancel(back) => {
                    if let Some((id, _)) = asked.iter().rev().nth(back) {
                        driver.cancel(*id);
                    }
                }
                Op::Step(count) => driver.steps(count),
            }
            let most = parallel * context.div_ceil(scripted::PAGE);
            prop_assert!(driver.engine.pages_used().iter().all(|n| *n <= most));
            prop_assert_eq!(driver.engine.audit_cache(), Ok(()));
        }
        driver.run();
        for (id, request) in &asked {
            let answer = &driver.done[id].answer;
            let want = scripted::plain(request, context);
            if answer.reason == FinishReason::Cancelled {
                prop_assert!(want.starts_with(&answer.tokens));
            } else {
                prop_assert_eq!(&answer.tokens, &want);
            }
        }
        if reuse {
            prop_assert_eq!(driver.engine.pages_in_use(), vec![0, 0]);
            driver.engine.clear_cache();
        }
        prop_assert_eq!(driver.engine.pages_used(), vec![0, 0]);
    }
}
