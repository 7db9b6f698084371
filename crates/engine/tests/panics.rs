//! A panic ends the request whose code it was in; one that belongs to none ends those that run, and the engine goes on.

mod common;

use common::drafts::{Known, Plan};
use common::scripted::{self, Row, SMALL, Scripted, hash_row, hashing};
use common::{Driver, sampled, tokenizer};
use mlxcel_engine::{Engine, EngineOptions, FinishReason, PanicIn, Request, Speculation};

fn request(first: u32) -> Request {
    // Lengths differ, so that some go on when another ends.
    let tokens = 20 + (first as usize * 5) % 7;
    Request { ignore_eos: true, ..sampled(vec![first, 441, 442, 443, 444, 445], tokens, 6) }
}

fn options(reuse: bool) -> EngineOptions {
    EngineOptions { parallel: 4, step_rows: 7, reuse, ..EngineOptions::default() }
}

/// A hashing model that panics on the sequence that begins with 430, at a position.
fn panicking(position: usize) -> Box<dyn mlxcel_model::Model> {
    Scripted::model(SMALL, move |seen| {
        assert!(seen[0] != 430 || seen.len() != position + 1, "planted");
        Row::Logits(hash_row(seen))
    })
}

/// An engine whose drafts are right three times in four.
fn drafting(model: Box<dyn mlxcel_model::Model>, reuse: bool) -> Driver {
    let whole = |first: u32| [request(first).prompt, scripted::plain(&request(first), 4096)].concat();
    let drafter = Known::boxed((428..434).map(whole).collect(), Plan::RightThenWrong(3), SMALL);
    let speculation = Speculation { block_size: Some(5), adaptive: false, calibrate: 0, ..Speculation::default() };
    let engine = Engine::with_drafter(model, tokenizer(), options(reuse), drafter, speculation);
    Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn a_panic_on_a_sequence_ends_that_one() {
    for position in [5, 6, 12] {
        for reuse in [false, true] {
            for drafts in [false, true] {
                let model = panicking(position);
                let mut driver = if drafts { drafting(model, reuse) } else { Driver::new(model, options(reuse)) };
                driver.panics = true;
                let ids: Vec<_> = (428..434).map(|first| driver.submit(request(first))).collect();
                driver.run();
                for (id, first) in ids.iter().zip(428..) {
                    let answer = &driver.done[id].answer;
                    let want = scripted::plain(&request(first), 4096);
                    if first != 430 {
                        assert_eq!((&answer.tokens, &answer.reason), (&want, &FinishReason::Length), "drafts {drafts}");
                        continue;
                    }
                    assert_eq!(answer.tokens, want[..position - 5], "what came before the panic stays");
                    let FinishReason::Error(message) = &answer.reason else { panic!("{:?}", answer.reason) };
                    assert!(message.contains("please report") && message.contains("planted"), "{message}");
                }
                assert_eq!(driver.ask(request(431)).answer.tokens, scripted::plain(&request(431), 4096));
                driver.engine.audit_cache().unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(driver.engine.pages_in_use(), [0, 0]);
            }
        }
    }
}

#[test]
fn a_panic_in_the_books_ends_those_that_run() {
    for place in [PanicIn::Admit, PanicIn::Park] {
        for reuse in [false, true] {
            for drafts in [false, true] {
                let mut driver =
                    if drafts { drafting(hashing(), reuse) } else { Driver::new(hashing(), options(reuse)) };
                driver.panics = true;
                // Something in the cache, which is gone afterwards.
                driver.ask(request(428));
                let ids: Vec<_> = (428..434).map(|first| driver.submit(request(first))).collect();
                driver.step();
                driver.engine.plant_panic(place);
                let cancelled = (place == PanicIn::Park && drafts).then(|| ids[0]);
                cancelled.into_iter().for_each(|id| assert!(driver.cancel(id)));
                driver.run();
                let mut ended = 0;
                for (id, first) in ids.iter().zip(428..) {
                    let answer = &driver.done[id].answer;
                    let want = scripted::plain(&request(first), 4096);
                    assert!(want.starts_with(&answer.tokens));
                    match &answer.reason {
                        FinishReason::Error(message) => {
                            assert!(message.contains("planted"), "{message}");
                            ended += 1;
                        }
                        FinishReason::Cancelled if cancelled == Some(*id) => {}
                        reason => assert_eq!((&answer.tokens, reason), (&want, &FinishReason::Length)),
                    }
                }
                assert!((1..=4).contains(&ended), "those that run, not those that are complete or wait: {ended}");
                let warnings = driver.engine.take_warnings();
                assert!(warnings.iter().any(|w| w.contains("a step broke off")), "{warnings:?}");
                for first in [431, 428] {
                    assert_eq!(driver.ask(request(first)).answer.tokens, scripted::plain(&request(first), 4096));
                }
                driver.engine.audit_cache().unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(driver.engine.pages_in_use(), [0, 0]);
            }
        }
    }
}
