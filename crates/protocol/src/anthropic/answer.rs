//! The answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::openai::{self, FinishReason, Timings};

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageAnswer {
    /// `msg_...`.
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Always `assistant`.
    pub role: String,
    /// The model that answered.
    pub model: String,
    /// What it thought, said and called.
    pub content: Vec<AnswerBlock>,
    /// Why it ended; null in a stream's first event.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that came, if one did.
    pub stop_sequence: Option<String>,
    /// What it cost.
    pub usage: Usage,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Thoughts.
    Thinking {
        /// The text.
        thinking: String,
        /// Always empty: nothing is signed.
        signature: String,
    },
    /// A call.
    ToolUse {
        /// `toolu_...`.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments; empty when a stream opens the block.
        input: Map<String, Value>,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model had finished.
    EndTurn,
    /// The most tokens asked for, or the end of the context.
    MaxTokens,
    /// A stop sequence came.
    StopSequence,
    /// The model called tools.
    ToolUse,
    /// The end of the context, where a server tells it from `MaxTokens`.
    ModelContextWindowExceeded,
}

impl StopReason {
    /// The reason in this dialect, which tells a stop sequence from a finished answer.
    pub fn new(reason: FinishReason, stop_sequence: bool) -> Self {
        match reason {
            FinishReason::Length => StopReason::MaxTokens,
            FinishReason::ToolCalls => StopReason::ToolUse,
            FinishReason::Stop | FinishReason::ContentFilter if stop_sequence => StopReason::StopSequence,
            FinishReason::Stop | FinishReason::ContentFilter => StopReason::EndTurn,
        }
    }
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: u64,
    /// Always 0: writing the cache costs nothing.
    #[serde(default)]
    pub cache_creation_input_tokens: u64,
    /// Tokens of the prompt taken from the prefix cache; not part of `input_tokens`.
    #[serde(default)]
    pub cache_read_input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}

impl From<openai::Usage> for Usage {
    fn from(usage: openai::Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Usage {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

/// The answer of `count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// Tokens of the prompt.
    pub input_tokens: u64,
}
