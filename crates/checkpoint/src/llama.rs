//! Configuration of the Llama family: Llama 2 and 3 and what shares their shape (SmolLM2), dense Qwen 2 and Qwen 3,
//! Mistral. One decoder with few switches; each `model_type` has its own defaults and sets some switches by its name.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, Result};
use crate::fields::{Fields, MAX_LAYERS};
use crate::generation::StopIds;

mod rope;
mod validate;

pub use rope::{Rope, RopeScaling};

/// Which of the four `model_type`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LlamaFamily {
    /// `llama`: no biases unless `attention_bias` or `mlp_bias` says so.
    Llama,
    /// `mistral`: no biases; a sliding window by default, which must be switched off.
    Mistral,
    /// `qwen2`: biases on q, k and v, always.
    Qwen2,
    /// `qwen3`: norms on the heads of q and k, always.
    Qwen3,
}

impl LlamaFamily {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// What `architectures` says when the file does not.
    const fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The sliding window that transformers assumes when the file does not mention one.
    const fn default_window(self) -> Option<u64> {
        match self {
            Self::Mistral => Some(4096),
            _ => None,
        }
    }

    const fn default_positions(self) -> u64 {
        match self {
            Self::Llama => 2048,
            Self::Mistral => 131_072,
            Self::Qwen2 | Self::Qwen3 => 32_768,
        }
    }
}

/// A checked `config.json` of the Llama family.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "most fields are the checkpoint's own")]
pub struct LlamaConfig {
    /// Which member.
    pub family: LlamaFamily,
    /// `architectures[0]`.
    pub architecture: String,
    pub model_type: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    /// Even. Heads times this need not be `hidden_size`.
    pub head_dim: usize,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// A bias on o.
    pub o_bias: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
    /// RMS norms on each head of q and of k, before the rotation.
    pub qk_norm: bool,
    pub rms_norm_eps: f64,
    pub rope: Rope,
    pub max_position_embeddings: u64,
    pub tie_word_embeddings: bool,
    /// Stop ids of `config.json` and, when read from a checkpoint, `generation_config.json`.
    pub eos_token_ids: Vec<u32>,
    /// What is unusual but not wrong.
    pub warnings: Vec<String>,
}

impl LlamaConfig {
    /// Reads the configuration of an opened checkpoint.
    ///
    /// # Errors
    /// As [`LlamaConfig::parse`], and unusable stop ids of `generation_config.json`.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let mut config = Self::parse(&checkpoint.config_file(), checkpoint.config())?;
        let mut stop = StopIds::from_checkpoint(checkpoint)?;
        stop.merge(config.eos_token_ids);
        config.eos_token_ids = stop.ids().to_vec();
        if config.eos_token_ids.is_empty() {
            config.warnings.push("no file names an eos_token_id; answers end at their length limit only".into());
        }
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
    /// A `model_type` of another family, and every field that is absent though it has no default, out of range,
    /// contradicts another, or asks for something unsupported (sliding windows, scaled rotations other than linear and
    /// Llama 3's). The message names the field.
    pub fn parse(file: &Path, value: &Value) -> Result<Self> {
        let fields = &Fields::root(file, value)?;
        let family = family(file, fields)?;
        let mut warnings = Vec::new();
        // Libraries' defaults are the sizes of some 7B model: a file that lacks one is damaged, not that model.
        let size = |key: &str| fields.size(key)?.ok_or_else(|| fields.error(key, "an integer of at least 1"));
        let flag = |key: &str, default: bool| Ok::<_, CheckpointError>(fields.boolean(key)?.unwrap_or(default));
        for key in ["rms_norm_eps", "max_position_embeddings"].into_iter().filter(|key| !fields.is_written(key)) {
            warnings.push(format!("{key} is absent; the default of transformers is used"));
        }

        let num_hidden_layers = size("num_hidden_layers")?;
        if !(1..=MAX_LAYERS).contains(&num_hidden_layers) {
            return Err(fields.error("num_hidden_layers", format!("1 to {MAX_LAYERS}")));
        }
        let hidden_size = size("hidden_size")?;
        let num_attention_heads = size("num_attention_heads")?;
        let num_key_value_heads = match fields.size("num_key_value_heads")? {
            // Files from before grouped queries do not have the key; the other members' always do.
            None if family == LlamaFamily::Llama => num_attention_heads,
            None => return Err(fields.error("num_key_value_heads", "an integer of at least 1")),
            Some(heads) => heads,
        };
        let head_dim = read_head_dim(fields, family, hidden_size, num_attention_heads, &mut warnings)?;
        let biased = flag("attention_bias", false)?;
        let mlp_bias = flag("mlp_bias", false)?;
        let (qkv_bias, o_bias) = match family {
            LlamaFamily::Llama | LlamaFamily::Qwen3 => (biased, biased),
            // What the file says is not asked: the name decides.
            LlamaFamily::Qwen2 => (true, false),
            LlamaFamily::Mistral if biased => {
                return Err(fields.error("attention_bias", "false (model_type mistral has no biases)"));
            }
            LlamaFamily::Mistral => (false, false),
        };
        if mlp_bias && family != LlamaFamily::Llama {
            return Err(
                fields.error("mlp_bias", format!("false (model_type {} has no such biases)", family.model_type()))
            );
        }
        let max_position_embeddings = fields.count("max_position_embeddings")?.unwrap_or(family.default_positions());
        refuse_unsupported(fields, family, max_position_embeddings)?;
        let architecture = match fields.list("architectures")?.and_then(|list| list.first()) {
            Some(name) => name.as_str().ok_or_else(|| fields.error("architectures", "a list of names"))?,
            None => family.architecture(),
        };
        let mut stop = StopIds::default();
        stop.merge(fields.ids("eos_token_id")?);
        let config = Self {
            family,
            architecture: architecture.into(),
            model_type: family.model_type().into(),
            vocab_size: size("vocab_size")?,
            hidden_size,
            intermediate_size: size("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            qkv_bias,
            o_bias,
            mlp_bias,
            qk_norm: family == LlamaFamily::Qwen3,
            rms_norm_eps: fields.float("rms_norm_eps")?.unwrap_or(1e-6),
            rope: Rope::read(fields)?,
            max_position_embeddings,
            tie_word_embeddings: flag("tie_word_embeddings", false)?,
            eos_token_ids: stop.ids().to_vec(),
            warnings,
        };
        config.validate(fields)?;
        Ok(config)
    }

    /// True for tensors that the model leaves alone: buffers of the rotation, and the head of a tied model. For
    /// [`Weights::finish`](crate::Weights::finish).
    pub fn ignores(&self, name: &str) -> bool {
        name.ends_with("rotary_emb.inv_freq") || (self.tie_word_embeddings && name.starts_with("lm_head."))
    }
}

fn family(file: &Path, fields: &Fields<'_>) -> Result<LlamaFamily> {
    let supported = || LlamaFamily::ALL.map(LlamaFamily::model_type).join(", ");
    let found =
        fields.text("model_type")?.ok_or_else(|| fields.error("model_type", format!("one of {}", supported())))?;
    LlamaFamily::ALL.into_iter().find(|family| family.model_type() == found).ok_or_else(|| {
        CheckpointError::UnknownModelType { file: file.into(), found: found.into(), supported: supported() }
    })
}

fn read_head_dim(
    fields: &Fields<'_>,
    family: LlamaFamily,
    hidden_size: usize,
    heads: usize,
    warnings: &mut Vec<String>,
) -> Result<usize> {
    const KEY: &str = "head_dim";
    if let Some(dim) = fields.size(KEY)? {
        return Ok(dim);
    }
    if family == LlamaFamily::Qwen3 {
        warnings.push(format!("{KEY} is absent; the default of transformers is used"));
        return Ok(128);
    }
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        let expected = format!("a divisor of hidden_size ({hidden_size}), for head_dim is absent");
        return Err(fields.error("num_attention_heads", expected));
    }
    Ok(hidden_size / heads)
}

/// Fields whose other values would be another model.
fn refuse_unsupported(fields: &Fields<'_>, family: LlamaFamily, positions: u64) -> Result<()> {
    if fields.text("hidden_act")?.is_some_and(|name| name != "silu") {
        return Err(fields.error("hidden_act", "silu"));
    }
    if fields.boolean("rope_interleaved")? == Some(true) {
        return Err(fields.error("rope_interleaved", "false (heads are rotated by halves)"));
    }
    // Qwen files state a window and switch it off beside it.
    let switch = fields.boolean("use_sliding_window")?;
    if switch == Some(true) {
        return Err(fields.error("use_sliding_window", "false (sliding windows are not supported)"));
    }
    if family == LlamaFamily::Mistral {
        const KEY: &str = "sliding_window";
        let window = if fields.is_written(KEY) { fields.count(KEY)? } else { family.default_window() };
        // A window that no position outgrows is none.
        if window.is_some_and(|window| window < positions) {
            let expected = format!(
                "null or at least max_position_embeddings ({positions}) (sliding windows are not supported; absent means {})",
                family.default_window().unwrap_or_default()
            );
            return Err(fields.error(KEY, expected));
        }
    }
    for (layer, kind) in fields.list("layer_types")?.into_iter().flatten().enumerate() {
        if kind.as_str() != Some("full_attention") {
            let found = crate::fields::short(kind);
            return Err(fields.error_found(&format!("layer_types[{layer}]"), "full_attention", found));
        }
    }
    Ok(())
}
