//! Checkpoints that are damaged or do not fit: what is caught when loading, and what only the first forward pass can see.

mod common;

use common::damage::{Copy, PROMPT, damaged, first_forward, load, refused};
use mlxcel_cpu::Precision;
use serde_json::json;

const DEMO: &str = "gemma-4-tiny-it-4bit";

#[test]
fn undamaged_copies_run() {
    for copy in [
        Copy::named(DEMO),
        Copy::named("gemma4/dense"),
        Copy::named("gemma4/moe-mlx-q4"),
        Copy::named("gemma4/e2b-mlx-q4"),
    ] {
        let dir = copy.write();
        for precision in [Precision::F32, Precision::Int8] {
            first_forward(&mut *load(dir.path(), precision).expect("loads")).expect("runs");
        }
    }
}

#[test]
fn damage_in_scales_and_biases_is_found_in_its_layer() {
    damaged(DEMO, "layers.0.self_attn.q_proj.scales", 5, "layer 0, q_proj");
    damaged(DEMO, "layers.7.self_attn.k_proj.biases", 3, "layer 7, k_proj");
    damaged(DEMO, "layers.6.self_attn.v_proj.scales", 1, "layer 6, v_proj");
    damaged(DEMO, "layers.3.mlp.gate_proj.scales", 100, "layer 3, gate_up");
    damaged(DEMO, "layers.8.mlp.down_proj.scales", 0, "layer 8, down_proj");
}

#[test]
fn damage_in_norms_is_found_in_its_layer() {
    damaged(DEMO, "layers.4.input_layernorm.weight", 17, "layer 4, input_norm");
    damaged(DEMO, "layers.1.self_attn.k_norm.weight", 2, "layer 1, k_norm");
    damaged(DEMO, "layers.2.post_attention_layernorm.weight", 0, "layer 2, post_attention_norm");
    damaged(DEMO, "layers.9.post_feedforward_layernorm.weight", 383, "layer 9, output");
    damaged(DEMO, "layers.5.layer_scalar", 0, "layer 5, output");
    damaged(DEMO, "model.norm.weight", 9, "norm");
}

#[test]
fn damage_in_the_embedding_is_found_going_in_or_coming_out() {
    let groups = 384 / 64;
    damaged(DEMO, "embed_tokens.scales", PROMPT[1] as usize * groups, "embed");
    damaged(DEMO, "embed_tokens.scales", 3000 * groups + 1, "lm_head");
    damaged("gemma4/dense", "embed_tokens.weight", PROMPT[2] as usize * 64 + 5, "embed");
    damaged("gemma4/dense", "embed_tokens.weight", 100 * 64 + 5, "lm_head");
    damaged("gemma4/e2b", "embed_tokens_per_layer.weight", PROMPT[3] as usize * 6 * 32, "embed_tokens_per_layer");
}

#[test]
fn damage_in_experts_and_routers_is_found_in_its_layer() {
    damaged("gemma4/moe-mlx-q4", "layers.1.router.proj.scales", 3, "layer 1, router");
    damaged("gemma4/moe-mlx-q4", "layers.2.router.scale", 3, "layer 2, router_scale");
    damaged("gemma4/moe", "layers.1.router.proj.weight", 3 * 64 + 1, "layer 1, router");
    damaged("gemma4/moe-mlx-q4", "layers.0.post_feedforward_layernorm_2.weight", 3, "layer 0, moe");
    damaged("gemma4/e2b-mlx-q4", "layers.3.per_layer_input_gate.scales", 3, "layer 3, per_layer_input_gate");
}

#[test]
fn unknown_model_types_are_refused_before_weights_are_read() {
    let unknown = |copy: &mut Copy| {
        copy.config["model_type"] = json!("gemma9");
        copy.tensors.clear();
        copy.tensors.insert("x".into(), ("F32".into(), vec![1], vec![0; 4]));
    };
    refused("gemma4/dense", &["config.json", "model_type", "\"gemma9\"", "gemma4", "gemma4_text"], unknown);
    refused("gemma4/dense", &["config.json", "model_type", "nothing", "supported"], |copy| {
        copy.config.as_object_mut().expect("an object").remove("model_type");
    });
    refused("gemma4/dense", &["config.json", "model_type", "drafter"], |copy| {
        copy.config["model_type"] = json!("gemma4_assistant");
    });
}

#[test]
fn tensors_missing_left_over_or_ill_shaped_are_named() {
    let q = "language_model.model.layers.2.self_attn.q_proj";
    for part in ["weight", "scales", "biases"] {
        let name = format!("{q}.{part}");
        refused("gemma4/dense-mlx-q4", &["no tensor", &name], |copy| drop(copy.tensors.remove(&name)));
    }
    refused("gemma4/dense-mlx-q4", &["no tensor", "embed_tokens.weight"], |copy| {
        copy.tensors.retain(|name, _| !name.contains("embed_tokens"));
    });
    refused("gemma4/moe-mlx-q4", &["no tensor", "layers.1.router.per_expert_scale"], |copy| {
        copy.tensors.retain(|name, _| !name.ends_with("layers.1.router.per_expert_scale"));
    });
    refused("gemma4/dense", &["1 tensor(s) the model does not use", "model.language_model.layers.0.stray"], |copy| {
        copy.tensors.insert("model.language_model.layers.0.stray".into(), ("F32".into(), vec![1], vec![0; 4]));
    });
    refused(
        "gemma4/dense",
        &["model.safetensors", "layers.1.mlp.up_proj.weight", "[64, 128]", "expected [128, 64]"],
        |copy| {
            copy.find("layers.1.mlp.up_proj.weight").1 = vec![64, 128];
        },
    );
    refused(
        "gemma4/dense",
        &["model.safetensors", "layers.0.input_layernorm.weight", "[8, 8]", "expected [64]"],
        |copy| {
            copy.find("language_model.layers.0.input_layernorm.weight").1 = vec![8, 8];
        },
    );
    refused(
        "gemma4/dense",
        &["model.safetensors", "layers.1.mlp.up_proj.weight", "dtype I32", "expected F32"],
        |copy| {
            copy.find("layers.1.mlp.up_proj.weight").0 = "I32".into();
        },
    );
    refused("gemma4/dense-mlx-q4", &["model.safetensors", "layers.0.self_attn.q_proj", "[32, 8]", "[64, 8]"], |copy| {
        let (_, shape, bytes) = copy.find("layers.0.self_attn.q_proj.weight");
        assert_eq!(shape, &[64, 8]);
        (*shape, *bytes) = (vec![32, 8], bytes[..bytes.len() / 2].to_vec());
    });
}
