//! One value, JSON or Gemma's, checked character by character and written as compact JSON.
//!
//! The two languages differ in little: Gemma's strings stand between `<|"|>` without escapes, and its keys are bare.

use super::MAX_DEPTH;
use super::call::{Broken, Fed, escape, is_space, quote};

/// Gemma's quotation mark.
const MARK: &str = "<|\"|>";

/// The language of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Json,
    Gemma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Object,
    List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value, or the end of the list where it may be empty.
    Value {
        or_end: bool,
    },
    /// A key, or the end of the object where it may be empty.
    Key {
        or_end: bool,
    },
    /// Within a key without quotes.
    BareKey,
    Colon,
    /// A comma or the end of what is open.
    Next,
    /// Within a number, `true` and the like.
    Scalar,
    /// Within a string with escapes.
    Quoted {
        key: bool,
        escape: Escape,
    },
    /// Within a `<|"|>` that opens a string.
    Mark {
        key: bool,
        matched: usize,
    },
    /// Within a string that `<|"|>` ends, so much of which may have been seen.
    Marked {
        key: bool,
        matched: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Hex { digits: u8, value: u16 },
}

/// A value in progress.
#[derive(Debug, Clone)]
pub(super) struct Values {
    dialect: Dialect,
    stack: Vec<Frame>,
    state: State,
    /// The scalar or bare key so far.
    word: String,
    /// The first half of a surrogate pair was escaped; the second must follow at once.
    high: bool,
}

impl Values {
    pub fn new(dialect: Dialect) -> Self {
        let state = State::Value { or_end: false };
        Self { dialect, stack: Vec::new(), state, word: String::new(), high: false }
    }

    /// Takes a character and appends to `out` the JSON text it makes certain.
    pub fn feed(&mut self, c: char, out: &mut String) -> Result<Fed, Broken> {
        let gemma = self.dialect == Dialect::Gemma;
        match self.state {
            State::Value { .. } | State::Key { .. } | State::Colon | State::Next if is_space(c) => {}
            State::Value { or_end } => match c {
                '{' => self.open(Frame::Object, out)?,
                '[' => self.open(Frame::List, out)?,
                ']' if or_end => return self.close(Frame::List, out),
                '"' => {
                    out.push('"');
                    self.state = State::Quoted { key: false, escape: Escape::None };
                }
                '<' if gemma => self.state = State::Mark { key: false, matched: 1 },
                _ => {
                    self.state = State::Scalar;
                    self.push_word(c)?;
                }
            },
            State::Key { or_end } => match c {
                '}' if or_end => return self.close(Frame::Object, out),
                '"' => {
                    out.push('"');
                    self.state = State::Quoted { key: true, escape: Escape::None };
                }
                '<' if gemma => self.state = State::Mark { key: true, matched: 1 },
                ':' => return Err(Broken::HERE),
                _ if gemma => {
                    self.state = State::BareKey;
                    self.push_word(c)?;
                }
                _ => return Err(Broken::HERE),
            },
            State::BareKey if c == ':' => {
                quote(self.word.trim_end(), out);
                self.word.clear();
                out.push(':');
                self.state = State::Value { or_end: false };
            }
            State::BareKey => self.push_word(c)?,
            State::Colon => {
                if c != ':' {
                    return Err(Broken::HERE);
                }
                out.push(':');
                self.state = State::Value { or_end: false };
            }
            State::Next => match (c, self.stack.last()) {
                (',', Some(Frame::Object)) => {
                    out.push(',');
                    self.state = State::Key { or_end: false };
                }
                (',', Some(Frame::List)) => {
                    out.push(',');
                    self.state = State::Value { or_end: false };
                }
                ('}', _) => return self.close(Frame::Object, out),
                (']', _) => return self.close(Frame::List, out),
                _ => return Err(Broken::HERE),
            },
            State::Scalar => {
                if matches!(c, ',' | '}' | ']') || (!gemma && is_space(c)) {
                    self.end_scalar(out)?;
                    return if self.stack.is_empty() { Ok(Fed::WholeBefore) } else { self.feed(c, out) };
                }
                self.push_word(c)?;
            }
            State::Quoted { key, escape } => return self.quoted(c, key, escape, out),
            State::Mark { key, matched } => {
                if !MARK[matched..].starts_with(c) {
                    return Err(Broken { again: matched });
                }
                self.state = State::Mark { key, matched: matched + 1 };
                if matched + 1 == MARK.len() {
                    out.push('"');
                    self.state = State::Marked { key, matched: 0 };
                }
            }
            State::Marked { key, matched } => {
                if MARK[matched..].starts_with(c) {
                    if matched + 1 == MARK.len() {
                        return Ok(self.end_string(key, out));
                    }
                    self.state = State::Marked { key, matched: matched + 1 };
                } else {
                    MARK[..matched].chars().for_each(|seen| escape(seen, out));
                    // Only its first character may begin a mark anew.
                    let matched = usize::from(c == '<');
                    if matched == 0 {
                        escape(c, out);
                    }
                    self.state = State::Marked { key, matched };
                }
            }
        }
        Ok(Fed::More)
    }

    fn quoted(&mut self, c: char, key: bool, state: Escape, out: &mut String) -> Result<Fed, Broken> {
        let escape = match state {
            Escape::None if c == '\\' => {
                out.push(c);
                Escape::Backslash
            }
            Escape::Backslash if c == 'u' => {
                out.push(c);
                Escape::Hex { digits: 0, value: 0 }
            }
            Escape::None | Escape::Backslash if self.high => return Err(Broken::HERE),
            Escape::None if c == '"' => return Ok(self.end_string(key, out)),
            Escape::None => {
                // What should have been escaped is: models write raw newlines.
                if c < ' ' {
                    escape(c, out)
                } else {
                    out.push(c)
                }
                Escape::None
            }
            Escape::Backslash if "\"\\/bfnrt".contains(c) => {
                out.push(c);
                Escape::None
            }
            Escape::Backslash => return Err(Broken::HERE),
            Escape::Hex { digits, value } => {
                let digit = c.to_digit(16).ok_or(Broken::HERE)?;
                out.push(c);
                let value = (value << 4) | digit as u16;
                if digits < 3 {
                    Escape::Hex { digits: digits + 1, value }
                } else {
                    let low = (0xDC00..0xE000).contains(&value);
                    if low != self.high {
                        return Err(Broken::HERE);
                    }
                    self.high = (0xD800..0xDC00).contains(&value);
                    Escape::None
                }
            }
        };
        self.state = State::Quoted { key, escape };
        Ok(Fed::More)
    }

    fn push_word(&mut self, c: char) -> Result<(), Broken> {
        let fits = match self.dialect {
            Dialect::Json => c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'),
            Dialect::Gemma => is_space(c) || !(c.is_control() || "{}[],\"<".contains(c)),
        };
        if !fits {
            return Err(Broken::HERE);
        }
        self.word.push(c);
        Ok(())
    }

    fn open(&mut self, frame: Frame, out: &mut String) -> Result<(), Broken> {
        if self.stack.len() == MAX_DEPTH {
            return Err(Broken::HERE);
        }
        self.stack.push(frame);
        let object = frame == Frame::Object;
        out.push(if object { '{' } else { '[' });
        self.state = if object { State::Key { or_end: true } } else { State::Value { or_end: true } };
        Ok(())
    }

    fn close(&mut self, frame: Frame, out: &mut String) -> Result<Fed, Broken> {
        if self.stack.pop() != Some(frame) {
            return Err(Broken::HERE);
        }
        out.push(if frame == Frame::Object { '}' } else { ']' });
        Ok(self.end_value())
    }

    fn end_value(&mut self) -> Fed {
        self.state = State::Next;
        if self.stack.is_empty() { Fed::Whole } else { Fed::More }
    }

    fn end_string(&mut self, key: bool, out: &mut String) -> Fed {
        out.push('"');
        if key {
            self.state = State::Colon;
            return Fed::More;
        }
        self.end_value()
    }

    fn end_scalar(&mut self, out: &mut String) -> Result<(), Broken> {
        let word = std::mem::take(&mut self.word);
        let word = word.trim_end();
        match self.dialect {
            _ if is_json_scalar(word) => out.push_str(word),
            Dialect::Json => return Err(Broken::HERE),
            Dialect::Gemma => quote(word, out),
        }
        self.state = State::Next;
        Ok(())
    }
}

/// Whether a word is a number that a double can hold, `true`, `false` or `null`.
fn is_json_scalar(word: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(word).is_ok()
}

/// A whole text that holds one JSON value, as compact JSON with its numbers' digits untouched.
pub(super) fn compact_json(text: &str) -> Option<String> {
    let mut values = Values::new(Dialect::Json);
    let mut out = String::with_capacity(text.len());
    let mut whole = false;
    // The newline ends a scalar.
    for c in text.chars().chain(['\n']) {
        if whole {
            if !is_space(c) {
                return None;
            }
            continue;
        }
        match values.feed(c, &mut out).ok()? {
            Fed::More => {}
            Fed::WholeBefore if !is_space(c) => return None,
            Fed::Whole | Fed::WholeBefore => whole = true,
        }
    }
    whole.then_some(out)
}
