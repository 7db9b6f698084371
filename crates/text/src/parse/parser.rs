//! The automaton: text, thoughts, calls, and what lies between them.

use std::sync::Arc;

use serde_json::Value;

use super::call::{Call, Fed, Found, is_space};
use super::formats::{ParserKind, ReasoningFormat};
use super::hold::{Hold, Marker};
use super::schema::Tools;
use super::{Delta, append};

/// Newlines on either side of a marker that belong to it: templates print up to two.
const NEWLINES: usize = 2;

/// White space that may stand between a call and its closing marker.
const MAX_SPACE: usize = 16;

/// How an answer is to be read.
#[derive(Debug, Clone, Copy)]
pub struct ParserOptions<'a> {
    /// The tools offered, as the request wrote them (OpenAI's or Anthropic's form): their schemas say which values of Qwen
    /// 3.5's calls are strings. A call of another function is a call, too.
    pub tools: &'a [Value],
    /// The prompt ended inside a block of thoughts ([`ParserKind::thinking_open`]).
    pub thinking_open: bool,
    /// Whether calls become calls (true) or stay in the content, word for word.
    pub parse_tools: bool,
    /// Whether thoughts become [`Delta::Reasoning`] (true) or stay in the content, markers included, word for word. Calls
    /// inside them are not calls either way.
    pub parse_reasoning: bool,
    /// Whether the parts of a call are handed on as they come. If not (the default), a call is held back until it is whole,
    /// and one that breaks off becomes content; if so, it may end in [`Delta::ToolCallBroken`].
    pub stream_arguments: bool,
}

impl Default for ParserOptions<'_> {
    fn default() -> Self {
        Self { tools: &[], thinking_open: false, parse_tools: true, parse_reasoning: true, stream_arguments: false }
    }
}

#[derive(Debug, Clone)]
enum State {
    /// What is said.
    Text,
    /// What is thought.
    Reasoning,
    /// Behind a marker: some more newlines belong to it. Then thoughts, or text.
    Newlines { left: usize, reasoning: bool },
    /// Inside a call.
    Call(Box<OpenCall>),
    /// Behind a whole call: its closing marker, so much of which has been seen.
    Closer(String),
}

#[derive(Debug, Clone)]
struct OpenCall {
    /// All of it, with its marker.
    source: String,
    call: Call,
    found: Found,
    started: bool,
}

/// Reads one answer. A clone is a snapshot, as with the detokenizer.
///
/// ```
/// use mlxcel_text::parse::{Answer, Parser, ParserKind, ParserOptions};
///
/// let options = ParserOptions { thinking_open: true, ..ParserOptions::default() };
/// let mut parser = Parser::new(ParserKind::QWEN, options);
/// let mut deltas = Vec::new();
/// for token in ["Rain", "?\n</th", "ink>\n\nI'll look.\n\n<tool_call>\n<function=weather>\n", "</function>\n</tool_call>"] {
///     deltas.extend(parser.push(token));
/// }
/// deltas.extend(parser.finish());
/// let answer = Answer::collect(deltas);
/// assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Rain?", "I'll look."));
/// assert_eq!((answer.tool_calls[0].name.as_str(), answer.tool_calls[0].arguments.as_str()), ("weather", "{}"));
/// ```
#[derive(Debug, Clone)]
pub struct Parser {
    kind: ParserKind,
    tools: Arc<Tools>,
    parse_tools: bool,
    parse_reasoning: bool,
    stream: bool,
    state: State,
    hold: Hold,
    out: Vec<Delta>,
    /// Nothing but white space has been said or done.
    blank: bool,
    calls: usize,
}

impl Parser {
    /// A parser at the beginning of an answer.
    pub fn new(kind: ParserKind, options: ParserOptions<'_>) -> Self {
        let reasoning = options.thinking_open && kind.reasoning != ReasoningFormat::None;
        let left = if reasoning && options.parse_reasoning { NEWLINES } else { 0 };
        Self {
            kind,
            tools: Arc::new(if options.parse_tools { Tools::new(options.tools) } else { Tools::default() }),
            parse_tools: options.parse_tools,
            parse_reasoning: options.parse_reasoning,
            stream: options.stream_arguments,
            state: State::Newlines { left, reasoning },
            hold: Hold::default(),
            out: Vec::new(),
            blank: true,
            calls: 0,
        }
    }

    /// Takes more of the answer, cut anywhere, and returns what became certain: often one delta, sometimes none.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            // Text without any beginning of a marker is passed on in one piece.
            let reasoning = matches!(self.state, State::Reasoning);
            if (reasoning || matches!(self.state, State::Text)) && self.hold.is_empty() {
                let plain = rest.find(['\n', '<']).unwrap_or(rest.len());
                if plain > 0 {
                    self.say(&rest[..plain], reasoning);
                    rest = &rest[plain..];
                    continue;
                }
            }
            self.step(c);
            rest = &rest[c.len_utf8()..];
        }
        if self.stream {
            self.hand_on();
        }
        std::mem::take(&mut self.out)
    }

    /// Ends the answer: returns what was held back, a call that broke off as text. What is pushed afterwards is text.
    pub fn finish(&mut self) -> Vec<Delta> {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.flush(false),
            State::Reasoning => self.flush(true),
            // Newlines of a marker; a marker cut short behind a whole call.
            State::Newlines { .. } | State::Closer(_) => {}
            State::Call(open) => {
                self.broken(*open, 0);
            }
        }
        std::mem::take(&mut self.out)
    }

    fn flush(&mut self, reasoning: bool) {
        let text = self.hold.take();
        self.say(&text, reasoning);
    }

    /// Passes text on.
    fn say(&mut self, text: &str, reasoning: bool) {
        if text.is_empty() {
            return;
        }
        if reasoning && self.parse_reasoning {
            append(&mut self.out, Delta::Reasoning(text.to_owned()));
        } else {
            self.blank &= text.trim().is_empty();
            append(&mut self.out, Delta::Content(text.to_owned()));
        }
    }

    fn step(&mut self, c: char) {
        match &mut self.state {
            State::Text => self.text(c),
            State::Reasoning => self.reasoning(c),
            State::Newlines { left, reasoning } => {
                if c == '\n' && *left > 0 {
                    *left -= 1;
                } else {
                    self.state = if *reasoning { State::Reasoning } else { State::Text };
                    self.step(c);
                }
            }
            State::Call(_) => self.call(c),
            State::Closer(seen) => {
                let marker = seen.trim_start();
                let closer = self.kind.tools.closer();
                if marker.is_empty() && is_space(c) && seen.len() < MAX_SPACE {
                    seen.push(c);
                } else if closer[marker.len()..].starts_with(c) {
                    seen.push(c);
                    if seen.trim_start().len() == closer.len() {
                        self.state = State::Newlines { left: NEWLINES, reasoning: false };
                    }
                } else {
                    // No marker: text follows.
                    let again = std::mem::take(seen);
                    self.state = State::Newlines { left: NEWLINES, reasoning: false };
                    again.chars().for_each(|seen| self.step(seen));
                    self.step(c);
                }
            }
        }
    }

    /// Newlines of a marker around thoughts: none where thoughts stay in the content word for word.
    fn thought_newlines(&self) -> usize {
        if self.parse_reasoning { NEWLINES } else { 0 }
    }

    fn text(&mut self, c: char) {
        let mut markers = [Marker { text: "", newlines: 0 }; 2];
        let mut count = 0;
        let tool = self.kind.tools.opener().filter(|_| self.parse_tools);
        if let Some(text) = tool {
            markers[count] = Marker { text, newlines: NEWLINES };
            count += 1;
        }
        let anywhere = self.kind.reasoning == ReasoningFormat::Channel;
        if let Some(text) = self.kind.reasoning.opener().filter(|_| anywhere || self.blank) {
            markers[count] = Marker { text, newlines: self.thought_newlines() };
            count += 1;
        }
        let mut text = String::new();
        let found = self.hold.push(c, &markers[..count], &mut text);
        self.say(&text, false);
        match found {
            None => {}
            Some(0) if tool.is_some() => {
                self.blank = false;
                let source = self.hold.take();
                let call = Call::new(self.kind.tools);
                let open = OpenCall { source, call, found: Found::default(), started: false };
                self.state = State::Call(Box::new(open));
            }
            Some(_) => {
                self.blank = false;
                self.end_marker(true);
            }
        }
    }

    fn reasoning(&mut self, c: char) {
        let closer = self.kind.reasoning.closer().map(|text| Marker { text, newlines: self.thought_newlines() });
        let mut text = String::new();
        let found = self.hold.push(c, closer.as_slice(), &mut text);
        self.say(&text, true);
        if found.is_some() {
            self.blank = false;
            self.end_marker(false);
        }
    }

    /// A marker of thoughts is complete: they begin behind it, or end.
    fn end_marker(&mut self, reasoning: bool) {
        let marker = self.hold.take();
        if !self.parse_reasoning {
            self.say(&marker, false);
        }
        self.state = State::Newlines { left: self.thought_newlines(), reasoning };
    }

    fn call(&mut self, c: char) {
        let State::Call(open) = &mut self.state else { return };
        match open.call.feed(c, &self.tools, &mut open.found) {
            Ok(Fed::More) => open.source.push(c),
            Ok(Fed::Whole | Fed::WholeBefore) => {
                self.hand_on();
                append(&mut self.out, Delta::ToolCallEnd { index: self.calls });
                self.calls += 1;
                self.state = State::Closer(String::new());
            }
            Err(broken) => {
                let State::Call(open) = std::mem::replace(&mut self.state, State::Text) else { return };
                let again = self.broken(*open, broken.again);
                again.chars().for_each(|seen| self.step(seen));
                self.step(c);
            }
        }
    }

    /// Passes on what is known of the open call.
    fn hand_on(&mut self) {
        if let State::Call(open) = &mut self.state {
            hand_on(open, self.calls, &mut self.out);
        }
    }

    /// A call turns out to be none: its source is text, but for the last bytes, which are returned.
    fn broken(&mut self, mut open: OpenCall, again: usize) -> String {
        if self.stream {
            hand_on(&mut open, self.calls, &mut self.out);
        }
        let again = open.source.split_off(open.source.len() - again);
        if open.started {
            append(&mut self.out, Delta::ToolCallBroken { index: self.calls, text: open.source });
            self.calls += 1;
        } else {
            self.say(&open.source, false);
        }
        again
    }
}

fn hand_on(open: &mut OpenCall, index: usize, out: &mut Vec<Delta>) {
    if !open.started {
        let Some((id, name)) = open.found.start.take() else { return };
        open.started = true;
        append(out, Delta::ToolCallStart { index, id, name });
    }
    if !open.found.arguments.is_empty() {
        let json_fragment = std::mem::take(&mut open.found.arguments);
        append(out, Delta::ToolCallArguments { index, json_fragment });
    }
}
