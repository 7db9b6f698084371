//! Model families over a [`Backend`], and the registry that finds the right one.
//!
//! The engine sees [`Model`]: a batch goes in, the wanted rows' logits come out. Which device computed them is decided
//! once, when the registry builds the model.
#![forbid(unsafe_code)]

mod error;
pub mod gemma4;
mod layers;
mod loaded;
pub mod registry;
pub mod summary;
pub mod tap;

pub use error::ModelError;
pub use loaded::LoadedModel;
pub use summary::ModelInfo;

use mlxcel_compute::{Backend, Batch, KvGroup};

use tap::Tap;

/// A network over a backend: weights and the forward pass, without cache memory.
pub trait Network<B: Backend>: Send {
    /// What it is.
    fn info(&self) -> &ModelInfo;

    /// Which layers cache, in which groups.
    fn kv_layout(&self) -> &[KvGroup];

    /// One step over a batch: appends K/V of every row, returns logits `[wanted rows, vocab]`. The tap, when there is
    /// one, sees every intermediate.
    fn forward(&self, backend: &B, kv: &mut B::Kv, batch: &Batch, tap: &mut Option<&mut dyn Tap>) -> B::Buffer;
}

/// A model ready to run, whatever its family and backend.
pub trait Model: Send {
    /// What it is.
    fn info(&self) -> &ModelInfo;

    /// Backend, precision, instruction set, threads.
    fn backend(&self) -> String;

    /// KV groups, in the order of a batch's page tables.
    fn kv_layout(&self) -> &[KvGroup];

    /// Positions of a page.
    fn page_len(&self) -> usize;

    /// Bytes of one page of a group.
    fn kv_page_bytes(&self, group: usize) -> usize;

    /// Reserves (or replaces) the KV pages: `pages[g]` for each group. Cached contents are lost.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn reserve(&mut self, pages: &[usize]) -> Result<(), ModelError>;

    /// Runs one batch and returns the logits of its wanted rows, `[wanted, vocab]` row-major.
    ///
    /// # Errors
    /// [`ModelError::NonFinite`] when a logit is NaN or infinite, naming the first layer that produced one.
    fn forward(&mut self, batch: &Batch) -> Result<Vec<f32>, ModelError>;

    /// [`Model::forward`] with every intermediate shown to `tap`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Vec<f32>, ModelError>;
}
