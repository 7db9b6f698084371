//! llama-server's dialect: tokens and templates without an answer, and the state of the server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::decode::{Decode, Node, Result};
use crate::limits;
use crate::openai::{Message, Tool};
use crate::parameters;

/// `POST /tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenizeRequest {
    /// The text; also read as `prompt`. It may be empty.
    pub content: String,
    /// Whether BOS is added where the model has one; no unless said otherwise.
    pub add_special: bool,
    /// Whether the spelling of a special token becomes that token; yes unless said otherwise.
    pub parse_special: bool,
    /// Whether tokens come with their text.
    pub with_pieces: bool,
}

/// The answer of `/tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeAnswer {
    /// The tokens.
    pub tokens: Vec<TokenizedToken>,
}

/// A token of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenizedToken {
    /// Its id.
    Id(u32),
    /// Its id and text.
    Piece {
        /// Its id.
        id: u32,
        /// Its text.
        piece: Piece,
    },
}

/// The text of a token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Piece {
    /// Whole characters.
    Text(String),
    /// Bytes that are not.
    Bytes(Vec<u8>),
}

impl Serialize for Piece {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Piece::Text(text) => serializer.serialize_str(text),
            Piece::Bytes(bytes) => serializer.collect_seq(bytes),
        }
    }
}

impl From<Vec<u8>> for Piece {
    /// Text if the bytes are.
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|e| Piece::Bytes(e.into_bytes()), Piece::Text)
    }
}

/// `POST /detokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DetokenizeRequest {
    /// Token ids; there may be none.
    pub tokens: Vec<u32>,
}

/// The answer of `/detokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetokenizeAnswer {
    /// The text.
    pub content: String,
}

/// `POST /apply-template`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ApplyTemplateRequest {
    /// The conversation, at least one message.
    pub messages: Vec<Message>,
    /// The tools offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Variables of the template.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the prompt ends with the opening of the model's turn; yes unless said otherwise.
    pub add_generation_prompt: bool,
}

/// The answer of `/apply-template`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyTemplateAnswer {
    /// The prompt.
    pub prompt: String,
}

/// The answer of `/health` when all is well; else it is an error with status 503.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

impl Health {
    /// All is well.
    pub fn ok() -> Self {
        Health { status: "ok".into() }
    }
}

/// The answer of `GET /props`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Props {
    /// What a request gets that says nothing.
    pub default_generation_settings: GenerationSettings,
    /// Sequences served at once.
    pub total_slots: u64,
    /// Where the checkpoint is.
    pub model_path: String,
    /// The name the model is asked for by.
    pub model_alias: String,
    /// The template in use, "" if the model has none.
    pub chat_template: String,
    /// Text of the token that begins a prompt, "" if there is none.
    pub bos_token: String,
    /// Text of the token that ends an answer.
    pub eos_token: String,
    /// What a request may show the model.
    pub modalities: Modalities,
    /// Version and commit.
    pub build_info: String,
    /// How drafting is set up.
    pub speculation: SpeculationProps,
}

/// What a request gets that says nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationSettings {
    /// Positions of the context of one sequence.
    pub n_ctx: u64,
    /// The sampling parameters, by their names in requests.
    pub params: BTreeMap<String, Value>,
}

/// What a request may show the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modalities {
    /// Images.
    pub vision: bool,
    /// Sound.
    pub audio: bool,
}

/// How drafting is set up, and if it is off, why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeculationProps {
    /// Whether requests are drafted for.
    pub enabled: bool,
    /// `mtp`, `dflash`, `classic`, `ngram` or `none`.
    pub kind: String,
    /// Where the drafter's checkpoint is, if it has one.
    pub drafter: Option<String>,
    /// The width the operator pinned; null = the controller picks.
    pub block_size: Option<u32>,
    /// The widest block.
    pub max_block_size: u32,
    /// What the exactness probe found: `passed`, `failed`, `skipped`, `not run`.
    pub probe: String,
    /// Whether answers may differ from plain decoding, since the operator overrode a failed probe.
    pub inexact_allowed: bool,
    /// Why drafting is off, or why it may be inexact; null when there is nothing to say.
    pub why: Option<String>,
}

/// A sequence's place, in the answer of `GET /slots` (a list of them).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Which.
    pub id: u64,
    /// Positions of its context.
    pub n_ctx: u64,
    /// Whether its answers are drafted for.
    pub speculative: bool,
    /// Whether it has a request.
    pub is_processing: bool,
    /// The request, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<SlotTask>,
}

/// The request a slot works on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotTask {
    /// The request's id.
    pub id: String,
    /// `prompt` or `decode`.
    pub phase: String,
    /// Tokens of the prompt.
    pub n_prompt: u64,
    /// Of those, computed or taken from the cache so far.
    pub n_prompt_done: u64,
    /// Of those, taken from the cache.
    pub n_cached: u64,
    /// Tokens generated so far.
    pub n_decoded: u64,
    /// Width of its next block.
    pub block_size: u32,
    /// Tokens drafted so far.
    pub draft_n: u64,
    /// Of those, accepted.
    pub draft_n_accepted: u64,
}

impl Decode for TokenizeRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with content")?;
        let name = if object.has("content") || !object.has("prompt") { "content" } else { "prompt" };
        let request = TokenizeRequest {
            content: object.need(name, "a string")?.text()?,
            add_special: object.flag("add_special")?,
            parse_special: object.optional("parse_special")?.unwrap_or(true),
            with_pieces: object.flag("with_pieces")?,
        };
        object.finish(&[parameters::NATIVE])?;
        Ok(request)
    }
}

impl Decode for DetokenizeRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with tokens")?;
        let tokens = object.need("tokens", "an array of token ids")?;
        let request = DetokenizeRequest { tokens: tokens.list(&limits::TOKENS, |node| node.whole(&limits::TOKEN))? };
        object.finish(&[parameters::NATIVE])?;
        Ok(request)
    }
}

impl Decode for ApplyTemplateRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with messages")?;
        let messages =
            object.need("messages", "an array of at least one message")?.list(&limits::MESSAGES, Message::decode)?;
        let request = ApplyTemplateRequest {
            messages,
            tools: object.list(&limits::TOOLS)?,
            chat_template_kwargs: object.optional("chat_template_kwargs")?.unwrap_or_default(),
            add_generation_prompt: object.optional("add_generation_prompt")?.unwrap_or(true),
        };
        object.finish(&[parameters::NATIVE])?;
        Ok(request)
    }
}

impl ApplyTemplateRequest {
    /// Refuses images, for a model that only reads.
    ///
    /// # Errors
    /// A 400 that names the first part that is no text.
    pub fn require_text(&self) -> std::result::Result<(), crate::ApiError> {
        crate::openai::require_text(&self.messages)
    }
}
