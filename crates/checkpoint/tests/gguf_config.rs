//! `config.json` from GGUF metadata: the fields of each architecture, and what is refused.

use std::path::Path;

use mlxcel_checkpoint::Gguf;
use mlxcel_checkpoint::gguf::testing::{GgufBuilder, Item, tiny, tiny_values};
use serde_json::{Value, json};

fn config(file: &GgufBuilder) -> Result<Value, String> {
    Gguf::from_bytes(Path::new("model.gguf"), file.bytes())
        .and_then(|file| file.config())
        .map_err(|error| error.to_string())
}

/// Asserts fields; `null` here also stands for an absent one.
fn fields(config: &Value, expected: Value) {
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&config[field], value, "{field}");
    }
}

#[test]
fn every_architecture_has_its_fields() {
    let llama = config(&tiny("llama")).unwrap();
    fields(
        &llama,
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "mlp_bias": false,
            "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
            "max_position_embeddings": 512, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": true,
            "torch_dtype": "float32", "vocab_size": 263, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null,
        }),
    );
    fields(
        &config(&tiny("qwen2")).unwrap(),
        json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_bias": null,
            "use_sliding_window": false}),
    );
    fields(
        &config(&tiny("qwen3")).unwrap(),
        json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 8}),
    );
    let mut gemma = tiny("gemma3");
    fields(
        &config(&gemma).unwrap(),
        json!({
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_act": null,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "sliding_window": 16,
            "rope_local_base_freq": 10000.0, "layer_types": ["sliding_attention", "sliding_attention"],
            "final_logit_softcapping": null, "vocab_size": 269, "pad_token_id": 0, "bos_token_id": 2,
        }),
    );
    gemma.set("gemma3.attention.sliding_window_pattern", 2u32).set("gemma3.final_logit_softcapping", 30.0f32);
    let types = json!(["sliding_attention", "full_attention"]);
    fields(
        &config(&gemma).unwrap(),
        json!({"layer_types": types, "sliding_window_pattern": 2, "final_logit_softcapping": 30.0}),
    );
    gemma.set("gemma3.attention.sliding_window_pattern", Item::Bools(vec![true, false]));
    fields(&config(&gemma).unwrap(), json!({"layer_types": types}));
    gemma.set("gemma3.attention.sliding_window_pattern", Item::Bools(vec![true]));
    assert!(config(&gemma).unwrap_err().contains("sliding_window_pattern"));
}

#[test]
fn embeddings_are_tied_without_an_output() {
    let mut file = tiny("llama");
    file.singles("output.weight", &[263, 32], &tiny_values("output.weight", 263 * 32));
    fields(&config(&file).unwrap(), json!({"tie_word_embeddings": false}));
}

#[test]
fn the_dtype_is_that_of_the_matrices() {
    let mut file = tiny("llama");
    let store = |file: &mut GgufBuilder, kind: u32, bytes: usize| {
        for tensor in file.tensors.iter_mut().filter(|tensor| tensor.shape.len() > 1) {
            tensor.kind = kind;
            tensor.data.truncate(tensor.shape.iter().product::<u64>() as usize * bytes);
        }
    };
    store(&mut file, 1, 2);
    fields(&config(&file).unwrap(), json!({"torch_dtype": "float16"}));
    store(&mut file, 30, 2);
    fields(&config(&file).unwrap(), json!({"torch_dtype": "bfloat16"}));
}

#[test]
fn scaled_rotations() {
    let mut file = tiny("llama");
    file.set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 4.0f32);
    fields(&config(&file).unwrap(), json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}));
    file.set("llama.rope.scaling.type", "yarn").set("llama.rope.scaling.original_context_length", 128u32);
    fields(
        &config(&file).unwrap(),
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}),
    );
    file.set("llama.rope.scaling.attn_factor", 1.5f32);
    assert!(config(&file).unwrap_err().contains("llama.rope.scaling.attn_factor"));
    file.unset("llama.rope.scaling.attn_factor").set("llama.rope.scaling.type", "longrope");
    assert!(
        config(&file).unwrap_err().contains("llama.rope.scaling.type is \"longrope\", expected none, linear or yarn")
    );
    file.set("llama.rope.scaling.type", "none");
    fields(&config(&file).unwrap(), json!({"rope_scaling": null}));
    file.set("llama.rope.scaling.type", "linear").unset("llama.rope.scaling.factor");
    assert!(config(&file).unwrap_err().contains("llama.rope.scaling.factor is absent"));
    file.set("llama.rope.scaling.factor", 0.0f32);
    assert!(config(&file).unwrap_err().contains("llama.rope.scaling.factor is 0"));

    // Wavelengths of theta 500,000 and heads of 8: 6.3, 167, 4,443, 118,143. Only the third is in between.
    let mut file = tiny("llama");
    file.set("llama.rope.freq_base", 500_000.0f32);
    let turns = 8192.0 / (2.0 * std::f64::consts::PI * 500_000f64.sqrt());
    let smooth = (turns - 1.0) / 3.0;
    let between = (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32;
    file.singles("rope_freqs.weight", &[4], &[1.0, 1.0, between, 8.0]);
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    fields(&config(&file).unwrap(), json!({"rope_scaling": llama3}));
    file.set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 2.0f32);
    assert!(config(&file).unwrap_err().contains("together with tensor rope_freqs.weight"));
    let mut file = tiny("llama");
    file.singles("rope_freqs.weight", &[4], &[1.0, 3.0, 2.0, 8.0]);
    assert!(config(&file).unwrap_err().contains("no llama3 rope_scaling"));
}

#[test]
fn contradictions_and_variants_are_refused() {
    type Damage = (&'static str, fn(&mut GgufBuilder), &'static [&'static str]);
    let cases: &[Damage] = &[
        ("llama", |f| _ = f.unset("llama.block_count"), &["llama.block_count is absent"]),
        ("llama", |f| _ = f.set("llama.block_count", 0u32), &["llama.block_count is 0"]),
        ("llama", |f| _ = f.set("llama.block_count", 3u32), &["no tensor blk.2.attn_norm.weight", "block_count is 3"]),
        ("llama", |f| _ = f.set("llama.block_count", u32::MAX), &["llama.block_count is 4294967295"]),
        ("llama", |f| _ = f.set("llama.block_count", 1u32 << 24), &["no tensor blk.2.attn_norm.weight"]),
        ("llama", |f| _ = f.set("llama.block_count", "2"), &["llama.block_count is \"2\""]),
        ("llama", |f| _ = f.unset("llama.context_length"), &["llama.context_length is absent"]),
        ("llama", |f| _ = f.unset("llama.embedding_length"), &["llama.embedding_length is absent"]),
        ("llama", |f| _ = f.unset("llama.feed_forward_length"), &["llama.feed_forward_length is absent"]),
        ("llama", |f| _ = f.unset("llama.attention.head_count"), &["llama.attention.head_count is absent"]),
        ("llama", |f| _ = f.set("llama.attention.head_count", 0u32), &["llama.attention.head_count is 0"]),
        ("llama", |f| _ = f.set("llama.attention.head_count", 5u32), &["head_count_kv is 2", "divisor of the 5 heads"]),
        ("llama", |f| _ = f.set("llama.attention.head_count", 6u32), &["embedding_length is 32", "multiple of the 6"]),
        ("llama", |f| _ = f.set("llama.attention.head_count", 32u32), &["even head size"]),
        ("llama", |f| _ = f.set("llama.attention.head_count_kv", 3u32), &["head_count_kv is 3"]),
        ("llama", |f| _ = f.set("llama.attention.head_count_kv", 4u32), &["blk.0.attn_k.weight", "expected 32 rows"]),
        (
            "llama",
            |f| _ = f.set("llama.attention.head_count_kv", Item::I32s(vec![2, 1])),
            &["another value for each layer"],
        ),
        (
            "llama",
            |f| _ = f.set("llama.attention.head_count_kv", Item::I32s(vec![])),
            &["another value for each layer"],
        ),
        ("llama", |f| _ = f.set("llama.attention.value_length", 4u32), &["value_length is 4", "8, the size of a key"]),
        (
            "llama",
            |f| _ = f.set("llama.rope.dimension_count", 4u32),
            &["rope.dimension_count is 4", "8, the size of a head"],
        ),
        ("llama", |f| _ = f.set("llama.attention.layer_norm_rms_epsilon", 0.0f32), &["layer_norm_rms_epsilon is 0"]),
        (
            "llama",
            |f| _ = f.set("llama.attention.layer_norm_rms_epsilon", f32::NAN),
            &["layer_norm_rms_epsilon is NaN"],
        ),
        ("llama", |f| _ = f.set("llama.rope.freq_base", -1.0f32), &["rope.freq_base is -1"]),
        ("llama", |f| _ = f.set("llama.vocab_size", 100u32), &["vocab_size is 100", "263, the rows of token_embd"]),
        (
            "llama",
            |f| _ = f.set("llama.embedding_length", 64u32).set("llama.attention.key_length", 8u32),
            &["token_embd.weight", "rows of 32 elements, expected 64"],
        ),
        (
            "llama",
            |f| f.tensors[0].shape = vec![100, 32],
            &["tokenizer.ggml.tokens is a list of 263 strings", "at most 100"],
        ),
        ("llama", |f| f.tensors[0].shape = vec![263 * 32], &["token_embd.weight", "shape [8416]"]),
        ("llama", |f| _ = f.set("llama.expert_count", 8u32), &["mixture of experts", "expert_count is 8"]),
        ("llama", |f| _ = f.set("llama.logit_scale", 0.5f32), &["llama.logit_scale", "not supported"]),
        ("qwen2", |f| f.tensors.retain(|t| t.name != "blk.1.attn_k.bias"), &["no tensor blk.1.attn_k.bias"]),
        ("qwen2", |f| f.tensors.retain(|t| !t.name.ends_with("bias")), &["no tensor blk.0.attn_q.bias"]),
        (
            "qwen3",
            |f| f.tensors.retain(|t| t.name != "blk.1.attn_k_norm.weight"),
            &["no tensor blk.1.attn_k_norm.weight"],
        ),
        ("gemma3", |f| _ = f.unset("gemma3.attention.sliding_window"), &["gemma3.attention.sliding_window is absent"]),
        (
            "gemma3",
            |f| f.tensors.retain(|t| t.name != "blk.0.post_ffw_norm.weight"),
            &["no tensor blk.0.post_ffw_norm.weight"],
        ),
    ];
    for (architecture, damage, parts) in cases {
        let mut file = tiny(architecture);
        damage(&mut file);
        let error = config(&file).expect_err(&format!("expected {parts:?}"));
        for part in parts.iter().chain(&["model.gguf"]) {
            assert!(error.contains(part), "expected {part:?} in: {error}");
        }
    }
    // A list of equal values is one value.
    let mut file = tiny("llama");
    file.set("llama.attention.head_count_kv", Item::I32s(vec![2, 2])).set("llama.expert_count", 0u32);
    fields(&config(&file).unwrap(), json!({"num_key_value_heads": 2}));
}
