//! `speculative_bench` as a library: what is measured, how, and how it is told.
//!
//! A [`Row`] is one measurement: a pairing, a prompt, a batch size, a block width. Everything that is written (CSV, JSON, Markdown,
//! the plot) is made of rows. [`runner::run`] makes them; it asks a [`host::Host`] for models, since only the program around
//! it names a backend.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod compare;
pub mod cost;
pub mod fingerprint;
pub mod host;
pub mod machine;
pub mod measure;
pub mod prompts;
pub mod report;
pub mod row;
pub mod runner;
pub mod simulate;
pub mod trace;

pub use row::{Row, Status};
