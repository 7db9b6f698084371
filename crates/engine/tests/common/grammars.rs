//! Grammars of every kind, each with a judge that knows nothing of the engine's.

use std::sync::Arc;

use mlxcel_engine::FinishReason;
use mlxcel_engine::grammar::{Constraint, Grammar, GrammarFactory};
use mlxcel_text::Tokenizer;
use serde_json::{Value, json};

use super::Answer;
use super::json::{fault, may_become_json};

/// A compiled grammar and what it was compiled from.
pub struct Kind {
    pub name: &'static str,
    pub constraint: Constraint,
}

/// Schemas whose answers come to an end soon, and one that recurs.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        (
            "person",
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 12},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
                },
                "required": ["name", "age", "tags"],
                "additionalProperties": false,
            }),
        ),
        (
            "either",
            json!({
                "anyOf": [
                    {"type": "array", "items": {"type": ["boolean", "null"]}, "minItems": 1, "maxItems": 4},
                    {"type": "object", "properties": {"kind": {"const": "none"}}, "required": ["kind"],
                     "additionalProperties": false},
                ],
            }),
        ),
        (
            "tree",
            json!({
                "$ref": "#/$defs/node",
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {
                            "value": {"type": "integer", "minimum": -9, "maximum": 9},
                            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                        },
                        "required": ["value", "children"],
                        "additionalProperties": false,
                    },
                },
            }),
        ),
        ("number", json!({"type": "number", "minimum": 0, "maximum": 1000})),
    ]
}

/// A grammar that is no regular language: brackets that match.
pub const BRACKETS: &str = "start: pair+\npair: \"(\" word? pair* \")\"\nword: /[a-z]{1,6}/\n";

/// Sentences, some of whose letters have several bytes.
pub const GREETINGS: &str = "start: greeting \" \" name (\", \" name)* \"!\"\n\
                             greeting: \"Hello\" | \"Grüß Gott\" | \"你好\"\nname: /[A-Z][a-z]{1,8}/\n";

pub const DATE: &str = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]( [a-z]+){0,3}";

/// All of them for a tokenizer.
pub fn kinds(tokenizer: &Arc<Tokenizer>) -> Vec<Kind> {
    let factory = GrammarFactory::new(tokenizer).unwrap_or_else(|e| panic!("{e}"));
    let compile = |name, grammar: &Grammar| Kind {
        name,
        constraint: factory.compile(grammar).unwrap_or_else(|e| panic!("{name}: {e}")),
    };
    let mut all = vec![
        compile("object", &Grammar::JsonObject),
        compile("brackets", &Grammar::Lark(BRACKETS.into())),
        compile("greetings", &Grammar::Lark(GREETINGS.into())),
        compile("date", &Grammar::Regex(DATE.into())),
    ];
    all.extend(schemas().into_iter().map(|(name, schema)| compile(name, &Grammar::JsonSchema(schema))));
    all
}

/// What is wrong with an answer; `None` if nothing is. One that was cut must be the beginning of a right one.
pub fn judge(kind: &str, answer: &Answer) -> Option<String> {
    let text = answer.text.as_str();
    let whole = match &answer.reason {
        FinishReason::StopToken(_) | FinishReason::Grammar => true,
        FinishReason::Length => false,
        other => return Some(format!("it ended as {other:?}")),
    };
    let right = match kind {
        "brackets" => brackets(text, whole),
        "greetings" => greetings(text, whole),
        "date" => date(text, whole),
        _ if !whole => {
            may_become_json(text) && (kind != "object" || text.trim_start().starts_with('{') || text.trim().is_empty())
        }
        _ => match serde_json::from_str::<Value>(text) {
            Err(e) => return Some(format!("{e} in {text:?}")),
            Ok(value) if kind == "object" => value.is_object(),
            Ok(value) => {
                let schemas = schemas();
                let (_, schema) = schemas.iter().find(|(name, _)| *name == kind).expect("a schema of this name");
                return fault(schema, &value);
            }
        },
    };
    (!right).then(|| format!("no {kind}: {text:?} ({:?})", answer.reason))
}

fn brackets(text: &str, whole: bool) -> bool {
    let (mut depth, mut word, mut before) = (0, 0, ' ');
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            // A word stands after an opening bracket only.
            'a'..='z' if before == '(' => word = 1,
            'a'..='z' if before.is_ascii_lowercase() && word < 6 => word += 1,
            _ => return false,
        }
        before = c;
    }
    !whole || (depth == 0 && !text.is_empty())
}

fn greetings(text: &str, whole: bool) -> bool {
    // What was cut may end within a character.
    let text = text.trim_end_matches('\u{FFFD}');
    let all = ["Hello", "Grüß Gott", "你好"];
    let Some(rest) = all.iter().find_map(|g| text.strip_prefix(g)) else {
        return !whole && all.iter().any(|g| g.starts_with(text));
    };
    let Some(names) = rest.strip_prefix(' ') else { return !whole && rest.is_empty() };
    let (names, ended) = names.strip_suffix('!').map_or((names, false), |n| (n, true));
    let mut names = names.split(", ").peekable();
    while let Some(name) = names.next() {
        let last = names.peek().is_none();
        let name = if last && !ended { name.trim_end_matches(',') } else { name };
        let lower = name.chars().skip(1).filter(char::is_ascii_lowercase).count();
        let good = name.chars().next().is_some_and(|c| c.is_ascii_uppercase()) && lower + 1 == name.len() && lower <= 8;
        let open = last && !ended;
        if !(good && (lower >= 1 || open) || (open && name.is_empty())) {
            return false;
        }
    }
    ended || !whole
}

fn date(text: &str, whole: bool) -> bool {
    let (day, words) = text.split_at(text.len().min(10));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = day.split('-');
    let year = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    let month = rest.first().and_then(|m| m.parse::<u32>().ok()).is_none_or(|m| m <= 12);
    let good =
        day.is_ascii() && digits(year) && rest.iter().all(|p| digits(p) && p.len() <= 2) && month && rest.len() <= 2;
    let words: Vec<&str> = words.split(' ').skip(1).collect();
    let good = good && words.len() <= 3 && words.iter().all(|w| w.bytes().all(|b| b.is_ascii_lowercase()));
    good && (!whole || (day.len() == 10 && words.iter().all(|w| !w.is_empty())))
}
