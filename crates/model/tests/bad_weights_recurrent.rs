//! Damaged or ill-fitting checkpoints of the recurrent family: refused by name when loading, found at the first forward pass, and
//! a damaged sequence takes no other with it.

mod common;

use common::Walker;
use common::damage::{Copy, PROMPT, damaged, first_forward, load, refused};
use mlxcel_compute::Wanted;
use mlxcel_cpu::Precision;
use mlxcel_model::ModelError;
use serde_json::json;

const DEMO: &str = "qwen3.5-tiny-4bit";

#[test]
fn undamaged_copies_run() {
    for name in [DEMO, "qwen3_5/dense", "qwen3_5/dense-tied", "qwen3_5/moe-mlx/4bit"] {
        let dir = Copy::named(name).write();
        for precision in [Precision::F32, Precision::Int8] {
            first_forward(&mut *load(dir.path(), precision).expect("loads")).expect("runs");
        }
    }
}

#[test]
fn damage_is_found_in_its_layer() {
    damaged("qwen3_5/dense", "layers.0.linear_attn.in_proj_qkv.weight", 3 * 64 + 1, "layer 0, in_proj_qkv");
    damaged("qwen3_5/dense", "layers.1.linear_attn.conv1d.weight", 7, "layer 1, conv");
    damaged("qwen3_5/dense", "language_model.layers.2.linear_attn.A_log", 1, "layer 2, delta");
    damaged("qwen3_5/dense", "layers.0.linear_attn.dt_bias", 2, "layer 0, delta");
    damaged("qwen3_5/dense", "layers.1.linear_attn.in_proj_a.weight", 70, "layer 1, in_proj_a");
    damaged("qwen3_5/dense", "layers.1.linear_attn.in_proj_b.weight", 70, "layer 1, in_proj_b");
    damaged("qwen3_5/dense", "layers.2.linear_attn.norm.weight", 3, "layer 2, core_norm");
    damaged("qwen3_5/dense", "layers.0.linear_attn.out_proj.weight", 9, "layer 0, out_proj");
    damaged("qwen3_5/dense", "language_model.layers.3.self_attn.q_proj.weight", 64 * 70, "layer 3, q_proj");
    damaged("qwen3_5/dense", "language_model.layers.1.input_layernorm.weight", 3, "layer 1, input_norm");
    damaged(
        "qwen3_5/dense",
        "language_model.layers.1.post_attention_layernorm.weight",
        3,
        "layer 1, post_attention_norm",
    );
    damaged("qwen3_5/dense", "language_model.norm.weight", 3, "norm");
    damaged("qwen3_5/dense", "language_model.layers.3.self_attn.q_norm.weight", 3, "layer 3, q_norm");
    damaged("qwen3_5/dense", "language_model.layers.3.self_attn.v_proj.weight", 3, "layer 3, v_proj");
    damaged("qwen3_5/dense", "language_model.layers.3.self_attn.o_proj.weight", 3, "layer 3, o_proj");
    damaged("qwen3_5/dense", "language_model.layers.0.mlp.down_proj.weight", 3, "layer 0, down_proj");
    damaged("qwen3_5/dense", "embed_tokens.weight", PROMPT[1] as usize * 64 + 5, "embed");
    damaged("qwen3_5/dense", "lm_head.weight", 150 * 64 + 5, "logits");
    damaged("qwen3_5/moe", "language_model.layers.0.mlp.shared_expert.up_proj.weight", 3, "layer 0, gate_up");
    damaged("qwen3_5/moe", "language_model.layers.1.mlp.gate.weight", 70, "layer 1, router");
    damaged("qwen3_5/moe", "language_model.layers.2.mlp.shared_expert_gate.weight", 7, "layer 2, shared_expert_gate");
    damaged(DEMO, "layers.1.linear_attn.in_proj_z.scales", 5, "layer 1, in_proj_z");
    damaged(DEMO, "layers.3.self_attn.k_proj.biases", 2, "layer 3, k_proj");
}

#[test]
fn tensors_missing_left_over_or_ill_shaped_are_named() {
    for part in ["A_log", "dt_bias", "conv1d.weight", "norm.weight", "in_proj_a.weight", "out_proj.weight"] {
        let name = format!("model.language_model.layers.1.linear_attn.{part}");
        refused("qwen3_5/dense", &["no tensor", &name], |copy| drop(copy.tensors.remove(&name)));
    }
    refused("qwen3_5/moe", &["no tensor", "layers.0.mlp.shared_expert_gate.weight"], |copy| {
        copy.tensors.retain(|name, _| !name.ends_with("layers.0.mlp.shared_expert_gate.weight"));
    });
    refused("qwen3_5/dense", &["does not use", "layers.0.linear_attn.stray"], |copy| {
        let name = "model.language_model.layers.0.linear_attn.stray";
        copy.tensors.insert(name.into(), ("F32".into(), vec![1], vec![0; 4]));
    });
    // Layouts must not be mixed: the norms of a file follow the layout of its convolutions.
    refused("qwen3_5/dense", &["layers.1.linear_attn.conv1d.weight", "[192, 4, 1]", "expected [192, 1, 4]"], |copy| {
        copy.find("layers.1.linear_attn.conv1d.weight").1 = vec![192, 4, 1];
    });
    refused("qwen3_5/dense", &["layers.2.linear_attn.A_log", "[2, 2]", "expected [4]"], |copy| {
        copy.find("language_model.layers.2.linear_attn.A_log").1 = vec![2, 2];
    });
    refused("qwen3_5/dense", &["config.json", "model_type", "drafter"], |copy| {
        copy.config["model_type"] = json!("qwen3_5_mtp");
    });
}

/// A sequence whose rows are damaged fails; the state of its neighbour is where it was, or known to be lost.
#[test]
fn a_damaged_row_spoils_no_other_state() {
    let mut copy = Copy::named("qwen3_5/dense");
    copy.poison("language_model.embed_tokens.weight", 64 * 100, f32::NAN);
    let dir = copy.write();
    let model = || load(dir.path(), Precision::F32).expect("loads");
    let tokens: Vec<u32> = (0..60).map(|i| i * 3 % 90).collect();
    let whole = Walker::new(model(), 1, 70).chunks(&tokens, &[60]);
    for len in [5, 16, 17, 40] {
        let mut walker = Walker::new(model(), 3, 70);
        walker.step(&[(0, 0, &tokens[..10]), (1, 0, &[1, 2, 3]), (2, 0, &[7, 8])]);
        let (before, third) = (walker.state(0), walker.state(2));
        let mut batch = walker.batch(0, 10, &tokens[10..10 + len], Wanted::Last);
        let other = walker.batch(1, 3, &[4, 100], Wanted::Last);
        let tables: Vec<&[u32]> = (0..1).map(|g| other.table(0, g)).collect();
        batch.push(1, 3, &[4, 100], &tables, Wanted::Last);
        // A span of no rows, on a slot that holds a state, changes nothing whatever happens to the others.
        batch.push(2, 0, &[], &tables, Wanted::None);
        let error = walker.model.forward(&batch).expect_err("the second sequence is damaged");
        assert!(matches!(error, ModelError::NonFinite { position: 4, .. }), "{error}");
        assert!(error.to_string().contains("come from embed."), "{error}");
        assert_eq!(common::bits(&walker.state(2)), common::bits(&third));
        // A short span is taken back; a longer one cannot be, and says so by holding no state.
        if len <= mlxcel_model::TAKE_BACK {
            assert_eq!(common::bits(&walker.state(0)), common::bits(&before));
        } else {
            assert!(walker.model.save_state(0).is_none());
            walker.step(&[(0, 0, &tokens[..10])]);
        }
        let rest = walker.step(&[(0, 10, &tokens[10..])]).remove(0);
        assert_eq!(common::bits(&rest), common::bits(&whole[whole.len() - rest.len()..]));
    }
}
