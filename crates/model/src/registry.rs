//! One table from `model_type` to the code that runs it. Command line, server, bench and gate all read it.

use std::sync::Arc;

use mlxcel_checkpoint::{Checkpoint, CheckpointError};
use mlxcel_compute::Backend;

use crate::gemma4::Gemma4;
use crate::llama::Llama;
use crate::qwen3_5::Qwen3_5;
use crate::{LoadedModel, Model, ModelError};

/// Builds a family's model on a backend.
pub type Load<B> = fn(&Checkpoint, Arc<B>) -> Result<Box<dyn Model>, ModelError>;

/// A family of architectures.
pub struct Family<B: Backend> {
    /// Name for people.
    pub name: &'static str,
    /// `model_type` values of config.json it takes.
    pub model_types: &'static [&'static str],
    /// `model_type` values of its drafters, which the family's own parser tells apart from models.
    pub drafter_types: &'static [&'static str],
    /// Builds the model on a backend.
    pub load: Load<B>,
}

/// Every family this build knows.
pub fn families<B: Backend>() -> [Family<B>; 3] {
    [
        Family {
            name: "Gemma 4",
            model_types: &["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"],
            drafter_types: &["gemma4_assistant", "gemma4_unified_assistant"],
            load: |checkpoint, backend| {
                let network = Gemma4::load(checkpoint, &*backend)?;
                Ok(Box::new(LoadedModel::new(backend, network)))
            },
        },
        Family {
            name: "Llama",
            model_types: &["llama", "mistral", "qwen2", "qwen3"],
            drafter_types: &[],
            load: |checkpoint, backend| {
                let network = Llama::load(checkpoint, &*backend)?;
                Ok(Box::new(LoadedModel::new(backend, network)))
            },
        },
        Family {
            name: "Qwen 3.5",
            model_types: &mlxcel_checkpoint::qwen3_5::MODEL_TYPES,
            drafter_types: &["qwen3_5_mtp"],
            load: |checkpoint, backend| {
                let network = Qwen3_5::load(checkpoint, &*backend)?;
                Ok(Box::new(LoadedModel::new(backend, network)))
            },
        },
    ]
}

/// Loads the model of a checkpoint onto a backend.
///
/// # Errors
/// Unknown `model_type`s are refused before any weight is read, naming the file and the supported ones; then whatever
/// the family's loader finds wrong.
pub fn load<B: Backend>(checkpoint: &Checkpoint, backend: Arc<B>) -> Result<Box<dyn Model>, ModelError> {
    let families = families::<B>();
    let found = checkpoint.config().get("model_type").and_then(|v| v.as_str()).unwrap_or_default();
    let family = families.iter().find(|f| f.model_types.contains(&found) || f.drafter_types.contains(&found));
    match family {
        Some(family) => (family.load)(checkpoint, backend),
        None => Err(ModelError::Checkpoint(CheckpointError::UnknownModelType {
            file: checkpoint.config_file(),
            found: if found.is_empty() { "nothing".into() } else { found.into() },
            supported: families.iter().flat_map(|f| f.model_types).copied().collect::<Vec<_>>().join(", "),
        })),
    }
}
