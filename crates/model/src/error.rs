//! What can go wrong when a model is loaded or run.

use mlxcel_checkpoint::CheckpointError;
use mlxcel_compute::{Backend, ComputeError};

/// Errors of loading and running a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The files are not what they should be.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The backend cannot hold a weight or the cache.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The device that computes failed: what it gave is no answer, and neither is what it would give.
    #[error("the device failed, and nothing that it computes can be trusted any more: {reason}")]
    Device {
        /// In the backend's words.
        reason: String,
    },
    /// A logit is NaN or infinite.
    #[error(
        "{model}: the logits of position {position} are not finite; the first non-finite values come from {site}. \
         The weights read there are damaged: download or convert the checkpoint again"
    )]
    NonFinite {
        /// Directory of the checkpoint.
        model: String,
        /// Absolute position of the first damaged row.
        position: u32,
        /// Layer and operation.
        site: String,
    },
    /// A drafter that was made for another target.
    #[error(
        "the drafter {drafter} does not fit the model {target}: {field}: {expected} expected, as the model has it, found {found}; \
         give the drafter made for this model, or none"
    )]
    Mismatch {
        /// Directory of the target.
        target: String,
        /// Directory of the drafter.
        drafter: String,
        /// What disagrees.
        field: String,
        /// The target's value.
        expected: String,
        /// The drafter's value.
        found: String,
    },
    /// A checkpoint that cannot serve as this drafter.
    #[error("the drafter {drafter} cannot draft for {target}: {problem}")]
    NoDrafter {
        /// Directory of the target.
        target: String,
        /// Directory of the drafter.
        drafter: String,
        /// Why, and what to do.
        problem: String,
    },
    /// Pages were not reserved before a forward pass.
    #[error("no KV pages were reserved")]
    NoPages,
}

/// Sees that what a backend gave can be trusted.
///
/// # Errors
/// [`ModelError::Device`].
pub(crate) fn intact<B: Backend>(backend: &B) -> Result<(), ModelError> {
    backend.failure().map_or(Ok(()), |reason| Err(ModelError::Device { reason }))
}
