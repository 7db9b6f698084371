//! Typed reading of JSON fields, with errors that name file, field, expected and found.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{CheckpointError, Result};

/// Largest size a configuration may state; what is multiplied from such sizes is checked again where it is used.
pub(crate) const MAX_SIZE: usize = 1 << 24;

/// Most layers a configuration may have: bounds what the default pattern allocates.
pub(crate) const MAX_LAYERS: usize = 4096;

/// Most elements one tensor may have. Far above any model, and low enough that sizes in bytes cannot overflow.
const MAX_ELEMENTS: u128 = 1 << 44;

/// An object of a JSON file. Everywhere `null` counts as absent.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    file: &'a Path,
    /// Path of this object inside the file, empty or ending in a dot.
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The root object of a file.
    pub(crate) fn root(file: &'a Path, value: &'a Value) -> Result<Self> {
        let map = value.as_object().ok_or_else(|| CheckpointError::Json {
            path: file.into(),
            problem: format!("is {}, expected an object", short(value)),
        })?;
        Ok(Self { file, path: String::new(), map })
    }

    /// An error about a field of this object.
    pub(crate) fn error(&self, key: &str, expected: impl Into<String>) -> CheckpointError {
        let found = self.map.get(key).map_or("absent".into(), short);
        self.error_found(key, expected, found)
    }

    /// An error about a field of this object whose value is worth describing in other words.
    pub(crate) fn error_found(
        &self,
        key: &str,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> CheckpointError {
        CheckpointError::Field {
            file: self.file.into(),
            field: format!("{}{key}", self.path),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// Fails when a tensor would have more elements than any model's; `what` says how its size comes about.
    pub(crate) fn check_elements(&self, what: &str, factors: &[usize]) -> Result<()> {
        // Sizes have at most 24 bits, so five factors cannot overflow 128.
        let elements: u128 = factors.iter().map(|factor| *factor as u128).product();
        if elements <= MAX_ELEMENTS {
            return Ok(());
        }
        let expected = format!("a tensor of at most {MAX_ELEMENTS} elements");
        Err(self.error_found(what, expected, format!("{elements} elements")))
    }

    /// True when the key is written at all, be it as `null`.
    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The full path of a key.
    pub(crate) fn name_of(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// All entries, in the order of the file.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// A value.
    pub(crate) fn raw(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.raw(key).map(|value| read(value).ok_or_else(|| self.error(key, expected))).transpose()
    }

    /// A size: an integer in `0..=MAX_SIZE`.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, &format!("an integer from 0 to {MAX_SIZE}"), |value| {
            value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size <= MAX_SIZE)
        })
    }

    /// A non-negative integer of any size.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    /// A finite number.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// A finite number inside a closed range.
    pub(crate) fn float_in(&self, key: &str, low: f64, high: f64) -> Result<Option<f64>> {
        self.typed(key, &format!("a number from {low} to {high}"), |value| {
            value.as_f64().filter(|number| (low..=high).contains(number))
        })
    }

    /// A boolean.
    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A token id.
    pub(crate) fn id(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a token id", token_id)
    }

    /// A token id or a list of them.
    pub(crate) fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let ids = self.typed(key, "a token id or a list of token ids", |value| match value {
            Value::Array(items) => items.iter().map(token_id).collect(),
            other => token_id(other).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// A list.
    pub(crate) fn list(&self, key: &str) -> Result<Option<&'a Vec<Value>>> {
        self.typed(key, "a list", Value::as_array)
    }

    /// A nested object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { file: self.file, path: format!("{}{key}.", self.path), map }))
    }
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A value as it is shown in a message: JSON, cut to a readable length.
pub(crate) fn short(value: &Value) -> String {
    const LONGEST: usize = 80;
    match value {
        // Containers are not spelled out: a whole weight map can be megabytes.
        Value::Array(items) if items.len() > 8 => format!("a list of {} items", items.len()),
        Value::Object(map) if map.len() > 4 => format!("an object of {} fields", map.len()),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((cut, _)) => format!("{}…", &text[..cut]),
                None => text,
            }
        }
    }
}
