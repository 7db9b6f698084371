//! OpenAI's dialect: chat completions, text completions, responses, models.

mod answer;
mod chat;
mod completion;
mod content;
mod format;
mod message;
mod model;
pub mod responses;
mod tool;
mod usage;

pub use answer::{
    ChatAnswer, ChatChoice, ChatChunk, ChunkChoice, Delta, FinishReason, FunctionDelta, Logprobs, TokenLogprob,
    ToolCallDelta, TopLogprob,
};
pub use chat::{ChatRequest, ReasoningEffort, StreamOptions};
pub use completion::{CompletionAnswer, CompletionChoice, CompletionLogprobs, CompletionRequest, Prompt, PromptItem};
pub use content::{Content, ContentPart, ImageUrl};
pub use format::{JsonSchema, ResponseFormat};
pub use message::{AssistantMessage, FunctionCall, Message, Role, ToolCall};
pub use model::{Model, ModelList, ModelMeta};
pub use tool::{Function, Tool, ToolChoice};
pub use usage::{CompletionTokensDetails, PromptTokensDetails, Timings, Usage};

pub(crate) use chat::require_text;
pub(crate) use content::MediaAt;
pub(crate) use format::checked_schema;
pub(crate) use tool::{allowed_mode, check_choice};
