//! Shared by the tests: where the golden checkpoints are, the walk over a whole model, and breaking copies.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlxcel_checkpoint::testing::{RawTensor, write_safetensors};
use mlxcel_checkpoint::{Checkpoint, CheckpointError, Gemma4Config, SafetensorsFile, Weights};
use mlxcel_compute::format::HostWeight;
use serde_json::{Value, json};

/// The root of the repository.
pub fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A golden checkpoint of the family.
pub fn golden(name: &str) -> PathBuf {
    repo().join("tests/golden/gemma4").join(name)
}

/// Every golden checkpoint of the family.
pub fn goldens() -> Vec<PathBuf> {
    let root = repo().join("tests/golden/gemma4");
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{}: {error}", root.display()))
        .map(|item| item.unwrap().path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    dirs.sort();
    dirs
}

/// Opens a checkpoint and asks for every tensor that its configuration implies, as a model does. Returns the matrices.
pub fn walk(dir: &Path) -> Result<Vec<HostWeight>, CheckpointError> {
    let checkpoint = Checkpoint::open(dir)?;
    let config = Gemma4Config::from_checkpoint(&checkpoint)?;
    let weights = Weights::detect(&checkpoint)?;
    let c = &config.text;
    let (hidden, layers, ple) = (c.hidden_size, c.num_hidden_layers, c.hidden_size_per_layer_input);
    let mut out = vec![weights.linear("embed_tokens", c.vocab_size, hidden)?];
    weights.vector("norm.weight", hidden)?;
    if !c.tie_word_embeddings {
        out.push(weights.lm_head(c.vocab_size, hidden)?);
    }
    if ple > 0 {
        out.push(weights.linear("embed_tokens_per_layer", c.vocab_size_per_layer_input, layers * ple)?);
        out.push(weights.linear("per_layer_model_projection", layers * ple, hidden)?);
        weights.vector("per_layer_projection_norm.weight", ple)?;
    }
    for index in 0..layers {
        let layer = weights.sub(&format!("layers.{index}."));
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            layer.vector(&format!("{norm}_layernorm.weight"), hidden)?;
        }
        layer.scalar("layer_scalar")?;
        let (dim, kv) = (c.head_dim(index), c.kv_heads(index) * c.head_dim(index));
        let attention = layer.sub("self_attn.");
        out.push(attention.linear("q_proj", c.num_attention_heads * dim, hidden)?);
        out.push(attention.linear("o_proj", hidden, c.num_attention_heads * dim)?);
        attention.vector("q_norm.weight", dim)?;
        if c.kv_source(index) == index {
            out.push(attention.linear("k_proj", kv, hidden)?);
            attention.vector("k_norm.weight", dim)?;
            if !c.k_eq_v(index) {
                out.push(attention.linear("v_proj", kv, hidden)?);
            }
        }
        let (mlp, width) = (layer.sub("mlp."), c.mlp_width(index));
        out.push(mlp.linear("gate_proj", width, hidden)?);
        out.push(mlp.linear("up_proj", width, hidden)?);
        out.push(mlp.linear("down_proj", hidden, width)?);
        if ple > 0 {
            out.push(layer.linear("per_layer_input_gate", ple, hidden)?);
            out.push(layer.linear("per_layer_projection", hidden, ple)?);
            layer.vector("post_per_layer_input_norm.weight", hidden)?;
        }
        if let Some(moe) = c.moe() {
            let (experts, width) = (moe.num_experts, moe.moe_intermediate_size);
            for norm in ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"]
            {
                layer.vector(&format!("{norm}.weight"), hidden)?;
            }
            out.push(layer.linear("router.proj", experts, hidden)?);
            layer.vector("router.scale", hidden)?;
            layer.vector("router.per_expert_scale", experts)?;
            let own = layer.sub("experts.");
            if own.has("gate_up_proj") {
                let (gate, up) = own.fused_experts("gate_up_proj", experts, width, hidden)?;
                out.extend([gate, up, own.experts("down_proj", experts, hidden, width)?]);
            } else {
                out.push(own.experts("switch_glu.gate_proj", experts, width, hidden)?);
                out.push(own.experts("switch_glu.up_proj", experts, width, hidden)?);
                out.push(own.experts("switch_glu.down_proj", experts, hidden, width)?);
            }
        }
    }
    weights.finish(|name| config.ignores(name))?;
    Ok(out)
}

/// An owned tensor: dtype name, shape, bytes.
pub type Owned = (String, Vec<usize>, Vec<u8>);

/// A checkpoint in memory, to be broken and written out.
pub struct Copy {
    /// `config.json`.
    pub config: Value,
    /// All tensors.
    pub tensors: BTreeMap<String, Owned>,
}

impl Copy {
    /// Of a golden checkpoint.
    pub fn of(name: &str) -> Self {
        Self::at(&golden(name))
    }

    /// Of a checkpoint of one file.
    pub fn at(dir: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
        let file = SafetensorsFile::open(&dir.join("model.safetensors")).unwrap();
        let tensor = |index: usize| {
            let tensor = file.tensor(index).unwrap();
            (tensor.name, (tensor.dtype.name().to_string(), tensor.shape, tensor.data.to_vec()))
        };
        Self { config, tensors: (0..file.entries().len()).map(tensor).collect() }
    }

    /// Writes it as one file.
    pub fn write(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        write_safetensors(&dir.join("model.safetensors"), &self.raw(|_| true));
    }

    /// Writes it as `shards` files with an index.
    pub fn write_shards(&self, dir: &Path, shards: usize) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        let mut map = serde_json::Map::new();
        for shard in 0..shards {
            let file = shard_name(shard, shards);
            let mine = |index: usize| index % shards == shard;
            write_safetensors(&dir.join(&file), &self.raw(mine));
            for (_, name) in self.tensors.keys().enumerate().filter(|(index, _)| mine(*index)) {
                map.insert(name.clone(), json!(file));
            }
        }
        let index = json!({"metadata": {}, "weight_map": map});
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    fn raw(&self, keep: impl Fn(usize) -> bool) -> Vec<RawTensor<'_>> {
        self.tensors
            .iter()
            .enumerate()
            .filter(|(index, _)| keep(*index))
            .map(|(_, (name, (dtype, shape, bytes)))| {
                (name.as_str(), dtype.as_str(), shape.as_slice(), bytes.as_slice())
            })
            .collect()
    }
}

/// `model-00001-of-00003.safetensors` for shard 0 of 3.
pub fn shard_name(shard: usize, shards: usize) -> String {
    format!("model-{:05}-of-{shards:05}.safetensors", shard + 1)
}

/// The message of a failed result; it must contain every part.
#[track_caller]
pub fn assert_error<T>(result: Result<T, CheckpointError>, parts: &[&str]) {
    let error = result.map(|_| ()).expect_err("expected an error");
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "expected {part:?} in: {message}");
    }
    // One line, so that it can be printed as it is.
    assert!(!message.contains('\n'), "{message}");
}
