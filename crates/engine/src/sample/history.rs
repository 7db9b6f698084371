//! The tokens of one sequence, with the counts that penalties need.

use std::collections::HashMap;

/// How often one token occurs in a [`History`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCount {
    /// Occurrences in the prompt.
    pub prompt: u32,
    /// Occurrences among the generated tokens.
    pub generated: u32,
}

/// Prompt and generated tokens, with counts kept up to date: O(1) to push, O(tokens taken back) to truncate.
///
/// Taking back is exact: after [`History::truncate`] the value equals one that never saw the tail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    tokens: Vec<u32>,
    prompt_len: usize,
    /// No entry has both counts 0, so that equal tokens mean equal maps.
    counts: HashMap<u32, TokenCount>,
}

impl History {
    /// A history that has seen `prompt` and generated nothing.
    pub fn new(prompt: &[u32]) -> Self {
        let mut counts: HashMap<u32, TokenCount> = HashMap::new();
        for &token in prompt {
            counts.entry(token).or_default().prompt += 1;
        }
        History { tokens: prompt.to_vec(), prompt_len: prompt.len(), counts }
    }

    /// Adds a generated token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.counts.entry(token).or_default().generated += 1;
    }

    /// Keeps the first `generated` generated tokens and takes back the rest. The prompt always stays; with fewer
    /// generated tokens than that, nothing happens.
    pub fn truncate(&mut self, generated: usize) {
        let keep = self.prompt_len.saturating_add(generated).min(self.tokens.len());
        for token in self.tokens.drain(keep..) {
            let Some(count) = self.counts.get_mut(&token) else { continue };
            count.generated -= 1;
            if *count == TokenCount::default() {
                self.counts.remove(&token);
            }
        }
    }

    /// Prompt, then generated tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    /// The generated tokens.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// Number of tokens, prompt and generated: the position of the next one.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// How often `token` occurs.
    pub fn count(&self, token: u32) -> TokenCount {
        self.counts.get(&token).copied().unwrap_or_default()
    }

    /// Every distinct token with its counts, in no particular order.
    pub fn counts(&self) -> impl Iterator<Item = (u32, TokenCount)> {
        self.counts.iter().map(|(&token, &count)| (token, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prompt_and_answer_are_counted_apart() {
        let mut history = History::new(&[1, 2, 2]);
        history.push(2);
        history.push(5);
        assert_eq!(history.count(2), TokenCount { prompt: 2, generated: 1 });
        assert_eq!(history.count(5), TokenCount { prompt: 0, generated: 1 });
        assert_eq!(history.count(9), TokenCount::default());
        assert_eq!((history.prompt(), history.generated(), history.len()), (&[1, 2, 2][..], &[2, 5][..], 5));
        history.truncate(7);
        assert_eq!(history.len(), 5);
        history.truncate(0);
        assert_eq!(history, History::new(&[1, 2, 2]));
        assert!(!history.is_empty() && History::default().is_empty());
    }

    proptest! {
        /// The state law, against a history built afresh after every step.
        #[test]
        fn truncate_equals_never_having_seen(
            prompt in prop::collection::vec(0_u32..6, 0..12),
            steps in prop::collection::vec(prop_oneof![(0_u32..8).prop_map(Ok), (0_usize..12).prop_map(Err)], 0..40),
        ) {
            let mut history = History::new(&prompt);
            let mut generated = Vec::new();
            for step in steps {
                match step {
                    Ok(token) => { history.push(token); generated.push(token); }
                    Err(keep) => { history.truncate(keep); generated.truncate(keep); }
                }
                let mut fresh = History::new(&prompt);
                generated.iter().for_each(|&t| fresh.push(t));
                prop_assert_eq!(&history, &fresh);
                prop_assert_eq!(history.counts().count(), history.counts.len());
            }
        }
    }
}
