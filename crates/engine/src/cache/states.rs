//! Recurrent states of sequences: each has a slot, and snapshots at page boundaries to return to.
//!
//! K/V of any position can be returned to by forgetting what came later; a recurrent state cannot. Exactly taking back the
//! last rows is the model's doing ([`Model::take_back`]); going back further means the newest snapshot before the place, and
//! computing from there. Snapshots are taken under a budget in bytes; when a sequence's share is full, the one goes whose loss
//! leaves the smallest gap.

use mlxcel_model::{Model, Snapshot};

/// Slots and the budget of snapshots.
#[derive(Debug)]
pub struct States {
    recurrent: bool,
    page_len: usize,
    free: Vec<usize>,
    /// Snapshots a sequence may keep.
    share: usize,
}

/// One sequence's slot and snapshots.
pub struct StateLine {
    slot: usize,
    snapshots: Vec<Snapshot>, // by position, ascending
}

impl StateLine {
    /// The slot, which is the sequence's number in a batch.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Positions that can be returned to.
    #[cfg(test)]
    fn positions(&self) -> Vec<usize> {
        self.snapshots.iter().map(Snapshot::position).collect()
    }
}

impl States {
    /// `slots` slots of a model, and snapshots of all of them in `budget` bytes.
    pub fn new(model: &dyn Model, slots: usize, budget: usize) -> Self {
        let recurrent = model.is_recurrent();
        let share = if recurrent { budget / model.state_bytes().1.max(1) / slots.max(1) } else { 0 };
        States { recurrent, page_len: model.page_len(), free: (0..slots).rev().collect(), share }
    }

    /// A slot for a sequence that starts at position 0; `None` when all are taken.
    pub fn line(&mut self) -> Option<StateLine> {
        Some(StateLine { slot: self.free.pop()?, snapshots: Vec::new() })
    }

    /// Gives a slot back.
    pub fn release(&mut self, line: StateLine) {
        self.free.push(line.slot);
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
        if self.share > 0 && worth { boundary } else { end }
    }

    /// Notes that a sequence's state now stands at `position`: takes a snapshot on a page boundary.
    pub fn advance(&mut self, model: &dyn Model, line: &mut StateLine, position: usize) {
        let known = line.snapshots.last().is_some_and(|s| s.position() >= position);
        if self.share == 0 || !position.is_multiple_of(self.page_len) || known {
            return;
        }
        if let Some(snapshot) = model.save_state(line.slot) {
            debug_assert_eq!(snapshot.position(), position, "the engine and the model count alike");
            line.snapshots.push(snapshot);
            if line.snapshots.len() > self.share {
                let positions: Vec<usize> = line.snapshots.iter().map(Snapshot::position).collect();
                line.snapshots.remove(least(&positions));
            }
        }
    }

    /// Brings a sequence back to `len` positions, or to the nearest place before it that can be restored; returns that place.
    /// 0 means starting afresh.
    pub fn return_to(&mut self, model: &mut dyn Model, line: &mut StateLine, len: usize) -> usize {
        if !self.recurrent || model.take_back(line.slot, len) {
            line.snapshots.retain(|s| s.position() <= len);
            return len;
        }
        line.snapshots.retain(|s| s.position() <= len);
        let Some(snapshot) = line.snapshots.last() else { return 0 };
        model.restore_state(line.slot, snapshot);
        snapshot.position()
    }
}

/// Index of the snapshot whose loss costs least: the smallest gap between its neighbours. The newest stays.
fn least(positions: &[usize]) -> usize {
    let gap = |i: usize| positions[i + 1] - if i == 0 { 0 } else { positions[i - 1] };
    (0..positions.len().saturating_sub(1)).min_by_key(|i| gap(*i)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(share: usize) -> States {
        States { recurrent: true, page_len: 64, free: vec![0], share }
    }

    #[test]
    fn the_snapshot_between_the_closest_goes() {
        assert_eq!(least(&[64, 128, 512]), 0);
        assert_eq!(least(&[256, 320, 384, 1024]), 1);
        assert_eq!(least(&[64]), 0);
        // What stays is spread out, and the newest is always among it.
        let mut kept: Vec<usize> = Vec::new();
        for i in 1..=100 {
            kept.push(64 * i);
            if kept.len() > 4 {
                kept.remove(least(&kept));
            }
        }
        assert_eq!(*kept.last().expect("some"), 6400);
        assert!(kept[0] <= 3200, "{kept:?}");
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
        let line = states.line().expect("a slot");
        assert!(states.line().is_none());
        assert!(line.positions().is_empty());
        states.release(line);
        assert_eq!(states.free(), 1);
    }
}
