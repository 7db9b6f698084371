//! Memory of sequences: which page holds which positions, which slot whose state, and what is kept for later ones.

pub mod pages;
pub mod prefix;
pub mod snapshots;
pub mod states;
