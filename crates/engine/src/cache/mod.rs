//! KV memory: which page holds which positions of which sequence.

pub mod pages;
pub mod states;
