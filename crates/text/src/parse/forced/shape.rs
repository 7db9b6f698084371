//! What a schema says of a value, as far as formats that are not JSON can keep to it.

use serde_json::{Map, Value};

/// References within references that are followed.
const MAX_STEPS: usize = 64;

/// The schema that a reference leads to, through further references; the schema itself if it is none.
pub fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> Result<&'a Value, String> {
    for _ in 0..MAX_STEPS {
        let Some(target) = schema.get("$ref").and_then(Value::as_str) else { return Ok(schema) };
        let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        schema = found.ok_or_else(|| format!("$ref: a part of the schema expected, found {target:?}"))?;
    }
    Err("$ref: references that lead to a schema expected, found a circle".into())
}

/// Schemas of which a value has to fit one.
pub fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    ["anyOf", "oneOf"].iter().find_map(|word| schema.get(*word)?.as_array()).filter(|list| !list.is_empty())
}

/// The values that a schema lists, if it does.
pub fn listed(schema: &Value) -> Option<Vec<&Value>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value]);
    }
    schema.get("enum")?.as_array().map(|values| values.iter().collect())
}

/// Names of the types that a schema allows; none = any.
pub fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ if schema.get("properties").is_some() => vec!["object"],
        _ if schema.get("items").is_some() => vec!["array"],
        _ => Vec::new(),
    }
}

/// Members of an object.
pub struct Members<'a> {
    /// Name, schema, and whether it has to be there.
    pub named: Vec<(&'a str, &'a Value, bool)>,
    /// The schema of members with other names, if there may be any; only where none is named.
    pub others: Option<&'a Value>,
}

/// The members of an object's schema, those of `allOf` with them.
pub fn members<'a>(schema: &'a Value, root: &'a Value) -> Result<Members<'a>, String> {
    static ANY: Value = Value::Bool(true);
    let mut parts = vec![resolved(schema, root)?];
    let mut i = 0;
    while i < parts.len() {
        for part in parts[i].get("allOf").and_then(Value::as_array).into_iter().flatten() {
            parts.push(resolved(part, root)?);
        }
        i += 1;
        if parts.len() > MAX_STEPS {
            return Err(format!("allOf: at most {MAX_STEPS} schemas expected, found more"));
        }
    }
    let required: Vec<&str> =
        parts.iter().filter_map(|part| part.get("required")?.as_array()).flatten().filter_map(Value::as_str).collect();
    let properties: Vec<&Map<String, Value>> =
        parts.iter().filter_map(|part| part.get("properties")?.as_object()).collect();
    let mut named: Vec<(&str, &Value, bool)> = Vec::new();
    for (name, schema) in properties.iter().copied().flatten() {
        if !named.iter().any(|(known, ..)| known == name) && *schema != Value::Bool(false) {
            named.push((name, schema, required.contains(&name.as_str())));
        }
    }
    for name in required {
        if !named.iter().any(|(known, ..)| *known == name) {
            named.push((name, &ANY, true));
        }
    }
    let others = parts.iter().find_map(|part| part.get("additionalProperties")).unwrap_or(&ANY);
    let open = named.is_empty() && properties.is_empty() && *others != Value::Bool(false);
    Ok(Members { named, others: open.then_some(others) })
}
