//! What is asked of the engine and what comes back.

use mlxcel_model::ModelError;

use crate::grammar::Constraint;
use crate::sample::{SampleError, SamplingParams, TokenLogprobs};
use crate::speculate::Rounds;
use crate::stop::StopError;

/// A request's handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One answer to be generated.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids of the prompt, BOS included where it belongs.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; clamped to what the context has room for. `None` = all the room.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer, beside the model's own.
    pub stop_ids: Vec<u32>,
    /// Text that ends the answer, and is cut off.
    pub stop: Vec<String>,
    /// Do not end at the model's own stop tokens; `stop_ids` still end the answer.
    pub ignore_eos: bool,
    /// Leave special tokens in the text.
    pub show_special: bool,
    /// Compute the whole prompt, whatever the cache has of it. It changes the time to the first token, not the answer.
    pub fresh: bool,
    /// Block width K of its rounds, at most [`MAX_BLOCK`](crate::speculate::MAX_BLOCK); 1 = no drafts. `None` = as the engine
    /// does. It changes the speed of the answer, not the answer.
    pub block_size: Option<usize>,
    /// What the answer's text must be, from a [`GrammarFactory`](crate::grammar::GrammarFactory) of the engine's tokenizer. `None` =
    /// any text.
    pub constraint: Option<Constraint>,
}

/// A request in a slot, between steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The request.
    pub id: RequestId,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Of those, taken from the cache.
    pub cached: usize,
    /// Positions computed.
    pub computed: usize,
    /// Tokens known: prompt and answer.
    pub tokens: usize,
    /// The block width that it settled at; 1 = it does not draft.
    pub width: usize,
    /// What its rounds came to.
    pub rounds: Rounds,
}

/// Why a request cannot be taken: the client's fault, all but the last.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Nothing to continue.
    #[error("prompt: at least one token expected, found an empty prompt")]
    EmptyPrompt,
    /// No room.
    #[error(
        "prompt: {found} tokens found, but the context holds {context} and one must be left for the answer; \
         shorten the prompt, or raise --ctx-size if it is below the model's limit of {model}"
    )]
    ContextLength {
        /// Tokens of the prompt.
        found: usize,
        /// Configured context.
        context: usize,
        /// The model's own limit.
        model: usize,
    },
    /// Not in the vocabulary.
    #[error("prompt: token ids below {vocab} expected, found {found} at index {index}")]
    Token {
        /// The id.
        found: u32,
        /// Where it is.
        index: usize,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// Features this engine does not take.
    #[error(
        "prompt: token {found} at index {index} stands for image or audio input, which this version does not take; send text only"
    )]
    Media {
        /// The id.
        found: u32,
        /// Where it is.
        index: usize,
    },
    /// Asked for nothing.
    #[error("max_tokens: at least 1 expected, found 0")]
    NoTokens,
    /// A block width out of range.
    #[error("block_size: 1 to {most} expected, found {found}")]
    BlockSize {
        /// The width asked for.
        found: usize,
        /// The widest.
        most: usize,
    },
    /// A constraint of another tokenizer.
    #[error(
        "constraint: a grammar compiled for this engine's tokenizer expected, found one compiled for another; make the \
         GrammarFactory from Engine::tokenizer"
    )]
    Constraint,
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(#[from] SampleError),
    /// A stop string that is none.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Nothing is computed any more ([`Engine::failure`](crate::Engine::failure)).
    #[error("{0}")]
    DeviceLost(String),
}

/// Why the engine cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An option out of range.
    #[error("{option}: {expected} expected, found {found}")]
    Option {
        /// Which.
        option: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token.
    StopToken(u32),
    /// A stop string (index into the request's list).
    StopString(usize),
    /// The constraint allows nothing more.
    Grammar,
    /// `max_tokens`, or the end of the context.
    Length,
    /// [`Engine::cancel`](crate::Engine::cancel).
    Cancelled,
    /// The model failed; the message says how.
    Error(String),
    /// The device failed, and with it the engine; the message says how.
    DeviceLost(String),
}

impl FinishReason {
    /// The name in machine-readable output: `stop`, `length`, `cancelled` or `error`.
    pub fn name(&self) -> &'static str {
        match self {
            FinishReason::StopToken(_) | FinishReason::StopString(_) | FinishReason::Grammar => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Error(_) | FinishReason::DeviceLost(_) => "error",
        }
    }

    /// What failed, where that is why it ended.
    pub fn failure(&self) -> Option<&str> {
        match self {
            FinishReason::Error(why) | FinishReason::DeviceLost(why) => Some(why),
            _ => None,
        }
    }
}

/// A generated token.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// Whose.
    pub id: RequestId,
    /// The token.
    pub token: u32,
    /// Text that became certain; may be empty.
    pub text: String,
    /// Log-probabilities, if asked for.
    pub logprob: Option<TokenLogprobs>,
    /// How far its request has come with it.
    pub progress: Progress,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, taken from the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// How long it took.
    pub timings: Timings,
    /// Its rounds before the one that this token comes from.
    pub rounds: Rounds,
    /// The block width that it has settled at; 1 = plain steps.
    pub block_size: usize,
}

/// Seconds of an answer's life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// From the first prompt row to the first token.
    pub prefill: f64,
    /// From the first token to the last.
    pub decode: f64,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Whose.
    pub id: RequestId,
    /// Why.
    pub reason: FinishReason,
    /// Text that was held back until now.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, taken from the cache.
    pub cached_tokens: usize,
    /// Tokens generated, a stop token included.
    pub completion_tokens: usize,
    /// How long it took.
    pub timings: Timings,
    /// Its rounds; all zero without a drafter.
    pub rounds: Rounds,
    /// The block width that it settled at; 1 = plain steps.
    pub block_size: usize,
}

impl Finished {
    /// Prompt tokens computed a second.
    pub fn prefill_rate(&self) -> f64 {
        (self.prompt_tokens - self.cached_tokens) as f64 / self.timings.prefill
    }

    /// Tokens a second between the first and the last token; `None` when there is only one.
    pub fn decode_rate(&self) -> Option<f64> {
        (self.completion_tokens > 1).then(|| (self.completion_tokens - 1) as f64 / self.timings.decode)
    }
}

/// What a step produced.
#[derive(Clone, Debug)]
pub enum Event {
    /// A token.
    Token(TokenEvent),
    /// The end of an answer; nothing follows.
    Finished(Finished),
}
