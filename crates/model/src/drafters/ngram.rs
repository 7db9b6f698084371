//! Prompt lookup: what followed the last tokens where they stood before.
//!
//! A proposal looks for the longest run of tokens, of [`MIN_N`] to [`MAX_N`], that ends the sequence and stands somewhere earlier in
//! it, and copies what came after its most recent earlier place. It needs no weights and no forward pass, only a table from
//! runs of tokens to where they last ended, which grows by the new tokens of a round.

use std::collections::HashMap;
use std::mem::size_of;

use super::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept};
use crate::ModelError;

/// Longest run that is looked up. Longer ones hardly ever choose another place.
const MAX_N: usize = 5;

/// Shortest run that is looked up. What follows a single token is seldom what followed it before: with single tokens too, of four
/// drafts 0.18 were right instead of 0.30 in Rust sources and 0.09 instead of 0.14 in prose, for 11 and 9 % more tokens a round.
const MIN_N: usize = 2;

/// Lengths of runs.
const LENGTHS: usize = MAX_N - MIN_N + 1;

/// Tokens proposed a round when nobody says otherwise: the first wrong draft ends what a round can gain, a match that holds
/// gives them all.
const BLOCK_SIZE: usize = 5;

/// No earlier place.
const NOWHERE: u32 = u32::MAX;

/// The drafter.
pub struct Ngram {
    info: DrafterInfo,
    slots: Vec<Index>,
}

impl Ngram {
    /// A drafter for any target.
    pub fn new() -> Self {
        let kind = DraftKind::Ngram;
        let info = DrafterInfo { kind, name: kind.name().into(), path: None, block_size: BLOCK_SIZE, weight_bytes: 0 };
        Ngram { info, slots: Vec::new() }
    }
}

impl Default for Ngram {
    fn default() -> Self {
        Self::new()
    }
}

impl Drafter for Ngram {
    fn info(&self) -> &DrafterInfo {
        &self.info
    }

    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::None
    }

    fn reserve(&mut self, slots: usize, _: usize) -> Result<(), ModelError> {
        self.slots = (0..slots).map(|_| Index::default()).collect();
        Ok(())
    }

    fn observe(&mut self, _: &[Kept<'_>]) -> Result<(), ModelError> {
        Ok(())
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        self.slots[slot].truncate(len);
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut out = vec![Vec::new(); asks.len()];
        for (i, (ask, drafts)) in asks.iter().zip(&mut out).enumerate() {
            let index = &mut self.slots[ask.slot];
            index.follow(ask.tokens);
            let Some(from) = index.continuation() else { continue };
            for depth in 0..ask.count {
                // A place so near the end that the copy overtakes it goes on with what was copied.
                let token = match ask.tokens.get(from + depth) {
                    Some(token) => *token,
                    None => drafts[from + depth - ask.tokens.len()],
                };
                let Some(chosen) = choose.choose(i, depth, &[Candidate { token, logit: 0.0 }]) else { break };
                drafts.push(chosen);
                if chosen != token {
                    break; // what followed the other token is no guide to what follows this one
                }
            }
        }
        Ok(out)
    }

    fn cache_bytes(&self) -> usize {
        self.slots.iter().map(Index::bytes).sum()
    }

    fn cached(&self, slot: usize) -> usize {
        self.slots[slot].tokens.len()
    }
}

/// Where the runs of a sequence's tokens last ended.
#[derive(Default)]
struct Index {
    /// The sequence as far as it has been indexed.
    tokens: Vec<u32>,
    /// For each length from [`MIN_N`], the position at which a run (padded with zeros) last ended.
    last: [HashMap<[u32; MAX_N], u32>; LENGTHS],
    /// For each position, what `last` said before of the runs that end there: the matches of a sequence that ends there, and
    /// what taking the position back restores.
    before: Vec<[u32; LENGTHS]>,
}

impl Index {
    /// Indexes `tokens` from where they part from what was indexed.
    fn follow(&mut self, tokens: &[u32]) {
        if !tokens.starts_with(&self.tokens) {
            let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            self.truncate(same);
        }
        for token in &tokens[self.tokens.len()..] {
            self.push(*token);
        }
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let end = (self.tokens.len() - 1) as u32;
        let mut before = [NOWHERE; LENGTHS];
        for (length, before) in before.iter_mut().enumerate() {
            if let Some(run) = run(&self.tokens, MIN_N + length) {
                *before = self.last[length].insert(run, end).unwrap_or(NOWHERE);
            }
        }
        self.before.push(before);
    }

    /// Forgets all but the first `len` tokens.
    fn truncate(&mut self, len: usize) {
        if len == 0 {
            *self = Index::default();
            return;
        }
        while self.tokens.len() > len {
            let before = self.before.pop().unwrap_or([NOWHERE; LENGTHS]);
            for (length, before) in before.into_iter().enumerate() {
                let Some(run) = run(&self.tokens, MIN_N + length) else { continue };
                match before {
                    NOWHERE => self.last[length].remove(&run),
                    earlier => self.last[length].insert(run, earlier),
                };
            }
            self.tokens.pop();
        }
    }

    /// The position after the most recent earlier place of the longest run that ends the sequence and has one.
    fn continuation(&self) -> Option<usize> {
        let end = self.before.last()?.iter().rev().find(|end| **end != NOWHERE)?;
        Some(*end as usize + 1)
    }

    fn bytes(&self) -> usize {
        let runs: usize = self.last.iter().map(HashMap::capacity).sum();
        self.tokens.capacity() * size_of::<u32>()
            + self.before.capacity() * size_of::<[u32; LENGTHS]>()
            + runs * size_of::<([u32; MAX_N], u32)>()
    }
}

/// The last `n` tokens, padded with zeros; `None` where there are fewer.
fn run(tokens: &[u32], n: usize) -> Option<[u32; MAX_N]> {
    let mut run = [0; MAX_N];
    run[..n].copy_from_slice(tokens.get(tokens.len().checked_sub(n)?..)?);
    Some(run)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use proptest::prelude::*;

    /// The definition.
    fn naive(tokens: &[u32], count: usize) -> Vec<u32> {
        for n in (MIN_N..=MAX_N).rev().filter(|n| *n < tokens.len()) {
            let suffix = &tokens[tokens.len() - n..];
            for from in (n..tokens.len()).rev() {
                if &tokens[from - n..from] == suffix {
                    let mut all = tokens.to_vec();
                    (0..count).for_each(|i| all.push(all[from + i]));
                    return all.split_off(tokens.len());
                }
            }
        }
        Vec::new()
    }

    /// Takes every draft; from depth `.0` on it declines, at depth `.1` it says another token.
    struct Takes(usize, usize);

    impl Choose for Takes {
        fn choose(&mut self, _: usize, depth: usize, candidates: &[Candidate]) -> Option<u32> {
            assert_eq!(candidates.len(), 1);
            (depth < self.0).then_some(candidates[0].token + if depth == self.1 { 1000 } else { 0 })
        }
    }

    const ALL: Takes = Takes(usize::MAX, usize::MAX);

    fn ask(slot: usize, tokens: &[u32], count: usize) -> Ask<'_> {
        Ask { slot, tokens, tables: Vec::new(), count, candidates: 1 }
    }

    fn drafter(slots: usize) -> Ngram {
        let mut drafter = Ngram::new();
        drafter.reserve(slots, 1000).expect("room");
        drafter
    }

    fn propose(drafter: &mut Ngram, slot: usize, tokens: &[u32], count: usize, mut choose: Takes) -> Vec<u32> {
        drafter.propose(&[ask(slot, tokens, count)], &mut choose).expect("drafts").remove(0)
    }

    /// One round: take back, replace the end of the sequence, ask.
    #[derive(Clone, Debug)]
    struct Round {
        slot: usize,
        back: usize,
        told: bool,
        new: Vec<u32>,
        count: usize,
    }

    fn rounds() -> impl Strategy<Value = Vec<Round>> {
        let round = (0usize..2, 0usize..9, any::<bool>(), prop::collection::vec(0u32..3, 1..12), 1usize..9)
            .prop_map(|(slot, back, told, new, count)| Round { slot, back, told, new, count });
        prop::collection::vec(round, 1..16)
    }

    /// The first round whose proposal is not the definition's; `damage` may do something to the index before each.
    fn differs(rounds: &[Round], damage: fn(&mut Index)) -> Option<usize> {
        let mut drafter = drafter(2);
        let mut sequences = [Vec::new(), Vec::new()];
        rounds.iter().position(|round| {
            let tokens: &mut Vec<u32> = &mut sequences[round.slot];
            // 8 = a new sequence.
            tokens.truncate(if round.back == 8 { 0 } else { tokens.len().saturating_sub(round.back) });
            if round.told {
                drafter.take_back(round.slot, tokens.len());
                assert!(drafter.cached(round.slot) <= tokens.len());
            }
            tokens.extend(&round.new);
            damage(&mut drafter.slots[round.slot]);
            let drafts = propose(&mut drafter, round.slot, tokens, round.count, ALL);
            assert_eq!(drafter.cached(round.slot), tokens.len());
            drafts != naive(tokens, round.count)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]

        #[test]
        fn proposals_are_those_of_the_definition(rounds in rounds()) {
            prop_assert_eq!(differs(&rounds, |_| ()), None);
        }

        /// Taking back leaves what never having seen the tokens would have left.
        #[test]
        fn taking_back_leaves_nothing(
            tokens in prop::collection::vec(0u32..3, 0..60),
            more in prop::collection::vec(0u32..3, 0..20),
        ) {
            let (mut never, mut once) = (Index::default(), Index::default());
            never.follow(&tokens);
            once.follow(&[tokens.clone(), more].concat());
            once.truncate(tokens.len());
            prop_assert_eq!(&never.tokens, &once.tokens);
            prop_assert_eq!(&never.before, &once.before);
            prop_assert_eq!(&never.last, &once.last);
        }
    }

    #[test]
    fn a_damaged_index_is_noticed() {
        let round = |back, new: &[u32]| Round { slot: 0, back, told: true, new: new.to_vec(), count: 4 };
        let rounds = [round(0, &[0, 1, 2, 0, 1, 1]), round(1, &[2, 1, 0, 1]), round(2, &[0, 1])];
        assert_eq!(differs(&rounds, |_| ()), None);
        // Places that are off by one; places that are forgotten.
        assert!(differs(&rounds, |index| index.last[0].values_mut().for_each(|end| *end += 1)).is_some());
        assert!(differs(&rounds, |index| index.last.iter_mut().for_each(HashMap::clear)).is_some());
    }

    #[test]
    fn the_longest_match_then_the_most_recent() {
        let mut drafter = drafter(1);
        // "2 3" was last followed by 9, "1 2 3" by 4.
        assert_eq!(propose(&mut drafter, 0, &[1, 2, 3, 4, 5, 2, 3, 9, 1, 2, 3], 3, ALL), [4, 5, 2]);
        assert_eq!(propose(&mut drafter, 0, &[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1, ALL), [5]);
        // Too short, or never seen.
        assert!(propose(&mut drafter, 0, &[1], 3, ALL).is_empty());
        assert!(propose(&mut drafter, 0, &[1, 2, 1, 3], 3, ALL).is_empty());
    }

    #[test]
    fn a_copy_that_overtakes_the_end_goes_on() {
        let mut drafter = drafter(1);
        assert_eq!(propose(&mut drafter, 0, &[7, 8, 7, 8, 7], 5, ALL), [8, 7, 8, 7, 8]);
        assert_eq!(propose(&mut drafter, 0, &[4, 4, 4], 3, ALL), [4, 4, 4]);
    }

    #[test]
    fn the_engine_has_the_last_word() {
        let mut drafter = drafter(1);
        let tokens = [1, 2, 3, 4, 5, 1, 2];
        assert_eq!(propose(&mut drafter, 0, &tokens, 4, Takes(2, 9)), [3, 4]);
        assert!(propose(&mut drafter, 0, &tokens, 4, Takes(0, 9)).is_empty());
        assert_eq!(propose(&mut drafter, 0, &tokens, 4, Takes(9, 1)), [3, 1004]);
    }

    #[test]
    fn slots_are_apart_and_new_ones_empty() {
        let mut drafter = drafter(2);
        assert_eq!(drafter.cache_bytes(), 0);
        let (a, b) = ([1, 2, 3, 1, 2], [5, 6, 1, 2, 9, 1, 2]);
        let drafts = drafter.propose(&[ask(1, &a, 1), ask(0, &b, 2)], &mut Takes(9, 9)).expect("drafts");
        assert_eq!(drafts, [vec![3], vec![9, 1]]);
        assert!(drafter.cache_bytes() > 0);
        drafter.take_back(1, 0);
        assert_eq!((drafter.cached(0), drafter.cached(1)), (7, 0));
        assert!(propose(&mut drafter, 1, &[1, 2], 3, ALL).is_empty());
        assert_eq!(drafter.info().kind.name(), drafter.info().name);
    }

    #[test]
    fn a_round_costs_its_new_tokens() {
        let mut tokens: Vec<u32> = (0..50_000).map(|i| i * 7919 % 1013).collect();
        let mut drafter = drafter(1);
        let start = Instant::now();
        propose(&mut drafter, 0, &tokens, 4, ALL);
        let afresh = start.elapsed();
        let start = Instant::now();
        for i in 0..200 {
            tokens.push(i % 5);
            propose(&mut drafter, 0, &tokens, 4, ALL);
        }
        let rounds = start.elapsed();
        assert!(rounds < afresh * 40, "200 rounds took {rounds:?}, indexing once {afresh:?}");
    }
}
