//! `speculative_bench` as a library: what is measured, how, and how it is told.
//!
//! A [`Row`] is one measurement: a pairing, a prompt, a batch size, a block width. Everything that is written (CSV, JSON, Markdown,
//! the plot) is made of rows.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod machine;
pub mod prompts;
pub mod report;
pub mod row;

pub use row::{Row, Status};
