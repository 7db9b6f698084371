//! Qwen 3.5, 3.6 and 3.8, dense and MoE.
//!
//! Everything of the text stack lies under `language_model.`; the vision tower and the multi-token prediction head are
//! left out, as mlx-lm does. The norms of transformers' files are centred on zero and those of MLX's on one; a file's
//! convention is told by its convolutions, which every converter transposes when it shifts the norms.

use serde_json::{Map, Value};

use super::{Expected, Facts, Family, Place, is_rotary_buffer, layer, number, under};
use crate::convert::source::SourceTensor;
use crate::error::Result;
use crate::qwen3_5::{Qwen3_5Config, Qwen3_5TextConfig};

/// The `model_type`s.
pub(super) const MODEL_TYPES: [&str; 4] = ["qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"];

const TEXT: &str = "language_model.model.";

struct Qwen3_5 {
    config: Qwen3_5TextConfig,
    /// True when the convolutions have transformers' layout, and so the norms are centred on zero.
    raw: bool,
    /// True when the text fields are at the top of a `*_text` configuration.
    flat_text: bool,
}

pub(super) fn family(facts: &Facts<'_>) -> Result<Box<dyn Family>> {
    let is_conv = |tensor: &&SourceTensor| tensor.name.contains("conv1d.weight") && !tensor.name.contains("mtp.");
    let raw = facts.tensors.iter().filter(is_conv).any(|tensor| tensor.shape.last() != Some(&1));
    Ok(Box::new(Qwen3_5 {
        config: Qwen3_5Config::parse(facts.file, facts.config)?.text,
        raw,
        flat_text: !facts.nested && facts.model_type.ends_with("_text"),
    }))
}

impl Family for Qwen3_5 {
    fn place(&self, tensor: &SourceTensor) -> Place {
        let name = tensor.name.as_str();
        if is_rotary_buffer(name) {
            return Place::Dropped("");
        }
        if name.starts_with("vision_tower.") || name.starts_with("model.visual.") || name.starts_with("visual.") {
            return Place::Dropped("the vision tower, which takes image input");
        }
        let bare = name.strip_prefix("language_model.").or_else(|| name.strip_prefix("model.")).unwrap_or(name);
        if bare.starts_with("mtp.") {
            return Place::Dropped("the multi-token prediction head (mtp), a drafter of its own");
        }
        let bare = name.strip_prefix("model.language_model.").or_else(|| name.strip_prefix("language_model.model."));
        let bare = bare.or_else(|| name.strip_prefix("model.")).unwrap_or(name);
        match bare {
            "embed_tokens.weight" | "norm.weight" => return Place::Whole(format!("{TEXT}{bare}")),
            "lm_head.weight" | "language_model.lm_head.weight" if self.config.tie_word_embeddings => {
                return Place::Dropped("");
            }
            "lm_head.weight" | "language_model.lm_head.weight" => {
                return Place::Whole("language_model.lm_head.weight".into());
            }
            _ => {}
        }
        match bare.strip_prefix("layers.").and_then(|rest| layer(rest, self.config.num_hidden_layers)) {
            Some((index, leaf)) => self.leaf(&format!("{TEXT}layers.{index}."), leaf),
            None => Place::Unknown,
        }
    }

    fn expected(&self) -> Vec<Expected> {
        let config = &self.config;
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let mut all = under(TEXT, &[("embed_tokens.weight", &[vocab, hidden]), ("norm.weight", &[hidden])]);
        if !config.tie_word_embeddings {
            all.extend(under("language_model.", &[("lm_head.weight", &[vocab, hidden])]));
        }
        for layer in 0..config.num_hidden_layers {
            let at = format!("{TEXT}layers.{layer}.");
            all.extend(under(
                &at,
                &[("input_layernorm.weight", &[hidden]), ("post_attention_layernorm.weight", &[hidden])],
            ));
            all.extend(if config.is_linear(layer) { self.delta_net(&at) } else { self.attention(&at) });
            all.extend(self.feed_forward(&at));
        }
        all
    }

    fn adds_one(&self, name: &str, shape: &[usize]) -> bool {
        const CENTRED: [&str; 5] = [
            ".input_layernorm.weight",
            ".post_attention_layernorm.weight",
            "model.norm.weight",
            ".q_norm.weight",
            ".k_norm.weight",
        ];
        self.raw && shape.len() == 1 && CENTRED.iter().any(|ending| name.ends_with(ending))
    }

    fn keeps_dtype(&self, name: &str) -> bool {
        name.ends_with(".A_log")
    }

    fn own_format(&self, module: &str) -> Option<(u8, u16)> {
        // A router of few bits sends tokens to other experts.
        let router = module.ends_with("mlp.gate") || module.ends_with("shared_expert_gate");
        (self.config.moe.is_some() && router).then_some((8, 64))
    }

    fn experts(&self) -> Option<usize> {
        Some(self.config.moe?.num_experts)
    }

    fn edit_config(&self, config: &mut Map<String, Value>) -> Option<String> {
        if !self.flat_text {
            return None;
        }
        // mlx-lm has no module of the text-only name and reads a flat configuration under the wrapper's.
        let model_type = config.get_mut("model_type")?;
        let short = model_type.as_str()?.strip_suffix("_text")?.to_string();
        let note = format!("model_type {model_type} written as {short:?}, the name mlx-lm knows");
        *model_type = Value::String(short);
        Some(note)
    }
}

impl Qwen3_5 {
    fn leaf(&self, prefix: &str, leaf: &str) -> Place {
        match leaf.strip_prefix("mlp.") {
            Some(rest) => self.mlp(prefix, rest),
            None => Place::Whole(format!("{prefix}{leaf}")),
        }
    }

    fn attention(&self, at: &str) -> Vec<Expected> {
        let config = &self.config;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let (q, kv) = (config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim);
        let at = format!("{at}self_attn.");
        let mut all = under(
            &at,
            &[
                // Queries and the output gate.
                ("q_proj.weight", &[2 * q, hidden]),
                ("k_proj.weight", &[kv, hidden]),
                ("v_proj.weight", &[kv, hidden]),
                ("o_proj.weight", &[hidden, q]),
                ("q_norm.weight", &[head_dim]),
                ("k_norm.weight", &[head_dim]),
            ],
        );
        if config.attention_bias {
            let table: &[(&str, &[usize])] = &[
                ("q_proj.bias", &[2 * q]),
                ("k_proj.bias", &[kv]),
                ("v_proj.bias", &[kv]),
                ("o_proj.bias", &[hidden]),
            ];
            all.extend(under(&at, table));
        }
        all
    }

    fn delta_net(&self, at: &str) -> Vec<Expected> {
        let config = &self.config;
        let (hidden, heads) = (config.hidden_size, config.linear_num_value_heads);
        let (channels, width) = (config.linear_conv_dim(), config.linear_value_dim());
        under(
            &format!("{at}linear_attn."),
            &[
                ("in_proj_qkv.weight", &[channels, hidden]),
                ("in_proj_z.weight", &[width, hidden]),
                ("in_proj_b.weight", &[heads, hidden]),
                ("in_proj_a.weight", &[heads, hidden]),
                ("conv1d.weight", &[channels, config.linear_conv_kernel_dim, 1]),
                ("A_log", &[heads]),
                ("dt_bias", &[heads]),
                ("norm.weight", &[config.linear_value_head_dim]),
                ("out_proj.weight", &[hidden, width]),
            ],
        )
    }

    fn feed_forward(&self, at: &str) -> Vec<Expected> {
        let hidden = self.config.hidden_size;
        let Some(moe) = self.config.moe else {
            let inner = self.config.intermediate_size;
            let table: &[(&str, &[usize])] = &[
                ("mlp.gate_proj.weight", &[inner, hidden]),
                ("mlp.up_proj.weight", &[inner, hidden]),
                ("mlp.down_proj.weight", &[hidden, inner]),
            ];
            return under(at, table);
        };
        let (experts, inner, shared) =
            (moe.num_experts, moe.moe_intermediate_size, moe.shared_expert_intermediate_size);
        under(
            &format!("{at}mlp."),
            &[
                ("gate.weight", &[experts, hidden]),
                ("shared_expert_gate.weight", &[1, hidden]),
                ("shared_expert.gate_proj.weight", &[shared, hidden]),
                ("shared_expert.up_proj.weight", &[shared, hidden]),
                ("shared_expert.down_proj.weight", &[hidden, shared]),
                ("switch_mlp.gate_proj.weight", &[experts, inner, hidden]),
                ("switch_mlp.up_proj.weight", &[experts, inner, hidden]),
                ("switch_mlp.down_proj.weight", &[experts, hidden, inner]),
            ],
        )
    }

    /// Where a tensor of the MLP goes, by its name below `mlp.`.
    fn mlp(&self, prefix: &str, rest: &str) -> Place {
        let keep = || Place::Whole(format!("{prefix}mlp.{rest}"));
        if self.config.moe.is_none() {
            return keep();
        }
        let switch = |module: &str| format!("{prefix}mlp.switch_mlp.{module}.weight");
        match rest {
            "experts.gate_up_proj" => Place::Halves([switch("gate_proj"), switch("up_proj")]),
            "experts.down_proj" => Place::Whole(switch("down_proj")),
            _ => match rest.strip_prefix("experts.") {
                Some(rest) => match rest.split_once('.').and_then(|(index, matrix)| Some((number(index)?, matrix))) {
                    Some((index, matrix)) => Place::Stacked { name: format!("{prefix}mlp.switch_mlp.{matrix}"), index },
                    None => Place::Unknown,
                },
                None => keep(),
            },
        }
    }
}
