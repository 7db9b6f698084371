//! Slots: the number of a sequence in a batch, the place of its recurrent state, and of what a drafter knows of it. A slot keeps
//! what its last sequence left until another takes it, so that a conversation finds its own slot again.

use mlxcel_model::Model;

/// One sequence's slot, which is its number in a batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot(usize);

impl Slot {
    /// The number.
    pub fn number(&self) -> usize {
        self.0
    }
}

/// What a sequence left in its slot.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// The tokens that its state has seen, and a drafter may know of.
    pub tokens: Vec<u32>,
    /// Whether any token of the answer was among them.
    pub decoded: bool,
}

/// A free slot, as far as it agrees with a new sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Its number.
    pub number: usize,
    /// Tokens that its last sequence shares with the new one.
    pub same: usize,
    /// Whether its state can be had at exactly so many, or one fewer.
    pub exact: bool,
}

/// The slots, and where steps should end for snapshots of them.
pub struct States {
    page_len: usize,
    /// Whether snapshots are taken.
    snapshots: bool,
    left: Vec<Left>,
    /// The one that was left first comes first.
    free: Vec<usize>,
}

impl States {
    /// `slots` slots of a model, of which snapshots are taken or not.
    pub fn new(model: &dyn Model, slots: usize, snapshots: bool) -> Self {
        let left = vec![Left::default(); slots];
        States { page_len: model.page_len(), snapshots, left, free: (0..slots).collect() }
    }

    /// The free slots and what they share with `tokens`: those whose sequence goes on, the longest first, then those that were left
    /// longest ago. A few shared tokens are no reason to take another conversation's slot.
    pub fn candidates(&self, tokens: &[u32]) -> Vec<Free> {
        let mut all: Vec<Free> = self.free.iter().map(|slot| self.compare(*slot, tokens)).collect();
        let goes_on = |free: &Free| free.same * 2 > self.left[free.number].tokens.len();
        all.sort_by_key(|free| std::cmp::Reverse(if goes_on(free) { free.same } else { 0 }));
        all
    }

    fn compare(&self, number: usize, tokens: &[u32]) -> Free {
        let left = &self.left[number];
        let same = left.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // Plain decoding has one row on record, a block more: what is found of a conversation must not depend on that.
        Free { number, same, exact: same > 0 && (!left.decoded || same + 1 >= left.tokens.len()) }
    }

    /// Takes a free slot; `None` when it is not free.
    pub fn take(&mut self, number: usize) -> Option<Slot> {
        let at = self.free.iter().position(|n| *n == number)?;
        self.free.remove(at);
        self.left[number] = Left::default();
        Some(Slot(number))
    }

    /// Gives a slot back with what it holds.
    pub fn release(&mut self, slot: Slot, left: Left) {
        self.left[slot.0] = left;
        self.free.push(slot.0);
    }

    /// Free slots.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Where a span of prompt rows `start..end` should end so that a snapshot falls on a page boundary: a chunk that more
    /// follow on its last boundary, the last chunk of a long prompt on the last boundary before its end; and any on `branch`,
    /// where other sequences parted from this one's beginning.
    pub fn cut(&self, start: usize, end: usize, last: bool, branch: usize) -> usize {
        if self.snapshots && start < branch && branch < end {
            return branch;
        }
        let inside = if last { end - 1 } else { end };
        let boundary = inside / self.page_len * self.page_len;
        // The last chunk goes in two steps only where the second is a small part.
        let worth = if last { end - start >= 2 * self.page_len } else { boundary > start };
        if self.snapshots && worth { boundary } else { end }
    }

    /// Most rows of a block that starts at `start`: it must not run past a page boundary where plain decoding takes a snapshot, or
    /// later turns would find less of the conversation.
    pub fn block(&self, start: usize) -> usize {
        if self.snapshots { self.page_len - start % self.page_len } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(snapshots: bool) -> States {
        States { page_len: 64, snapshots, left: vec![Left::default(); 3], free: vec![0, 1, 2] }
    }

    #[test]
    fn chunks_end_on_page_boundaries() {
        let some = states(true);
        assert_eq!(some.cut(0, 512, false, 0), 512);
        assert_eq!(some.cut(0, 500, false, 0), 448);
        assert_eq!((some.cut(33, 66, false, 0), some.cut(64, 97, false, 0)), (64, 97));
        assert_eq!(some.cut(0, 500, true, 0), 448);
        assert_eq!(some.cut(0, 512, true, 0), 448, "the last token is still to come");
        assert_eq!(some.cut(448, 500, true, 0), 500);
        assert_eq!(some.cut(0, 100, true, 0), 100, "short prompts go in one step");
        assert_eq!((some.cut(0, 500, true, 128), some.cut(128, 500, true, 128)), (128, 448));
        assert_eq!(states(false).cut(0, 500, true, 128), 500, "nothing to cut for");
    }

    #[test]
    fn slots_are_given_once_and_remember() {
        let mut states = states(true);
        let slot = states.take(1).expect("a slot");
        assert_eq!(states.take(1), None);
        assert_eq!(states.free(), 2);
        states.release(slot, Left { tokens: vec![5, 6, 7, 8], decoded: true });
        assert_eq!(states.free(), 3);
        let best = |tokens: &[u32]| states.candidates(tokens)[0];
        assert_eq!(best(&[5, 6, 7, 8, 9]), Free { number: 1, same: 4, exact: true });
        assert_eq!(best(&[5, 6, 7, 9]), Free { number: 1, same: 3, exact: true });
        let others = |tokens: &[u32]| states.candidates(tokens).iter().map(|f| (f.number, f.same)).collect::<Vec<_>>();
        assert_eq!(others(&[5, 6, 9]), [(0, 0), (2, 0), (1, 2)], "half of it is another conversation");
        assert_eq!(best(&[9]), Free { number: 0, same: 0, exact: false }, "else the one that was left first");
        let slot = states.take(1).expect("a slot");
        states.release(slot, Left { tokens: vec![5, 6, 7, 8], decoded: false });
        assert!(
            states.candidates(&[5, 6, 7, 9])[0].exact,
            "nothing was decoded: it is all one span, or the model says no"
        );
        states.take(1);
        assert_eq!(states.candidates(&[5, 6]).len(), 2);
    }
}
