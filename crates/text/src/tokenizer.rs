//! Token ids from text, and what the ids mean.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::config::{TokenizerConfig, read_optional};
use crate::decoder::TokenDecoder;
use crate::detokenize::DecodeState;
use crate::error::TextError;

const FILE: &str = "tokenizer.json";

/// A checkpoint's tokenizer: `tokenizer.json`, and of `tokenizer_config.json` what says how to use it.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    decoder: TokenDecoder,
    special: HashSet<u32>,
    vocab_size: usize,
    bos: Option<u32>,
    add_bos: bool,
    eos: Vec<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("path", &self.path)
            .field("vocab_size", &self.vocab_size)
            .field("bos", &self.bos)
            .field("add_bos", &self.add_bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads the tokenizer of a checkpoint directory. `tokenizer_config.json` may be absent.
    pub fn load(dir: &Path) -> Result<Self, TextError> {
        let path = dir.join(FILE);
        let Some(bytes) = read_optional(&path)? else {
            return Err(TextError::MissingFile {
                dir: dir.to_path_buf(),
                file: FILE,
                fix: "Copy it from the original checkpoint (a `tokenizer.model` alone must first be converted with \
                      transformers' `save_pretrained`)",
            });
        };
        let config = TokenizerConfig::load(dir)?;
        Self::from_bytes(path, &bytes, &config)
    }

    fn from_bytes(path: PathBuf, bytes: &[u8], config: &TokenizerConfig) -> Result<Self, TextError> {
        let bad = |found: String| TextError::BadFile {
            path: path.clone(),
            expected: "a tokenizer in the format of the `tokenizers` library",
            found,
            fix: "Copy the file again from the original checkpoint",
        };
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(bad)?;
        // Some files carry the settings of a training run; a server must neither cut nor pad a prompt in silence.
        inner.with_padding(None);
        guarded(|| inner.with_truncation(None).map(|_| ())).map_err(bad)?;

        let decoder = TokenDecoder::compile(inner.get_decoder()).map_err(|part| TextError::BadField {
            path: path.clone(),
            field: "decoder".to_owned(),
            expected: "ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, Fuse and a leading Strip",
            found: part,
            fix: "Such a decoder cannot stream text; it belongs to another kind of model",
        })?;
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);

        let mut this = Self { inner, path, decoder, special, vocab_size, bos: None, add_bos: false, eos: Vec::new() };
        this.eos = this.named_ids(config, "eos_token")?;
        // A BOS that is named, unknown and never added does no harm; `settle_bos` refuses it where it would be added.
        this.bos = config.tokens("bos_token")?.first().and_then(|text| this.token_to_id(text));
        this.settle_bos(config)?;
        Ok(this)
    }

    /// The ids of a special-token field; a text without an id is a fault of the checkpoint.
    fn named_ids(&self, config: &TokenizerConfig, field: &str) -> Result<Vec<u32>, TextError> {
        config
            .tokens(field)?
            .iter()
            .map(|text| {
                self.token_to_id(text).ok_or_else(|| {
                    config.bad(field, "a token of tokenizer.json", &format!("{text:?}, which is not in its vocabulary"))
                })
            })
            .collect()
    }

    /// Whether a raw prompt gets a BOS: the config's word, else what the post-processor does to an empty text.
    fn settle_bos(&mut self, config: &TokenizerConfig) -> Result<(), TextError> {
        let leading = self.ids("", true)?.first().copied();
        if self.bos.is_none() && config.get("bos_token").is_none() {
            self.bos = leading.filter(|id| self.is_special(*id) && !self.eos.contains(id));
        }
        self.add_bos = match config.flag("add_bos_token")? {
            Some(true) if self.bos.is_none() => {
                return Err(config.bad(
                    "bos_token",
                    "a token of tokenizer.json, since `add_bos_token` is true",
                    "none",
                ));
            }
            Some(asked) => asked,
            None => self.bos.is_some() && leading == self.bos,
        };
        Ok(())
    }

    fn ids(&self, text: &str, post_process: bool) -> Result<Vec<u32>, TextError> {
        guarded(|| self.inner.encode_fast(text, post_process))
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|found| TextError::Encode { path: self.path.clone(), bytes: text.len(), found })
    }

    /// Ids of a raw prompt: special tokens written in the text are special tokens, and where this tokenizer uses a BOS
    /// there is exactly one at the front, whether or not the text already begins with it.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = self.ids(text, false)?;
        if let (true, Some(bos)) = (self.add_bos, self.bos) {
            if ids.first() != Some(&bos) {
                ids.insert(0, bos);
            }
            drop_repeated_front(&mut ids, bos);
        }
        Ok(ids)
    }

    /// Ids of a rendered chat template: nothing is added, since the template prints its own BOS; where a second one
    /// slipped in at the front, one remains.
    pub fn encode_templated(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = self.ids(text, false)?;
        if let Some(bos) = self.bos {
            drop_repeated_front(&mut ids, bos);
        }
        Ok(ids)
    }

    /// Ids of a piece of text, exactly as written: no BOS is added and none removed.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, false)
    }

    /// The text of a sequence of ids. Bytes that are no UTF-8 become U+FFFD; unknown ids contribute nothing.
    ///
    /// `clean_up_tokenization_spaces` is not applied: it would change characters that were already streamed.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut out = String::new();
        let mut state = DecodeState::new(self);
        for id in ids {
            state.push(self, *id, skip_special, &mut out);
        }
        state.finish(self, &mut out);
        out
    }

    /// One more than the largest id, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token, written as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as written in the vocabulary (`▁the`, `<0xE2>`), not as it prints.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether the id is a special token, which `skip_special` hides.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The token that begins a sequence, if there is one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// Whether [`encode_raw`](Self::encode_raw) puts a BOS at the front.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The end-of-sequence tokens that `tokenizer_config.json` names; the generation config may name more.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// The bytes a token adds in the middle of a text; empty for an id outside the vocabulary. Not always whole UTF-8.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.bytes_of(id, false).unwrap_or_default()
    }

    /// The bytes a token adds at the start of a text, where some tokenizers cut a space; empty for an id outside the vocabulary.
    pub fn leading_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = self.bytes_of(id, true).unwrap_or_default();
        if let Some((c, most)) = self.decoder.strip_start {
            let cut = c.to_string();
            let times = bytes.chunks(cut.len()).take(most).take_while(|part| *part == cut.as_bytes()).count();
            bytes.drain(..times * cut.len());
        }
        bytes
    }

    pub(crate) fn decoder(&self) -> &TokenDecoder {
        &self.decoder
    }

    pub(crate) fn bytes_of(&self, id: u32, first: bool) -> Option<Vec<u8>> {
        let token = self.inner.id_to_token(id)?;
        Some(self.decoder.bytes(&token, first))
    }
}

fn drop_repeated_front(ids: &mut Vec<u32>, bos: u32) {
    let run = ids.iter().take_while(|id| **id == bos).count();
    ids.drain(..run.saturating_sub(1));
}

/// Runs library code that indexes without checking on some malformed files: its panic becomes an error, so that a bad
/// checkpoint fails one load or one request and not the process.
fn guarded<T>(f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err("the tokenizers library gave up on it".to_owned()),
    }
}
