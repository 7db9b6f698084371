//! The end of a decoder: the wanted rows, the final norm, the output matrix.

use mlxcel_compute::{Backend, Batch};

use super::Loader;
use crate::ModelError;
use crate::tap::{Tap, show};

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

    /// Logits `[wanted rows, vocab]` of the residual stream `x` `[rows, hidden]`; `embedding` serves a tied model.
    pub fn forward(
        &self,
        backend: &B,
        batch: &Batch,
        x: B::Buffer,
        embedding: &B::Weight,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let wanted = batch.wanted();
        let mut logits = backend.buffer(wanted.len(), self.vocab);
        if wanted.is_empty() {
            return logits;
        }
        let mut last = x;
        if wanted.len() < batch.rows() {
            let mut narrow = backend.buffer(wanted.len(), self.hidden);
            backend.gather(&last, wanted, &mut narrow);
            last = narrow;
        }
        let mut normed = backend.buffer(wanted.len(), self.hidden);
        backend.rms_norm(&last, self.hidden, Some(&self.norm), self.eps, &mut normed);
        show(tap, backend, None, "norm", &normed);
        backend.linear(&normed, &[self.lm_head.as_ref().unwrap_or(embedding)], &mut [&mut logits]);
        show(tap, backend, None, "logits", &logits);
        logits
    }
}
