//! Synthetic sources, goldens, and comparing checkpoints tensor by tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlxcel_checkpoint::convert::{Options, Summary, convert, open};
use mlxcel_checkpoint::{SafetensorsFile, testing};
use serde_json::{Map, Value, json};

/// A tensor: dtype as the file names it, shape, bytes.
pub type Stored = (String, Vec<usize>, Vec<u8>);

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// Quantisation to so many bits.
pub fn bits(bits: u8, group: u16) -> Options {
    Options { bits: Some(bits), group, ..Options::default() }
}

/// The block's entries, every one with its mode.
pub fn block(dir: &Path) -> BTreeMap<String, Value> {
    let config = json_file(&dir.join("config.json"));
    let entries = config["quantization"].as_object().expect("block").clone().into_iter();
    entries
        .map(|(key, mut value)| {
            if let Value::Object(entry) = &mut value {
                entry.entry("mode").or_insert(json!("affine"));
            }
            (key, value)
        })
        .collect()
}

/// A parsed file.
pub fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("file")).expect("JSON")
}

/// A golden checkpoint of Qwen 3.5.
pub fn qwen(name: &str) -> PathBuf {
    goldens().join("qwen3_5").join(name)
}

/// A golden checkpoint of Gemma 4.
pub fn gemma(name: &str) -> PathBuf {
    goldens().join("gemma4").join(name)
}

/// Converts what must convert.
#[track_caller]
pub fn convert_to(source: &Path, target: &Path, options: &Options) -> Summary {
    let opened = open(source).unwrap_or_else(|error| panic!("{error}"));
    convert(&*opened, target, options, &mut |_| true).unwrap_or_else(|error| panic!("{error}"))
}

/// Converts what must fail with a message of one line that holds all words, and leave nothing beside the target.
#[track_caller]
pub fn fails(source: &Path, target: &Path, options: &Options, words: &[&str]) {
    let beside = || target.parent().and_then(|parent| std::fs::read_dir(parent).ok()).map(|items| items.count());
    let before = beside();
    let converted = open(source).and_then(|opened| convert(&*opened, target, options, &mut |_| true));
    let message = converted.map(|_| ()).expect_err("expected an error").to_string();
    for word in words {
        assert!(message.contains(word), "expected {word:?} in: {message}");
    }
    assert!(!message.contains('\n'), "{message}");
    assert_eq!(beside(), before, "left behind after: {message}");
}

/// All tensors of a directory.
pub fn read(dir: &Path) -> BTreeMap<String, Stored> {
    let mut tensors = BTreeMap::new();
    for name in names(dir).iter().filter(|name| name.starts_with("model") && name.ends_with(".safetensors")) {
        let file = SafetensorsFile::open(&dir.join(name)).expect("weights");
        for index in 0..file.entries().len() {
            let tensor = file.tensor(index).expect("tensor");
            tensors.insert(tensor.name, (tensor.dtype.name().into(), tensor.shape, tensor.data.to_vec()));
        }
    }
    tensors
}

/// Without the tensors of other media, which conversion leaves out.
pub fn text_only(mut tensors: BTreeMap<String, Stored>) -> BTreeMap<String, Stored> {
    const MEDIA: [&str; 5] = ["vision_tower.", "embed_vision.", "vision_embedder.", "audio_tower.", "embed_audio."];
    tensors.retain(|name, _| !MEDIA.iter().any(|media| name.starts_with(media)));
    tensors
}

/// What differs between two checkpoints, one line a tensor.
pub fn differences(expected: &BTreeMap<String, Stored>, found: &BTreeMap<String, Stored>) -> Vec<String> {
    let mut out: Vec<String> =
        found.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("{name}: not expected")).collect();
    for (name, (dtype, shape, bytes)) in expected {
        match found.get(name) {
            None => out.push(format!("{name}: missing")),
            Some((found_dtype, found_shape, _)) if (found_dtype, found_shape) != (dtype, shape) => {
                out.push(format!("{name}: {dtype} {shape:?} expected, found {found_dtype} {found_shape:?}"));
            }
            Some((_, _, found)) if found != bytes => {
                let count = found.iter().zip(bytes).filter(|(a, b)| a != b).count();
                out.push(format!("{name}: {count} of {} bytes differ", bytes.len()));
            }
            Some(_) => {}
        }
    }
    out
}

/// Sorted names in a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let items = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<String> =
        items.map(|item| item.expect("item").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// Writes a checkpoint of one file, or of several with an index.
pub fn write(dir: &Path, config: &Value, tensors: &BTreeMap<String, Stored>, shards: usize) {
    std::fs::create_dir_all(dir).expect("directory");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("config");
    let mut map = Map::new();
    for shard in 0..shards {
        let name = if shards == 1 {
            "model.safetensors".into()
        } else {
            format!("model-{:05}-of-{shards:05}.safetensors", shard + 1)
        };
        let mine: Vec<_> = tensors.iter().skip(shard).step_by(shards).collect();
        let raw: Vec<testing::RawTensor<'_>> = mine
            .iter()
            .map(|(name, (dtype, shape, data))| (name.as_str(), dtype.as_str(), &shape[..], &data[..]))
            .collect();
        testing::write_safetensors(&dir.join(&name), &raw);
        map.extend(mine.iter().map(|(tensor, _)| (tensor.to_string(), json!(name))));
    }
    if shards > 1 {
        let index = json!({"metadata": {}, "weight_map": map});
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).expect("index");
    }
}

/// A tied Llama of two layers, width 64, to be changed and written.
pub struct Llama {
    /// `config.json`.
    pub config: Value,
    /// All tensors.
    pub tensors: BTreeMap<String, Stored>,
    dtype: String,
}

impl Llama {
    /// With tensors of this type.
    pub fn new(dtype: &str) -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 64,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "max_position_embeddings": 128,
        });
        let mut llama = Self { config, tensors: BTreeMap::new(), dtype: dtype.into() };
        llama.random("model.embed_tokens.weight", vec![96, 64]);
        llama.random("model.norm.weight", vec![64]);
        for layer in 0..2 {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                llama.random(&format!("model.layers.{layer}.{norm}.weight"), vec![64]);
            }
            for module in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"] {
                llama.random(&format!("model.layers.{layer}.{module}.weight"), vec![64, 64]);
            }
            for module in ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] {
                llama.random(&format!("model.layers.{layer}.{module}.weight"), vec![64, 64]);
            }
        }
        llama
    }

    /// Replaces or adds a tensor of the checkpoint's type.
    pub fn set(&mut self, name: &str, shape: Vec<usize>, data: Vec<u8>) {
        let dtype = self.dtype.clone();
        self.set_typed(name, &dtype, shape, data);
    }

    /// Replaces or adds a tensor of any type.
    pub fn set_typed(&mut self, name: &str, dtype: &str, shape: Vec<usize>, data: Vec<u8>) {
        self.tensors.insert(name.into(), (dtype.into(), shape, data));
    }

    /// Writes it as one file.
    pub fn write(&self, dir: &Path) {
        write(dir, &self.config, &self.tensors, 1);
    }

    fn random(&mut self, name: &str, shape: Vec<usize>) {
        // A different sequence for every name.
        let mut state = name
            .bytes()
            .fold(14_695_981_039_346_656_037u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211));
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let count = shape.iter().product();
        let data: Vec<u8> = match self.dtype.as_str() {
            "F32" => (0..count).flat_map(|_: usize| next().to_le_bytes()).collect(),
            "F16" => (0..count).flat_map(|_: usize| half::f16::from_f32(next()).to_le_bytes()).collect(),
            _ => (0..count).flat_map(|_: usize| half::bf16::from_f32(next()).to_le_bytes()).collect(),
        };
        self.set(name, shape, data);
    }
}
