//! What must be known of a template's source before it is compiled.
//!
//! A small scanner over the tags `{% … %}` and `{{ … }}`, with Jinja's rules for comments, raw blocks, strings and
//! brackets. It never fails: where the source is broken it stops, and the compiler then says what is wrong.

use std::ops::Range;

use minijinja::{Environment, ErrorKind};

/// A tag: the text between its delimiters and signs.
#[derive(Debug)]
struct Tag {
    block: bool,
    body: Range<usize>,
}

/// The source as the compiler should see it: line ends normalised, as Jinja2 does, and `{% generation %}` blocks made
/// transparent. These mark the spans a training run learns from; `{% with %}` is their nearest neutral relative: it
/// keeps the whitespace control of the tag, and variables set inside stay inside, as in Jinja2.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for tag in tags(&source) {
        let Some(name) = first_word(&source, &tag) else {
            continue;
        };
        let plain = match &source[name.clone()] {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        out.push_str(&source[copied..name.start]);
        out.push_str(plain);
        copied = name.end;
    }
    out.push_str(&source[copied..]);
    out
}

/// Filters and tests the source names and the engine lacks, with their lines. Jinja2 refuses these when it compiles;
/// a name in a branch that is never taken should not cost the checkpoint, so here it is a warning, and an error when
/// the line is reached.
pub(super) fn unknown_names(source: &str, env: &Environment<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for tag in tags(source) {
        let words = words(&source[tag.body.clone()]);
        for (i, word) in words.iter().enumerate() {
            let before = |n: usize| i.checked_sub(n).map_or("", |j| words[j].text);
            let opens_filter = before(1) == "filter" && tag.block && i == 1;
            let (what, unknown) = if before(1) == "|" || opens_filter {
                ("filter", lacks_filter(env, word.text))
            } else if !word.is_name || word.text == "not" {
                continue;
            } else if (before(1) == "is" && before(2) != ".")
                || (before(1) == "not" && before(2) == "is" && before(3) != ".")
            {
                ("test", lacks_test(env, word.text))
            } else {
                continue;
            };
            if unknown && word.is_name {
                let at = tag.body.start + word.start;
                let line = source[..at].matches('\n').count() + 1;
                found.push((line, format!("{what} named `{}`", word.text)));
            }
        }
    }
    found
}

// Called without arguments a known filter or test fails in some other way, or succeeds: only the kind tells.
fn lacks_filter(env: &Environment<'_>, name: &str) -> bool {
    let result = env.empty_state().apply_filter(name, &[]);
    result.is_err_and(|e| e.kind() == ErrorKind::UnknownFilter)
}

fn lacks_test(env: &Environment<'_>, name: &str) -> bool {
    let result = env.empty_state().perform_test(name, &[]);
    result.is_err_and(|e| e.kind() == ErrorKind::UnknownTest)
}

fn tags(source: &str) -> Vec<Tag> {
    let bytes = source.as_bytes();
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(open) = find_open(bytes, at) {
        let start = open + 2;
        match bytes[open + 1] {
            b'#' => match source[start..].find("#}") {
                Some(n) => at = start + n + 2,
                None => break,
            },
            kind => {
                let block = kind == b'%';
                let Some(end) = find_close(bytes, start, if block { b'%' } else { b'}' }) else {
                    break;
                };
                let tag = Tag { block, body: unsigned(bytes, start..end) };
                at = end + 2;
                if block && first_word(source, &tag).is_some_and(|w| &source[w] == "raw") {
                    match find_endraw(source, at) {
                        Some(after) => at = after,
                        None => break,
                    }
                } else {
                    tags.push(tag);
                }
            }
        }
    }
    tags
}

fn find_open(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let n = rest.windows(2).position(|w| w[0] == b'{' && matches!(w[1], b'%' | b'{' | b'#'))?;
    Some(from + n)
}

/// Where the delimiter `%}` or `}}` is, skipping strings; inside brackets it is not a delimiter.
fn find_close(bytes: &[u8], from: usize, sign: u8) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b if b == sign && depth == 0 && bytes.get(at + 1) == Some(&b'}') => return Some(at),
            quote @ (b'\'' | b'"') => at = string_end(bytes, at, quote)?,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The position of the closing quote.
fn string_end(bytes: &[u8], open: usize, quote: u8) -> Option<usize> {
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b if b == quote => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

fn find_endraw(source: &str, from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(n) = source[at..].find("{%") {
        let start = at + n + 2;
        let end = start + source[start..].find("%}")?;
        let word = source[start..end].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        if word == "endraw" {
            return Some(end + 2);
        }
        at = start;
    }
    None
}

/// Without the whitespace-control signs next to the delimiters.
fn unsigned(bytes: &[u8], mut body: Range<usize>) -> Range<usize> {
    if body.start < body.end && matches!(bytes[body.start], b'-' | b'+') {
        body.start += 1;
    }
    if body.start < body.end && matches!(bytes[body.end - 1], b'-' | b'+') {
        body.end -= 1;
    }
    body
}

fn first_word(source: &str, tag: &Tag) -> Option<Range<usize>> {
    if !tag.block {
        return None;
    }
    let body = &source[tag.body.clone()];
    let start = body.len() - body.trim_start().len();
    let len = body[start..].find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(body.len() - start);
    let at = tag.body.start + start;
    Some(at..at + len)
}

#[derive(Debug)]
struct Word<'s> {
    text: &'s str,
    start: usize,
    is_name: bool,
}

/// Names, and single characters for everything else; strings and spaces are left out.
fn words(body: &str) -> Vec<Word<'_>> {
    let bytes = body.as_bytes();
    let mut words = Vec::new();
    let mut chars = body.char_indices().peekable();
    while let Some((start, c)) = chars.next() {
        let mut end = start + c.len_utf8();
        if c == '\'' || c == '"' {
            let quote = if c == '"' { b'"' } else { b'\'' };
            let close = string_end(bytes, start, quote).unwrap_or(bytes.len());
            while chars.next_if(|(i, _)| *i <= close).is_some() {}
            end = (close + 1).min(body.len());
        } else if c.is_alphanumeric() || c == '_' {
            while let Some((i, c)) = chars.next_if(|(_, c)| c.is_alphanumeric() || *c == '_') {
                end = i + c.len_utf8();
            }
        } else if c.is_whitespace() {
            continue;
        }
        words.push(Word { text: &body[start..end], start, is_name: c.is_alphabetic() || c == '_' });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn generation_tags_keep_their_signs() {
        for (source, expected) in [
            ("{% generation %}a{% endgeneration %}", "{% with %}a{% endwith %}"),
            ("{%- generation -%}a{%-endgeneration+%}", "{%- with -%}a{%-endwith+%}"),
            ("{%+generation%}", "{%+with%}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            (
                "{% raw %}{% generation %}{%- endraw %}{% generation %}",
                "{% raw %}{% generation %}{%- endraw %}{% with %}",
            ),
            ("{% set generation = 1 %}", "{% set generation = 1 %}"),
            ("{{ {'a': {}} }}{% generation %}", "{{ {'a': {}} }}{% with %}"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% generation", "{% generation"),
        ] {
            assert_eq!(prepare(source), expected);
        }
    }

    #[test]
    fn unknown_filters_and_tests_have_lines() {
        let env = Environment::new();
        let source = "{{ a | upper | frob }}\n{% if a is not wobbly and x.is.y %}\n{{ 'is | nope' }}{% endif %}\n\
                      {% filter grunt %}{% endfilter %}{{ a is defined }}{{ a is not none }}{{ a is\n string }}";
        let found = unknown_names(source, &env);
        assert_eq!(
            found,
            [
                (1, "filter named `frob`".to_owned()),
                (2, "test named `wobbly`".to_owned()),
                (4, "filter named `grunt`".to_owned()),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_source_is_scanned(source in r#"([{}%#'"|\\. \n-]|raw|endraw|generation|is|é|😀){0,60}"#) {
            let env = Environment::new();
            let prepared = prepare(&source);
            unknown_names(&prepared, &env);
        }
    }
}
