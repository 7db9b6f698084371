//! `tokenizer_config.json`: the few fields of it that matter here.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::TextError;

const FIX: &str = "Copy the file again from the original checkpoint";

/// Reads a file, `None` where there is none.
pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_path_buf(), source }),
    }
}

/// Reads a UTF-8 file, `None` where there is none.
pub(crate) fn read_optional_text(path: &Path) -> Result<Option<String>, TextError> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(None);
    };
    String::from_utf8(bytes).map(Some).map_err(|e| TextError::BadFile {
        path: path.to_path_buf(),
        expected: "UTF-8 text",
        found: e.utf8_error().to_string(),
        fix: FIX,
    })
}

/// Reads a JSON object, `None` where there is no such file.
pub(crate) fn read_optional_object(path: &Path) -> Result<Option<Map<String, Value>>, TextError> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(other) => Err(TextError::BadFile {
            path: path.to_path_buf(),
            expected: "a JSON object",
            found: kind(&other).to_owned(),
            fix: FIX,
        }),
        Err(e) => Err(TextError::BadFile {
            path: path.to_path_buf(),
            expected: "a JSON object",
            found: e.to_string(),
            fix: FIX,
        }),
    }
}

/// The name of a JSON value's type, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The parsed file; every field is optional, and so is the file.
#[derive(Debug, Clone)]
pub(crate) struct TokenizerConfig {
    pub(crate) path: PathBuf,
    fields: Map<String, Value>,
}

impl TokenizerConfig {
    pub(crate) fn load(dir: &Path) -> Result<Self, TextError> {
        let path = dir.join("tokenizer_config.json");
        let fields = read_optional_object(&path)?.unwrap_or_default();
        Ok(Self { path, fields })
    }

    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    pub(crate) fn bad(&self, field: &str, expected: &'static str, found: &str) -> TextError {
        TextError::BadField {
            path: self.path.clone(),
            field: field.to_owned(),
            expected,
            found: found.to_owned(),
            fix: FIX,
        }
    }

    /// A boolean field; `null` counts as absent.
    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, TextError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.bad(field, "a boolean", kind(other))),
        }
    }

    /// The strings of a special-token field: a string, an object with `content`, or a list of those.
    pub(crate) fn tokens(&self, field: &str) -> Result<Vec<String>, TextError> {
        let expected = "a string, or an object with a string `content`";
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .map(|v| token_text(v).map(str::to_owned).ok_or_else(|| self.bad(field, expected, kind(v))))
                .collect(),
            Some(one) => match token_text(one) {
                Some(text) => Ok(vec![text.to_owned()]),
                None => Err(self.bad(field, expected, kind(one))),
            },
        }
    }

    /// Every `…_token` field with a text, the standard four and whatever a family adds.
    pub(crate) fn specials(&self) -> SpecialTokens {
        let tokens = self
            .fields
            .iter()
            .filter(|(name, _)| name.ends_with("_token"))
            .filter_map(|(name, v)| Some((name.clone(), token_text(v)?.to_owned())))
            .collect();
        SpecialTokens { tokens }
    }
}

fn token_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(s) => Some(s),
        Value::Object(o) => o.get("content")?.as_str(),
        _ => None,
    }
}

/// The named special tokens a chat template may print: `bos_token`, `eos_token`, `pad_token`, …
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    tokens: BTreeMap<String, String>,
}

impl SpecialTokens {
    /// Reads them from `tokenizer_config.json` in a checkpoint directory; empty where there is no such file.
    pub fn load(dir: &Path) -> Result<Self, TextError> {
        Ok(TokenizerConfig::load(dir)?.specials())
    }

    /// Sets one, as in `set("bos_token", "<s>")`.
    pub fn set(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.tokens.insert(name.into(), text.into());
    }

    /// The text of one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.tokens.get(name).map(String::as_str)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tokens.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> (tempfile::TempDir, Result<TokenizerConfig, TextError>) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), json).unwrap();
        let loaded = TokenizerConfig::load(dir.path());
        (dir, loaded)
    }

    #[test]
    fn tokens_may_be_strings_objects_or_null() {
        let (_dir, c) = config(
            r#"{"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"pad_token":null,"add_bos_token":true,
                "eot_token":"<e>"}"#,
        );
        let c = c.unwrap();
        let s = c.specials();
        assert_eq!(s.iter().collect::<Vec<_>>(), [("bos_token", "<s>"), ("eos_token", "</s>"), ("eot_token", "<e>")]);
        assert_eq!(c.flag("add_bos_token").unwrap(), Some(true));
        assert_eq!(c.tokens("pad_token").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn faults_name_file_and_field() {
        let (_dir, c) = config(r#"{"add_bos_token":"yes","eos_token":5}"#);
        let c = c.unwrap();
        let e = c.flag("add_bos_token").unwrap_err().to_string();
        assert!(e.contains("tokenizer_config.json") && e.contains("add_bos_token") && e.contains("a string"), "{e}");
        assert!(c.tokens("eos_token").is_err());
        for broken in ["{", "[]", "\u{0}", ""] {
            let (_dir, c) = config(broken);
            let e = c.unwrap_err().to_string();
            assert!(e.contains("tokenizer_config.json"), "{e}");
        }
    }
}
