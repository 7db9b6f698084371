//! Checkpoints whose tensors, configuration and quantisation block do not belong together.

mod common;

use common::{Copy, assert_error, walk};
use mlxcel_checkpoint::{Checkpoint, CheckpointError};
use mlxcel_compute::format::HostWeight;
use serde_json::{Value, json};
use tempfile::tempdir;

/// Writes a golden checkpoint after an edit and walks it.
fn broken(name: &str, edit: impl FnOnce(&mut Copy)) -> Result<Vec<HostWeight>, CheckpointError> {
    let dir = tempdir().unwrap();
    let mut copy = Copy::of(name);
    edit(&mut copy);
    copy.write(dir.path());
    walk(dir.path())
}

const Q: &str = "language_model.model.layers.0.self_attn.q_proj";

#[test]
fn an_unedited_copy_is_fine() {
    for name in ["dense-mlx-q4", "e2b-mlx-mixed", "moe", "text_only"] {
        broken(name, |_| ()).unwrap();
    }
}

#[test]
fn sizes_that_differ_from_the_tensors() {
    for hidden in [56, 72] {
        for (name, tensor) in [("dense", "model.language_model.embed_tokens.weight"), ("dense-mlx-q4", "embed_tokens")]
        {
            let result = broken(name, |copy| copy.config["text_config"]["hidden_size"] = json!(hidden));
            assert_error(result, &["model.safetensors", tensor, &hidden.to_string(), "[160, "]);
        }
    }
    let result = broken("dense", |copy| copy.config["text_config"]["intermediate_size"] = json!(120));
    assert_error(result, &["layers.0.mlp.gate_proj.weight", "shape [128, 64]", "expected [120, 64]"]);
    let result = broken("dense-mlx-q4", |copy| copy.config["text_config"]["vocab_size"] = json!(168));
    assert_error(result, &["embed_tokens.weight", "shape [160, 8]", "expected [168, 8]"]);
    let result = broken("moe-mlx-q4", |copy| copy.config["text_config"]["num_experts"] = json!(4));
    assert_error(result, &["router.proj", "[8, 16]", "[4, 16]"]);
    let result = broken("moe", |copy| {
        let tensor = copy.tensors.get_mut("model.language_model.layers.0.experts.gate_up_proj").unwrap();
        tensor.1 = vec![8, 32, 128];
    });
    assert_error(result, &["experts.gate_up_proj", "[8, 32, 128]", "[8, 64, 64]"]);
}

#[test]
fn dtypes_that_cannot_serve() {
    let norm = "language_model.model.layers.0.input_layernorm.weight";
    let result = broken("dense-mlx-q4", |copy| copy.tensors.get_mut(norm).unwrap().0 = "I32".into());
    assert_error(result, &["model.safetensors", norm, "dtype I32", "F32"]);
    let result = broken("dense", |copy| {
        copy.tensors.get_mut("model.language_model.layers.0.mlp.up_proj.weight").unwrap().0 = "I32".into();
    });
    assert_error(result, &["layers.0.mlp.up_proj.weight", "dtype I32", "F32 or BF16 or F16"]);
    for (part, dtype, expected) in
        [("scales", "I32", "I32"), ("biases", "I32", "expected F32"), ("weight", "F32", "U32")]
    {
        let name = format!("{Q}.{part}");
        let result = broken("dense-mlx-q4", |copy| copy.tensors.get_mut(&name).unwrap().0 = dtype.into());
        assert_error(result, &["model.safetensors", Q, expected]);
    }
    let name = format!("{Q}.weight");
    let result = broken("dense-mlx-q4", |copy| {
        let tensor = copy.tensors.get_mut(&name).unwrap();
        *tensor = ("F64".into(), vec![64, 4], tensor.2.clone());
    });
    assert_error(result, &[&name, "F64"]);
}

#[test]
fn missing_and_left_over_tensors() {
    for part in ["weight", "biases", "scales"] {
        let name = format!("{Q}.{part}");
        let result = broken("dense-mlx-q4", |copy| drop(copy.tensors.remove(&name)));
        assert_error(result, &["no tensor", &name]);
    }
    let result = broken("dense-mlx-q4", |copy| {
        for index in 0..7 {
            copy.tensors.insert(format!("stray.{index}"), ("U8".into(), vec![1], vec![0]));
        }
    });
    assert_error(result, &["7 tensor(s)", "stray.0", "stray.4", "…"]);
    // A layer beyond the configured ones is left over, not silently dropped.
    let result = broken("dense-mlx-q4", |copy| {
        copy.config["text_config"]["num_hidden_layers"] = json!(5);
        let types = copy.config["text_config"]["layer_types"].as_array_mut().unwrap();
        types.pop();
    });
    assert_error(result, &["layers.5.", "does not use"]);
    // A float mode has no biases.
    let result = broken("dense-mlx-mxfp4", |copy| {
        let scales = copy.tensors[&format!("{Q}.scales")].clone();
        copy.tensors.insert(format!("{Q}.biases"), scales);
    });
    assert_error(result, &[&format!("{Q}.biases")]);
}

#[test]
fn what_may_be_left_over() {
    broken("e2b-mlx-q4", |copy| {
        for name in [
            "language_model.model.layers.5.self_attn.k_proj.weight",
            "language_model.model.layers.3.self_attn.k_norm.weight",
            "language_model.model.rotary_emb.inv_freq",
            "language_model.lm_head.weight",
            "audio_tower.layers.0.weight",
            "embed_audio.embedding_projection.weight",
            "model.vision_tower.x",
            "language_model.model.layers.0.mlp.up_proj.input_min",
        ] {
            copy.tensors.insert(name.into(), ("F32".into(), vec![1], vec![0; 4]));
        }
    })
    .unwrap();
    let live = "language_model.model.layers.2.self_attn.k_proj.bias";
    let result = broken("e2b-mlx-q4", |copy| {
        copy.tensors.insert(live.into(), ("F32".into(), vec![1], vec![0; 4]));
    });
    assert_error(result, &[live]);
    // An untied head is needed, not ignored.
    let untie = |copy: &mut Copy| {
        copy.config["text_config"]["tie_word_embeddings"] = json!(false);
        let embed = copy.tensors["model.language_model.embed_tokens.weight"].clone();
        copy.tensors.insert("lm_head.weight".into(), embed);
    };
    let tied = broken("dense", |_| ()).unwrap().len();
    assert_eq!(broken("dense", untie).unwrap().len(), tied + 1);
}

#[test]
fn a_block_that_contradicts_the_tensors() {
    let set = |key: &'static str, value: Value| {
        move |copy: &mut Copy| {
            for block in ["quantization", "quantization_config"] {
                copy.config[block][key] = value.clone();
            }
        }
    };
    let name = "language_model.model.embed_tokens.weight";
    let result = broken("dense-mlx-q4", set("bits", json!(8)));
    let parts =
        ["config.json", "model.safetensors", name, "8-bit", "expected weight [160, 16]", "found weight [160, 8]"];
    assert_error(result, &parts);
    let result = broken("dense-mlx-q4", set("group_size", json!(64)));
    assert_error(result, &[name, "group 64", "scales [160, 1]", "scales [160, 2]", "group 32"]);
    let result = broken("dense-mlx-q4", set("mode", json!("mxfp4")));
    assert_error(result, &[name, "mxfp4", "4 bits, group 32", "F32"]);
    let result = broken("dense-mlx-mxfp4", set("mode", json!("affine")));
    assert_error(result, &[name, "affine 4-bit group 32", "U8"]);
    let result = broken("dense-mlx-q4", set(Q, json!(false)));
    assert_error(result, &[Q, "not quantised"]);
    for (key, value, expected) in [
        ("bits", json!(7), "2, 3, 4, 5, 6 or 8"),
        ("bits", json!(1u64 << 40), "2, 3, 4, 5, 6 or 8"),
        ("bits", json!("4"), "non-negative integer"),
        ("group_size", json!(16), "32, 64 or 128"),
        ("mode", json!("int4"), "affine, mxfp4, mxfp8 or nvfp4"),
        ("mode", json!("nvfp4"), "16 (mode nvfp4)"),
        ("mode", json!("mxfp8"), "8 (mode mxfp8)"),
    ] {
        assert_error(broken("dense-mlx-q4", set(key, value)), &["config.json", "quantization.", expected]);
    }
    let result = broken("dense-mlx-q4", set("model.layers.0.x", json!({"bits": 9})));
    assert_error(result, &["quantization.model.layers.0.x.bits", "is 9"]);
    let result = broken("dense-mlx-q4", |copy| copy.config["quantization"] = json!(4));
    assert_error(result, &["quantization", "an object"]);
}

#[test]
fn without_a_block_the_shapes_decide() {
    for name in ["dense-mlx-mixed", "moe-mlx-q4", "dense-mlx-nvfp4", "dense-mlx-mxfp8", "dense-mlx-mxfp4"] {
        let formats = |weights: &[HostWeight]| weights.iter().map(|weight| weight.format).collect::<Vec<_>>();
        let with = formats(&broken(name, |_| ()).unwrap());
        let without = broken(name, |copy| {
            let config = copy.config.as_object_mut().unwrap();
            config.remove("quantization");
            config.remove("quantization_config");
        });
        assert_eq!(formats(&without.unwrap()), with, "{name}");
    }
    // Shapes that no supported format explains.
    let result = broken("dense-mlx-q4", |copy| {
        copy.config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("quantization"));
        let scales = copy.tensors.get_mut(&format!("{Q}.scales")).unwrap();
        *scales = ("F32".into(), vec![64, 4], vec![0; 64 * 4 * 4]);
    });
    assert_error(result, &[Q, "unsupported", "group 16"]);
}

#[test]
fn the_copy_of_the_block_serves_alone_and_foreign_ones_are_left_out() {
    broken("dense-mlx-q4", |copy| drop(copy.config.as_object_mut().unwrap().remove("quantization"))).unwrap();
    let dir = tempdir().unwrap();
    let mut copy = Copy::of("dense");
    copy.config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    copy.write(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.quantization().foreign_method(), Some("\"gptq\""));
    let config = mlxcel_checkpoint::Gemma4Config::from_checkpoint(&checkpoint).unwrap();
    assert!(config.warnings.iter().any(|warning| warning.contains("gptq")), "{:?}", config.warnings);
}

/// Entries of single modules count under every spelling of the path, and are needed: without them the default differs.
#[test]
fn overrides_in_every_spelling() {
    let respell = |to: &'static str| {
        move |copy: &mut Copy| {
            let block = copy.config["quantization"].as_object().unwrap();
            let renamed = block.iter().map(|(key, value)| (key.replace("language_model.model.", to), value.clone()));
            copy.config["quantization"] = Value::Object(renamed.collect());
        }
    };
    for to in ["language_model.model.", "model.language_model.", "model.", "language_model.", ""] {
        for name in ["dense-mlx-mixed", "moe-mlx-mixed"] {
            broken(name, respell(to)).unwrap_or_else(|error| panic!("{to:?}: {error}"));
        }
    }
    assert_error(broken("dense-mlx-mixed", respell("elsewhere.")), &["layers.0.self_attn.q_proj", "affine 4-bit"]);
    // Two spellings that disagree are a contradiction, not a matter of luck.
    let result = broken("dense-mlx-mixed", |copy| {
        copy.config["quantization"][Q.trim_start_matches("language_model.")] = json!({"group_size": 32, "bits": 8});
    });
    assert_error(result, &["quantization.model.layers.0.self_attn.q_proj", "another spelling"]);
}
