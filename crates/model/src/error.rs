//! What can go wrong when a model is loaded or run.

use mlxcel_checkpoint::CheckpointError;
use mlxcel_compute::ComputeError;

/// Errors of loading and running a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The files are not what they should be.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The backend cannot hold a weight or the cache.
    #[error(transparent)]
    Compute(#[from] ComputeError),
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
    /// Pages were not reserved before a forward pass.
    #[error("no KV pages were reserved")]
    NoPages,
}
