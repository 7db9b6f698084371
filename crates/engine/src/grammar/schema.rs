//! What is wrong with a JSON schema, and where: checked before it is compiled, because the compiler's messages do not say where, and
//! because it calls itself for every level.

use std::collections::HashSet;

use serde_json::Value;

use super::{GrammarError, limits};

const WHAT: &str = "json_schema";

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords that hold one schema.
const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];

/// Keywords that hold a list of schemas; `items` may, in older drafts.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// Keywords that hold schemas by name.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Keywords that hold a count.
const COUNTS: [&str; 6] = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Keywords that bound a number, and the bounds of the bounds: the compiler counts in 64 bits.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const LARGEST: f64 = 9e18;

/// Checks size, and every schema's types, enumerations, references and counts.
pub(super) fn check(root: &Value) -> Result<(), GrammarError> {
    check_size(root)?;
    let mut open = vec![(root, String::from("#"))];
    let mut seen = 0;
    let mut referred = HashSet::new();
    while let Some((schema, at)) = open.pop() {
        seen += 1;
        if seen > limits::SCHEMAS {
            return Err(size("schemas", limits::SCHEMAS));
        }
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(_) => continue,
            other => return Err(part(&at, "a schema (an object, true or false)", other)),
        };
        for (keyword, value) in schema {
            let keyword = keyword.as_str();
            let here = || format!("{at}/{}", escaped(keyword));
            match (keyword, value) {
                ("type", value) => check_type(value, here)?,
                ("enum", Value::Array(values)) if !values.is_empty() => check_numbers(value, here)?,
                ("const", value) => check_numbers(value, here)?,
                ("enum", other) => return Err(part(&here(), "a list of at least one value", other)),
                ("$ref", Value::String(target)) => {
                    let found = resolve(root, target).ok_or_else(|| {
                        part(&here(), "a reference to a part of this schema, as \"#/$defs/name\" is", value)
                    })?;
                    if referred.insert(target.as_str()) {
                        open.push((found, target.clone()));
                    }
                }
                ("$ref", other) => return Err(part(&here(), "a string", other)),
                (k, Value::Array(items)) if LISTS.contains(&k) || k == "items" => {
                    if items.is_empty() && k != "items" && k != "prefixItems" {
                        return Err(part(&here(), "at least one schema", value));
                    }
                    open.extend(items.iter().enumerate().map(|(i, item)| (item, format!("{}/{i}", here()))));
                }
                (k, other) if LISTS.contains(&k) => return Err(part(&here(), "a list of schemas", other)),
                (k, Value::Object(map)) if MAPS.contains(&k) => {
                    open.extend(map.iter().map(|(name, item)| (item, format!("{}/{}", here(), escaped(name)))));
                }
                (k, other) if MAPS.contains(&k) => return Err(part(&here(), "an object of schemas", other)),
                (k, value) if ONE.contains(&k) => open.push((value, here())),
                ("required", Value::Array(names)) if names.iter().all(Value::is_string) => {}
                ("required", other) => return Err(part(&here(), "a list of strings", other)),
                (k, value) if COUNTS.contains(&k) && !is_count(value) => {
                    return Err(part(&here(), "a whole number, 0 or more", value));
                }
                (k, value) if BOUNDS.contains(&k) && value.as_f64().is_none_or(|n| n.abs() > LARGEST) => {
                    return Err(part(&here(), "a number from -9e18 to 9e18", value));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn check_type(value: &Value, at: impl Fn() -> String) -> Result<(), GrammarError> {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let fits = match value {
        Value::Array(list) => !list.is_empty() && list.iter().all(is_type),
        one => is_type(one),
    };
    let expected = "null, boolean, integer, number, string, array or object, or a list of them";
    if fits { Ok(()) } else { Err(part(&at(), expected, value)) }
}

/// Whether a number counts something; 3.0 does, too.
fn is_count(value: &Value) -> bool {
    value.as_f64().is_some_and(|n| n >= 0.0 && n.fract() == 0.0 && n <= f64::from(u32::MAX))
}

/// Numbers within a value that an answer may be: the compiler turns signs in 64 bits.
fn check_numbers(value: &Value, here: impl Fn() -> String) -> Result<(), GrammarError> {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Number(number) if number.as_f64().is_none_or(|n| n.abs() > LARGEST) => {
                return Err(part(&here(), "numbers from -9e18 to 9e18", value));
            }
            Value::Array(items) => open.extend(items),
            Value::Object(map) => open.extend(map.values()),
            _ => {}
        }
    }
    Ok(())
}

/// The part of a schema that a reference names, as the compiler reads it: names stand in it as they are.
fn resolve<'a>(root: &'a Value, target: &str) -> Option<&'a Value> {
    if target == "#" || target == "#/" {
        return Some(root);
    }
    target.strip_prefix("#/")?.split('/').try_fold(root, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        Value::Object(map) => map.get(name),
        _ => None,
    })
}

/// Counts values, bytes and levels, without recursion.
fn check_size(root: &Value) -> Result<(), GrammarError> {
    let (mut values, mut bytes) = (0, 0);
    let mut open = vec![(root, 1)];
    while let Some((value, level)) = open.pop() {
        values += 1;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(map) => {
                bytes += map.keys().map(String::len).sum::<usize>();
                open.extend(map.values().map(|item| (item, level + 1)));
            }
            _ => {}
        }
        if level > limits::SCHEMA_DEPTH {
            return Err(size("levels", limits::SCHEMA_DEPTH));
        }
        if values > limits::SCHEMA_VALUES {
            return Err(size("values", limits::SCHEMA_VALUES));
        }
        if bytes > limits::SCHEMA_BYTES {
            return Err(size("bytes of text", limits::SCHEMA_BYTES));
        }
    }
    Ok(())
}

fn size(unit: &'static str, most: usize) -> GrammarError {
    GrammarError::Size { what: WHAT, unit, most, found: "more".into() }
}

fn part(at: &str, expected: &str, found: &Value) -> GrammarError {
    let text = found.to_string();
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    GrammarError::Part { what: WHAT, at: at.into(), expected: expected.into(), found: short }
}

/// A name in a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: Value) -> String {
        check(&schema).expect_err("accepted").to_string()
    }

    #[test]
    fn faults_are_named_with_their_place() {
        assert_eq!(
            refused(json!({"type": "object", "properties": {"a/b": {"type": 7}}})),
            "json_schema, at #/properties/a~1b/type: null, boolean, integer, number, string, array or object, or a list of \
             them expected, found 7"
        );
        assert_eq!(
            refused(json!({"items": {"enum": []}})),
            "json_schema, at #/items/enum: a list of at least one value expected, found []"
        );
        assert_eq!(
            refused(json!({"anyOf": [{"$ref": "#/$defs/nothing"}]})),
            "json_schema, at #/anyOf/0/$ref: a reference to a part of this schema, as \"#/$defs/name\" is expected, found \
             \"#/$defs/nothing\""
        );
        for (schema, found) in [
            (json!(7), "at #: a schema"),
            (json!([]), "at #: a schema"),
            (json!({"type": []}), "at #/type"),
            (json!({"type": ["string", "strnig"]}), "at #/type"),
            (json!({"properties": []}), "at #/properties: an object of schemas"),
            (json!({"properties": {"a": 1}}), "at #/properties/a: a schema"),
            (json!({"allOf": {}}), "at #/allOf: a list of schemas"),
            (json!({"oneOf": []}), "at #/oneOf: at least one"),
            (json!({"$ref": 1}), "at #/$ref: a string"),
            (json!({"$ref": "http://example.org/schema"}), "at #/$ref"),
            (json!({"$defs": {"a": {"items": {"minItems": -1}}}}), "at #/$defs/a/items/minItems: a whole number"),
            (json!({"maxLength": 1.5}), "at #/maxLength"),
            (json!({"minLength": "2"}), "at #/minLength"),
            (json!({"minimum": -1e19}), "at #/minimum: a number from -9e18 to 9e18"),
            (json!({"exclusiveMaximum": true}), "at #/exclusiveMaximum"),
            (json!({"required": "a"}), "at #/required: a list of strings"),
            // One that has no positive counterpart in 64 bits sends the compiler round in circles.
            (json!({"const": i64::MIN}), "at #/const: numbers from -9e18 to 9e18 expected, found -9223372036854775808"),
            (json!({"items": {"enum": ["a", {"b": [i64::MIN]}]}}), "at #/items/enum: numbers from"),
            (json!({"const": u64::MAX}), "at #/const"),
        ] {
            let message = refused(schema.clone());
            assert!(message.contains(found), "{schema}: {message}");
        }
    }

    #[test]
    fn good_schemas_pass() {
        for schema in [
            json!(true),
            json!({}),
            json!({"type": ["string", "null"], "enum": [null, {"type": 7}]}),
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"$ref": {"type": "string"}, "next": {"$ref": "#/$defs/a"}}}}}),
            json!({"const": {"type": 7}, "default": {"enum": []}, "minItems": 2.0, "items": [{}, true]}),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let deep = (0..130).fold(json!({}), |inner, _| json!({"items": inner}));
        assert!(refused(deep).contains("at most 128 levels"));
        let many: Vec<Value> = (0..5_001).map(|i| json!({"minLength": i})).collect();
        assert!(refused(json!({"anyOf": many})).contains("at most 5000 schemas"));
        assert!(refused(json!({"enum": vec![1; 50_001]})).contains("at most 50000 values"));
        assert!(refused(json!({"const": "x".repeat(600_000)})).contains("bytes of text"));
    }
}
