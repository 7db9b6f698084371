//! Answers of chat models, split as they come: what was thought, what was said, which tools are to be called.
//!
//! # Formats
//!
//! | family | thoughts | calls |
//! |---|---|---|
//! | Gemma 4 | `<\|channel>thought\n…<channel\|>` | `<\|tool_call>call:NAME{key:value,…}<tool_call\|>` |
//! | Qwen 3.5, 3.6, 3.8 | `<think>\n…\n</think>\n\n` | `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>` |
//! | Qwen 2.5, Qwen 3, Hermes | the same, or none | `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>` |
//! | others | none | none |
//!
//! The sources are the chat templates of these families, which print such calls back into later prompts: "Chat format"
//! of Gemma 4 (strings between `<|"|>`, bare keys, not JSON) and "Format" of Qwen 3.5 (a thinking prompt ends inside the
//! block, so the answer starts there; string values stand raw, others as JSON, the tool's schema tells them apart).
//!
//! Several of Gemma's markers are special tokens: ask the detokenizer for text **with** special tokens.
//!
//! # Rules
//!
//! - **One result.** A parser is an automaton over characters, so any cutting of the same text gives the same deltas,
//!   neighbours merged ([`merge`]).
//! - **Little is held back.** Of ordinary text, at most the beginning of a marker and the two newlines before it.
//! - **A call that ends is sound.** The fragments of its arguments, joined, are one JSON object, at most
//!   [`MAX_DEPTH`] deep.
//! - **Nothing is lost, nothing is invented.** A call that breaks off (the answer ended inside it) or is malformed is no
//!   call: its source becomes text, word for word, and parsing goes on behind the character that spoiled it. It is never
//!   completed by guesswork, since a client would run `{"path": "/home"}` just as happily as the path that was meant.
//!   What is dropped: the markers, up to two newlines on either side of one, white space between the parts of a call,
//!   and a closing marker cut short behind a whole call.
//! - **Thoughts hold no calls.** A call inside thoughts is a thought; a block that is never closed is all thought.
//!   `<think>` opens a block only where nothing but white space came before; Gemma's marker does so anywhere.
//!
//! Faults of models that are forgiven: raw control characters inside JSON strings; `arguments` as a string that holds an
//! object; `parameters` for `arguments`; bare words as values, JSON strings and quoted keys in Gemma's form; text behind
//! a whole call; a missing closing marker behind a whole call.

mod call;
mod forced;
mod formats;
mod function;
mod gemma;
mod hermes;
mod hold;
mod parser;
mod schema;
mod values;

use std::collections::BTreeMap;

pub use forced::{CallGrammar, CallStyle, Callee, call_grammar};
pub use formats::{ParserKind, ReasoningFormat, ToolFormat};
pub use parser::{Parser, ParserOptions};

/// How deep objects and lists may nest within the arguments of a call; a deeper call is malformed.
pub const MAX_DEPTH: usize = 64;

/// The longest name of a function or parameter in bytes; a call with a longer one is malformed.
pub const MAX_NAME: usize = 256;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// More of what was thought; never empty.
    Reasoning(String),
    /// More of what was said; never empty.
    Content(String),
    /// A call begins.
    ToolCallStart {
        /// Which call of this answer, from 0; an answer's calls come one after the other.
        index: usize,
        /// The id that the model gave the call; most formats have none, and the server has to make one up.
        id: Option<String>,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// A piece of JSON text, cut anywhere between two characters; never empty.
        json_fragment: String,
    },
    /// The call is whole: its fragments, joined, are one JSON object.
    ToolCallEnd {
        /// Which call.
        index: usize,
    },
    /// A call that had begun turned out malformed or unfinished, so its fragments are not JSON and it must not be run.
    /// Only with [`ParserOptions::stream_arguments`]; otherwise such a call is [`Content`](Self::Content).
    ToolCallBroken {
        /// Which call; the next call gets the next index.
        index: usize,
        /// Its source, markers included: what `Content` would have been.
        text: String,
    },
}

/// Joins neighbours of one kind, so that what is left does not depend on how the text was cut.
pub fn merge(deltas: impl IntoIterator<Item = Delta>) -> Vec<Delta> {
    let mut out = Vec::new();
    for delta in deltas {
        append(&mut out, delta);
    }
    out
}

/// Adds a delta to a list, within its last entry where that is of the same kind.
fn append(out: &mut Vec<Delta>, delta: Delta) {
    match (out.last_mut(), delta) {
        (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) | (Some(Delta::Content(text)), Delta::Content(more)) => {
            text.push_str(&more);
        }
        (
            Some(Delta::ToolCallArguments { index: last, json_fragment: text }),
            Delta::ToolCallArguments { index, json_fragment: more },
        ) if *last == index => text.push_str(&more),
        (_, delta) => out.push(delta),
    }
}

/// A whole call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the model gave it, if any.
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// The arguments: a JSON object as text.
    pub arguments: String,
}

/// A whole answer: what a server sends that does not stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What was thought.
    pub reasoning: String,
    /// What was said, with the sources of broken calls.
    pub content: String,
    /// The calls that are whole, in order.
    pub tool_calls: Vec<ToolCall>,
}

impl Answer {
    /// Gathers the deltas of one answer. Calls without an end are left out.
    pub fn collect(deltas: impl IntoIterator<Item = Delta>) -> Self {
        let mut answer = Self::default();
        let mut open = BTreeMap::new();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => answer.reasoning.push_str(&text),
                Delta::Content(text) => answer.content.push_str(&text),
                Delta::ToolCallStart { index, id, name } => {
                    open.insert(index, ToolCall { id, name, arguments: String::new() });
                }
                Delta::ToolCallArguments { index, json_fragment } => {
                    if let Some(call) = open.get_mut(&index) {
                        call.arguments.push_str(&json_fragment);
                    }
                }
                Delta::ToolCallEnd { index } => answer.tool_calls.extend(open.remove(&index)),
                Delta::ToolCallBroken { index, text } => {
                    open.remove(&index);
                    answer.content.push_str(&text);
                }
            }
        }
        answer
    }
}
