//! Configurations of Gemma 4's drafters: the published forms, defaults, and what is refused with which words.

mod common;

use std::path::Path;

use common::{golden, repo};
use mlxcel_checkpoint::gemma4::{Centroids, Gemma4AssistantConfig, LayerType};
use mlxcel_checkpoint::{Checkpoint, CheckpointError};
use serde_json::{Value, json};

fn config_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap()
}

fn parse(value: &Value) -> Result<Gemma4AssistantConfig, CheckpointError> {
    Gemma4AssistantConfig::parse(Path::new("somewhere/config.json"), value)
}

#[test]
fn goldens_and_demos_parse() {
    for name in ["dense", "e2b", "e4b", "moe", "unified"] {
        for form in ["assistant", "assistant-mlx-q4"] {
            let dir = golden(&format!("{name}-{form}"));
            let config = Gemma4AssistantConfig::from_checkpoint(&Checkpoint::open(&dir).unwrap()).unwrap();
            assert_eq!((config.backbone_hidden_size, config.block_size), (64, 4), "{name}-{form}");
            let centroids = Centroids { num_centroids: 16, centroid_intermediate_top_k: 4 };
            assert_eq!(config.centroids, name.starts_with('e').then_some(centroids), "{name}-{form}");
            let text = config.text;
            assert_eq!((text.num_hidden_layers, text.first_shared_layer(), text.hidden_size), (4, 0, 64));
            assert_eq!((text.layer_types[2], text.layer_types[3]), (LayerType::Sliding, LayerType::Full));
        }
    }
    for form in ["4bit", "bf16"] {
        let dir = repo().join(format!("models/gemma-4-tiny-it-assistant-{form}"));
        let config = Gemma4AssistantConfig::from_checkpoint(&Checkpoint::open(&dir).unwrap()).unwrap();
        assert_eq!((config.backbone_hidden_size, config.block_size, config.centroids), (384, 4, None));
    }
}

#[test]
fn defaults() {
    for (model_type, backbone, window) in [("gemma4_assistant", 1536, 512), ("gemma4_unified_assistant", 3840, 1024)] {
        let mut config = json!({"model_type": model_type, "text_config": {"num_hidden_layers": 4}});
        let plain = parse(&config).unwrap();
        assert_eq!((plain.backbone_hidden_size, plain.block_size, plain.centroids), (backbone, 4, None));
        let text = &plain.text;
        assert_eq!((text.sliding_window, text.num_kv_shared_layers, text.hidden_size_per_layer_input), (window, 4, 0));
        // 0, absent and all of them mean the same.
        for shared in [0, 4] {
            config["text_config"]["num_kv_shared_layers"] = json!(shared);
            assert_eq!(parse(&config).unwrap(), plain, "{shared}");
        }
        config["use_ordered_embeddings"] = json!(true);
        let centroids = Centroids { num_centroids: 2048, centroid_intermediate_top_k: 32 };
        assert_eq!(parse(&config).unwrap().centroids, Some(centroids));
    }
    // K/V heads are the target's to say.
    let mut config = config_of("dense-assistant");
    config["text_config"]["num_key_value_heads"] = json!(3);
    assert!(parse(&config).is_ok());
    for block_size in [2, 16] {
        config["block_size"] = json!(block_size);
        assert_eq!(parse(&config).unwrap().block_size, block_size);
    }
}

#[test]
fn unusable_values_name_file_field_expected_and_found() {
    let huge = 1usize << 24;
    for (field, value, parts) in [
        ("model_type", json!("gemma4"), ["model_type \"gemma4\" is not supported", "gemma4_assistant"]),
        ("model_type", Value::Null, ["model_type is null", "one of gemma4_assistant, gemma4_unified_assistant"]),
        ("text_config", Value::Null, ["text_config is null", "an object"]),
        ("backbone_hidden_size", json!(0), ["backbone_hidden_size is 0", "at least 1"]),
        ("backbone_hidden_size", json!("64"), ["backbone_hidden_size is \"64\"", "an integer"]),
        ("block_size", json!(1), ["block_size is 1", "2 to 16"]),
        ("block_size", json!(17), ["block_size is 17", "2 to 16"]),
        ("use_ordered_embeddings", json!(1), ["use_ordered_embeddings is 1", "true or false"]),
        ("num_centroids", json!(0), ["num_centroids is 0", "a divisor of text_config.vocab_size (160)"]),
        ("num_centroids", json!(7), ["num_centroids is 7", "a divisor of text_config.vocab_size (160)"]),
        ("centroid_intermediate_top_k", json!(0), ["centroid_intermediate_top_k is 0", "1 to num_centroids (16)"]),
        ("centroid_intermediate_top_k", json!(17), ["centroid_intermediate_top_k is 17", "1 to num_centroids (16)"]),
        ("tie_word_embeddings", json!(false), ["tie_word_embeddings is false", "true"]),
        ("text_config.tie_word_embeddings", json!(false), ["text_config.tie_word_embeddings is false", "true"]),
        ("text_config.model_type", json!("gemma3"), ["text_config.model_type is \"gemma3\"", "gemma4_unified_text"]),
        ("text_config.num_kv_shared_layers", json!(3), ["num_kv_shared_layers is 3", "4 (num_hidden_layers) or 0"]),
        ("text_config.hidden_size_per_layer_input", json!(8), ["hidden_size_per_layer_input is 8", "0 or null"]),
        ("text_config.enable_moe_block", json!(true), ["enable_moe_block is true", "false"]),
        ("text_config.use_double_wide_mlp", json!(true), ["use_double_wide_mlp is true", "false"]),
        ("text_config.final_logit_softcapping", json!(30.0), ["final_logit_softcapping is 30.0", "null"]),
        ("text_config.head_dim", json!(15), ["head_dim is 15 (layer 0)", "an even number above 0"]),
        ("text_config.hidden_size", json!(0), ["hidden_size is 0", "at least 1"]),
        ("text_config.layer_types", json!(["full_attention"]), ["a list of 1 entries", "4 entries"]),
        ("text_config.num_hidden_layers", json!(0), ["num_hidden_layers is 0", "1 to"]),
        ("text_config.vocab_size", json!(huge), ["vocab_size", "at most"]),
    ] {
        let mut config = config_of("e2b-assistant");
        if field == "text_config.vocab_size" {
            config["text_config"]["hidden_size"] = json!(huge);
        }
        match field.split_once('.') {
            Some((outer, inner)) => config[outer][inner] = value,
            None => config[field] = value,
        }
        let message = parse(&config).expect_err(field).to_string();
        for part in ["somewhere/config.json"].iter().chain(&parts) {
            assert!(message.contains(part), "{part:?} not in: {message}");
        }
    }
}
