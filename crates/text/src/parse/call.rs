//! The inside of a call: what the formats have in common.

use super::MAX_NAME;
use super::formats::ToolFormat;
use super::function::Function;
use super::gemma::Gemma;
use super::hermes::Hermes;
use super::schema::Tools;

/// What a character did to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fed {
    /// It goes on.
    More,
    /// It is whole with this character.
    Whole,
    /// It was whole before this character, which belongs to what follows.
    WholeBefore,
}

/// A character that cannot stand where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken {
    /// How many bytes before this character may be the beginning of another marker and are to be looked at again.
    pub again: usize,
}

impl Broken {
    /// Nothing before this character is of interest.
    pub const HERE: Self = Self { again: 0 };
}

/// What is known of a call so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// Id and name, from where they are settled.
    pub start: Option<(Option<String>, String)>,
    /// Arguments not yet taken.
    pub arguments: String,
}

/// A call between its markers.
#[derive(Debug, Clone)]
pub(super) enum Call {
    /// Behind `<tool_call>`: no character yet but white space.
    Tagged,
    Function(Function),
    Hermes(Hermes),
    Gemma(Gemma),
}

impl Call {
    pub fn new(format: ToolFormat) -> Self {
        match format {
            ToolFormat::Gemma4 => Self::Gemma(Gemma::default()),
            ToolFormat::Tagged | ToolFormat::None => Self::Tagged,
        }
    }

    pub fn feed(&mut self, c: char, tools: &Tools, found: &mut Found) -> Result<Fed, Broken> {
        match self {
            Self::Tagged => {
                match c {
                    _ if is_space(c) => return Ok(Fed::More),
                    '<' => *self = Self::Function(Function::default()),
                    '{' => *self = Self::Hermes(Hermes::default()),
                    _ => return Err(Broken::HERE),
                }
                self.feed(c, tools, found)
            }
            Self::Function(call) => call.feed(c, tools, found),
            Self::Hermes(call) => call.feed(c, found),
            Self::Gemma(call) => call.feed(c, found),
        }
    }
}

/// White space between the parts of a call.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}

/// Adds a character of a function's name.
pub(super) fn push_name(name: &mut String, c: char) -> Result<Fed, Broken> {
    let wrong = c.is_whitespace() || c.is_control() || "{}[]<>\",".contains(c);
    if wrong || name.len() + c.len_utf8() > MAX_NAME {
        return Err(Broken::HERE);
    }
    name.push(c);
    Ok(Fed::More)
}

/// Adds a character of a JSON string.
pub(super) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// Adds a JSON string.
pub(super) fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        escape(c, out);
    }
    out.push('"');
}
