//! What a constraint costs: compiling it, copying it for a request, and the set of allowed tokens after each token.
//!
//! `cargo bench -p mlxcel-engine --bench grammar [TOKENIZER_DIR]`: mean time a token, over a text in each grammar.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_engine::grammar::{Constraint, Grammar, GrammarFactory};
use mlxcel_text::Tokenizer;
use serde_json::json;

/// A grammar and a text in it.
fn cases() -> Vec<(&'static str, Grammar, &'static str)> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    });
    let object =
        "{\"title\": \"The little fox\", \"pages\": [1, 2.5, {\"text\": \"Nora found a small seed in the garden.\"}]}";
    let json_gbnf = "root ::= object\nvalue ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n\
                     object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\"\n\
                     array ::= \"[\" ws (value (\",\" ws value)*)? \"]\"\n\
                     string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\nt])* \"\\\"\"\n\
                     number ::= \"-\"? [0-9]+ (\".\" [0-9]+)?\nws ::= [ \\n]{0,20}\n";
    vec![
        ("json_object", Grammar::JsonObject, object),
        (
            "json_schema",
            Grammar::JsonSchema(person),
            "{\"name\": \"Nora the fox\", \"age\": 7, \"tags\": [\"red\", \"blue\"]}",
        ),
        ("gbnf of json", Grammar::Gbnf(json_gbnf.into()), object),
        (
            "lark",
            Grammar::Lark("start: WORD (\" \" WORD)*\nWORD: /[a-z]+/\n".into()),
            "once upon a time there was a fox",
        ),
        ("regex", Grammar::Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z]+)*".into()), "2026-11-30 in the garden"),
    ]
}

fn main() {
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).map(PathBuf::from);
    let dir =
        given.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-4bit"));
    let tokenizer = Arc::new(Tokenizer::load(&dir).unwrap_or_else(|e| panic!("{e}")));
    let begun = Instant::now();
    let factory = GrammarFactory::new(&tokenizer).unwrap_or_else(|e| panic!("{e}"));
    println!("{} tokens; factory {:.1?}", tokenizer.vocab_size(), begun.elapsed());
    for (name, grammar, text) in cases() {
        let begun = Instant::now();
        let constraint: Constraint = factory.compile(&grammar).unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = begun.elapsed();
        let tokens = tokenizer.encode_plain(text).unwrap_or_else(|e| panic!("{e}"));
        // The second time around, what the first one brought into the processor's caches is there.
        let time = |tokens: &[u32]| {
            let begun = Instant::now();
            assert_eq!(constraint.allows(tokens), tokens.len(), "{name}: the text is not in the grammar");
            begun.elapsed()
        };
        let copied: Duration = (0..20).map(|_| time(&[])).min().unwrap_or_default();
        let all: Duration = (0..20).map(|_| time(&tokens)).min().unwrap_or_default();
        let each = all.saturating_sub(copied) / tokens.len() as u32;
        println!("{name}: compiled {compiled:.1?}, copied {copied:.1?}, a token {each:.1?} (of {})", tokens.len());
    }
}
