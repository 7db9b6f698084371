//! What the head knows of one sequence: pairs of a position's hidden state and the token after it.
//!
//! K and V of a pair depend on that pair alone, never on the ones before it. So a pair whose token turns out to be another is
//! mended by writing its own K and V again.

use std::collections::BTreeMap;

use crate::TAKE_BACK;

/// Newest hidden states that are remembered: a recurrent target goes back by so many rows, and one more forms the pair before.
const RECENT: usize = TAKE_BACK + 1;

/// Most pairs in doubt at a time: a slot that is taken back again and again, and never asked, begins afresh.
const MOST_DOUBTS: usize = 64;

/// The pairs of positions `base..base + tokens.len()`, without a gap.
#[derive(Debug, Default)]
pub struct Slot {
    base: usize,
    /// Token of each pair: that of the position after.
    tokens: Vec<u32>,
    /// Pairs whose K and V are in the cache; the others wait.
    run: usize,
    /// Hidden states of the waiting pairs, `[tokens.len() - run, hidden]`.
    waiting: Vec<f32>,
    /// Hidden states by position, of the newest pairs and of those at the end of a page: where a sequence may be taken back to.
    kept: BTreeMap<usize, Vec<f32>>,
    /// Positions of pairs that came last when the slot was taken back: other tokens may follow them now.
    doubts: Vec<usize>,
}

/// A pair whose K and V are to be written again.
#[derive(Clone, Debug, PartialEq)]
pub struct Repair {
    /// Its place in the cache.
    pub place: usize,
    /// Its token.
    pub token: u32,
    /// Its hidden state.
    pub hidden: Vec<f32>,
}

impl Slot {
    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The first position of which nothing is known.
    pub fn end(&self) -> usize {
        self.base + self.tokens.len()
    }

    /// Pairs that wait to be run.
    pub fn waits(&self) -> usize {
        self.tokens.len() - self.run
    }

    /// Place in the cache, tokens and hidden states `[count, hidden]` of the first `count` waiting pairs.
    pub fn waiting(&self, count: usize, hidden: usize) -> (usize, &[u32], &[f32]) {
        (self.run, &self.tokens[self.run..self.run + count], &self.waiting[..count * hidden])
    }

    /// The first `count` waiting pairs were run.
    pub fn ran(&mut self, count: usize, hidden: usize) {
        self.run += count;
        self.waiting.drain(..count * hidden);
    }

    /// Adds pairs of positions from `start` on: their hidden states `[next.len(), hidden]` and the token after each. Pairs from
    /// there on that were known before are forgotten; after a gap the slot begins afresh.
    pub fn observe(&mut self, start: usize, next: &[u32], rows: &[f32], page_len: usize) {
        if next.is_empty() {
            return;
        }
        if start < self.end() {
            self.take_back(start);
        }
        if start != self.end() || self.tokens.is_empty() {
            *self = Slot { base: start, ..Slot::default() };
        }
        self.tokens.extend_from_slice(next);
        self.waiting.extend_from_slice(rows);
        let end = self.end();
        for position in start.saturating_sub(RECENT)..start {
            if !self.keeps(position, end, page_len) {
                self.kept.remove(&position);
            }
        }
        for (position, row) in (start..end).zip(rows.chunks_exact(rows.len() / next.len())) {
            if self.keeps(position, end, page_len) {
                self.kept.insert(position, row.to_vec());
            }
        }
    }

    fn keeps(&self, position: usize, end: usize, page_len: usize) -> bool {
        position + RECENT >= end || (position + 1).is_multiple_of(page_len) || self.doubts.contains(&position)
    }

    /// Forgets all positions from `len` on.
    pub fn take_back(&mut self, len: usize) {
        if len <= self.base || self.doubts.len() == MOST_DOUBTS {
            *self = Slot::default();
            return;
        }
        if len > self.end() {
            return;
        }
        let pairs = len - self.base;
        let hidden = self.waiting.len() / self.waits().max(1);
        self.waiting.truncate(pairs.saturating_sub(self.run) * hidden);
        self.run = self.run.min(pairs);
        self.tokens.truncate(pairs);
        self.kept.split_off(&len);
        self.doubts.retain(|position| *position + 1 < len);
        self.doubts.push(len - 1);
    }

    /// Compares pairs in doubt with the sequence's `tokens` and returns those to run again. `None`, and nothing is known any
    /// more, when the hidden state of one of them is gone.
    pub fn settle(&mut self, tokens: &[u32]) -> Option<Vec<Repair>> {
        let mut repairs = Vec::new();
        for position in std::mem::take(&mut self.doubts) {
            let (place, token) = (position - self.base, tokens[position + 1]);
            if self.tokens[place] == token {
                continue;
            }
            self.tokens[place] = token;
            if place >= self.run {
                continue; // it waits with its hidden state
            }
            match self.kept.get(&position) {
                Some(hidden) => repairs.push(Repair { place, token, hidden: hidden.clone() }),
                None => {
                    *self = Slot::default();
                    return None;
                }
            }
        }
        Some(repairs)
    }

    /// Lets the last pair wait once more if none does: its row gives the first draft. False when its hidden state is gone.
    pub fn wait_for_last(&mut self) -> bool {
        if self.waits() > 0 {
            return true;
        }
        let last = self.end().checked_sub(1).and_then(|position| self.kept.get(&position));
        let Some(hidden) = last.filter(|_| self.run > 0) else { return false };
        self.waiting.extend_from_slice(hidden);
        self.run -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 8;

    /// Pairs of `from..to` with tokens of `version`; a hidden state is its position, twice.
    fn feed(slot: &mut Slot, from: usize, to: usize, version: u32) {
        let next: Vec<u32> = (from..to).map(|p| token(p + 1, version)).collect();
        let rows: Vec<f32> = (from..to).flat_map(|p| [p as f32; 2]).collect();
        slot.observe(from, &next, &rows, PAGE);
    }

    fn token(position: usize, version: u32) -> u32 {
        position as u32 + 1000 * version
    }

    fn sequence(len: usize, changed_from: usize) -> Vec<u32> {
        (0..len).map(|p| token(p, u32::from(p >= changed_from))).collect()
    }

    #[test]
    fn pairs_append_and_a_gap_begins_afresh() {
        let mut slot = Slot::default();
        feed(&mut slot, 0, 5, 0);
        feed(&mut slot, 5, 6, 0);
        assert_eq!((slot.len(), slot.end(), slot.waits()), (6, 6, 6));
        slot.ran(4, 2);
        assert_eq!(slot.waiting(2, 2), (4, &[5, 6][..], &[4.0, 4.0, 5.0, 5.0][..]));
        feed(&mut slot, 9, 11, 0);
        assert_eq!((slot.len(), slot.end(), slot.waits()), (2, 11, 2));
        // Earlier than anything known.
        feed(&mut slot, 3, 4, 0);
        assert_eq!((slot.len(), slot.end()), (1, 4));
        slot.observe(7, &[], &[], PAGE);
        assert_eq!(slot.end(), 4, "no rows, no gap");
    }

    #[test]
    fn a_pair_before_the_place_gone_back_to_takes_its_new_token() {
        for (run, len) in [(30, 29), (30, 24), (30, 30), (20, 25), (0, 16)] {
            let mut slot = Slot::default();
            feed(&mut slot, 0, 30, 0);
            slot.ran(run, 2);
            slot.take_back(len);
            assert_eq!((slot.len(), slot.waits()), (len, len.saturating_sub(run)));
            feed(&mut slot, len, 60, 1);
            slot.ran(slot.waits(), 2);
            let repairs = slot.settle(&sequence(61, len)).expect("nothing is lost");
            let wrong = Repair { place: len - 1, token: token(len, 1), hidden: vec![len as f32 - 1.0; 2] };
            assert_eq!(repairs, [wrong], "{run} run, back to {len}");
            assert_eq!(slot.settle(&sequence(61, len)), Some(vec![]), "settled once");
        }
    }

    #[test]
    fn a_pair_that_still_fits_costs_nothing() {
        let mut slot = Slot::default();
        feed(&mut slot, 0, 30, 0);
        slot.ran(30, 2);
        slot.take_back(11);
        feed(&mut slot, 11, 20, 0);
        assert_eq!(slot.settle(&sequence(21, 99)), Some(vec![]));
        // Far back and inside a page its hidden state is gone: with another token everything is.
        slot.take_back(5);
        feed(&mut slot, 5, 20, 1);
        assert_eq!(slot.settle(&sequence(21, 5)), None);
        assert_eq!((slot.len(), slot.end()), (0, 0));
    }

    #[test]
    fn a_waiting_pair_is_corrected_in_place() {
        let mut slot = Slot::default();
        feed(&mut slot, 0, 6, 0);
        slot.take_back(4);
        feed(&mut slot, 4, 6, 1);
        assert_eq!(slot.settle(&sequence(7, 4)), Some(vec![]));
        assert_eq!(slot.waiting(6, 2).1, &sequence(7, 4)[1..]);
    }

    #[test]
    fn the_last_pair_can_be_run_again() {
        let mut slot = Slot::default();
        assert!(!slot.wait_for_last(), "nothing is known");
        feed(&mut slot, 3, 9, 0);
        slot.ran(6, 2);
        assert!(slot.wait_for_last());
        assert_eq!(slot.waiting(1, 2), (5, &[9][..], &[8.0, 8.0][..]));
        assert!(slot.wait_for_last() && slot.waits() == 1);
    }

    #[test]
    fn doubts_are_bounded() {
        let mut slot = Slot::default();
        for p in 0..=MOST_DOUBTS {
            feed(&mut slot, p, p + 1, 0);
            slot.take_back(p + 1);
            assert_eq!(slot.doubts.len(), if p < MOST_DOUBTS { p + 1 } else { 0 });
        }
        assert_eq!(slot.len(), 0);
    }

    #[test]
    fn few_hidden_states_are_kept() {
        let mut slot = Slot::default();
        for p in 0..800 {
            feed(&mut slot, p, p + 1, 0);
            slot.ran(1, 2);
        }
        let inside = |p: &usize| p % PAGE != PAGE - 1 && p + RECENT < 800;
        assert_eq!(slot.kept.keys().filter(|p| inside(p)).count(), 0);
        assert_eq!(slot.kept.len(), 100 + RECENT - RECENT.div_ceil(PAGE), "page ends and the newest");
        slot.take_back(0);
        assert_eq!((slot.len(), slot.kept.len()), (0, 0));
    }
}
