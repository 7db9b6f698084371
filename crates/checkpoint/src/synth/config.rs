//! `config.json` of a shape, as published files write it.

use serde_json::{Value, json};

use super::shape::{Assistant, Family, Gemma4, Qwen3_5, Shape};

/// What the tokenizer's checkpoint says of its ids.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    /// Ids that the tokenizer has; rows beyond them are padding.
    pub(crate) assigned: usize,
    /// `bos_token_id`, `eos_token_id` and `pad_token_id` of the text stack.
    text: [Value; 3],
    /// `eos_token_id` at the top.
    eos: Value,
}

impl Ids {
    /// Reads a checkpoint's `config.json`; `None` when it does not say how many ids there are.
    pub(crate) fn read(config: &Value) -> Option<Ids> {
        let text = config.get("text_config").unwrap_or(config);
        let of = |key: &str| text.get(key).cloned().unwrap_or(Value::Null);
        let assigned = usize::try_from(text.get("vocab_size")?.as_u64()?).ok()?;
        let top = config.get("eos_token_id").cloned().unwrap_or(Value::Null);
        Some(Ids { assigned, text: ["bos_token_id", "eos_token_id", "pad_token_id"].map(of), eos: top })
    }

    fn write(&self, config: &mut Value) {
        for (key, value) in ["bos_token_id", "eos_token_id", "pad_token_id"].into_iter().zip(&self.text) {
            config[key] = value.clone();
        }
    }
}

/// The model's; without a `quantization` block.
pub(crate) fn model(shape: &Shape, layers: usize, ids: &Ids) -> Value {
    let moe = if shape.experts.is_some() { "_moe" } else { "" };
    let mut config = match shape.family {
        Family::Gemma4(own) => json!({
            "architectures": [if own.unified { "Gemma4UnifiedForConditionalGeneration" } else { "Gemma4ForConditionalGeneration" }],
            "model_type": if own.unified { "gemma4_unified" } else { "gemma4" },
            "audio_config": null,
            "vision_config": null,
            "text_config": gemma4(shape, &own, layers, ids),
            "tie_word_embeddings": true,
            "vocab_size": shape.vocab,
        }),
        Family::Qwen3_5(own) => json!({
            "architectures": [if moe.is_empty() { "Qwen3_5ForCausalLM" } else { "Qwen3_5MoeForCausalLM" }],
            "model_type": format!("qwen3_5{moe}"),
            "language_model_only": true,
            "text_config": qwen3_5(shape, &own, layers, ids),
            "tie_word_embeddings": own.tied,
        }),
        Family::Llama => llama(shape, layers, ids),
    };
    config["eos_token_id"] = ids.eos.clone();
    finish(config, shape, layers)
}

/// The drafter's; without a `quantization` block.
pub(crate) fn drafter(shape: &Shape, layers: usize, ids: &Ids) -> Option<Value> {
    let config = match shape.family {
        Family::Gemma4(own) => assistant(shape, &own, layers, ids),
        Family::Qwen3_5(own) => json!({
            "model_type": "qwen3_5_mtp",
            "block_size": 3,
            "text_config": qwen3_5(shape, &own, layers, ids),
            "tie_word_embeddings": own.tied,
        }),
        Family::Llama => return None,
    };
    Some(finish(config, shape, layers))
}

/// What all have, and where the weights come from.
fn finish(mut config: Value, shape: &Shape, layers: usize) -> Value {
    config["dtype"] = json!("bfloat16");
    config["transformers_version"] = json!("5.24.0");
    config["mlxcel_synth"] = json!({
        "shape": shape.name,
        "num_hidden_layers": layers,
        "num_hidden_layers_of_shape": shape.layers,
        "weights": "random",
    });
    config
}

/// Layer types: every sixth and the last one see all positions.
fn gemma4_types(layers: usize) -> Vec<&'static str> {
    let full = |layer: usize| (layer + 1).is_multiple_of(6) || layer + 1 == layers;
    (0..layers).map(|layer| if full(layer) { "full_attention" } else { "sliding_attention" }).collect()
}

fn gemma4(shape: &Shape, own: &Gemma4, layers: usize, ids: &Ids) -> Value {
    let experts = shape.experts;
    let mut config = json!({
        "model_type": if own.unified { "gemma4_unified_text" } else { "gemma4_text" },
        "attention_bias": false,
        "attention_dropout": 0.0,
        "attention_k_eq_v": own.global_kv_heads.is_some(),
        "dtype": "bfloat16",
        "enable_moe_block": experts.is_some(),
        "final_logit_softcapping": 30.0,
        "global_head_dim": own.global_head_dim,
        "head_dim": shape.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": shape.hidden,
        "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "layer_types": gemma4_types(layers),
        "max_position_embeddings": shape.context,
        "moe_intermediate_size": experts.map(|experts| experts.inner),
        "num_attention_heads": shape.heads,
        "num_experts": experts.map(|experts| experts.count),
        "num_global_key_value_heads": own.global_kv_heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shape.kv_heads,
        "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
        },
        "sliding_window": own.window,
        "tie_word_embeddings": true,
        "top_k_experts": experts.map(|experts| experts.used),
        "use_bidirectional_attention": null,
        "use_cache": true,
        "use_double_wide_mlp": false,
        "vocab_size": shape.vocab,
        "vocab_size_per_layer_input": 0,
    });
    ids.write(&mut config);
    config
}

/// Layers of a Gemma 4 drafter: three sliding ones and a full one, all full where the model has no other.
pub(crate) fn assistant_types(layers: usize) -> [&'static str; 4] {
    let sliding =
        if gemma4_types(layers).contains(&"sliding_attention") { "sliding_attention" } else { "full_attention" };
    [sliding, sliding, sliding, "full_attention"]
}

fn assistant(shape: &Shape, own: &Gemma4, layers: usize, ids: &Ids) -> Value {
    let Assistant { hidden, inner, heads, centroids } = own.drafter;
    let mut text = gemma4(shape, own, layers, ids);
    let types = assistant_types(layers);
    for (key, value) in [
        ("hidden_size", json!(hidden)),
        ("intermediate_size", json!(inner)),
        ("num_attention_heads", json!(heads)),
        ("num_hidden_layers", json!(types.len())),
        ("num_kv_shared_layers", json!(types.len())),
        ("layer_types", json!(types)),
        ("final_logit_softcapping", Value::Null),
        ("enable_moe_block", json!(false)),
        ("num_experts", Value::Null),
        ("top_k_experts", Value::Null),
        ("moe_intermediate_size", Value::Null),
    ] {
        text[key] = value;
    }
    json!({
        "architectures": [if own.unified { "Gemma4UnifiedAssistantForCausalLM" } else { "Gemma4AssistantForCausalLM" }],
        "model_type": if own.unified { "gemma4_unified_assistant" } else { "gemma4_assistant" },
        "backbone_hidden_size": shape.hidden,
        "block_size": 4,
        "centroid_intermediate_top_k": 32,
        "num_centroids": centroids.unwrap_or(2048),
        "text_config": text,
        "tie_word_embeddings": true,
        "use_ordered_embeddings": centroids.is_some(),
    })
}

fn qwen3_5(shape: &Shape, own: &Qwen3_5, layers: usize, ids: &Ids) -> Value {
    // A model cut below the interval still has an attending layer.
    let interval = layers.min(4);
    let full = |layer: usize| (layer + 1).is_multiple_of(interval);
    let types: Vec<&str> = (0..layers).map(|l| if full(l) { "full_attention" } else { "linear_attention" }).collect();
    // Pairs that turn, over three axes: the first gets what does not divide.
    let pairs = shape.head_dim / 8;
    let section = [pairs - pairs / 3 - (pairs + 1) / 3, (pairs + 1) / 3, pairs / 3];
    let mut config = json!({
        "model_type": if shape.experts.is_some() { "qwen3_5_moe_text" } else { "qwen3_5_text" },
        "attention_bias": false,
        "attention_dropout": 0.0,
        "attn_output_gate": true,
        "dtype": "bfloat16",
        "full_attention_interval": interval,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "layer_types": types,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": own.state_dim,
        "linear_num_key_heads": own.key_heads,
        "linear_num_value_heads": own.value_heads,
        "linear_value_head_dim": own.state_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": shape.context,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shape.kv_heads,
        "output_gate_type": "swish",
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": true,
            "mrope_section": section,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000.0,
            "rope_type": "default",
        },
        "tie_word_embeddings": own.tied,
        "use_cache": true,
        "vocab_size": shape.vocab,
    });
    ids.write(&mut config);
    match shape.experts {
        None => config["intermediate_size"] = json!(shape.inner),
        Some(experts) => {
            config["moe_intermediate_size"] = json!(experts.inner);
            config["num_experts"] = json!(experts.count);
            config["num_experts_per_tok"] = json!(experts.used);
            config["shared_expert_intermediate_size"] = json!(experts.inner);
        }
    }
    config
}

fn llama(shape: &Shape, layers: usize, ids: &Ids) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.context,
        "mlp_bias": false,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500_000.0,
        "tie_word_embeddings": true,
        "use_cache": true,
        "vocab_size": shape.vocab,
    });
    ids.write(&mut config);
    config
}
