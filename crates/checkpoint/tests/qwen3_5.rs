//! Qwen 3.5 configurations: every form of the file, published sizes, each refusal, and that the goldens and the demo hold
//! exactly the tensors their configuration implies.

mod common;

use std::path::{Path, PathBuf};

use common::{Copy, assert_error, repo};
use mlxcel_checkpoint::qwen3_5::{LayerType, MODEL_TYPES, MoeConfig, Qwen3_5Config};
use mlxcel_checkpoint::{Checkpoint, CheckpointError, Result, Weights, testing::write_checkpoint};
use serde_json::{Value, json};
use tempfile::tempdir;

const TARGETS: [&str; 9] = [
    "dense",
    "dense-mlx/f32",
    "dense-mlx/4bit",
    "dense-tied",
    "dense-tied-mlx/f32",
    "dense-tied-mlx/4bit",
    "moe",
    "moe-mlx/f32",
    "moe-mlx/4bit",
];

fn golden(name: &str) -> PathBuf {
    repo().join("tests/golden/qwen3_5").join(name)
}

fn demo() -> PathBuf {
    repo().join("models/qwen3.5-tiny-4bit")
}

fn config_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap()
}

fn parse(config: &Value) -> Result<Qwen3_5Config> {
    Qwen3_5Config::parse(Path::new("somewhere/config.json"), config)
}

/// The wrapper configuration of a golden with one text field set.
fn edited(name: &str, key: &str, value: Value) -> Result<Qwen3_5Config> {
    let mut config = config_of(name);
    config["text_config"][key] = value;
    parse(&config)
}

/// Asks for every tensor of the text stack, as a model does; fails on one that is missing, ill-shaped or left over.
fn walk(dir: &Path) -> Result<Qwen3_5Config> {
    let checkpoint = Checkpoint::open(dir)?;
    let config = Qwen3_5Config::from_checkpoint(&checkpoint)?;
    let weights = Weights::detect(&checkpoint)?;
    let c = &config.text;
    let hidden = c.hidden_size;
    weights.linear("embed_tokens", c.vocab_size, hidden)?;
    weights.vector("norm.weight", hidden)?;
    if !c.tie_word_embeddings {
        weights.lm_head(c.vocab_size, hidden)?;
    }
    for index in 0..c.num_hidden_layers {
        let layer = weights.sub(&format!("layers.{index}."));
        layer.vector("input_layernorm.weight", hidden)?;
        layer.vector("post_attention_layernorm.weight", hidden)?;
        match c.layer_types[index] {
            LayerType::LinearAttention => {
                let mixer = layer.sub("linear_attn.");
                let (heads, channels, taps) = (c.linear_num_value_heads, c.linear_conv_dim(), c.linear_conv_kernel_dim);
                mixer.linear("in_proj_qkv", channels, hidden)?;
                mixer.linear("in_proj_z", c.linear_value_dim(), hidden)?;
                mixer.linear("in_proj_b", heads, hidden)?;
                mixer.linear("in_proj_a", heads, hidden)?;
                mixer.linear("out_proj", hidden, c.linear_value_dim())?;
                mixer.vector("A_log", heads)?;
                mixer.vector("dt_bias", heads)?;
                mixer.vector("norm.weight", c.linear_value_head_dim)?;
                let conv = mixer.tensor("conv1d.weight")?;
                let mlx = conv.shape.last() == Some(&1);
                conv.expect_shape(&if mlx { [channels, taps, 1] } else { [channels, 1, taps] })?;
            }
            LayerType::FullAttention => {
                let attention = layer.sub("self_attn.");
                let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
                attention.linear("q_proj", 2 * q, hidden)?;
                attention.linear("k_proj", kv, hidden)?;
                attention.linear("v_proj", kv, hidden)?;
                attention.linear("o_proj", hidden, q)?;
                attention.vector("q_norm.weight", c.head_dim)?;
                attention.vector("k_norm.weight", c.head_dim)?;
            }
        }
        let mlp = layer.sub("mlp.");
        let dense = |mlp: &Weights<'_>, width: usize| {
            mlp.linear("gate_proj", width, hidden)?;
            mlp.linear("up_proj", width, hidden)?;
            mlp.linear("down_proj", hidden, width)
        };
        let Some(moe) = &c.moe else {
            dense(&mlp, c.intermediate_size)?;
            continue;
        };
        let (experts, width) = (moe.num_experts, moe.moe_intermediate_size);
        mlp.linear("gate", experts, hidden)?;
        mlp.linear("shared_expert_gate", 1, hidden)?;
        dense(&mlp.sub("shared_expert."), moe.shared_expert_intermediate_size)?;
        if mlp.has("experts.gate_up_proj") {
            mlp.fused_experts("experts.gate_up_proj", experts, width, hidden)?;
            mlp.experts("experts.down_proj", experts, hidden, width)?;
        } else {
            mlp.experts("switch_mlp.gate_proj", experts, width, hidden)?;
            mlp.experts("switch_mlp.up_proj", experts, width, hidden)?;
            mlp.experts("switch_mlp.down_proj", experts, hidden, width)?;
        }
    }
    weights.finish(|name| config.ignores(name))?;
    Ok(config)
}

#[test]
fn goldens_hold_what_their_configuration_implies() {
    for name in TARGETS {
        let config = walk(&golden(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(config.warnings.is_empty(), "{name}: {:?}", config.warnings);
        assert_eq!(config.eos_token_ids, [190], "{name}");
        assert_eq!(config.has_vision, !name.contains("tied"), "{name}");
        assert_eq!(config.text.moe.is_some(), name.starts_with("moe"), "{name}");
        assert_eq!(config.text.tie_word_embeddings, name.contains("tied"), "{name}");
        for head in ["lm_head.weight", "language_model.lm_head.scales", "model.language_model.lm_head.weight"] {
            assert_eq!(config.ignores(head), name.contains("tied"), "{name}: {head}");
        }
        assert_eq!((config.text.rope.rope_theta, config.text.rope.rotary_dim()), (10_000.0, 16), "{name}");
        assert_eq!(config.text.rope.mrope_section, Some([3, 3, 2]), "{name}");
        if config.has_vision {
            let ids = [
                config.image_token_id,
                config.video_token_id,
                config.vision_start_token_id,
                config.vision_end_token_id,
            ];
            assert_eq!(ids, [180, 181, 182, 183].map(Some), "{name}");
        }
    }
}

/// The walk above can fail: a size that is off by little, a tensor too many, a tensor too few.
#[test]
fn a_planted_fault_is_seen() {
    for (name, key, value, part) in [
        ("dense", "linear_num_value_heads", json!(8), "in_proj_qkv"),
        ("dense", "linear_key_head_dim", json!(16), "in_proj_qkv"),
        ("dense", "linear_conv_kernel_dim", json!(3), "conv1d"),
        ("dense", "head_dim", json!(32), "q_proj"),
        ("dense", "num_key_value_heads", json!(2), "k_proj"),
        ("dense", "num_hidden_layers", json!(3), "layer_types"),
        ("dense", "tie_word_embeddings", json!(true), ""),
        ("moe-mlx/4bit", "num_experts", json!(4), "gate"),
        ("moe-mlx/4bit", "shared_expert_intermediate_size", json!(64), "shared_expert"),
    ] {
        let dir = tempdir().unwrap();
        let mut copy = Copy::at(&golden(name));
        copy.config["text_config"][key] = value;
        if key == "head_dim" {
            // So that what is found is the tensor and not the sections.
            copy.config["text_config"]["rope_parameters"]["mrope_section"] = json!([2, 1, 1]);
        }
        copy.write(dir.path());
        if key == "tie_word_embeddings" {
            // Not a fault: the head of a tied model is ignored.
            walk(dir.path()).unwrap();
        } else {
            assert_error(walk(dir.path()).map(|_| ()), &[part]);
        }
    }
    for (extra, seen) in [
        ("model.language_model.layers.0.linear_attn.conv1d.bias", true),
        ("model.language_model.layers.4.mlp.up_proj.weight", true),
        ("model.language_model.mtp_norm.weight", true),
        ("model.language_model.layers.0.visual.weight", true),
        ("language_model.mtp.fc.weight", false),
        ("vision_tower.merger.norm.weight", false),
        ("model.language_model.rotary_emb.inv_freq", false),
    ] {
        let dir = tempdir().unwrap();
        let mut copy = Copy::at(&golden("dense"));
        copy.tensors.insert(extra.into(), ("F32".into(), vec![1], vec![0; 4]));
        copy.write(dir.path());
        match walk(dir.path()) {
            Err(error) => assert!(seen && error.to_string().contains(extra), "{error}"),
            Ok(_) => assert!(!seen, "{extra} was not noticed"),
        }
    }
    let dir = tempdir().unwrap();
    let mut copy = Copy::at(&golden("dense-tied-mlx/f32"));
    copy.tensors.remove("language_model.model.layers.1.linear_attn.dt_bias").unwrap();
    copy.write(dir.path());
    assert_error(walk(dir.path()).map(|_| ()), &["layers.1.linear_attn.dt_bias"]);
}

#[test]
fn the_demo_resolves() {
    let config = walk(&demo()).unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!((config.model_type.as_str(), config.architecture.as_str()), ("qwen3_5", "Qwen3_5ForCausalLM"));
    assert_eq!((config.has_vision, config.image_token_id), (false, None));
    // config.json names the first only.
    assert_eq!(config.eos_token_ids, [16_377, 16_379]);
    let text = &config.text;
    assert_eq!((text.vocab_size, text.hidden_size, text.intermediate_size), (16_384, 384, 1024));
    assert_eq!((text.num_attention_heads, text.num_key_value_heads, text.head_dim), (4, 2, 128));
    assert_eq!((text.linear_key_dim(), text.linear_value_dim(), text.linear_conv_dim()), (256, 512, 1024));
    assert_eq!((text.rope.rope_theta, text.rope.rotary_dim()), (1e6, 32));
    assert_eq!((text.rope.mrope_section, text.rope.mrope_interleaved), (Some([6, 5, 5]), true));
    assert_eq!((0..8).filter(|layer| !text.is_linear(*layer)).collect::<Vec<_>>(), [3, 7]);
    assert_eq!((text.max_position_embeddings, text.mtp_num_hidden_layers), (4096, 1));
    assert!(text.tie_word_embeddings && !text.attention_bias);
}

#[test]
fn drafters_are_no_targets() {
    let folders = ["dense", "dense-tied", "moe"]
        .iter()
        .flat_map(|name| ["mtp-drafter", "mtp-drafter-4bit"].map(|kind| golden(&format!("{name}-mlx/{kind}"))));
    for dir in folders.chain([repo().join("models/qwen3.5-tiny-mtp-4bit")]) {
        let result = Qwen3_5Config::from_checkpoint(&Checkpoint::open(&dir).unwrap());
        assert!(matches!(result, Err(CheckpointError::DrafterAsTarget { .. })), "{}", dir.display());
        assert_error(result, &["config.json", "qwen3_5_mtp", "is a drafter"]);
    }
}

/// The keys that files of all sizes share, in the wrapper.
fn wrapper(is_moe: bool, text: Value) -> Value {
    let kind = if is_moe { "qwen3_5_moe" } else { "qwen3_5" };
    let mut config = json!({
        "model_type": kind,
        "architectures": [if is_moe { "Qwen3_5MoeForConditionalGeneration" } else { "Qwen3_5ForConditionalGeneration" }],
        "image_token_id": 248_056, "video_token_id": 248_057,
        "vision_start_token_id": 248_053, "vision_end_token_id": 248_054,
        "vision_config": {"model_type": kind},
        "text_config": {
            "model_type": format!("{kind}_text"), "vocab_size": 248_320, "head_dim": 256, "hidden_act": "silu",
            "attn_output_gate": true, "full_attention_interval": 4, "eos_token_id": 248_044, "rms_norm_eps": 1e-6,
            "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4, "max_position_embeddings": 262_144, "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10], "mrope_interleaved": true,
            },
        },
    });
    for (key, value) in text.as_object().unwrap() {
        config["text_config"][key] = value.clone();
    }
    config
}

#[test]
fn published_sizes() {
    let parse_clean = |is_moe: bool, text: Value| {
        let config = parse(&wrapper(is_moe, text)).unwrap();
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        assert_eq!(config.eos_token_ids, [248_044, 248_046]);
        assert_eq!((config.has_vision, config.image_token_id), (true, Some(248_056)));
        assert_eq!(config.text.max_position_embeddings, 262_144);
        assert_eq!((config.text.rope.rope_theta, config.text.rope.rotary_dim()), (1e7, 64));
        let full = config.text.layer_types.iter().filter(|kind| **kind == LayerType::FullAttention).count();
        assert_eq!(full * 4, config.text.num_hidden_layers);
        config
    };
    // 27B. Heads times their width is not the hidden size.
    let config = parse_clean(
        false,
        json!({"num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17_408, "num_attention_heads": 24,
               "num_key_value_heads": 4, "linear_num_value_heads": 48, "tie_word_embeddings": false,
               "output_gate_type": "swish", "mamba_ssm_dtype": "float32"}),
    );
    assert_eq!(config.architecture, "Qwen3_5ForConditionalGeneration");
    assert_eq!(config.text.num_attention_heads * config.text.head_dim, 6144);
    assert_eq!((config.text.linear_conv_dim(), config.text.linear_value_dim()), (10_240, 6144));
    assert!(!config.text.tie_word_embeddings && config.text.moe.is_none());
    // 0.8B.
    let config = parse_clean(
        false,
        json!({"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 8,
               "num_key_value_heads": 2, "linear_num_value_heads": 16, "tie_word_embeddings": true}),
    );
    assert_eq!((config.text.linear_conv_dim(), config.text.tie_word_embeddings), (6144, true));
    // 35B-A3B.
    let config = parse_clean(
        true,
        json!({"num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
               "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8,
               "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "router_aux_loss_coef": 0.001,
               "mlp_only_layers": [], "decoder_sparse_step": 1}),
    );
    assert_eq!((config.text.intermediate_size, config.text.linear_conv_dim()), (0, 8192));
    let moe = MoeConfig {
        num_experts: 256,
        num_experts_per_tok: 8,
        moe_intermediate_size: 512,
        shared_expert_intermediate_size: 512,
    };
    assert_eq!(config.text.moe, Some(moe));
}

/// What is absent has the library's defaults: the 9B and the 35B-A3B.
#[test]
fn defaults_of_absent_keys() {
    let rope = json!({"rope_theta": 1e7});
    let config = parse(&json!({"model_type": "qwen3_5_text", "rope_parameters": rope})).unwrap();
    let text = &config.text;
    assert_eq!((text.vocab_size, text.hidden_size, text.intermediate_size), (248_320, 4096, 12_288));
    assert_eq!((text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads), (32, 16, 4));
    assert_eq!((text.head_dim, text.linear_num_key_heads, text.linear_num_value_heads), (256, 16, 32));
    assert_eq!((text.linear_key_head_dim, text.linear_value_head_dim, text.linear_conv_kernel_dim), (128, 128, 4));
    assert_eq!((text.rms_norm_eps, text.max_position_embeddings, text.tie_word_embeddings), (1e-6, 32_768, false));
    assert_eq!((text.rope.rotary_dim(), text.rope.mrope_section, text.rope.mrope_interleaved), (64, None, true));
    assert_eq!((text.mtp_num_hidden_layers, text.moe.is_none()), (0, true));
    assert_eq!(config.eos_token_ids, [248_044, 248_046]);
    for key in ["hidden_size", "intermediate_size", "layer_types", "linear_conv_kernel_dim"] {
        assert!(config.warnings.iter().any(|warning| warning.starts_with(key)), "{key}: {:?}", config.warnings);
    }
    let config = parse(&json!({"model_type": "qwen3_5_moe_text", "rope_parameters": rope})).unwrap();
    let text = &config.text;
    assert_eq!((text.hidden_size, text.num_hidden_layers, text.intermediate_size), (2048, 40, 0));
    assert_eq!((text.num_attention_heads, text.num_key_value_heads), (16, 2));
    assert_eq!(text.moe.map(|moe| (moe.num_experts, moe.num_experts_per_tok)), Some((256, 8)));
    assert!(!config.warnings.iter().any(|warning| warning.starts_with("intermediate_size")));
}

/// All rows of the family: wrapper, text stack alone, and text stack under the wrapper's name.
#[test]
fn forms_of_the_file() {
    let (dense, moe) = (config_of("dense")["text_config"].clone(), config_of("moe")["text_config"].clone());
    for (flat, model_type, architecture) in [
        (&dense, "qwen3_5", "Qwen3_5ForCausalLM"),
        (&dense, "qwen3_5_text", "Qwen3_5ForCausalLM"),
        (&moe, "qwen3_5_moe", "Qwen3_5MoeForCausalLM"),
        (&moe, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    ] {
        assert!(MODEL_TYPES.contains(&model_type));
        let mut flat = flat.clone();
        flat["model_type"] = json!(model_type);
        let config = parse(&flat).unwrap();
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        assert_eq!((config.model_type.as_str(), config.architecture.as_str()), (model_type, architecture));
        let nested = parse(&config_of(if model_type.contains("moe") { "moe" } else { "dense" })).unwrap();
        assert_eq!((config.text, config.has_vision), (nested.text, false));
        assert!(nested.has_vision);
    }
    for kind in ["qwen3_5", "qwen3_5_vision", "qwen3_5_moe", "qwen3_5_moe_vision"] {
        let mut config = config_of("moe");
        config["vision_config"]["model_type"] = json!(kind);
        config.as_object_mut().unwrap().remove("architectures");
        let config = parse(&config).unwrap();
        assert!(config.has_vision && config.architecture == "Qwen3_5MoeForConditionalGeneration");
    }
    let mut config = config_of("dense");
    config["vision_config"] = json!(null);
    assert!(!parse(&config).unwrap().has_vision);
    // The text part's word on tying counts; the wrapper's fills in.
    config["tie_word_embeddings"] = json!(true);
    assert!(!parse(&config).unwrap().text.tie_word_embeddings);
    config["text_config"].as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(parse(&config).unwrap().text.tie_word_embeddings);
    // The list decides over the interval, which other engines read.
    let pattern = json!(["full_attention", "linear_attention", "linear_attention", "full_attention"]);
    let config = edited("dense", "layer_types", pattern).unwrap();
    assert_eq!((0..4).map(|layer| config.text.is_linear(layer)).collect::<Vec<_>>(), [false, true, true, false]);
    assert!(config.warnings[0].contains("full_attention_interval disagrees"), "{:?}", config.warnings);
    let mut config = config_of("dense");
    config["text_config"].as_object_mut().unwrap().remove("layer_types");
    config["text_config"]["full_attention_interval"] = json!(3);
    let parsed = parse(&config).unwrap();
    assert!(parsed.warnings.is_empty());
    assert_eq!((0..4).filter(|layer| !parsed.text.is_linear(*layer)).collect::<Vec<_>>(), [2]);
}

#[test]
fn rotation_in_every_spelling() {
    let newer = parse(&config_of("dense")).unwrap().text.rope;
    let mut config = config_of("dense");
    let text = config["text_config"].as_object_mut().unwrap();
    text.remove("rope_parameters");
    text.insert("rope_theta".into(), json!(10_000.0));
    text.insert("rope_scaling".into(), json!({"type": "mrope", "mrope_section": [3, 3, 2]}));
    assert_eq!(parse(&config).unwrap().text.rope, newer);
    // The block's share wins over the flat one; without any it is a quarter.
    let block = |extra: Value| {
        let mut rope = json!({"rope_theta": 5e5});
        for (key, value) in extra.as_object().unwrap() {
            rope[key] = value.clone();
        }
        edited("dense", "rope_parameters", rope).map(|config| config.text.rope)
    };
    assert_eq!(block(json!({"partial_rotary_factor": 0.5})).unwrap().rotary_dim(), 32);
    assert_eq!(block(json!({"partial_rotary_factor": 1})).unwrap().rotary_dim(), 64);
    assert!(!block(json!({"mrope_interleaved": false})).unwrap().mrope_interleaved);
    config["text_config"].as_object_mut().unwrap().remove("partial_rotary_factor");
    assert_eq!(parse(&config).unwrap().text.rope.rotary_dim(), 16);

    for (extra, key, part) in [
        (json!({"rope_type": "yarn", "factor": 4.0}), "rope_type is \"yarn\"", "yarn"),
        (json!({"type": "yarn"}), "type is \"yarn\"", "not supported"),
        (json!({"rope_type": "default", "type": "linear"}), "type is \"linear\"", "not supported"),
        (json!({"rope_theta": 0}), "rope_theta is 0", "above 0"),
        (json!({"rope_theta": "1e7"}), "rope_theta is \"1e7\"", "a finite number"),
        (json!({"partial_rotary_factor": 0.0}), "partial_rotary_factor is 0.0", "above 0"),
        (json!({"partial_rotary_factor": 1.01}), "partial_rotary_factor is 1.01", "at most 1"),
        (json!({"partial_rotary_factor": 0.02}), "partial_rotary_factor is 0.02, which gives 1", "head_dim (64)"),
        (json!({"mrope_section": [3, 3, 3]}), "mrope_section is [3,3,3]", "sum to 8"),
        (json!({"mrope_section": [3, 3, 1]}), "mrope_section is [3,3,1]", "sum to 8"),
        (json!({"mrope_section": [4, 4]}), "mrope_section is [4,4]", "three sizes"),
        (json!({"mrope_section": [9, 0, -1]}), "mrope_section is [9,0,-1]", "three sizes"),
        (json!({"mrope_section": [u64::MAX, 8, 1]}), "mrope_section is", "three sizes"),
    ] {
        assert_error(block(extra), &["somewhere/config.json", &format!("text_config.rope_parameters.{key}"), part]);
    }
    assert_error(
        edited("dense", "rope_scaling", json!({"type": "yarn", "factor": 4.0})),
        &["text_config.rope_scaling.type is \"yarn\"", "not supported"],
    );
    let missing = edited("dense", "rope_parameters", json!({"rope_type": "default"}));
    assert_error(missing, &["rope_parameters.rope_theta is absent", "above 0"]);
}

#[test]
fn contradictions_name_field_expected_and_found() {
    let linear = "linear_attention";
    for (name, key, value, parts) in [
        ("dense", "attn_output_gate", json!(false), ["attn_output_gate is false", "not supported"]),
        ("moe", "norm_topk_prob", json!(false), ["norm_topk_prob is false", "true"]),
        ("dense", "hidden_act", json!("gelu"), ["hidden_act is \"gelu\"", "silu"]),
        ("dense", "output_gate_type", json!("sigmoid"), ["output_gate_type is \"sigmoid\"", "swish"]),
        ("dense", "layer_types", json!([linear]), ["layer_types is a list of 1 entries", "4 entries"]),
        ("dense", "layer_types", json!([linear, "sliding_attention", linear, linear]), ["layer_types[1]", "full"]),
        ("dense", "full_attention_interval", json!(0), ["full_attention_interval is 0", "at least 1"]),
        ("dense", "num_hidden_layers", json!(0), ["num_hidden_layers is 0", "1 to 4096"]),
        ("dense", "num_hidden_layers", json!(4097), ["num_hidden_layers is 4097", "1 to 4096"]),
        ("dense", "num_attention_heads", json!(0), ["num_attention_heads is 0", "at least 1"]),
        ("dense", "num_key_value_heads", json!(3), ["num_key_value_heads is 3", "num_attention_heads (2)"]),
        ("dense", "head_dim", json!(-64), ["head_dim is -64", "an integer from 0"]),
        ("dense", "linear_num_value_heads", json!(3), ["linear_num_value_heads is 3", "linear_num_key_heads (2)"]),
        ("dense", "linear_num_value_heads", json!(0), ["linear_num_value_heads is 0", "at least 1"]),
        ("dense", "linear_num_key_heads", json!(0), ["linear_num_key_heads is 0", "at least 1"]),
        ("dense", "linear_key_head_dim", json!(0), ["linear_key_head_dim is 0", "at least 1"]),
        ("dense", "linear_value_head_dim", json!(0.5), ["linear_value_head_dim is 0.5", "an integer"]),
        ("dense", "linear_conv_kernel_dim", json!(1), ["linear_conv_kernel_dim is 1", "at least 2"]),
        ("dense", "hidden_size", json!(0), ["hidden_size is 0", "at least 1"]),
        ("dense", "intermediate_size", json!(0), ["intermediate_size is 0", "at least 1"]),
        ("dense", "vocab_size", json!(1u64 << 60), ["vocab_size is 1152921504606846976", "16777216"]),
        ("dense", "rms_norm_eps", json!(0.0), ["rms_norm_eps is 0.0", "above 0"]),
        ("dense", "rms_norm_eps", json!(1.0), ["rms_norm_eps is 1.0", "below 1"]),
        ("dense", "max_position_embeddings", json!(1), ["max_position_embeddings is 1", "at least 2"]),
        ("dense", "mtp_num_hidden_layers", json!(5000), ["mtp_num_hidden_layers is 5000", "at most 4096"]),
        ("dense", "attention_bias", json!("no"), ["attention_bias is \"no\"", "true or false"]),
        ("dense", "eos_token_id", json!([-1]), ["eos_token_id is [-1]", "a token id"]),
        ("dense", "num_experts", json!(8), ["num_experts is 8", "0 or absent"]),
        ("dense", "model_type", json!("qwen3_5_moe_text"), ["model_type is \"qwen3_5_moe_text\"", "qwen3_5_text"]),
        ("moe", "model_type", json!("qwen3_5_text"), ["model_type is \"qwen3_5_text\"", "qwen3_5_moe_text"]),
        ("moe", "num_experts", json!(0), ["num_experts is 0", "at least 1"]),
        ("moe", "num_experts_per_tok", json!(0), ["num_experts_per_tok is 0", "at least 1"]),
        ("moe", "num_experts_per_tok", json!(9), ["num_experts_per_tok is 9", "at most num_experts (8)"]),
        ("moe", "moe_intermediate_size", json!(0), ["moe_intermediate_size is 0", "at least 1"]),
        ("moe", "shared_expert_intermediate_size", json!(0), ["shared_expert_intermediate_size is 0", "at least 1"]),
        ("moe", "mlp_only_layers", json!([0]), ["mlp_only_layers is [0]", "every layer"]),
        ("moe", "decoder_sparse_step", json!(2), ["decoder_sparse_step is 2", "every layer"]),
    ] {
        let parts = [&["somewhere/config.json", "text_config."], &parts[..]].concat();
        assert_error(edited(name, key, value), &parts);
    }
    // The bounds themselves are fine.
    for (name, key, value) in [
        ("dense", "linear_conv_kernel_dim", json!(2)),
        ("dense", "num_key_value_heads", json!(2)),
        ("dense", "linear_num_value_heads", json!(2)),
        ("dense", "max_position_embeddings", json!(2)),
        ("dense", "num_experts", json!(0)),
        ("dense", "attention_bias", json!(true)),
        ("dense", "model_type", json!("qwen3_5")),
        ("dense", "output_gate_type", json!("silu")),
        ("moe", "num_experts_per_tok", json!(8)),
        ("moe", "norm_topk_prob", json!(true)),
    ] {
        let config = edited(name, key, value).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(config.text.attention_bias, key == "attention_bias");
    }
    for (key, value) in [("mamba_ssm_dtype", json!("bfloat16")), ("mtp_use_dedicated_embeddings", json!(true))] {
        let warnings = edited("dense", key, value).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains(key), "{warnings:?}");
    }
}

/// Sizes that are each plausible but multiply to more than any tensor can hold.
#[test]
fn products_are_bounded() {
    for (name, keys, part) in [
        ("dense", ["num_attention_heads", "head_dim"], "2 * num_attention_heads * head_dim * hidden_size"),
        ("dense", ["linear_num_value_heads", "linear_value_head_dim"], "linear_value_head_dim * hidden_size"),
        ("dense", ["linear_key_head_dim", "linear_value_head_dim"], "linear_key_head_dim * linear_value_head_dim"),
        ("dense", ["linear_key_head_dim", "linear_conv_kernel_dim"], "linear_conv_kernel_dim"),
        ("dense", ["vocab_size", "hidden_size"], "vocab_size * hidden_size"),
        ("moe", ["num_experts", "moe_intermediate_size"], "num_experts * 2 * moe_intermediate_size * hidden_size"),
    ] {
        let mut config = config_of(name);
        for key in keys {
            config["text_config"][key] = json!(1 << 24);
        }
        // Else the sections are found first.
        config["text_config"]["rope_parameters"].as_object_mut().unwrap().remove("mrope_section");
        assert_error(parse(&config), &[part, "elements"]);
    }
}

#[test]
fn model_types_that_are_no_target() {
    for (config, parts) in [
        (json!({"model_type": "qwen3_next"}), ["model_type \"qwen3_next\" is not supported", "qwen3_5, qwen3_5_moe"]),
        (json!({"model_type": "qwen4_exp"}), ["model_type \"qwen4_exp\" is not supported", "qwen3_5_moe_text"]),
        (json!({}), ["model_type is absent", "qwen3_5_text"]),
        (json!({"model_type": 4}), ["model_type is 4", "a string"]),
        (json!({"model_type": "qwen3_5", "text_config": []}), ["text_config is []", "an object"]),
        (json!({"model_type": "qwen3_5_mtp", "text_config": {}}), ["qwen3_5_mtp", "is a drafter"]),
        (json!([]), ["is []", "an object"]),
    ] {
        assert_error(parse(&config), &[&["somewhere/config.json"], &parts[..]].concat());
    }
}

fn stop_ids(config: &Value, generation: Option<Value>) -> Result<Vec<u32>> {
    let dir = tempdir().unwrap();
    write_checkpoint(dir.path(), config, &[]);
    if let Some(generation) = generation {
        std::fs::write(dir.path().join("generation_config.json"), generation.to_string()).unwrap();
    }
    Ok(Qwen3_5Config::from_checkpoint(&Checkpoint::open(dir.path())?)?.eos_token_ids)
}

#[test]
fn stop_ids_are_merged() {
    let mut config = wrapper(false, json!({"num_attention_heads": 8, "num_key_value_heads": 2}));
    let generation = |ids: Value| Some(json!({"eos_token_id": ids}));
    assert_eq!(stop_ids(&config, None).unwrap(), [248_044, 248_046]);
    assert_eq!(stop_ids(&config, generation(json!([248_046, 248_044]))).unwrap(), [248_044, 248_046]);
    assert_eq!(stop_ids(&config, generation(json!([9]))).unwrap(), [9, 248_044, 248_046]);
    config["eos_token_id"] = json!([5]);
    assert_eq!(stop_ids(&config, None).unwrap(), [5, 248_044, 248_046]);
    config["text_config"].as_object_mut().unwrap().remove("eos_token_id");
    // Another tokenizer's ids are left as they are.
    assert_eq!(stop_ids(&config, None).unwrap(), [5]);
    config["text_config"]["eos_token_id"] = json!(248_044);
    config["text_config"]["vocab_size"] = json!(248_046);
    assert_eq!(stop_ids(&config, None).unwrap(), [5, 248_044]);
    assert_error(stop_ids(&config, generation(json!("x"))), &["generation_config.json", "eos_token_id"]);
}
