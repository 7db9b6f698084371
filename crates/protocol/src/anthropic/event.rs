//! The answer as a stream of typed events.

use serde::{Deserialize, Serialize};

use super::answer::{AnswerBlock, MessageAnswer, StopReason, Usage};
use crate::error::{AnthropicError, ApiError};
use crate::openai::Timings;

/// An event. A stream is `message_start`, for each block `content_block_start`, deltas and `content_block_stop`, then
/// `message_delta` and `message_stop`; pings between them; an `error` ends it anywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// The first.
    MessageStart {
        /// The answer, without content.
        message: Box<MessageAnswer>,
    },
    /// A block begins.
    ContentBlockStart {
        /// Which.
        index: u32,
        /// The block, empty yet.
        content_block: AnswerBlock,
    },
    /// More of a block.
    ContentBlockDelta {
        /// Which.
        index: u32,
        /// What is new.
        delta: BlockDelta,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Which.
        index: u32,
    },
    /// Why the answer ended, and what it cost.
    MessageDelta {
        /// Why.
        delta: MessageDelta,
        /// What it cost in all.
        usage: Usage,
        /// How long it took.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timings: Option<Timings>,
    },
    /// The last.
    MessageStop,
    /// Nothing; it keeps the connection open.
    Ping,
    /// The stream cannot go on.
    Error {
        /// Why.
        error: AnthropicError,
    },
}

/// What is new of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    /// Text; whole characters only.
    TextDelta {
        /// The text.
        text: String,
    },
    /// The next piece of a call's arguments as text.
    InputJsonDelta {
        /// The piece.
        partial_json: String,
    },
    /// Thoughts.
    ThinkingDelta {
        /// The text.
        thinking: String,
    },
    /// The signature of the thoughts.
    SignatureDelta {
        /// Always empty here.
        signature: String,
    },
}

/// Why the answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageDelta {
    /// Why.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that came, if one did.
    pub stop_sequence: Option<String>,
}

impl StreamEvent {
    /// The name on the wire: of the event, and in its `type`.
    pub fn name(&self) -> &'static str {
        match self {
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::ContentBlockStart { .. } => "content_block_start",
            StreamEvent::ContentBlockDelta { .. } => "content_block_delta",
            StreamEvent::ContentBlockStop { .. } => "content_block_stop",
            StreamEvent::MessageDelta { .. } => "message_delta",
            StreamEvent::MessageStop => "message_stop",
            StreamEvent::Ping => "ping",
            StreamEvent::Error { .. } => "error",
        }
    }

    /// Whether the stream ends with it.
    pub fn is_last(&self) -> bool {
        matches!(self, StreamEvent::MessageStop | StreamEvent::Error { .. })
    }
}

impl From<&ApiError> for StreamEvent {
    fn from(error: &ApiError) -> Self {
        StreamEvent::Error { error: error.anthropic(None).error }
    }
}
