//! Model families over a [`Backend`], and the registry that finds the right one.
//!
//! The engine sees [`Model`]: a batch goes in, the wanted rows' logits come out. Which device computed them is decided
//! once, when the registry builds the model.
#![forbid(unsafe_code)]

pub mod drafters;
mod error;
pub mod gemma4;
mod layers;
pub mod llama;
mod loaded;
mod logits;
pub mod qwen3_5;
pub mod registry;
pub mod summary;
pub mod tap;

pub use error::ModelError;
pub use loaded::LoadedModel;
pub use logits::Logits;
pub use summary::ModelInfo;

use std::sync::{Arc, Mutex};

use mlxcel_compute::{Backend, Batch, KvGroup, StateLayout};

use drafters::HiddenRows;
use tap::Tap;

/// What a network remembers of its sequences.
pub struct Memory<B: Backend> {
    /// KV pages of the attention layers.
    pub kv: B::Kv,
    /// Slots of the recurrent layers.
    pub state: B::State,
    /// What drafters read of the last forward pass.
    pub hidden: Hidden<B>,
}

/// Memory that a model shares with the drafter that reads it; `None` before [`Model::reserve`].
pub type Shared<B> = Arc<Mutex<Option<Memory<B>>>>;

/// Hidden states of the last forward pass, after the final norm.
pub struct Hidden<B: Backend> {
    /// Which rows are kept.
    pub keep: HiddenRows,
    /// They, `[rows, hidden]`; `None` when there are none.
    pub rows: Option<B::Buffer>,
}

/// A copy of one sequence's recurrent state.
pub struct Snapshot {
    position: usize,
    inner: Box<dyn std::any::Any + Send>,
}

impl Snapshot {
    /// A snapshot of a backend's own making.
    pub fn new(position: usize, inner: impl std::any::Any + Send) -> Self {
        Snapshot { position, inner: Box::new(inner) }
    }

    /// Rows the state has seen.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The backend's own copy, when it is of that type.
    pub fn inner<T: 'static>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }
}

/// A network over a backend: weights and the forward pass, without cache memory.
pub trait Network<B: Backend>: Send + Sync + 'static {
    /// What it is.
    fn info(&self) -> &ModelInfo;

    /// Which layers cache, in which groups.
    fn kv_layout(&self) -> &[KvGroup];

    /// Which layers are recurrent.
    fn state_layout(&self) -> &StateLayout;

    /// One step over a batch: appends K/V of every row and moves the states of every span on, returns logits `[wanted rows,
    /// vocab]`, and leaves the hidden rows that `memory.hidden.keep` names. The tap, when there is one, sees every intermediate.
    fn forward(&self, backend: &B, memory: &mut Memory<B>, batch: &Batch, tap: &mut Option<&mut dyn Tap>) -> B::Buffer;
}

/// Rows of a span that can be taken back from recurrent layers: the widest block that is verified, whole.
pub const TAKE_BACK: usize = 16;

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

    /// Rows of a step that use the backend well ([`Backend::step_rows`]).
    fn step_rows(&self) -> usize {
        512
    }

    /// Bytes of one page of a group.
    fn kv_page_bytes(&self, group: usize) -> usize;

    /// Whether layers carry recurrent state, so that sequences need slots (`Span::sequence`) and positions cannot be taken
    /// back at will.
    fn is_recurrent(&self) -> bool;

    /// Bytes of one slot of recurrent state, and of one [`Snapshot`].
    fn state_bytes(&self) -> (usize, usize);

    /// Reserves (or replaces) the memory: `pages[g]` KV pages for each group, `slots` slots of recurrent state. Contents are
    /// lost.
    ///
    /// # Errors
    /// When the memory cannot be had; [`ModelError::Device`].
    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError>;

    /// Which hidden states forward passes leave for a drafter from now on; none at first.
    fn keep_hidden(&mut self, rows: HiddenRows);

    /// The hidden rows that the last forward pass left, `[rows, hidden]` row-major ([`Model::keep_hidden`] says which rows);
    /// `None` when it left none, or the model does not tell. For records of what a drafter was shown.
    fn hidden(&self) -> Option<Vec<f32>> {
        None
    }

    /// Takes a sequence's recurrent state back to `len` positions, exactly; true at once without recurrent layers. False,
    /// changing nothing, when that is more than the last span brought (or than [`TAKE_BACK`]).
    fn take_back(&mut self, slot: usize, len: usize) -> bool;

    /// Copies a slot's recurrent state; `None` when there is none to copy.
    fn save_state(&self, slot: usize) -> Option<Snapshot>;

    /// Puts a copy into a slot.
    ///
    /// # Panics
    /// When the copy is of a model of other shapes; one of the same shapes cannot be told apart.
    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot);

    /// A copy in numbers, for tests and probes: each layer's window and matrices ([`Backend::state_read`]).
    fn read_state(&self, snapshot: &Snapshot) -> Vec<f32>;

    /// Runs one batch and returns the logits of its wanted rows, all of them finite.
    ///
    /// # Errors
    /// [`ModelError::Device`] when the device failed, from then on always. [`ModelError::NonFinite`] when a logit is NaN or infinite,
    /// naming the first layer that produced one. Recurrent states
    /// of the batch are then lost where they cannot be taken back to the start of their span ([`Model::save_state`] gives none),
    /// and so are the K/V of those spans.
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError>;

    /// [`Model::forward`] with every intermediate shown to `tap`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Logits, ModelError>;
}
