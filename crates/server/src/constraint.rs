//! What the text of an answer must be, compiled for the model's tokenizer.

use std::sync::Arc;

use mlxcel_engine::grammar::{Constraint, Grammar, GrammarError};
use mlxcel_protocol::openai::ResponseFormat;
use mlxcel_protocol::{ApiError, ErrorKind};
use serde_json::Value;

use crate::facts::Facts;

/// The grammar of a request, and the field that it came in; `None` = any text.
pub fn wanted(format: Option<&ResponseFormat>, grammar: Option<&str>) -> Option<(&'static str, Grammar)> {
    let formatted = match format {
        None | Some(ResponseFormat::Text) => None,
        Some(ResponseFormat::JsonObject) => Some(Grammar::JsonObject),
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            Some(Grammar::JsonSchema(Value::Object(json_schema.schema.clone())))
        }
    };
    let own = grammar.map(|text| match text.contains("::=") {
        // As llama.cpp writes them.
        true => Grammar::Gbnf(text.into()),
        false => Grammar::Lark(text.into()),
    });
    formatted.map(|grammar| ("response_format", grammar)).or(own.map(|grammar| ("grammar", grammar)))
}

/// Thoughts before the text that is constrained.
pub struct Thinking {
    open: bool,
    opener: Vec<u32>,
    closer: &'static str,
}

impl Thinking {
    /// Those that a model may have: `open` says that the prompt begins them, `may_think` that the model may by itself.
    ///
    /// # Errors
    /// 500 for a tokenizer that cannot encode the marker.
    pub fn of(facts: &Facts, open: bool, may_think: bool) -> Result<Option<Self>, ApiError> {
        let reasoning = facts.parser.reasoning;
        let (Some(opener), Some(closer)) = (reasoning.opener(), reasoning.closer()) else { return Ok(None) };
        let opener = match (open, may_think) {
            (true, _) => Vec::new(),
            // As templates print it.
            (false, true) => {
                let opener = facts.tokenizer.encode_plain(&format!("{opener}\n"));
                opener.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?
            }
            (false, false) => return Ok(None),
        };
        Ok(Some(Thinking { open, opener, closer }))
    }
}

/// Compiles it, on a thread that may take its time.
///
/// # Errors
/// 400 for a schema or grammar that is none; 500 for a tokenizer that cannot be used.
pub async fn compile(
    facts: &Arc<Facts>,
    wanted: Option<(&'static str, Grammar)>,
    thinking: Option<Thinking>,
) -> Result<Option<Constraint>, ApiError> {
    let Some((param, grammar)) = wanted else { return Ok(None) };
    let own = Arc::clone(facts);
    let work = move || -> Result<Constraint, GrammarError> {
        let factory = own.grammars()?;
        let constraint = factory.compile(&grammar)?;
        Ok(match thinking {
            Some(Thinking { open, opener, closer }) => constraint.after(factory.thoughts(open, opener, closer)),
            None => constraint,
        })
    };
    let compiled = tokio::task::spawn_blocking(work).await;
    let compiled = compiled.map_err(|e| ApiError::new(ErrorKind::Internal, format!("compiling the grammar: {e}")))?;
    compiled.map(Some).map_err(|error| match error {
        GrammarError::Busy { .. } => ApiError::new(ErrorKind::Overloaded, error.to_string()),
        GrammarError::Tokenizer(_) => ApiError::new(ErrorKind::Internal, error.to_string()),
        _ => ApiError::parameter(param, error),
    })
}
