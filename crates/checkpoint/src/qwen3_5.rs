//! Configuration of the Qwen 3.5 family (3.5, 3.6 and 3.8 share one architecture): which member a `config.json`
//! describes, and its checked fields.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, Result};
use crate::fields::Fields;
use crate::generation::StopIds;

mod mtp;
mod text;
mod validate;

pub use mtp::Qwen3_5MtpConfig;
pub use text::{LayerType, MoeConfig, Qwen3_5TextConfig, Rope};

/// The `model_type`s of the family: wrappers (or text stacks in mlx-lm's flat flavour), then text stacks alone.
pub const MODEL_TYPES: [&str; 4] = ["qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"];

/// The multi-token-prediction head published by itself: a companion of a model, not a model.
const DRAFTER: &str = "qwen3_5_mtp";

/// `<|endoftext|>` of the family's tokenizer, the only stop id that its `config.json` names.
const END_OF_TEXT: u32 = 248_044;

/// `<|im_end|>`: ends a turn. Files without `generation_config.json` name it nowhere.
const END_OF_TURN: u32 = 248_046;

/// A checked `config.json` of the Qwen 3.5 family.
#[derive(Clone, Debug)]
pub struct Qwen3_5Config {
    /// `architectures[0]`.
    pub architecture: String,
    /// One of [`MODEL_TYPES`], as the file has it at its top.
    pub model_type: String,
    /// The text stack.
    pub text: Qwen3_5TextConfig,
    /// True when there is a `vision_config`.
    pub has_vision: bool,
    /// Stop ids of `config.json` (top level and text part) and, when read from a checkpoint, `generation_config.json`.
    /// Where `<|endoftext|>` of the family's tokenizer is among them, so is its `<|im_end|>`.
    pub eos_token_ids: Vec<u32>,
    /// Slot of an image feature in the token row.
    pub image_token_id: Option<u32>,
    /// Slot of a video frame's feature.
    pub video_token_id: Option<u32>,
    /// Begins an image or video block.
    pub vision_start_token_id: Option<u32>,
    /// Ends an image or video block.
    pub vision_end_token_id: Option<u32>,
    /// What is unusual but not wrong.
    pub warnings: Vec<String>,
}

impl Qwen3_5Config {
    /// Reads the configuration of an opened checkpoint.
    ///
    /// # Errors
    /// As [`Qwen3_5Config::parse`], and unusable stop ids of `generation_config.json`.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let mut config = Self::parse(&checkpoint.config_file(), checkpoint.config())?;
        // Merged, not replaced: the text part has a default that no file needs to write.
        let mut stop = StopIds::from_checkpoint(checkpoint)?;
        stop.merge(config.eos_token_ids);
        config.eos_token_ids = with_end_of_turn(stop, config.text.vocab_size);
        if let Some(method) = checkpoint.quantization().foreign_method() {
            config
                .warnings
                .push(format!("quantization_config (quant_method {method}) is not in MLX form and was ignored"));
        }
        Ok(config)
    }

    /// Reads the JSON of `file`.
    ///
    /// # Errors
    /// A `model_type` of another family, the stand-alone drafter, and every field that is absent though it has no
    /// default, out of range, contradicts another, or asks for something unsupported. The message names the field.
    pub fn parse(file: &Path, value: &Value) -> Result<Self> {
        let root = Fields::root(file, value)?;
        let model_type = model_type(file, &root)?;
        let is_moe = model_type.contains("_moe");
        let mut warnings = Vec::new();
        // Wrappers nest the text fields; exports of the text stack have them at the top, under either name.
        let nested = root.object("text_config")?;
        if let Some(text) = &nested {
            let expected = if is_moe { ["qwen3_5_moe_text", "qwen3_5_moe"] } else { ["qwen3_5_text", "qwen3_5"] };
            if text.text("model_type")?.is_some_and(|own| !expected.contains(&own)) {
                return Err(text.error("model_type", format!("{} (model_type {model_type})", expected[0])));
            }
        }
        let text = Qwen3_5TextConfig::read(nested.as_ref().unwrap_or(&root), &root, is_moe, &mut warnings)?;

        let mut stop = StopIds::default();
        stop.merge(root.ids("eos_token_id")?);
        if let Some(text) = &nested {
            stop.merge(text.ids("eos_token_id")?);
        }
        if stop.ids().is_empty() {
            stop.merge([END_OF_TEXT]);
        }

        let has_vision = root.object("vision_config")?.is_some();
        let image_token_id = root.id("image_token_id")?;
        if has_vision && image_token_id.is_none() {
            warnings.push("image_token_id is absent beside a vision_config".into());
        }
        let architecture = match root.list("architectures")?.and_then(|list| list.first()) {
            Some(name) => name.as_str().ok_or_else(|| root.error("architectures", "a list of names"))?,
            None => default_architecture(is_moe, nested.is_some()),
        };
        Ok(Self {
            architecture: architecture.into(),
            model_type: model_type.into(),
            eos_token_ids: with_end_of_turn(stop, text.vocab_size),
            text,
            has_vision,
            image_token_id,
            video_token_id: root.id("video_token_id")?,
            vision_start_token_id: root.id("vision_start_token_id")?,
            vision_end_token_id: root.id("vision_end_token_id")?,
            warnings,
        })
    }

    /// True for tensors that the text model leaves alone: the vision tower, the multi-token-prediction head, buffers, and
    /// the head of a tied model. For [`Weights::finish`](crate::Weights::finish).
    pub fn ignores(&self, name: &str) -> bool {
        const ASIDE: [&str; 3] = ["visual.", "vision_tower.", "mtp."];
        if name.contains("rotary_emb.") {
            return true;
        }
        let bare = name.strip_prefix("model.").unwrap_or(name);
        let bare = bare.strip_prefix("language_model.").unwrap_or(bare);
        ASIDE.iter().any(|part| bare.starts_with(part))
            || (self.text.tie_word_embeddings && bare.starts_with("lm_head."))
    }
}

fn model_type<'a>(file: &Path, root: &Fields<'a>) -> Result<&'a str> {
    let supported = || MODEL_TYPES.join(", ");
    let found = root.text("model_type")?.ok_or_else(|| root.error("model_type", format!("one of {}", supported())))?;
    if MODEL_TYPES.contains(&found) {
        return Ok(found);
    }
    let file = file.to_path_buf();
    if found == DRAFTER {
        return Err(CheckpointError::DrafterAsTarget { file, found: found.into() });
    }
    Err(CheckpointError::UnknownModelType { file, found: found.into(), supported: supported() })
}

/// What `architectures` says when the file does not.
const fn default_architecture(is_moe: bool, is_wrapper: bool) -> &'static str {
    match (is_moe, is_wrapper) {
        (false, true) => "Qwen3_5ForConditionalGeneration",
        (false, false) => "Qwen3_5ForCausalLM",
        (true, true) => "Qwen3_5MoeForConditionalGeneration",
        (true, false) => "Qwen3_5MoeForCausalLM",
    }
}

/// A model that stops at `<|endoftext|>` only would run on past the end of its turn.
fn with_end_of_turn(mut stop: StopIds, vocab_size: usize) -> Vec<u32> {
    if stop.contains(END_OF_TEXT) && vocab_size > END_OF_TURN as usize {
        stop.merge([END_OF_TURN]);
    }
    stop.ids().to_vec()
}
