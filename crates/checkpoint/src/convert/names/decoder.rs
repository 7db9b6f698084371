//! Plain decoders, whose names MLX keeps: Llama, Mistral, Qwen 2, Qwen 3, and the text stack of Gemma 3.

use super::{Expected, Facts, Family, Place, is_rotary_buffer, under};
use crate::convert::source::SourceTensor;
use crate::error::Result;
use crate::llama::LlamaConfig;

/// The `model_type`s.
pub(super) const MODEL_TYPES: [&str; 6] = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"];

struct Decoder {
    /// What stands before `model.` and `lm_head.` in MLX's layout.
    prefix: &'static str,
    gemma: bool,
    layers: usize,
    tied: bool,
    sizes: Sizes,
}

struct Sizes {
    vocab: usize,
    hidden: usize,
    /// Width of the MLP.
    inner: usize,
    /// Outputs of `q_proj`.
    q: usize,
    /// Outputs of `k_proj` and of `v_proj`.
    kv: usize,
    head_dim: usize,
    /// Norms of queries and keys.
    qk_norm: bool,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
}

pub(super) fn family(facts: &Facts<'_>) -> Result<Box<dyn Family>> {
    let gemma = facts.model_type.starts_with("gemma3");
    Ok(Box::new(Decoder {
        prefix: if facts.model_type == "gemma3" { "language_model." } else { "" },
        gemma,
        layers: facts.layers,
        tied: facts.tied(gemma)?,
        sizes: if gemma { Sizes::gemma3(facts)? } else { Sizes::llama(&LlamaConfig::parse(facts.file, facts.config)?) },
    }))
}

impl Sizes {
    fn llama(config: &LlamaConfig) -> Self {
        Self {
            vocab: config.vocab_size,
            hidden: config.hidden_size,
            inner: config.intermediate_size,
            q: config.num_attention_heads * config.head_dim,
            kv: config.num_key_value_heads * config.head_dim,
            head_dim: config.head_dim,
            qk_norm: config.qk_norm,
            qkv_bias: config.qkv_bias,
            o_bias: config.o_bias,
            mlp_bias: config.mlp_bias,
        }
    }

    /// The defaults are those of transformers' `Gemma3TextConfig`, on which published wrappers rely.
    fn gemma3(facts: &Facts<'_>) -> Result<Self> {
        let size = |key: &str, default: usize| match facts.text.size(key)?.unwrap_or(default) {
            // More than a file can hold, and the products below would not fit.
            size if (1..1 << 30).contains(&size) => Ok(size),
            _ => Err(facts.text.error(key, "at least 1 and below 2^30")),
        };
        let head_dim = size("head_dim", 256)?;
        Ok(Self {
            vocab: size("vocab_size", 262_208)?,
            hidden: size("hidden_size", 2304)?,
            inner: size("intermediate_size", 9216)?,
            q: size("num_attention_heads", 8)?.saturating_mul(head_dim),
            kv: size("num_key_value_heads", 4)?.saturating_mul(head_dim),
            head_dim,
            qk_norm: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
        })
    }
}

impl Family for Decoder {
    fn place(&self, tensor: &SourceTensor) -> Place {
        let name = tensor.name.as_str();
        if is_rotary_buffer(name) {
            return Place::Dropped("");
        }
        let mut text = name.to_string();
        if !self.prefix.is_empty() {
            if ["vision_tower.", "multi_modal_projector."]
                .iter()
                .any(|tower| name.strip_prefix("model.").unwrap_or(name).starts_with(tower))
            {
                return Place::Dropped("the vision tower, which takes image input");
            }
            // Two spellings of the wrapper: `language_model.model.X`, and the newer `model.language_model.X`.
            text = match name.strip_prefix("model.language_model.") {
                Some(rest) => format!("model.{rest}"),
                None => name.strip_prefix(self.prefix).unwrap_or(name).into(),
            };
        }
        if text == "lm_head.weight" && self.tied {
            return Place::Dropped("");
        }
        Place::Whole(format!("{}{text}", self.prefix))
    }

    fn expected(&self) -> Vec<Expected> {
        let Sizes { vocab, hidden, inner, q, kv, head_dim, .. } = self.sizes;
        let prefix = self.prefix;
        let mut all =
            under(prefix, &[("model.embed_tokens.weight", &[vocab, hidden]), ("model.norm.weight", &[hidden])]);
        if !self.tied {
            all.extend(under(prefix, &[("lm_head.weight", &[vocab, hidden])]));
        }
        for layer in 0..self.layers {
            let mut add = |when: bool, table: &[(&str, &[usize])]| {
                if when {
                    all.extend(under(&format!("{prefix}model.layers.{layer}."), table));
                }
            };
            add(
                true,
                &[
                    ("self_attn.q_proj.weight", &[q, hidden]),
                    ("self_attn.k_proj.weight", &[kv, hidden]),
                    ("self_attn.v_proj.weight", &[kv, hidden]),
                    ("self_attn.o_proj.weight", &[hidden, q]),
                    ("mlp.gate_proj.weight", &[inner, hidden]),
                    ("mlp.up_proj.weight", &[inner, hidden]),
                    ("mlp.down_proj.weight", &[hidden, inner]),
                    ("input_layernorm.weight", &[hidden]),
                    ("post_attention_layernorm.weight", &[hidden]),
                ],
            );
            add(
                self.gemma,
                &[("pre_feedforward_layernorm.weight", &[hidden]), ("post_feedforward_layernorm.weight", &[hidden])],
            );
            add(
                self.sizes.qk_norm,
                &[("self_attn.q_norm.weight", &[head_dim]), ("self_attn.k_norm.weight", &[head_dim])],
            );
            add(
                self.sizes.qkv_bias,
                &[("self_attn.q_proj.bias", &[q]), ("self_attn.k_proj.bias", &[kv]), ("self_attn.v_proj.bias", &[kv])],
            );
            add(self.sizes.o_bias, &[("self_attn.o_proj.bias", &[hidden])]);
            add(
                self.sizes.mlp_bias,
                &[("mlp.gate_proj.bias", &[inner]), ("mlp.up_proj.bias", &[inner]), ("mlp.down_proj.bias", &[hidden])],
            );
        }
        all
    }
}
