//! From the bytes of a body to a request: nesting, syntax, fields given twice, then the request's own checks.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::decode::{Decode, Node, Path, Result};
use crate::error::ApiError;

/// How deep arrays and objects of a body may nest. Tool schemas of real clients stay under twenty.
pub const MAX_DEPTH: usize = 64;

/// A request body of some route.
pub trait Request: Sized {
    /// Decodes and checks a parsed body.
    ///
    /// # Errors
    /// A 400 that names the first parameter found wrong, what was expected and what was found.
    fn from_json(body: Value) -> std::result::Result<Self, ApiError>;

    /// Parses, decodes and checks a body.
    ///
    /// # Errors
    /// As [`Request::from_json`], and a 400 for bytes that are no JSON, nest deeper than [`MAX_DEPTH`] or give a field
    /// twice.
    fn from_bytes(body: &[u8]) -> std::result::Result<Self, ApiError> {
        Self::from_json(parse(body)?)
    }
}

impl<T: Decode> Request for T {
    fn from_json(body: Value) -> Result<Self> {
        T::decode(Node { value: body, path: Path::ROOT })
    }
}

/// The body as a tree.
fn parse(body: &[u8]) -> Result<Value> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Path::ROOT.error("expected a JSON object, found nothing").with_code("invalid_json"));
    }
    check_depth(body)?;
    match serde_json::from_slice::<Tree>(body) {
        Ok(tree) => Ok(tree.0),
        Err(e) => Err(Path::ROOT.error(format_args!("expected one JSON object, found: {e}")).with_code("invalid_json")),
    }
}

/// Counts brackets outside strings, so that no parser or destructor ever recurses deeper than this.
fn check_depth(body: &[u8]) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, &byte) in body.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    let message = format!(
                        "expected arrays and objects nested at most {MAX_DEPTH} deep, found deeper ones at byte {at}"
                    );
                    return Err(Path::ROOT.error(message).with_code("invalid_json"));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// A value whose objects give no field twice: of two temperatures neither is what the client meant.
struct Tree(Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor).map(Tree)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, i: i64) -> std::result::Result<Value, E> {
        Ok(Value::Number(i.into()))
    }

    fn visit_u64<E>(self, u: u64) -> std::result::Result<Value, E> {
        Ok(Value::Number(u.into()))
    }

    fn visit_f64<E: Error>(self, x: f64) -> std::result::Result<Value, E> {
        Number::from_f64(x).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E>(self, s: &str) -> std::result::Result<Value, E> {
        Ok(Value::String(s.to_owned()))
    }

    fn visit_string<E>(self, s: String) -> std::result::Result<Value, E> {
        Ok(Value::String(s))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Tree(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if object.contains_key(&name) {
                let name: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format_args!("the field {name:?} twice in one object")));
            }
            let Tree(value) = entries.next_value()?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> Vec<u8> {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth)).into_bytes()
    }

    #[test]
    fn depth_is_counted_outside_strings_only() {
        assert!(parse(&nested(MAX_DEPTH)).is_ok());
        let error = parse(&nested(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(
            error.message,
            "request body: expected arrays and objects nested at most 64 deep, found deeper ones at byte 64"
        );
        assert_eq!((error.status(), error.param, error.code), (400, None, Some("invalid_json")));
        assert!(parse(&nested(10_000_000)).is_err());
        assert!(parse(format!("\"\\\"{}\"", "[{".repeat(100)).as_bytes()).is_ok());
        assert!(parse(format!("[{}1]", "[],".repeat(100)).as_bytes()).is_ok());
    }

    #[test]
    fn a_field_given_twice_is_no_request() {
        let error = parse(br#"{"a":{"n":1,"m":2,"n":1}}"#).unwrap_err();
        assert!(error.message.contains("the field \"n\" twice in one object at line 1"), "{error}");
        assert!(parse(br#"[{"n":1},{"n":1}]"#).is_ok());
    }

    #[test]
    fn bytes_that_are_no_json() {
        let bad: [&[u8]; 12] = [
            b"",
            b" \n",
            b"{",
            b"{\"a\":",
            b"nope",
            b"{} {}",
            b"{'a':1}",
            b"[1,]",
            b"\"\xff\"",
            b"\"\\ud800\"",
            b"1e999",
            b"\xef\xbb\xbf{}",
        ];
        for body in bad {
            let error = parse(body).expect_err(&String::from_utf8_lossy(body));
            assert_eq!((error.status(), error.code), (400, Some("invalid_json")));
            assert!(error.message.starts_with("request body: expected "), "{error}");
        }
    }

    #[test]
    fn the_tree_is_the_one_serde_json_builds() {
        let body = br#"{"z":[1,-1,1.5,18446744073709551615,1e300,null,true,"\u00e9\n"],"a":{}}"#;
        assert_eq!(parse(body).unwrap(), serde_json::from_slice::<Value>(body).unwrap());
    }
}
