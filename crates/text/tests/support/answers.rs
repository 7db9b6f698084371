//! What must hold of any answer, for the tests of the parsers and for the fuzz target `tool_calls`, which includes this
//! file: faults are described, not asserted, so that parsers which are wrong on purpose can be seen to fail.

#![allow(dead_code)] // each suite uses a part

use mlxcel_text::parse::{Answer, Delta, Parser, ParserKind, ParserOptions, merge};
use serde_json::{Value, json};

/// Reads an answer that comes in these pieces.
pub type Parse<'a> = &'a dyn Fn(ParserKind, ParserOptions<'_>, &[&str]) -> Vec<Delta>;

/// The parser under test.
pub fn parse(kind: ParserKind, options: ParserOptions<'_>, pieces: &[&str]) -> Vec<Delta> {
    let mut parser = Parser::new(kind, options);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    deltas
}

pub const KINDS: [ParserKind; 4] = [ParserKind::GEMMA4, ParserKind::QWEN, ParserKind::HERMES, ParserKind::PLAIN];

/// Tools whose schemas say something, in three APIs' forms.
pub fn tools() -> Vec<Value> {
    let properties = json!({
        "s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
        "l": {"type": "array"}, "o": {"type": "object"}, "z": {"type": "null"},
        "sn": {"type": ["string", "null"]}, "si": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "e": {"enum": ["1", "two"]}, "r": {"$ref": "#/$defs/text"}, "loop": {"$ref": "#/$defs/loop"}, "any": {}
    });
    let defs =
        json!({"text": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}});
    let schema = json!({"type": "object", "properties": properties, "$defs": defs});
    vec![
        json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}),
        json!({"type": "function", "name": "g", "parameters": schema}),
        json!({"name": "h", "input_schema": schema}),
        json!("no tool"),
        json!({"name": "bare"}),
    ]
}

/// Cuts a text into pieces of so many characters, the sizes used in turn.
pub fn cut<'t>(text: &'t str, sizes: &[usize]) -> Vec<&'t str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let end = rest.char_indices().nth((*size).max(1)).map_or(rest.len(), |(at, _)| at);
        pieces.push(&rest[..end]);
        rest = &rest[end..];
    }
    pieces
}

/// Everything that must hold of an answer, cut into pieces of these sizes: the first fault found.
pub fn check(
    parse: Parse<'_>,
    kind: ParserKind,
    options: ParserOptions<'_>,
    text: &str,
    sizes: &[usize],
) -> Result<(), String> {
    let mut answers = Vec::new();
    let mut spoken = String::new();
    for stream_arguments in [false, true] {
        let options = ParserOptions { stream_arguments, ..options };
        let deltas = merge(parse(kind, options, &[text]));
        for sizes in [&[1], sizes] {
            let other = merge(parse(kind, options, &cut(text, sizes)));
            if other != deltas {
                return Err(format!("pieces of {sizes:?} give {other:?}, the whole gives {deltas:?}"));
            }
        }
        sound(&deltas, stream_arguments)?;
        if !stream_arguments {
            spoken = deltas.iter().map(text_of).collect();
        }
        answers.push(Answer::collect(deltas));
    }
    let answer = &answers[0];
    if *answer != answers[1] {
        return Err(format!("calls held back give {answer:?}, calls streamed give {:?}", answers[1]));
    }
    if !options.parse_reasoning && !answer.reasoning.is_empty() {
        return Err("thoughts nobody asked for".to_owned());
    }
    if answer.tool_calls.is_empty() {
        let (got, expected) = (bare(&spoken), bare(text));
        if got != expected {
            return Err(format!("{expected:?} became {got:?}"));
        }
        if !options.parse_reasoning && answer.content != text {
            return Err(format!("word for word it is {text:?}, not {:?}", answer.content));
        }
    } else if !options.parse_tools {
        return Err("calls nobody asked for".to_owned());
    }
    Ok(())
}

/// Whether deltas, merged, are well formed.
fn sound(deltas: &[Delta], stream: bool) -> Result<(), String> {
    let fault = |what: &str| Err(format!("{what}: {deltas:?}"));
    let mut next = 0;
    let mut open: Option<String> = None;
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) | Delta::Content(text) => {
                if text.is_empty() || open.is_some() {
                    return fault("empty text, or text inside a call");
                }
            }
            Delta::ToolCallStart { index, id, name } => {
                if *index != next || open.is_some() || name.is_empty() || id.as_deref() == Some("") {
                    return fault("a call begins wrongly");
                }
                open = Some(String::new());
            }
            Delta::ToolCallArguments { index, json_fragment } => match &mut open {
                Some(arguments) if *index == next && !json_fragment.is_empty() => arguments.push_str(json_fragment),
                _ => return fault("arguments out of place"),
            },
            Delta::ToolCallEnd { index } => {
                let Some(arguments) = open.take().filter(|_| *index == next) else {
                    return fault("an end out of place");
                };
                if !serde_json::from_str(&arguments).is_ok_and(|value: Value| value.is_object()) {
                    return fault("arguments that are no JSON object");
                }
                next += 1;
            }
            Delta::ToolCallBroken { index, text } => {
                if !stream || open.take().is_none() || *index != next || text.is_empty() {
                    return fault("a broken call out of place");
                }
                next += 1;
            }
        }
    }
    if open.is_some() { fault("a call without an end") } else { Ok(()) }
}

/// A text without newlines and markers of thoughts, whichever they are, however often taking one out makes another.
fn bare(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().filter(|c| *c != '\n') {
        out.push(c);
        for marker in ["<think>", "</think>", "<|channel>thought", "<channel|>"] {
            if out.ends_with(marker) {
                out.truncate(out.len() - marker.len());
            }
        }
    }
    out
}

/// What was thought or said.
fn text_of(delta: &Delta) -> &str {
    match delta {
        Delta::Reasoning(text) | Delta::Content(text) => text,
        _ => "",
    }
}
