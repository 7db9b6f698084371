//! Skeleton.
use super::Drafter;
use crate::gemma4::Gemma4;
use crate::{LoadedModel, ModelError};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::Backend;

/// Skeleton.
pub fn is_inside(_target: &Checkpoint) -> bool {
    false
}

/// Skeleton.
pub fn check(_target: &Checkpoint, _head: &Checkpoint) -> Result<(), ModelError> {
    Ok(())
}

/// Skeleton.
pub fn load<B: Backend>(head: &Checkpoint, model: &LoadedModel<B, Gemma4<B>>) -> Result<Box<dyn Drafter>, ModelError> {
    let _ = (head, model.parts());
    Err(ModelError::NoPages)
}
