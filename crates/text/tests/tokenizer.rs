//! Encoding, special tokens, and files that are not as they should be.

mod support;

use std::fs;
use std::path::Path;

use mlxcel_text::{ChatTemplate, RenderRequest, TextError, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn try_load(files: &[(&str, &[u8])]) -> Result<Tokenizer, TextError> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    Tokenizer::load(dir.path())
}

#[test]
fn the_demo_checkpoint() {
    let t = Tokenizer::load(&support::demo_dir()).unwrap();
    assert_eq!(t.vocab_size(), 16_384);
    assert_eq!(t.bos_id(), Some(2));
    assert!(t.adds_bos());
    assert_eq!(t.eos_ids(), [1]);
    assert_eq!(t.token_to_id("<|turn>"), Some(105));
    assert_eq!(t.id_to_token(106).as_deref(), Some("<turn|>"));
    assert_eq!(t.id_to_token(16_384), None);
    assert!(t.is_special(106) && !t.is_special(107));
    assert_eq!(t.token_bytes(t.token_to_id("<0xE2>").unwrap()), [0xE2]);
    assert_eq!(t.token_bytes(t.token_to_id("▁the").unwrap()), b" the");
    assert_eq!(t.token_bytes(u32::MAX), b"");
}

#[test]
fn exactly_one_bos_for_raw_prompts() {
    let t = Tokenizer::load(&support::demo_dir()).unwrap();
    let count = |ids: &[u32]| ids.iter().filter(|id| **id == 2).count();
    for text in ["", "hello", "<bos>hello", "<bos><bos>hello"] {
        let ids = t.encode_raw(text).unwrap();
        assert_eq!((ids[0], count(&ids)), (2, 1), "{text}");
    }
    assert_eq!(t.encode_raw("hello").unwrap(), t.encode_raw("<bos>hello").unwrap());
    // One in the middle is the writer's own.
    assert_eq!(count(&t.encode_raw("a<bos>b").unwrap()), 2);
    assert_eq!(count(&t.encode_plain("hello").unwrap()), 0);
    assert_eq!(t.encode_plain("").unwrap(), [0_u32; 0]);
    assert_eq!(t.encode_raw("<turn|>").unwrap(), [2, 106]);
}

#[test]
fn exactly_one_bos_for_rendered_prompts() {
    let dir = support::demo_dir();
    let t = Tokenizer::load(&dir).unwrap();
    let prompt = ChatTemplate::load(&dir)
        .unwrap()
        .unwrap()
        .render(&RenderRequest {
            messages: &[json!({"role": "user", "content": "Hi"})],
            add_generation_prompt: true,
            ..RenderRequest::default()
        })
        .unwrap();
    let ids = t.encode_templated(&prompt).unwrap();
    assert_eq!(ids[..2], [2, 105]);
    assert_eq!(ids.iter().filter(|id| **id == 2).count(), 1);
    assert_eq!(t.encode_templated(&format!("<bos>{prompt}")).unwrap(), ids);
    assert_eq!(t.encode_templated("Hi").unwrap(), t.encode_plain("Hi").unwrap());
    assert_eq!(t.decode(&ids, false), prompt);
}

#[test]
fn who_decides_about_the_bos() {
    let file = support::sentencepiece();
    let first = |config: Value| {
        let t = support::load(&file, &config);
        (t.adds_bos(), t.encode_raw("a").unwrap()[0] == 0, t.bos_id())
    };
    // The post-processor adds it, and the config says nothing or agrees.
    assert_eq!(first(json!({})), (true, true, Some(0)));
    assert_eq!(first(json!({"bos_token": "<s>"})), (true, true, Some(0)));
    assert_eq!(first(json!({"bos_token": {"content": "<s>"}, "add_bos_token": true})), (true, true, Some(0)));
    // The config is the later word.
    assert_eq!(first(json!({"bos_token": "<s>", "add_bos_token": false})), (false, false, Some(0)));
    assert_eq!(first(json!({"bos_token": null})), (false, false, None));

    let t = support::load(&support::byte_level(), &json!({"bos_token": null, "eos_token": "<|end|>"}));
    assert_eq!((t.adds_bos(), t.bos_id(), t.eos_ids().len()), (false, None, 1));
    assert_eq!(t.encode_raw("").unwrap(), [0_u32; 0]);
}

#[test]
fn a_file_cannot_cut_or_pad_prompts() {
    let mut file = support::sentencepiece();
    file["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    file["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 1,
                             "pad_type_id": 0, "pad_token": "</s>"});
    let plain = support::load(&support::sentencepiece(), &json!({}));
    let odd = support::load(&file, &json!({}));
    let text = "hello hello hello";
    assert_eq!(odd.encode_raw(text).unwrap(), plain.encode_raw(text).unwrap());
}

#[test]
fn faults_name_the_file_and_what_to_do() {
    let file = support::sentencepiece().to_string();
    let good = file.as_bytes();
    let cut = &good[..good.len() / 2];
    let mut wordpiece = support::sentencepiece();
    wordpiece["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let wordpiece = wordpiece.to_string();
    let config = "tokenizer_config.json";
    for (files, words) in [
        (vec![], ["tokenizer.json", "Copy it"]),
        (vec![("tokenizer.json", &b""[..])], ["tokenizer.json", "Copy the file again"]),
        (vec![("tokenizer.json", cut)], ["tokenizer.json", "Copy the file again"]),
        (vec![("tokenizer.json", &b"{}"[..])], ["tokenizer.json", "found"]),
        (vec![("tokenizer.json", &[0xFF, 0xFE][..])], ["tokenizer.json", "found"]),
        (vec![("tokenizer.json", wordpiece.as_bytes())], ["`decoder`", "WordPiece"]),
        (vec![("tokenizer.json", good), (config, b"{")], [config, "JSON object"]),
        (vec![("tokenizer.json", good), (config, br#"{"eos_token": "<gone>"}"#)], ["`eos_token`", "<gone>"]),
        (vec![("tokenizer.json", good), (config, br#"{"add_bos_token": 1}"#)], ["`add_bos_token`", "a number"]),
        (
            vec![("tokenizer.json", good), (config, br#"{"add_bos_token": true, "bos_token": null}"#)],
            ["`bos_token`", "none"],
        ),
    ] {
        let error = try_load(&files).unwrap_err().to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    }
    // The checks above can fail: the file they spoil is a good one.
    assert!(try_load(&[("tokenizer.json", good)]).is_ok());

    let error = Tokenizer::load(Path::new("/nowhere/at/all")).unwrap_err();
    assert!(matches!(error, TextError::MissingFile { .. }) && error.to_string().contains("/nowhere/at/all"));
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tokenizer.json")).unwrap();
    assert!(matches!(Tokenizer::load(dir.path()), Err(TextError::Read { .. })));
}

/// Uses a tokenizer in every way; the results do not matter.
fn exercise(t: &Tokenizer) {
    for text in ["", "a <s>é😀", " hello\n"] {
        for ids in [t.encode_raw(text), t.encode_templated(text), t.encode_plain(text)].into_iter().flatten() {
            t.decode(&ids, true);
        }
    }
    let ids: Vec<u32> = (0..400).collect();
    t.decode(&ids, false);
    ids.iter().for_each(|id| drop(t.token_bytes(*id)));
}

/// Replaces the n-th node of a tree, counted depth first.
fn replace_node(tree: &mut Value, n: &mut usize, with: &Value) -> bool {
    if *n == 0 {
        *tree = with.clone();
        return true;
    }
    *n -= 1;
    match tree {
        Value::Array(items) => items.iter_mut().any(|v| replace_node(v, n, with)),
        Value::Object(map) => map.values_mut().any(|v| replace_node(v, n, with)),
        _ => false,
    }
}

fn files() -> [Value; 3] {
    let mut all = [support::sentencepiece(), support::metaspace(), support::byte_level()];
    // Fewer pieces, so that a random place is more often an interesting one.
    for file in &mut all {
        let vocab = file["model"]["vocab"].as_object_mut().unwrap();
        let keep: Vec<_> = vocab.iter().skip(240).map(|(k, v)| (k.clone(), v.clone())).collect();
        *vocab = keep.into_iter().collect();
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn spoiled_bytes_never_panic(which in 0..3_usize, edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = files()[which].to_string().into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(t) = try_load(&[("tokenizer.json", &bytes)]) {
            exercise(&t);
        }
    }

    #[test]
    fn spoiled_trees_never_panic(
        which in 0..3_usize,
        node in 0..140_usize,
        with in prop_oneof![
            Just(json!(null)), Just(json!(-1)), Just(json!(4_294_967_295_u64)), Just(json!("")), Just(json!("▁")), Just(json!([])),
            Just(json!({})), Just(json!(true)), Just(json!({"String": ""})), Just(json!({"Regex": "(a*)*$"})),
            Just(json!({"type": "Strip", "content": " ", "start": 3, "stop": 9})), Just(json!({"type": "BPEDecoder", "suffix": ""})),
            Just(json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]})),
            Just(json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true})),
        ],
    ) {
        let mut file = files()[which].clone();
        let mut n = node;
        replace_node(&mut file, &mut n, &with);
        if let Ok(t) = try_load(&[("tokenizer.json", file.to_string().as_bytes())]) {
            exercise(&t);
        }
    }

    #[test]
    fn any_config_never_panics(config in r#"\{"(bos_token|eos_token|add_bos_token|chat_template)": ?("<s>"|"a"|null|true|5|\[\]|\["</s>"\]|\{"content": ("<s>"|1)\}|"\{\{ x")(, "eos_token": "</s>")?\}?"#) {
        let file = support::sentencepiece().to_string();
        if let Ok(t) = try_load(&[("tokenizer.json", file.as_bytes()), ("tokenizer_config.json", config.as_bytes())]) {
            exercise(&t);
        }
    }
}
