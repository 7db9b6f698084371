//! Whatever bytes a download brings: an error or a checkpoint, never a panic, never an allocation beyond the file.

mod common;

use std::path::Path;

use common::{Copy, golden, repo, walk};
use mlxcel_checkpoint::dequant::code;
use mlxcel_checkpoint::header::Header;
use mlxcel_checkpoint::quantize::quantize_affine;
use mlxcel_checkpoint::testing::safetensors_bytes;
use mlxcel_checkpoint::{Gemma4Config, GenerationDefaults, LlamaConfig, Qwen3_5Config, dequantize_row, parse_header};
use mlxcel_compute::format::DType;
use proptest::prelude::*;
use serde_json::{Value, json};

fn small() -> Vec<u8> {
    safetensors_bytes(&[("a", "F32", &[2, 3], &[1; 24]), ("b", "F8_E4M3", &[5], &[2; 5]), ("c", "BF16", &[4], &[3; 8])])
}

/// An edit of a byte string.
#[derive(Clone, Debug)]
enum Edit {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize, usize),
    Cut(usize),
    Repeat(usize, usize),
}

fn edits(most: usize) -> impl Strategy<Value = Vec<Edit>> {
    // Half of the new bytes are ones that matter in JSON, so that the text often stays parseable.
    let byte = || prop_oneof![any::<u8>(), prop::sample::select(b"0123456789[]{},:\"-e.".to_vec())];
    let edit = prop_oneof![
        4 => (any::<usize>(), byte()).prop_map(|(at, to)| Edit::Set(at, to)),
        2 => (any::<usize>(), byte()).prop_map(|(at, to)| Edit::Insert(at, to)),
        1 => (any::<usize>(), 1..20usize).prop_map(|(at, many)| Edit::Remove(at, many)),
        1 => any::<usize>().prop_map(Edit::Cut),
        1 => (any::<usize>(), 1..60usize).prop_map(|(at, many)| Edit::Repeat(at, many)),
    ];
    prop::collection::vec(edit, 1..most)
}

fn apply(mut bytes: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        let length = bytes.len();
        if length == 0 {
            break;
        }
        match *edit {
            Edit::Set(at, to) => bytes[at % length] = to,
            Edit::Insert(at, to) => bytes.insert(at % length, to),
            Edit::Remove(at, many) => drop(bytes.drain(at % length..(at % length + many).min(length))),
            Edit::Cut(at) => bytes.truncate(at % length),
            Edit::Repeat(at, many) => {
                let piece = bytes[at % length..(at % length + many).min(length)].to_vec();
                bytes.splice(at % length..at % length, piece);
            }
        }
    }
    bytes
}

/// Replaces the header and mends the length field, so that edits of the text get past the first check.
fn with_edited_header(edits: &[Edit]) -> Vec<u8> {
    let file = small();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = apply(file[8..8 + length].to_vec(), edits);
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(&file[8 + length..]);
    out
}

/// What an accepted header promises: the tensors tile the data exactly.
fn check_header(file: &[u8], header: &Header) -> Result<(), TestCaseError> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut end = 8 + length;
    for entry in &header.entries {
        prop_assert_eq!(entry.range.start, end);
        end = entry.range.end;
        if let Some(bits) = entry.dtype.bits() {
            let elements: usize = entry.shape.iter().product();
            prop_assert_eq!(entry.range.len(), (elements * bits).div_ceil(8));
        }
    }
    prop_assert_eq!(end, file.len());
    Ok(())
}

/// The reference parser must agree on every file whose types it knows.
fn check_against_reference(file: &[u8]) -> Result<(), TestCaseError> {
    let (ours, reference) = (parse_header(file), safetensors::SafeTensors::deserialize(file));
    if let Ok(header) = &ours {
        check_header(file, header)?;
    }
    match (ours, reference) {
        (Ok(header), Ok(reference)) => {
            prop_assert_eq!(header.entries.len(), reference.len());
            for entry in &header.entries {
                let theirs = reference.tensor(&entry.name).unwrap();
                prop_assert_eq!(theirs.shape(), &entry.shape[..]);
                prop_assert_eq!(theirs.data(), &file[entry.range.clone()]);
            }
        }
        // It keeps the last of two equal names, and multiplies no dimension after a zero.
        (Err(error), Ok(_)) => {
            let text = error.to_string();
            let stricter =
                ["listed twice", "64 bits", "dimensions", "too large"].iter().any(|part| text.contains(part));
            prop_assert!(stricter, "the reference accepts what is refused here: {}", text);
        }
        // It refuses unknown types at once, ours only when the tensor is asked for; metadata may hold anything here.
        (Ok(header), Err(error)) => {
            let unknown = header.entries.iter().any(|entry| entry.dtype.bits().is_none());
            prop_assert!(unknown || file.windows(8).any(|w| w == b"metadata"), "{error}: {header:?}");
        }
        (Err(_), Err(_)) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files(edits in edits(6)) {
        check_against_reference(&apply(small(), &edits))?;
    }

    #[test]
    fn mutated_headers(edits in edits(4)) {
        check_against_reference(&with_edited_header(&edits))?;
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_against_reference(&bytes)?;
    }

    #[test]
    fn random_headers(
        tensors in prop::collection::vec((0..4usize, prop::collection::vec(0..5usize, 0..4)), 0..6),
    ) {
        let types = [("F32", 4), ("BF16", 2), ("U8", 1), ("I64", 8)];
        let named: Vec<_> = tensors.iter().enumerate().map(|(index, (kind, shape))| {
            let (dtype, size) = types[*kind];
            (format!("t{index}"), dtype, shape, vec![7u8; shape.iter().product::<usize>() * size])
        }).collect();
        let raw: Vec<_> = named.iter().map(|(n, d, s, b)| (n.as_str(), *d, s.as_slice(), b.as_slice())).collect();
        let file = safetensors_bytes(&raw);
        prop_assert_eq!(parse_header(&file).unwrap().entries.len(), raw.len());
        check_against_reference(&file)?;
    }

    /// Codes survive packing at every width, and each value is at most half a step from its original.
    #[test]
    fn quantised_rows(
        values in prop::collection::vec(-100.0f32..100.0, 64),
        bits in prop::sample::select(vec![2u8, 3, 4, 5, 6, 8]),
        group in prop::sample::select(vec![32u16, 64]),
    ) {
        let rows = quantize_affine(&values, 64, bits, group);
        let scales = rows.scales.clone();
        let weight = rows.into_host_weight("w", 1, DType::F32);
        prop_assert_eq!(weight.data.len(), weight.row_bytes());
        let mut got = vec![0.0; 64];
        dequantize_row(&weight, 0, 0, &mut got);
        for (k, (want, got)) in values.iter().zip(&got).enumerate() {
            let step = scales[k / usize::from(group)].abs();
            // Adjusting the step to meet the edge moves the far end by up to half a step more, plus rounding.
            prop_assert!((want - got).abs() <= step * 1.01 + 1e-3, "{}: {} for {}", k, got, want);
            prop_assert!(u32::from(code(&weight.data, bits.into(), k)) < 1 << bits);
        }
    }
}

/// Every place in a JSON value, as a path of keys and indices.
fn places(value: &Value, here: &str, out: &mut Vec<String>) {
    out.push(here.to_string());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(value, &format!("{here}/{key}"), out);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                places(value, &format!("{here}/{index}"), out);
            }
        }
        _ => {}
    }
}

fn junk() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(false),
            json!(""),
            json!("all"),
            json!("full_attention"),
            json!([]),
            json!({}),
            json!(-1),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1e300),
            json!(-0.0),
            json!([[[1]]]),
            json!({"bits": 3, "group_size": 128}),
            json!({"0": {"head_dim": 2}}),
            json!(16_777_216),
            json!(16_777_217),
        ]),
        (0..70u64).prop_map(|small| json!(small)),
        any::<f64>().prop_map(|float| json!(float)),
    ]
}

fn mutate(mut config: Value, changes: &[(usize, Option<Value>)]) -> Value {
    for (at, to) in changes {
        let mut all = Vec::new();
        places(&config, "", &mut all);
        let place = &all[at % all.len()];
        match (to, place.rsplit_once('/')) {
            // Removal: of a key where there is one.
            (None, Some((parent, key))) => match config.pointer_mut(parent) {
                Some(Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
                Some(Value::Array(items)) => drop(items.pop()),
                _ => {}
            },
            (to, _) => *config.pointer_mut(place).unwrap() = to.clone().unwrap_or(Value::Null),
        }
    }
    config
}

fn changes() -> impl Strategy<Value = Vec<(usize, Option<Value>)>> {
    prop::collection::vec((any::<usize>(), prop::option::weighted(0.8, junk())), 1..5)
}

fn golden_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["e2b-mlx-mixed", "moe-mlx-q4", "dense-mlx-nvfp4", "unified", "text_only"])
}

fn llama_type() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["llama", "mistral", "qwen2", "qwen3"])
}

fn qwen3_5_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["dense", "dense-tied", "dense-mlx/4bit", "moe", "moe-mlx/4bit"])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_configs(name in golden_name(), changes in changes()) {
        let config = mutate(Copy::of(name).config, &changes);
        let file = Path::new("config.json");
        let _ = GenerationDefaults::parse(file, &config);
        if let Ok(parsed) = Gemma4Config::parse(file, &config) {
            let text = &parsed.text;
            for layer in 0..text.num_hidden_layers {
                prop_assert!(text.kv_source(layer) <= layer);
                prop_assert!(text.num_attention_heads.is_multiple_of(text.kv_heads(layer)));
                prop_assert!(text.head_dim(layer) >= 2 && text.mlp_width(layer) >= 1);
                let _ = (text.rope(layer), text.k_eq_v(layer), text.moe());
            }
            parsed.ignores("language_model.model.layers.99999999999999999999.self_attn.k_proj.weight");
        }
    }

    #[test]
    fn mutated_qwen3_5_configs(name in qwen3_5_name(), changes in changes()) {
        let config = mutate(Copy::at(&repo().join("tests/golden/qwen3_5").join(name)).config, &changes);
        if let Ok(parsed) = Qwen3_5Config::parse(Path::new("config.json"), &config) {
            let text = &parsed.text;
            prop_assert_eq!(text.layer_types.len(), text.num_hidden_layers);
            prop_assert!(text.rope.rotary_dim() >= 2 && text.rope.rotary_dim() <= text.head_dim);
            prop_assert!(text.num_attention_heads.is_multiple_of(text.num_key_value_heads));
            prop_assert!(text.linear_num_value_heads.is_multiple_of(text.linear_num_key_heads));
            prop_assert!(text.linear_conv_kernel_dim >= 2 && text.linear_conv_dim() > text.linear_value_dim());
            prop_assert!((text.intermediate_size == 0) == text.moe.is_some());
            prop_assert!(!parsed.eos_token_ids.is_empty());
        }
    }

    #[test]
    fn mutated_llama_configs(model_type in llama_type(), changes in changes()) {
        let base = json!({
            "model_type": model_type, "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32
            },
            "max_position_embeddings": 256, "sliding_window": null, "layer_types": ["full_attention"],
            "eos_token_id": [1, 2], "tie_word_embeddings": true, "architectures": ["Some"]
        });
        prop_assert!(LlamaConfig::parse(Path::new("config.json"), &base).is_ok());
        if let Ok(parsed) = LlamaConfig::parse(Path::new("config.json"), &mutate(base, &changes)) {
            prop_assert!(parsed.head_dim >= 2 && parsed.head_dim.is_multiple_of(2));
            prop_assert!(parsed.num_attention_heads.is_multiple_of(parsed.num_key_value_heads));
            prop_assert!(parsed.vocab_size >= 1 && parsed.hidden_size >= 1 && parsed.num_hidden_layers >= 1);
            prop_assert!(parsed.rope.theta > 0.0 && parsed.max_position_embeddings >= 2);
        }
    }

    #[test]
    fn mutated_config_text(edits in edits(5)) {
        let text = std::fs::read(golden("e2b-mlx-q4").join("config.json")).unwrap();
        if let Ok(value) = serde_json::from_slice::<Value>(&apply(text, &edits)) {
            let _ = Gemma4Config::parse(Path::new("config.json"), &value);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The whole load with a wrong configuration before good tensors.
    #[test]
    fn mutated_checkpoints(name in golden_name(), changes in changes()) {
        let dir = tempfile::tempdir().unwrap();
        let mut copy = Copy::of(name);
        copy.config = mutate(copy.config, &changes);
        copy.write(dir.path());
        match walk(dir.path()) {
            Ok(weights) => prop_assert!(!weights.is_empty()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
