//! Configuration of the multi-token-prediction head, published by itself or inside its model's checkpoint (qwen3_5.md §4).

use std::path::Path;

use serde_json::Value;

use super::{DRAFTER, Qwen3_5Config, Qwen3_5TextConfig};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::fields::Fields;

/// Widest block a configuration may ask for.
const MAX_BLOCK: usize = 16;

/// What the `text_config` of a head of its own may be of; the latter two are mixtures of experts.
const TEXT_TYPES: [&str; 4] = ["qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"];

/// The checked fields of a head.
#[derive(Clone, Debug)]
pub struct Qwen3_5MtpConfig {
    /// The text stack it was trained on; its layers are of that kind, `mtp_num_hidden_layers` of them, at least 1.
    pub text: Qwen3_5TextConfig,
    /// Positions verified in a round, one certain token and drafts, from 2 to 16: a default, no limit.
    pub block_size: usize,
}

impl Qwen3_5MtpConfig {
    /// Reads the configuration of an opened checkpoint: a head's own, or its model's.
    ///
    /// # Errors
    /// As [`Qwen3_5MtpConfig::parse`].
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        Self::parse(&checkpoint.config_file(), checkpoint.config())
    }

    /// Reads the JSON of `file`.
    ///
    /// # Errors
    /// Those of [`Qwen3_5Config::parse`], a head of no layers, one with an embedding of its own, a block outside its range.
    pub fn parse(file: &Path, value: &Value) -> Result<Self> {
        let root = Fields::root(file, value)?;
        let nested = root.object("text_config")?;
        let text = match root.text("model_type")? {
            Some(DRAFTER) => read_copy(&root, nested.as_ref())?,
            _ => Qwen3_5Config::parse(file, value)?.text,
        };
        let fields = nested.as_ref().unwrap_or(&root);
        let layers = text.mtp_num_hidden_layers;
        if layers == 0 {
            return Err(fields.error("mtp_num_hidden_layers", "at least 1"));
        }
        if fields.boolean("mtp_use_dedicated_embeddings")? == Some(true) {
            return Err(fields
                .error("mtp_use_dedicated_embeddings", "false (the head reads its target's embedding and output)"));
        }
        let block_size = root.size("block_size")?.unwrap_or((layers + 2).min(MAX_BLOCK));
        if !(2..=MAX_BLOCK).contains(&block_size) {
            return Err(root.error("block_size", format!("2 to {MAX_BLOCK}")));
        }
        Ok(Self { text, block_size })
    }
}

/// The target's text fields, as a head of its own repeats them.
fn read_copy(root: &Fields<'_>, text: Option<&Fields<'_>>) -> Result<Qwen3_5TextConfig> {
    let text = text.ok_or_else(|| root.error("text_config", "an object, the text_config of the target"))?;
    let is_moe = match text.text("model_type")? {
        Some(own) if TEXT_TYPES.contains(&own) => own.contains("_moe"),
        Some(_) => return Err(text.error("model_type", TEXT_TYPES.join(", "))),
        None => text.size("num_experts")?.is_some_and(|experts| experts > 0),
    };
    // Oddities of the copy are the target's, which warns of them.
    Qwen3_5TextConfig::read(text, root, is_moe, &mut Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn head() -> Value {
        json!({
            "model_type": "qwen3_5_mtp",
            "text_config": {
                "model_type": "qwen3_5_text", "vocab_size": 192, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
                "linear_value_head_dim": 16, "mtp_num_hidden_layers": 1,
                "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}
            }
        })
    }

    fn parse(value: &Value) -> Result<Qwen3_5MtpConfig> {
        Qwen3_5MtpConfig::parse(Path::new("head/config.json"), value)
    }

    fn refused(edit: impl FnOnce(&mut Value), parts: &[&str]) {
        let mut value = head();
        edit(&mut value);
        let message = parse(&value).expect_err("must be refused").to_string();
        for part in ["head/config.json"].iter().chain(parts) {
            assert!(message.contains(part), "{part:?} not in: {message}");
        }
    }

    #[test]
    fn block_size_has_a_default_and_a_range() {
        assert_eq!(parse(&head()).expect("parses").block_size, 3);
        for size in [2, 16] {
            let mut value = head();
            value["block_size"] = json!(size);
            assert_eq!(parse(&value).expect("parses").block_size, size);
        }
        for size in [0, 1, 17] {
            refused(|v| v["block_size"] = json!(size), &["block_size", &size.to_string(), "2 to 16"]);
        }
    }

    #[test]
    fn a_model_with_a_head_has_the_fields_at_its_own_place() {
        let mut flat = head()["text_config"].take();
        flat["block_size"] = Value::Null;
        let config = parse(&flat).expect("parses");
        assert_eq!((config.block_size, config.text.hidden_size), (3, 64));
        flat["mtp_num_hidden_layers"] = json!(0);
        assert!(parse(&flat).expect_err("no layers").to_string().contains("field mtp_num_hidden_layers is 0"));
    }

    #[test]
    fn what_cannot_serve_is_refused_by_field() {
        refused(|v| v["text_config"] = Value::Null, &["text_config is null", "text_config of the target"]);
        refused(
            |v| v["text_config"]["model_type"] = json!("llama"),
            &["text_config.model_type", "\"llama\"", "qwen3_5"],
        );
        refused(|v| v["text_config"]["mtp_num_hidden_layers"] = json!(0), &["text_config.mtp_num_hidden_layers"]);
        refused(
            |v| v["text_config"]["mtp_use_dedicated_embeddings"] = json!(true),
            &["text_config.mtp_use_dedicated_embeddings", "true", "false"],
        );
        refused(|v| v["model_type"] = json!("gemma4"), &["model_type", "gemma4"]);
    }
}
