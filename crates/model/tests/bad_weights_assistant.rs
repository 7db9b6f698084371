//! Drafters that do not fit their target, and drafters with damaged weights: what is refused, and what the messages say.

mod assistant;
mod common;

use std::path::Path;

use assistant::{Duo, Greedy, pair_of};
use common::damage::{Copy, PROMPT};
use common::root;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::ModelError;
use serde_json::{Value, json};

fn cpu(precision: Precision) -> CpuBackend {
    CpuBackend::new(precision, 1)
}

fn error_of(target: &Path, head: &Path) -> ModelError {
    pair_of(target, head, cpu(Precision::F32)).map(|_| ()).expect_err("must be refused")
}

#[track_caller]
fn says(error: &ModelError, parts: &[&str]) {
    let message = error.to_string();
    parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} not in: {message}"));
    assert!(!message.contains('\n'), "{message}");
}

/// A copy without its weights, so that reading one would fail.
fn hollow(name: &str) -> Copy {
    let mut copy = Copy::named(name);
    copy.tensors.clear();
    copy.tensors.insert("x".into(), ("F32".into(), vec![1], vec![0; 4]));
    copy
}

/// A field of drafter or target that makes a mismatch: both directories, the field and both values are named.
#[track_caller]
fn mismatch(edit: impl FnOnce(&mut Value, &mut Value), parts: &[&str]) {
    let (mut target, mut head) = (hollow("gemma4/dense"), hollow("gemma4/dense-assistant"));
    edit(&mut target.config, &mut head.config);
    let (target, head) = (target.write(), head.write());
    let error = error_of(target.path(), head.path());
    assert!(matches!(error, ModelError::Mismatch { .. }), "{error}");
    let dirs = [target.path().display().to_string(), head.path().display().to_string()];
    says(&error, &[&[dirs[0].as_str(), &dirs[1], "give the drafter made for this model"], parts].concat());
}

#[test]
fn pairs_that_do_not_fit_are_refused_before_weights_are_read() {
    mismatch(|_, head| head["backbone_hidden_size"] = json!(128), &["backbone_hidden_size: 64 expected", "found 128"]);
    mismatch(|target, _| target["text_config"]["hidden_size"] = json!(128), &["backbone_hidden_size: 128", "found 64"]);
    let text =
        |key: &'static str, value: Value| move |_: &mut Value, head: &mut Value| head["text_config"][key] = value;
    mismatch(text("vocab_size", json!(320)), &["text_config.vocab_size: 160 expected", "found 320"]);
    mismatch(text("head_dim", json!(32)), &["text_config.head_dim: 16 expected", "found 32"]);
    mismatch(text("global_head_dim", json!(16)), &["text_config.global_head_dim: 32 expected", "found 16"]);
    mismatch(
        text("num_attention_heads", json!(3)),
        &["text_config.num_attention_heads: a multiple of 2 (the", "found 3"],
    );
    mismatch(text("sliding_window", json!(9)), &["text_config.sliding_window: 8 expected", "found 9"]);
    let parts = ["text_config.layer_types: layers of type sliding_attention expected", "found full_attention"];
    mismatch(
        |target, _| {
            let types = target["text_config"]["layer_types"].as_array_mut().expect("types");
            types.iter_mut().for_each(|kind| *kind = json!("sliding_attention"));
        },
        &parts,
    );

    // As they are, the hollow pair fails at its first missing tensor.
    let (target, head) = (hollow("gemma4/dense").write(), hollow("gemma4/dense-assistant").write());
    says(&error_of(target.path(), head.path()), &["no tensor embed_tokens.weight"]);

    let base = root().join("tests/golden/gemma4");
    let error = error_of(&common::demo(), &base.join("dense-assistant"));
    says(&error, &["backbone_hidden_size: 384 expected", "found 64", "gemma-4-tiny-it-4bit", "dense-assistant"]);
}

#[test]
fn ill_configurations_name_file_and_field() {
    let mut head = hollow("gemma4/dense-assistant");
    head.config["block_size"] = json!(17);
    let head = head.write();
    let target = hollow("gemma4/dense").write();
    let file = head.path().join("config.json").display().to_string();
    says(&error_of(target.path(), head.path()), &[&file, "field block_size is 17, expected 2 to 16"]);
}

/// A broken drafter for an undamaged target.
#[track_caller]
fn refused(name: &str, parts: &[&str], edit: impl FnOnce(&mut Copy)) {
    let target = root().join("tests/golden/gemma4").join(name.replacen("-assistant", "", 1));
    let mut copy = Copy::named(&format!("gemma4/{name}"));
    let whole = copy.write();
    pair_of(&target, whole.path(), cpu(Precision::Int8))
        .map(|_| ())
        .unwrap_or_else(|e| panic!("{name} is refused: {e}"));
    edit(&mut copy);
    let dir = copy.write();
    for precision in [Precision::F32, Precision::Int8] {
        let error = pair_of(&target, dir.path(), cpu(precision)).map(|_| ()).expect_err("must be refused");
        says(&error, &[&[dir.path().display().to_string().as_str()], parts].concat());
    }
}

#[test]
fn tensors_missing_left_over_or_ill_shaped_are_named() {
    for name in ["pre_projection.weight", "model.layers.3.self_attn.o_proj.weight", "model.embed_tokens.weight"] {
        refused("dense-assistant", &["no tensor", name], |copy| drop(copy.tensors.remove(name)));
    }
    for name in ["masked_embedding.centroids.weight", "masked_embedding.token_ordering"] {
        refused("e2b-assistant", &["no tensor", name], |copy| drop(copy.tensors.remove(name)));
    }
    refused("moe-assistant-mlx-q4", &["no tensor", "post_projection.scales"], |copy| {
        copy.tensors.remove("post_projection.scales");
    });
    let stray = ("F32".to_string(), vec![1], vec![0; 4]);
    refused("dense-assistant", &["1 tensor(s)", "does not use", "model.layers.0.self_attn.k_proj.weight"], |copy| {
        copy.tensors.insert("model.layers.0.self_attn.k_proj.weight".into(), stray);
    });
    refused("e4b-assistant", &["2 tensor(s)", "masked_embedding.token_ordering"], |copy| {
        copy.config["use_ordered_embeddings"] = json!(false);
    });
    refused(
        "dense-assistant",
        &["model.safetensors", "pre_projection.weight", "[128, 64]", "expected [64, 128]"],
        |copy| {
            copy.find("pre_projection.weight").1 = vec![128, 64];
        },
    );
    refused("e2b-assistant", &["masked_embedding.token_ordering", "dtype F32", "I64"], |copy| {
        let ordering = copy.find("token_ordering");
        (ordering.0, ordering.2) = ("F32".into(), vec![0; 160 * 4]);
    });
}

#[test]
fn a_list_of_tokens_that_is_no_permutation_is_refused() {
    for (id, problem) in
        [(160i64, "is 160; expected token ids below 160"), (-1, "is -1; expected"), (1 << 40, "is 1099511")]
    {
        refused("e2b-assistant", &["cannot draft for", "token_ordering[3]", problem, "download or convert"], |copy| {
            copy.find("token_ordering").2[3 * 8..][..8].copy_from_slice(&id.to_le_bytes());
        });
    }
    refused("e2b-assistant-mlx-q4", &["token_ordering[159]", "once more; expected every token id once"], |copy| {
        let bytes = &mut copy.find("token_ordering").2;
        bytes.copy_within(0..4, 159 * 4);
    });
}

/// One value that is not finite: the pair loads, and the first proposal that meets it says where it comes from.
#[track_caller]
fn damaged(name: &str, tensor: &str, index: usize, site: &str) {
    let target = root().join("tests/golden/gemma4").join(name.replacen("-assistant", "", 1));
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut copy = Copy::named(&format!("gemma4/{name}"));
        copy.poison(tensor, index, value);
        let dir = copy.write();
        for precision in [Precision::F32, Precision::Int8] {
            let case = format!("{name}: {value} in {tensor}, {}", precision.name());
            let mut duo = Duo::new(pair_of(&target, dir.path(), cpu(precision)).expect("a pair"), 2, 64);
            let mut tokens = PROMPT.to_vec();
            for sequence in 0..2 {
                duo.feed(sequence, &tokens);
                duo.keep(sequence, tokens.len());
            }
            tokens.push(13);
            assert_eq!((duo.drafter.cached(0), duo.drafter.cached(1)), (1, 1));
            let error = duo.try_propose(&[(0, &tokens, 3, 4)], Greedy::default()).map(|_| ()).expect_err(&case);
            assert!(matches!(error, ModelError::NonFinite { .. }), "{case}: {error}");
            says(
                &error,
                &[&dir.path().display().to_string(), "position 3 ", &format!("come from {site}."), "download"],
            );
            assert_eq!((duo.drafter.cached(0), duo.drafter.cached(1)), (0, 1), "{case}: the asking slot is forgotten");
            assert!(duo.propose(&[(0, &tokens, 3, 4)])[0].tokens.is_empty(), "{case}");
        }
    }
}

#[test]
fn damage_is_found_where_it_is() {
    damaged("dense-assistant", "pre_projection.weight", 100, "pre_projection");
    damaged("dense-assistant", "layers.0.input_layernorm.weight", 3, "layer 0, input_norm");
    damaged("dense-assistant", "layers.1.self_attn.q_proj.weight", 70, "layer 1, q_proj");
    damaged("dense-assistant", "layers.3.self_attn.q_norm.weight", 9, "layer 3, q_norm");
    damaged("dense-assistant", "layers.2.mlp.down_proj.weight", 5, "layer 2, down_proj");
    damaged("dense-assistant", "layers.2.layer_scalar", 0, "layer 2, output");
    damaged("dense-assistant", "model.norm.weight", 0, "norm");
    damaged("dense-assistant", "embed_tokens.weight", 159 * 64, "logits");
    damaged("dense-assistant", "post_projection.weight", 64, "post_projection");
    damaged("moe-assistant-mlx-q4", "pre_projection.scales", 7, "pre_projection");
    damaged("e2b-assistant", "centroids.weight", 15 * 64, "centroids");
    // A row of the embedding is met when its token is scored.
    let mut duo = Duo::golden("e2b", "e2b-assistant", Precision::F32);
    let mut tokens = PROMPT.to_vec();
    duo.feed(0, &tokens);
    duo.keep(0, tokens.len());
    tokens.push(13);
    let first = duo.propose(&[(0, &tokens, 1, 1)])[0].tokens[0];
    damaged("e2b-assistant", "embed_tokens.weight", first as usize * 64 + 1, "embed_tokens");
}
