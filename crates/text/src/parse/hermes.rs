//! Calls as JSON: `{"name": …, "arguments": {…}}`, of Qwen 2.5, Qwen 3 and fine-tunes in Hermes' style.

use super::MAX_NAME;
use super::call::{Broken, Fed, Found, is_space, push_name};
use super::values::{Dialect, Values, compact_json};

#[derive(Debug, Clone)]
enum State {
    /// The opening brace.
    Open,
    /// A key, or the end where there may be none.
    Key {
        or_end: bool,
    },
    /// Within a key.
    InKey(Values),
    Colon,
    /// Before the first character of a member.
    Member,
    /// Within a member that is gathered.
    Gather(Values),
    /// Within arguments that are handed on as they come.
    Stream(Values),
    /// A comma or the end.
    Next,
}

/// A call in progress.
#[derive(Debug, Clone)]
pub(super) struct Hermes {
    state: State,
    /// JSON text of the key, then of the member.
    text: String,
    key: String,
    id: Option<String>,
    name: Option<String>,
    /// Arguments that came before the name.
    arguments: Option<String>,
    /// Whether arguments have come.
    given: bool,
}

impl Default for Hermes {
    fn default() -> Self {
        Self {
            state: State::Open,
            text: String::new(),
            key: String::new(),
            id: None,
            name: None,
            arguments: None,
            given: false,
        }
    }
}

impl Hermes {
    pub fn feed(&mut self, c: char, found: &mut Found) -> Result<Fed, Broken> {
        match &mut self.state {
            State::Open | State::Key { .. } | State::Colon | State::Member | State::Next if is_space(c) => {}
            State::Open => self.expect(c == '{', State::Key { or_end: true })?,
            State::Key { or_end: true } if c == '}' => return self.end(found),
            State::Key { .. } => {
                self.text.clear();
                let mut values = Values::new(Dialect::Json);
                values.feed(c, &mut self.text)?;
                self.expect(c == '"', State::InKey(values))?;
            }
            State::InKey(values) => {
                if values.feed(c, &mut self.text)? != Fed::More {
                    self.key = decode(&self.text)?;
                    self.state = State::Colon;
                }
            }
            State::Colon => {
                self.text.clear();
                self.expect(c == ':', State::Member)?;
            }
            State::Member => {
                let stream = c == '{' && self.is_arguments() && self.name.is_some();
                if stream {
                    self.give(found)?;
                }
                let mut values = Values::new(Dialect::Json);
                values.feed(c, if stream { &mut found.arguments } else { &mut self.text })?;
                self.state = if stream { State::Stream(values) } else { State::Gather(values) };
            }
            State::Stream(values) => {
                if values.feed(c, &mut found.arguments)? != Fed::More {
                    self.state = State::Next;
                }
            }
            State::Gather(values) => {
                let fed = values.feed(c, &mut self.text)?;
                if fed != Fed::More {
                    self.state = State::Next;
                    self.member(found)?;
                }
                if fed == Fed::WholeBefore {
                    return self.feed(c, found);
                }
            }
            State::Next if c == '}' => return self.end(found),
            State::Next => self.expect(c == ',', State::Key { or_end: false })?,
        }
        Ok(Fed::More)
    }

    fn expect(&mut self, holds: bool, then: State) -> Result<(), Broken> {
        self.state = then;
        if holds { Ok(()) } else { Err(Broken::HERE) }
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    /// A gathered member is whole. Members that mean nothing here are passed over.
    fn member(&mut self, found: &mut Found) -> Result<(), Broken> {
        match self.key.as_str() {
            "name" => {
                let name = decode(&self.text)?;
                let mut checked = String::new();
                for c in name.chars() {
                    push_name(&mut checked, c)?;
                }
                if checked.is_empty() || self.name.replace(checked).is_some() {
                    return Err(Broken::HERE);
                }
                if let Some(arguments) = self.arguments.take() {
                    found.start = Some((self.id.take(), name));
                    found.arguments.push_str(&arguments);
                }
            }
            "id" => self.id = decode(&self.text).ok().filter(|id| !id.is_empty() && id.len() <= MAX_NAME),
            "arguments" | "parameters" => {
                let arguments = object(&self.text).ok_or(Broken::HERE)?;
                if self.name.is_some() {
                    self.give(found)?;
                    found.arguments.push_str(&arguments);
                } else if self.given {
                    return Err(Broken::HERE);
                } else {
                    self.given = true;
                    self.arguments = Some(arguments);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Arguments begin, and the name is known.
    fn give(&mut self, found: &mut Found) -> Result<(), Broken> {
        match &self.name {
            Some(name) if !self.given => {
                self.given = true;
                found.start = Some((self.id.take(), name.clone()));
                Ok(())
            }
            _ => Err(Broken::HERE),
        }
    }

    fn end(&mut self, found: &mut Found) -> Result<Fed, Broken> {
        if self.name.is_none() {
            return Err(Broken::HERE);
        }
        if !self.given {
            self.give(found)?;
            found.arguments.push_str("{}");
        }
        Ok(Fed::Whole)
    }
}

/// A JSON string's value.
fn decode(text: &str) -> Result<String, Broken> {
    serde_json::from_str(text).map_err(|_| Broken::HERE)
}

/// Arguments as an object: itself, or a string that holds it, or nothing at all.
fn object(text: &str) -> Option<String> {
    match text.as_bytes().first()? {
        b'{' => Some(text.to_owned()),
        b'"' => compact_json(&decode(text).ok()?).filter(|inner| inner.starts_with('{')),
        _ => (text == "null").then(|| "{}".to_owned()),
    }
}
