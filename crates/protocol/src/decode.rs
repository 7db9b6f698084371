//! Decoding JSON values with their place in the body: every refusal names the path, what was expected, what was found.
//!
//! Values are taken out of the tree rather than copied: a prompt of ten megabytes is moved, and what is left in an
//! object when all known fields are taken is what nobody knows.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::limits::{Limit, Range};
use crate::parameters::{Parameter, Rule};

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

/// Where a value lies: a list of steps that grows on the stack as decoding descends.
#[derive(Clone, Copy)]
pub(crate) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    Field(&'p str),
    Index(usize),
}

impl Path<'_> {
    /// The body itself.
    pub(crate) const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    fn field<'s>(&'s self, name: &'s str) -> Path<'s> {
        Path { parent: Some(self), step: Step::Field(name) }
    }

    fn index(&self, index: usize) -> Path<'_> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// A refusal of what lies here.
    pub(crate) fn error(&self, message: impl fmt::Display) -> ApiError {
        ApiError::parameter(self.to_string(), message)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        let inner = self.parent.is_some_and(|p| !matches!(p.step, Step::Root));
        match self.step {
            Step::Root => Ok(()),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Field(name) => write!(f, "{}{}", if inner { "." } else { "" }, shortened(name, 64)),
        }
    }
}

/// A value and where it lies.
pub(crate) struct Node<'p> {
    pub(crate) value: Value,
    pub(crate) path: Path<'p>,
}

/// Something that a value can be decoded to.
pub(crate) trait Decode: Sized {
    fn decode(node: Node<'_>) -> Result<Self>;
}

impl<'p> Node<'p> {
    /// The refusal of a value that is not what is expected here.
    pub(crate) fn wrong(&self, expected: impl fmt::Display) -> ApiError {
        self.path.error(format_args!("expected {expected}, found {}", describe(&self.value)))
    }

    /// The refusal of a value outside its range.
    fn outside(&self, limit: &Limit, found: impl fmt::Display) -> ApiError {
        let hint = if limit.hint.is_empty() { "" } else { "; " };
        self.path.error(format_args!("expected {}, found {found}{hint}{}", limit.range, limit.hint))
    }

    pub(crate) fn object(self, expected: impl fmt::Display) -> Result<Object<'p>> {
        match self.value {
            Value::Object(fields) => Ok(Object { path: self.path, fields }),
            _ => Err(self.wrong(expected)),
        }
    }

    pub(crate) fn text(self) -> Result<String> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong("a string")),
        }
    }

    /// A string of so many bytes.
    pub(crate) fn bounded_text(self, limit: &Limit) -> Result<String> {
        let Range::Bytes { least, most } = limit.range else { unreachable!("{} is no string", limit.name) };
        match &self.value {
            Value::String(text) if (least..=most).contains(&text.len()) => self.text(),
            Value::String(text) if text.is_empty() => Err(self.outside(limit, "an empty string")),
            Value::String(text) => Err(self.outside(limit, format_args!("{} bytes", text.len()))),
            _ => Err(self.wrong(limit.range)),
        }
    }

    /// A finite number in its range, as f32; its f32 is in the range as well.
    pub(crate) fn real(self, limit: &Limit) -> Result<f32> {
        let inside = |x: f64| match limit.range {
            Range::Real { least, most } => least <= x && x <= most,
            Range::Above { above, most } => above < x && x <= most,
            _ => unreachable!("{} is no real number", limit.name),
        };
        match self.value.as_f64() {
            Some(x) if inside(x) && inside(f64::from(x as f32)) => Ok(x as f32),
            Some(_) => Err(self.outside(limit, &self.value)),
            None => Err(self.wrong(limit.range)),
        }
    }

    /// An integer in its range. `2.0` is one, `1.5` is not; one that no u64 holds is taken for the largest where the
    /// range is open upwards.
    pub(crate) fn whole<T: TryFrom<i128>>(self, limit: &Limit) -> Result<T> {
        let (least, most) = match limit.range {
            Range::Whole { least, most } => (least, most),
            Range::AtLeast { least } => (least, i128::MAX),
            _ => unreachable!("{} is no integer", limit.name),
        };
        let value = match &self.value {
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(i), ..) => i128::from(i),
                (_, Some(u), _) => i128::from(u),
                (.., Some(x)) if x.fract() == 0.0 => x as i128,
                _ => return Err(self.outside(limit, &self.value)),
            },
            _ => return Err(self.wrong(limit.range)),
        };
        if !(least..=most).contains(&value) {
            return Err(self.outside(limit, &self.value));
        }
        let open = matches!(limit.range, Range::AtLeast { .. });
        let value = if open { value.min(i128::from(u64::MAX)) } else { value };
        T::try_from(value).map_err(|_| self.outside(limit, &self.value))
    }

    /// A list of so many items.
    pub(crate) fn list<T>(self, limit: &Limit, mut item: impl FnMut(Node<'_>) -> Result<T>) -> Result<Vec<T>> {
        let Range::Items { least, most } = limit.range else { unreachable!("{} is no list", limit.name) };
        let Value::Array(values) = self.value else {
            return Err(self.wrong(format_args!("an array ({})", limit.range)));
        };
        if !(least..=most).contains(&values.len()) {
            let found = if values.is_empty() { "an empty array".into() } else { format!("{} items", values.len()) };
            let hint = if limit.hint.is_empty() { "" } else { "; " };
            return Err(self.path.error(format_args!("expected {}, found {found}{hint}{}", limit.range, limit.hint)));
        }
        let path = self.path;
        values.into_iter().enumerate().map(|(i, value)| item(Node { value, path: path.index(i) })).collect()
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(self, words: &[(&str, T)]) -> Result<T> {
        let found = self.value.as_str().and_then(|found| words.iter().find(|(word, _)| *word == found));
        found.map(|&(_, meaning)| meaning).ok_or_else(|| self.wrong(one_of(words.iter().map(|(word, _)| *word))))
    }
}

/// `"a", "b" or "c"`.
pub(crate) fn one_of<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    }
}

/// An object whose fields are being taken.
pub(crate) struct Object<'p> {
    pub(crate) path: Path<'p>,
    fields: Map<String, Value>,
}

impl<'p> Object<'p> {
    /// The field, if it is there and not null: to every client `null` is the same as leaving it out.
    pub(crate) fn take<'s>(&'s mut self, name: &'s str) -> Option<Node<'s>> {
        let value = self.fields.remove(name).filter(|value| !value.is_null())?;
        Some(Node { value, path: self.path.field(name) })
    }

    /// The field, which must be there.
    pub(crate) fn need<'s>(&'s mut self, name: &'s str, expected: impl fmt::Display) -> Result<Node<'s>> {
        match self.fields.remove(name) {
            Some(value) if !value.is_null() => Ok(Node { value, path: self.path.field(name) }),
            Some(_) => Err(self.error(name, format_args!("expected {expected}, found null"))),
            None => Err(self
                .error(name, format_args!("expected {expected}, found no such field"))
                .with_code("missing_required_parameter")),
        }
    }

    pub(crate) fn optional<T: Decode>(&mut self, name: &str) -> Result<Option<T>> {
        self.take(name).map(T::decode).transpose()
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool> {
        Ok(self.optional(name)?.unwrap_or(false))
    }

    pub(crate) fn real(&mut self, limit: &Limit) -> Result<Option<f32>> {
        self.take(limit.name).map(|node| node.real(limit)).transpose()
    }

    pub(crate) fn whole<T: TryFrom<i128>>(&mut self, limit: &Limit) -> Result<Option<T>> {
        self.take(limit.name).map(|node| node.whole(limit)).transpose()
    }

    pub(crate) fn list<T: Decode>(&mut self, limit: &Limit) -> Result<Vec<T>> {
        Ok(self.take(limit.name).map(|node| node.list(limit, T::decode)).transpose()?.unwrap_or_default())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| !value.is_null())
    }

    /// Names of the fields not taken yet.
    pub(crate) fn names(&self) -> Vec<String> {
        self.fields.keys().cloned().collect()
    }

    /// A refusal of the field `name`.
    pub(crate) fn error(&self, name: &str, message: impl fmt::Display) -> ApiError {
        self.path.field(name).error(message)
    }

    /// The `type` that says what this object is.
    pub(crate) fn kind(&mut self, expected: impl fmt::Display) -> Result<String> {
        self.need("type", expected)?.text()
    }

    /// Drops fields that change nothing.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.fields.remove(*name);
        }
    }

    /// Everything known has been taken: what is left is looked up in the tables, and refused if it is in none.
    pub(crate) fn finish(self, tables: &[&[Parameter]]) -> Result<()> {
        let Object { path, fields } = self;
        for (name, value) in fields {
            let known = tables.iter().flat_map(|table| table.iter()).find(|parameter| parameter.name == name);
            match known.map(|parameter| parameter.rule) {
                Some(Rule::Harmless) => {}
                _ if value.is_null() => {}
                Some(Rule::Only(accepted, why)) => {
                    if !accepted.iter().any(|text| same(&value, text)) {
                        let expected = accepted.join(" or ");
                        let message =
                            format!("expected {expected} or no such field, found {}; {why}", describe(&value));
                        return Err(path.field(&name).error(message).with_code("unsupported_parameter"));
                    }
                }
                Some(Rule::Refused(why)) => {
                    let message = format!("expected no such field, found {}; {why}", describe(&value));
                    return Err(path.field(&name).error(message).with_code("unsupported_parameter"));
                }
                None => {
                    let message = format!(
                        "expected a known parameter, found one that this server does not know ({})",
                        describe(&value)
                    );
                    return Err(path.field(&name).error(message).with_code("unknown_parameter"));
                }
            }
        }
        Ok(())
    }
}

/// Whether a value is the one written as `text`; numbers are compared as numbers.
fn same(value: &Value, text: &str) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(other) => match (value.as_f64(), other.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => *value == other,
        },
        Err(_) => false,
    }
}

impl Decode for String {
    fn decode(node: Node<'_>) -> Result<Self> {
        node.text()
    }
}

impl Decode for bool {
    fn decode(node: Node<'_>) -> Result<Self> {
        node.value.as_bool().ok_or_else(|| node.wrong("true or false"))
    }
}

impl Decode for Value {
    fn decode(node: Node<'_>) -> Result<Self> {
        Ok(node.value)
    }
}

impl Decode for Map<String, Value> {
    fn decode(node: Node<'_>) -> Result<Self> {
        node.object("an object").map(|object| object.fields)
    }
}

/// A value in a few words for messages.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => format!("the string {:?}", shortened(s, 40)),
        Value::Array(a) if a.is_empty() => "an empty array".into(),
        Value::Array(a) => format!("an array of {}", a.len()),
        Value::Object(o) if o.is_empty() => "an empty object".into(),
        Value::Object(o) => {
            let keys: Vec<String> = o.keys().take(3).map(|key| shortened(key, 20)).collect();
            let more = if o.len() > 3 { ", ..." } else { "" };
            format!("an object with {}{more}", keys.join(", "))
        }
    }
}

/// The first `most` characters, without control characters: messages go to logs and terminals.
fn shortened(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(most).map(clean).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}
