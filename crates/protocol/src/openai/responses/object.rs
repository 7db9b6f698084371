//! The answer as one object.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::item::OutputItem;
use super::request::{Reasoning, ResponsesRequest};
use crate::error::ApiError;
use crate::openai::usage::{Timings, Usage};

/// How far an answer or one of its items is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// More comes.
    InProgress,
    /// All there.
    Completed,
    /// Cut off by a limit.
    Incomplete,
    /// The server failed.
    Failed,
}

/// An answer. What the request said is in it again, as this dialect wants it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// `resp_...`.
    pub id: String,
    /// Always `response`.
    pub object: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Seconds since 1970, once completed.
    #[serde(default)]
    pub completed_at: Option<u64>,
    /// How far it is.
    pub status: Status,
    /// If it failed.
    pub error: Option<ResponseError>,
    /// If it was cut off.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The request's.
    pub instructions: Option<String>,
    /// The request's.
    pub max_output_tokens: Option<u64>,
    /// The model that answers.
    pub model: String,
    /// What it said, thought and called.
    pub output: Vec<OutputItem>,
    /// Whether several tools may be called.
    pub parallel_tool_calls: bool,
    /// Always null: answers are not kept.
    pub previous_response_id: Option<String>,
    /// The request's.
    pub reasoning: Reasoning,
    /// Always false: answers are not kept.
    pub store: bool,
    /// As used.
    pub temperature: Option<f32>,
    /// The request's.
    pub text: Value,
    /// The request's.
    pub tool_choice: Value,
    /// The request's.
    pub tools: Vec<Value>,
    /// As used.
    pub top_p: Option<f32>,
    /// Always `disabled`.
    pub truncation: String,
    /// What it cost, once it has ended.
    pub usage: Option<ResponseUsage>,
    /// The request's.
    pub metadata: Map<String, Value>,
    /// How long it took, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// Why the server failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseError {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Why an answer was cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteDetails {
    /// `max_output_tokens`.
    pub reason: String,
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Of those.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Of those.
    pub output_tokens_details: OutputTokensDetails,
    /// The sum.
    pub total_tokens: u64,
}

/// Parts of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputTokensDetails {
    /// Tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Always 0: writing the cache costs nothing.
    #[serde(default)]
    pub cache_write_tokens: u64,
}

/// Parts of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputTokensDetails {
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: usage.completion_tokens_details.reasoning_tokens,
            },
            total_tokens: usage.total_tokens,
        }
    }
}

impl From<&ApiError> for ResponseError {
    fn from(error: &ApiError) -> Self {
        ResponseError { code: error.code.unwrap_or(error.kind.openai()).into(), message: error.message.clone() }
    }
}

impl Response {
    /// The answer to `request` before its first token.
    pub fn begin(id: impl Into<String>, created_at: u64, model: impl Into<String>, request: &ResponsesRequest) -> Self {
        // The request's own serialisation has these three in the wire's form; maps with string keys cannot fail.
        let mut sent = serde_json::to_value(request).unwrap_or_default();
        let mut given = |name: &str| sent.get_mut(name).map(Value::take);
        Response {
            id: id.into(),
            object: "response".into(),
            created_at,
            completed_at: None,
            status: Status::InProgress,
            error: None,
            incomplete_details: None,
            instructions: request.instructions.clone(),
            max_output_tokens: request.max_output_tokens,
            model: model.into(),
            output: Vec::new(),
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            previous_response_id: None,
            reasoning: request.reasoning.clone().unwrap_or_default(),
            store: false,
            temperature: request.sampling.temperature,
            text: given("text").unwrap_or_else(|| serde_json::json!({"format": {"type": "text"}})),
            tool_choice: given("tool_choice").unwrap_or_else(|| "auto".into()),
            tools: match given("tools") {
                Some(Value::Array(tools)) => tools,
                _ => Vec::new(),
            },
            top_p: request.sampling.top_p,
            truncation: "disabled".into(),
            usage: None,
            metadata: request.metadata.clone(),
            timings: None,
        }
    }
}
