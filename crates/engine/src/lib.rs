//! Requests over time: sequences, pages, scheduler, sampling.

#![forbid(unsafe_code)]

pub mod sample;
pub mod stop;
