//! Grammars that cannot be used are refused with what is wrong with them, in bounded time, and never take the process along.

mod common;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::grammars::{kinds, schemas};
use common::tokenizer;
use mlxcel_engine::grammar::{Grammar, GrammarError, GrammarFactory};
use serde_json::{Value, json};

fn factory() -> &'static GrammarFactory {
    static ONE: OnceLock<GrammarFactory> = OnceLock::new();
    ONE.get_or_init(|| GrammarFactory::new(&tokenizer()).unwrap_or_else(|e| panic!("{e}")))
}

/// The message; refusing must be quick.
fn refused(grammar: &Grammar) -> String {
    let begun = Instant::now();
    let error = factory().compile(grammar).map(drop).expect_err("accepted");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}: {error}");
    let message = error.to_string();
    assert!(message.starts_with(grammar.name()), "{message}");
    for leak in ["backtrace", "non-verbose", "panicked", "<state>", "stack"] {
        assert!(!message.contains(leak), "{message}");
    }
    message
}

fn schema(value: Value) -> String {
    refused(&Grammar::JsonSchema(value))
}

#[test]
fn bad_schemas_say_what_is_wrong() {
    let mut wrong = Vec::new();
    for (value, says) in [
        (json!({"type": 7}), "at #/type: null, boolean, integer"),
        (json!({"$ref": "#/$defs/missing"}), "at #/$ref: a reference to a part of this schema"),
        (json!({"$ref": "other.json#/a"}), "at #/$ref"),
        (json!({"enum": []}), "at #/enum: a list of at least one value"),
        (json!(false), "json_schema"),
        (json!({"properties": {"a": false}, "required": ["a"], "type": "object"}), "schema is false"),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "minLength"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), "minimum"),
        (json!({"type": "array", "minItems": 3, "maxItems": 2}), "minItems"),
        (json!({"type": "string", "pattern": "("}), "unclosed group"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "look"),
        (json!({"type": "string", "format": "no-such-format"}), "no-such-format"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"if": {}, "then": {}}), "if"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "use anyOf"),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "json_schema"),
        (json!({"type": "integer", "minimum": -1e300}), "at #/minimum"),
        (json!({"enum": ["a", i64::MIN]}), "at #/enum"),
    ] {
        let message = schema(value.clone());
        println!("{message}");
        if !message.contains(says) {
            wrong.push(format!("{value}: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Chains of references, nested schemas, products of alternatives, counts without end: an answer soon, whichever.
#[test]
fn huge_schemas_are_refused_or_compiled_in_time() {
    let chain: Value = (0..1_200)
        .map(|i| (format!("d{i}"), json!({"items": {"$ref": format!("#/$defs/d{}", i + 1)}})))
        .chain([("d1200".to_owned(), json!({}))])
        .collect::<serde_json::Map<_, _>>()
        .into();
    let merged: Value = (0..800)
        .map(|i| (format!("d{i}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"minItems": 1}]})))
        .chain([("d800".to_owned(), json!({}))])
        .collect::<serde_json::Map<_, _>>()
        .into();
    let options =
        |n: usize| (0..n).map(|i| json!({"properties": {(format!("p{i}")): {"minLength": i}}})).collect::<Vec<_>>();
    let nested = (0..120).fold(json!({"type": "string"}), |inner, _| json!({"items": inner}));
    let wide = (0..2_000).map(|i| (format!("k{i}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>();
    for (name, value) in [
        ("chain", json!({"$ref": "#/$defs/d0", "$defs": chain})),
        ("merged chain", json!({"$ref": "#/$defs/d0", "$defs": merged})),
        ("circle", json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})),
        ("circle of all", json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {}]}}})),
        ("product", json!({"allOf": vec![json!({"anyOf": options(60)}); 12]})),
        ("large product", json!({"allOf": [{"anyOf": options(1_200)}, {"anyOf": options(1_200)}]})),
        ("nested", nested),
        ("wide", json!({"type": "object", "properties": wide})),
        ("long strings", json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000_000})),
        (
            "long arrays",
            json!({"type": "array", "minItems": 1_000_000, "items": {"type": "array", "minItems": 1_000_000}}),
        ),
        ("many", json!({"type": "object", "minProperties": 1_000_000})),
        ("range", json!({"type": "number", "multipleOf": 1e-300})),
        ("large range", json!({"type": "integer", "minimum": -8e18, "maximum": 8e18, "multipleOf": 7919})),
        ("pattern", json!({"type": "string", "pattern": "^((a|b)*a(a|b){40}|[a-z]{1,500}){1,50}$"})),
        ("values", json!({"enum": (0..20_000).map(|i| format!("value {i}")).collect::<Vec<_>>()})),
        ("text in many bytes", json!({"const": {"ü".repeat(99): "ü".repeat(99)}, "type": "ünïcödé".repeat(20)})),
    ] {
        let begun = Instant::now();
        let result = factory().compile(&Grammar::JsonSchema(value));
        let took = begun.elapsed();
        let said = match &result {
            Ok(_) => "compiled".into(),
            Err(e) => e.to_string().chars().take(140).collect::<String>(),
        };
        println!("{name}: {took:?}, {said}");
        assert!(took < Duration::from_secs(12), "{name}: {took:?}");
        assert!(!said.contains("gave up"), "{name}: {said}");
    }
}

#[test]
fn bad_grammars_say_what_is_wrong() {
    for (text, says) in [
        ("", "grammar: "),
        ("root: \"a\"", "start"),
        ("start: missing", "missing"),
        ("start: \"a", "grammar: "),
        ("start: /(/", "grammar: "),
        ("start: (", "grammar: "),
        ("start: start \"a\"", "grammar: "),
        ("start: \"\"", "the empty answer"),
        ("start: <no_such_token>", "no_such_token"),
        ("start: %json {\"const\": -9223372036854775808}", "found %json"),
    ] {
        let message = refused(&Grammar::Lark(text.into()));
        assert!(message.contains(says), "{text}: {message}");
    }
    let deep = format!("start: {}\"a\"{}", "(".repeat(60_000 / 2), ")".repeat(60_000 / 2));
    assert!(refused(&Grammar::Lark(deep)).contains("brackets within brackets"));
    assert!(refused(&Grammar::Lark("a".repeat(70_000))).contains("at most 65536 bytes"));
    for text in ["(", "a{2,1}", "(?=a)b", "[z-a]", "\\"] {
        refused(&Grammar::Regex(text.into()));
    }
    refused(&Grammar::Regex("(".repeat(60_000)));
}

/// Rules that lead to rules that lead to rules.
#[test]
fn chains_of_rules_end() {
    let chain: String = (0..5_000).map(|i| format!("a{i}:a{}\n", i + 1)).collect();
    let tokens: String = (0..4_500).map(|i| format!("A{}: A{} \"b\"\n", roman(i), roman(i + 1))).collect();
    for text in [
        format!("start: a0\n{chain}a5000: \"x\"\n"),
        format!("start: A{}\n{tokens}A{}: \"x\"\n", roman(0), roman(4_500)),
    ] {
        let begun = Instant::now();
        let result = factory().compile(&Grammar::Lark(text.chars().take(65_000).collect()));
        println!(
            "{:?}: {:?}",
            begun.elapsed(),
            result.map(drop).map_err(|e| e.to_string().chars().take(99).collect::<String>())
        );
        assert!(begun.elapsed() < Duration::from_secs(12));
    }
}

/// A number in capital letters, as names of tokens want it.
fn roman(mut n: usize) -> String {
    let mut out = String::new();
    loop {
        out.push(char::from(b'A' + (n % 26) as u8));
        n /= 26;
        if n == 0 {
            return out;
        }
    }
}

#[test]
fn good_grammars_compile_soon() {
    let begun = Instant::now();
    let count = kinds(&tokenizer()).len();
    println!("a factory and {count} grammars: {:?}", begun.elapsed());
    for (name, value) in schemas() {
        let begun = Instant::now();
        let constraint =
            factory().compile(&Grammar::JsonSchema(value.clone())).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(*constraint.grammar(), Grammar::JsonSchema(value));
        assert!(begun.elapsed() < Duration::from_secs(2), "{name}");
    }
    for text in ["^abc$", "a/b", "[0-9]+", "ü+"] {
        factory().compile(&Grammar::Regex(text.into())).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
    assert!(factory().compile(&Grammar::JsonSchema(json!(true))).is_ok());
    assert!(matches!(factory().compile(&Grammar::Lark("start: \"\"".into())), Err(GrammarError::Empty { .. })));
}
