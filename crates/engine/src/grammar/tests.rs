//! Languages, text by text: what a constraint lets through, byte by byte.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use mlxcel_text::Tokenizer;
use serde_json::json;

use super::guide::Guide;
use super::{Constraint, Grammar, GrammarFactory};

const STOP: u32 = 1;

fn factory() -> &'static GrammarFactory {
    static ONE: OnceLock<GrammarFactory> = OnceLock::new();
    ONE.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-4bit");
        let tokenizer = Arc::new(Tokenizer::load(&dir).unwrap_or_else(|e| panic!("{e}")));
        GrammarFactory::new(&tokenizer).unwrap_or_else(|e| panic!("{e}"))
    })
}

fn compile(grammar: &Grammar) -> Constraint {
    factory().compile(grammar).unwrap_or_else(|e| panic!("{e}"))
}

/// Bytes of a text that are let through, and whether it may end then.
fn walk(constraint: &Constraint, text: &str) -> (usize, bool) {
    let tokenizer = &constraint.0.tokenizer;
    let mut guide = Guide::new(constraint.clone(), [STOP]);
    for (i, byte) in text.bytes().enumerate() {
        let token = tokenizer.token_to_id(&format!("<0x{byte:02X}>")).expect("a token of each byte");
        if guide.is_complete() || !guide.allowed().expect("no failure").expect("a set").contains(token) {
            return (i, false);
        }
        guide.advance(token);
    }
    let end = guide.is_complete() || guide.allowed().expect("no failure").expect("a set").contains(STOP);
    (text.len(), end)
}

fn takes(constraint: &Constraint, text: &str) -> bool {
    walk(constraint, text) == (text.len(), true)
}

#[track_caller]
fn language(constraint: &Constraint, inside: &[&str], outside: &[&str]) {
    for text in inside {
        assert!(takes(constraint, text), "{text:?} is refused: {:?}", walk(constraint, text));
    }
    for text in outside {
        assert!(!takes(constraint, text), "{text:?} is taken");
    }
}

fn gbnf(text: &str) -> Constraint {
    compile(&Grammar::Gbnf(text.into()))
}

#[test]
fn json_objects() {
    let inside = ["{}", "{\"a\": [1, 2.5e3, true, null, {\"b\": \"\\n ü\"}]}", "{\n  \"a\": 1\n}"];
    let outside = ["[]", "7", "{\"a\" 1}", "{'a': 1}", "{\"a\": 01}", "{\"a\": 1,}", "{\"a\":\n\n\n"];
    language(&compile(&Grammar::JsonObject), &inside, &outside);
    // Whitespace comes to an end.
    let blank = format!("{{{}", " ".repeat(70));
    assert_eq!(walk(&compile(&Grammar::JsonObject), &blank), (65, false));
}

#[test]
fn schemas_of_true_and_of_one_value() {
    language(&compile(&Grammar::JsonSchema(json!(true))), &["7", "\"a\"", "[null]", "{}"], &["a", "", "[1"]);
    language(
        &compile(&Grammar::JsonSchema(json!({"const": {"a": [1]}}))),
        &["{\"a\":[1]}", "{ \"a\" : [ 1 ] }"],
        &["{}"],
    );
}

#[test]
fn regular_expressions_match_the_whole_answer() {
    language(&compile(&Grammar::Regex("a/b+|ü{2}".into())), &["a/b", "a/bbb", "üü"], &["a/", "xa/b", "ü", "a/bc"]);
}

/// What the longest match would swallow: the translation cuts its pieces where it must.
#[test]
fn gbnf_is_about_characters() {
    language(&gbnf("root ::= [a-z]* \"b\" [0-9]"), &["b1", "abbb2", "bb9"], &["a1", "abc1", "b"]);
    language(&gbnf("root ::= (\"a\" \"bx\" | \"abc\")+"), &["abx", "abc", "abcabxabx"], &["ab", "abcx", "abxc"]);
    language(
        &gbnf("root ::= x x\nx ::= \"a\" | \"ab\" | \"ba\""),
        &["aa", "aba", "abab", "aab", "abba"],
        &["ab", "a", "b"],
    );
    language(&gbnf("root ::= \"(\" root \")\" | [0-9]+ root? | \"\""), &["", "(12(3))", "((0))"], &["(", "(1", "1)"]);
    language(
        &gbnf("root ::= word (\" \" word){0,2}\nword ::= [^ \\n]{1,3}"),
        &["a", "ü€😀 b c"],
        &["abcd", "a  b", "a b c d"],
    );
    language(&gbnf("root ::= \"a\"? \"a\"* # as\n"), &["a", "aaaa", ""], &["b"]);
}

/// The grammar of JSON that is sent most often.
#[test]
fn gbnf_of_json() {
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let inside = ["{}", "{\"a\": [1, -2.5e3, true, null, {\"b\": \"\\n \\u00fc ü\"}]}\n", "{\"a\":\n    \"\"}"];
    let outside = ["[]", "{\"a\" 1}", "{\"a\": 01}", "{\"a\": 1,}", "{\"a\":  1}"];
    language(&gbnf(json), &inside, &outside);
    // The whitespace that calls itself.
    let recursive = json.replace("ws ::= | \" \" | \"\\n\" [ \\t]{0,20}", "ws ::= ([ \\t\\n] ws)?");
    assert_ne!(recursive, json);
    language(&gbnf(&recursive), &["{ \n\t\"a\" :   1 }".replace(" :", ":").as_str(), "{}"], &["{ 1}"]);
}
