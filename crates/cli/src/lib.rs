//! The command line: what was typed, what it means, and one file a verb.
//!
//! This is the only crate that names a backend, and the only one that reads environment variables ([`args`] for those
//! that stand for a flag, [`locate::Environment`] for directories, `hub_environment` for the hub).
#![forbid(unsafe_code)]

pub mod answer;
pub mod args;
pub mod backend;
pub mod bench;
pub mod convert;
pub mod draft;
pub mod generate;
#[cfg(feature = "hub")]
pub mod hub_environment;
pub mod inspect;
pub mod interrupt;
pub mod list;
pub mod load;
pub mod locate;
pub mod perplexity;
pub mod probe;
#[cfg(feature = "hub")]
pub mod pull;
pub mod rm;
pub mod run;
pub mod serve;
pub mod synth;
pub mod units;
