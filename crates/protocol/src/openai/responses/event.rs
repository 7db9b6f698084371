//! The answer as a stream of typed events.

use serde::{Deserialize, Serialize};

use super::item::{OutputContent, OutputItem};
use super::object::Response;
use crate::error::ApiError;
use crate::openai::answer::TokenLogprob;

/// An event with its place in the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseEvent {
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
    /// Counts from 0.
    pub sequence_number: u64,
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $name:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        /// What happened.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type")]
        pub enum Event {
            $($(#[$doc])* #[serde(rename = $name)] $variant { $($(#[$field_doc])* $field: $kind,)* },)*
        }

        impl Event {
            /// The name on the wire: of the event, and in its `type`.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Event::$variant { .. } => $name,)*
                }
            }
        }
    };
}

events! {
    /// The first: the request was taken.
    Created = "response.created" {
        /// The answer so far.
        response: Box<Response>,
    }
    /// The model is at it.
    InProgress = "response.in_progress" {
        /// The answer so far.
        response: Box<Response>,
    }
    /// The last, when all went well.
    Completed = "response.completed" {
        /// The whole answer.
        response: Box<Response>,
    }
    /// The last, when a limit cut the answer off.
    Incomplete = "response.incomplete" {
        /// What there is of the answer.
        response: Box<Response>,
    }
    /// The last, when the server failed.
    Failed = "response.failed" {
        /// What there is of the answer, and the error.
        response: Box<Response>,
    }
    /// An item begins.
    OutputItemAdded = "response.output_item.added" {
        /// Which item.
        output_index: u64,
        /// The item, empty yet.
        item: OutputItem,
    }
    /// An item is complete.
    OutputItemDone = "response.output_item.done" {
        /// Which item.
        output_index: u64,
        /// The item.
        item: OutputItem,
    }
    /// A part of a message begins.
    ContentPartAdded = "response.content_part.added" {
        /// The message.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// Which part.
        content_index: u64,
        /// The part, empty yet.
        part: OutputContent,
    }
    /// A part of a message is complete.
    ContentPartDone = "response.content_part.done" {
        /// The message.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// Which part.
        content_index: u64,
        /// The part.
        part: OutputContent,
    }
    /// New text.
    OutputTextDelta = "response.output_text.delta" {
        /// The message.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// Which part.
        content_index: u64,
        /// The text; whole characters only.
        delta: String,
        /// Of its tokens, if asked for.
        logprobs: Vec<TokenLogprob>,
    }
    /// The text is complete.
    OutputTextDone = "response.output_text.done" {
        /// The message.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// Which part.
        content_index: u64,
        /// All of it.
        text: String,
        /// Of its tokens, if asked for.
        logprobs: Vec<TokenLogprob>,
    }
    /// New text of the reasoning.
    ReasoningTextDelta = "response.reasoning_text.delta" {
        /// The reasoning item.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// Which part.
        content_index: u64,
        /// The text.
        delta: String,
    }
    /// The reasoning is complete.
    ReasoningTextDone = "response.reasoning_text.done" {
        /// The reasoning item.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// Which part.
        content_index: u64,
        /// All of it.
        text: String,
    }
    /// New text of a call's arguments.
    FunctionCallArgumentsDelta = "response.function_call_arguments.delta" {
        /// The call.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// The text.
        delta: String,
    }
    /// A call's arguments are complete.
    FunctionCallArgumentsDone = "response.function_call_arguments.done" {
        /// The call.
        item_id: String,
        /// Which item.
        output_index: u64,
        /// The function.
        name: String,
        /// All of them.
        arguments: String,
    }
    /// The stream cannot go on.
    Error = "error" {
        /// For programs.
        code: Option<String>,
        /// For people.
        message: String,
        /// The parameter at fault.
        param: Option<String>,
    }
}

impl Event {
    /// Whether the stream ends with it.
    pub fn is_last(&self) -> bool {
        matches!(self, Event::Completed { .. } | Event::Incomplete { .. } | Event::Failed { .. } | Event::Error { .. })
    }
}

impl From<&ApiError> for Event {
    fn from(error: &ApiError) -> Self {
        Event::Error {
            code: Some(error.code.unwrap_or(error.kind.openai()).into()),
            message: error.message.clone(),
            param: error.param.clone(),
        }
    }
}
