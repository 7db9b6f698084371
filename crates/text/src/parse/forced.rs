//! Grammars of forced calls: what a model may write when it has to call a function.
//!
//! They are written in the Lark dialect of the llguidance crate, for the format that the model's own chat template prints. What is
//! kept to: the functions' names; parameters in the order of their schema, the required ones all there, others only if the schema
//! names none; and values by their types, `enum`, `const` and lengths of strings. JSON values are kept to their whole schemas. What
//! cannot be written in a format (a parameter's name with a `>` in Qwen 3.5's) is refused if it is required.

mod gemma;
mod shape;
mod tagged;

use std::collections::HashMap;

use serde_json::Value;

use super::formats::ToolFormat;

/// A grammar of calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallGrammar {
    /// In the Lark dialect; its start is the whole answer.
    pub lark: String,
    /// JSON schemas, to which it refers as `@json0`, `@json1` and so on.
    pub schemas: Vec<Value>,
}

/// A function that may be called.
#[derive(Debug, Clone, Copy)]
pub struct Callee<'a> {
    /// Its name.
    pub name: &'a str,
    /// The schema of its arguments; `None` = it takes none.
    pub parameters: Option<&'a Value>,
}

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallStyle {
    /// Gemma 4's.
    Gemma4,
    /// Qwen 3.5's tags.
    Function,
    /// JSON within tags.
    Hermes,
}

impl CallStyle {
    /// The style of a format, which the template tells where the format has two; `None` for a model without calls.
    pub fn of(format: ToolFormat, template: &str) -> Option<Self> {
        match format {
            ToolFormat::None => None,
            ToolFormat::Gemma4 => Some(Self::Gemma4),
            ToolFormat::Tagged if template.contains("<function=") => Some(Self::Function),
            ToolFormat::Tagged => Some(Self::Hermes),
        }
    }
}

/// The grammar of an answer that calls one of these functions: one call, or any number from one on if there may be `several`.
/// `special` tells the id of a marker that is a special token, which has no text in a grammar.
///
/// # Errors
/// Says what of a schema cannot be written.
pub fn call_grammar(
    style: CallStyle,
    functions: &[Callee<'_>],
    several: bool,
    special: impl Fn(&str) -> Option<u32>,
) -> Result<CallGrammar, String> {
    let format = if style == CallStyle::Gemma4 { ToolFormat::Gemma4 } else { ToolFormat::Tagged };
    let mut rules = Rules { special: &special, out: CallGrammar::default(), known: HashMap::new(), named: 0 };
    let bodies: Result<Vec<String>, String> = functions
        .iter()
        .map(|function| {
            let body = match style {
                CallStyle::Gemma4 => gemma::call(&mut rules, function),
                CallStyle::Function => tagged::function(&mut rules, function),
                CallStyle::Hermes => Ok(tagged::hermes(&mut rules, function)),
            };
            body.map_err(|why| format!("parameters of {}: {why}", function.name))
        })
        .collect();
    let (open, close) = (rules.marker(format.opener().unwrap_or_default()), rules.marker(format.closer()));
    let newline = if style == CallStyle::Gemma4 { "" } else { "\"\\n\"" };
    let call = format!("{open} {newline} ({}) {close}", bodies?.join(" | "));
    rules.define("call", &call);
    rules.define("start", &if several { format!("call ({newline} call)*") } else { "call".into() });
    Ok(rules.out)
}

/// Rules being written.
struct Rules<'a> {
    special: &'a dyn Fn(&str) -> Option<u32>,
    out: CallGrammar,
    /// Names by what they stand for: the text of a rule or terminal, the place of a schema.
    known: HashMap<String, String>,
    named: usize,
}

impl Rules<'_> {
    fn define(&mut self, name: &str, body: &str) {
        self.out.lark.push_str(&format!("{name}: {body}\n"));
    }

    /// A name that no rule has.
    fn fresh(&mut self) -> String {
        self.named += 1;
        format!("r{}", self.named)
    }

    /// A rule with this body.
    fn rule(&mut self, body: &str) -> String {
        if let Some(name) = self.known.get(body) {
            return name.clone();
        }
        let name = self.fresh();
        self.define(&name, body);
        self.known.insert(body.into(), name.clone());
        name
    }

    /// A terminal with this body.
    fn terminal(&mut self, body: &str) -> String {
        if let Some(name) = self.known.get(body) {
            return name.clone();
        }
        let name = self.fresh().to_uppercase();
        self.define(&name, body);
        self.known.insert(body.into(), name.clone());
        name
    }

    /// JSON of a schema.
    fn json(&mut self, schema: Value) -> String {
        let place = self.out.schemas.iter().position(|known| *known == schema).unwrap_or_else(|| {
            self.out.schemas.push(schema);
            self.out.schemas.len() - 1
        });
        format!("@json{place}")
    }

    /// A marker of the format.
    fn marker(&self, text: &str) -> String {
        (self.special)(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"))
    }

    /// A number of a schema. Without bounds it has few digits: a model at a loss could write digits for ever.
    fn number(&mut self, schema: &Value, kind: &str) -> String {
        const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let bounds = BOUNDS.iter().filter_map(|name| Some((*name, schema.get(*name)?.clone())));
        let mut bounded: serde_json::Map<String, Value> = bounds.map(|(name, bound)| (name.into(), bound)).collect();
        if !bounded.is_empty() {
            bounded.insert("type".into(), kind.into());
            return self.json(Value::Object(bounded));
        }
        match kind {
            "integer" => self.terminal(r"/-?(0|[1-9][0-9]{0,14})/"),
            _ => self.terminal(r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+\-]?[0-9]{1,2})?/"),
        }
    }
}

/// A text in quotation marks, as the dialect has them.
fn literal(text: &str) -> String {
    Value::String(text.into()).to_string().replace('\u{7f}', "\\u007f")
}

/// Characters of a string by its schema, as a count of a regular expression. Large bounds are not kept to: each count is a state.
fn lengths(schema: &Value, least: u64) -> String {
    const MOST: u64 = 1024;
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64).map(|n| n.max(0.0) as u64);
    let low = bound("minLength").unwrap_or(0).clamp(least, MOST);
    match bound("maxLength").filter(|most| *most <= MOST) {
        Some(most) => format!("{{{low},{}}}", most.max(low)),
        None => format!("{{{low},}}"),
    }
}
