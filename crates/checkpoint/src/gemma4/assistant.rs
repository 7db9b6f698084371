//! Configuration of a Gemma 4 drafter ("assistant"): a small text stack that reads a target's K/V.

use std::path::Path;

use serde_json::Value;

use super::{DRAFTERS, Gemma4TextConfig};
use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, Result};
use crate::fields::Fields;

/// `block_size` of files that do not write it.
const BLOCK_SIZE: usize = 4;

/// Widest block a round verifies.
const MAX_BLOCK_SIZE: usize = 16;

/// Sizes of a head that scores clusters of tokens before tokens (`use_ordered_embeddings`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Centroids {
    /// Clusters, a divisor of the vocabulary.
    pub num_centroids: usize,
    /// Clusters whose tokens are scored.
    pub centroid_intermediate_top_k: usize,
}

/// A checked `config.json` of a drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemma4AssistantConfig {
    /// Hidden size of the target it was made for.
    pub backbone_hidden_size: usize,
    /// Positions verified in a round, the pending token included.
    pub block_size: usize,
    /// The clustered head, when it has one.
    pub centroids: Option<Centroids>,
    /// Its own layers, all of which share the target's K/V ([`Gemma4TextConfig::kv_source`] has no answer for them).
    pub text: Gemma4TextConfig,
}

impl Gemma4AssistantConfig {
    /// Reads the configuration of an opened checkpoint.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        Self::parse(&checkpoint.config_file(), checkpoint.config())
    }

    /// Reads the JSON of `file`.
    pub fn parse(file: &Path, value: &Value) -> Result<Self> {
        let root = Fields::root(file, value)?;
        let supported = DRAFTERS.join(", ");
        let found = root.text("model_type")?.ok_or_else(|| root.error("model_type", format!("one of {supported}")))?;
        if !DRAFTERS.contains(&found) {
            let (file, found) = (file.into(), found.into());
            return Err(CheckpointError::UnknownModelType { file, found, supported });
        }
        let fields = root.object("text_config")?.ok_or_else(|| root.error("text_config", "an object"))?;
        let unified = match fields.text("model_type")? {
            None => found == DRAFTERS[1],
            Some("gemma4_text") => false,
            Some("gemma4_unified_text") => true,
            Some(_) => return Err(fields.error("model_type", "gemma4_text or gemma4_unified_text")),
        };
        let text = read_text(&fields, &root, unified)?;

        let backbone_hidden_size = root.size("backbone_hidden_size")?.unwrap_or(if unified { 3840 } else { 1536 });
        if backbone_hidden_size == 0 {
            return Err(root.error("backbone_hidden_size", "at least 1"));
        }
        let what = "2 * backbone_hidden_size * text_config.hidden_size";
        root.check_elements(what, &[2, backbone_hidden_size, text.hidden_size])?;
        let block_size = root.size("block_size")?.unwrap_or(BLOCK_SIZE);
        if !(2..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(root.error("block_size", format!("2 to {MAX_BLOCK_SIZE}")));
        }
        Ok(Self { backbone_hidden_size, block_size, centroids: read_centroids(&root, &text)?, text })
    }
}

/// The text fields, of which a drafter has a narrower choice.
fn read_text(fields: &Fields<'_>, root: &Fields<'_>, unified: bool) -> Result<Gemma4TextConfig> {
    let mut text = Gemma4TextConfig::read_fields(fields, root, unified, &mut Vec::new())?;
    if fields.size("hidden_size_per_layer_input")?.is_some_and(|width| width > 0) {
        return Err(fields.error("hidden_size_per_layer_input", "0 or null (a drafter has no per-layer inputs)"));
    }
    text.hidden_size_per_layer_input = 0;
    if text.enable_moe_block {
        return Err(fields.error("enable_moe_block", "false (a drafter has no experts)"));
    }
    if text.use_double_wide_mlp {
        return Err(fields.error("use_double_wide_mlp", "false (a drafter's MLPs are all of one width)"));
    }
    if text.final_logit_softcapping.is_some() {
        return Err(fields.error("final_logit_softcapping", "null (a drafter's logits are not capped)"));
    }
    for place in [fields, root] {
        if place.boolean("tie_word_embeddings")? == Some(false) {
            return Err(place.error("tie_word_embeddings", "true (a drafter's head is its embed_tokens)"));
        }
    }
    let layers = text.num_hidden_layers;
    if ![0, layers].contains(&text.num_kv_shared_layers) {
        let expected = format!("{layers} (num_hidden_layers) or 0: all of a drafter's layers read the target's K/V");
        return Err(fields.error("num_kv_shared_layers", expected));
    }
    text.num_kv_shared_layers = layers;
    text.validate_drafter(fields)?;
    Ok(text)
}

fn read_centroids(root: &Fields<'_>, text: &Gemma4TextConfig) -> Result<Option<Centroids>> {
    let num_centroids = root.size("num_centroids")?.unwrap_or(2048);
    let centroid_intermediate_top_k = root.size("centroid_intermediate_top_k")?.unwrap_or(32);
    if !root.boolean("use_ordered_embeddings")?.unwrap_or(false) {
        return Ok(None);
    }
    if num_centroids == 0 || !text.vocab_size.is_multiple_of(num_centroids) {
        let expected = format!("a divisor of text_config.vocab_size ({})", text.vocab_size);
        return Err(root.error_found("num_centroids", expected, num_centroids.to_string()));
    }
    if !(1..=num_centroids).contains(&centroid_intermediate_top_k) {
        let expected = format!("1 to num_centroids ({num_centroids})");
        return Err(root.error_found("centroid_intermediate_top_k", expected, centroid_intermediate_top_k.to_string()));
    }
    Ok(Some(Centroids { num_centroids, centroid_intermediate_top_k }))
}
