//! Where a checkpoint keeps its head, and whether the 1 has been added to its norms (qwen3_5.md §3.2, §3.3).

use mlxcel_checkpoint::{Checkpoint, ConvLayout, Weights};

use crate::ModelError;

/// Name prefixes of a head inside its model's files, or in files of its own that keep the model's names.
const PREFIXES: [&str; 4] = ["mtp.", "language_model.mtp.", "model.mtp.", "model.language_model.mtp."];

/// One in so many negative weights makes a norm a zero-centred one.
const FEW: usize = 100;

/// How norm weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// As they are used.
    Shifted,
    /// Less 1.
    Centred,
    /// Nothing but the weights themselves tells.
    Unknown,
}

/// Names and norms of a head's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What their names begin with.
    pub prefix: &'static str,
    /// How their norms are stored.
    pub norms: Norms,
}

impl Layout {
    /// The layout of a checkpoint's head. Without one it is that of a head of its own.
    pub fn detect(checkpoint: &Checkpoint) -> Layout {
        let prefix = PREFIXES.into_iter().find(|prefix| checkpoint.names().any(|name| name.starts_with(prefix)));
        let Some(prefix) = prefix else { return Layout { prefix: "", norms: Norms::Shifted } };
        let root = Weights::new(checkpoint, "");
        let conv = checkpoint.names().filter(|name| name.ends_with("linear_attn.conv1d.weight"));
        let norms = match conv.filter_map(|name| root.conv_layout(name)).next() {
            Some(ConvLayout::Transformers) => Norms::Centred,
            // Whoever moves the convolution's axes also adds the 1, but not always to a head that is not part of the model.
            Some(ConvLayout::Mlx) => Norms::Unknown,
            None if prefix.starts_with("language_model.") => Norms::Unknown,
            // The model's names in a file without the model are names nobody converted (§4.6).
            None => Norms::Centred,
        };
        Layout { prefix, norms }
    }

    /// Whether the tensors lie among those of a model.
    pub fn is_inside(&self) -> bool {
        !self.prefix.is_empty()
    }
}

/// What is missing from norm weights that are stored alike: 1 when they are zero-centred, else 0.
///
/// A factor below 0 is as good as never learnt, one below 1 is common: negative weights are those of a zero-centred norm.
pub fn missing(weights: &Weights<'_>, names: &[&str], len: usize) -> Result<f32, ModelError> {
    let mut negative = 0;
    for name in names {
        negative += weights.vector(name, len)?.iter().filter(|w| **w < 0.0).count();
    }
    Ok(if negative * FEW > names.len() * len { 1.0 } else { 0.0 })
}
