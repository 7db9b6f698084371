//! What steps did, for those who measure: times, rounds, and the rows that decided them.

use mlxcel_model::drafters::HiddenRows;

use crate::digest::digest;
use crate::request::RequestId;

/// How much of each step is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recording {
    /// Nothing.
    #[default]
    Off,
    /// Times and rounds.
    Rounds,
    /// What the rows said, too: logits and hidden states are read and hashed, which takes time.
    Rows,
}

/// One step of the engine.
#[derive(Clone, Debug, Default)]
pub struct StepRecord {
    /// Seconds of choosing widths and proposing.
    pub draft: f64,
    /// Seconds of the target's forward pass.
    pub forward: f64,
    /// Seconds of the whole step.
    pub total: f64,
    /// Rows of the forward pass.
    pub rows: usize,
    /// Whether every sequence that ran was decoding: no prompt row was among the rows.
    pub only_decodes: bool,
    /// Sequences that decided tokens from rows after their prompt: one round each, of one row where nothing was drafted.
    pub rounds: Vec<RoundRecord>,
}

/// What one sequence's block came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundRecord {
    /// The request.
    pub id: RequestId,
    /// Position of the block's first row.
    pub position: usize,
    /// Tokens drafted.
    pub proposed: Vec<u32>,
    /// Of those, the ones that the target chose as well, from the first on.
    pub accepted: usize,
    /// Tokens emitted, the target's own included.
    pub emitted: usize,
    /// Whether the answer ended here, so that drafts after its end were not judged.
    pub ended: bool,
    /// The rows up to the last that counted; empty unless rows are recorded.
    pub rows: Vec<RowRecord>,
    /// For each draft the drafter's largest logit less its second, as far as it told; empty unless rows are recorded.
    pub draft_margins: Vec<f32>,
}

/// What the target said at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowRecord {
    /// The token that was chosen.
    pub token: u32,
    /// The token of the largest logit, the lowest among equals.
    pub argmax: u32,
    /// The largest logit less the second.
    pub margin: f32,
    /// Hash of the row of logits, by its bits.
    pub logits: u64,
    /// Hash of the hidden state (after the final norm) that a drafter reads, where one does.
    pub hidden: Option<u64>,
}

impl RowRecord {
    /// Of a row of logits from which `token` was chosen.
    pub(crate) fn new(logits: &[f32], token: u32, hidden: Option<&[f32]>) -> Self {
        let (mut argmax, mut best, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
        for (id, value) in (0..).zip(logits) {
            if *value > best {
                (argmax, second, best) = (id, best, *value);
            } else if *value > second {
                second = *value;
            }
        }
        RowRecord { token, argmax, margin: best - second, logits: digest(logits), hidden: hidden.map(digest) }
    }
}

/// Hidden rows of the last forward pass as a drafter reads them.
pub(crate) struct HiddenView {
    values: Vec<f32>,
    which: HiddenRows,
    width: usize,
}

impl HiddenView {
    /// Of a pass with `all` rows, of which `wanted` had logits; `None` when no rows were kept.
    pub(crate) fn new(values: Vec<f32>, which: HiddenRows, wanted: usize, all: usize) -> Option<Self> {
        let rows = match which {
            HiddenRows::None => return None,
            HiddenRows::Wanted => wanted,
            HiddenRows::All => all,
        };
        let width = values.len() / rows.max(1);
        (width > 0).then_some(HiddenView { values, which, width })
    }

    /// The row that is number `wanted` among the wanted ones, and number `all` among all.
    pub(crate) fn row(&self, wanted: usize, all: usize) -> Option<&[f32]> {
        let row = if self.which == HiddenRows::Wanted { wanted } else { all };
        self.values.get(row * self.width..(row + 1) * self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_decided() {
        let row = RowRecord::new(&[0.5, 2.0, 1.25, 2.0], 3, Some(&[1.0]));
        assert_eq!((row.token, row.argmax, row.margin), (3, 1, 0.0));
        let row = RowRecord::new(&[3.0, 1.0, 2.5], 0, None);
        assert_eq!((row.argmax, row.margin, row.hidden), (0, 0.5, None));
        // One token is all there is: nothing comes second.
        assert_eq!(RowRecord::new(&[3.0], 0, None).margin, f32::INFINITY);
    }

    #[test]
    fn views_find_rows_by_what_was_kept() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let view = HiddenView::new(values.to_vec(), HiddenRows::Wanted, 2, 9).expect("rows");
        assert_eq!((view.row(0, 7), view.row(1, 8), view.row(2, 0)), (Some(&values[..2]), Some(&values[2..]), None));
        let view = HiddenView::new(values.to_vec(), HiddenRows::All, 1, 4).expect("rows");
        assert_eq!((view.row(0, 3), view.row(0, 4)), (Some(&values[3..]), None));
        assert!(HiddenView::new(values.to_vec(), HiddenRows::None, 1, 1).is_none());
        assert!(HiddenView::new(Vec::new(), HiddenRows::All, 0, 0).is_none());
    }
}
