//! How large a rebuilt tokenizer may become. As JSON a token or a merge takes a hundred times its bytes in the file, and nested
//! SentencePiece pieces (a, aa, aaa, …) stand for merges in the square of their length: without limits a file of a megabyte
//! would take gigabytes.

use super::super::error::GgufError;
use super::Vocabulary;

/// Most tokens. Published vocabularies stay below 300,000.
pub(super) const MAX_TOKENS: usize = 1 << 20;

/// Longest token. Published vocabularies stay below 1,000 bytes.
pub(super) const MAX_TOKEN_BYTES: usize = 4096;

/// Longest SentencePiece piece that takes part in merges. The longest published are Gemma's runs of spaces, of 93 bytes.
pub(super) const MAX_PIECE_BYTES: usize = 256;

/// Most tokens recognised before the text is split. Gemma 3 has 6,500.
pub(super) const MAX_ADDED: usize = 1 << 16;

/// Merges for each token; published vocabularies have up to 2.3.
const MERGES_PER_TOKEN: usize = 8;

/// Bytes of merges for each byte of the tokens.
const BYTES_PER_BYTE: usize = 16;

/// Merges, and bytes of them, that any vocabulary may have.
const FREE_MERGES: usize = 1 << 12;
const FREE_BYTES: usize = 1 << 16;

/// What is left for the merges of a vocabulary.
pub(super) struct Allowance {
    key: &'static str,
    tokens: usize,
    text: usize,
    merges: usize,
    bytes: usize,
}

impl Allowance {
    /// That of a vocabulary; `key` is the metadata that its merges come from.
    pub(super) fn of(vocabulary: &Vocabulary<'_>, key: &'static str) -> Self {
        let (tokens, text) =
            (vocabulary.tokens.len(), vocabulary.tokens.iter().map(|token| token.len()).sum::<usize>());
        let (merges, bytes) = (FREE_MERGES + MERGES_PER_TOKEN * tokens, FREE_BYTES + BYTES_PER_BYTE * text);
        Self { key, tokens, text, merges, bytes }
    }

    /// Takes a merge whose outcome has so many bytes; an error where too little is left.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), GgufError> {
        let error = |what: &str, free: usize, each: usize, count: usize, unit: &str| GgufError::Field {
            key: self.key.into(),
            expected: format!("at most {} ({free} and {each} for each of {count} {unit})", free + each * count),
            found: format!("a list that makes too many {what}"),
        };
        let merges = self.merges.checked_sub(1);
        let merges = merges.ok_or_else(|| error("merges", FREE_MERGES, MERGES_PER_TOKEN, self.tokens, "tokens"))?;
        let left = self.bytes.checked_sub(bytes);
        let left =
            left.ok_or_else(|| error("bytes of merges", FREE_BYTES, BYTES_PER_BYTE, self.text, "bytes of tokens"))?;
        (self.merges, self.bytes) = (merges, left);
        Ok(())
    }
}
