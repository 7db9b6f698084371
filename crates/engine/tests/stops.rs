//! Where an answer ends, and what it reports then.

mod common;

use common::scripted::{STOPS, Scripted, hashing};
use common::{Driver, Record, greedy, sampled, tokenizer};
use mlxcel_engine::{EngineOptions, FinishReason, Request};

/// Tokens of a prompt in these tests.
const PROMPT: [u32; 3] = [2, 421, 422];

fn id(token: &str) -> u32 {
    tokenizer().token_to_id(token).unwrap_or_else(|| panic!("no token {token:?}"))
}

/// Ids of vocabulary entries; the answer of a scripted model is exactly these, then full stops.
fn tokens(pieces: &[&str]) -> Vec<u32> {
    pieces.iter().map(|p| id(p)).collect()
}

fn answer(said: &[u32], request: Request) -> Record {
    let request = Request { prompt: PROMPT.to_vec(), ..request };
    let wanted = request.max_tokens;
    let record = Driver::new(Scripted::saying(PROMPT.len(), said), EngineOptions::default()).ask(request);
    assert!(wanted.is_none_or(|max| record.answer.tokens.len() <= max));
    assert_eq!(record.answer.logprobs.len(), record.answer.completion_tokens);
    record
}

fn limit(max_tokens: usize) -> Request {
    greedy(Vec::new(), max_tokens)
}

fn stopping(stops: &[&str], max_tokens: usize) -> Request {
    Request { stop: stops.iter().map(ToString::to_string).collect(), ..limit(max_tokens) }
}

#[test]
fn a_stop_token_first_or_last() {
    for stop in STOPS {
        let record = answer(&[stop, 421], limit(9));
        assert_eq!((&*record.answer.text, &*record.answer.tokens), ("", &[stop][..]));
        assert_eq!(record.answer.reason, FinishReason::StopToken(stop));
        assert_eq!(record.answer.reason.name(), "stop");

        // As the last token that max_tokens allows, the stop goes before the length.
        let record = answer(&[421, 422, stop], limit(3));
        assert_eq!((&*record.answer.text, record.answer.completion_tokens), ("ao", 3));
        assert_eq!(record.answer.reason, FinishReason::StopToken(stop));

        let record = answer(&[421, 422, stop], limit(2));
        assert_eq!((&*record.answer.text, record.answer.reason), ("ao", FinishReason::Length));
    }
}

#[test]
fn a_request_may_name_stop_tokens_and_ignore_the_models() {
    let own = Request { stop_ids: vec![422], ..limit(9) };
    assert_eq!(answer(&[421, 422, 423], own.clone()).answer.reason, FinishReason::StopToken(422));
    let own = Request { ignore_eos: true, ..own };
    let record = answer(&[421, STOPS[0], STOPS[1], 423, 422], own);
    assert_eq!(record.answer.reason, FinishReason::StopToken(422));
    assert_eq!((&*record.answer.text, record.answer.completion_tokens), ("an", 5));
    let shown = Request { ignore_eos: true, show_special: true, ..limit(3) };
    assert_eq!(answer(&[421, STOPS[1], 423], shown).answer.text, "a<turn|>n");
}

#[test]
fn a_stop_string_across_tokens_is_cut_off() {
    let said = tokens(&["a", "▁S", "T", "O", "P", "n"]);
    let record = answer(&said, stopping(&["never", "STOP"], 20));
    assert_eq!(record.answer.text, "a ");
    assert_eq!(record.answer.reason, FinishReason::StopString(1));
    assert_eq!(record.answer.tokens, said[..5], "the token that completes it is the last");
    assert_eq!(record.pieces, ["a", " ", "", "", ""]);
    assert_eq!(record.tail, "");

    // A beginning that comes to nothing is sent on.
    let record = answer(&tokens(&["S", "T", "O", "n"]), stopping(&["STOP"], 4));
    assert_eq!(record.pieces, ["", "", "", "STOn"]);
    // Held back at the end, it comes with the final event.
    let record = answer(&tokens(&["a", "S", "T"]), stopping(&["STOP"], 3));
    assert_eq!((record.pieces.concat().as_str(), &*record.tail, &*record.answer.text), ("a", "ST", "aST"));
    assert_eq!(record.answer.reason, FinishReason::Length);
    // Also when a stop token ends the answer.
    let record = answer(&[&tokens(&["a", "S"])[..], &[STOPS[0]]].concat(), stopping(&["STOP"], 9));
    assert_eq!((&*record.tail, record.answer.reason), ("S", FinishReason::StopToken(STOPS[0])));
}

#[test]
fn a_stop_string_in_the_middle_of_a_token() {
    let said = tokens(&["a", "\n\n\n", "n"]);
    let record = answer(&said, stopping(&["\n\n"], 20));
    assert_eq!((&*record.answer.text, record.answer.completion_tokens), ("a", 2));
    assert_eq!(record.answer.reason, FinishReason::StopString(0));
}

#[test]
fn a_stop_string_goes_before_max_tokens() {
    let said = tokens(&["a", "S", "T", "O", "P"]);
    let at_the_limit = answer(&said, stopping(&["STOP"], 5));
    assert_eq!(at_the_limit.answer.reason, FinishReason::StopString(0));
    assert_eq!(at_the_limit.answer.text, "a");
    let one_short = answer(&said, stopping(&["STOP"], 4));
    assert_eq!((&*one_short.answer.text, one_short.answer.reason), ("aSTO", FinishReason::Length));
}

#[test]
fn the_flushed_end_may_complete_a_stop_string() {
    let said = tokens(&["a", "<0xF0>", "<0x9F>"]);
    let record = answer(&said, stopping(&["\u{FFFD}"], 3));
    assert_eq!((&*record.answer.text, record.answer.reason), ("a", FinishReason::StopString(0)));
    let record = answer(&said, stopping(&["a\u{FFFD}"], 3));
    assert_eq!((&*record.answer.text, record.answer.reason), ("", FinishReason::StopString(0)));
    let record = answer(&said, stopping(&["a\u{FFFD}b"], 3));
    assert_eq!((&*record.answer.text, record.answer.reason), ("a\u{FFFD}", FinishReason::Length));
}

#[test]
fn cancelling_is_no_stop() {
    let mut driver =
        Driver::new(Scripted::saying(PROMPT.len(), &tokens(&["a", "<0xF0>", "n"])), EngineOptions::default());
    let request = Request { prompt: PROMPT.to_vec(), ..stopping(&["\u{FFFD}"], 9) };
    let id = driver.submit(request);
    driver.steps(2);
    assert!(driver.cancel(id));
    let answer = &driver.done[&id].answer;
    assert_eq!((&*answer.text, &answer.reason), ("a", &FinishReason::Cancelled));
}

#[test]
fn small_limits() {
    for max in 1..=3 {
        let record = answer(&tokens(&["a", "n", "S", "T"]), limit(max));
        assert_eq!(record.answer.tokens.len(), max);
        assert_eq!(record.answer.text, "anST"[..max]);
        assert_eq!(record.answer.reason, FinishReason::Length);
        assert_eq!(record.answer.reason.name(), "length");
        assert_eq!(record.answer.prompt_tokens, 3);
    }
}

#[test]
fn the_end_of_the_context() {
    for (prompt, max_tokens) in
        [(250, Some(1_000_000)), (250, None), (250, Some(usize::MAX)), (250, Some(6)), (255, None)]
    {
        for step_rows in [1, 64, 512] {
            let options = EngineOptions { context: Some(256), step_rows, ..EngineOptions::default() };
            let mut driver = Driver::new(hashing(), options);
            let mut request = sampled((0..prompt).map(|i| 430 + i % 40).collect(), 1, 9);
            request.max_tokens = max_tokens;
            request.ignore_eos = true;
            let record = driver.ask(request.clone());
            assert_eq!(record.answer.tokens.len(), 256 - prompt as usize);
            assert_eq!(record.answer.reason, FinishReason::Length);
            assert_eq!(record.answer.tokens, common::scripted::plain(&request, 256));
        }
    }
    let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
    let mut driver = Driver::new(hashing(), options);
    for prompt in [256, 257, 100_000] {
        let error = driver.engine.submit(greedy(vec![430; prompt], 1)).expect_err("no room").to_string();
        assert!(error.starts_with(&format!("prompt: {prompt} tokens found, but the context holds 256")), "{error}");
    }
    assert!(driver.engine.is_idle());
    assert_eq!(driver.ask(greedy(vec![430; 255], 5)).answer.completion_tokens, 1);
}
