//! Gemma 4: wrappers and text-only exports.
//!
//! The text stack of a wrapper moves from `model.language_model.` to `language_model.model.`; a text-only export keeps
//! its names. Towers of other media are left out, as mlx-lm does, and so are the K/V tensors of layers that share.

use super::{Expected, Facts, Family, Place, is_rotary_buffer, layer, under};
use crate::convert::source::SourceTensor;
use crate::error::Result;
use crate::gemma4::{Gemma4Config, Gemma4TextConfig};

/// The `model_type`s.
pub(super) const MODEL_TYPES: [&str; 4] = ["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"];

const MEDIA: [&str; 6] =
    ["vision_tower.", "vision_embedder.", "embed_vision.", "audio_tower.", "embed_audio.", "multi_modal_projector."];

struct Gemma4 {
    /// Where the text stack lies in MLX's layout.
    prefix: &'static str,
    config: Gemma4TextConfig,
}

pub(super) fn family(facts: &Facts<'_>) -> Result<Box<dyn Family>> {
    Ok(Box::new(Gemma4 {
        prefix: if facts.model_type.ends_with("_text") { "" } else { "language_model." },
        config: Gemma4Config::parse(facts.file, facts.config)?.text,
    }))
}

impl Gemma4 {
    fn leaf(&self, index: usize, leaf: &str) -> Place {
        const OF_KEYS: [&str; 4] = ["k_proj.weight", "v_proj.weight", "k_norm.weight", "v_norm.weight"];
        let at = |leaf: &str| format!("{}model.layers.{index}.{leaf}", self.prefix);
        let switch = |module: &str| at(&format!("experts.switch_glu.{module}.weight"));
        match leaf {
            "experts.gate_up_proj" => Place::Halves([switch("gate_proj"), switch("up_proj")]),
            "experts.down_proj" => Place::Whole(switch("down_proj")),
            _ if index >= self.config.first_shared_layer()
                && leaf.strip_prefix("self_attn.").is_some_and(|leaf| OF_KEYS.contains(&leaf)) =>
            {
                Place::Dropped("layers that use the K/V of others, never read")
            }
            _ => Place::Whole(at(leaf)),
        }
    }

    fn layer(&self, layer: usize) -> Vec<Expected> {
        let config = &self.config;
        let (hidden, inner, head_dim) = (config.hidden_size, config.mlp_width(layer), config.head_dim(layer));
        let (q, kv) = (config.num_attention_heads * head_dim, config.kv_heads(layer) * head_dim);
        let mut all = Vec::new();
        let mut add = |when: bool, table: &[(&str, &[usize])]| {
            if when {
                all.extend(under(&format!("{}model.layers.{layer}.", self.prefix), table));
            }
        };
        add(
            true,
            &[
                ("input_layernorm.weight", &[hidden]),
                ("post_attention_layernorm.weight", &[hidden]),
                ("pre_feedforward_layernorm.weight", &[hidden]),
                ("post_feedforward_layernorm.weight", &[hidden]),
                ("layer_scalar", &[1]),
                ("self_attn.q_proj.weight", &[q, hidden]),
                ("self_attn.o_proj.weight", &[hidden, q]),
                ("self_attn.q_norm.weight", &[head_dim]),
                ("mlp.gate_proj.weight", &[inner, hidden]),
                ("mlp.up_proj.weight", &[inner, hidden]),
                ("mlp.down_proj.weight", &[hidden, inner]),
            ],
        );
        let own = layer < config.first_shared_layer();
        add(own, &[("self_attn.k_proj.weight", &[kv, hidden]), ("self_attn.k_norm.weight", &[head_dim])]);
        add(own && !config.k_eq_v(layer), &[("self_attn.v_proj.weight", &[kv, hidden])]);
        let width = config.hidden_size_per_layer_input;
        add(
            width > 0,
            &[
                ("per_layer_input_gate.weight", &[width, hidden]),
                ("per_layer_projection.weight", &[hidden, width]),
                ("post_per_layer_input_norm.weight", &[hidden]),
            ],
        );
        if let Some(moe) = config.moe() {
            let (experts, inner) = (moe.num_experts, moe.moe_intermediate_size);
            add(
                true,
                &[
                    ("router.proj.weight", &[experts, hidden]),
                    ("router.scale", &[hidden]),
                    ("router.per_expert_scale", &[experts]),
                    ("experts.switch_glu.gate_proj.weight", &[experts, inner, hidden]),
                    ("experts.switch_glu.up_proj.weight", &[experts, inner, hidden]),
                    ("experts.switch_glu.down_proj.weight", &[experts, hidden, inner]),
                    ("post_feedforward_layernorm_1.weight", &[hidden]),
                    ("post_feedforward_layernorm_2.weight", &[hidden]),
                    ("pre_feedforward_layernorm_2.weight", &[hidden]),
                ],
            );
        }
        all
    }
}

impl Family for Gemma4 {
    fn place(&self, tensor: &SourceTensor) -> Place {
        const CLIPS: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];
        let name = tensor.name.as_str();
        let bare = name.strip_prefix("model.").unwrap_or(name);
        if MEDIA.iter().any(|media| bare.starts_with(media)) {
            return Place::Dropped("towers of other media, which take image and audio input");
        }
        if is_rotary_buffer(name) || name.rsplit('.').next().is_some_and(|last| CLIPS.contains(&last)) {
            return Place::Dropped("");
        }
        let text = bare.strip_prefix("language_model.").unwrap_or(bare);
        if matches!(text, "lm_head.weight" | "model.lm_head.weight") {
            let head = Place::Whole(format!("{}lm_head.weight", self.prefix));
            return if self.config.tie_word_embeddings { Place::Dropped("") } else { head };
        }
        let text = text.strip_prefix("model.").unwrap_or(text);
        match text.strip_prefix("layers.").and_then(|rest| layer(rest, self.config.num_hidden_layers)) {
            Some((index, leaf)) => self.leaf(index, leaf),
            None => Place::Whole(format!("{}model.{text}", self.prefix)),
        }
    }

    fn expected(&self) -> Vec<Expected> {
        let config = &self.config;
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let at = format!("{}model.", self.prefix);
        let mut all = under(&at, &[("embed_tokens.weight", &[vocab, hidden]), ("norm.weight", &[hidden])]);
        if !config.tie_word_embeddings {
            all.extend(under(self.prefix, &[("lm_head.weight", &[vocab, hidden])]));
        }
        let width = config.hidden_size_per_layer_input;
        if width > 0 {
            let (rows, each) = (config.vocab_size_per_layer_input, config.num_hidden_layers * width);
            let table: &[(&str, &[usize])] = &[
                ("embed_tokens_per_layer.weight", &[rows, each]),
                ("per_layer_model_projection.weight", &[each, hidden]),
                ("per_layer_projection_norm.weight", &[width]),
            ];
            all.extend(under(&at, table));
        }
        all.extend((0..config.num_hidden_layers).flat_map(|layer| self.layer(layer)));
        all
    }

    fn own_format(&self, module: &str) -> Option<(u8, u16)> {
        // A router of few bits sends tokens to other experts.
        module.ends_with("router.proj").then_some((8, 64))
    }

    fn experts(&self) -> Option<usize> {
        Some(self.config.moe()?.num_experts)
    }
}
