//! SentencePiece vocabularies: pieces with scores, spaces written as `▁`, bytes for what has no piece.
//!
//! A file has no merges. SentencePiece's BPE joins the neighbours whose piece scores best; as a ranked list that is every
//! way of cutting a piece into two pieces, best piece first, which is how transformers converts such vocabularies.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value as Json, json};

use super::super::error::GgufError;
use super::super::header::Metadata;
use super::super::names::Architecture;
use super::super::value::shorten;
use super::limits::{Allowance, MAX_PIECE_BYTES};
use super::{Parts, TOKENS, TokenType, Vocabulary, token_error};

const SCORES: &str = "tokenizer.ggml.scores";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

/// The tokenizer that the metadata describes.
pub(super) fn parts(
    architecture: Architecture,
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Parts, GgufError> {
    if metadata.flag(EXTRA_SPACES)? == Some(true) {
        return Err(GgufError::Unsupported { what: format!("metadata {EXTRA_SPACES} = true") });
    }
    let pieces: Vec<Cow<'_, str>> = vocabulary.iter().map(|(_, token, kind)| spelled(token, kind)).collect();
    let ids: HashMap<&str, u32> = (0..).zip(&pieces).map(|(id, piece)| (&piece[..], id)).collect();
    if ids.len() != pieces.len() {
        return Err(token_error("different tokens", "a run of spaces both as such and as a run of \u{2581}".into()));
    }
    let bytes = check_bytes(vocabulary)?;
    let merges = merges(architecture, metadata, vocabulary, &pieces, &ids)?;
    let vocab: Map<String, Json> = (0u32..).zip(&pieces).map(|(id, piece)| (piece[..].into(), id.into())).collect();
    let prefix = metadata.flag(SPACE_PREFIX)?.unwrap_or(true);

    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", "\u{2581}")];
    let mut decoders = vec![replace("\u{2581}", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": vocabulary.named(metadata, UNKNOWN)?,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": bytes,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges,
        }),
        added: vocabulary.added(|token, kind| spelled(token, kind).into_owned()),
        add_bos: true,
    })
}

/// A piece as SentencePiece spells it: the GGUF converter writes the runs of `▁` among user-defined tokens (Gemma's
/// indentations) as spaces.
fn spelled(token: &str, kind: TokenType) -> Cow<'_, str> {
    if kind == TokenType::UserDefined && !token.is_empty() && token.bytes().all(|byte| byte == b' ') {
        "\u{2581}".repeat(token.len()).into()
    } else {
        token.into()
    }
}

/// True when there are byte tokens; all must be, each once and spelled `<0x0A>`, or text could be lost.
fn check_bytes(vocabulary: &Vocabulary<'_>) -> Result<bool, GgufError> {
    let mut found = 0;
    for (id, token, _) in vocabulary.iter().filter(|(_, _, kind)| *kind == TokenType::Byte) {
        let digits = token.strip_prefix("<0x").and_then(|token| token.strip_suffix('>'));
        let upper = |digit: char| digit.is_ascii_digit() || ('A'..='F').contains(&digit);
        if !digits.is_some_and(|digits| digits.len() == 2 && digits.chars().all(upper)) {
            let found = format!("token {id} {:?} of type 6", shorten(token));
            return Err(token_error("byte tokens spelled like <0x0A>", found));
        }
        found += 1;
    }
    match found {
        0 => Ok(false),
        // Tokens differ and each names a byte, so 256 are all of them.
        256 => Ok(true),
        found => Err(token_error("256 byte tokens or none", format!("{found} of them"))),
    }
}

/// Every cut of a piece into two pieces, the best piece first. Of one piece's cuts, those of earlier pieces first.
fn merges(
    architecture: Architecture,
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    pieces: &[Cow<'_, str>],
    ids: &HashMap<&str, u32>,
) -> Result<Vec<Json>, GgufError> {
    // Control tokens and bytes are never the outcome of a merge, nor part of one.
    let merged = |id: u32| matches!(vocabulary.types[id as usize], TokenType::Normal | TokenType::UserDefined);
    let mut order: Vec<u32> = (0..).zip(pieces).map(|(id, _)| id).filter(|id| merged(*id)).collect();
    let scores = scores(metadata, pieces.len())?;
    // Gemma's scores do not follow the order of its merges; the order of the pieces does (transformers' GemmaConverter).
    if architecture != Architecture::Gemma3 {
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
    }
    for id in &order {
        let bytes = pieces[*id as usize].len();
        if bytes > MAX_PIECE_BYTES {
            let expected = format!("pieces of at most {MAX_PIECE_BYTES} bytes");
            return Err(token_error(expected, format!("piece {id} of {bytes} bytes")));
        }
    }
    let mut allowance = Allowance::of(vocabulary, TOKENS);
    let lengths: HashSet<usize> = pieces.iter().map(|piece| piece.len()).collect();
    let mut merges = Vec::new();
    for id in order {
        let piece = &pieces[id as usize];
        let part = |text: &str| ids.get(text).copied().filter(|id| merged(*id));
        let mut cuts: Vec<(u32, u32)> = piece
            .char_indices()
            .map(|(at, _)| at)
            .filter(|at| lengths.contains(at) && lengths.contains(&(piece.len() - at)))
            .filter_map(|at| Some((part(&piece[..at])?, part(&piece[at..])?)))
            .collect();
        cuts.iter().try_for_each(|_| allowance.take(piece.len()))?;
        cuts.sort_unstable();
        merges.extend(cuts.into_iter().map(|(left, right)| json!([pieces[left as usize], pieces[right as usize]])));
    }
    Ok(merges)
}

fn scores(metadata: &Metadata, tokens: usize) -> Result<Vec<f64>, GgufError> {
    let expected = || metadata.error(SCORES, format!("{tokens} finite numbers, one a token"));
    let list = metadata.list(SCORES)?.ok_or_else(expected)?;
    let scores: Option<Vec<f64>> =
        list.scalars().ok_or_else(expected)?.map(|score| score.as_f64().filter(|score| score.is_finite())).collect();
    scores.filter(|scores| scores.len() == tokens).ok_or_else(expected)
}
