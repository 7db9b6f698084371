//! One table from `model_type` to the code that runs it. Command line, server, bench and gate all read it.

use std::sync::Arc;

use mlxcel_checkpoint::{Checkpoint, CheckpointError};
use mlxcel_compute::Backend;

use crate::drafters::{Classic, DraftKind, Drafter, gemma4_assistant, qwen3_5_mtp};
use crate::error::intact;
use crate::gemma4::Gemma4;
use crate::llama::Llama;
use crate::qwen3_5::Qwen3_5;
use crate::{LoadedModel, Model, ModelError};

/// A model and, where there is one, the drafter that reads it.
pub struct Pair {
    /// The target.
    pub model: Box<dyn Model>,
    /// Its drafter.
    pub drafter: Option<Box<dyn Drafter>>,
}

/// Builds a family's model on a backend, with the head that drafts for it if one is given: a checkpoint of its own, or the target's.
pub type Load<B> = fn(&Checkpoint, Option<&Checkpoint>, Arc<B>) -> Result<Pair, ModelError>;

/// A family of architectures.
pub struct Family<B: Backend> {
    /// Name for people.
    pub name: &'static str,
    /// `model_type` values of config.json it takes.
    pub model_types: &'static [&'static str],
    /// `model_type` values of its drafters, which the family's own parser tells apart from models.
    pub drafter_types: &'static [&'static str],
    /// Whether a target's checkpoint holds a drafting head of its own.
    pub has_head: fn(&Checkpoint) -> bool,
    /// Checks that a head fits a target, before any weight is read.
    pub check: fn(&Checkpoint, &Checkpoint) -> Result<(), ModelError>,
    /// Builds model and head on a backend; the two were checked.
    pub load: Load<B>,
}

/// Every family this build knows.
pub fn families<B: Backend>() -> [Family<B>; 3] {
    [
        Family {
            name: "Gemma 4",
            model_types: &["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"],
            drafter_types: &["gemma4_assistant", "gemma4_unified_assistant"],
            has_head: |_| false,
            check: gemma4_assistant::check,
            load: |checkpoint, head, backend| {
                let network = Gemma4::load(checkpoint, &*backend)?;
                let model = LoadedModel::new(backend, network);
                let drafter = head.map(|head| gemma4_assistant::load(head, &model)).transpose()?;
                Ok(Pair { model: Box::new(model), drafter })
            },
        },
        Family {
            name: "Llama",
            model_types: &["llama", "mistral", "qwen2", "qwen3"],
            drafter_types: &[],
            has_head: |_| false,
            check: |_, _| Ok(()),
            load: |checkpoint, _, backend| {
                let network = Llama::load(checkpoint, &*backend)?;
                Ok(Pair { model: Box::new(LoadedModel::new(backend, network)), drafter: None })
            },
        },
        Family {
            name: "Qwen 3.5",
            model_types: &mlxcel_checkpoint::qwen3_5::MODEL_TYPES,
            drafter_types: &["qwen3_5_mtp"],
            has_head: qwen3_5_mtp::is_inside,
            check: qwen3_5_mtp::check,
            load: |checkpoint, head, backend| {
                let network = Qwen3_5::load(checkpoint, &*backend)?;
                let model = LoadedModel::new(backend, network);
                let drafter = head.map(|head| qwen3_5_mtp::load(head, &model)).transpose()?;
                Ok(Pair { model: Box::new(model), drafter })
            },
        },
    ]
}

/// Loads the model of a checkpoint onto a backend.
///
/// # Errors
/// Unknown `model_type`s are refused before any weight is read, naming the file and the supported ones; then whatever
/// the family's loader finds wrong; a device that failed meanwhile.
pub fn load<B: Backend>(checkpoint: &Checkpoint, backend: Arc<B>) -> Result<Box<dyn Model>, ModelError> {
    Ok(load_family(checkpoint, None, backend)?.model)
}

/// Loads a target and the drafter in another checkpoint (or in the target's own) onto a backend. That the two fit each other is
/// checked before any weight is read.
///
/// # Errors
/// [`ModelError::Mismatch`], [`ModelError::NoDrafter`], and what either loader finds wrong.
pub fn load_pair<B: Backend>(target: &Checkpoint, draft: &Checkpoint, backend: Arc<B>) -> Result<Pair, ModelError> {
    load_as(target, draft, draft_kind::<B>(target, draft)?, backend)
}

/// [`load_pair`] with a drafter whose kind is given: a checkpoint that holds its own head may draft as a model all the same.
///
/// # Errors
/// As [`load_pair`].
pub fn load_as<B: Backend>(
    target: &Checkpoint,
    draft: &Checkpoint,
    kind: DraftKind,
    backend: Arc<B>,
) -> Result<Pair, ModelError> {
    check_as::<B>(target, draft, kind)?;
    match kind {
        DraftKind::Classic => {
            let model = load(target, Arc::clone(&backend))?;
            let drafter = Classic::new(load(draft, backend)?);
            Ok(Pair { model, drafter: Some(Box::new(drafter)) })
        }
        DraftKind::Mtp | DraftKind::Ngram => load_family(target, Some(draft), backend),
    }
}

/// Has the target's family load it, and sees that the device took everything.
fn load_family<B: Backend>(
    target: &Checkpoint,
    head: Option<&Checkpoint>,
    backend: Arc<B>,
) -> Result<Pair, ModelError> {
    let pair = (family::<B>(target)?.load)(target, head, Arc::clone(&backend))?;
    intact(&*backend)?;
    Ok(pair)
}

/// What kind of drafter a checkpoint is for a target: its head ([`DraftKind::Mtp`]), or a model of its own
/// ([`DraftKind::Classic`]). The target's own checkpoint is its head if it holds one, and else the model once more.
///
/// # Errors
/// A head of another family than the target's, unknown `model_type`s.
pub fn draft_kind<B: Backend>(target: &Checkpoint, draft: &Checkpoint) -> Result<DraftKind, ModelError> {
    let refused = |problem: String| ModelError::NoDrafter {
        target: target.dir().display().to_string(),
        drafter: draft.dir().display().to_string(),
        problem,
    };
    let family = family::<B>(target)?;
    if is_same(target, draft) && (family.has_head)(target) {
        return Ok(DraftKind::Mtp);
    }
    let found = model_type(draft);
    if family.drafter_types.contains(&found) {
        return Ok(DraftKind::Mtp);
    }
    let families = families::<B>();
    if let Some(other) = families.iter().find(|f| f.drafter_types.contains(&found)) {
        return Err(refused(format!(
            "a {found} reads the hidden states of a {} model, and the target is a {}; give the drafter made for this model",
            other.name,
            model_type(target)
        )));
    }
    self::family::<B>(draft)?;
    Ok(DraftKind::Classic)
}

/// [`draft_kind`], and everything that can be said about how the two fit without reading a weight.
///
/// # Errors
/// As [`load_pair`].
pub fn check_pair<B: Backend>(target: &Checkpoint, draft: &Checkpoint) -> Result<DraftKind, ModelError> {
    let kind = draft_kind::<B>(target, draft)?;
    check_as::<B>(target, draft, kind)?;
    Ok(kind)
}

/// [`check_pair`] with a drafter whose kind is given.
///
/// # Errors
/// As [`load_pair`].
pub fn check_as<B: Backend>(target: &Checkpoint, draft: &Checkpoint, kind: DraftKind) -> Result<(), ModelError> {
    match kind {
        DraftKind::Classic => Classic::check(target, draft),
        DraftKind::Mtp | DraftKind::Ngram => (family::<B>(target)?.check)(target, draft),
    }
}

/// Whether two checkpoints are one, however they were named.
pub fn is_same(target: &Checkpoint, draft: &Checkpoint) -> bool {
    let place = |checkpoint: &Checkpoint| checkpoint.dir().canonicalize().ok();
    target.dir() == draft.dir() || place(target).is_some_and(|dir| Some(dir) == place(draft))
}

/// Whether a target's checkpoint holds a drafting head of its own.
pub fn has_head<B: Backend>(target: &Checkpoint) -> bool {
    family::<B>(target).is_ok_and(|family| (family.has_head)(target))
}

fn model_type(checkpoint: &Checkpoint) -> &str {
    checkpoint.config().get("model_type").and_then(|v| v.as_str()).unwrap_or_default()
}

fn family<B: Backend>(checkpoint: &Checkpoint) -> Result<Family<B>, ModelError> {
    let found = model_type(checkpoint);
    let supported = families::<B>().iter().flat_map(|f| f.model_types).copied().collect::<Vec<_>>().join(", ");
    let takes = |f: &Family<B>| f.model_types.contains(&found) || f.drafter_types.contains(&found);
    families::<B>().into_iter().find(takes).ok_or_else(|| {
        ModelError::Checkpoint(CheckpointError::UnknownModelType {
            file: checkpoint.config_file(),
            found: if found.is_empty() { "nothing".into() } else { found.into() },
            supported,
        })
    })
}
