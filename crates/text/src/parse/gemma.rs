//! Gemma 4's calls: `call:NAME{key:value,…}`, as its chat template prints them.

use super::call::{Broken, Fed, Found, is_space, push_name};
use super::values::{Dialect, Values};

/// What every call begins with.
const CALL: &str = "call:";

#[derive(Debug, Clone)]
enum State {
    /// Within `call:`, so much of which has been seen.
    Call(usize),
    Name(String),
    Arguments(Values),
}

/// A call in progress.
#[derive(Debug, Clone)]
pub(super) struct Gemma {
    state: State,
}

impl Default for Gemma {
    fn default() -> Self {
        Self { state: State::Call(0) }
    }
}

impl Gemma {
    pub fn feed(&mut self, c: char, found: &mut Found) -> Result<Fed, Broken> {
        match &mut self.state {
            State::Call(0) if is_space(c) => {}
            State::Call(seen) => {
                if !CALL[*seen..].starts_with(c) {
                    return Err(Broken::HERE);
                }
                *seen += 1;
                if *seen == CALL.len() {
                    self.state = State::Name(String::new());
                }
            }
            State::Name(name) if c == '{' && !name.is_empty() => {
                found.start = Some((None, std::mem::take(name)));
                let mut values = Values::new(Dialect::Gemma);
                values.feed(c, &mut found.arguments)?;
                self.state = State::Arguments(values);
            }
            State::Name(name) => return push_name(name, c),
            State::Arguments(values) => return values.feed(c, &mut found.arguments),
        }
        Ok(Fed::More)
    }
}
