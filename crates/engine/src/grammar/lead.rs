//! Tokenizers that cut a space from the start of a text: there a token has other bytes than in the middle.

use std::collections::HashMap;

use mlxcel_text::Tokenizer;

use crate::sample::TokenSet;

/// Tokens whose bytes at the start of a text differ, each with the token that has those bytes in the middle, if there is one.
#[derive(Default)]
pub(super) struct Lead(Vec<(u32, Option<u32>)>);

impl Lead {
    pub(super) fn new(tokenizer: &Tokenizer, words: &[Vec<u8>]) -> Self {
        let mut differ: Vec<(u32, Vec<u8>)> = Vec::new();
        for (id, word) in (0..).zip(words) {
            let leading = tokenizer.leading_bytes(id);
            if !tokenizer.is_special(id) && leading != *word {
                differ.push((id, leading));
            }
        }
        if differ.is_empty() {
            return Lead::default();
        }
        let mut by_bytes: HashMap<&[u8], u32> = HashMap::new();
        for (id, word) in (0..).zip(words) {
            by_bytes.entry(word).or_insert(id);
        }
        // A token that is cut away whole leaves the text at its start: it is not allowed to begin one.
        let stands = |leading: &[u8]| by_bytes.get(leading).copied().filter(|_| !leading.is_empty());
        Lead(differ.into_iter().map(|(id, leading)| (id, stands(&leading))).collect())
    }

    /// The first tokens allowed, out of those that the grammar allows by their bytes in the middle of a text.
    pub(super) fn first(&self, set: &mut TokenSet) {
        let by_middle = set.clone();
        for (id, stands) in &self.0 {
            match stands.is_some_and(|other| by_middle.contains(other)) {
                true => set.insert(*id),
                false => set.remove(*id),
            }
        }
    }

    /// The token whose bytes in the middle of a text are those of `token` at the start.
    pub(super) fn stand_in(&self, token: u32) -> u32 {
        match self.0.binary_search_by_key(&token, |(id, _)| *id) {
            Ok(i) => self.0[i].1.unwrap_or(token),
            Err(_) => token,
        }
    }
}
