//! `POST /v1/chat/completions`: the answer, whole and in chunks.

use serde::{Deserialize, Serialize, Serializer};

use super::message::AssistantMessage;
use super::usage::{Timings, Usage};

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatAnswer {
    /// `chatcmpl-...`.
    pub id: String,
    /// Always `chat.completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The answers, `n` of them.
    pub choices: Vec<ChatChoice>,
    /// What they cost.
    pub usage: Usage,
    /// Build and checkpoint: equal fingerprints give equal answers to equal requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    /// How long it took; for one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One answer of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// Which.
    pub index: u32,
    /// What the model said.
    pub message: AssistantMessage,
    /// If asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model had finished, or a stop string came.
    Stop,
    /// The most tokens asked for, or the end of the context.
    Length,
    /// The model called tools.
    ToolCalls,
    /// Never given by this server; read from others.
    ContentFilter,
}

impl FinishReason {
    /// The word on the wire.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::ContentFilter => "content_filter",
        }
    }
}

/// Log-probabilities of an answer's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// One for each token of the content.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    #[serde(default)]
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Its text; with U+FFFD where it ends inside a character.
    pub token: String,
    /// Natural logarithm of its probability.
    #[serde(serialize_with = "logprob")]
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
    /// The likeliest tokens in its place.
    #[serde(default)]
    pub top_logprobs: Vec<TopLogprob>,
}

/// A token that could have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// Natural logarithm of its probability.
    #[serde(serialize_with = "logprob")]
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
}

/// A logarithm of zero, which JSON does not have, is written as -9999, as clients know it.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

fn logprob<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f32(finite(*value))
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChunk {
    /// The same in all chunks.
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: String,
    /// Seconds since 1970, the same in all chunks.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// One piece of one answer; none in the chunk that brings the usage.
    pub choices: Vec<ChunkChoice>,
    /// As in the whole answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    /// In the last chunk, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// In the last chunk, or in every one if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// A piece of one answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChunkChoice {
    /// Which answer.
    pub index: u32,
    /// The piece.
    pub delta: Delta,
    /// Of the tokens in the piece.
    #[serde(default)]
    pub logprobs: Option<Logprobs>,
    /// In the answer's last piece.
    pub finish_reason: Option<FinishReason>,
}

/// What is new.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text; whole characters only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Text of the reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Pieces of tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// A piece of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCallDelta {
    /// Which call of this answer.
    pub index: u32,
    /// In its first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in its first piece.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is new of the function.
    pub function: FunctionDelta,
}

/// A piece of a function's name and arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionDelta {
    /// The whole name, in the call's first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The next piece of the arguments' text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}
