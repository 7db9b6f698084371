//! Gemma 4's calls: `call:NAME{key:value,…}`.

use serde_json::Value;

use super::shape::{Members, alternatives, listed, members, resolved, types};
use super::{Callee, Rules, lengths, literal};

/// Gemma's quotation mark.
const MARK: &str = "<|\"|>";

/// Levels of a value that no schema describes.
const LEVELS: usize = 4;

/// A call between its markers.
pub fn call(rules: &mut Rules<'_>, function: &Callee<'_>) -> Result<String, String> {
    let begin = literal(&format!("call:{}", function.name));
    let Some(root) = function.parameters else { return Ok(format!("{begin} \"{{}}\"")) };
    let schema = resolved(root, root)?;
    let bodies = match alternatives(schema).filter(|_| schema.get("properties").is_none()) {
        Some(list) => list.iter().map(|one| object(rules, one, root, function.name)).collect::<Result<Vec<_>, _>>()?,
        None => vec![object(rules, schema, root, function.name)?],
    };
    Ok(format!("{begin} ({})", bodies.join(" | ")))
}

/// A value of a schema; `scope` tells the schemas of one function from another's, whose references may have the same names.
fn value(rules: &mut Rules<'_>, schema: &Value, root: &Value, scope: &str) -> Result<String, String> {
    let Some(target) = schema.get("$ref").and_then(Value::as_str) else { return inline(rules, schema, root, scope) };
    // A reference is a rule of its own, which may lead back to itself.
    let key = format!("{scope} {target}");
    if let Some(name) = rules.known.get(&key) {
        return Ok(name.clone());
    }
    let name = rules.fresh();
    rules.known.insert(key, name.clone());
    let body = inline(rules, resolved(schema, root)?, root, scope)?;
    rules.define(&name, &body);
    Ok(name)
}

fn inline(rules: &mut Rules<'_>, schema: &Value, root: &Value, scope: &str) -> Result<String, String> {
    if let Some(values) = listed(schema) {
        let each: Vec<String> = values.into_iter().filter_map(|value| constant(rules, value)).collect();
        if !each.is_empty() {
            return Ok(format!("({})", each.join(" | ")));
        }
    }
    if let Some(list) = alternatives(schema) {
        let each: Result<Vec<String>, String> = list.iter().map(|one| value(rules, one, root, scope)).collect();
        return Ok(format!("({})", each?.join(" | ")));
    }
    if let Some([one]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
        && schema.get("properties").is_none()
    {
        return value(rules, one, root, scope);
    }
    let mut each = Vec::new();
    for kind in types(schema) {
        each.push(match kind {
            "string" => string(rules, schema),
            "integer" | "number" => rules.number(schema, kind),
            "boolean" => "\"true\" | \"false\"".into(),
            "null" => "\"null\"".into(),
            "array" => list(rules, schema, root, scope)?,
            "object" => object(rules, schema, root, scope)?,
            _ => any(rules, LEVELS),
        });
    }
    if each.is_empty() {
        return Ok(any(rules, LEVELS));
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        each.push("\"null\"".into());
    }
    Ok(format!("({})", each.join(" | ")))
}

/// A string between its marks, which it cannot hold.
fn string(rules: &mut Rules<'_>, schema: &Value) -> String {
    let mark = rules.marker(MARK);
    let without = r#"~/(?s:.*<\|"\|>.*)/"#;
    if mark == literal(MARK) {
        return rules.terminal(&format!("{mark} (/(?s:.{})/ & {without}) {mark}", lengths(schema, 0)));
    }
    // A terminal of no characters would be none.
    let text = rules.terminal(&format!("/(?s:.{})/ & {without}", lengths(schema, 1)));
    let may_be_empty = lengths(schema, 0).starts_with("{0,");
    let never = schema.get("maxLength").and_then(Value::as_f64) == Some(0.0);
    match (never, may_be_empty) {
        (true, _) => format!("{mark} {mark}"),
        (false, true) => format!("{mark} {text}? {mark}"),
        (false, false) => format!("{mark} {text} {mark}"),
    }
}

/// One value; `None` for what cannot be written.
fn constant(rules: &mut Rules<'_>, value: &Value) -> Option<String> {
    let mark = rules.marker(MARK);
    Some(match value {
        Value::String(text) if text.contains(MARK) => return None,
        Value::String(text) if text.is_empty() => format!("{mark} {mark}"),
        Value::String(text) => format!("{mark} {} {mark}", literal(text)),
        Value::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(|item| constant(rules, item)).collect();
            format!("\"[\" {} \"]\"", items?.join(" \",\" "))
        }
        Value::Object(map) => {
            let member = |(name, item): (&String, &Value)| Some(format!("{} {}", key(name), constant(rules, item)?));
            let members: Option<Vec<String>> = map.iter().map(member).collect();
            format!("\"{{\" {} \"}}\"", members?.join(" \",\" "))
        }
        scalar => literal(&scalar.to_string()),
    })
}

/// A key and its colon: bare if it can be.
fn key(name: &str) -> String {
    let bare = !name.is_empty()
        && name.trim() == name
        && !name.chars().any(|c| c.is_control() || "{}[],:\"<".contains(c) || (c.is_whitespace() && c != ' '));
    let written = if bare { name.to_owned() } else { Value::String(name.into()).to_string() };
    literal(&format!("{written}:"))
}

fn list(rules: &mut Rules<'_>, schema: &Value, root: &Value, scope: &str) -> Result<String, String> {
    const MOST: u64 = 256;
    let item = match schema.get("items") {
        Some(items) if items.is_object() => value(rules, items, root, scope)?,
        _ => any(rules, LEVELS - 1),
    };
    let item = rules.rule(&item);
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64).map(|n| n.max(0.0) as u64);
    let (least, most) = (bound("minItems").unwrap_or(0).min(MOST), bound("maxItems").filter(|most| *most <= MOST));
    if most == Some(0) {
        return Ok("\"[]\"".into());
    }
    let least_more = least.saturating_sub(1);
    let full = match most {
        Some(1) => item,
        Some(most) => format!("{item} (\",\" {item}){{{least_more},{}}}", (most - 1).max(least_more)),
        None => format!("{item} (\",\" {item}){{{least_more},}}"),
    };
    Ok(if least == 0 { format!("\"[\" ({full})? \"]\"") } else { format!("\"[\" {full} \"]\"") })
}

/// An object with its keys sorted, as templates print them.
fn object(rules: &mut Rules<'_>, schema: &Value, root: &Value, scope: &str) -> Result<String, String> {
    let Members { mut named, others } = members(schema, root)?;
    if let Some(schema) = others {
        let item = match schema.is_object() {
            true => value(rules, schema, root, scope)?,
            false => any(rules, LEVELS - 1),
        };
        return Ok(map(rules, &item));
    }
    named.sort_by_key(|(name, ..)| name.to_lowercase());
    // What follows the members so far: where one was written there is a comma before the next.
    let (mut first, mut later) = (String::from("\"\""), String::from("\"\""));
    for (name, schema, required) in named.into_iter().rev() {
        let member = format!("{} {}", key(name), value(rules, schema, root, scope)?);
        let member = rules.rule(&member);
        let (now, then) = (format!("{member} {later}"), format!("\",\" {member} {later}"));
        (first, later) = match required {
            true => (rules.rule(&now), rules.rule(&then)),
            false => (rules.rule(&format!("{now} | {first}")), rules.rule(&format!("{then} | {later}"))),
        };
    }
    Ok(format!("\"{{\" {first} \"}}\""))
}

/// An object with any keys.
fn map(rules: &mut Rules<'_>, item: &str) -> String {
    let key = rules.terminal(r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}:/");
    let member = rules.rule(&format!("{key} ({item})"));
    format!("\"{{\" ({member} (\",\" {member})*)? \"}}\"")
}

/// A value of any type, so many levels deep.
fn any(rules: &mut Rules<'_>, levels: usize) -> String {
    let (text, number) = (string(rules, &Value::Null), rules.number(&Value::Null, "number"));
    let mut body = format!("{text} | {number} | \"true\" | \"false\" | \"null\"");
    if levels > 0 {
        let inner = any(rules, levels - 1);
        let map = map(rules, &inner);
        body += &format!(" | \"[\" ({inner} (\",\" {inner})*)? \"]\" | {map}");
    }
    rules.rule(&body)
}
