//! Configurations: every family member, defaults, derived sizes, and each way in which fields can contradict each other.

mod common;

use std::path::Path;

use common::{assert_error, golden, goldens};
use mlxcel_checkpoint::gemma4::{Bidirectional, LayerType, RopeType};
use mlxcel_checkpoint::{
    Checkpoint, CheckpointError, Gemma4Config, Gemma4Family, GenerationDefaults, Result, StopIds,
    testing::write_checkpoint,
};
use serde_json::{Value, json};
use tempfile::tempdir;

fn parse(config: &Value) -> Result<Gemma4Config> {
    Gemma4Config::parse(Path::new("somewhere/config.json"), config)
}

fn config_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap()
}

/// The wrapper configuration of a golden with one text field set.
fn edited(name: &str, key: &str, value: Value) -> Result<Gemma4Config> {
    let mut config = config_of(name);
    config["text_config"][key] = value;
    parse(&config)
}

#[test]
fn goldens_parse_without_warnings() {
    for dir in goldens() {
        let name = dir.file_name().unwrap().to_str().unwrap().to_string();
        if name.contains("assistant") {
            continue;
        }
        let config = Gemma4Config::from_checkpoint(&Checkpoint::open(&dir).unwrap()).unwrap();
        assert!(config.warnings.is_empty(), "{name}: {:?}", config.warnings);
        assert_eq!(config.eos_token_ids, [1], "{name}");
    }
}

#[test]
fn family_members() {
    for (name, family, architecture, vision) in [
        ("e2b", Gemma4Family::Gemma4, "Gemma4ForConditionalGeneration", true),
        ("text_only", Gemma4Family::Gemma4Text, "Gemma4ForCausalLM", false),
        ("unified", Gemma4Family::Unified, "Gemma4UnifiedForConditionalGeneration", true),
    ] {
        let config = parse(&config_of(name)).unwrap();
        assert_eq!((config.family, config.architecture.as_str(), config.has_vision), (family, architecture, vision));
        assert_eq!((config.has_audio, config.image_token_id), (false, vision.then_some(150)));
        assert_eq!(config.eoa_token_id, vision.then_some(258883));
    }
    let mut text = config_of("unified")["text_config"].clone();
    let unified = parse(&text).unwrap();
    assert_eq!(
        (unified.family, unified.architecture.as_str()),
        (Gemma4Family::UnifiedText, "Gemma4UnifiedForCausalLM")
    );
    text.as_object_mut().unwrap().remove("hidden_size_per_layer_input");
    assert_eq!(parse(&text).unwrap().text.hidden_size_per_layer_input, 0);
}

#[test]
fn derived_sizes_e2b() {
    let text = parse(&config_of("e2b")).unwrap().text;
    assert_eq!(text.first_shared_layer(), 3);
    let per_layer = |f: &dyn Fn(usize) -> usize| (0..6).map(f).collect::<Vec<_>>();
    assert_eq!(per_layer(&|layer| text.kv_source(layer)), [0, 1, 2, 1, 1, 2]);
    assert_eq!(per_layer(&|layer| text.head_dim(layer)), [16, 16, 32, 16, 16, 32]);
    assert_eq!(per_layer(&|layer| text.kv_heads(layer)), [1; 6]);
    assert_eq!(per_layer(&|layer| text.mlp_width(layer)), [128, 128, 128, 256, 256, 256]);
    assert_eq!(per_layer(&|layer| text.is_sliding(layer).into()), [1, 1, 0, 1, 1, 0]);
    assert_eq!(text.hidden_size_per_layer_input, 32);
    assert_eq!(text.use_bidirectional_attention, Bidirectional::None);
    assert!(!(0..6).any(|layer| text.k_eq_v(layer)) && text.moe().is_none());
}

#[test]
fn derived_sizes_dense_and_moe() {
    let text = parse(&config_of("dense")).unwrap().text;
    assert_eq!((0..6).map(|layer| text.kv_heads(layer)).collect::<Vec<_>>(), [2, 2, 1, 2, 2, 1]);
    assert_eq!((0..6).map(|layer| text.k_eq_v(layer)).collect::<Vec<_>>(), [false, false, true, false, false, true]);
    assert_eq!(text.use_bidirectional_attention, Bidirectional::Vision);
    // Without K = V the global head count is not used.
    let text = edited("dense", "attention_k_eq_v", json!(false)).unwrap().text;
    assert!((0..6).all(|layer| text.kv_heads(layer) == 2));
    let moe = parse(&config_of("moe")).unwrap().text.moe().unwrap();
    assert_eq!((moe.num_experts, moe.top_k_experts, moe.moe_intermediate_size), (8, 2, 32));
}

#[test]
fn defaults_of_absent_keys() {
    let config = parse(&json!({"model_type": "gemma4_text"})).unwrap();
    let text = &config.text;
    assert_eq!((text.vocab_size, text.hidden_size, text.num_hidden_layers), (262_144, 2304, 30));
    assert_eq!((text.intermediate_size, text.num_attention_heads, text.num_key_value_heads), (9216, 8, 4));
    assert_eq!((text.head_dim, text.global_head_dim, text.sliding_window), (256, 512, 512));
    assert_eq!((text.hidden_size_per_layer_input, text.vocab_size_per_layer_input), (256, 262_144));
    assert_eq!((text.num_kv_shared_layers, text.use_double_wide_mlp, text.final_logit_softcapping), (0, false, None));
    assert_eq!((text.rms_norm_eps, text.tie_word_embeddings, text.pad_token_id), (1e-6, true, 0));
    assert_eq!(text.layer_types.iter().filter(|kind| **kind == LayerType::Full).count(), 5);
    assert_eq!((text.rope(0).rope_theta, text.rope(0).rope_type), (10_000.0, RopeType::Default));
    let full = text.rope(5);
    assert_eq!((full.rope_theta, full.partial_rotary_factor, full.rope_type), (1e6, 0.25, RopeType::Proportional));
    assert_eq!(config.eos_token_ids, [1]);
    for key in ["hidden_size", "layer_types", "global_head_dim", "hidden_size_per_layer_input", "rope_parameters"] {
        assert!(config.warnings.iter().any(|warning| warning.starts_with(key)), "{key}: {:?}", config.warnings);
    }
    let unified = parse(&json!({"model_type": "gemma4_unified_text"})).unwrap().text;
    assert_eq!((unified.sliding_window, unified.hidden_size_per_layer_input), (1024, 0));
    assert_eq!(unified.use_bidirectional_attention, Bidirectional::Vision);
    // The default pattern ends in a full layer wherever it is cut.
    let seven = parse(&json!({"model_type": "gemma4_text", "num_hidden_layers": 7})).unwrap().text;
    assert_eq!((0..7).filter(|layer| !seven.is_sliding(*layer)).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn null_is_not_absent() {
    assert_eq!(edited("e2b", "hidden_size_per_layer_input", json!(null)).unwrap().text.hidden_size_per_layer_input, 0);
    let unified = edited("unified", "use_bidirectional_attention", json!(null)).unwrap();
    assert_eq!(unified.text.use_bidirectional_attention, Bidirectional::None);
    let mut config = config_of("e2b");
    config["vision_config"] = json!(null);
    assert!(!parse(&config).unwrap().has_vision);
}

#[test]
fn sizes_by_layer_instead_of_flat_keys() {
    let mut config = config_of("dense");
    let text = config["text_config"].as_object_mut().unwrap();
    text.remove("global_head_dim");
    text.remove("num_global_key_value_heads");
    let own = json!({"head_dim": 32, "num_key_value_heads": 1});
    text.insert("per_layer_config".into(), json!({"2": own, "5": own}));
    let parsed = parse(&config).unwrap();
    assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
    assert_eq!(parsed.text.head_dim(2), 32);
    let flat = parse(&config_of("dense")).unwrap().text;
    for layer in 0..6 {
        let sizes = |text: &mlxcel_checkpoint::Gemma4TextConfig| (text.head_dim(layer), text.kv_heads(layer));
        assert_eq!(sizes(&parsed.text), sizes(&flat), "layer {layer}");
    }
    let text = |key: &str, value: Value| edited("e2b", "per_layer_config", json!({key: value}));
    assert_error(text("x", json!({})), &["per_layer_config.x", "a layer index"]);
    assert_error(text("6", json!({})), &["per_layer_config", "layer 6", "below num_hidden_layers (6)"]);
    assert_error(text("2", json!({"head_dim": 7})), &["per_layer_config.2.head_dim", "even"]);
    assert_error(text("5", json!({"head_dim": 64})), &["layer 5 as layer 2"]);
    assert_error(
        text("2", json!({"num_key_value_heads": 3})),
        &["per_layer_config.2.num_key_value_heads", "3 (layer 2)"],
    );
}

#[test]
fn rope_parameters() {
    let full = json!({"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": 0.5, "factor": 8.0});
    let text = edited("dense", "rope_parameters", json!({"full_attention": full})).unwrap().text;
    assert_eq!((text.rope(2).rope_theta, text.rope(2).partial_rotary_factor, text.rope(2).factor), (5e5, 0.5, 8.0));
    assert_eq!(text.rope(0).rope_theta, 10_000.0);
    for (key, value, part) in [
        ("rope_type", json!("yarn"), "default or proportional"),
        ("rope_theta", json!(0), "above 0"),
        ("rope_theta", json!("1e6"), "a finite number"),
        ("partial_rotary_factor", json!(1.5), "at most 1"),
        ("factor", json!(-1.0), "above 0"),
    ] {
        let result = edited("dense", "rope_parameters", json!({"sliding_attention": {key: value}}));
        assert_error(result, &[&format!("text_config.rope_parameters.sliding_attention.{key}"), part]);
    }
}

#[test]
fn contradictions_name_field_expected_and_found() {
    let sharing = json!(6);
    for (name, key, value, parts) in [
        ("dense", "layer_types", json!(["full_attention"]), ["layer_types is a list of 1 entries", "6 entries"]),
        (
            "dense",
            "layer_types",
            json!(["full_attention", "a", "b", "c", "d", "e"]),
            ["layer_types[1] is \"a\"", "sliding"],
        ),
        ("dense", "layer_types", json!(3), ["layer_types is 3", "a list"]),
        ("dense", "num_attention_heads", json!(5), ["num_key_value_heads is 2 (layer 0)", "num_attention_heads (5)"]),
        ("dense", "num_global_key_value_heads", json!(3), ["num_global_key_value_heads is 3 (layer 2)", "divisor"]),
        ("dense", "hidden_size", json!(0), ["hidden_size is 0", "at least 1"]),
        ("dense", "vocab_size", json!(-1), ["vocab_size is -1", "an integer from 0"]),
        ("dense", "vocab_size", json!(160.5), ["vocab_size is 160.5", "an integer from 0"]),
        ("dense", "vocab_size", json!(1u64 << 60), ["vocab_size is 1152921504606846976", "16777216"]),
        ("dense", "num_hidden_layers", json!(0), ["num_hidden_layers is 0", "1 to 4096"]),
        ("dense", "num_hidden_layers", json!(16_000_000), ["num_hidden_layers is 16000000", "1 to 4096"]),
        ("dense", "head_dim", json!(15), ["head_dim is 15 (layer 0)", "even"]),
        ("dense", "global_head_dim", json!(33), ["global_head_dim is 33 (layer 2)", "even"]),
        ("dense", "rms_norm_eps", json!(0.0), ["rms_norm_eps is 0.0", "above 0"]),
        ("dense", "final_logit_softcapping", json!(-30), ["final_logit_softcapping is -30", "above 0"]),
        ("dense", "hidden_activation", json!("silu"), ["hidden_activation is \"silu\"", "gelu_pytorch_tanh"]),
        ("dense", "attention_bias", json!(true), ["attention_bias is true", "not supported"]),
        ("dense", "use_bidirectional_attention", json!("all"), ["use_bidirectional_attention is \"all\"", "vision"]),
        ("dense", "tie_word_embeddings", json!("yes"), ["tie_word_embeddings is \"yes\"", "true or false"]),
        ("dense", "eos_token_id", json!(-1), ["eos_token_id is -1", "a token id"]),
        ("dense", "model_type", json!("gemma3_text"), ["model_type is \"gemma3_text\"", "gemma4_text"]),
        ("e2b", "num_kv_shared_layers", sharing, ["num_kv_shared_layers is 6", "below num_hidden_layers (6)"]),
        ("e2b", "num_kv_shared_layers", json!(4), ["num_kv_shared_layers is 4", "full_attention"]),
        ("e2b", "vocab_size_per_layer_input", json!(100), ["vocab_size_per_layer_input is 100", "vocab_size (160)"]),
        ("e2b", "pad_token_id", json!(160), ["pad_token_id is 160", "below vocab_size"]),
        ("moe", "num_experts", json!(null), ["num_experts is null", "enable_moe_block"]),
        ("moe", "top_k_experts", json!(9), ["top_k_experts is 9", "at most num_experts (8)"]),
        ("moe", "moe_intermediate_size", json!(0), ["moe_intermediate_size is 0", "at least 1"]),
    ] {
        let parts = [&["somewhere/config.json", "text_config."], &parts[..]].concat();
        assert_error(edited(name, key, value), &parts);
    }
}

/// Sizes that are each plausible but multiply to more than any tensor can hold.
#[test]
fn products_are_bounded() {
    let mut config = config_of("dense");
    for key in ["num_attention_heads", "head_dim", "global_head_dim"] {
        config["text_config"][key] = json!(1 << 24);
    }
    assert_error(parse(&config), &["num_attention_heads * head_dim * hidden_size", "elements"]);
    let mut config = config_of("moe");
    for key in ["num_experts", "moe_intermediate_size"] {
        config["text_config"][key] = json!(1 << 24);
    }
    assert_error(parse(&config), &["num_experts * 2 * moe_intermediate_size * hidden_size"]);
}

#[test]
fn model_types_that_are_no_target() {
    for (config, parts) in [
        (
            json!({"model_type": "llama"}),
            ["model_type \"llama\" is not supported", "gemma4, gemma4_text, gemma4_unified"],
        ),
        (json!({}), ["model_type is absent", "gemma4_unified_text"]),
        (json!({"model_type": 4}), ["model_type is 4", "a string"]),
        (json!({"model_type": "gemma4"}), ["text_config is absent", "an object (model_type gemma4)"]),
        (json!({"model_type": "gemma4", "text_config": []}), ["text_config is []", "an object"]),
    ] {
        assert_error(parse(&config), &[&["somewhere/config.json"], &parts[..]].concat());
    }
    for drafter in ["gemma4_assistant", "gemma4_unified_assistant"] {
        let result = parse(&json!({"model_type": drafter, "text_config": {}}));
        assert!(matches!(result, Err(CheckpointError::DrafterAsTarget { .. })));
        assert_error(result, &["config.json", drafter, "is a drafter"]);
    }
}

fn stop_ids(config: Value, generation: Option<Value>) -> Result<Vec<u32>> {
    let dir = tempdir().unwrap();
    write_checkpoint(dir.path(), &config, &[]);
    if let Some(generation) = generation {
        std::fs::write(dir.path().join("generation_config.json"), generation.to_string()).unwrap();
    }
    Ok(StopIds::from_checkpoint(&Checkpoint::open(dir.path())?)?.ids().to_vec())
}

#[test]
fn stop_ids_are_merged() {
    let config = json!({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}});
    assert_eq!(stop_ids(config.clone(), None).unwrap(), [1, 106]);
    assert_eq!(stop_ids(config.clone(), Some(json!({"eos_token_id": [50, 106]}))).unwrap(), [1, 50, 106]);
    assert_eq!(stop_ids(json!({}), Some(json!({"eos_token_id": 7}))).unwrap(), [7]);
    assert_eq!(stop_ids(json!({"eos_token_id": null}), None).unwrap(), [0; 0]);
    for bad in [json!("1"), json!([1, -1]), json!(4_294_967_296u64), json!([[1]]), json!(true)] {
        assert_error(stop_ids(json!({"text_config": {"eos_token_id": bad}}), None), &["text_config.eos_token_id"]);
        assert_error(
            stop_ids(json!({}), Some(json!({"eos_token_id": bad}))),
            &["generation_config.json", "eos_token_id"],
        );
    }
}

#[test]
fn generation_defaults() {
    let file = Path::new("generation_config.json");
    let parse = |value: Value| GenerationDefaults::parse(file, &value);
    let got = parse(json!({
        "do_sample": true, "temperature": 0.7, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 106], "pad_token_id": 0,
        "bos_token_id": 2, "suppress_tokens": [258_883, 258_882], "transformers_version": "5.24.0"
    }))
    .unwrap();
    assert_eq!((got.do_sample, got.temperature, got.top_k), (Some(true), Some(0.7), Some(64)));
    assert_eq!((got.top_p, got.min_p, got.eos_token_ids), (Some(0.95), None, vec![1, 106]));
    assert_eq!((got.bos_token_id, got.suppress_tokens.len()), (Some(2), 2));
    assert_eq!(parse(json!({})).unwrap(), GenerationDefaults::default());
    for (key, value) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("min_p", json!(-1)),
        ("top_k", json!(-1)),
        ("do_sample", json!(1)),
    ] {
        assert_error(parse(json!({key: value})), &["generation_config.json", key, &value.to_string()]);
    }
}
