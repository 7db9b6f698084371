//! What is asked: the built-in prompts, and a file of the user's own.
//!
//! The built-in ones are chosen so that the demo models answer them sensibly and at length; larger models do so anyway.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Largest prompt file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Name in reports.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Whether it is continued as it is. Otherwise it becomes a user message in the checkpoint's chat template.
    pub raw: bool,
}

/// The built-in prompts: short instruction, code, prose, enumeration, long context.
pub fn builtin() -> Vec<Prompt> {
    let prompt = |name: &str, text: &str, raw| Prompt { name: name.into(), text: text.into(), raw };
    vec![
        prompt("instruction", "Explain speculative decoding.", false),
        prompt("code", "Write a Rust function to check whether a number is prime.", false),
        prompt("prose", "Tell me a story about a brave rabbit.", false),
        prompt("enumeration", "values = [\n    1,\n    2,\n    3,\n    4,\n    5,\n    6,\n    7,\n", true),
        prompt("long-context", include_str!("prompts/long_context.txt").trim_end(), true),
    ]
}

/// Why a prompt file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// It cannot be read.
    #[error("{}: {source}; give a file of prompts (--prompts)", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// It is not text, too large, or holds no prompt.
    #[error("{}: {problem}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A line is not a prompt.
    #[error("{}, line {line}: {problem}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong: the field, what was expected, what was found.
        problem: String,
    },
}

/// Reads a prompt file: JSON lines `{"name": ..., "text": ..., "raw": ...}` where its first character is `{` or its name ends in
/// `.jsonl`, else plain text with a prompt a line. Blank lines do not count. `name` defaults to `line-N`, `raw` to false.
///
/// # Errors
/// A file that cannot be read, holds no prompt, or is over 64 MiB; a line that is not such an object; a name used twice.
pub fn read(file: &Path) -> Result<Vec<Prompt>, PromptError> {
    use std::io::Read as _;
    let io = |source| PromptError::Io { file: file.into(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(file).map_err(io)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    let bad = |problem: &str| PromptError::File { file: file.into(), problem: problem.into() };
    if bytes.len() as u64 > MAX_BYTES {
        return Err(bad("larger than 64 MiB; a prompt file has a prompt a line"));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| bad("not UTF-8; expected text with a prompt a line, or JSON lines"))?;
    parse(file, &text)
}

/// [`read`], of text that stands for the file.
fn parse(file: &Path, text: &str) -> Result<Vec<Prompt>, PromptError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_json = text.trim_start().starts_with('{') || file.extension().is_some_and(|ending| ending == "jsonl");
    let (mut prompts, mut names) = (Vec::new(), HashSet::new());
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        if line.trim().is_empty() {
            continue;
        }
        let bad = |problem: String| PromptError::Line { file: file.into(), line: number, problem };
        let prompt = if is_json {
            from_json(line, number).map_err(bad)?
        } else {
            Prompt { name: format!("line-{number}"), text: line.trim().into(), raw: false }
        };
        if !names.insert(prompt.name.clone()) {
            return Err(bad(format!("name: {:?} is the name of an earlier prompt; give each its own", prompt.name)));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(PromptError::File { file: file.into(), problem: "no prompt in it; give one a line".into() });
    }
    Ok(prompts)
}

/// A line of JSON as a prompt; `Err` says what is wrong with it.
fn from_json(line: &str, number: usize) -> Result<Prompt, String> {
    let example = r#"expected an object such as {"name": "story", "text": "Tell me a story.", "raw": false}"#;
    let value: Value = serde_json::from_str(line).map_err(|error| format!("invalid JSON ({error}); {example}"))?;
    let object = value.as_object().ok_or_else(|| format!("{example}, found {}", kind(&value)))?;
    if let Some(other) = object.keys().find(|key| !["name", "text", "raw"].contains(&key.as_str())) {
        return Err(format!("{other}: no such field; a prompt has name, text and raw"));
    }
    let text = match object.get("text") {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(Value::String(_)) => return Err("text: expected a prompt, found an empty string".into()),
        Some(other) => return Err(format!("text: expected a string, found {}", kind(other))),
        None => return Err(format!("text: absent; {example}")),
    };
    let name = match object.get("name") {
        None => format!("line-{number}"),
        Some(Value::String(name)) if !name.trim().is_empty() => name.trim().into(),
        Some(Value::String(_)) => return Err("name: expected a name, found an empty string".into()),
        Some(other) => return Err(format!("name: expected a string, found {}", kind(other))),
    };
    let raw = match object.get("raw") {
        None => false,
        Some(Value::Bool(raw)) => *raw,
        Some(other) => return Err(format!("raw: expected true or false, found {}", kind(other))),
    };
    Ok(Prompt { name, text, raw })
}

/// What a JSON value is, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str, text: &str) -> Result<Vec<Prompt>, String> {
        parse(Path::new(name), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_built_in_set_is_whole() {
        let prompts = builtin();
        let names: Vec<&str> = prompts.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["instruction", "code", "prose", "enumeration", "long-context"]);
        assert!(prompts.iter().all(|p| !p.text.trim().is_empty()));
        let words = |p: &Prompt| p.text.split_whitespace().count();
        assert!(words(&prompts[4]) > 300, "a few hundred tokens");
        assert!(prompts[..4].iter().all(|p| words(p) < 40), "the others are short");
    }

    #[test]
    fn the_long_prompt_has_a_few_hundred_tokens() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        for (model, context) in [("gemma-4-tiny-it-4bit", 1024), ("qwen3.5-tiny-4bit", 1024)] {
            let tokenizer = mlxcel_text::Tokenizer::load(&models.join(model)).expect("tokenizer");
            let tokens = tokenizer.encode_raw(&builtin()[4].text).expect("encodes").len();
            assert!((300..context - 256).contains(&tokens), "{model}: {tokens} tokens");
        }
    }

    #[test]
    fn json_lines_are_read() {
        let text = "{\"name\": \"a\", \"text\": \"Hi\\nthere\", \"raw\": true}\n\n{\"text\": \"Bye\"}\r\n";
        let expected = vec![
            Prompt { name: "a".into(), text: "Hi\nthere".into(), raw: true },
            Prompt { name: "line-3".into(), text: "Bye".into(), raw: false },
        ];
        assert_eq!(parsed("p.txt", text), Ok(expected.clone()), "known by its first character");
        assert_eq!(parsed("p.jsonl", &format!("\u{feff}{text}")), Ok(expected));
    }

    #[test]
    fn plain_lines_are_read() {
        let prompts = parsed("p.txt", "Tell me a story.\n\n  What is Rust? \n").expect("two prompts");
        assert_eq!(prompts.len(), 2);
        assert_eq!((prompts[1].name.as_str(), prompts[1].text.as_str()), ("line-3", "What is Rust?"));
        assert!(!prompts[1].raw);
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_field() {
        for (text, parts) in [
            ("{\"text\": \"a\"}\n{\"text\": 7}", &["p.jsonl, line 2: text", "a string", "a number"][..]),
            ("{\"name\": \"x\"}", &["line 1: text: absent", "{\"name\""]),
            ("{\"text\": \"\"}", &["line 1: text", "empty"]),
            ("{\"text\": \"a\", \"raw\": \"yes\"}", &["line 1: raw", "true or false", "a string"]),
            ("{\"text\": \"a\", \"name\": []}", &["line 1: name", "an array"]),
            ("{\"text\": \"a\", \"prompt\": 1}", &["line 1: prompt: no such field"]),
            ("\n{\"text\": \"a\"", &["line 2: invalid JSON"]),
            ("[1]", &["line 1", "an object", "an array"]),
            ("{\"name\":\"a\",\"text\":\"b\"}\n{\"name\":\"a\",\"text\":\"c\"}", &["line 2: name: \"a\"", "earlier"]),
            (" \n\n", &["p.jsonl: no prompt in it"]),
        ] {
            let error = parsed("p.jsonl", text).expect_err(text);
            for part in parts {
                assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("prompts.txt");
        let error = read(&file).expect_err("absent").to_string();
        assert!(error.contains("prompts.txt"), "{error}");
        std::fs::write(&file, [0xff, 0xfe, b'a']).expect("file");
        let error = read(&file).expect_err("no text").to_string();
        assert!(error.contains("not UTF-8"), "{error}");
        std::fs::write(&file, "Hello").expect("file");
        assert_eq!(read(&file).expect("one prompt").len(), 1);
    }
}
