//! Chat templates print the calls of earlier turns in the form the model was trained to write them: what a template prints
//! must read back as what it was given, arguments and all.

#[path = "support/answers.rs"]
mod answers;

use std::path::Path;

use answers::{cut, parse};
use mlxcel_text::parse::{Answer, ParserKind, ParserOptions};
use mlxcel_text::{ChatTemplate, RenderRequest, SpecialTokens};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A family's template, the text before a model's turn and behind it, and what strings cannot hold in its calls.
struct Family {
    file: &'static str,
    kind: ParserKind,
    before: &'static str,
    after: &'static str,
    forbidden: &'static str,
    /// Content stands behind the calls.
    content_last: bool,
}

const FAMILIES: [Family; 3] = [
    Family {
        file: "tests/templates/turns_tools.jinja",
        kind: ParserKind::GEMMA4,
        before: "<|turn>model\n",
        after: "",
        forbidden: "<|\"|>",
        content_last: true,
    },
    Family {
        file: "../../models/qwen3.5-tiny-4bit/chat_template.jinja",
        kind: ParserKind::QWEN,
        before: "<|im_start|>assistant\n",
        after: "<|im_end|>\n",
        forbidden: "</parameter>",
        content_last: false,
    },
    Family {
        file: "tests/templates/think_tools.jinja",
        kind: ParserKind::QWEN,
        before: "<|im_start|>assistant\n",
        after: "<|im_end|>\n",
        forbidden: "\0",
        content_last: false,
    },
];

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z \n\"\\\\{}\\[\\],:<>|=/]{0,24}",
        "\\PC{0,12}",
        prop::sample::select(
            &["5", "true", "null", "[1]", "</tool_call>", "<|tool_call>", "</parameter", "<|\"", "\n", "\"q\""][..]
        )
        .prop_map(str::to_owned),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_][a-z0-9_.-]{0,6}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn any_call() -> impl Strategy<Value = (String, Map<String, Value>)> {
    let arguments = prop::collection::vec(("[a-z_][a-z0-9_]{0,6}", any_json()), 0..4);
    ("[a-z_][a-zA-Z0-9_.-]{0,12}", arguments.prop_map(|pairs| pairs.into_iter().collect()))
}

fn holds_string(value: &Value, text: &str) -> bool {
    match value {
        Value::String(s) => s.contains(text),
        Value::Array(items) => items.iter().any(|item| holds_string(item, text)),
        Value::Object(items) => items.values().any(|item| holds_string(item, text)),
        _ => false,
    }
}

/// A tool whose schema describes just these arguments.
fn tool(name: &str, arguments: &Map<String, Value>) -> Value {
    let of = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let properties: Map<String, Value> =
        arguments.iter().map(|(key, value)| (key.clone(), json!({"type": of(value)}))).collect();
    let parameters = json!({"type": "object", "properties": properties});
    json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
}

/// What the model must have written for the template to print this turn.
fn turn(family: &Family, content: &str, thought: &str, calls: &[(String, Map<String, Value>)]) -> String {
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(family.file)).unwrap();
    let template = ChatTemplate::from_source(family.file, &source, SpecialTokens::default()).unwrap();
    let tool_calls: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
        .collect();
    let messages = [
        json!({"role": "user", "content": "Q"}),
        json!({"role": "assistant", "content": content, "reasoning_content": thought, "tool_calls": tool_calls}),
    ];
    let prompt = template.render(&RenderRequest { messages: &messages, ..RenderRequest::default() }).unwrap();
    let answer = prompt.split_once(family.before).unwrap().1;
    answer.strip_suffix(family.after).unwrap().to_owned()
}

fn arguments(answer: &Answer) -> Vec<(String, Map<String, Value>)> {
    answer.tool_calls.iter().map(|call| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn what_templates_print_reads_back(
        which in 0..FAMILIES.len(),
        content in "([a-z.]{1,8}( [a-z.]{1,8}|\n{1,3}[a-z.]{1,8}){0,4})?",
        thought in "([a-z.]{1,8}( [a-z.]{1,8}|\n{1,3}[a-z.]{1,8}){0,4})?",
        calls in prop::collection::vec(any_call(), 1..4),
        size in 1..7_usize,
    ) {
        let family = &FAMILIES[which];
        let mut calls = calls;
        for (at, (name, arguments)) in calls.iter_mut().enumerate() {
            // One schema a name.
            *name = format!("{name}{at}");
            arguments.retain(|_, value| !holds_string(value, family.forbidden));
        }
        let content = if family.content_last { "" } else { content.as_str() };
        let text = turn(family, content, &thought, &calls);
        let tools: Vec<Value> = calls.iter().map(|(name, arguments)| tool(name, arguments)).collect();
        let options = ParserOptions { tools: &tools, ..ParserOptions::default() };
        let answer = Answer::collect(parse(family.kind, options, &cut(&text, &[size])));
        prop_assert_eq!(arguments(&answer), calls, "{}", text);
        prop_assert_eq!(&answer.content, content, "{}", text);
        if family.kind == ParserKind::QWEN {
            prop_assert_eq!(&answer.reasoning, &thought, "{}", text);
        }
    }
}

/// The twin: without its schemas, or read as another family, a turn does not read back.
#[test]
fn a_wrong_reading_is_seen() {
    let mut given = Map::new();
    given.insert("path".to_owned(), json!("5"));
    let calls = vec![("open".to_owned(), given.clone())];
    let tools = [tool("open", &given)];
    let with = ParserOptions { tools: &tools, ..ParserOptions::default() };
    for family in &FAMILIES {
        let text = turn(family, "", "", &calls);
        let read = |kind, options| arguments(&Answer::collect(parse(kind, options, &[&text])));
        assert_eq!(read(family.kind, with), calls, "{text}");
        let other = if family.kind == ParserKind::QWEN { ParserKind::GEMMA4 } else { ParserKind::QWEN };
        assert_ne!(read(other, with), calls, "{text}");
        let untyped = read(family.kind, ParserOptions::default()) != calls;
        assert_eq!(untyped, family.file.contains("qwen3.5"), "only there the schema decides: {text}");
    }
}
