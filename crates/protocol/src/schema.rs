//! Whether a JSON schema has the shape of one. What it means, and which keywords can be enforced, is the grammar
//! compiler's to say; this finds the mistakes that need no compiler.

use serde_json::{Map, Value};

use crate::decode::{Path, Result, describe};
use crate::error::ApiError;

const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];
/// Keywords that hold a schema.
const ONE: [&str; 10] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
];
/// Keywords that hold a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords that hold schemas by name.
const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Checks the schema `schema` that lies at `path` in the body.
pub(crate) fn check(schema: &Map<String, Value>, path: &Path<'_>) -> Result<()> {
    check_object(schema, &path.to_string())
}

fn check_schema(value: &Value, path: &str) -> Result<()> {
    match value {
        Value::Bool(_) => Ok(()),
        Value::Object(schema) => check_object(schema, path),
        _ => Err(wrong(path, "a JSON schema (an object, true or false)", value)),
    }
}

fn check_object(schema: &Map<String, Value>, path: &str) -> Result<()> {
    if let Some(kind) = schema.get("type") {
        let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
        let fine = known(kind) || kind.as_array().is_some_and(|kinds| !kinds.is_empty() && kinds.iter().all(known));
        if !fine {
            let expected = format!("one of {}, or an array of them", TYPES.join(", "));
            return Err(wrong(&format!("{path}.type"), &expected, kind));
        }
    }
    if let Some(required) = schema.get("required") {
        // A boolean is the third draft's spelling.
        let names = required.as_array().is_some_and(|names| names.iter().all(Value::is_string));
        if !names && !required.is_boolean() {
            return Err(wrong(&format!("{path}.required"), "an array of strings", required));
        }
    }
    if let Some(values) = schema.get("enum")
        && values.as_array().is_none_or(Vec::is_empty)
    {
        return Err(wrong(&format!("{path}.enum"), "an array of at least one value", values));
    }
    for keyword in ["$ref", "pattern", "format"] {
        if let Some(text) = schema.get(keyword).filter(|text| !text.is_string()) {
            return Err(wrong(&format!("{path}.{keyword}"), "a string", text));
        }
    }
    for keyword in ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"] {
        if let Some(number) = schema.get(keyword).filter(|number| number.as_f64().is_none_or(|x| x < 0.0)) {
            return Err(wrong(&format!("{path}.{keyword}"), "a number of at least 0", number));
        }
    }
    for keyword in ONE {
        match schema.get(keyword) {
            // Older drafts have a list of schemas there.
            Some(Value::Array(list)) if keyword == "items" => check_list(list, &format!("{path}.{keyword}"))?,
            Some(inner) => check_schema(inner, &format!("{path}.{keyword}"))?,
            None => {}
        }
    }
    for keyword in LISTS {
        match schema.get(keyword) {
            Some(Value::Array(list)) if !list.is_empty() => check_list(list, &format!("{path}.{keyword}"))?,
            Some(other) => {
                return Err(wrong(&format!("{path}.{keyword}"), "an array of at least one schema", other));
            }
            None => {}
        }
    }
    for keyword in MAPS {
        match schema.get(keyword) {
            Some(Value::Object(named)) => {
                for (name, inner) in named {
                    check_schema(inner, &format!("{path}.{keyword}.{name}"))?;
                }
            }
            Some(other) => return Err(wrong(&format!("{path}.{keyword}"), "an object of schemas", other)),
            None => {}
        }
    }
    Ok(())
}

fn check_list(list: &[Value], path: &str) -> Result<()> {
    list.iter().enumerate().try_for_each(|(i, inner)| check_schema(inner, &format!("{path}[{i}]")))
}

fn wrong(path: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::parameter(path, format_args!("expected {expected}, found {}", describe(found)))
        .with_code("invalid_json_schema")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(schema: Value) -> Result<()> {
        check(schema.as_object().unwrap(), &Path::ROOT)
    }

    #[test]
    fn schemas_of_real_clients() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Step", "type": "object",
            "properties": {
                "type": {"const": "x"},
                "kind": {"enum": ["a", 1, null]},
                "next": {"anyOf": [{"$ref": "#/$defs/Step"}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": ["string", "null"], "maxLength": 9}, "minItems": 0},
                "pair": {"items": [{"type": "number"}, true]}
            },
            "required": ["kind"], "additionalProperties": false, "$defs": {"Step": {}}
        });
        assert_eq!(checked(schema), Ok(()));
        assert_eq!(checked(json!({})), Ok(()));
    }

    #[test]
    fn mistakes_are_named_by_their_place() {
        let bad = [
            (json!({"type": 7}), ".type"),
            (json!({"type": "text"}), ".type"),
            (json!({"type": []}), ".type"),
            (json!({"type": ["string", 1]}), ".type"),
            (json!({"required": "a"}), ".required"),
            (json!({"required": [1]}), ".required"),
            (json!({"enum": []}), ".enum"),
            (json!({"$ref": 1}), ".$ref"),
            (json!({"maxLength": -1}), ".maxLength"),
            (json!({"minItems": "1"}), ".minItems"),
            (json!({"items": 3}), ".items"),
            (json!({"items": [{"type": 7}]}), ".items[0].type"),
            (json!({"anyOf": []}), ".anyOf"),
            (json!({"oneOf": {}}), ".oneOf"),
            (json!({"allOf": [{}, {"not": 1}]}), ".allOf[1].not"),
            (json!({"properties": ["a"]}), ".properties"),
            (json!({"properties": {"a": {"properties": {"b": null}}}}), ".properties.a.properties.b"),
            (json!({"additionalProperties": "no"}), ".additionalProperties"),
        ];
        for (schema, path) in bad {
            let error = checked(schema.clone()).expect_err(&schema.to_string());
            assert_eq!(error.param.as_deref(), Some(path), "{schema}");
            assert_eq!(error.code, Some("invalid_json_schema"));
        }
    }
}
