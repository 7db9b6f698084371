//! Requests over time: sequences, KV pages, scheduling, sampling, stops.
//!
//! [`Engine::step`](engine::Engine::step) is the whole life of a token: schedule, one forward over a ragged batch,
//! accept, emit. The engine knows no model family and no device, and no text beyond detokenising.
#![forbid(unsafe_code)]

pub mod cache;
mod digest;
pub mod engine;
pub mod grammar;
pub mod perplexity;
pub mod record;
pub mod request;
pub mod sample;
mod scheduler;
mod sequence;
pub mod speculate;
pub mod stop;

#[doc(hidden)]
pub use engine::PanicIn;
pub use engine::{CacheStats, Engine, EngineOptions};
pub use record::{Recording, RoundRecord, RowRecord, StepRecord};
pub use request::{
    EngineError, Event, FinishReason, Finished, Progress, Request, RequestError, RequestId, Running, Timings,
    TokenEvent,
};
pub use speculate::{Coupling, Rounds, Speculation};
