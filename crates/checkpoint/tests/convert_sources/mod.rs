//! Sources: refused with what is wrong, read by their place, complete by their configuration.

use std::collections::BTreeMap;
use std::path::Path;

use mlxcel_checkpoint::convert::{HfSource, Mixed, Options};
use mlxcel_checkpoint::gemma4::Gemma4Config;
use mlxcel_checkpoint::gguf::testing::tiny;
use mlxcel_checkpoint::qwen3_5::Qwen3_5Config;
use mlxcel_checkpoint::{Checkpoint, Gguf};
use mlxcel_compute::format::DType;
use serde_json::{Value, json};

use crate::convert_support::{
    self, Llama, Stored, bits, convert_to, differences, fails, gemma, json_file, names, qwen, read,
};

#[test]
fn bad_sources_say_what_is_wrong() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let target = dir.path().join("out");
    let case = |number: &str, change: &dyn Fn(&mut Llama)| {
        let mut llama = Llama::new("F32");
        change(&mut llama);
        let source = dir.path().join(number);
        llama.write(&source);
        source
    };
    let none = Options::default();
    let set = |key: &'static str, value: Value| move |llama: &mut Llama| llama.config[key] = value.clone();

    fails(&dir.path().join("nowhere"), &target, &none, &["nowhere", "no such file or directory", ".gguf"]);
    let file = dir.path().join("weights.bin");
    std::fs::write(&file, "x").expect("write");
    fails(&file, &target, &none, &["weights.bin", "expected a directory"]);

    let source = case("config", &|_| {});
    std::fs::remove_file(source.join("config.json")).expect("remove");
    fails(&source, &target, &none, &["no config.json"]);
    let source = case("type", &set("model_type", json!("mamba")));
    fails(&source, &target, &none, &["config.json", "\"mamba\"", "supported: llama", "qwen3_5", "gemma4"]);
    let source = case("drafter", &set("model_type", json!("qwen3_5_mtp")));
    fails(&source, &target, &none, &["qwen3_5_mtp", "drafter"]);
    let source = case("layers", &set("num_hidden_layers", json!("two")));
    fails(&source, &target, &none, &["num_hidden_layers", "\"two\""]);
    let source = case("untied", &set("tie_word_embeddings", json!(false)));
    fails(&source, &target, &none, &["no tensor lm_head.weight"]);
    let source = case("missing", &|llama| drop(llama.tensors.remove("model.layers.1.mlp.up_proj.weight")));
    fails(&source, &target, &none, &["no tensor model.layers.1.mlp.up_proj.weight"]);
    let source = case("deep", &set("num_hidden_layers", json!(3)));
    fails(&source, &target, &none, &["no tensor model.layers.2", "nor 8 others"]);
    let source = case("empty", &|llama| llama.set("model.norm.weight", vec![1 << 60, 0], Vec::new()));
    fails(&source, &target, &none, &["model.norm.weight", "1152921504606846976, 0]", "sizes above 0"]);
    let source = case("unknown", &|llama| llama.set("model.layers.0.mlp.extra.weight", vec![2], vec![0; 8]));
    fails(&source, &target, &none, &["model.safetensors", "model.layers.0.mlp.extra.weight"]);
    let source = case("beyond", &set("num_hidden_layers", json!(1)));
    fails(&source, &target, &none, &["model.layers.1."]);

    let source = case("mlx", &|llama| {
        llama.set_typed("model.layers.0.mlp.up_proj.weight", "U32", vec![64, 8], vec![0; 64 * 8 * 4]);
        llama.set("model.layers.0.mlp.up_proj.scales", vec![64, 1], vec![0; 64 * 4]);
    });
    fails(&source, &target, &none, &["already quantised", "up_proj.scales"]);
    let source = case("fp8", &|llama| {
        llama.set_typed("model.layers.0.mlp.up_proj.weight", "F8_E4M3", vec![64, 64], vec![0; 64 * 64]);
    });
    fails(&source, &target, &none, &["already quantised", "up_proj.weight", "F8_E4M3"]);
    let source = case("gptq", &set("quantization_config", json!({"quant_method": "gptq"})));
    fails(&source, &target, &none, &["already quantised", "gptq"]);
    let source = case("int8", &|llama| {
        llama.set_typed("model.layers.0.mlp.up_proj.weight", "I8", vec![64, 64], vec![0; 64 * 64]);
    });
    fails(&source, &target, &none, &["up_proj.weight", "dtype I8", "F32, BF16 or F16"]);

    // Shards: one lost, one cut, one that the index names and does not exist.
    let llama = Llama::new("F32");
    for (number, damage) in ["lost", "cut"].into_iter().enumerate() {
        let source = dir.path().join(damage);
        convert_support::write(&source, &llama.config, &llama.tensors, 3);
        let shard = source.join("model-00002-of-00003.safetensors");
        if number == 0 {
            std::fs::remove_file(&shard).expect("remove");
            fails(&source, &target, &none, &["model-00002-of-00003.safetensors", "missing"]);
        } else {
            let bytes = std::fs::read(&shard).expect("read");
            std::fs::write(&shard, &bytes[..bytes.len() - 7]).expect("write");
            fails(&source, &target, &none, &["model-00002-of-00003.safetensors", "truncated"]);
        }
    }
    let source = dir.path().join("bin");
    std::fs::create_dir(&source).expect("directory");
    std::fs::write(source.join("config.json"), "{\"model_type\": \"llama\"}").expect("write");
    std::fs::write(source.join("pytorch_model.bin"), "x").expect("write");
    fails(&source, &target, &none, &["*.bin", "safetensors"]);

    // Values that cannot be written.
    let with = |number: &str, value: f32| {
        case(number, &|llama| {
            let mut data = vec![0; 64 * 64 * 4];
            data[(3 * 64 + 7) * 4..][..4].copy_from_slice(&value.to_le_bytes());
            llama.set("model.layers.1.mlp.down_proj.weight", vec![64, 64], data);
        })
    };
    let place = ["down_proj.weight", "row 3, column 7"];
    fails(&with("nan", f32::NAN), &target, &bits(4, 64), &[place[0], place[1], "NaN", "cannot be quantised"]);
    let half = Options { dtype: Some(DType::F16), ..Options::default() };
    fails(&with("large", 65520.0), &target, &half, &[place[0], place[1], "65520 does not fit F16"]);
    convert_to(&with("fits", 65519.0), &dir.path().join("fits-out"), &half);

    // Rules and numbers.
    let source = case("rules", &|_| {});
    let rule = |text: &str| Options { mixed: vec![Mixed::parse(text).expect("rule")], ..bits(4, 64) };
    fails(
        &source,
        &target,
        &rule("*.down_prj=6"),
        &["*.down_prj", "no module matches", "model.layers.*.mlp.down_proj"],
    );
    fails(&source, &target, &rule("*=none"), &["no module would be quantised"]);
    fails(&source, &target, &Options { bits: None, ..rule("*=6") }, &["--mixed without --bits"]);
    fails(&source, &target, &bits(7, 64), &["7 bits", "expected 2, 3, 4, 5, 6 or 8"]);
    fails(&source, &target, &bits(4, 16), &["group size 16"]);
    assert!(!target.exists());
}

/// What the tests read of a source is what a conversion reads.
#[test]
fn rows_are_read_by_their_place() {
    use mlxcel_checkpoint::convert::Source;
    let dir = tempfile::tempdir().expect("temporary directory");
    let llama = Llama::new("F32");
    llama.write(dir.path());
    let source = HfSource::open(dir.path()).expect("opens");
    for (index, tensor) in source.tensors().iter().enumerate() {
        let (_, _, data): &Stored = &llama.tensors[&tensor.name];
        let all: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let (rows, width) = (tensor.rows(), tensor.width());
        for range in [0..rows, 0..0, rows / 2..rows, rows / 3..rows / 2] {
            let mut out = vec![7.0];
            source.read_rows(index, range.clone(), &mut out).expect("rows");
            assert_eq!(out[0], 7.0, "rows are appended");
            assert_eq!(out[1..], all[range.start * width..range.end * width], "{} {range:?}", tensor.name);
        }
    }
}

/// Every architecture that is imported becomes a directory whose tensors are the file's rows under transformers' names.
#[test]
fn gguf_files_convert() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let path = dir.path().join(format!("{architecture}.gguf"));
        std::fs::write(&path, tiny(architecture).bytes()).expect("write");
        let target = dir.path().join(architecture);
        convert_to(&path, &target, &Options { dtype: Some(DType::F32), ..Options::default() });
        let file = Gguf::open(&path).expect("opens");
        let mut expected = BTreeMap::new();
        for (index, tensor) in file.tensors().iter().enumerate() {
            let Some(name) = file.hf_name(index).expect("name") else { continue };
            let mut values = Vec::new();
            file.read_rows(index, 0..tensor.rows(), &mut values).expect("rows");
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            expected.insert(name, ("F32".to_string(), tensor.shape.clone(), bytes));
        }
        assert_eq!(differences(&expected, &read(&target)), Vec::<String>::new(), "{architecture}");
        let mut names = names(&target);
        names.retain(|name| !name.starts_with("model.safetensors"));
        for (name, bytes) in file.text_files().expect("files") {
            assert_eq!(std::fs::read(target.join(&name)).expect("file"), bytes, "{architecture}: {name}");
            names.retain(|other| *other != name);
        }
        assert_eq!(names, ["config.json"], "{architecture}");
        assert!(Checkpoint::open(&target).is_ok());
    }
    // Quantised matrices: all floats are f16, and the configuration says so.
    let mut file = tiny("llama");
    let up = file.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.ffn_up.weight").expect("tensor");
    // Q8_0: blocks of 32 codes behind an f16 scale.
    let blocks = up.data.len() / 4 / 32;
    (up.kind, up.data) = (8, [&[0, 0x3c][..], &[1; 32]].concat().repeat(blocks));
    let (path, target) = (dir.path().join("q8.gguf"), dir.path().join("q8"));
    std::fs::write(&path, file.bytes()).expect("write");
    convert_to(&path, &target, &Options::default());
    assert!(read(&target).values().all(|(dtype, ..)| dtype == "F16"));
    assert_eq!(json_file(&target.join("config.json"))["torch_dtype"], "float16");
    convert_to(&path, &dir.path().join("q8-bf16"), &Options { dtype: Some(DType::Bf16), ..Options::default() });
    assert_eq!(json_file(&dir.path().join("q8-bf16/config.json"))["torch_dtype"], "bfloat16");
    // A cut file is refused before anything is made.
    let whole = tiny("llama").bytes();
    let path = dir.path().join("cut.gguf");
    std::fs::write(&path, &whole[..whole.len() - 9]).expect("write");
    fails(&path, &dir.path().join("x"), &Options::default(), &["cut.gguf", "truncated"]);
    // A directory that holds only a GGUF file says which path to give.
    let holder = dir.path().join("holder");
    std::fs::create_dir(&holder).expect("directory");
    std::fs::write(holder.join("a.gguf"), whole).expect("write");
    std::fs::write(holder.join("config.json"), "{}").expect("write");
    fails(&holder, &dir.path().join("x"), &Options::default(), &["a.gguf", "for the GGUF file give"]);
}

/// Every kind of tensor of a source, once removed and once of another shape: each is missed, and told by its name.
fn every_tensor_counts(work: &Path, from: &Path, ignores: &dyn Fn(&str) -> bool) {
    let (config, tensors) = (json_file(&from.join("config.json")), read(from));
    let attempt = |tensors: &BTreeMap<String, Stored>, words: Option<&[&str]>| {
        let (source, target) = (work.join("source"), work.join("target"));
        convert_support::write(&source, &config, tensors, 1);
        match words {
            Some(words) => fails(&source, &target, &Options::default(), words),
            None => drop(convert_to(&source, &target, &Options::default())),
        }
        let _ = std::fs::remove_dir_all(target);
        std::fs::remove_dir_all(source).expect("source");
    };
    // The twin: undamaged, it converts.
    attempt(&tensors, None);
    // One layer of each kind stands for all.
    let kinds: BTreeMap<String, &String> = tensors
        .keys()
        .filter(|name| !ignores(name))
        .map(|name| {
            let general: Vec<&str> =
                name.split('.').map(|part| if part.parse::<u32>().is_ok() { "*" } else { part }).collect();
            (general.join("."), name)
        })
        .collect();
    assert!(kinds.len() > 10, "{}: {:?}", from.display(), kinds.keys());
    for name in kinds.into_values() {
        let mut damaged = tensors.clone();
        damaged.remove(name);
        attempt(&damaged, Some(&["no tensor "]));
        // One more row (or expert, or element), so that the file itself is sound.
        let (_, shape, data) = damaged.entry(name.clone()).or_insert(tensors[name].clone());
        data.extend(vec![0; data.len() / shape[0]]);
        shape[0] += 1;
        attempt(&damaged, Some(&[name, "has shape", "expected"]));
    }
}

#[test]
fn incomplete_and_ill_shaped_models_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for name in ["dense", "dense-tied", "moe"] {
        let config = Qwen3_5Config::from_checkpoint(&Checkpoint::open(&qwen(name)).expect("opens")).expect("config");
        every_tensor_counts(dir.path(), &qwen(name), &|name| config.ignores(name));
    }
    for name in ["dense", "e2b", "moe", "unified", "text_only"] {
        let config = Gemma4Config::from_checkpoint(&Checkpoint::open(&gemma(name)).expect("opens")).expect("config");
        every_tensor_counts(dir.path(), &gemma(name), &|name| config.ignores(name));
    }
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let path = dir.path().join("tiny.gguf");
        std::fs::write(&path, tiny(architecture).bytes()).expect("write");
        let from = dir.path().join(architecture);
        convert_to(&path, &from, &Options::default());
        every_tensor_counts(dir.path(), &from, &|_| false);
    }
}

/// A tensor of the family that this configuration does not have, as a bias where it says none.
#[test]
fn a_tensor_too_many_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut llama = Llama::new("F32");
    llama.set("model.layers.1.self_attn.q_proj.bias", vec![64], vec![0; 64 * 4]);
    llama.write(&dir.path().join("hf"));
    let words = ["model.layers.1.self_attn.q_proj.bias", "is not one that a model of type llama"];
    fails(&dir.path().join("hf"), &dir.path().join("out"), &Options::default(), &words);
    llama.config["attention_bias"] = json!(true);
    for (layer, module) in [(0, "q"), (0, "k"), (0, "v"), (0, "o"), (1, "k"), (1, "v"), (1, "o")] {
        llama.set(&format!("model.layers.{layer}.self_attn.{module}_proj.bias"), vec![64], vec![0; 64 * 4]);
    }
    llama.write(&dir.path().join("hf"));
    convert_to(&dir.path().join("hf"), &dir.path().join("out"), &Options::default());
}
