//! Requests that begin with what others computed equal those computed afresh.

mod common;

use common::{Driver, Rng, alone, demo, greedy, ids, question, sampled, scripted, story};
use mlxcel_cpu::Precision;
use mlxcel_engine::{EngineOptions, Request};
use mlxcel_model::Model;

fn warm(model: Box<dyn Model>, parallel: usize, step_rows: usize) -> Driver {
    Driver::new(model, EngineOptions { parallel, step_rows, reuse: true, ..EngineOptions::default() })
}

fn continued(tokens: &[u32], answer: &[u32], text: &str) -> Vec<u32> {
    let mut next = [tokens, answer].concat();
    next.extend(common::tokenizer().encode_plain(text).expect("plain text"));
    next
}

/// Turns of growing length, past the window of 256, each against a fresh engine.
fn conversation(precision: Precision, step_rows: usize) {
    let mut driver = warm(demo(precision), 1, step_rows);
    let mut prompt = story(150);
    let mut known = 0;
    for turn in 0..3_u64 {
        let request = if turn % 2 == 0 { greedy(prompt.clone(), 20) } else { sampled(prompt.clone(), 20, turn) };
        let record = driver.ask(request.clone());
        assert_eq!(record.cached_tokens, known, "turn {turn}: all but the last token of the turn before");
        if turn > 0 {
            assert_eq!(record.answer, alone(demo(precision), request), "turn {turn}");
        }
        known = prompt.len() + record.answer.tokens.len() - 1;
        let more = " Then the little fox met an old bear who knew the way, and they walked on together.".repeat(5);
        prompt = continued(&prompt, &record.answer.tokens, &more);
    }
    assert!(known > 300, "the last turn was computed past the window: {known}");
}

#[test]
fn a_conversation_equals_fresh_ones_int8() {
    conversation(Precision::Int8, 33);
}

#[test]
fn a_conversation_equals_fresh_ones_f32() {
    conversation(Precision::F32, 64);
}

#[test]
fn a_turn_may_take_back_part_of_the_previous_answer() {
    let model = || demo(Precision::F32);
    // Short, and past the window: there only a continuation near the end finds its window's pages.
    for length in [40, 325] {
        let mut driver = warm(model(), 1, 100);
        let first = Request { ignore_eos: true, ..greedy(story(length), 24) };
        let answer = driver.ask(first.clone()).answer;
        for keep in [20, 9, 1] {
            let prompt = continued(&first.prompt, &answer.tokens[..keep], "\n\nNora said: no.");
            let request = sampled(prompt, 6, 5);
            let record = driver.ask(request.clone());
            // The next turn differs within the text; what it shares with this one may be a token more than `keep`. A page that is
            // full by now is found whole or not at all.
            let least = if length == 40 && keep < 20 { 0 } else { length + keep };
            assert!((least..length + keep + 2).contains(&record.cached_tokens), "{}", record.cached_tokens);
            assert_eq!(record.answer, alone(model(), request), "{length} tokens, {keep} kept");
        }
    }
}

#[test]
fn pages_that_left_the_window_are_computed_again() {
    let model = || demo(Precision::F32);
    let mut driver = warm(model(), 1, 64);
    let long = Request { ignore_eos: true, ..greedy(story(480), 4) };
    driver.ask(long.clone());
    for shared in [100, 300] {
        let request = greedy([&story(shared)[..], &[450, 451, 452]].concat(), 8);
        let record = driver.ask(request.clone());
        assert_eq!(record.answer, alone(model(), request), "{shared} shared");
        // Its window reaches back to a page that the long one had no more use for.
        assert_eq!(record.cached_tokens, 0, "{shared} shared");
        driver.ask(long.clone());
    }
    // With room for them, none leave.
    let options = EngineOptions { step_rows: 64, cache_bytes: 64 << 20, ..EngineOptions::default() };
    let mut driver = Driver::new(model(), options);
    driver.ask(long);
    for (shared, known) in [(100, 64), (300, 256)] {
        let request = greedy([&story(shared)[..], &[450, 451, 452]].concat(), 8);
        let record = driver.ask(request.clone());
        assert_eq!(record.answer, alone(model(), request), "{shared} shared");
        assert_eq!(record.cached_tokens, known, "{shared} shared");
    }
}

/// Requests with one beginning, some of them while others run, over the window and not.
#[test]
fn a_beginning_is_computed_once() {
    for (precision, length) in [(Precision::Int8, 150), (Precision::F32, 330)] {
        let model = || demo(precision);
        let options = EngineOptions { parallel: 3, step_rows: 70, cache_bytes: 64 << 20, ..EngineOptions::default() };
        let mut driver = Driver::new(model(), options);
        let ask = |last: u32| Request {
            ignore_eos: true,
            ..sampled([&story(length)[..], &[last, 450, 451]].concat(), 12, u64::from(last))
        };
        let first = driver.submit(ask(440));
        driver.steps(7);
        assert!(!driver.engine.is_idle(), "the first is not over");
        let ids: Vec<_> = (441..446).map(|last| driver.submit(ask(last))).collect();
        driver.run();
        assert_eq!(driver.done[&first].answer, alone(model(), ask(440)));
        for (id, last) in ids.iter().zip(441..) {
            assert_eq!(driver.done[id].answer, alone(model(), ask(last)), "{last}");
            // At least the full pages; one may take over the last page of another that has ended.
            assert!((length / 64 * 64..=length).contains(&driver.done[id].cached_tokens));
        }
        driver.engine.audit_cache().unwrap_or_else(|e| panic!("{e}"));
        driver.engine.clear_cache();
        assert!(driver.engine.pages_used().iter().all(|n| *n == 0));
    }
}

#[test]
fn a_few_shared_tokens_and_the_same_prompt_twice() {
    for precision in [Precision::Int8, Precision::F32] {
        let mut driver = warm(demo(precision), 1, 512);
        let long = story(120);
        let first = sampled(long.clone(), 12, 1);
        let want = driver.ask(first.clone());
        assert_eq!(want.cached_tokens, 0);

        let again = driver.ask(first);
        assert_eq!(again.cached_tokens, 64, "the answer went on in the page of the rest");
        assert_eq!(again.answer, want.answer);

        let other = [&long[..67], &question("Who are you?")[1..]].concat();
        let request = greedy(other, 16);
        let record = driver.ask(request.clone());
        assert_eq!(record.cached_tokens, 64, "a full page is not shared in part");
        assert_eq!(record.answer, alone(demo(precision), request));

        // A prompt that is a beginning of what is kept.
        let request = greedy(ids("Once upon a time"), 4);
        driver.ask(request.clone());
        let shorter = greedy(request.prompt[..3].to_vec(), 4);
        let record = driver.ask(shorter.clone());
        assert_eq!(record.cached_tokens, 2);
        assert_eq!(record.answer, alone(demo(precision), shorter));
    }
}

#[test]
fn a_conversation_goes_on_beside_others() {
    let model = || demo(Precision::Int8);
    let mut driver = warm(model(), 3, 40);
    let first = greedy(question("Tell me a story about a dragon."), 20);
    let answer = driver.ask(first.clone()).answer;
    let next = continued(&first.prompt, &answer.tokens, "<turn|>\n<|turn>user\nAnd then?<turn|>\n<|turn>model\n");
    let requests = [sampled(next.clone(), 20, 4), greedy(story(150), 10), greedy(next, 10)];
    let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
    driver.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(driver.done[id].answer, alone(model(), request.clone()));
    }
    let cached: Vec<usize> = ids.iter().map(|id| driver.done[id].cached_tokens).collect();
    assert_eq!(
        cached,
        [first.prompt.len() + answer.tokens.len() - 1, 0, 0],
        "a page that is not full is there for one taker"
    );
}

#[test]
fn a_cancelled_answer_may_be_continued() {
    let request = greedy(story(200), 12);
    let want = alone(demo(Precision::F32), request.clone());
    // Cut in the middle of the prompt, and in the middle of the answer.
    for (steps, computed) in [(3, 120), (9, 204)] {
        let mut driver = warm(demo(Precision::F32), 1, 40);
        let id = driver.submit(request.clone());
        driver.steps(steps);
        assert!(driver.cancel(id));
        let record = driver.ask(request.clone());
        assert_eq!(record.cached_tokens, computed.min(199));
        assert_eq!(record.answer, want);
    }
}

/// Many random turns on a model whose answer is a hash of every page it can see.
#[test]
fn random_turns_never_see_a_stale_position() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut driver = warm(scripted::hashing(), 1 + rng.below(3), 1 + rng.below(20));
        let mut text = vec![2];
        for _ in 0..25 {
            text.truncate(1 + rng.below(text.len()).max(text.len().saturating_sub(1 + rng.below(12))));
            text.extend((0..rng.below(9)).map(|_| 430 + rng.below(40) as u32));
            let request = sampled(text.clone(), 1 + rng.below(12), rng.below(3) as u64);
            let want = scripted::plain(&request, driver.engine.context());
            let record = driver.ask(request);
            assert_eq!(record.answer.tokens, want, "seed {seed}");
            text.extend(want);
        }
    }
}
