//! `tojson` as transformers defines it, which is Python's `json.dumps`, and `fromjson`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python::float_repr;

/// Deeper data than this is a fault of the template: requests cannot carry it.
const MAX_DEPTH: usize = 200;

struct Style {
    ascii: bool,
    sort: bool,
    /// One level of indentation; `None` prints one line.
    indent: Option<String>,
    item: String,
    key: String,
}

/// `x | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut given = [const { Value::UNDEFINED }; 4];
    for (i, name) in names.iter().enumerate() {
        if let Some(v) = args.get(i) {
            given[i] = v.clone();
        } else if kwargs.has(name) {
            given[i] = kwargs.get(name)?;
        }
    }
    kwargs.assert_all_used()?;
    let [ascii, indent, separators, sort] = given;

    let indent = match indent.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        ValueKind::String => indent.as_str().map(str::to_owned),
        _ => {
            let n = i64::try_from(indent)?;
            // Python prints line breaks and no spaces for a count below one.
            Some(" ".repeat(usize::try_from(n).unwrap_or(0).min(64)))
        }
    };
    let (item, key) = match separators.kind() {
        ValueKind::Undefined | ValueKind::None => {
            let item = if indent.is_some() { "," } else { ", " };
            (item.to_owned(), ": ".to_owned())
        }
        _ => {
            let part = |i| {
                let part = separators.get_item_by_index(i)?;
                part.as_str().map(str::to_owned).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, "separators of tojson must be a pair of strings")
                })
            };
            (part(0)?, part(1)?)
        }
    };
    let style = Style { ascii: ascii.is_true(), sort: sort.is_true(), indent, item, key };
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    Ok(Value::from(out))
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(bad("data nested too deeply for tojson"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_str(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()?.checked() {
                separate(out, style, depth + 1, std::mem::replace(&mut empty, false));
                write_value(out, &item?, style, depth + 1)?;
            }
            close(out, ']', style, depth, empty);
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()?.checked() {
                let key = key?;
                let item = value.get_item(&key)?;
                pairs.push((key_text(&key)?, item));
            }
            if style.sort {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            let empty = pairs.is_empty();
            for (i, (key, item)) in pairs.iter().enumerate() {
                separate(out, style, depth + 1, i == 0);
                write_str(out, key, style.ascii);
                out.push_str(&style.key);
                write_value(out, item, style, depth + 1)?;
            }
            close(out, '}', style, depth, empty);
        }
        other => return Err(bad(format!("{other} value is not JSON serializable"))),
    }
    Ok(())
}

fn bad(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return Ok(());
    }
    let f = f64::try_from(value.clone())?;
    out.push_str(&match f {
        f if f.is_nan() => "NaN".to_owned(),
        f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        f => float_repr(f),
    });
    Ok(())
}

fn key_text(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match key.kind() {
        ValueKind::String => return Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if key.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(&mut text, key)?,
        other => return Err(bad(format!("{other} value cannot be a JSON key"))),
    }
    Ok(text)
}

fn separate(out: &mut String, style: &Style, depth: usize, first: bool) {
    if !first {
        out.push_str(&style.item);
    }
    line_break(out, style, depth);
}

fn close(out: &mut String, bracket: char, style: &Style, depth: usize, empty: bool) {
    if !empty {
        line_break(out, style, depth);
    }
    out.push(bracket);
}

fn line_break(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn write_str(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if ascii && u32::from(c) > 0x7e => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `text | fromjson`: the data of a JSON text, as for tool-call arguments that arrive as a string.
pub(super) fn fromjson(text: &str) -> Result<Value, Error> {
    let data: serde_json::Value = serde_json::from_str(text)
        .map_err(|e| Error::new(ErrorKind::CannotDeserialize, format!("fromjson expected JSON text: {e}")))?;
    Ok(Value::from(Serde(data)))
}
