//! The identity law on a GPU: with the embedded drafters, answers are those of plain decoding byte for byte: tokens, text, ends and
//! the bits of log-probabilities, greedy and sampled, at pinned and adapted widths, one sequence and several, from a cold cache and
//! a warm one. A twin on a device with a fault must differ.
//!
//! `MLXCEL_IDENTITY=full` runs all requests at every width in every batch. Where there is no GPU all of this says so and checks
//! nothing, unless MLXCEL_NEED_GPU is set; `common/place.rs` has the other switches.

mod common;
#[path = "../../engine/tests/common/mod.rs"]
mod engine;
#[path = "common/place.rs"]
mod place;

use std::sync::Arc;

use engine::Answer;
use engine::pairs::{Case, gemma, is_full, qwen};
use mlxcel_compute::Backend;
use mlxcel_compute::fault::Fault;
use mlxcel_engine::Request;
use mlxcel_model::registry::Pair;
use place::{Load, Place, is_quick, timed, turn};

/// How much is asked.
struct Size {
    /// Pinned widths.
    widths: &'static [usize],
    batches: &'static [usize],
    /// One request in so many is asked at all.
    every: usize,
    /// Each width in each batch gets one in so many of those.
    parts: usize,
    /// Most tokens of an answer, of a conversation's turn, of a long answer.
    tokens: [usize; 3],
    conversations: usize,
    long: usize,
}

fn size() -> Size {
    let (widths, batches) = (&[2, 4, 8, 16], &[1, 4, 8]);
    match is_quick() {
        false => {
            let (every, parts) = if is_full() { (1, 1) } else { (2, 4) };
            Size { widths, batches, every, parts, tokens: [24, 40, 420], conversations: 8, long: 4 }
        }
        // Four requests: greedy, sampled, sampled, biased.
        true => {
            Size { widths: &[8], batches: &[1, 4], every: 59, parts: 1, tokens: [6, 5, 12], conversations: 1, long: 1 }
        }
    }
}

impl Load for &Case {
    type Loaded = Pair;
    fn on<B: Backend>(self, backend: Arc<B>) -> Pair {
        self.pair(backend)
    }
}

/// The requests that are asked.
fn requests(case: &Case) -> Vec<Request> {
    let size = size();
    let cut = |(i, mut request): (usize, Request)| {
        request.max_tokens = request.max_tokens.map(|n| n.min(size.tokens[0]));
        // Greedy and without log-probabilities, nothing but indices is brought from the device.
        if i.is_multiple_of(12) {
            request.sampling.logprobs = None;
        }
        request
    };
    // Prompts by kinds of sampling, six a prompt: another kind of the next prompt.
    let all = case.requests().into_iter().enumerate();
    all.filter(|(i, _)| (i / 6 + i).is_multiple_of(size.every)).map(cut).collect()
}

/// Asks all at once, and compares.
fn same(case: &Case, driver: &mut engine::Driver, asked: &[(Request, &Answer)], what: &str) {
    let ids: Vec<_> = asked.iter().map(|(request, _)| driver.submit(request.clone())).collect();
    driver.run();
    for (id, (request, want)) in ids.iter().zip(asked) {
        let kind = &request.sampling;
        assert_eq!(driver.done[id].answer, **want, "{}, {what}: {kind:?}, K={:?}", case.name, request.block_size);
    }
    assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
}

/// Pinned and adapted widths in batches, from a cold cache.
fn cold(place: &Place, case: &Case) {
    let size = size();
    let requests = requests(case);
    let want = timed("plain", || case.plain(place.load(case).model, &requests));
    let mut compared = 0;
    let widths: Vec<Option<usize>> = size.widths.iter().map(|k| Some(*k)).chain([None]).collect();
    for (column, b) in size.batches.iter().enumerate() {
        timed(&format!("drafts, B={b}"), || {
            let mut driver = case.engine(place.load(case), *b, false);
            for (row, k) in widths.iter().enumerate() {
                let meets = |i: usize| is_full() || (i + row + column).is_multiple_of(size.parts);
                let asked: Vec<_> = (0..requests.len())
                    .filter(|i| meets(*i))
                    .map(|i| (Request { block_size: *k, ..requests[i].clone() }, &want[i]))
                    .collect();
                same(case, &mut driver, &asked, &format!("B={b}"));
                compared += asked.len();
            }
            let totals = driver.engine.speculator().expect("a drafter").totals();
            println!("{} rounds, {} of {} drafts accepted", totals.rounds, totals.accepted, totals.proposed);
            assert!(totals.rounds > 0 && totals.accepted > 0, "nothing was drafted");
            assert_eq!(driver.engine.take_warnings(), Vec::<String>::new());
        });
    }
    println!("{}: {compared} answers are those of {} asked plainly", case.name, want.len());
}

/// The next turn of a conversation, from what the last one left in the cache.
fn warm(place: &Place, case: &Case) {
    let size = size();
    let firsts = case.requests().into_iter().step_by(31).take(size.conversations).enumerate();
    let first = |(i, request)| Request {
        block_size: [Some(4), None, Some(16), Some(2), Some(8)][i % 5],
        max_tokens: Some(size.tokens[1]),
        stop: Vec::new(),
        ..request
    };
    let reused = timed("conversations", || case.conversations(|| place.load(case), firsts.map(first).collect()));
    println!("{}: {reused} positions reused", case.name);
    assert!(reused > 4 * size.conversations, "{}: {reused} positions reused", case.name);
}

/// Answers that run past the window's wrap and over many pages.
fn long(place: &Place, case: &Case) {
    let size = size();
    let asked = case.requests().into_iter().step_by(37).take(size.long).enumerate();
    let asked = asked.map(|(i, request)| Request {
        max_tokens: Some(size.tokens[2]),
        ignore_eos: true,
        stop: Vec::new(),
        block_size: [None, Some(4), Some(16)][i % 3],
        ..request
    });
    let requests: Vec<Request> = asked.collect();
    timed("long answers", || {
        let want = case.plain(place.load(case).model, &requests);
        let asked: Vec<_> = requests.into_iter().zip(&want).collect();
        for b in [1, 3] {
            let mut driver = case.engine(place.load(case), b, false);
            same(case, &mut driver, &asked, &format!("long answers, B={b}"));
        }
    });
}

/// The twin: what depends on the width is noticed by exactly these comparisons.
fn twin(place: &Place, case: &Case) {
    let requests: Vec<Request> = requests(case).into_iter().take(24).collect();
    let open = || place.load_faulty(case, Fault::WidthDependentSum);
    let differs = timed("twin", || case.differing(open, &requests, 8));
    println!("{}: with a fault {differs} of {} answers differ", case.name, requests.len());
    assert!(differs > 0, "{}: the fault must be seen", case.name);
}

fn pair(case: &Case) {
    let _turn = turn();
    let Some(place) = Place::find() else { return };
    timed(case.name, || [cold, warm, long, twin].into_iter().for_each(|part| part(place, case)));
    place.is_well();
}

#[test]
fn gemma_with_its_assistant() {
    pair(&gemma("gemma-4-tiny-it-assistant-4bit"));
}

#[test]
fn qwen_with_its_head() {
    pair(&qwen());
}
