//! What is kept of the last finished answer, for a conversation that goes on.

use crate::cache::pages::PageTable;
use crate::cache::states::Slot;
use crate::sequence::Sequence;

use super::Engine;

/// The last finished sequence's tokens, pages and state.
pub(super) struct Parked {
    pub(super) tokens: Vec<u32>,
    pub(super) pages: PageTable,
    pub(super) state: Slot,
    /// Whether any token of the answer was computed.
    pub(super) decoded: bool,
}

impl Engine {
    /// Lets a new sequence go on where a finished one agrees with its prompt, as far as pages and state can be taken back.
    pub(super) fn resume(&mut self, sequence: &mut Sequence, mut parked: Parked) {
        let same = parked.tokens.iter().zip(sequence.history.tokens()).take_while(|(a, b)| a == b).count();
        // The last prompt token is always computed: its logits choose the first token.
        let reuse = same.min(sequence.history.len() - 1);
        // Plain decoding has one row on record, a block more: what is found of a conversation must not depend on that.
        let exactly = !parked.decoded || reuse + 1 >= parked.tokens.len();
        let reuse = if reuse > 0 { self.states.return_to(&mut *self.model, &parked.state, reuse, exactly) } else { 0 };
        if reuse > 0 && self.pool.truncate(&mut parked.pages, reuse) {
            self.states.hand_on(&parked.state, sequence.history.prompt().len());
            (sequence.pages, sequence.state) = (parked.pages, Some(parked.state));
            (sequence.computed, sequence.cached) = (reuse, reuse);
        } else {
            self.pool.release(parked.pages);
            self.states.release(parked.state);
        }
    }

    /// Keeps or frees the pages and the state of a sequence that ended.
    pub(super) fn park(&mut self, mut sequence: Sequence) {
        let Some(state) = sequence.state else { return self.pool.release(sequence.pages) };
        if !self.options.reuse || sequence.computed == 0 {
            self.states.release(state);
            return self.pool.release(sequence.pages);
        }
        self.forget();
        let tokens = sequence.history.tokens()[..sequence.computed].to_vec();
        let decoded = sequence.computed > sequence.history.prompt().len();
        if decoded {
            // A block began earlier than plain decoding's last row, and kept more of a window for that.
            self.pool.trim(&mut sequence.pages, sequence.computed);
        }
        self.parked = Some(Parked { tokens, pages: sequence.pages, state, decoded });
    }

    /// Frees the parked answer.
    pub(super) fn forget(&mut self) {
        if let Some(parked) = self.parked.take() {
            self.pool.release(parked.pages);
            self.states.release(parked.state);
        }
    }
}
