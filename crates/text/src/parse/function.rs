//! Qwen 3.5's calls: `<function=NAME>` around `<parameter=KEY>` … `</parameter>`, as its chat template prints them.
//!
//! A value stands between two newlines, which are not part of it, and ends at the first `</parameter>`. Strings stand raw,
//! all else as JSON: the tool's schema says which it is.

use super::MAX_NAME;
use super::call::{Broken, Fed, Found, escape, is_space, push_name, quote};
use super::hold::{Hold, Marker};
use super::schema::{Kinds, Tools};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: [Marker; 1] = [Marker { text: "</parameter>", newlines: 1 }];

#[derive(Debug, Clone)]
enum State {
    /// Between the parts, or within a tag.
    Tag(String),
    Name(String),
    Key(String),
    /// Before the first character of a value.
    Lead,
    Value(Hold),
}

/// A call in progress.
#[derive(Debug, Clone)]
pub(super) struct Function {
    state: State,
    /// Empty until it is known.
    name: String,
    parameters: usize,
    /// Types of the value in progress.
    kinds: Kinds,
    /// A value that has to be whole to be understood.
    value: String,
}

impl Default for Function {
    fn default() -> Self {
        Self {
            state: State::Tag(String::new()),
            name: String::new(),
            parameters: 0,
            kinds: Kinds::ANY,
            value: String::new(),
        }
    }
}

impl Function {
    pub fn feed(&mut self, c: char, tools: &Tools, found: &mut Found) -> Result<Fed, Broken> {
        match &mut self.state {
            State::Tag(tag) => {
                if tag.is_empty() && is_space(c) {
                    return Ok(Fed::More);
                }
                let before = tag.len();
                tag.push(c);
                let known: &[&str] = if self.name.is_empty() { &[FUNCTION] } else { &[PARAMETER, FUNCTION_END] };
                if !known.iter().any(|whole| whole.starts_with(tag.as_str())) {
                    return Err(Broken { again: before });
                }
                match tag.as_str() {
                    FUNCTION => self.state = State::Name(String::new()),
                    PARAMETER => self.state = State::Key(String::new()),
                    FUNCTION_END => {
                        found.arguments.push('}');
                        return Ok(Fed::Whole);
                    }
                    _ => {}
                }
            }
            State::Name(name) if c == '>' && !name.is_empty() => {
                self.name = std::mem::take(name);
                found.start = Some((None, self.name.clone()));
                found.arguments.push('{');
                self.state = State::Tag(String::new());
            }
            State::Name(name) => return push_name(name, c),
            State::Key(key) if c == '>' && !key.is_empty() => {
                self.kinds = tools.kinds(&self.name, key);
                if self.parameters > 0 {
                    found.arguments.push(',');
                }
                self.parameters += 1;
                quote(key, &mut found.arguments);
                found.arguments.push(':');
                if self.kinds == Kinds::STRING {
                    found.arguments.push('"');
                }
                self.state = State::Lead;
            }
            State::Key(key) => {
                if c.is_control() || c == '<' || c == '>' || key.len() + c.len_utf8() > MAX_NAME {
                    return Err(Broken::HERE);
                }
                key.push(c);
            }
            State::Lead => {
                self.state = State::Value(Hold::default());
                if c != '\n' {
                    return self.feed(c, tools, found);
                }
            }
            State::Value(hold) => {
                let stream = self.kinds == Kinds::STRING;
                if hold.is_empty() && c != '\n' && c != '<' {
                    // Nearly every character of nearly every value.
                    if stream {
                        escape(c, &mut found.arguments)
                    } else {
                        self.value.push(c)
                    }
                    return Ok(Fed::More);
                }
                let mut text = String::new();
                let ended = hold.push(c, &PARAMETER_END, if stream { &mut text } else { &mut self.value }).is_some();
                text.chars().for_each(|c| escape(c, &mut found.arguments));
                if ended {
                    if stream {
                        found.arguments.push('"');
                    } else {
                        self.kinds.write(&self.value, &mut found.arguments);
                        self.value.clear();
                    }
                    self.state = State::Tag(String::new());
                }
            }
        }
        Ok(Fed::More)
    }
}
