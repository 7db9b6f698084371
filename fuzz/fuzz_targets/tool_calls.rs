//! Any text as the answer of any family, cut anywhere: one result, nothing lost, every call's arguments one JSON object,
//! never a panic. The checks are those of the text crate's tests (`parse_chunks.rs`), which run without nightly.
//!
//! Byte 0 picks family and options, byte 1 the sizes of the pieces; the rest is the answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlxcel_text::parse::ParserOptions;

#[path = "../../crates/text/tests/support/answers.rs"]
mod answers;

fuzz_target!(|data: &[u8]| {
    let [choice, sizes, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let tools = answers::tools();
    let on = |bit: u8| (choice >> bit) & 1 == 1;
    let options = ParserOptions {
        tools: if on(2) { &tools } else { &[] },
        thinking_open: on(3),
        parse_tools: !on(4),
        parse_reasoning: !on(5),
        stream_arguments: false,
    };
    let kind = answers::KINDS[usize::from(choice & 3)];
    let sizes = [usize::from(sizes & 15), usize::from(sizes >> 4)];
    if let Err(why) = answers::check(&answers::parse, kind, options, &text, &sizes) {
        panic!("{text:?}: {why}");
    }
});
