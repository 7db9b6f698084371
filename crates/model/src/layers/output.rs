//! The end of a decoder: the wanted rows, the final norm, the output matrix.

use mlxcel_compute::{Backend, Batch};

use super::Loader;
use crate::drafters::HiddenRows;
use crate::tap::{Tap, show};
use crate::{Hidden, ModelError};

/// Final norm and output matrix.
pub struct Output<B: Backend> {
    norm: B::Vector,            // [hidden]
    lm_head: Option<B::Weight>, // [vocab, hidden], when not tied
    hidden: usize,
    vocab: usize,
    eps: f32,
}

impl<B: Backend> Output<B> {
    /// Reads `norm.weight`, and `lm_head` unless it is tied to the embedding.
    pub fn load(load: &Loader<'_, B>, vocab: usize, hidden: usize, eps: f32, tied: bool) -> Result<Self, ModelError> {
        let lm_head = if tied { None } else { Some(load.lm_head(vocab, hidden)?) };
        Ok(Output { norm: load.norm("norm.weight", hidden)?, lm_head, hidden, vocab, eps })
    }

    /// The output matrix.
    pub fn head<'a>(&'a self, embedding: &'a B::Weight) -> &'a B::Weight {
        self.lm_head.as_ref().unwrap_or(embedding)
    }

    /// Logits `[wanted rows, vocab]` of the residual stream `x` `[rows, hidden]`; `embedding` serves a tied model. Normed rows
    /// that a drafter wants stay in `hidden`.
    pub fn forward(
        &self,
        backend: &B,
        batch: &Batch,
        mut x: B::Buffer,
        embedding: &B::Weight,
        hidden: &mut Hidden<B>,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let wanted = batch.wanted();
        hidden.rows = None;
        let norm = |x: &B::Buffer, rows: usize| {
            let mut normed = backend.buffer(rows, self.hidden);
            backend.rms_norm(x, self.hidden, Some(&self.norm), self.eps, &mut normed);
            normed
        };
        let narrow = |x: &B::Buffer| {
            let mut narrow = backend.buffer(wanted.len(), self.hidden);
            backend.gather(x, wanted, &mut narrow);
            narrow
        };
        // The norm is a matter of each row, so it may come before or after the choice of rows.
        let mut all = None;
        let normed = match hidden.keep {
            HiddenRows::All => {
                let every = all.insert(norm(&x, batch.rows()));
                if wanted.len() < batch.rows() { Some(narrow(every)) } else { None }
            }
            HiddenRows::None | HiddenRows::Wanted => {
                if wanted.len() < batch.rows() {
                    x = narrow(&x);
                }
                Some(norm(&x, wanted.len()))
            }
        };
        let rows = normed.as_ref().or(all.as_ref()).expect("one of them was made");
        let mut logits = backend.buffer(wanted.len(), self.vocab);
        if !wanted.is_empty() {
            show(tap, backend, None, "norm", rows);
            backend.linear(rows, &[self.head(embedding)], &mut [&mut logits]);
            show(tap, backend, None, "logits", &logits);
        }
        hidden.rows = match hidden.keep {
            HiddenRows::None => None,
            HiddenRows::Wanted => normed,
            HiddenRows::All => all,
        };
        logits
    }
}
