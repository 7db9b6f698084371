//! Recurrent states of sequences: each has a slot, and snapshots at page boundaries to return to.
//!
//! K/V of any position can be returned to by forgetting what came later; a recurrent state cannot. Exactly taking back the
//! last rows is the model's doing ([`Model::take_back`]); going back further means the newest snapshot before the place, and
//! computing from there.
//!
//! Snapshots of all sequences share a budget in bytes. Chat templates often render a past answer differently than it was
//! generated, so that the next turn parts from the cache at the end of the prompt: the newest snapshot inside a sequence's prompt
//! is kept longest, then the newest of all, and of the others the one goes first whose loss leaves the smallest gap.

use mlxcel_model::{Model, Snapshot};

/// One sequence's slot, which is its number in a batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot(usize);

impl Slot {
    /// The number.
    pub fn number(&self) -> usize {
        self.0
    }
}

/// Slots, snapshots and their budget.
pub struct States {
    recurrent: bool,
    page_len: usize,
    free: Vec<usize>,
    lines: Vec<Line>, // by slot
    /// Snapshots that may be kept in all.
    most: usize,
}

/// What is kept of one slot's sequence.
#[derive(Default)]
struct Line {
    prompt: usize,
    snapshots: Vec<Snapshot>, // by position, ascending
}

/// How dear a snapshot is: the cheapest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// One of several; by the gap its loss would leave.
    Between(usize),
    /// The newest of its sequence.
    Newest,
    /// The newest inside the prompt.
    Anchor,
}

/// Ranks of a sequence's snapshots.
fn ranks(positions: &[usize], prompt: usize) -> Vec<Rank> {
    let anchor = positions.iter().rposition(|p| *p <= prompt);
    let rank = |i: usize| match i {
        _ if Some(i) == anchor => Rank::Anchor,
        _ if i + 1 == positions.len() => Rank::Newest,
        _ => Rank::Between(positions[i + 1] - if i == 0 { 0 } else { positions[i - 1] }),
    };
    (0..positions.len()).map(rank).collect()
}

impl States {
    /// `slots` slots of a model, and snapshots of all of them in `budget` bytes.
    pub fn new(model: &dyn Model, slots: usize, budget: usize) -> Self {
        let recurrent = model.is_recurrent();
        let most = if recurrent { budget / model.state_bytes().1.max(1) } else { 0 };
        let lines = (0..slots).map(|_| Line::default()).collect();
        States { recurrent, page_len: model.page_len(), free: (0..slots).rev().collect(), lines, most }
    }

    /// Snapshots that fit the budget.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A slot for a sequence that starts at position 0; `None` when all are taken.
    pub fn take(&mut self, prompt: usize) -> Option<Slot> {
        let slot = self.free.pop()?;
        self.lines[slot] = Line { prompt, snapshots: Vec::new() };
        Some(Slot(slot))
    }

    /// Hands a slot on to a sequence that goes on from what it holds.
    pub fn hand_on(&mut self, slot: &Slot, prompt: usize) {
        self.lines[slot.0].prompt = prompt;
    }

    /// Gives a slot and its snapshots back.
    pub fn release(&mut self, slot: Slot) {
        self.lines[slot.0] = Line::default();
        self.free.push(slot.0);
    }

    /// Free slots.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Where a span of prompt rows `start..end` should end so that a snapshot falls on a page boundary: a chunk that more
    /// follow on its last boundary, the last chunk of a long prompt on the last boundary before its end.
    pub fn cut(&self, start: usize, end: usize, last: bool) -> usize {
        let inside = if last { end - 1 } else { end };
        let boundary = inside / self.page_len * self.page_len;
        // The last chunk goes in two steps only where the second is a small part.
        let worth = if last { end - start >= 2 * self.page_len } else { boundary > start };
        if self.most > 0 && worth { boundary } else { end }
    }

    /// Most rows of a block that starts at `start`: it must not run past a page boundary where plain decoding takes a snapshot, or
    /// later turns would find less of the conversation.
    pub fn block(&self, start: usize) -> usize {
        if self.most > 0 { self.page_len - start % self.page_len } else { usize::MAX }
    }

    /// Notes that a sequence's state now stands at `position`: takes a snapshot on a page boundary, if the budget has room for it
    /// or something cheaper to give up.
    pub fn advance(&mut self, model: &dyn Model, slot: &Slot, position: usize) {
        let line = &self.lines[slot.0];
        let known = line.snapshots.last().is_some_and(|s| s.position() >= position);
        if self.most == 0 || !position.is_multiple_of(self.page_len) || known {
            return;
        }
        if self.lines.iter().map(|l| l.snapshots.len()).sum::<usize>() >= self.most {
            // The new one competes with the rest before it is copied.
            let Some((victim, i)) = self.cheapest(slot.0, position) else { return };
            if victim == slot.0 && i == self.lines[victim].snapshots.len() {
                return;
            }
            self.lines[victim].snapshots.remove(i);
        }
        if let Some(snapshot) = model.save_state(slot.0) {
            debug_assert_eq!(snapshot.position(), position, "the engine and the model count alike");
            self.lines[slot.0].snapshots.push(snapshot);
        }
    }

    /// Slot and index of the snapshot to give up, one at `position` of slot `new` counted in.
    fn cheapest(&self, new: usize, position: usize) -> Option<(usize, usize)> {
        let mut all: Vec<(Rank, usize, usize)> = Vec::new();
        for (slot, line) in self.lines.iter().enumerate() {
            let mut positions: Vec<usize> = line.snapshots.iter().map(Snapshot::position).collect();
            positions.extend((slot == new).then_some(position));
            all.extend(ranks(&positions, line.prompt).into_iter().enumerate().map(|(i, rank)| (rank, slot, i)));
        }
        all.into_iter().min().map(|(_, slot, i)| (slot, i))
    }

    /// Brings a sequence back to `len` positions, or to the nearest place before it that can be restored; returns that place.
    /// 0 means starting afresh. `exactly` says whether rows that are on record may be taken back.
    pub fn return_to(&mut self, model: &mut dyn Model, slot: &Slot, len: usize, exactly: bool) -> usize {
        let snapshots = &mut self.lines[slot.0].snapshots;
        snapshots.retain(|s| s.position() <= len);
        if !self.recurrent || (exactly && model.take_back(slot.0, len)) {
            return len;
        }
        let Some(snapshot) = snapshots.last() else { return 0 };
        model.restore_state(slot.0, snapshot);
        snapshot.position()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(most: usize) -> States {
        States { recurrent: true, page_len: 64, free: vec![0], lines: vec![Line::default()], most }
    }

    #[test]
    fn the_snapshot_inside_the_prompt_is_dearest() {
        use Rank::{Anchor, Between, Newest};
        assert_eq!(ranks(&[64, 128, 512], 200), [Between(128), Anchor, Newest]);
        assert_eq!(ranks(&[64, 128, 512], 600), [Between(128), Between(448), Anchor]);
        assert_eq!(ranks(&[64, 128], 10), [Between(128), Newest]);
        assert_eq!(ranks(&[], 10), []);
        assert!(Between(usize::MAX) < Newest && Newest < Anchor && Between(64) < Between(128));
    }

    #[test]
    fn a_long_answer_leaves_the_place_of_the_next_turn() {
        // A prompt of 500, an answer of 4,000, room for so many.
        for room in [1, 2, 3, 8] {
            let mut kept: Vec<usize> = Vec::new();
            for position in (64..=4500).step_by(64) {
                kept.push(position);
                if kept.len() > room {
                    let cheapest = ranks(&kept, 500).into_iter().enumerate().min_by_key(|(_, rank)| *rank);
                    kept.remove(cheapest.expect("some").0);
                }
            }
            assert!(kept.contains(&448), "room for {room}: {kept:?}");
            assert!(room == 1 || kept.contains(&4480), "room for {room}: {kept:?}");
        }
    }

    #[test]
    fn chunks_end_on_page_boundaries() {
        let some = states(3);
        assert_eq!(some.cut(0, 512, false), 512);
        assert_eq!(some.cut(0, 500, false), 448);
        assert_eq!((some.cut(33, 66, false), some.cut(64, 97, false)), (64, 97));
        assert_eq!(some.cut(0, 500, true), 448);
        assert_eq!(some.cut(0, 512, true), 448, "the last token is still to come");
        assert_eq!(some.cut(448, 500, true), 500);
        assert_eq!(some.cut(0, 100, true), 100, "short prompts go in one step");
        assert_eq!(states(0).cut(0, 500, true), 500, "nothing to cut for");
    }

    #[test]
    fn slots_are_given_once() {
        let mut states = states(1);
        let slot = states.take(10).expect("a slot");
        assert_eq!(states.take(10), None);
        states.release(slot);
        assert_eq!(states.free(), 1);
    }
}
