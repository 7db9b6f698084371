//! Text from tokens, one token at a time.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// What must be remembered between two tokens: constant size, whatever the length of the text.
#[derive(Debug, Clone)]
pub(crate) struct DecodeState {
    /// No token has been seen yet.
    first: bool,
    /// How many more leading characters may be cut.
    strip_left: usize,
    /// The start of a character whose other bytes have not come yet.
    pending: Vec<u8>,
}

impl DecodeState {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        Self { first: true, strip_left: tokenizer.decoder().strip_start.map_or(0, |(_, n)| n), pending: Vec::new() }
    }

    /// Appends to `out` the text that this token makes certain.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, skip_special: bool, out: &mut String) {
        if skip_special && tokenizer.is_special(id) {
            return;
        }
        let Some(bytes) = tokenizer.bytes_of(id, self.first) else {
            return;
        };
        self.first = false;
        self.pending.extend_from_slice(&bytes);
        let mut rest = self.pending.as_slice();
        let mut text = String::with_capacity(rest.len());
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                }
                Err(e) => {
                    let (valid, tail) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = tail;
                    match e.error_len() {
                        // No byte that follows can mend this one.
                        Some(n) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &tail[n..];
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending = rest.to_vec();
        out.push_str(self.strip(tokenizer, &text));
    }

    /// Appends what an unfinished character becomes when nothing follows, and starts afresh.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        if !self.pending.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
        *self = Self::new(tokenizer);
    }

    fn strip<'t>(&mut self, tokenizer: &Tokenizer, mut text: &'t str) -> &'t str {
        let Some((c, _)) = tokenizer.decoder().strip_start else {
            return text;
        };
        while self.strip_left > 0 && !text.is_empty() {
            match text.strip_prefix(c) {
                Some(rest) => {
                    text = rest;
                    self.strip_left -= 1;
                }
                None => self.strip_left = 0,
            }
        }
        text
    }
}

/// An incremental decoder.
///
/// All pushes joined, plus [`finish`](Self::finish), equal [`Tokenizer::decode`] of the whole sequence. A push returns
/// everything that no later token can change: it holds back only the first bytes of an unfinished character, so it
/// never shows half a character, and shows U+FFFD only where the whole text has it. A clone is a snapshot: going back
/// to it takes back the tokens pushed since.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    state: DecodeState,
}

impl Detokenizer {
    /// Starts a text. With `skip_special`, special tokens contribute nothing.
    pub fn new(tokenizer: &Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer: Arc::clone(tokenizer), skip_special, state: DecodeState::new(tokenizer) }
    }

    /// Adds a token and returns the text that became certain, often one word, sometimes nothing.
    ///
    /// An id outside the vocabulary (a padded logit row) contributes nothing.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.state.push(&self.tokenizer, id, self.skip_special, &mut out);
        out
    }

    /// Whether bytes of an unfinished character are held back.
    pub fn has_pending(&self) -> bool {
        !self.state.pending.is_empty()
    }

    /// Ends the text: returns U+FFFD where a character was left unfinished, else nothing. The next push starts anew.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.state.finish(&self.tokenizer, &mut out);
        out
    }
}
