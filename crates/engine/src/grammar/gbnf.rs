//! Grammars as llama.cpp writes them, translated into the Lark dialect.
//!
//! GBNF is about characters; the grammar compiler has a lexer that takes the longest match, which can swallow what belongs to the next
//! part (`[a-z]* "b"` would never end). So the translation makes pieces as large as is safe ([`lexemes`]): a piece is cut into smaller
//! ones, down to single characters, where a character that may follow it could also go on with it. The language is the same.

mod chars;
mod lexemes;
mod parse;

use super::GrammarError;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// One character of these.
    Class(chars::Set),
    /// A rule by its number.
    Rule(usize),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    /// So many times, `None` = any more.
    Repeat(Box<Node>, usize, Option<usize>),
}

/// Rules of a grammar: more would be a program's output, and deep recursion.
const RULES: usize = 500;

/// The rules of a grammar text as Lark.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let (rules, root) = parse::rules(text)?;
    lexemes::translate(&rules, root)
}

fn size(unit: &'static str, most: usize) -> GrammarError {
    GrammarError::Size { what: "grammar", unit, most, found: "more".into() }
}
