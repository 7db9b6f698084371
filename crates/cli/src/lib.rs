//! The command line: what was typed, what it means, and one file a verb.
//!
//! This is the only crate that names a backend, and the only one that reads environment variables ([`args`] for those
//! that stand for a flag, [`locate::Environment`] for directories).
#![forbid(unsafe_code)]

pub mod answer;
pub mod args;
pub mod generate;
pub mod inspect;
pub mod interrupt;
pub mod load;
pub mod locate;
pub mod perplexity;
pub mod run;
pub mod units;
