//! Byte-level BPE: merges over bytes written as printable characters, after a split that the `pre` name stands for.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use super::super::error::GgufError;
use super::super::header::Metadata;
use super::super::value::shorten;
use super::limits::Allowance;
use super::{Parts, Vocabulary};

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

/// How text is split before merging.
enum Split {
    /// GPT-2's pattern, which is ByteLevel's own.
    Gpt2,
    /// Every digit by itself, then GPT-2's pattern.
    DigitsThenGpt2,
    /// Patterns one after another, each splitting what the one before left.
    Patterns(&'static [&'static str]),
}

/// What a `pre` name stands for.
struct PreTokenizer {
    names: &'static [&'static str],
    split: Split,
    /// A piece that is a token is taken whole, whatever the merges make of it.
    ignore_merges: bool,
    add_bos: bool,
    /// Text is brought into Unicode's composed form first.
    compose: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// Patterns are those of the families' own tokenizer.json files; which name stands for which is llama.cpp's choice
/// (`llama-vocab.cpp`). A name that is not here is refused: with another split the model reads other tokens.
const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["smollm"],
        split: Split::DigitsThenGpt2,
        ignore_merges: false,
        add_bos: false,
        compose: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        split: Split::Patterns(&[LLAMA3]),
        ignore_merges: true,
        add_bos: true,
        compose: false,
    },
    PreTokenizer {
        names: &["smaug-bpe"],
        split: Split::Patterns(&[LLAMA3]),
        ignore_merges: false,
        add_bos: false,
        compose: false,
    },
    PreTokenizer {
        names: &["qwen2"],
        split: Split::Patterns(&[QWEN2]),
        ignore_merges: false,
        add_bos: false,
        compose: true,
    },
    PreTokenizer {
        names: &["deepseek-r1-qwen"],
        split: Split::Patterns(&[QWEN2]),
        ignore_merges: false,
        add_bos: false,
        compose: false,
    },
    PreTokenizer {
        names: &["tekken"],
        split: Split::Patterns(&[TEKKEN]),
        ignore_merges: true,
        add_bos: true,
        compose: false,
    },
    PreTokenizer { names: &["gpt-2"], split: Split::Gpt2, ignore_merges: false, add_bos: false, compose: false },
    PreTokenizer {
        names: &["default"],
        split: Split::Patterns(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        ignore_merges: false,
        add_bos: false,
        compose: false,
    },
];

/// The tokenizer that the metadata describes.
pub(super) fn parts(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Parts, GgufError> {
    let pre = pre_tokenizer(metadata)?;
    let vocab: Map<String, Json> = vocabulary.iter().map(|(id, token, _)| (token.into(), id.into())).collect();
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let sequence = |steps: Vec<Json>| json!({"type": "Sequence", "pretokenizers": steps});
    let pre_tokenizer = match pre.split {
        Split::Gpt2 => byte_level(true),
        Split::DigitsThenGpt2 => sequence(vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)]),
        Split::Patterns(patterns) => {
            let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            sequence(patterns.iter().map(split).chain([byte_level(false)]).collect())
        }
    };
    Ok(Parts {
        normalizer: if pre.compose { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer,
        decoder: byte_level(true),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": merges(metadata, vocabulary)?,
        }),
        added: vocabulary.added(|token, _| token.into()),
        add_bos: pre.add_bos,
    })
}

fn pre_tokenizer(metadata: &Metadata) -> Result<&'static PreTokenizer, GgufError> {
    let name = metadata.text(PRE)?;
    PRE_TOKENIZERS.iter().find(|pre| name.is_some_and(|name| pre.names.contains(&name))).ok_or_else(|| {
        let known: Vec<&str> = PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).copied().collect();
        let old = if name.is_none() { "; convert the model again with a current llama.cpp" } else { "" };
        metadata.error(PRE, format!("one of {}{old}", known.join(", ")))
    })
}

/// The merges as pairs, each checked to join two tokens into a third; of equal ones the first counts.
fn merges(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Vec<Json>, GgufError> {
    let expected = "a list of strings, each of two tokens with a space between";
    let list = metadata.list(MERGES)?.ok_or_else(|| metadata.error(MERGES, expected))?;
    let mut allowance = Allowance::of(vocabulary, MERGES);
    let mut seen = HashSet::new();
    let mut merges = Vec::new();
    for (index, merge) in list.texts().ok_or_else(|| metadata.error(MERGES, expected))?.enumerate() {
        let error = |problem: &str| GgufError::Field {
            key: MERGES.into(),
            expected: expected.into(),
            found: format!("merge {index} {:?}, {problem}", shorten(merge)),
        };
        // A token may begin with a space in vocabularies that spell spaces out.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let space = merge[first..].find(' ').ok_or_else(|| error("which has no space inside"))? + first;
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        for part in [left, right] {
            if !vocabulary.ids.contains_key(part) {
                return Err(error(&format!("of which {:?} is no token", shorten(part))));
            }
        }
        let joined = [left, right].concat();
        if !vocabulary.ids.contains_key(joined.as_str()) {
            return Err(error(&format!("whose result {:?} is no token", shorten(&joined))));
        }
        if seen.insert((left, right)) {
            allowance.take(joined.len())?;
            merges.push(json!([left, right]));
        }
    }
    Ok(merges)
}
