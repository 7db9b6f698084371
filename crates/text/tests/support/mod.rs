//! Small tokenizers of each kind that streaming must handle, written out as a checkpoint directory would hold them.

#![allow(dead_code)] // each suite uses a part

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_text::Tokenizer;
use serde_json::{Map, Value, json};

/// The demo checkpoint: byte fallback, no leading strip.
pub fn demo_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-4bit")
}

/// Writes the two files and loads them.
pub fn load(tokenizer: &Value, config: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::load(dir.path()).unwrap()
}

fn special(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": special})
}

fn bpe(vocab: &[String], merges: &[[&str; 2]], byte_fallback: bool) -> Value {
    let vocab: Map<String, Value> = vocab.iter().enumerate().map(|(i, t)| (t.clone(), json!(i))).collect();
    json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
           "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": byte_fallback, "ignore_merges": false,
           "vocab": vocab, "merges": merges})
}

fn file(model: &Value, added: &[Value]) -> Value {
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
           "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model})
}

/// A vocabulary of `<s>`, `</s>`, the 256 byte tokens and a few pieces with `▁`.
fn pieces() -> Vec<String> {
    let mut vocab = vec!["<s>".to_owned(), "</s>".to_owned()];
    vocab.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let words = "▁ a b c l o h e d y ▁a ▁b ▁hello he ll hell hello ▁▁ ▁▁▁▁ é 你 好 你好 😀 . ▁. \u{200d} \n";
    vocab.extend(words.split(' ').map(str::to_owned));
    vocab
}

/// SentencePiece in the style of Llama 2: byte fallback, and the first space of a text is cut.
pub fn sentencepiece() -> Value {
    let mut file = file(
        &bpe(&pieces(), &[["▁", "a"], ["h", "e"], ["l", "l"], ["he", "ll"], ["▁", "▁"]], true),
        &[special(0, "<s>", true), special(1, "</s>", true)],
    );
    file["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    file["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}});
    file["decoder"] = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    file
}

/// The same pieces with a decoder that drops every `▁` of the first token.
pub fn metaspace() -> Value {
    let mut file = sentencepiece();
    file["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}]});
    file
}

/// Byte-level BPE in the style of GPT-2: no BOS, one special and one plain added token.
pub fn byte_level() -> Value {
    let mut alphabet: Vec<char> = tokenizers::decoders::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut vocab: Vec<String> = alphabet.iter().map(char::to_string).collect();
    vocab.extend(["Ġa", "he", "ll", "ðŁ", "ðŁĺ", "ðŁĺĢ", "ä½"].map(str::to_owned));
    let n = vocab.len();
    let mut file = file(
        &bpe(&vocab, &[["Ġ", "a"], ["h", "e"], ["l", "l"], ["ð", "Ł"], ["ðŁ", "ĺ"], ["ðŁĺ", "Ģ"], ["ä", "½"]], false),
        &[special(n, "<|end|>", true), special(n + 1, "<think> é", false)],
    );
    file["pre_tokenizer"] =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    file["post_processor"] =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    file["decoder"] = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    file
}

/// No decoder at all: tokens joined by spaces.
pub fn bare() -> Value {
    file(&bpe(&pieces(), &[], true), &[special(0, "<s>", true)])
}

/// Each kind with the library's own tokenizer beside it.
pub fn kinds() -> Vec<(&'static str, Arc<Tokenizer>, tokenizers::Tokenizer)> {
    let mut all: Vec<_> = [
        ("sentencepiece", sentencepiece()),
        ("metaspace", metaspace()),
        ("byte_level", byte_level()),
        ("bare", bare()),
    ]
    .into_iter()
    .map(|(name, file)| {
        let theirs = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
        (name, Arc::new(load(&file, &json!({}))), theirs)
    })
    .collect();
    let dir = demo_dir();
    let theirs = tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap();
    all.push(("demo", Arc::new(Tokenizer::load(&dir).unwrap()), theirs));
    all
}
