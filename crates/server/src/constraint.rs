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

/// Compiles it, on a thread that may take its time.
///
/// # Errors
/// 400 for a schema or grammar that is none; 500 for a tokenizer that cannot be used.
pub async fn compile(
    facts: &Arc<Facts>,
    wanted: Option<(&'static str, Grammar)>,
) -> Result<Option<Constraint>, ApiError> {
    let Some((param, grammar)) = wanted else { return Ok(None) };
    let own = Arc::clone(facts);
    let compiled = tokio::task::spawn_blocking(move || own.grammars()?.compile(&grammar)).await;
    let compiled = compiled.map_err(|e| ApiError::new(ErrorKind::Internal, format!("compiling the grammar: {e}")))?;
    compiled.map(Some).map_err(|error| match error {
        GrammarError::Busy { .. } => ApiError::new(ErrorKind::Overloaded, error.to_string()),
        GrammarError::Tokenizer(_) => ApiError::new(ErrorKind::Internal, error.to_string()),
        _ => ApiError::parameter(param, error),
    })
}
