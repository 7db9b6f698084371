//! Calls between `<tool_call>` and `</tool_call>`.

use serde_json::{Map, Value, json};

use super::shape::{Members, alternatives, listed, members, resolved, types};
use super::{Callee, Rules, lengths, literal};
use crate::parse::MAX_NAME;
use crate::parse::schema::Kinds;

const END: &str = "</parameter>";

/// JSON: name and arguments.
pub fn hermes(rules: &mut Rules<'_>, function: &Callee<'_>) -> String {
    let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let mut schema = function.parameters.cloned().unwrap_or(none);
    if let Value::Object(map) = &mut schema
        && !map.contains_key("$ref")
    {
        map.insert("type".into(), "object".into());
    }
    let arguments = rules.json(schema);
    let begin = literal(&format!("{{\"name\": {}, \"arguments\": ", Value::String(function.name.into())));
    format!("{begin} {arguments} \"}}\\n\"")
}

/// Qwen 3.5's tags.
pub fn function(rules: &mut Rules<'_>, function: &Callee<'_>) -> Result<String, String> {
    let parameters = match function.parameters {
        Some(schema) => arguments(rules, schema)?,
        None => String::new(),
    };
    Ok(format!("{} {parameters} \"</function>\\n\"", literal(&format!("<function={}>\n", function.name))))
}

fn arguments(rules: &mut Rules<'_>, root: &Value) -> Result<String, String> {
    let schema = resolved(root, root)?;
    if let Some(list) = alternatives(schema).filter(|_| schema.get("properties").is_none()) {
        let each: Result<Vec<String>, String> = list.iter().map(|one| parameters(rules, one, root)).collect();
        return Ok(format!("({})", each?.join(" | ")));
    }
    parameters(rules, schema, root)
}

fn parameters(rules: &mut Rules<'_>, schema: &Value, root: &Value) -> Result<String, String> {
    let Members { named, others } = members(schema, root)?;
    let mut parts = Vec::new();
    for (name, schema, required) in named {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(|c| c.is_control() || c == '<' || c == '>') {
            if required {
                return Err(format!("a name that can stand in <parameter=NAME> expected, found {name:?}"));
            }
            continue;
        }
        let begin = literal(&format!("<parameter={name}>\n"));
        let value = value(rules, schema, root);
        let body = format!("{begin} {value}");
        parts.push(if required { body } else { format!("({body})?") });
    }
    if let Some(schema) = others {
        let name = rules.terminal(r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/");
        let value = value(rules, schema, root);
        parts.push(format!("(\"<parameter=\" {name} \">\\n\" {value})*"));
    }
    Ok(parts.join(" "))
}

/// A value up to the end of its tag: a string raw, all else as JSON, as the parser will read it.
fn value(rules: &mut Rules<'_>, schema: &Value, root: &Value) -> String {
    const CLOSE: &str = "\"\\n</parameter>\\n\"";
    let target = resolved(schema, root).unwrap_or(schema);
    if let Some(values) = listed(target) {
        let raw = |value: &&Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
        let texts: Vec<String> = values.iter().map(raw).filter(|text: &String| !text.contains(END)).collect();
        if !texts.is_empty() {
            let texts: Vec<String> = texts.iter().map(|text| literal(&format!("{text}\n{END}\n"))).collect();
            return format!("({})", texts.join(" | "));
        }
    }
    let kinds = Kinds::of(schema, root);
    if kinds == Kinds::STRING || kinds.allows_strings() {
        let count = if kinds == Kinds::STRING { lengths(target, 0) } else { "{0,}".into() };
        // One terminal with the end of the tag: it is whole at the first end, which no value may hold.
        return rules.terminal(&format!("(/(?s:.{count})/ & ~/(?s:.*<\\/parameter>.*)/) {CLOSE}"));
    }
    let json = match types(target)[..] {
        [kind @ ("integer" | "number")] => rules.number(target, kind),
        ["boolean"] => "(\"true\" | \"false\")".into(),
        _ => rules.json(standing_alone(schema, root)),
    };
    format!("{json} {CLOSE}")
}

/// A part of a schema with the definitions that it may refer to.
fn standing_alone(schema: &Value, root: &Value) -> Value {
    let Value::Object(own) = schema else { return schema.clone() };
    let mut alone: Map<String, Value> = own.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            alone.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(alone)
}
