//! Anthropic's dialect: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod answer;
mod block;
mod event;
mod request;
mod tool;

pub use answer::{AnswerBlock, MessageAnswer, StopReason, TokenCount, Usage};
pub use block::{Block, Blocks, ImageSource};
pub use event::{BlockDelta, MessageDelta, StreamEvent};
pub use request::{CountTokensRequest, InputMessage, MessagesRequest, OutputConfig, OutputFormat, Speaker, Thinking};
pub use tool::{Choice, Tool};
