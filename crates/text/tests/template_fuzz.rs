//! Random templates and messages: any result will do, as long as there is one.

use mlxcel_text::{ChatTemplate, RenderRequest, SpecialTokens};
use proptest::prelude::*;
use serde_json::{Value, json};

const SEEDS: [&str; 4] = [
    include_str!("templates/turns_tools.jinja"),
    include_str!("templates/think_tools.jinja"),
    include_str!("templates/generation.jinja"),
    include_str!("templates/controls.jinja"),
];

const PARTS: [&str; 48] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if x %}",
    "{% else %}",
    "{% endif %}",
    "{% set x = ",
    "{% generation %}",
    "{% endgeneration %}",
    "{% raw %}",
    "{% endraw %}",
    "{% macro m(a) %}",
    "{% endmacro %}",
    " m(1) ",
    "messages",
    "[0]",
    "[1:]",
    "[::-1]",
    ".role",
    "['content']",
    " | tojson",
    "(indent=2)",
    " | trim",
    " | selectattr('role')",
    " | list",
    " is ",
    "defined",
    "not ",
    "loop.index0",
    "{% break %}",
    "raise_exception('x')",
    "strftime_now('%d')",
    "'é😀",
    "\"",
    "\\",
    " + ",
    " ~ ",
    "0",
    "(",
    ")",
    "\n",
];

fn tokens() -> SpecialTokens {
    let mut tokens = SpecialTokens::default();
    tokens.set("bos_token", "<s>");
    tokens
}

fn try_render(source: &str, messages: &[Value]) -> bool {
    let Ok(template) = ChatTemplate::from_source("fuzz.jinja", source, tokens()) else {
        return false;
    };
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": null}}]);
    let request =
        RenderRequest { messages, tools: Some(&tools), add_generation_prompt: true, ..RenderRequest::default() };
    template.render(&request).is_ok()
}

fn some_messages() -> Vec<Value> {
    vec![
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1]}}}]}),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!("user")),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("(role|content|tool_calls|function|name|arguments|type|x)", inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_sources_never_panic(parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..25)) {
        try_render(&parts.concat(), &some_messages());
    }

    #[test]
    fn random_characters_never_panic(source in "\\PC{0,60}") {
        try_render(&source, &some_messages());
    }

    #[test]
    fn spoiled_templates_never_panic(
        which in 0..SEEDS.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, prop::sample::select(&PARTS[..])), 1..4),
    ) {
        let mut source: Vec<char> = SEEDS[which].chars().collect();
        for (at, cut, with) in edits {
            let at = at.index(source.len());
            let end = (at + cut).min(source.len());
            source.splice(at..end, with.chars());
        }
        try_render(&source.into_iter().collect::<String>(), &some_messages());
    }

    #[test]
    fn random_messages_never_panic(which in 0..SEEDS.len(), messages in prop::collection::vec(any_json(), 0..4)) {
        try_render(SEEDS[which], &messages);
    }
}

/// The fuzz reaches the renderer: the unspoiled seeds all render.
#[test]
fn seeds_render() {
    for seed in SEEDS {
        assert!(try_render(seed, &[json!({"role": "user", "content": "a"})]), "{seed}");
    }
}
