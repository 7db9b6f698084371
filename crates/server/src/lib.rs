//! HTTP serving: an engine on a thread of its own, and routes that speak to it.
//!
//! [`router`] makes an axum router of an [`App`]; [`serve`] runs it on a listener until it is told to stop. The server sees the engine
//! and the text crate, no model family and no kernel.
#![forbid(unsafe_code)]

mod app;
mod calls;
mod chat;
mod completion;
mod constraint;
mod dispatch;
mod exchange;
mod facts;
mod failure;
mod generate;
mod guard;
mod logprobs;
mod messages;
mod metrics;
mod native;
#[cfg(feature = "otel")]
pub mod otel;
mod page;
mod patient;
mod prompt;
mod responses;
mod serve;
mod sse;
mod worker;

pub use app::{App, Options, Shared, now, router};
pub use exchange::{Exchange, Observer};
pub use facts::{Facts, Size, Speculation};
pub use failure::Dialect;
pub use metrics::Metrics;
pub use serve::serve;
pub use worker::{Answer, Ready, Refusal, State, Status, Worker};
