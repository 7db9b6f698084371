//! Any answer, cut anywhere: one result, nothing lost, every call sound. And parsers wrong on purpose, which must be caught.
//!
//! The fuzz target `tool_calls` checks the same of arbitrary bytes.

#[path = "support/answers.rs"]
mod answers;

use std::time::{Duration, Instant};

use answers::{KINDS, check, cut, parse, tools};
use mlxcel_text::parse::{Answer, Delta, Parser, ParserKind, ParserOptions};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};

/// What answers are made of: markers, whole and cut, calls and their parts, and what may stand between.
const PARTS: [&str; 62] = [
    "<think>",
    "</think>",
    "<think>\n",
    "\n</think>\n\n",
    "<thi",
    "nk>",
    "</think",
    "<|channel>thought\n",
    "<|channel>",
    "thought",
    "<channel|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n",
    "\n</tool_call>",
    "</tool_",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_call>call:",
    "<|tool",
    "_call>",
    "<function=f>",
    "<function=other>\n",
    "</function>",
    "\n</function>\n",
    "<parameter=s>\n",
    "<parameter=n>",
    "<parameter=o>\n",
    "<parameter=si>\n",
    "\n</parameter>\n",
    "</parameter>",
    "</param",
    "<tool_call>\n<function=f>\n<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"b\"]}}</tool_call>",
    "<|tool_call>call:f{a:[1,<|\"|>b<|\"|>],c:{d:true}}<tool_call|>",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"arguments\": {}, \"name\": \"g\"}",
    "call:f{",
    "a:",
    "\"a\":",
    "<|\"|>",
    "<|\"",
    "\"",
    "\\",
    "\\ud83d",
    "\\ude00",
    "\\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "<",
    "<|",
    ">",
    "\n",
    "\n\n\n",
    " ",
    "-1.5e3",
    "true",
    "Zoë 😀",
];

/// What models write when nothing goes wrong, in parts.
const SEGMENTS: [&[&str]; 8] = [
    &["So", " I say:\n", "a < b"],
    &["<think>\n", "Hm", ".\n", "</think>\n\n"],
    &["<|channel>thought\n", "Hm", "\n", "<channel|>"],
    &["\n", "<tool_call>\n", "<function=f>\n", "</function>\n", "</tool_call>"],
    &[
        "<tool_call>\n",
        "<function=f>\n",
        "<parameter=s>\n",
        "5",
        "\n</parameter>\n",
        "<parameter=o>\n",
        "{\"a\":",
        " [1, 2]",
        "}",
        "\n</parameter>\n",
        "</function>\n",
        "</tool_call>",
    ],
    &[
        "<tool_call>",
        "{\"name\": \"f\", ",
        "\"arguments\": ",
        "{\"a\": ",
        "[1, ",
        "\"b\\n\"",
        "]",
        "}",
        "}",
        "</tool_call>",
    ],
    &["<tool_call>\n", "{", "\"arguments\": ", "\"{}\"", ", ", "\"name\": ", "\"f\"", "}", "\n</tool_call>"],
    &[
        "<|tool_call>",
        "call:f{",
        "a:",
        "<|\"|>",
        "b}",
        "<|\"|>",
        ",",
        "c:",
        "{d:",
        "[1,",
        "true]",
        "}",
        "}",
        "<tool_call|>",
    ],
];

fn any_part() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => prop::sample::select(&PARTS[..]).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
        1 => any::<char>().prop_map(String::from),
    ]
}

/// A few segments with a few parts put in, replaced or taken out; or parts at random.
fn any_text() -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), 0..3_usize, prop::option::of(any_part()));
    let segments = prop::collection::vec(prop::sample::select(&SEGMENTS[..]), 1..5);
    let spoiled = (segments, prop::collection::vec(edit, 0..4)).prop_map(|(segments, edits)| {
        let mut parts: Vec<String> = segments.concat().into_iter().map(str::to_owned).collect();
        for (at, cut, with) in edits {
            let at = at.index(parts.len() + 1);
            let end = (at + cut).min(parts.len());
            parts.splice(at..end, with);
        }
        parts.concat()
    });
    prop_oneof![3 => spoiled, 1 => prop::collection::vec(any_part(), 0..14).prop_map(|parts| parts.concat())]
}

/// Runs the property over `cases` answers with a parser.
fn holds(parser: answers::Parse<'_>, cases: u32) -> Result<(), String> {
    let tools = tools();
    let strategy = (
        prop::sample::select(&KINDS[..]),
        any_text(),
        any::<(bool, bool, bool, bool)>(),
        prop::collection::vec(1..9_usize, 1..6),
    );
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let outcome =
        TestRunner::new(config).run(&strategy, |(kind, text, (schemas, thinking_open, off, which), sizes)| {
            let options = ParserOptions {
                tools: if schemas { &tools } else { &[] },
                thinking_open,
                parse_tools: !(off && which),
                parse_reasoning: !off || which,
                stream_arguments: false,
            };
            check(parser, kind, options, &text, &sizes).map_err(TestCaseError::fail)
        });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, (kind, text, ..))) => Err(format!("{kind:?} {text:?}: {why}")),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn any_cutting_gives_one_sound_result() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6000);
    if let Err(why) = holds(&parse, cases) {
        panic!("{why}");
    }
}

/// The random answers are of use: thoughts, whole calls, several calls and broken ones are common among them.
#[test]
fn random_answers_reach_everything() {
    let tools = tools();
    let options = ParserOptions { tools: &tools, stream_arguments: true, ..ParserOptions::default() };
    let (mut thoughts, mut calls, mut several, mut broken) = (0, 0, 0, 0);
    let mut runner = TestRunner::deterministic();
    for case in 0..4000 {
        let text = any_text().new_tree(&mut runner).unwrap().current();
        let deltas = parse(KINDS[case % 3], options, &[&text]);
        broken += usize::from(deltas.iter().any(|delta| matches!(delta, Delta::ToolCallBroken { .. })));
        let answer = Answer::collect(deltas);
        thoughts += usize::from(!answer.reasoning.is_empty());
        calls += usize::from(!answer.tool_calls.is_empty());
        several += usize::from(answer.tool_calls.len() > 1);
    }
    println!("thoughts {thoughts}, calls {calls}, several {several}, broken {broken} of 4000");
    assert!(thoughts > 400 && calls > 800 && several > 100 && broken > 200, "{thoughts} {calls} {several} {broken}");
}

/// The twin: each of these is wrong in its own way, and the check says so.
#[test]
fn wrong_parsers_are_caught() {
    // Looks at each piece alone.
    let blind = |kind: ParserKind, options: ParserOptions<'_>, pieces: &[&str]| -> Vec<Delta> {
        pieces.iter().flat_map(|piece| parse(kind, options, &[piece])).collect()
    };
    assert!(holds(&blind, 500).unwrap_err().contains("the whole gives"));

    // Forgets what it held back when the answer ends.
    let forgetful = |kind: ParserKind, options: ParserOptions<'_>, pieces: &[&str]| -> Vec<Delta> {
        let mut parser = Parser::new(kind, options);
        pieces.iter().flat_map(|piece| parser.push(piece)).collect()
    };
    assert!(holds(&forgetful, 500).is_err());

    // Takes a call that broke off for one that ended.
    let guessing = |kind: ParserKind, options: ParserOptions<'_>, pieces: &[&str]| -> Vec<Delta> {
        let mut deltas = parse(kind, options, pieces);
        for delta in &mut deltas {
            if let Delta::ToolCallBroken { index, .. } = delta {
                *delta = Delta::ToolCallEnd { index: *index };
            }
        }
        deltas
    };
    assert!(holds(&guessing, 4000).unwrap_err().contains("no JSON object"));

    // Drops characters that a marker begins with.
    let lossy = |kind: ParserKind, options: ParserOptions<'_>, pieces: &[&str]| -> Vec<Delta> {
        let mut deltas = parse(kind, options, pieces);
        for delta in &mut deltas {
            if let Delta::Content(text) = delta {
                *text = text.replace('<', "-");
            }
        }
        deltas
    };
    assert!(holds(&lossy, 500).unwrap_err().contains("became"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Of text without calls, no more is held back than two newlines and the beginning of a marker.
    #[test]
    fn little_is_held_back(text in "[a-c<|>/\n]{0,80}", which in 0..KINDS.len(), thinking_open: bool) {
        let options = ParserOptions { thinking_open, ..ParserOptions::default() };
        let mut parser = Parser::new(KINDS[which], options);
        let (mut came, mut went) = (0, 0);
        // Newlines at the beginning belong to the prompt's marker.
        let text = format!("x{text}");
        for piece in cut(&text, &[1]) {
            came += piece.len();
            went += parser.push(piece).iter().map(length).sum::<usize>();
            prop_assert!(came - went < 2 + "<|channel>thought".len(), "{} of {came} bytes of {text:?}", came - went);
        }
        prop_assert_eq!(went + parser.finish().iter().map(length).sum::<usize>(), came);
    }
}

fn length(delta: &Delta) -> usize {
    match delta {
        Delta::Reasoning(text) | Delta::Content(text) => text.len(),
        _ => 0,
    }
}

/// A clone is a snapshot: what was pushed since is forgotten.
#[test]
fn a_clone_goes_back() {
    let text = PARTS.concat();
    for kind in KINDS {
        let mut parser = Parser::new(kind, ParserOptions::default());
        let mut deltas = Vec::new();
        for c in text.chars() {
            let mut other = parser.clone();
            other.push("<tool_call>{\"x</think>");
            other.finish();
            deltas.extend(parser.push(c.encode_utf8(&mut [0; 4])));
        }
        deltas.extend(parser.finish());
        assert_eq!(
            mlxcel_text::parse::merge(deltas),
            mlxcel_text::parse::merge(parse(kind, ParserOptions::default(), &[&text])),
        );
    }
}

/// Megabytes of what invites looking twice. Time that grows with the square would be hours here, not seconds.
#[test]
fn time_is_linear() {
    let size = 1 << 20;
    let tools = tools();
    let options = ParserOptions { tools: &tools, ..ParserOptions::default() };
    let openings = [
        "<",
        "\n",
        "<think>",
        "<tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\n",
        "<tool_call>{\"a\":\"",
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":",
        "<|tool_call>call:f{a:<|\"|>",
        "<|tool_call>call:f{a:1",
        "<|channel>thought",
        "<tool_call>\n<function=f></function>",
        "</tool_call",
        "<tool_call>[",
        "<|tool_call>call:f{a:<|\"",
    ];
    let start = Instant::now();
    for kind in KINDS {
        for opening in openings {
            // Repeated, and once before a long run of each of some characters.
            let mut texts = vec![opening.repeat(size / opening.len())];
            texts.extend(
                ["<", "\n", "[", "1", "<|\""].map(|run| format!("{opening}{}", run.repeat(size / 8 / run.len()))),
            );
            for text in texts {
                let mut parser = Parser::new(kind, options);
                for piece in cut(&text, &[7]) {
                    parser.push(piece);
                }
                parser.finish();
            }
        }
    }
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}
