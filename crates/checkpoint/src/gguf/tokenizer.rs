//! The tokenizer in a file's metadata, as the files that a checkpoint directory has: `tokenizer.json`,
//! `tokenizer_config.json`, `generation_config.json` and `chat_template.jinja`.

mod byte_level;
mod limits;
mod sentencepiece;

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::error::GgufError;
use super::header::Metadata;
use super::names::{Architecture, size};
use super::value::{Value, shorten};
use limits::{MAX_ADDED, MAX_TOKEN_BYTES, MAX_TOKENS};

/// Key of the tokens, by id.
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MODEL: &str = "tokenizer.ggml.model";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Named tokens: the name in `tokenizer_config.json` and the metadata key.
const NAMED: [(&str, &str); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
];

/// Keys of tokens that end an answer without being `eos_token`.
const MORE_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Control tokens that end an answer in every vocabulary that has them (llama.cpp stops at them, too). Files name one
/// `eos_token_id`, while the original generation_config.json lists several.
const KNOWN_ENDS: [&str; 7] =
    ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<|end|>"];

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    /// Whether a token that is recognised before the text is split is a special one; `None` for all other tokens.
    fn special(self) -> Option<bool> {
        match self {
            Self::Control | Self::Unknown => Some(true),
            Self::UserDefined => Some(false),
            Self::Normal | Self::Unused | Self::Byte => None,
        }
    }
}

/// Tokens by id.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<TokenType>,
    ids: HashMap<&'a str, u32>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, GgufError> {
        let expected = "a list of strings";
        let list = metadata.list(TOKENS)?.ok_or_else(|| metadata.error(TOKENS, expected))?;
        if list.len() > MAX_TOKENS {
            return Err(metadata.error(TOKENS, format!("at most {MAX_TOKENS} tokens")));
        }
        let tokens: Vec<&str> = list.texts().ok_or_else(|| metadata.error(TOKENS, expected))?.collect();
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in (0..).zip(&tokens) {
            if token.len() > MAX_TOKEN_BYTES {
                let expected = format!("tokens of at most {MAX_TOKEN_BYTES} bytes");
                return Err(token_error(expected, format!("token {id} of {} bytes", token.len())));
            }
            if let Some(other) = ids.insert(*token, id) {
                let found = format!("token {:?} at {other} and at {id}", shorten(token));
                return Err(token_error("different tokens", found));
            }
        }
        let expected = || metadata.error(TYPES, format!("{} integers from 1 to 6, one a token", tokens.len()));
        let types: Option<Vec<TokenType>> = metadata
            .list(TYPES)?
            .and_then(|list| list.scalars())
            .ok_or_else(expected)?
            .map(|number| {
                Some(match number.as_u64()? {
                    1 => TokenType::Normal,
                    2 => TokenType::Unknown,
                    3 => TokenType::Control,
                    4 => TokenType::UserDefined,
                    5 => TokenType::Unused,
                    6 => TokenType::Byte,
                    _ => return None,
                })
            })
            .collect();
        let types = types.filter(|types| types.len() == tokens.len()).ok_or_else(expected)?;
        let added = types.iter().filter(|kind| kind.special().is_some()).count();
        if added > MAX_ADDED {
            let (expected, found) = (format!("at most {MAX_ADDED}"), format!("of type 2, 3 or 4 for {added} tokens"));
            return Err(GgufError::Field { key: TYPES.into(), expected, found });
        }
        Ok(Self { tokens, types, ids })
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &'a str, TokenType)> {
        (0..).zip(self.tokens.iter().zip(&self.types)).map(|(id, (token, kind))| (id, *token, *kind))
    }

    /// Tokens that are recognised in the text before it is split, as `tokenizer.json` lists them. `spelled` gives the
    /// text of a token.
    fn added(&self, spelled: impl Fn(&'a str, TokenType) -> String) -> Vec<Json> {
        self.iter()
            .filter_map(|(id, token, kind)| {
                let special = kind.special()?;
                Some(json!({
                    "id": id,
                    "content": spelled(token, kind),
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": special,
                }))
            })
            .collect()
    }

    /// The text of a token that a metadata key names by its id.
    fn named(&self, metadata: &Metadata, key: &str) -> Result<Option<&'a str>, GgufError> {
        Ok(id(metadata, key)?.and_then(|id| self.tokens.get(id as usize).copied()))
    }
}

fn token_error(expected: impl Into<String>, found: String) -> GgufError {
    GgufError::Field { key: TOKENS.into(), expected: expected.into(), found }
}

/// A token id, checked to be one of the vocabulary where there is one.
fn id(metadata: &Metadata, key: &str) -> Result<Option<u32>, GgufError> {
    let tokens = metadata.list(TOKENS)?.map_or(u32::MAX as usize, |list| list.len());
    let Some(last) = tokens.checked_sub(1) else { return Ok(None) };
    // Some writers state "none" as -1, signed or not.
    let none = match metadata.get(key) {
        Some(Value::Signed(id)) => *id == -1,
        Some(Value::Unsigned(id)) => [u64::from(u32::MAX), u64::MAX].contains(id),
        _ => false,
    };
    if none {
        return Ok(None);
    }
    let id = metadata.integer(key, 0, last)?;
    Ok(id.and_then(|id| u32::try_from(id).ok()))
}

/// The ids that `config.json` states.
pub(crate) fn special_ids(metadata: &Metadata) -> Result<Vec<(&'static str, u32)>, GgufError> {
    let mut ids = Vec::new();
    for (field, key) in [("bos_token_id", NAMED[0].1), ("eos_token_id", NAMED[1].1), ("pad_token_id", NAMED[2].1)] {
        ids.extend(id(metadata, key)?.map(|id| (field, id)));
    }
    Ok(ids)
}

/// A tokenizer before it is written.
struct Parts {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: Json,
    added: Vec<Json>,
    /// Whether a prompt begins with BOS where the metadata does not say.
    add_bos: bool,
}

/// The files, by name.
pub(crate) fn files(architecture: Architecture, metadata: &Metadata) -> Result<Vec<(String, Vec<u8>)>, GgufError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let parts = match metadata.text(MODEL)? {
        Some("gpt2") => byte_level::parts(metadata, &vocabulary)?,
        Some("llama") => sentencepiece::parts(architecture, metadata, &vocabulary)?,
        _ => return Err(metadata.error(MODEL, "\"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece)")),
    };
    let mut named = Vec::new();
    for (name, key) in NAMED {
        named.extend(vocabulary.named(metadata, key)?.map(|token| (name, token)));
    }
    let token = |wanted: &str| named.iter().find(|(name, _)| *name == wanted).map(|(_, token)| *token);
    let (bos, eos) = (token("bos_token"), token("eos_token"));
    let add_bos = metadata.flag(ADD_BOS)?.unwrap_or(parts.add_bos && bos.is_some());
    let add_eos = metadata.flag(ADD_EOS)?.unwrap_or(false);
    for (asked, token, key, flag) in [(add_bos, bos, NAMED[0].1, ADD_BOS), (add_eos, eos, NAMED[1].1, ADD_EOS)] {
        if asked && token.is_none() {
            return Err(metadata.error(key, format!("a token id, since {flag} is true")));
        }
    }
    let template = metadata.text(TEMPLATE)?;

    let post_processor = post_processor(&vocabulary, bos.filter(|_| add_bos), eos.filter(|_| add_eos));
    let mut config = Map::new();
    config.insert("add_bos_token".into(), add_bos.into());
    config.insert("add_eos_token".into(), add_eos.into());
    let decoder = parts.added.iter().filter_map(|token| {
        let mut fields = token.as_object()?.clone();
        let id = fields.shift_remove("id")?;
        Some((id.to_string(), Json::Object(fields)))
    });
    config.insert("added_tokens_decoder".into(), Json::Object(decoder.collect()));
    for (name, token) in &named {
        config.insert((*name).into(), (*token).into());
    }
    if let Some(template) = template {
        config.insert("chat_template".into(), template.into());
    }
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    if let Some(positions) = size(metadata, &architecture.key("context_length"))? {
        config.insert("model_max_length".into(), positions.into());
    }
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());

    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": parts.added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let generation = generation(metadata, &vocabulary)?;
    let mut files = vec![
        ("tokenizer.json".into(), text(&tokenizer)),
        ("tokenizer_config.json".into(), text(&Json::Object(config))),
        ("generation_config.json".into(), text(&generation)),
    ];
    if let Some(template) = template {
        files.push(("chat_template.jinja".into(), template.as_bytes().to_vec()));
    }
    Ok(files)
}

/// JSON as transformers lays it out.
fn text(value: &Json) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Puts BOS before and EOS after a text, where asked to.
fn post_processor(vocabulary: &Vocabulary<'_>, bos: Option<&str>, eos: Option<&str>) -> Json {
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let special = |token: &str, sequence: u8| json!({"SpecialToken": {"id": token, "type_id": sequence}});
    let sequence = |name: &str, number: u8| json!({"Sequence": {"id": name, "type_id": number}});
    let framed = |name: &str, number: u8| {
        let mut pieces = Vec::new();
        pieces.extend(bos.map(|bos| special(bos, number)));
        pieces.push(sequence(name, number));
        pieces.extend(eos.map(|eos| special(eos, number)));
        pieces
    };
    let tokens: Map<String, Json> = bos
        .into_iter()
        .chain(eos)
        .map(|token| (token.into(), json!({"id": token, "ids": [vocabulary.ids[token]], "tokens": [token]})))
        .collect();
    let pair = [framed("A", 0), framed("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    })
}

/// `generation_config.json`: ids that begin and end, and the sampling that the metadata recommends.
fn generation(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Json, GgufError> {
    let mut fields = Map::new();
    fields.insert("_from_model_config".into(), true.into());
    if let Some(bos) = id(metadata, NAMED[0].1)? {
        fields.insert("bos_token_id".into(), bos.into());
    }
    let mut ends: Vec<u32> = id(metadata, NAMED[1].1)?.into_iter().collect();
    for key in MORE_ENDS {
        ends.extend(id(metadata, key)?);
    }
    ends.extend(KNOWN_ENDS.iter().filter_map(|token| {
        let id = *vocabulary.ids.get(token)?;
        (vocabulary.types[id as usize] == TokenType::Control).then_some(id)
    }));
    let mut seen = Vec::new();
    ends.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    match ends[..] {
        [] => {}
        [end] => _ = fields.insert("eos_token_id".into(), end.into()),
        _ => _ = fields.insert("eos_token_id".into(), ends.into()),
    }
    if let Some(pad) = id(metadata, NAMED[2].1)? {
        fields.insert("pad_token_id".into(), pad.into());
    }
    let mut samples = false;
    for (key, field, low, high) in [
        ("temp", "temperature", 0.0, 1000.0),
        ("top_p", "top_p", 0.0, 1.0),
        ("min_p", "min_p", 0.0, 1.0),
        ("penalty_repeat", "repetition_penalty", 0.0, 1000.0),
    ] {
        let key = format!("general.sampling.{key}");
        let Some(number) = metadata.float(&key)? else { continue };
        if !(low..=high).contains(&number) {
            return Err(metadata.error(&key, format!("a number from {low} to {high}")));
        }
        samples |= field != "repetition_penalty";
        fields.insert(field.into(), number.into());
    }
    if let Some(rank) = metadata.integer("general.sampling.top_k", 0, u32::MAX as usize)? {
        samples = true;
        fields.insert("top_k".into(), rank.into());
    }
    if samples {
        fields.insert("do_sample".into(), true.into());
    }
    Ok(Json::Object(fields))
}
