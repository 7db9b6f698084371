//! `POST /v1/responses`: the newer form of a conversation, answered by one object and streamed as typed events.
//!
//! Answers are not kept, so whatever refers to an earlier one is refused.

mod event;
mod item;
mod object;
mod request;

pub use event::{Event, ResponseEvent};
pub use item::{InputContent, InputItem, OutputContent, OutputItem, ReasoningText, SummaryText};
pub use object::{
    IncompleteDetails, InputTokensDetails, OutputTokensDetails, Response, ResponseError, ResponseUsage, Status,
};
pub use request::{Input, Reasoning, ResponsesRequest, ResponsesTool, TextConfig, TextFormat};
