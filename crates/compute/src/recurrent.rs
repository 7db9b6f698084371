//! Recurrent state: shapes, and which memory holds which position of which sequence (the state law, DESIGN §1).
//!
//! A sequence's state lives in a slot. A slot has two places for it and takes turns: a span is read from one place and
//! written to the other, so that the state before the span is still there when some of its rows are taken back. What the
//! kept rows brought is on record, and running them again from the state before gives the state that never having seen the
//! others would have left, by the same instructions. Long spans do so for their last rows only ([`Slots::record`]).
//!
//! [`Slots`] is the bookkeeping, the same for every backend; the memory is each backend's own.

use crate::{Batch, ComputeError};

/// Sizes of one gated delta-net layer (qwen3_5.md §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v and of the state; value head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Values of a q or k head.
    pub key_dim: usize,
    /// Values of a v head.
    pub value_dim: usize,
    /// Taps of the causal convolution, the current row's included.
    pub taps: usize,
}

impl DeltaShape {
    /// Values of all q heads, or all k heads.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of all v heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q, k, v.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Values of the state matrix, all heads.
    pub fn state_values(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Values of the convolution's window: the rows before the next one.
    pub fn window_values(&self) -> usize {
        (self.taps - 1) * self.channels()
    }
}

/// The recurrent layers of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Each layer, in order.
    pub layers: Vec<DeltaShape>,
}

impl StateLayout {
    /// True for a model without recurrent layers: taking back costs nothing and slots hold nothing.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Values of one state: windows and matrices of all layers.
    pub fn values(&self) -> usize {
        self.layers.iter().map(|l| l.window_values() + l.state_values()).sum()
    }

    /// The error of memory that cannot be had.
    pub fn refused(&self, needed: usize) -> ComputeError {
        ComputeError::StateMemory { needed }
    }
}

/// A run of rows between two places of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row of the batch.
    pub first_row: usize,
    /// Number of rows.
    pub len: usize,
    /// Place the state is read from; `None` = the zeros a sequence begins with.
    pub read: Option<usize>,
    /// Place it is written to, never the one it is read from.
    pub write: usize,
    /// Whether the rows go on record, as rows `0..len` of it.
    pub record: bool,
}

/// What one span of a batch does to its slot: one segment, or two for a span longer than the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The slot.
    pub slot: usize,
    /// In order.
    pub segments: Vec<Segment>,
}

/// How to take rows back: run rows `0..len` of the record from one place to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Rows of the record to run again.
    pub len: usize,
    /// Place of the state before the span; `None` = zeros.
    pub read: Option<usize>,
    /// Place to write.
    pub write: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Place of the newest state.
    now: usize,
    /// Position it stands at: rows seen. `None` = not a state (never used, or spoilt).
    position: Option<usize>,
    /// Position of the other place's state, when it is the one before the recorded rows.
    before: Option<usize>,
}

/// Bookkeeping of all slots.
#[derive(Clone, Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    record: usize,
}

impl Slots {
    /// `slots` slots whose spans keep up to `record` last rows for taking back.
    pub fn new(slots: usize, record: usize) -> Self {
        Slots { slots: vec![Slot::default(); slots], record: record.max(1) }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Most rows of a span that can be taken back.
    pub fn record(&self) -> usize {
        self.record
    }

    /// Rows a slot's state has seen; `None` when it holds none.
    pub fn position(&self, slot: usize) -> Option<usize> {
        self.slots[slot].position
    }

    /// Place of a slot's newest state.
    pub fn now(&self, slot: usize) -> usize {
        self.slots[slot].now
    }

    /// Plans a batch: each span starts where its slot stands, or at 0, and afterwards the slot stands at its end.
    ///
    /// # Panics
    /// When a span does not start where its slot's state stands, or a slot has two spans: the caller lost count, and any answer
    /// would be wrong.
    pub fn begin(&mut self, batch: &Batch) -> Vec<Pass> {
        let mut passes: Vec<Pass> = Vec::with_capacity(batch.spans().len());
        let mut seen = std::collections::HashSet::new();
        for span in batch.spans().iter().filter(|s| s.len > 0) {
            // Kernels run the spans of a batch beside each other: two on one slot would race.
            assert!(seen.insert(span.sequence), "slot {} has two spans", span.sequence);
            let slot = &mut self.slots[span.sequence];
            assert!(
                span.start == 0 || slot.position == Some(span.start),
                "slot {} stands at {:?}, its span starts at {}",
                span.sequence,
                slot.position,
                span.start
            );
            let read = (span.start > 0).then_some(slot.now);
            let (old, new) = (slot.now, 1 - slot.now);
            let lead = span.len.saturating_sub(self.record);
            let mut segments = Vec::with_capacity(2);
            if lead > 0 {
                segments.push(Segment { first_row: span.first_row, len: lead, read, write: new, record: false });
                let rest = span.first_row + lead;
                let len = span.len - lead;
                segments.push(Segment { first_row: rest, len, read: Some(new), write: old, record: true });
                slot.now = old;
            } else {
                segments.push(Segment { first_row: span.first_row, len: span.len, read, write: new, record: true });
                slot.now = new;
            }
            slot.before = Some(span.start + lead);
            slot.position = Some(span.start + span.len);
            passes.push(Pass { slot: span.sequence, segments });
        }
        passes
    }

    /// Takes a slot back to `len` rows seen. `None` when it cannot: the rows are not on record. Otherwise the slot stands
    /// there, once the replay (if there is one) has run.
    pub fn take_back(&mut self, slot: usize, len: usize) -> Option<Option<Replay>> {
        let slot = &mut self.slots[slot];
        let position = slot.position?;
        if len == position {
            return Some(None);
        }
        if len == 0 {
            // Nothing is read from a slot at 0.
            (slot.position, slot.before) = (Some(0), None);
            return Some(None);
        }
        let before = slot.before.filter(|before| (*before..position).contains(&len))?;
        slot.position = Some(len);
        if len == before {
            slot.now = 1 - slot.now;
            slot.before = None;
            return Some(None);
        }
        let read = (before > 0).then_some(1 - slot.now);
        Some(Some(Replay { len: len - before, read, write: slot.now }))
    }

    /// Notes that a slot's newest place now holds a state at `position` (`None`: none), with nothing to take back.
    pub fn declare(&mut self, slot: usize, position: Option<usize>) {
        let slot = &mut self.slots[slot];
        (slot.position, slot.before) = (position, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wanted;

    fn batch(spans: &[(usize, usize, usize)]) -> Batch {
        let mut batch = Batch::new();
        for (slot, start, len) in spans {
            batch.push(*slot, *start, &vec![0; *len], &[], Wanted::None);
        }
        batch
    }

    #[test]
    fn places_take_turns_and_rows_come_back() {
        let mut slots = Slots::new(2, 4);
        let first = slots.begin(&batch(&[(1, 0, 3)]));
        assert_eq!(first[0].segments, [Segment { first_row: 0, len: 3, read: None, write: 1, record: true }]);
        assert_eq!((slots.position(1), slots.now(1)), (Some(3), 1));
        // From zeros, so the replay reads none.
        assert_eq!(slots.take_back(1, 2), Some(Some(Replay { len: 2, read: None, write: 1 })));
        let next = slots.begin(&batch(&[(1, 2, 2)]));
        assert_eq!(next[0].segments, [Segment { first_row: 0, len: 2, read: Some(1), write: 0, record: true }]);
        assert_eq!(slots.take_back(1, 3), Some(Some(Replay { len: 1, read: Some(1), write: 0 })));
        assert_eq!(slots.take_back(1, 2), Some(None), "the state before the span is whole");
        assert_eq!((slots.position(1), slots.now(1)), (Some(2), 1));
        assert_eq!(slots.take_back(1, 1), None, "only the last span is on record");
        assert_eq!(slots.position(1), Some(2), "a refusal changes nothing");
        assert_eq!(slots.take_back(1, 0), Some(None));
        assert_eq!(slots.take_back(0, 0), None, "an unused slot holds nothing");
    }

    #[test]
    fn long_spans_keep_their_last_rows() {
        let mut slots = Slots::new(1, 4);
        let pass = slots.begin(&batch(&[(0, 0, 10)])).remove(0);
        assert_eq!(
            pass.segments,
            [
                Segment { first_row: 0, len: 6, read: None, write: 1, record: false },
                Segment { first_row: 6, len: 4, read: Some(1), write: 0, record: true },
            ]
        );
        assert_eq!(slots.take_back(0, 5), None);
        assert_eq!(slots.take_back(0, 8), Some(Some(Replay { len: 2, read: Some(1), write: 0 })));
        assert_eq!(slots.take_back(0, 6), Some(None));
        assert_eq!((slots.now(0), slots.position(0)), (1, Some(6)));
    }

    #[test]
    #[should_panic(expected = "slot 1 has two spans")]
    fn two_spans_of_a_slot_are_a_bug() {
        Slots::new(2, 4).begin(&batch(&[(1, 0, 3), (0, 0, 1), (1, 3, 2)]));
    }

    #[test]
    #[should_panic(expected = "stands at Some(3)")]
    fn a_span_that_starts_elsewhere_is_a_bug() {
        let mut slots = Slots::new(1, 4);
        slots.begin(&batch(&[(0, 0, 3)]));
        slots.begin(&batch(&[(0, 2, 1)]));
    }
}
