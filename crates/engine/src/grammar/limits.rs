//! What a grammar may be and cost.

use std::time::Duration;

use llguidance::api::ParserLimits;

use super::GrammarError;

/// Bytes of a grammar or regular expression.
pub(super) const TEXT: usize = 64 << 10;

/// Bytes of a grammar that was made of schemas.
pub(super) const CALLS: usize = 512 << 10;

/// Brackets within brackets of a grammar.
pub(super) const NESTING: usize = 128;

/// Bytes of all strings of a schema.
pub(super) const SCHEMA_BYTES: usize = 512 << 10;

/// JSON values of a schema, those of `enum` and `const` included.
pub(super) const SCHEMA_VALUES: usize = 50_000;

/// Schemas within a schema. The compiler calls itself for each at most once within another.
pub(super) const SCHEMAS: usize = 5_000;

/// JSON values within JSON values.
pub(super) const SCHEMA_DEPTH: usize = 128;

/// Wall-clock time to compile.
pub(super) const TIME: Duration = Duration::from_secs(10);

/// Grammars compiled at once.
pub(super) const COMPILERS: usize = 4;

/// Stack of the thread that compiles: the compiler is recursive. Pages that are not touched cost nothing.
pub(super) const STACK: usize = 256 << 20;

/// Work of the parser, to compile and for each set of allowed tokens.
pub(super) fn parser() -> ParserLimits {
    // The time of a step grows with the items of it times those of a row.
    let (step_max_items, max_items_in_row) = (30_000, 1_000);
    ParserLimits {
        max_lexer_states: 50_000,
        step_max_items,
        max_items_in_row,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Size and nesting of a grammar's text. Strings, regular expressions and comments are passed over.
pub(super) fn check_text(what: &'static str, text: &str, nests: bool) -> Result<(), GrammarError> {
    if text.len() > TEXT {
        return Err(GrammarError::Size { what, unit: "bytes", most: TEXT, found: text.len().to_string() });
    }
    if nests && nesting(text) > NESTING {
        let found = format!("more than {NESTING}");
        return Err(GrammarError::Size { what, unit: "brackets within brackets", most: NESTING, found });
    }
    Ok(())
}

/// Size of a grammar that was made of schemas, whose own limits do not bound it.
pub(super) fn check_calls(what: &'static str, lark: &str) -> Result<(), GrammarError> {
    match lark.len() > CALLS {
        true => Err(GrammarError::Size { what, unit: "bytes of grammar", most: CALLS, found: lark.len().to_string() }),
        false => Ok(()),
    }
}

/// Deepest nesting of brackets outside strings, regular expressions and comments; never less than the parser's.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = text.bytes().peekable();
    let mut within = None; // the byte that ends a string, a pattern or a comment
    while let Some(byte) = bytes.next() {
        match (within, byte) {
            (Some(b'"' | b'/'), b'\\') => drop(bytes.next()),
            (Some(end), _) if byte == end => within = None,
            // A quote that nobody closes ends with its line, so that what follows is counted.
            (Some(b'"' | b'/'), b'\n') => within = None,
            (Some(_), _) => {}
            (None, b'"') => within = Some(b'"'),
            (None, b'#') => within = Some(b'\n'),
            (None, b'/') => within = Some(if bytes.peek() == Some(&b'/') { b'\n' } else { b'/' }),
            (None, b'(' | b'[' | b'{') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_counted_outside_strings() {
        assert_eq!(nesting("start: (\"((((\" [/((((/ {x}]) # ((((\na: (b) // ((((\n"), 3);
        assert_eq!(nesting("a: \"\\\"((\" (b)"), 1);
        assert_eq!(nesting("a: \"((\nb: ((c))"), 2);
        assert_eq!(nesting(&"(".repeat(500)), 500);
    }

    #[test]
    fn a_text_has_a_limit_of_bytes_and_of_nesting() {
        assert!(check_text("grammar", &"a".repeat(TEXT), true).is_ok());
        let error = check_text("grammar", &"a".repeat(TEXT + 1), true).expect_err("too long");
        assert_eq!(error.to_string(), "grammar: at most 65536 bytes expected, found 65537; send a simpler one");
        let error = check_text("grammar", &"(".repeat(129), true).expect_err("too deep").to_string();
        assert!(error.contains("brackets within brackets"), "{error}");
        assert!(check_text("regex", &"(".repeat(129), false).is_ok());
    }
}
