//! Conversion: against what MLX's own tools wrote (here), bad sources (`convert_sources`), targets (`convert_targets`).

mod convert_sources;
mod convert_support;
mod convert_targets;

use std::collections::BTreeMap;
use std::path::Path;

use convert_support::{Llama, bits, block, convert_to, differences, fails, json_file, names, qwen, read, text_only};
use mlxcel_checkpoint::convert::{Choice, Mixed, Options};
use mlxcel_checkpoint::{Checkpoint, Weights};
use mlxcel_compute::format::{DType, QuantFormat, WeightFormat};
use serde_json::{Value, json};

/// Every tensor of the float MLX folders, bit for bit; the vision tower, which mlx-lm leaves out, apart.
#[test]
fn qwen_floats_equal_mlx_bit_for_bit() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for name in ["dense", "dense-tied", "moe"] {
        let target = dir.path().join(name);
        let options = Options { dtype: Some(DType::F32), ..Options::default() };
        let summary = convert_to(&qwen(name), &target, &options);
        let expected = text_only(read(&qwen(&format!("{name}-mlx/f32"))));
        assert_eq!(differences(&expected, &read(&target)), Vec::<String>::new(), "{name}");
        assert!(summary.notes.iter().any(|note| note.contains("mtp")), "{:?}", summary.notes);
        // Converting what is in MLX's layout already changes nothing: no norm is shifted twice.
        let again = dir.path().join(format!("{name}-again"));
        convert_to(&qwen(&format!("{name}-mlx/f32")), &again, &options);
        assert_eq!(differences(&expected, &read(&again)), Vec::<String>::new(), "{name} again");
    }
}

#[test]
fn qwen_codes_equal_mlx_bit_for_bit() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for name in ["dense", "dense-tied", "moe"] {
        let target = dir.path().join(name);
        let summary = convert_to(&qwen(name), &target, &bits(4, 32));
        let reference = qwen(&format!("{name}-mlx/4bit"));
        assert_eq!(differences(&read(&reference), &read(&target)), Vec::<String>::new(), "{name}");
        assert_eq!(block(&target), block(&reference), "{name}");
        // The count of values is not compared: mlx-lm's leaves out those that belong to no layer module (A_log, dt_bias).
        let size = |dir: &Path| json_file(&dir.join("model.safetensors.index.json"))["metadata"]["total_size"].clone();
        assert_eq!((size(&target), size(&target)), (size(&reference), json!(summary.written_bytes)), "{name}");
    }
}

/// The twin: one flipped bit of the codes, of a scale, or of a bias is seen.
#[test]
fn a_flipped_bit_is_seen() {
    let dir = tempfile::tempdir().expect("temporary directory");
    convert_to(&qwen("dense"), dir.path().join("out").as_path(), &bits(4, 32));
    let file = dir.path().join("out/model.safetensors");
    let clean = std::fs::read(&file).expect("weights");
    let expected = read(&qwen("dense-mlx/4bit"));
    for part in ["weight", "scales", "biases"] {
        let name = format!("language_model.model.layers.0.mlp.down_proj.{part}");
        let checkpoint = Checkpoint::open(&dir.path().join("out")).expect("checkpoint");
        let at = checkpoint.entry(&name).expect("tensor").range.start + 5;
        let mut damaged = clean.clone();
        damaged[at] ^= 1 << 3;
        std::fs::write(&file, damaged).expect("write");
        let found = differences(&expected, &read(&dir.path().join("out")));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&name), "{found:?}");
    }
}

/// The Gemma goldens of mlx-vlm, uniform and mixed, dense and MoE: the same codes, and the same block but for its order.
#[test]
fn gemma_codes_equal_mlx_bit_for_bit() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (float, quantised) in [
        ("dense", "dense-mlx-q4"),
        ("dense", "dense-mlx-mixed"),
        ("e2b", "e2b-mlx-q4"),
        ("e4b", "e4b-mlx-mixed"),
        ("moe", "moe-mlx-q4"),
        ("moe", "moe-mlx-mixed"),
        ("unified", "unified-mlx-q4"),
    ] {
        let reference = convert_support::gemma(quantised);
        let mixed = block(&reference)
            .into_iter()
            .filter_map(|(path, value)| {
                let choice = match &value {
                    Value::Object(entry) => Choice::Quantise {
                        bits: entry["bits"].as_u64()? as u8,
                        group: Some(entry["group_size"].as_u64()? as u16),
                    },
                    Value::Bool(false) => Choice::Keep,
                    _ => return None,
                };
                Some(Mixed::Pattern(path, choice))
            })
            .collect();
        let target = dir.path().join(quantised);
        convert_to(&convert_support::gemma(float), &target, &Options { mixed, ..bits(4, 32) });
        let expected = text_only(read(&reference));
        assert_eq!(differences(&expected, &read(&target)), Vec::<String>::new(), "{quantised}");
    }
    // Text-only exports keep their names.
    let target = dir.path().join("text_only");
    convert_to(&convert_support::gemma("text_only"), &target, &Options::default());
    assert_eq!(
        differences(&read(&convert_support::gemma("text_only")), &read(&target)),
        Vec::<String>::new(),
        "text_only"
    );
}

/// Experts stored one by one, in any order, become the same stacks as fused ones.
#[test]
fn single_experts_are_stacked_in_order() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (fused, single) = (dir.path().join("fused"), dir.path().join("single"));
    convert_to(&qwen("moe"), &fused, &bits(4, 32));
    let mut tensors = BTreeMap::new();
    for (name, (dtype, shape, data)) in read(&qwen("moe")) {
        let Some(prefix) = name.strip_suffix("gate_up_proj").or_else(|| name.strip_suffix("down_proj")) else {
            tensors.insert(name, (dtype, shape, data));
            continue;
        };
        if !prefix.ends_with(".experts.") || prefix.contains("mtp.") {
            tensors.insert(name, (dtype, shape, data));
            continue;
        }
        let (experts, rows, columns) = (shape[0], shape[1], shape[2]);
        for expert in 0..experts {
            let bytes = &data[expert * rows * columns * 4..][..rows * columns * 4];
            if name.ends_with("down_proj") {
                let stored = (dtype.clone(), vec![rows, columns], bytes.to_vec());
                tensors.insert(format!("{prefix}{expert}.down_proj.weight"), stored);
                continue;
            }
            for (which, half) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                let half_bytes = bytes.len() / 2;
                let part = bytes[which * half_bytes..][..half_bytes].to_vec();
                let stored = (dtype.clone(), vec![rows / 2, columns], part);
                tensors.insert(format!("{prefix}{expert}.{half}.weight"), stored);
            }
        }
    }
    let source = dir.path().join("source");
    convert_support::write(&source, &json_file(&qwen("moe").join("config.json")), &tensors, 1);
    convert_to(&source, &single, &bits(4, 32));
    assert_eq!(differences(&read(&fused), &read(&single)), Vec::<String>::new());

    let gone = "model.language_model.layers.1.mlp.experts.3.up_proj.weight";
    assert!(tensors.remove(gone).is_some());
    std::fs::remove_dir_all(&source).expect("remove");
    convert_support::write(&source, &json_file(&qwen("moe").join("config.json")), &tensors, 1);
    fails(
        &source,
        &dir.path().join("x"),
        &bits(4, 32),
        &["layers.1.mlp.switch_mlp.up_proj", "expert 3 of 8 is missing"],
    );
}

/// bf16 and f16 go through unchanged, whatever their bits, and between types by rounding to nearest even.
#[test]
fn floats_survive_and_round_to_nearest_even() {
    let dir = tempfile::tempdir().expect("temporary directory");
    // Every 16-bit pattern once, in a matrix of 1024 rows.
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (dtype, same) in [("BF16", DType::Bf16), ("F16", DType::F16)] {
        let mut llama = Llama::new(dtype);
        llama.config["vocab_size"] = json!(1024);
        llama.set("model.embed_tokens.weight", vec![1024, 64], every.clone());
        let (source, target) = (dir.path().join(dtype), dir.path().join(format!("{dtype}-out")));
        llama.write(&source);
        convert_to(&source, &target, &Options::default());
        let stored = &read(&target)["model.embed_tokens.weight"];
        assert_eq!((stored.0.as_str(), &stored.1), (dtype, &vec![1024, 64]));
        for (before, after) in every.chunks_exact(2).zip(stored.2.chunks_exact(2)) {
            let pattern = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
            let is_nan = |pattern: u16| match same {
                DType::Bf16 => half::bf16::from_bits(pattern).is_nan(),
                _ => half::f16::from_bits(pattern).is_nan(),
            };
            let (before, after) = (pattern(before), pattern(after));
            // Of a NaN the payload may become a quiet one.
            assert!(before == after || (is_nan(before) && is_nan(after)), "{before:04x} became {after:04x}");
        }
    }
    let mut llama = Llama::new("F32");
    // Two ties, one down and one up to an even last bit, and a value just above the first tie.
    let ties = [0x3f80_8000u32, 0x3f81_8000, 0x3f80_8001];
    let norm: Vec<u8> = ties.iter().cycle().take(64).flat_map(|bits| bits.to_le_bytes()).collect();
    llama.set("model.norm.weight", vec![64], norm);
    llama.write(&dir.path().join("F32"));
    let options = Options { dtype: Some(DType::Bf16), ..Options::default() };
    convert_to(&dir.path().join("F32"), &dir.path().join("rounded"), &options);
    let rounded = &read(&dir.path().join("rounded"))["model.norm.weight"].2;
    let found: Vec<u16> = rounded.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).collect();
    assert_eq!(found[..3], [0x3f80, 0x3f82, 0x3f81]);
}

/// The converted checkpoint opens, and its matrices have the formats that were asked for.
#[test]
fn a_llama_opens_with_the_formats_asked_for() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, target) = (dir.path().join("hf"), dir.path().join("out"));
    let mut llama = Llama::new("BF16");
    llama.config["tie_word_embeddings"] = json!(false);
    llama.config["torch_dtype"] = json!("bfloat16");
    llama.config["_name_or_path"] = json!("somewhere");
    llama.set("lm_head.weight", vec![96, 64], vec![0x3f; 96 * 64 * 2]);
    llama.set("model.layers.0.self_attn.rotary_emb.inv_freq", vec![8], vec![0; 16]);
    llama.write(&source);
    for file in ["tokenizer.json", "generation_config.json", "chat_template.jinja", "LICENSE", "vocab.txt"] {
        std::fs::write(source.join(file), format!("{{\"{file}\": 1}}")).expect("write");
    }
    for file in [".hidden.json", "training_args.bin", "pytorch_model.bin.index.json"] {
        std::fs::write(source.join(file), "x").expect("write");
    }
    let rules = ["*v_proj=8:32", "*.mlp.*=3", "*.layers.1.mlp.up_proj=none", "sensitive"];
    let mixed = rules.iter().map(|rule| Mixed::parse(rule).expect("rule")).collect();
    let options = Options { mixed, dtype: Some(DType::F16), ..bits(4, 64) };
    convert_to(&source, &target, &options);
    for file in ["tokenizer.json", "generation_config.json", "chat_template.jinja", "LICENSE", "vocab.txt"] {
        assert_eq!(std::fs::read(source.join(file)).ok(), std::fs::read(target.join(file)).ok(), "{file}");
    }
    assert_eq!(names(&target).len(), 5 + 3, "{:?}", names(&target));

    let checkpoint = Checkpoint::open(&target).expect("opens");
    assert_eq!(checkpoint.config()["torch_dtype"], "float16");
    assert_eq!(checkpoint.config().get("_name_or_path"), None);
    assert_eq!(checkpoint.config()["quantization"], checkpoint.config()["quantization_config"]);
    let weights = Weights::detect(&checkpoint).expect("prefix");
    let format = |bits, group| WeightFormat::Quant(QuantFormat::Affine { bits, group }, DType::F16);
    let of = |path: &str, rows| weights.linear(path, rows, 64).expect(path).format;
    assert_eq!(of("embed_tokens", 96), format(6, 64), "the preset comes last");
    assert_eq!(weights.lm_head(96, 64).expect("head").format, format(6, 64));
    // Of two layers, the preset raises none but the last.
    assert_eq!(of("layers.0.self_attn.v_proj", 64), format(8, 32));
    assert_eq!(of("layers.1.self_attn.v_proj", 64), format(6, 64));
    assert_eq!(of("layers.0.mlp.down_proj", 64), format(3, 64));
    assert_eq!(of("layers.1.mlp.down_proj", 64), format(6, 64));
    assert_eq!(of("layers.1.mlp.up_proj", 64), WeightFormat::Float(DType::F16));
    assert_eq!(of("layers.1.mlp.gate_proj", 64), format(3, 64));
    assert_eq!(of("layers.0.self_attn.q_proj", 64), format(4, 64));
}

/// The same tensors in one file or many, from one file or many, by one thread or many.
#[test]
fn shards_and_threads_change_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let llama = Llama::new("F32");
    llama.write(&dir.path().join("one"));
    convert_support::write(&dir.path().join("three"), &llama.config, &llama.tensors, 3);
    let mut outputs = Vec::new();
    for (number, (source, shard_bytes, threads)) in
        [("one", u64::MAX, 1), ("one", 1, 3), ("one", 5000, 2), ("three", 9000, 7)].into_iter().enumerate()
    {
        let target = dir.path().join(number.to_string());
        let summary = convert_to(&dir.path().join(source), &target, &Options { shard_bytes, threads, ..bits(5, 32) });
        let files = names(&target).iter().filter(|name| name.ends_with(".safetensors")).count();
        assert_eq!(summary.files, files);
        assert_eq!(files == 1, shard_bytes == u64::MAX, "{files} files");
        let checkpoint = Checkpoint::open(&target).expect("opens");
        for file in checkpoint.files() {
            let sizes: u64 = file.entries().iter().map(|entry| entry.range.len() as u64).sum();
            let modules = file.entries().iter().filter(|entry| entry.name.ends_with("weight")).count();
            assert!(sizes <= shard_bytes || modules == 1, "{sizes} bytes of {modules} modules");
            assert_eq!(file.header().metadata["format"], "mlx");
            for entry in file.entries() {
                assert_eq!(entry.range.start % entry.dtype.bits().expect("known").div_euclid(8), 0, "{}", entry.name);
            }
        }
        outputs.push(read(&target));
    }
    for output in &outputs[1..] {
        assert_eq!(differences(&outputs[0], output), Vec::<String>::new());
    }
}

/// Long matrices are cut into chunks and shared among threads; the bytes are those of one piece.
#[test]
fn chunks_meet_without_a_seam() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut llama = Llama::new("F32");
    // 5.3 million values: more than a chunk, and no multiple of one.
    let rows = 83_001;
    let data: Vec<u8> = (0..rows * 64u32)
        .flat_map(|i| ((i.wrapping_mul(2_654_435_761) >> 9) as f32 / 4e6 - 1.0).to_le_bytes())
        .collect();
    let values: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    llama.config["vocab_size"] = json!(rows);
    llama.set("model.embed_tokens.weight", vec![rows as usize, 64], data);
    llama.write(&dir.path().join("hf"));
    let whole = mlxcel_checkpoint::quantize::quantize_affine(&values, 64, 3, 64);
    for threads in [1, 5] {
        let target = dir.path().join(threads.to_string());
        convert_to(&dir.path().join("hf"), &target, &Options { threads, ..bits(3, 64) });
        let stored = read(&target);
        let words: Vec<u8> = whole.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert!(stored["model.embed_tokens.weight"].2 == words, "codes on {threads} threads");
        assert!(stored["model.embed_tokens.scales"].2 == floats(&whole.scales), "scales on {threads} threads");
        assert!(stored["model.embed_tokens.biases"].2 == floats(&whole.biases), "biases on {threads} threads");
    }
}

/// Modules whose width does not divide stay floats, with a note and a line in the configuration.
#[test]
fn what_does_not_divide_stays_float() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut llama = Llama::new("F32");
    llama.config["intermediate_size"] = json!(48);
    for layer in 0..2 {
        let at = |name: &str| format!("model.layers.{layer}.mlp.{name}.weight");
        llama.set(&at("gate_proj"), vec![48, 64], vec![0; 48 * 64 * 4]);
        llama.set(&at("up_proj"), vec![48, 64], vec![0; 48 * 64 * 4]);
        llama.set(&at("down_proj"), vec![64, 48], vec![0; 48 * 64 * 4]);
    }
    llama.write(&dir.path().join("hf"));
    let summary = convert_to(&dir.path().join("hf"), &dir.path().join("out"), &bits(4, 64));
    let note = "model.layers.*.mlp.down_proj (2 of width 48) not quantised: not divisible by the group size 64";
    assert_eq!(summary.notes, [note]);
    assert_eq!(block(&dir.path().join("out"))["model.layers.1.mlp.down_proj"], false);
    let checkpoint = Checkpoint::open(&dir.path().join("out")).expect("opens");
    let weights = Weights::detect(&checkpoint).expect("prefix");
    let down = weights.linear("layers.0.mlp.down_proj", 64, 48).expect("matrix");
    assert_eq!(down.format, WeightFormat::Float(DType::F32));
    fails(&dir.path().join("hf"), &dir.path().join("x"), &bits(4, 128), &["no module would be quantised", "128"]);
}
