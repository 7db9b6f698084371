//! Tokenizers rebuilt from GGUF metadata, against ids of independent implementations (tests/golden/gguf): plain splits
//! and merges for byte-level vocabularies, the sentencepiece library for the others.

use std::path::Path;

use mlxcel_checkpoint::Gguf;
use mlxcel_checkpoint::gguf::testing::{GgufBuilder, Item, tiny};
use mlxcel_text::{ChatTemplate, RenderRequest, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The tokenizer's files in a directory of their own.
fn written(file: &GgufBuilder) -> Result<TempDir, String> {
    let file = Gguf::from_bytes(Path::new("model.gguf"), file.bytes()).map_err(|error| error.to_string())?;
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in file.text_files().map_err(|error| error.to_string())? {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    Ok(dir)
}

fn json_file(dir: &TempDir, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(dir.path().join(name)).unwrap()).unwrap()
}

fn refused(file: &GgufBuilder, parts: &[&str]) {
    let error = written(file).expect_err(&format!("expected {parts:?}"));
    for part in parts.iter().chain(&["model.gguf"]) {
        assert!(error.contains(part), "expected {part:?} in: {error}");
    }
}

fn byte_level(vectors: &Value, pre: &str) -> GgufBuilder {
    let mut file = tiny("llama");
    let types = serde_json::from_value(vectors["types"].clone()).unwrap();
    file.set("tokenizer.ggml.pre", pre);
    file.set("tokenizer.ggml.tokens", texts(&vectors["tokens"]));
    file.set("tokenizer.ggml.token_type", Item::I32s(types));
    file.set("tokenizer.ggml.merges", texts(&vectors["merges"]));
    file.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 0u32);
    file
}

/// Texts whose ids are not those of the vectors; each must decode to itself as far as normalisation leaves it alone.
fn wrong(tokenizer: &Tokenizer, cases: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        let text = case[0].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case[1].clone()).unwrap();
        let ids = tokenizer.encode_plain(text).unwrap();
        if ids != expected {
            wrong.push(format!("{text:?}: {ids:?}, expected {expected:?}"));
        }
        if let Some(decoded) = case[2].as_str() {
            assert_eq!(tokenizer.decode(&ids, false), decoded, "{text:?}");
        }
    }
    wrong
}

#[test]
fn byte_level_ids_are_those_of_the_vectors() {
    let vectors = golden("byte_level.json");
    let pres = vectors["texts"].as_object().unwrap();
    assert_eq!(pres.len(), 6);
    for (pre, cases) in pres {
        let dir = written(&byte_level(&vectors, pre)).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        assert!(cases.as_array().unwrap().len() >= 30);
        assert_eq!(wrong(&tokenizer, cases), [""; 0], "{pre}");
        // The planted fault: another family's split gives other ids.
        for (other, cases) in pres.iter().filter(|(other, _)| *other != pre) {
            assert!(!wrong(&tokenizer, cases).is_empty(), "{pre} passes for {other}");
        }
        let bos = matches!(pre.as_str(), "llama-bpe" | "tekken");
        assert_eq!(tokenizer.adds_bos(), bos, "{pre}");
        assert_eq!(tokenizer.encode_raw("text").unwrap().first() == Some(&1), bos, "{pre}");
        assert!(tokenizer.is_special(0) && tokenizer.is_special(1) && !tokenizer.is_special(2));
    }
    // And so does a vocabulary that lacks its first merge.
    let mut file = byte_level(&vectors, "smollm");
    let mut merges = texts(&vectors["merges"]);
    merges.remove(0);
    file.set("tokenizer.ggml.merges", merges);
    let dir = written(&file).unwrap();
    assert!(!wrong(&Tokenizer::load(dir.path()).unwrap(), &pres["smollm"]).is_empty());
}

fn sentencepiece(vectors: &Value, architecture: &str) -> GgufBuilder {
    let mut file = tiny(architecture);
    let types = serde_json::from_value(vectors["types"].clone()).unwrap();
    let scores: Vec<f32> = serde_json::from_value(vectors["scores"].clone()).unwrap();
    file.unset("tokenizer.ggml.merges").unset("tokenizer.ggml.padding_token_id");
    file.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.pre", "default");
    file.set("tokenizer.ggml.tokens", texts(&vectors["tokens"]));
    file.set("tokenizer.ggml.token_type", Item::I32s(types)).set("tokenizer.ggml.scores", Item::F32s(scores));
    file.set("tokenizer.ggml.add_space_prefix", vectors["add_space_prefix"].as_bool().unwrap());
    for (key, id) in [("bos", 1u32), ("eos", 2), ("unknown", 0)] {
        file.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let tokens = vectors["tokens"].as_array().unwrap().len() as u64;
    file.tensors[0].shape[0] = tokens;
    file.tensors[0].data = vec![0; tokens as usize * 32 * 4];
    file
}

#[test]
fn sentencepiece_ids_are_those_of_the_library() {
    let both = golden("sentencepiece.json");
    for name in ["prefix", "no_prefix"] {
        let vectors = &both[name];
        assert!(vectors["texts"].as_array().unwrap().len() >= 25);
        // Gemma's order is that of the ids, which is that of the scores here.
        for architecture in ["llama", "gemma3"] {
            let file = sentencepiece(vectors, architecture);
            let dir = written(&file).unwrap();
            let tokenizer = Tokenizer::load(dir.path()).unwrap();
            assert_eq!(wrong(&tokenizer, &vectors["texts"]), [""; 0], "{name} {architecture}");
            assert!(tokenizer.adds_bos());
            assert_eq!(tokenizer.encode_raw("the text").unwrap()[0], 1);
            assert_eq!(tokenizer.eos_ids(), [2]);
            let other = if name == "prefix" { "no_prefix" } else { "prefix" };
            assert!(!wrong(&tokenizer, &both[other]["texts"]).is_empty());
        }
        // The planted fault: the scores of the pieces in reverse.
        let mut file = sentencepiece(vectors, "llama");
        let mut scores: Vec<f32> = serde_json::from_value(vectors["scores"].clone()).unwrap();
        scores[260..430].reverse();
        file.set("tokenizer.ggml.scores", Item::F32s(scores));
        let dir = written(&file).unwrap();
        assert!(!wrong(&Tokenizer::load(dir.path()).unwrap(), &vectors["texts"]).is_empty());
    }
}

#[test]
fn settings_reach_the_files() {
    let mut file = tiny("llama");
    let dir = written(&file).unwrap();
    let config = json_file(&dir, "tokenizer_config.json");
    assert_eq!(config["bos_token"], "<|im_start|>");
    assert_eq!(config["eos_token"], "<|im_end|>");
    assert_eq!(config["add_bos_token"], false);
    assert_eq!(config["model_max_length"], 512);
    assert_eq!(config["added_tokens_decoder"]["2"]["content"], "<|im_end|>");
    assert_eq!(config["added_tokens_decoder"]["2"]["special"], true);
    // The token that ends a text also ends an answer.
    assert_eq!(json_file(&dir, "generation_config.json")["eos_token_id"], json!([2, 0]));
    let template = ChatTemplate::load(dir.path()).unwrap().unwrap();
    let messages = [json!({"role": "user", "content": "hello"})];
    let rendered = template.render(&RenderRequest { messages: &messages, ..RenderRequest::default() }).unwrap();
    assert_eq!(rendered, "hello");
    assert!(dir.path().join("chat_template.jinja").exists());

    file.unset("tokenizer.chat_template");
    file.set("tokenizer.ggml.add_bos_token", true).set("tokenizer.ggml.add_eos_token", true);
    file.set("tokenizer.ggml.eot_token_id", 1u32).set("tokenizer.ggml.padding_token_id", Item::I32(-1));
    file.set("general.sampling.temp", 0.6f32).set("general.sampling.top_k", Item::I32(20));
    let dir = written(&file).unwrap();
    assert!(!dir.path().join("chat_template.jinja").exists());
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(tokenizer.encode_raw("hello").unwrap(), [1, tokenizer.token_to_id("hello").unwrap()]);
    let post = &json_file(&dir, "tokenizer.json")["post_processor"];
    assert_eq!(
        post["single"],
        json!([
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ])
    );
    let generation = json_file(&dir, "generation_config.json");
    assert_eq!(generation["eos_token_id"], json!([2, 1, 0]));
    assert_eq!(generation["temperature"], json!(0.6));
    assert_eq!((&generation["top_k"], &generation["do_sample"]), (&json!(20), &json!(true)));
    assert_eq!(generation.get("pad_token_id"), None);

    let dir = written(&tiny("gemma3")).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    // A user-defined run of spaces is spelled as SentencePiece spells it, and text finds it.
    assert_eq!(tokenizer.id_to_token(260).as_deref(), Some("\u{2581}\u{2581}"));
    assert!(!tokenizer.is_special(260));
    assert_eq!(tokenizer.encode_plain("  hel ").unwrap().first(), Some(&260));
    assert_eq!(tokenizer.decode(&tokenizer.encode_plain("  hel \n").unwrap(), false), "  hel \n");
}

#[test]
fn damaged_vocabularies_are_refused() {
    type Damage = (&'static str, fn(&mut GgufBuilder), &'static [&'static str]);
    let long = "x".repeat(5000);
    let mut file = tiny("llama");
    let mut tokens: Vec<String> = (0..263).map(|id| format!("t{id}")).collect();
    tokens[7] = long;
    file.set("tokenizer.ggml.tokens", tokens);
    refused(&file, &["tokenizer.ggml.tokens", "token 7 of 5000 bytes"]);
    let mut file = tiny("llama");
    file.unset("tokenizer.ggml.token_type");
    refused(&file, &["tokenizer.ggml.token_type is absent", "263 integers from 1 to 6"]);

    let cases: &[Damage] = &[
        ("llama", |f| _ = f.unset("tokenizer.ggml.model"), &["tokenizer.ggml.model is absent", "gpt2"]),
        ("llama", |f| _ = f.set("tokenizer.ggml.model", "bert"), &["tokenizer.ggml.model is \"bert\""]),
        (
            "llama",
            |f| _ = f.set("tokenizer.ggml.pre", "viking"),
            &["tokenizer.ggml.pre is \"viking\"", "smollm, llama-bpe"],
        ),
        ("llama", |f| _ = f.unset("tokenizer.ggml.pre"), &["tokenizer.ggml.pre is absent", "convert the model again"]),
        ("llama", |f| _ = f.unset("tokenizer.ggml.tokens"), &["tokenizer.ggml.tokens is absent"]),
        (
            "llama",
            |f| _ = f.set("tokenizer.ggml.tokens", Item::I32s(vec![1])),
            &["tokenizer.ggml.tokens", "list of strings"],
        ),
        ("llama", |f| _ = f.set("tokenizer.ggml.tokens", vec!["a".to_owned(); 2]), &["token \"a\" at 0 and at 1"]),
        ("llama", |f| _ = f.unset("tokenizer.ggml.merges"), &["tokenizer.ggml.merges is absent"]),
        ("llama", |f| _ = f.set("tokenizer.ggml.merges", vec!["he".to_owned()]), &["merge 0 \"he\"", "no space"]),
        (
            "llama",
            |f| _ = f.set("tokenizer.ggml.merges", vec!["h e".into(), "h qq".to_owned()]),
            &["merge 1", "\"qq\" is no token"],
        ),
        ("llama", |f| _ = f.set("tokenizer.ggml.merges", vec!["h x".to_owned()]), &["merge 0", "\"hx\" is no token"]),
        ("llama", |f| _ = f.set("tokenizer.ggml.merges", vec![String::new()]), &["merge 0 \"\""]),
        (
            "llama",
            |f| _ = f.set("tokenizer.ggml.token_type", Item::I32s(vec![1])),
            &["token_type", "263 integers from 1 to 6"],
        ),
        ("llama", |f| _ = f.set("tokenizer.ggml.token_type", Item::I32s(vec![7; 263])), &["token_type"]),
        ("llama", |f| _ = f.set("tokenizer.ggml.eos_token_id", 263u32), &["eos_token_id is 263", "0 to 262"]),
        ("llama", |f| _ = f.set("tokenizer.ggml.bos_token_id", "x"), &["bos_token_id is \"x\""]),
        (
            "llama",
            |f| _ = f.unset("tokenizer.ggml.bos_token_id").set("tokenizer.ggml.add_bos_token", true),
            &["bos_token_id is absent", "add_bos_token"],
        ),
        ("llama", |f| _ = f.set("tokenizer.ggml.add_bos_token", 1u32), &["add_bos_token is 1", "a boolean"]),
        ("llama", |f| _ = f.set("tokenizer.chat_template", 1u32), &["chat_template is 1", "a string"]),
        ("llama", |f| _ = f.set("general.sampling.top_p", 2.0f32), &["general.sampling.top_p is 2", "from 0 to 1"]),
        (
            "gemma3",
            |f| _ = f.unset("tokenizer.ggml.scores"),
            &["tokenizer.ggml.scores is absent", "269 finite numbers"],
        ),
        ("gemma3", |f| _ = f.set("tokenizer.ggml.scores", Item::F32s(vec![0.0; 3])), &["tokenizer.ggml.scores", "269"]),
        ("gemma3", |f| _ = f.set("tokenizer.ggml.scores", Item::F32s(vec![f32::NAN; 269])), &["tokenizer.ggml.scores"]),
        ("gemma3", |f| _ = f.set("tokenizer.ggml.remove_extra_whitespaces", true), &["remove_extra_whitespaces"]),
    ];
    for (architecture, damage, parts) in cases {
        let mut file = tiny(architecture);
        damage(&mut file);
        refused(&file, parts);
    }
    for (token, part) in [("<0xfe>", "of type 6"), ("<0x1>", "of type 6"), ("\u{2581}\u{2581}", "run of spaces")] {
        let mut file = tiny("gemma3");
        for (key, item) in &mut file.metadata {
            if let (true, Item::Texts(tokens)) = (key.ends_with("ggml.tokens"), item) {
                let place = if part == "of type 6" { 258 } else { 265 };
                tokens[place] = token.into();
            }
        }
        refused(&file, &["tokenizer.ggml.tokens", part]);
    }
}
