//! Configuration of the Gemma 4 family: which member a `config.json` describes, and its checked fields.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, Result};
use crate::fields::Fields;
use crate::generation::StopIds;

mod assistant;
mod text;
mod validate;

pub use assistant::{Centroids, Gemma4AssistantConfig};
pub use text::{
    Activation, Bidirectional, Gemma4TextConfig, LayerOverride, LayerType, MoeSizes, Rope, RopeParameters, RopeType,
};

/// Which of the four `model_type`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemma4Family {
    /// `gemma4`: wrapper with a vision tower and perhaps an audio tower (E2B, E4B, 26B-A4B, 31B).
    Gemma4,
    /// `gemma4_text`: the text stack alone.
    Gemma4Text,
    /// `gemma4_unified`: wrapper without towers (12B).
    Unified,
    /// `gemma4_unified_text`: its text stack alone.
    UnifiedText,
}

impl Gemma4Family {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gemma4, Self::Gemma4Text, Self::Unified, Self::UnifiedText];

    /// The `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Gemma4 => "gemma4",
            Self::Gemma4Text => "gemma4_text",
            Self::Unified => "gemma4_unified",
            Self::UnifiedText => "gemma4_unified_text",
        }
    }

    /// What `architectures` says when the file does not.
    const fn architecture(self) -> &'static str {
        match self {
            Self::Gemma4 => "Gemma4ForConditionalGeneration",
            Self::Gemma4Text => "Gemma4ForCausalLM",
            Self::Unified => "Gemma4UnifiedForConditionalGeneration",
            Self::UnifiedText => "Gemma4UnifiedForCausalLM",
        }
    }

    const fn is_unified(self) -> bool {
        matches!(self, Self::Unified | Self::UnifiedText)
    }
}

/// Drafters of the family: companions of a model, not models.
const DRAFTERS: [&str; 2] = ["gemma4_assistant", "gemma4_unified_assistant"];

/// A checked `config.json` of the Gemma 4 family.
#[derive(Clone, Debug)]
pub struct Gemma4Config {
    /// Which member.
    pub family: Gemma4Family,
    /// `architectures[0]`.
    pub architecture: String,
    /// The text stack.
    pub text: Gemma4TextConfig,
    /// True when there is a `vision_config`.
    pub has_vision: bool,
    /// True when there is an `audio_config`.
    pub has_audio: bool,
    /// Slot of an image feature in the token row.
    pub image_token_id: Option<u32>,
    /// Slot of an audio feature.
    pub audio_token_id: Option<u32>,
    /// Slot of a video frame's feature.
    pub video_token_id: Option<u32>,
    /// Begins an image block.
    pub boi_token_id: Option<u32>,
    /// Ends an image block.
    pub eoi_token_id: Option<u32>,
    /// Begins an audio block.
    pub boa_token_id: Option<u32>,
    /// Ends an audio block.
    pub eoa_token_id: Option<u32>,
    /// Features of one image.
    pub vision_soft_tokens_per_image: Option<usize>,
    /// Stop ids of `config.json` (top level and text part) and, when read from a checkpoint, `generation_config.json`.
    pub eos_token_ids: Vec<u32>,
    /// What is unusual but not wrong: fields that published files write and this one lacks.
    pub warnings: Vec<String>,
}

impl Gemma4Config {
    /// Reads the configuration of an opened checkpoint.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let mut config = Self::parse(&checkpoint.config_file(), checkpoint.config())?;
        // Merged, not replaced: the text part has a default that no file needs to write.
        let mut stop = StopIds::from_checkpoint(checkpoint)?;
        stop.merge(config.eos_token_ids);
        config.eos_token_ids = stop.ids().to_vec();
        if let Some(method) = checkpoint.quantization().foreign_method() {
            config
                .warnings
                .push(format!("quantization_config (quant_method {method}) is not in MLX form and was ignored"));
        }
        Ok(config)
    }

    /// Reads the JSON of `file`.
    pub fn parse(file: &Path, value: &Value) -> Result<Self> {
        let root = Fields::root(file, value)?;
        let family = family(file, &root)?;
        let mut warnings = Vec::new();
        // Wrappers nest the text fields, exports of the text stack have them at the top.
        let nested = root.object("text_config")?;
        if nested.is_none() && matches!(family, Gemma4Family::Gemma4 | Gemma4Family::Unified) {
            return Err(root.error("text_config", format!("an object (model_type {})", family.model_type())));
        }
        let fields = nested.as_ref().unwrap_or(&root);
        let unified = match fields.text("model_type")? {
            Some("gemma4_text") => false,
            Some("gemma4_unified_text") => true,
            Some(_) if nested.is_some() => {
                return Err(fields.error("model_type", "gemma4_text or gemma4_unified_text"));
            }
            _ => family.is_unified(),
        };
        let text = Gemma4TextConfig::read(fields, &root, unified, &mut warnings)?;
        let mut stop = StopIds::default();
        stop.merge(root.ids("eos_token_id")?);
        stop.merge(text.eos_token_ids.iter().copied());

        let has_vision = root.object("vision_config")?.is_some();
        let has_audio = root.object("audio_config")?.is_some();
        let image_token_id = root.id("image_token_id")?;
        if has_vision && image_token_id.is_none() {
            warnings.push("image_token_id is absent beside a vision_config".into());
        }
        let architecture = match root.list("architectures")?.and_then(|list| list.first()) {
            Some(name) => name.as_str().ok_or_else(|| root.error("architectures", "a list of names"))?,
            None => family.architecture(),
        };
        Ok(Self {
            family,
            architecture: architecture.into(),
            text,
            has_vision,
            has_audio,
            image_token_id,
            audio_token_id: root.id("audio_token_id")?,
            video_token_id: root.id("video_token_id")?,
            boi_token_id: root.id("boi_token_id")?,
            eoi_token_id: root.id("eoi_token_id")?,
            boa_token_id: root.id("boa_token_id")?,
            // Files of the first release spell this one differently.
            eoa_token_id: root.id("eoa_token_id")?.or(root.id("eoa_token_index")?),
            vision_soft_tokens_per_image: root.size("vision_soft_tokens_per_image")?,
            eos_token_ids: stop.ids().to_vec(),
            warnings,
        })
    }

    /// True for tensors that the text model leaves alone: towers, projections of other media, buffers, the dead K/V of
    /// sharing layers, and the head of a tied model. For [`Weights::finish`](crate::Weights::finish).
    pub fn ignores(&self, name: &str) -> bool {
        const MEDIA: [&str; 6] =
            ["vision_tower.", "vision_embedder.", "embed_vision.", "audio_tower.", "embed_audio.", "multi_modal"];
        const CLIPS: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];
        let bare = name.strip_prefix("model.").unwrap_or(name);
        if MEDIA.iter().any(|media| bare.starts_with(media)) || bare.contains("rotary_emb") {
            return true;
        }
        if bare.rsplit('.').next().is_some_and(|last| CLIPS.contains(&last)) {
            return true;
        }
        let text = bare.strip_prefix("language_model.").unwrap_or(bare);
        if self.text.tie_word_embeddings && text.starts_with("lm_head.") {
            return true;
        }
        self.is_dead_kv(text.strip_prefix("model.").unwrap_or(text))
    }

    /// `layers.N.self_attn.{k_proj,v_proj,k_norm,v_norm}.…` of a layer that shares K/V.
    fn is_dead_kv(&self, name: &str) -> bool {
        let Some((layer, rest)) = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) else {
            return false;
        };
        let shares = layer
            .parse::<usize>()
            .is_ok_and(|layer| layer >= self.text.first_shared_layer() && layer < self.text.num_hidden_layers);
        shares
            && ["k_proj.", "v_proj.", "k_norm.", "v_norm."]
                .iter()
                .any(|part| rest.strip_prefix("self_attn.").is_some_and(|rest| rest.starts_with(part)))
    }
}

fn family(file: &Path, root: &Fields<'_>) -> Result<Gemma4Family> {
    let supported = || Gemma4Family::ALL.map(Gemma4Family::model_type).join(", ");
    let found = root.text("model_type")?.ok_or_else(|| root.error("model_type", format!("one of {}", supported())))?;
    if let Some(family) = Gemma4Family::ALL.into_iter().find(|family| family.model_type() == found) {
        return Ok(family);
    }
    let (file, found) = (file.to_path_buf(), found.to_string());
    if DRAFTERS.contains(&found.as_str()) {
        return Err(CheckpointError::DrafterAsTarget { file, found });
    }
    Err(CheckpointError::UnknownModelType { file, found, supported: supported() })
}
