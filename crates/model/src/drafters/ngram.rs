//! Skeleton.

/// Skeleton.
pub struct Ngram;
