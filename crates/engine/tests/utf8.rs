//! Characters that arrive as single bytes: never half a character, and nothing lost.

mod common;

use common::scripted::Scripted;
use common::{Driver, Record, greedy, tokenizer};
use mlxcel_engine::{EngineOptions, FinishReason, Request};

const TEXT: &str = "hi😀👩‍👩‍👧 你好 é\u{301} 🏳️‍🌈!";
const PROMPT: [u32; 3] = [2, 421, 422];

/// A text spelt in byte-fallback tokens only.
fn spelt(text: &str) -> Vec<u32> {
    let byte = |b| tokenizer().token_to_id(&format!("<0x{b:02X}>")).expect("byte fallback");
    text.bytes().map(byte).collect()
}

fn answer(said: &[u32], max_tokens: usize, stop: &[&str]) -> Record {
    let stop = stop.iter().map(ToString::to_string).collect();
    let request = Request { stop, ..greedy(PROMPT.to_vec(), max_tokens) };
    Driver::new(Scripted::saying(PROMPT.len(), said), EngineOptions::default()).ask(request)
}

#[test]
fn characters_come_whole() {
    let said = spelt(TEXT);
    let record = answer(&said, said.len(), &[]);
    assert_eq!(record.answer.text, TEXT);
    assert_eq!(record.tail, "");
    let mut bytes = 0;
    for (piece, whole) in record.pieces.iter().zip(TEXT.bytes().enumerate().map(|(i, _)| i + 1)) {
        assert!(!piece.contains('\u{FFFD}'));
        bytes += piece.len();
        let certain = (0..=whole).rev().find(|i| TEXT.is_char_boundary(*i)).expect("0 is one");
        assert_eq!(bytes, certain, "everything certain is sent at once");
    }
}

#[test]
fn a_cut_character_is_flushed_once_at_the_end() {
    let said = spelt(TEXT);
    for max in 1..=said.len() {
        let record = answer(&said, max, &[]);
        assert_eq!(record.answer.reason, FinishReason::Length);
        assert!(record.pieces.iter().all(|p| !p.contains('\u{FFFD}')), "{max} tokens");
        let whole = (0..=max).rev().find(|i| TEXT.is_char_boundary(*i)).expect("0 is one");
        let tail = if whole == max { "" } else { "\u{FFFD}" };
        assert_eq!(record.tail, tail, "{max} tokens");
        assert_eq!(record.answer.text, format!("{}{tail}", &TEXT[..whole]));
    }
}

#[test]
fn bytes_that_are_no_text_are_shown_once_certain() {
    // A lone continuation byte, then a character cut short by a letter.
    let byte = |b: u8| tokenizer().token_to_id(&format!("<0x{b:02X}>")).expect("byte fallback");
    let record = answer(&[byte(b'a'), byte(0x80), byte(0xF0), byte(0x9F), byte(b'b')], 5, &[]);
    assert_eq!(record.pieces, ["a", "\u{FFFD}", "", "", "\u{FFFD}b"]);
}

#[test]
fn stop_strings_of_wide_characters() {
    let said = spelt(TEXT);
    let record = answer(&said, 500, &["👧 你"]);
    assert_eq!(record.answer.text, "hi😀👩‍👩‍");
    assert_eq!(record.answer.reason, FinishReason::StopString(0));
    let end = TEXT.find('好').expect("in the text");
    assert_eq!(record.answer.tokens, said[..end]);
    // A stop string that shares its first bytes with what is said.
    let record = answer(&spelt("😀😃x"), 9, &["😀😁"]);
    assert_eq!(record.answer.text, "😀😃x");
}

#[test]
fn a_stop_token_inside_a_character_flushes_it() {
    let said = [&spelt("a😀")[..3], &[1]].concat();
    let record = answer(&said, 50, &[]);
    assert_eq!((&*record.answer.text, &*record.tail), ("a\u{FFFD}", "\u{FFFD}"));
    assert_eq!(record.answer.reason, FinishReason::StopToken(1));
}

#[test]
fn cancelling_inside_a_character_flushes_it() {
    let mut driver = Driver::new(Scripted::saying(PROMPT.len(), &spelt(TEXT)), EngineOptions::default());
    let id = driver.submit(greedy(PROMPT.to_vec(), 50));
    driver.steps(4);
    assert!(driver.cancel(id));
    assert_eq!(driver.done[&id].answer.text, "hi\u{FFFD}");
}
