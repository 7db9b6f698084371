//! The text of a GBNF grammar.

use std::collections::HashMap;

use super::chars::Set;
use super::{GrammarError, Node, RULES, size};

/// Brackets within brackets.
const NESTING: usize = 64;

/// Most repetitions of a part.
const REPEATS: usize = 10_000;

/// The rules in the order of their numbers, and the number of `root`.
pub(super) fn rules(text: &str) -> Result<(Vec<Node>, usize), GrammarError> {
    let mut parser = Parser { rest: text, line: 1, names: HashMap::new(), rules: Vec::new(), depth: 0 };
    parser.skip(true);
    while !parser.rest.is_empty() {
        parser.rule()?;
        parser.skip(true);
    }
    if parser.names.len() > RULES {
        return Err(size("rules", RULES));
    }
    let unknown = parser.names.iter().filter(|(_, (number, _))| parser.rules[*number].is_none());
    if let Some((name, (_, line))) = unknown.min_by_key(|(_, (_, line))| *line) {
        return Err(part(*line, "a rule of this grammar", name));
    }
    let Some((root, _)) = parser.names.get("root").copied() else {
        return Err(part(parser.line, "a rule named root", "the end of the grammar"));
    };
    Ok((parser.rules.into_iter().flatten().collect(), root))
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    /// Number of a rule, and the line where it was first named.
    names: HashMap<&'a str, (usize, usize)>,
    rules: Vec<Option<Node>>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Takes a character or a text if it is next.
    fn take(&mut self, text: &str) -> bool {
        let there = self.rest.strip_prefix(text);
        self.rest = there.unwrap_or(self.rest);
        there.is_some()
    }

    /// Passes over spaces and comments, and over ends of lines if they mean nothing here.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]),
                '\n' | '\r' if !lines => return,
                c if c.is_ascii_whitespace() => drop(self.next()),
                _ => return,
            }
        }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, GrammarError> {
        let found: String = self.rest.lines().next().unwrap_or_default().chars().take(20).collect();
        Err(part(self.line, expected, if found.is_empty() { "the end of the line" } else { &found }))
    }

    fn name(&mut self) -> Option<usize> {
        let end =
            self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        let (number, line) = (self.rules.len(), self.line);
        (!name.is_empty()).then(|| {
            let (own, _) = *self.names.entry(name).or_insert((number, line));
            if own == number {
                self.rules.push(None);
            }
            own
        })
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let Some(number) = self.name() else { return self.wrong("the name of a rule") };
        self.skip(false);
        if !self.take("::=") {
            return self.wrong("::= after the name of a rule");
        }
        self.skip(true);
        let body = self.alternatives(false)?;
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return self.wrong("a part of a rule, or the end of the line");
        }
        self.rules[number] = Some(body);
        Ok(())
    }

    fn alternatives(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut all = vec![self.sequence(nested)?];
        while self.take("|") {
            self.skip(true);
            all.push(self.sequence(nested)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Alt(all) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut items = Vec::new();
        loop {
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => {
                    self.depth += 1;
                    if self.depth > NESTING {
                        return Err(size("brackets within brackets", NESTING));
                    }
                    self.next();
                    self.skip(true);
                    let inner = self.alternatives(true)?;
                    if !self.take(")") {
                        return self.wrong("a closing bracket");
                    }
                    self.depth -= 1;
                    inner
                }
                Some('.') => {
                    self.next();
                    Node::Class(Set::default().negated())
                }
                Some(c) if c.is_ascii_alphanumeric() => match self.name() {
                    Some(number) => Node::Rule(number),
                    None => return self.wrong("the name of a rule"),
                },
                Some('<' | '!') => return self.wrong("text (tokens by name or number are not supported: write Lark)"),
                _ => return Ok(Node::Seq(items)),
            };
            items.push(self.repeated(item)?);
            self.skip(nested);
        }
    }

    /// What stands behind an item: how often it comes.
    fn repeated(&mut self, mut item: Node) -> Result<Node, GrammarError> {
        loop {
            self.skip(false);
            let (low, high) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let inner = self.rest[1..].split_once('}').map(|(inner, _)| inner);
                    let count = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n <= REPEATS);
                    let bounds = inner.and_then(|inner| match inner.split_once(',') {
                        None => count(inner).map(|n| (n, Some(n))),
                        Some((low, high)) if high.trim().is_empty() => count(low).map(|n| (n, None)),
                        Some((low, high)) => {
                            let low = if low.trim().is_empty() { Some(0) } else { count(low) };
                            low.zip(count(high)).map(|(low, high)| (low, Some(high)))
                        }
                    });
                    let Some(bounds) = bounds.filter(|(low, high)| high.is_none_or(|high| *low <= high)) else {
                        return self.wrong("{n}, {n,} or {n,m} with counts of at most 10000");
                    };
                    self.rest = &self.rest[1 + inner.map_or(0, str::len)..];
                    bounds
                }
                _ => return Ok(item),
            };
            self.next();
            item = Node::Repeat(Box::new(item), low, high);
        }
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.next();
        let mut items = Vec::new();
        loop {
            if self.take("\"") {
                return Ok(Node::Seq(items));
            }
            let c = self.character()?;
            items.push(Node::Class(Set::of(vec![(c, c)])));
        }
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.next();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let low = self.character()?;
            let mut high = low;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.next();
                high = self.character()?;
            }
            if high < low {
                return self.wrong("a range from low to high before this");
            }
            ranges.push((low, high));
        }
        let set = Set::of(ranges);
        let set = if negated { set.negated() } else { set };
        if set.is_empty() { self.wrong("a class with a character before this") } else { Ok(Node::Class(set)) }
    }

    /// A character of a literal or a class, as a code point.
    fn character(&mut self) -> Result<u32, GrammarError> {
        let c = match self.next() {
            Some('\\') => match self.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('x') => return self.code(2),
                Some('u') => return self.code(4),
                Some('U') => return self.code(8),
                Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => c,
                _ => return self.wrong("one of \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH before this"),
            },
            Some('\n') | None => return self.wrong("the end of a literal or a class"),
            Some(c) => c,
        };
        Ok(u32::from(c))
    }

    fn code(&mut self, digits: usize) -> Result<u32, GrammarError> {
        let text = self.rest.get(..digits).filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = text.and_then(|t| u32::from_str_radix(t, 16).ok()).filter(|c| char::from_u32(*c).is_some());
        let Some(code) = code else { return self.wrong(&format!("{digits} hexadecimal digits of a character")) };
        self.rest = &self.rest[digits..];
        Ok(code)
    }
}

fn part(line: usize, expected: &str, found: &str) -> GrammarError {
    GrammarError::Part { what: "grammar", at: format!("line {line}"), expected: expected.into(), found: found.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named_with_their_line() {
        for (text, says) in [
            ("", "line 1: a rule named root expected"),
            ("a ::= \"b\"\n", "a rule named root"),
            ("root ::= a\n\nb ::= c\n", "line 1: a rule of this grammar expected, found a"),
            ("root = \"a\"", "line 1: ::= after the name of a rule expected, found = \"a\""),
            ("root ::= \"a\n", "the end of a literal"),
            ("root ::= [a", "the end of a literal or a class"),
            ("root ::= []", "a class with a character"),
            ("root ::= [z-a]", "a range from low to high"),
            ("root ::= (\"a\"", "a closing bracket"),
            ("root ::= \"a\")", "a part of a rule"),
            ("\nroot ::= \"a\"{3,1}", "line 2: {n}, {n,}"),
            ("root ::= \"a\"{99999}", "at most 10000"),
            ("root ::= \"\\q\"", "one of \\n"),
            ("root ::= \"\\uD800\"", "4 hexadecimal digits"),
            ("root ::= <think>", "write Lark"),
            ("::= a", "the name of a rule"),
        ] {
            let message = rules(text).expect_err(text).to_string();
            assert!(message.starts_with("grammar, at line") && message.contains(says), "{text}: {message}");
        }
        let deep = format!("root ::= {}", "(".repeat(100));
        assert!(rules(&deep).expect_err("deep").to_string().contains("brackets within brackets"));
        let many: String = (0..600).map(|i| format!("a{i} ::= \"x\"\n")).collect();
        assert!(rules(&many).expect_err("many").to_string().contains("at most 500 rules"));
    }

    #[test]
    fn parts_of_rules() {
        let class = |text: &str| {
            let all = text.chars().map(|c| (u32::from(c), u32::from(c))).collect();
            Node::Class(Set::of(all))
        };
        let (rules, root) = rules("root ::= \"a\\x62\" # that\n b ::= [^\\n] |\n ( root\n b )+ | \n").expect("good");
        assert_eq!(root, 0);
        assert_eq!(rules[0], Node::Seq(vec![Node::Seq(vec![class("a"), class("b")])]));
        let Node::Alt(all) = &rules[1] else { panic!("{:?}", rules[1]) };
        assert_eq!(all.len(), 3);
        let inner = Node::Seq(vec![Node::Rule(0), Node::Rule(1)]);
        assert_eq!(all[1], Node::Seq(vec![Node::Repeat(Box::new(inner), 1, None)]));
        assert_eq!(all[2], Node::Seq(vec![]));
    }
}
