//! Checkpoints that are damaged or do not fit: what is caught when loading, and what only the first forward pass can see.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::{demo, root};
use mlxcel_checkpoint::testing::{RawTensor, write_checkpoint};
use mlxcel_checkpoint::{Checkpoint, SafetensorsFile};
use mlxcel_compute::{Batch, DType, Wanted};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::{Model, ModelError, registry};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A checkpoint in memory, to be broken and written out.
struct Copy {
    config: Value,
    tensors: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>, // dtype, shape, bytes
}

impl Copy {
    fn of(dir: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(dir.join("config.json")).expect("config")).expect("JSON");
        let file = SafetensorsFile::open(&dir.join("model.safetensors")).expect("weights");
        let tensor = |i: usize| {
            let t = file.tensor(i).expect("tensor");
            (t.name, (t.dtype.name().to_string(), t.shape, t.data.to_vec()))
        };
        Copy { config, tensors: (0..file.entries().len()).map(tensor).collect() }
    }

    fn golden(name: &str) -> Self {
        Self::of(&root().join("tests/golden/gemma4").join(name))
    }

    /// The one tensor whose name ends like this.
    fn find(&mut self, end: &str) -> &mut (String, Vec<usize>, Vec<u8>) {
        let mut found: Vec<_> = self.tensors.iter_mut().filter(|(name, _)| name.ends_with(end)).collect();
        assert_eq!(found.len(), 1, "tensors ending in {end}");
        found.remove(0).1
    }

    /// Overwrites element `index` of a float tensor.
    fn poison(&mut self, end: &str, index: usize, value: f32) {
        let (dtype, _, bytes) = self.find(end);
        if dtype == DType::F32.name() {
            bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
        } else {
            assert_eq!(dtype, DType::Bf16.name(), "{end}");
            // The upper half of these special values says everything.
            bytes[2 * index..][..2].copy_from_slice(&value.to_le_bytes()[2..]);
        }
    }

    fn write(&self) -> TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let tensors: Vec<RawTensor<'_>> = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, bytes))| (name.as_str(), dtype.as_str(), shape.as_slice(), bytes.as_slice()))
            .collect();
        write_checkpoint(dir.path(), &self.config, &tensors);
        dir
    }
}

fn load(dir: &Path, precision: Precision) -> Result<Box<dyn Model>, ModelError> {
    registry::load(&Checkpoint::open(dir)?, Arc::new(CpuBackend::new(precision, 1)))
}

/// Runs a short prompt.
fn first_forward(model: &mut dyn Model) -> Result<Vec<f32>, ModelError> {
    let groups = model.kv_layout().len();
    model.reserve(&vec![1; groups])?;
    let mut batch = Batch::new();
    batch.push(0, 0, &PROMPT, &vec![&[0u32][..]; groups], Wanted::All);
    model.forward(&batch)
}

const PROMPT: [u32; 4] = [2, 7, 9, 11];

/// Writes one value that is not finite; the checkpoint must load, and the first forward pass must say where it comes from.
fn damaged(name: &str, tensor: &str, index: usize, site: &str) {
    let whole = if name == "demo" { Copy::of(&demo()) } else { Copy::golden(name) };
    let mut missed = Vec::new();
    for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut copy = Copy { config: whole.config.clone(), tensors: whole.tensors.clone() };
        copy.poison(tensor, index, value);
        let dir = copy.write();
        for precision in [Precision::F32, Precision::Int8] {
            let case = format!("{name}: {value} in {tensor}, {}", precision.name());
            let mut model = load(dir.path(), precision).unwrap_or_else(|e| panic!("{case}: {e}"));
            match first_forward(&mut *model) {
                Ok(_) => missed.push(case),
                Err(error) => {
                    let (message, path) = (error.to_string(), dir.path().display().to_string());
                    assert!(matches!(error, ModelError::NonFinite { .. }), "{case}: {message}");
                    let parts = [&*path, "not finite", &format!("come from {site}."), "download or convert"];
                    parts.iter().for_each(|part| assert!(message.contains(part), "{case}: {part:?} not in: {message}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}

#[test]
fn undamaged_copies_run() {
    for copy in [Copy::of(&demo()), Copy::golden("dense"), Copy::golden("moe-mlx-q4"), Copy::golden("e2b-mlx-q4")] {
        let dir = copy.write();
        for precision in [Precision::F32, Precision::Int8] {
            first_forward(&mut *load(dir.path(), precision).expect("loads")).expect("runs");
        }
    }
}

#[test]
fn damage_in_scales_and_biases_is_found_in_its_layer() {
    damaged("demo", "layers.0.self_attn.q_proj.scales", 5, "layer 0, attention");
    damaged("demo", "layers.7.self_attn.k_proj.biases", 3, "layer 7, attention");
    damaged("demo", "layers.6.self_attn.v_proj.scales", 1, "layer 6, attention");
    damaged("demo", "layers.3.mlp.gate_proj.scales", 100, "layer 3, mlp");
    damaged("demo", "layers.8.mlp.down_proj.scales", 0, "layer 8, mlp");
}

#[test]
fn damage_in_norms_is_found_in_its_layer() {
    damaged("demo", "layers.4.input_layernorm.weight", 17, "layer 4, attention");
    damaged("demo", "layers.1.self_attn.k_norm.weight", 2, "layer 1, attention");
    // A norm shows in the next operation that reads it.
    damaged("demo", "layers.2.post_attention_layernorm.weight", 0, "layer 2, mlp");
    damaged("demo", "layers.9.post_feedforward_layernorm.weight", 383, "layer 9, output");
    damaged("demo", "layers.5.layer_scalar", 0, "layer 5, output");
    damaged("demo", "model.norm.weight", 9, "norm");
}

#[test]
fn damage_in_the_embedding_is_found_going_in_or_coming_out() {
    let groups = 384 / 64;
    damaged("demo", "embed_tokens.scales", PROMPT[1] as usize * groups, "embed");
    damaged("demo", "embed_tokens.scales", 3000 * groups + 1, "logits");
    damaged("dense", "embed_tokens.weight", PROMPT[2] as usize * 64 + 5, "embed");
    damaged("dense", "embed_tokens.weight", 100 * 64 + 5, "logits");
    damaged("e2b", "embed_tokens_per_layer.weight", PROMPT[3] as usize * 6 * 32, "per_layer_inputs");
}

#[test]
fn damage_in_experts_and_routers_is_found_in_its_layer() {
    damaged("moe-mlx-q4", "layers.1.router.proj.scales", 3, "layer 1, moe");
    damaged("moe-mlx-q4", "layers.2.router.scale", 3, "layer 2, moe");
    damaged("moe", "layers.1.router.proj.weight", 3 * 64 + 1, "layer 1, moe");
    damaged("moe-mlx-q4", "layers.0.post_feedforward_layernorm_2.weight", 3, "layer 0, moe");
    damaged("e2b-mlx-q4", "layers.3.per_layer_input_gate.scales", 3, "layer 3, output");
}

/// A broken copy must be refused with a one-line message that has all the parts.
#[track_caller]
fn refused(name: &str, parts: &[&str], edit: impl FnOnce(&mut Copy)) {
    let mut copy = Copy::golden(name);
    edit(&mut copy);
    let dir = copy.write();
    for precision in [Precision::F32, Precision::Int8] {
        let message = load(dir.path(), precision).map(|_| ()).expect_err("must be refused").to_string();
        let path = dir.path().display().to_string();
        assert!(message.contains(&path), "{path:?} not in: {message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} not in: {message}"));
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn unknown_model_types_are_refused_before_weights_are_read() {
    let unknown = |copy: &mut Copy| {
        copy.config["model_type"] = json!("gemma9");
        copy.tensors.clear();
        copy.tensors.insert("x".into(), ("F32".into(), vec![1], vec![0; 4]));
    };
    refused("dense", &["config.json", "model_type", "\"gemma9\"", "gemma4", "gemma4_text"], unknown);
    refused("dense", &["config.json", "model_type", "nothing", "supported"], |copy| {
        copy.config.as_object_mut().expect("an object").remove("model_type");
    });
    refused("dense", &["config.json", "model_type", "drafter"], |copy| {
        copy.config["model_type"] = json!("gemma4_assistant");
    });
}

#[test]
fn tensors_missing_left_over_or_ill_shaped_are_named() {
    let q = "language_model.model.layers.2.self_attn.q_proj";
    for part in ["weight", "scales", "biases"] {
        let name = format!("{q}.{part}");
        refused("dense-mlx-q4", &["no tensor", &name], |copy| drop(copy.tensors.remove(&name)));
    }
    refused("dense-mlx-q4", &["no tensor", "embed_tokens.weight"], |copy| {
        copy.tensors.retain(|name, _| !name.contains("embed_tokens"));
    });
    refused("moe-mlx-q4", &["no tensor", "layers.1.router.per_expert_scale"], |copy| {
        copy.tensors.retain(|name, _| !name.ends_with("layers.1.router.per_expert_scale"));
    });
    refused("dense", &["1 tensor(s) the model does not use", "model.language_model.layers.0.stray"], |copy| {
        copy.tensors.insert("model.language_model.layers.0.stray".into(), ("F32".into(), vec![1], vec![0; 4]));
    });
    refused(
        "dense",
        &["model.safetensors", "layers.1.mlp.up_proj.weight", "[64, 128]", "expected [128, 64]"],
        |copy| {
            copy.find("layers.1.mlp.up_proj.weight").1 = vec![64, 128];
        },
    );
    refused("dense", &["model.safetensors", "layers.0.input_layernorm.weight", "[8, 8]", "expected [64]"], |copy| {
        copy.find("language_model.layers.0.input_layernorm.weight").1 = vec![8, 8];
    });
    refused("dense", &["model.safetensors", "layers.1.mlp.up_proj.weight", "dtype I32", "expected F32"], |copy| {
        copy.find("layers.1.mlp.up_proj.weight").0 = "I32".into();
    });
    refused("dense-mlx-q4", &["model.safetensors", "layers.0.self_attn.q_proj", "[32, 8]", "[64, 8]"], |copy| {
        let (_, shape, bytes) = copy.find("layers.0.self_attn.q_proj.weight");
        assert_eq!(shape, &[64, 8]);
        (*shape, *bytes) = (vec![32, 8], bytes[..bytes.len() / 2].to_vec());
    });
}
