//! Wire types of the HTTP APIs, in three dialects: OpenAI's ([`openai`]), Anthropic's ([`anthropic`]) and
//! llama-server's ([`native`]).
//!
//! Requests are decoded and checked in one pass ([`Request::from_bytes`]): what comes out is in range, free of
//! contradictions and complete, as far as that can be known without a model. What does not pass is an [`ApiError`] that
//! names the parameter by its path, what was expected and what was found. Three tables are data: [`limits`] (what a
//! number or a length may be), [`parameters`] (fields that are known and not acted on: harmless, harmless at one value,
//! or refused with the reason), and everything in neither of them nor in the request type is refused by its name.
//!
//! `Responses` and `Messages` requests turn into chat requests ([`openai::ChatRequest`]), so a server has one form to
//! serve. Answers and stream events are plain serde types that both write and read.
//!
//! Requests are decoded by hand (`decode.rs`) rather than derived: derived untagged and internally tagged enums forget
//! where in the body they were and what they wanted there.

#![forbid(unsafe_code)]

pub mod anthropic;
mod body;
mod decode;
mod error;
pub mod limits;
pub mod native;
pub mod openai;
pub mod parameters;
mod sampling;
mod schema;
pub mod sse;

pub use body::{MAX_DEPTH, Request};
pub use error::{ApiError, ErrorKind};
pub use sampling::{Sampling, Speculative};
