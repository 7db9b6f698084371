//! What routes need to know of the model that is served.

use std::sync::{Arc, OnceLock};

use mlxcel_engine::grammar::{GrammarError, GrammarFactory};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_text::parse::ParserKind;
use mlxcel_text::{ChatTemplate, Tokenizer};
use serde::Serialize;

/// A served model.
pub struct Facts {
    /// The names it is asked for by, the first of them in answers.
    pub names: Vec<String>,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template; `None` for base models.
    pub template: Option<ChatTemplate>,
    /// Compiles grammars for it, once the first is asked for ([`Facts::grammars`]).
    pub factory: OnceLock<Result<GrammarFactory, GrammarError>>,
    /// How it marks thoughts and calls.
    pub parser: ParserKind,
    /// Whether thoughts come as `reasoning_content`, apart from the content.
    pub split_reasoning: bool,
    /// Whether templates are asked to think where the request says nothing; `None` leaves it to the template.
    pub reasoning: Option<bool>,
    /// Positions of a sequence.
    pub context: usize,
    /// Requests at once.
    pub parallel: usize,
    /// Most tokens of an answer where the request says nothing; `None` = all the room.
    pub max_tokens: Option<usize>,
    /// Sampling where the request says nothing.
    pub sampling: SamplingParams,
    /// Device, precision, instruction set, threads.
    pub backend: String,
    /// Build and checkpoint.
    pub fingerprint: String,
    /// Directory of the checkpoint.
    pub path: String,
    /// The model in numbers.
    pub size: Size,
    /// How it speculates.
    pub speculation: Speculation,
}

/// A model in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// Rows of the vocabulary.
    pub vocab: usize,
    /// Positions it was made for.
    pub context: usize,
    /// Width of the residual stream; 0 where that is not known.
    pub hidden: usize,
    /// Parameters; 0 where that is not known.
    pub parameters: u64,
    /// Bytes of the weights.
    pub bytes: u64,
}

/// Whether and how a server speculates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Speculation {
    /// Whether there are drafts.
    pub enabled: bool,
    /// `mtp`, `classic` or `ngram`; `none` without a drafter.
    pub kind: String,
    /// Name of the drafter.
    pub drafter: Option<String>,
    /// The block width that the operator pinned; `None` = measured and adapted.
    pub block_size: Option<usize>,
    /// Widest block.
    pub max_block_size: usize,
    /// Whether answers are those of plain decoding.
    pub exact: bool,
    /// Why there are no drafts, or why they are not exact.
    pub why: Option<String>,
}

impl Facts {
    /// Whether a request's `model` means this one.
    pub fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }

    /// What compiles grammars for its tokenizer.
    ///
    /// # Errors
    /// The tokenizer cannot be used for that.
    pub fn grammars(&self) -> Result<&GrammarFactory, GrammarError> {
        self.factory.get_or_init(|| GrammarFactory::new(&self.tokenizer)).as_ref().map_err(Clone::clone)
    }

    /// The name in answers.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}
