//! Configurations of the Llama family: published files of each member, both spellings of the rotation, each refusal.

mod common;

use std::path::Path;

use common::assert_error;
use mlxcel_checkpoint::llama::{LlamaConfig, LlamaFamily, RopeScaling};
use mlxcel_checkpoint::{Checkpoint, Result, Weights, testing::write_checkpoint};
use serde_json::{Value, json};
use tempfile::tempdir;

fn parse(config: &Value) -> Result<LlamaConfig> {
    LlamaConfig::parse(Path::new("somewhere/config.json"), config)
}

fn smollm2() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.04,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
        "rms_norm_eps": 1e-5, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100_000,
        "tie_word_embeddings": true, "vocab_size": 49_152,
    })
}

fn llama3_2() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "bos_token_id": 128_000,
        "eos_token_id": [128_001, 128_008, 128_009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131_072, "mlp_bias": false, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "tie_word_embeddings": true, "vocab_size": 128_256,
    })
}

fn qwen3() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "eos_token_id": 151_645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "max_position_embeddings": 40_960, "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1_000_000,
        "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151_936,
    })
}

fn qwen2() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "eos_token_id": 151_645, "hidden_act": "silu",
        "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32_768, "max_window_layers": 21,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0, "sliding_window": 32_768, "tie_word_embeddings": true, "use_sliding_window": false,
        "vocab_size": 151_936,
    })
}

fn mistral() -> Value {
    json!({
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14_336, "max_position_embeddings": 32_768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0,
        "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32_768,
    })
}

fn llama2() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11_008, "max_position_embeddings": 4096,
        "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-5, "rope_scaling": null,
        "tie_word_embeddings": false, "vocab_size": 32_000,
    })
}

/// A published configuration with one field set, or removed.
fn edited(mut config: Value, key: &str, value: Option<Value>) -> Result<LlamaConfig> {
    let map = config.as_object_mut().unwrap();
    match value {
        Some(value) => map.insert(key.into(), value),
        None => map.remove(key),
    };
    parse(&config)
}

#[test]
fn published_files() {
    let llama3 = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    for (config, family, heads, theta, scaling, tied, positions) in [
        (smollm2(), LlamaFamily::Llama, (9, 3, 64), 1e5, RopeScaling::None, true, 8192),
        (llama3_2(), LlamaFamily::Llama, (32, 8, 64), 5e5, llama3, true, 131_072),
        (llama2(), LlamaFamily::Llama, (32, 32, 128), 1e4, RopeScaling::None, false, 4096),
        (qwen2(), LlamaFamily::Qwen2, (14, 2, 64), 1e6, RopeScaling::None, true, 32_768),
        (qwen3(), LlamaFamily::Qwen3, (16, 8, 128), 1e6, RopeScaling::None, true, 40_960),
        (mistral(), LlamaFamily::Mistral, (32, 8, 128), 1e6, RopeScaling::None, false, 32_768),
    ] {
        let got = parse(&config).unwrap();
        assert!(got.warnings.is_empty(), "{:?}", got.warnings);
        assert_eq!((got.family, got.model_type.as_str()), (family, family.model_type()));
        assert_eq!(json!(got.architecture), config["architectures"][0]);
        assert_eq!((got.num_attention_heads, got.num_key_value_heads, got.head_dim), heads);
        assert_eq!((got.rope.theta, got.rope.scaling), (theta, scaling));
        assert_eq!((got.tie_word_embeddings, got.max_position_embeddings), (tied, positions));
        assert_eq!((got.qkv_bias, got.o_bias, got.mlp_bias), (family == LlamaFamily::Qwen2, false, false));
        assert_eq!(got.qk_norm, family == LlamaFamily::Qwen3);
        for (key, size) in [
            ("vocab_size", got.vocab_size),
            ("hidden_size", got.hidden_size),
            ("intermediate_size", got.intermediate_size),
            ("num_hidden_layers", got.num_hidden_layers),
        ] {
            assert_eq!(config[key], json!(size), "{key}");
        }
        assert_eq!(config["rms_norm_eps"], json!(got.rms_norm_eps));
        assert!(got.ignores("model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert!(!got.ignores("model.layers.0.self_attn.q_proj.weight"));
        assert_eq!(got.ignores("lm_head.weight"), tied);
    }
    assert_eq!(parse(&llama3_2()).unwrap().eos_token_ids, [128_001, 128_008, 128_009]);
}

#[test]
fn biases_by_member() {
    let biases = |config: Value, key: &str| {
        edited(config, key, Some(json!(true))).map(|got| (got.qkv_bias, got.o_bias, got.mlp_bias))
    };
    assert_eq!(biases(smollm2(), "attention_bias").unwrap(), (true, true, false));
    assert_eq!(biases(smollm2(), "mlp_bias").unwrap(), (false, false, true));
    assert_eq!(biases(qwen3(), "attention_bias").unwrap(), (true, true, false));
    assert_eq!(biases(qwen2(), "attention_bias").unwrap(), (true, false, false));
    assert_error(biases(mistral(), "attention_bias"), &["attention_bias is true", "mistral"]);
    assert_error(biases(qwen3(), "mlp_bias"), &["mlp_bias is true", "qwen3"]);
    assert_error(biases(qwen2(), "mlp_bias"), &["mlp_bias is true", "qwen2"]);
}

#[test]
fn defaults_of_absent_keys() {
    let got = edited(llama2(), "rms_norm_eps", None).unwrap();
    assert_eq!((got.rms_norm_eps, got.warnings.len()), (1e-6, 1));
    for (config, positions) in [(llama2(), 2048), (qwen2(), 32_768), (qwen3(), 32_768)] {
        let got = edited(config, "max_position_embeddings", None).unwrap();
        assert_eq!(got.max_position_embeddings, positions);
        assert!(got.warnings[0].starts_with("max_position_embeddings is absent"), "{:?}", got.warnings);
    }
    let got = edited(qwen3(), "head_dim", None).unwrap();
    assert_eq!((got.head_dim, got.warnings.len()), (128, 1));
    assert_eq!(edited(llama3_2(), "head_dim", None).unwrap().head_dim, 64);
    // Wider or narrower than hidden_size / heads.
    assert_eq!(edited(llama3_2(), "head_dim", Some(json!(128))).unwrap().head_dim, 128);
    assert!(!edited(mistral(), "tie_word_embeddings", None).unwrap().tie_word_embeddings);
    assert_eq!(edited(smollm2(), "architectures", None).unwrap().architecture, "LlamaForCausalLM");
    for key in ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"] {
        assert_error(edited(smollm2(), key, None), &["somewhere/config.json", &format!("{key} is absent"), "integer"]);
    }
    for config in [qwen2(), qwen3(), mistral()] {
        assert_error(edited(config, "num_key_value_heads", None), &["num_key_value_heads is absent", "integer"]);
    }
}

#[test]
fn rotation_in_both_spellings() {
    let scaling = |block: Value| edited(smollm2(), "rope_scaling", Some(block)).map(|got| got.rope);
    let linear = scaling(json!({"type": "linear", "factor": 2.5})).unwrap();
    assert_eq!((linear.theta, linear.scaling), (1e5, RopeScaling::Linear { factor: 2.5 }));
    assert_eq!(scaling(json!({"rope_type": "linear", "factor": 2.5})).unwrap(), linear);
    assert_eq!(scaling(json!({"rope_type": "default"})).unwrap().scaling, RopeScaling::None);
    assert_eq!(
        scaling(json!({"rope_type": "linear", "factor": 1})).unwrap().scaling,
        RopeScaling::Linear { factor: 1.0 }
    );

    // The newer spelling of the same file.
    let old = parse(&llama3_2()).unwrap().rope;
    let mut config = llama3_2();
    let map = config.as_object_mut().unwrap();
    let mut block = map.remove("rope_scaling").unwrap();
    block["rope_theta"] = map.remove("rope_theta").unwrap();
    map.insert("rope_parameters".into(), block);
    assert_eq!(parse(&config).unwrap().rope, old);
    // Both at once are fine as long as they say the same.
    config["rope_scaling"] = llama3_2()["rope_scaling"].clone();
    assert_eq!(parse(&config).unwrap().rope, old);
    config["rope_scaling"] = json!({"type": "linear", "factor": 2});
    assert_error(parse(&config), &["rope_scaling is", "the same scaling as rope_parameters"]);
    // The block's theta wins over the flat one.
    let block = Some(json!({"rope_type": "default", "rope_theta": 7e4}));
    assert_eq!(edited(smollm2(), "rope_parameters", block).unwrap().rope.theta, 7e4);

    for (block, parts) in [
        (json!({"type": "yarn", "factor": 4.0}), ["rope_scaling.type is \"yarn\"", "not supported"]),
        (json!({"rope_type": "yarn"}), ["rope_scaling.rope_type is \"yarn\"", "not supported"]),
        (json!({"type": "dynamic", "factor": 2.0}), ["type is \"dynamic\"", "not supported"]),
        (json!({"rope_type": "longrope"}), ["rope_type is \"longrope\"", "not supported"]),
        (json!({"rope_type": "proportional"}), ["rope_type is \"proportional\"", "default, linear or llama3"]),
        (json!({"factor": 4.0}), ["rope_scaling.rope_type is absent", "factor is given"]),
        (json!({"type": "linear"}), ["rope_scaling.factor is absent", "at least 1"]),
        (json!({"type": "linear", "factor": 0.5}), ["rope_scaling.factor is 0.5", "at least 1"]),
        (json!({"type": 3}), ["rope_scaling.type is 3", "a string"]),
        (json!([1]), ["rope_scaling is [1]", "an object"]),
        (json!({"rope_theta": -1}), ["rope_scaling.rope_theta is -1", "above 0"]),
        (json!({"partial_rotary_factor": 0.5}), ["partial_rotary_factor is 0.5", "not supported"]),
    ] {
        assert_error(scaling(block), &[&["somewhere/config.json"], &parts[..]].concat());
    }
    for (key, value, part) in [
        ("factor", json!(null), "at least 1"),
        ("factor", json!(0.99), "at least 1"),
        ("low_freq_factor", json!(null), "above 0"),
        ("low_freq_factor", json!(0), "above 0"),
        ("high_freq_factor", json!(1.0), "above low_freq_factor (1)"),
        ("high_freq_factor", json!("4"), "a finite number"),
        ("original_max_position_embeddings", json!(null), "at least 1"),
        ("original_max_position_embeddings", json!(0), "at least 1"),
        ("original_max_position_embeddings", json!(8192.5), "integer"),
    ] {
        let mut config = llama3_2();
        config["rope_scaling"][key] = value;
        assert_error(parse(&config), &[&format!("rope_scaling.{key} is"), part]);
    }
    assert_error(edited(smollm2(), "rope_theta", Some(json!(0))), &["rope_theta is 0", "above 0"]);
}

#[test]
fn refusals_name_field_expected_and_found() {
    for (config, key, value, parts) in [
        (smollm2(), "hidden_act", json!("gelu"), ["hidden_act is \"gelu\"", "silu"]),
        (smollm2(), "rope_interleaved", json!(true), ["rope_interleaved is true", "false"]),
        (smollm2(), "num_key_value_heads", json!(2), ["num_key_value_heads is 2", "num_attention_heads (9)"]),
        (smollm2(), "num_key_value_heads", json!(0), ["num_key_value_heads is 0", "at least 1"]),
        (smollm2(), "num_attention_heads", json!(0), ["num_attention_heads is 0", "divisor of hidden_size"]),
        (smollm2(), "num_attention_heads", json!(7), ["num_attention_heads is 7", "divisor of hidden_size (576)"]),
        (llama3_2(), "num_attention_heads", json!(0), ["num_attention_heads is 0", "at least 1"]),
        (smollm2(), "hidden_size", json!(9), ["head_dim is 1", "an even number above 0"]),
        (smollm2(), "hidden_size", json!(0), ["hidden_size is 0", "at least 1"]),
        (smollm2(), "intermediate_size", json!(0), ["intermediate_size is 0", "at least 1"]),
        (smollm2(), "vocab_size", json!(0), ["vocab_size is 0", "at least 1"]),
        (smollm2(), "vocab_size", json!(1u64 << 60), ["vocab_size is 1152921504606846976", "16777216"]),
        (qwen3(), "head_dim", json!(0), ["head_dim is 0", "even"]),
        (qwen3(), "head_dim", json!(65), ["head_dim is 65", "even"]),
        (smollm2(), "num_hidden_layers", json!(0), ["num_hidden_layers is 0", "1 to 4096"]),
        (smollm2(), "num_hidden_layers", json!(4097), ["num_hidden_layers is 4097", "1 to 4096"]),
        (smollm2(), "rms_norm_eps", json!(0), ["rms_norm_eps is 0", "above 0"]),
        (smollm2(), "max_position_embeddings", json!(1), ["max_position_embeddings is 1", "at least 2"]),
        (smollm2(), "eos_token_id", json!("</s>"), ["eos_token_id is \"</s>\"", "a token id"]),
        (smollm2(), "tie_word_embeddings", json!(1), ["tie_word_embeddings is 1", "true or false"]),
        (smollm2(), "architectures", json!([1]), ["architectures is [1]", "a list of names"]),
        (qwen3(), "use_sliding_window", json!(true), ["use_sliding_window is true", "not supported"]),
        (qwen2(), "use_sliding_window", json!(true), ["use_sliding_window is true", "not supported"]),
        (qwen2(), "layer_types", json!(["full_attention", "sliding_attention"]), ["layer_types[1]", "full_attention"]),
        (mistral(), "sliding_window", json!(4096), ["sliding_window is 4096", "max_position_embeddings (32768)"]),
        (mistral(), "model_type", json!("mixtral"), ["model_type \"mixtral\" is not supported", "llama, mistral"]),
        (mistral(), "model_type", json!(null), ["model_type is null", "qwen3"]),
    ] {
        let parts = [&["somewhere/config.json"], &parts[..]].concat();
        assert_error(edited(config, key, Some(value)), &parts);
    }
    assert_error(edited(mistral(), "sliding_window", None), &["sliding_window is absent", "absent means 4096"]);
    // A window that no position outgrows is none, and a Qwen file's is switched off beside it.
    edited(mistral(), "sliding_window", Some(json!(32_768))).unwrap();
    edited(qwen2(), "sliding_window", Some(json!(16))).unwrap();
    edited(qwen3(), "layer_types", Some(json!(vec!["full_attention"; 28]))).unwrap();
    let mut config = qwen3();
    config["num_attention_heads"] = json!(1 << 24);
    config["head_dim"] = json!(1 << 24);
    assert_error(parse(&config), &["num_attention_heads * head_dim * hidden_size", "elements"]);
}

#[test]
fn stop_ids_are_merged_and_left_overs_are_seen() {
    let dir = tempdir().unwrap();
    let from = |config: &Value, tensors: &[&str]| {
        let shape = [1usize];
        let tensors: Vec<_> = tensors.iter().map(|name| (*name, "F32", &shape[..], &[0u8; 4][..])).collect();
        write_checkpoint(dir.path(), config, &tensors);
        let checkpoint = Checkpoint::open(dir.path())?;
        let config = LlamaConfig::from_checkpoint(&checkpoint)?;
        Weights::new(&checkpoint, "model.").finish(|name| config.ignores(name))?;
        Ok(config)
    };
    let mut config = smollm2();
    assert_eq!(from(&config, &[]).unwrap().eos_token_ids, [0]);
    config.as_object_mut().unwrap().remove("eos_token_id");
    let got: Result<LlamaConfig> = from(&config, &[]);
    assert!(got.unwrap().warnings[0].contains("eos_token_id"));
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [7, 2]}"#).unwrap();
    let got = from(&config, &["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"]).unwrap();
    assert_eq!((got.eos_token_ids, got.warnings.len()), (vec![2, 7], 0));
    config["tie_word_embeddings"] = json!(false);
    assert_error(from(&config, &["lm_head.weight"]), &["lm_head.weight", "does not use"]);
    assert_error(from(&config, &["model.norm.weight"]), &["model.norm.weight", "does not use"]);
}

/// Every field that the published files agree to have reaches the result: a change of it is seen.
#[test]
fn a_planted_change_is_seen() {
    for (config, changes) in [
        (
            llama3_2(),
            vec![
                ("vocab_size", json!(128_000)),
                ("hidden_size", json!(1024)),
                ("intermediate_size", json!(8191)),
                ("num_attention_heads", json!(16)),
                ("num_key_value_heads", json!(4)),
                ("num_hidden_layers", json!(15)),
                ("head_dim", json!(62)),
                ("attention_bias", json!(true)),
                ("mlp_bias", json!(true)),
                ("rms_norm_eps", json!(1e-6)),
                ("rope_theta", json!(1e4)),
                ("rope_scaling", json!(null)),
                ("max_position_embeddings", json!(4096)),
                ("tie_word_embeddings", json!(false)),
                ("eos_token_id", json!(1)),
                ("architectures", json!(["Other"])),
            ],
        ),
        (qwen3(), vec![("model_type", json!("qwen2")), ("model_type", json!("llama"))]),
    ] {
        let before = parse(&config).unwrap();
        for (key, value) in changes {
            let after = edited(config.clone(), key, Some(value)).unwrap_or_else(|error| panic!("{key}: {error}"));
            assert_ne!(before, after, "{key}");
        }
        // And what is no part of the model is not.
        assert_eq!(before, edited(config, "initializer_range", Some(json!(1.0))).unwrap());
    }
}
