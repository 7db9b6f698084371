//! `mlxcel convert` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mlxcel_checkpoint::testing::{RawTensor, write_checkpoint};
use mlxcel_checkpoint::{Checkpoint, Weights};
use mlxcel_compute::format::{DType, QuantFormat, WeightFormat};
use serde_json::{Value, json};

fn run(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mlxcel"))
        .args(args)
        .env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

fn ok(directory: &Path, args: &[&str]) -> (String, String) {
    let out = run(directory, args);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let (stdout, stderr) = (text(out.stdout), text(out.stderr));
    assert!(out.status.success(), "{args:?}: {stderr}");
    (stdout, stderr)
}

fn fails(directory: &Path, args: &[&str], words: &[&str]) {
    let out = run(directory, args);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} succeeded");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: {word:?} is not in {message:?}");
    }
    assert!(out.stdout.is_empty(), "{args:?} wrote {:?}", String::from_utf8_lossy(&out.stdout));
}

/// A Llama of `layers` layers and `vocabulary` tokens, width 64, in bf16, with an output matrix of its own.
fn llama(dir: &Path, layers: usize, vocabulary: usize) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    });
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("lm_head.weight".into(), vec![vocabulary, 64]),
        ("model.embed_tokens.weight".into(), vec![vocabulary, 64]),
        ("model.norm.weight".into(), vec![64]),
    ];
    for layer in 0..layers {
        let mut add =
            |name: &str, shape: Vec<usize>| tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        add("input_layernorm", vec![64]);
        add("post_attention_layernorm", vec![64]);
        add("self_attn.q_proj", vec![64, 64]);
        add("self_attn.k_proj", vec![32, 64]);
        add("self_attn.v_proj", vec![32, 64]);
        add("self_attn.o_proj", vec![64, 64]);
        add("mlp.gate_proj", vec![96, 64]);
        add("mlp.up_proj", vec![96, 64]);
        add("mlp.down_proj", vec![64, 96]);
    }
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .enumerate()
        .map(|(number, (_, shape))| {
            let values = 0..shape.iter().product::<usize>();
            // The upper half of a single is a bf16.
            let value = |i: usize| ((i * 37 + number * 11) % 127) as f32 / 127.0 - 0.5;
            values.flat_map(|i| [value(i).to_le_bytes()[2], value(i).to_le_bytes()[3]]).collect()
        })
        .collect();
    let raw: Vec<RawTensor<'_>> =
        tensors.iter().zip(&data).map(|((name, shape), data)| (name.as_str(), "BF16", &shape[..], &data[..])).collect();
    write_checkpoint(dir, &config, &raw);
    std::fs::write(dir.join("tokenizer_config.json"), "{\"model_max_length\": 128}").expect("file");
}

fn names(dir: &Path) -> Vec<String> {
    let items = std::fs::read_dir(dir).expect("directory");
    let mut names: Vec<String> =
        items.map(|item| item.expect("item").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn a_llama_becomes_a_checkpoint_that_opens() {
    let dir = tempfile::tempdir().expect("temporary directory");
    llama(&dir.path().join("tiny"), 2, 256);
    let (stdout, stderr) =
        ok(dir.path(), &["convert", "tiny", "--bits", "4", "--group-size", "32", "--mixed", "lm_head=8"]);
    assert!(stdout.contains("bits per weight"), "{stdout}");
    assert!(stdout.contains("mlxcel generate -m ./tiny-mlx-4bit -p"), "{stdout}");
    assert!(stderr.is_empty(), "no bar where nobody looks: {stderr}");
    let target = dir.path().join("tiny-mlx-4bit");
    assert_eq!(
        names(&target),
        ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer_config.json"]
    );
    let checkpoint = Checkpoint::open(&target).expect("opens");
    let weights = Weights::detect(&checkpoint).expect("prefix");
    let format = |bits| WeightFormat::Quant(QuantFormat::Affine { bits, group: 32 }, DType::Bf16);
    assert_eq!(weights.lm_head(256, 64).expect("head").format, format(8));
    assert_eq!(weights.linear("layers.1.mlp.down_proj", 64, 96).expect("matrix").format, format(4));
    assert_eq!(weights.vector("norm.weight", 64).expect("norm").len(), 64);

    let (stdout, stderr) = ok(dir.path(), &["convert", "tiny", "-o", "plain", "--dtype", "f32", "--json", "--quiet"]);
    let value: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(value["bits_per_weight"], 32.0);
    assert_eq!(value["bytes"], value["source_bytes"].as_u64().expect("bytes") * 2);
    assert!(stderr.is_empty(), "{stderr}");
    assert_eq!(ok(dir.path(), &["convert", "tiny", "-o", "quiet", "-q"]), (String::new(), String::new()));
}

#[test]
fn widths_that_do_not_divide_are_noted() {
    let dir = tempfile::tempdir().expect("temporary directory");
    llama(&dir.path().join("tiny"), 1, 128);
    let (_, stderr) = ok(dir.path(), &["convert", "tiny", "-o", "out", "--bits", "8"]);
    assert_eq!(
        stderr,
        "note: model.layers.*.mlp.down_proj (1 of width 96) not quantised: not divisible by the group size 64\n"
    );
}

#[test]
fn bad_commands_say_what_to_do() {
    let dir = tempfile::tempdir().expect("temporary directory");
    llama(&dir.path().join("tiny"), 1, 128);
    let convert = |args: &[&str], words: &[&str]| fails(dir.path(), &[&["convert"], args].concat(), words);
    convert(&[], &["<SRC>"]);
    convert(&["nowhere"], &["nowhere", "no such file or directory"]);
    convert(&["tiny", "--bits", "7"], &["--bits", "2, 3, 4, 5, 6 or 8"]);
    convert(&["tiny", "--bits", "4", "--group-size", "48"], &["--group-size", "32, 64 or 128"]);
    convert(&["tiny", "--mixed", "*=4"], &["--bits"]);
    convert(&["tiny", "--bits", "4", "--mixed", "v_proj"], &["--mixed", "PATTERN=BITS"]);
    convert(&["tiny", "--bits", "4", "--mixed", "*v_prj=6"], &["*v_prj", "no module matches", "v_proj"]);
    convert(&["tiny", "--dtype", "f8"], &["--dtype", "bf16"]);
    convert(&["tiny", "-o", "tiny", "--force"], &["is the source itself"]);
    ok(dir.path(), &["convert", "tiny", "-o", "out"]);
    convert(&["tiny", "-o", "out"], &["out", "exists already", "--force"]);
    ok(dir.path(), &["convert", "tiny", "-o", "out", "--force", "--bits", "8"]);
    assert_eq!(names(dir.path()), ["out", "tiny"]);
}

#[test]
fn the_help_has_examples() {
    let (stdout, _) = ok(Path::new("."), &["convert", "--help"]);
    for word in ["Examples:", "--bits 4", "--mixed sensitive", ".gguf", "--group-size"] {
        assert!(stdout.contains(word), "{word:?} is not in {stdout}");
    }
}

/// Ctrl-C in the middle: nothing is left and the status says so. Killed outright: the next conversion clears up.
#[cfg(unix)]
#[test]
fn an_interrupted_conversion_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().expect("temporary directory");
    let partial = || names(dir.path()).into_iter().find(|name| name.starts_with(".out.partial-"));
    // A conversion that gets the signals while at work; with larger and larger sources, should it have finished before.
    let caught = |signals: &[&str], ended: fn(&Output) -> bool| {
        for vocabulary in [300_000, 1_200_000, 4_800_000] {
            llama(&dir.path().join("tiny"), 1, vocabulary);
            let child = Command::new(env!("CARGO_BIN_EXE_mlxcel"))
                .args(["convert", "tiny", "-o", "out", "--bits", "3"])
                .current_dir(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn();
            let mut child = child.expect("the binary runs");
            while partial().is_none() && child.try_wait().expect("status").is_none() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            for signal in signals {
                // A process that has ended is told by its status, not by what kill says.
                let _ = Command::new("kill").args([*signal, &child.id().to_string()]).output().expect("kill");
            }
            let out = child.wait_with_output().expect("status");
            if !out.status.success() {
                let message = String::from_utf8_lossy(&out.stderr);
                assert!(ended(&out), "{signals:?}: {:?} {message}", out.status);
                return out;
            }
            std::fs::remove_dir_all(dir.path().join("out")).expect("it had finished before");
        }
        panic!("{signals:?}: every conversion had finished before");
    };
    let out = caught(&["-INT"], |out| out.status.code() == Some(130));
    assert!(String::from_utf8_lossy(&out.stderr).contains("interrupted; nothing was kept"));
    assert_eq!(names(dir.path()), ["tiny"]);

    // A second one, whether the first was seen or not.
    caught(&["-INT", "-INT"], |out| out.status.code() == Some(130));
    assert_eq!(names(dir.path()), ["tiny"]);

    caught(&["-KILL"], |out| out.status.signal() == Some(9));
    let left: PathBuf = dir.path().join(partial().expect("a killed process cannot clear up"));
    assert!(!dir.path().join("out").exists());
    ok(dir.path(), &["convert", "tiny", "-o", "out", "--bits", "3"]);
    assert!(!left.exists(), "{}", left.display());
    assert_eq!(names(dir.path()), ["out", "tiny"]);
}
