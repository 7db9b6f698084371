//! The tokens a constraint leaves to choose from.

/// A set of token ids, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSet {
    /// Bit `t % 32` of word `t / 32`.
    words: Vec<u32>,
}

impl TokenSet {
    /// No token, with room for the ids below `len`.
    pub fn empty(len: usize) -> Self {
        TokenSet { words: vec![0; len.div_ceil(32)] }
    }

    /// From words of 32 bits, the lowest id in the lowest bit of the first.
    pub fn from_words(words: &[u32]) -> Self {
        TokenSet { words: words.to_vec() }
    }

    /// Adds a token; one beyond the room is left out.
    pub fn insert(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    /// Takes a token out.
    pub fn remove(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }

    /// Whether the token is in it.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Whether no token is.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// How many tokens are.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Its tokens in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip((0_u32..).step_by(32)).flat_map(|(word, first)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    first + bit
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(tokens in prop::collection::vec(0_u32..200, 0..60), out in prop::collection::vec(0_u32..200, 0..20)) {
            let mut set = TokenSet::empty(130);
            let mut want = BTreeSet::new();
            // Room comes in words: ids up to 159 fit.
            for t in &tokens { set.insert(*t); if *t < 160 { want.insert(*t); } }
            for t in &out { set.remove(*t); want.remove(t); }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), want.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), want.len());
            prop_assert_eq!(set.is_empty(), want.is_empty());
            prop_assert!((0..300).all(|t| set.contains(t) == want.contains(&t)));
        }
    }
}
