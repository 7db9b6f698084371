//! The binary as a user meets it: it speaks, and bad input gets a message that says what to do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-4bit").canonicalize().expect("demo")
}

fn mlxcel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    command.args(args).env_remove("MLXCEL_MODEL").env_remove("MLXCEL_MODELS_DIR").stdin(Stdio::null());
    command.env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn run(args: &[&str]) -> Output {
    mlxcel(args).output().expect("the binary runs")
}

fn ok(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// Runs a command that must fail with a message holding all of `words`, and without a panic.
fn fails(args: &[&str], words: &[&str]) -> String {
    let out = run(args);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} succeeded");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: {word:?} is not in {message:?}");
    }
    assert!(out.stdout.is_empty(), "{args:?} wrote {:?}", String::from_utf8_lossy(&out.stdout));
    message
}

/// A copy of the demo checkpoint to damage.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    for entry in std::fs::read_dir(demo()).expect("demo") {
        let path = entry.expect("entry").path();
        if path.file_name().is_some_and(|n| n != "golden.safetensors") {
            std::fs::copy(&path, dir.path().join(path.file_name().expect("name"))).expect("copy");
        }
    }
    dir
}

fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
    change(&mut value);
    std::fs::write(&path, value.to_string()).expect("write");
}

/// `generate` on a damaged copy fails with a message holding the words.
fn refuses(dir: &tempfile::TempDir, words: &[&str]) {
    let path = dir.path().to_str().expect("UTF-8 path");
    fails(&["generate", "-m", path, "-p", "Hello"], words);
}

#[test]
fn generate_speaks_and_repeats_itself() {
    let model = demo();
    let model = model.to_str().expect("UTF-8 path");
    let greedy = ok(&["generate", "-m", model, "-p", "What is speculative decoding?", "--temp", "0"]);
    assert!(greedy.contains("draft model"), "{greedy}");
    let sampled = |threads: &str, seed: &str| {
        ok(&["generate", "-m", model, "-p", "Tell me a story.", "--seed", seed, "-t", threads, "-n", "40"])
    };
    assert_eq!(sampled("1", "5"), sampled("2", "5"), "threads");
    assert_ne!(sampled("1", "5"), sampled("1", "6"), "seeds");
}

#[test]
fn the_demo_is_found_from_inside_the_tree() {
    let out = mlxcel(&["generate", "-p", "Hello", "-n", "4", "--temp", "0"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .expect("the binary runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn json_is_one_object_that_adds_up() {
    let model = demo();
    let text = ok(&[
        "generate",
        "-m",
        model.to_str().expect("path"),
        "-p",
        "Count to ten.",
        "--json",
        "-n",
        "12",
        "--temp",
        "0",
        "--logprobs",
        "3",
    ]);
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let count = value["usage"]["completion_tokens"].as_u64().expect("count") as usize;
    assert_eq!(value["tokens"].as_array().expect("tokens").len(), count);
    let logprobs = value["logprobs"].as_array().expect("logprobs");
    assert_eq!(logprobs.len(), count);
    assert!(logprobs.iter().all(|l| l["top"].as_array().is_some_and(|t| t.len() == 3)));
    assert!(logprobs.iter().all(|l| l["token"] == l["top"][0][0]), "greedy takes the most likely");
    let raw = ok(&["generate", "-m", model.to_str().expect("path"), "--raw", "-p", "Once upon", "-n", "3", "--json"]);
    assert!(serde_json::from_str::<Value>(&raw).is_ok());
}

#[test]
fn inspect_describes_the_demo() {
    let model = demo();
    let value: Value =
        serde_json::from_str(&ok(&["inspect", "-m", model.to_str().expect("path"), "--json"])).expect("JSON");
    assert_eq!(value["parameters"], 21_054_346);
    assert_eq!(value["stop_ids"], serde_json::json!([1, 106]));
    // Two full layers with one K/V head of 128, K and V in bf16.
    assert_eq!(value["kv"]["bytes_per_token"], 2 * 128 * 2 * 2);
    assert_eq!(
        value["modules"].as_array().expect("modules").iter().map(|m| m["bytes"].as_u64().expect("bytes")).sum::<u64>(),
        value["weight_bytes"].as_u64().expect("bytes")
    );
    let text = ok(&["inspect", "-m", model.to_str().expect("path")]);
    assert!(text.contains("affine 4-bit group 64") && text.contains("21,054,346"), "{text}");
}

#[test]
fn int8_costs_less_than_half_a_percent_of_perplexity() {
    let model = demo();
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perplexity.txt");
    let out =
        ok(&["perplexity", text.to_str().expect("path"), "-m", model.to_str().expect("path"), "--compare", "--json"]);
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let ratio = value["int8_over_f32"].as_f64().expect("ratio");
    println!("int8 over f32: {ratio}");
    assert!((ratio - 1.0).abs() < 0.005, "int8 over f32: {ratio}");
    assert!(value["results"][0]["tokens"].as_u64().expect("tokens") > 500);
}

/// True on machines with a GPU and without.
#[test]
fn the_backend_is_said_or_missed_in_words() {
    let model = demo();
    let ask = ["generate", "-m", model.to_str().expect("path"), "-p", "Hi", "-n", "2", "--temp", "0", "-md", "none"];
    let said = |more: &[&str]| {
        let out = mlxcel(&[&ask[..], more].concat()).env_remove("MLXCEL_BACKEND").output().expect("the binary runs");
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (well, auto) = said(&[]);
    let line = auto.lines().next().unwrap_or_default();
    let reason = line.strip_prefix("backend: cpu (auto: ").and_then(|rest| rest.strip_suffix(')'));
    assert!(well && (reason.is_some() || line.starts_with("backend: cuda, device 0 (auto")), "{auto}");
    assert!(auto.matches("backend:").count() == 1 && said(&["--json"]).1.starts_with(line), "{auto}");
    assert_eq!(said(&["--quiet"]), (true, String::new()));
    let (well, cpu) = said(&["--backend", "cpu", "--device", "7"]);
    assert!(well && !cpu.contains("backend:"), "{cpu}");
    // The variable, and that one set to nothing is none.
    let with = |value| mlxcel(&ask).env("MLXCEL_BACKEND", value).output().expect("the binary runs");
    assert!(String::from_utf8_lossy(&with("").stderr).starts_with(line));
    assert!(!String::from_utf8_lossy(&with("cpu").stderr).contains("backend:"));
    let wrong = [&ask[..], &["--backend", "gpu"]].concat();
    fails(&wrong, &["invalid value 'gpu'", "auto, cpu, cuda"]);
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perplexity.txt");
    let compare = ["perplexity", text.to_str().expect("path"), "--compare", "--backend", "cuda"];
    fails(&compare, &["--compare", "--backend cpu expected, found --backend cuda"]);
    if let Some(reason) = reason {
        let message = fails(&[&ask[..], &["--backend", "cuda"]].concat(), &[]);
        assert_eq!(
            message.trim_end(),
            format!("error: --backend cuda: {reason}; --backend cpu computes on the processor")
        );
    } else {
        fails(&[&ask[..], &["--device", "99"]].concat(), &["CUDA device 99: 0 to ", "--backend cpu"]);
    }
}

#[test]
fn a_missing_model_says_where_it_looked() {
    fails(&["generate", "-m", "/nowhere/at/all", "-p", "x"], &["/nowhere/at/all", "no such directory"]);
    fails(&["generate", "-m", "no-such-model", "-p", "x"], &["no-such-model", "Looked for", "-m PATH"]);
    let empty = tempfile::tempdir().expect("temporary directory");
    fails(&["generate", "-m", empty.path().to_str().expect("path"), "-p", "x"], &["config.json"]);
    // The executable alone in an empty place: the demo is nowhere.
    let lonely = tempfile::tempdir().expect("temporary directory");
    let binary = lonely.path().join("mlxcel");
    std::fs::copy(env!("CARGO_BIN_EXE_mlxcel"), &binary).expect("copy");
    let out = Command::new(&binary)
        .args(["generate", "-p", "x"])
        .current_dir(lonely.path())
        .env_remove("MLXCEL_MODEL")
        .env("MLXCEL_MODELS_DIR", lonely.path().join("store"))
        .output()
        .expect("the binary runs");
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    for word in ["embedded demo", "Looked for", "store", "clone", "-m PATH"] {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
}

#[test]
fn bad_prompts_and_parameters_are_refused() {
    let model = demo();
    let model = model.to_str().expect("path");
    fails(&["generate", "-m", model, "-p", ""], &["--prompt", "empty"]);
    let long = "word ".repeat(3000);
    fails(&["generate", "-m", model, "-p", &long], &["tokens found", "2048"]);
    fails(&["generate", "-m", model, "-p", "Hello there", "-c", "4"], &["tokens found", "4", "--ctx-size"]);
    fails(&["generate", "-m", model, "-p", "x", "-c", "4000"], &["--ctx-size", "2048", "4000"]);
    fails(&["generate", "-m", model, "-p", "x", "--temp", "-1"], &["temperature", "-1"]);
    fails(&["generate", "-m", model, "-p", "x", "--top-p", "1.5"], &["top_p", "1.5"]);
    fails(&["generate", "-m", model, "-p", "x", "--stop", ""], &["stop"]);
    fails(&["generate", "-m", model, "-p", "x", "--logit-bias", "99999+1"], &["logit_bias", "99999"]);
    fails(&["generate", "-m", model, "-p", "x", "-t", "0"], &["--threads"]);
    fails(&["generate", "-m", model, "-p", "x", "-n", "0"], &["max_tokens", "0"]);
    fails(&["generate", "-m", model, "-p", "x", "--cpu-precision", "fp4"], &["fp4", "int8"]);
    fails(&["generate", "-m", model], &["--prompt"]);
}

#[test]
fn damaged_checkpoints_are_refused() {
    let dir = copy();
    let weights = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("read");
    std::fs::write(&weights, &bytes[..bytes.len() - 1000]).expect("write");
    refuses(&dir, &["model.safetensors", "expected", "found"]);

    let dir = copy();
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("remove");
    refuses(&dir, &["model.safetensors"]);

    let dir = copy();
    edit(dir.path(), "model.safetensors.index.json", |v| {
        v["weight_map"]["language_model.model.layers.99.ghost.weight"] = "model.safetensors".into();
    });
    refuses(&dir, &["layers.99.ghost.weight", "model.safetensors"]);

    let dir = copy();
    edit(dir.path(), "config.json", |v| v["text_config"]["intermediate_size"] = 904.into());
    refuses(&dir, &["mlp", "904", "896"]);

    let dir = copy();
    edit(dir.path(), "config.json", |v| v["model_type"] = "gemma9000".into());
    refuses(&dir, &["config.json", "gemma9000", "gemma4"]);

    let dir = copy();
    edit(dir.path(), "config.json", |v| v["quantization"]["bits"] = 8.into());
    refuses(&dir, &["8", "4", "weight"]);

    let dir = copy();
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("remove");
    refuses(&dir, &["tokenizer.json"]);

    let dir = copy();
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages[0].content | frobnicate }}").expect("write");
    refuses(&dir, &["frobnicate", "chat_template.jinja"]);

    let dir = copy();
    std::fs::remove_file(dir.path().join("chat_template.jinja")).expect("remove");
    refuses(&dir, &["chat template", "--raw"]);

    let dir = copy();
    std::fs::write(dir.path().join("config.json"), "{\"model_type\": ").expect("write");
    refuses(&dir, &["config.json"]);
}

#[test]
fn a_nan_in_the_weights_names_its_layer() {
    let dir = copy();
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let names: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("header");
    let at = names["language_model.model.layers.3.mlp.up_proj.scales"]["data_offsets"][0].as_u64().expect("offset");
    let at = 8 + header + at as usize;
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, bytes).expect("write");
    refuses(&dir, &["layer 3", "not finite"]);
}

#[test]
fn damage_in_an_early_chunk_is_found_there() {
    // The embedding row of BOS: only the first of the prompt's chunks has it.
    let dir = copy();
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let names: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("header");
    let at = names["language_model.model.embed_tokens.scales"]["data_offsets"][0].as_u64().expect("offset");
    let at = 8 + header + at as usize + 2 * (2 * 384 / 64);
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, bytes).expect("write");
    let long = "word ".repeat(900);
    let message = fails(
        &["generate", "-m", dir.path().to_str().expect("path"), "--raw", "-p", &long],
        &["not finite", "position 511", "come from embed"],
    );
    assert!(!message.contains("layer"), "{message}");
}

#[test]
fn an_untied_model_needs_its_head() {
    let dir = copy();
    edit(dir.path(), "config.json", |v| v["text_config"]["tie_word_embeddings"] = false.into());
    refuses(&dir, &["lm_head.weight", "tie_word_embeddings"]);
}

#[test]
fn generation_config_decides_between_sampling_and_greedy() {
    let seed = |change: fn(&mut Value)| {
        let dir = copy();
        edit(dir.path(), "generation_config.json", change);
        let out = ok(&["generate", "-m", dir.path().to_str().expect("path"), "-p", "Hello", "-n", "2", "--json"]);
        serde_json::from_str::<Value>(&out).expect("JSON")["seed"].clone()
    };
    assert!(
        seed(|v| drop(v.as_object_mut().expect("object").remove("temperature"))).is_u64(),
        "temperature 1 by default"
    );
    assert!(seed(|v| v["do_sample"] = false.into()).is_null(), "greedy");
    let dir = copy();
    edit(dir.path(), "generation_config.json", |v| v["top_p"] = 0.into());
    refuses(&dir, &["generation_config.json", "top_p"]);
    // Ids of a larger vocabulary cannot occur: suppressing them is no error.
    assert!(seed(|v| v["suppress_tokens"] = serde_json::json!([258_883])).is_u64());
}

#[test]
fn the_chat_keeps_going_after_errors_and_forgets_on_reset() {
    use std::io::Write;
    let model = demo();
    let mut child = mlxcel(&["run", "-m", model.to_str().expect("path"), "--temp", "0", "-n", "30"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("stdin");
    let first = "What is speculative decoding?";
    let long = "word ".repeat(3000);
    for line in [first, "/nonsense", &long, "/reset", first, "/exit"] {
        writeln!(stdin, "{line}").expect("write");
    }
    drop(stdin);
    let out = child.wait_with_output().expect("wait");
    assert!(out.status.success());
    let (said, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let answers: Vec<&str> = said.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(answers.len(), 2, "{said}");
    assert_eq!(answers[0], answers[1], "after /reset the same question has the same answer");
    assert!(
        log.contains("/nonsense: no such command")
            && log.contains("/reset starts a new conversation")
            && log.contains("tokens found"),
        "{log}"
    );
}

#[test]
fn the_chat_offers_a_reset_only_where_it_helps() {
    use std::io::Write;
    let model = demo();
    let mut child = mlxcel(&["run", "-m", model.to_str().expect("path"), "--stop", ""])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("stdin").write_all(b"Hello\n").expect("write");
    let log = String::from_utf8(child.wait_with_output().expect("wait").stderr).expect("UTF-8");
    assert!(log.contains("stop") && !log.contains("/reset"), "{log}");
}

#[test]
fn help_has_examples() {
    for verb in ["generate", "run", "inspect", "perplexity"] {
        let text = ok(&[verb, "--help"]);
        assert!(text.contains("Examples:") && text.contains(&format!("mlxcel {verb}")), "{text}");
    }
    assert!(ok(&["--version"]).starts_with("mlxcel "));
}
