//! Constrained answers: only tokens that keep the text within a grammar are chosen from (DESIGN §5).
//!
//! A [`GrammarFactory`] knows the bytes of every token of a tokenizer and compiles a [`Grammar`] into a [`Constraint`], which any number
//! of requests may carry. A running request has a `Guide`: where its answer stands in the grammar, and which tokens
//! may come next. The sampler leaves the others out before temperature and filters; log-probabilities stay those of the raw row.
//!
//! Why speculation stays exact: the guide moves with *chosen* tokens only, one by one, so the tokens allowed at a position are a
//! function of the answer before it, whatever was drafted. Drafts that leave the grammar are rejected by the one rule of acceptance. So that few are, drafts are
//! chosen with a guide of their own (`DraftGuide`), which shares nothing with the request's: not even caches, since the
//! limits on a step's work count what is not yet cached, and an answer must not depend on what was cached by drafting, nor by
//! another request.
//!
//! How an answer ends: where the text may end, the request's stop tokens are allowed as well; once nothing but the end may follow, the answer
//! ends by itself ([`FinishReason::Grammar`](crate::FinishReason::Grammar)), whether or not the request has stop tokens. With `ignore_eos` it therefore goes
//! on for as long as the grammar lets it. `max_tokens` and stop strings cut as ever.
//!
//! Thoughts come before the text that a grammar is about ([`Constraint::after`]): up to the marker that ends them any token may be
//! chosen but those that end the answer, and the grammar begins behind the marker. Nothing is compiled for that: the guide waits.

mod factory;
mod gbnf;
pub(crate) mod guide;
mod lead;
mod limits;
mod places;
mod schema;
#[cfg(test)]
mod tests;
mod thoughts;
mod walk;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use mlxcel_text::Tokenizer;
use serde_json::Value;

use crate::sample::TokenSet;
use lead::Lead;

pub use factory::GrammarFactory;
pub use thoughts::Thoughts;

/// What the text of an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema (draft 2020-12, or the one it names) accepts; properties come in the schema's order. A keyword that cannot
    /// be enforced is refused.
    JsonSchema(Value),
    /// A grammar in the Lark dialect of the llguidance crate; the rule `start` is the answer.
    Lark(String),
    /// A grammar as llama.cpp writes them; the rule `root` is the answer.
    Gbnf(String),
    /// A regular expression that the whole answer matches, in the syntax of the regex crate without look-around.
    Regex(String),
    /// Calls of functions: a Lark grammar that this program wrote, and schemas to which it refers as `@json0`, `@json1` and so on. Of
    /// the schemas, keywords that cannot be enforced are passed over.
    Calls {
        /// The grammar.
        lark: String,
        /// The schemas.
        schemas: Vec<Value>,
    },
}

impl Grammar {
    /// The name in messages: the request's parameter.
    pub const fn name(&self) -> &'static str {
        match self {
            Grammar::JsonObject => "json_object",
            Grammar::JsonSchema(_) => "json_schema",
            Grammar::Lark(_) | Grammar::Gbnf(_) => "grammar",
            Grammar::Regex(_) => "regex",
            Grammar::Calls { .. } => "forced calls",
        }
    }
}

/// Why a grammar cannot be used: the client's fault, but for [`GrammarError::Tokenizer`] and [`GrammarError::Busy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A part of a schema or grammar that is not what stands in its place.
    #[error("{what}, at {at}: {expected} expected, found {found}")]
    Part {
        /// The request's parameter.
        what: &'static str,
        /// Where: a JSON pointer, or a line.
        at: String,
        /// What belongs there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Too large.
    #[error("{what}: at most {most} {unit} expected, found {found}; send a simpler one")]
    Size {
        /// The request's parameter.
        what: &'static str,
        /// Of what.
        unit: &'static str,
        /// The limit.
        most: usize,
        /// How many.
        found: String,
    },
    /// What the grammar compiler says of it.
    #[error("{what}: {why}")]
    Refused {
        /// The request's parameter.
        what: &'static str,
        /// Its message.
        why: String,
    },
    /// It took too long to compile.
    #[error("{what}: not compiled within {seconds} s; send a simpler one")]
    Slow {
        /// The request's parameter.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// Others take too long to compile: no fault of this one.
    #[error("{what}: others have kept the grammar compilers busy for {seconds} s; try again later")]
    Busy {
        /// The request's parameter.
        what: &'static str,
        /// How long it waited.
        seconds: u64,
    },
    /// Only the empty text fits.
    #[error("{what}: a grammar with some text expected, found one that allows only the empty answer")]
    Empty {
        /// The request's parameter.
        what: &'static str,
    },
    /// Nothing fits, or nothing that the model's tokens can say.
    #[error("{what}: a grammar that allows some text expected, found one that nothing can begin")]
    NoToken {
        /// The request's parameter.
        what: &'static str,
    },
    /// A tokenizer whose tokens cannot be used.
    #[error("constrained answers: a tokenizer with the bytes of its tokens expected, found one that is refused: {0}")]
    Tokenizer(String),
}

/// A compiled grammar, for requests to the engine whose tokenizer it was compiled for. A clone is the same one.
#[derive(Clone)]
pub struct Constraint(Arc<Compiled>, Option<Thoughts>);

struct Compiled {
    grammar: Grammar,
    tokenizer: Arc<Tokenizer>,
    lead: Arc<Lead>,
    /// At the start of an answer; never moved. It is copied with its caches for each request.
    start: Mutex<Matcher>,
    first: guide::Next,
    fault: Option<Fault>,
}

/// What a suite of constrained answers must notice; for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request's own guide follows its drafts.
    MovedByDrafts,
    /// All tokens are allowed everywhere.
    NotApplied,
    /// Drafts are chosen without the grammar: slower, and no answer may change.
    UnguidedDrafts,
}

impl Constraint {
    /// What it was compiled from.
    pub fn grammar(&self) -> &Grammar {
        &self.0.grammar
    }

    /// The same behind thoughts.
    #[must_use]
    pub fn after(&self, thoughts: Thoughts) -> Self {
        Constraint(Arc::clone(&self.0), Some(thoughts.before(&self.0.first.allowed)))
    }

    /// Whether it was compiled for this very tokenizer.
    pub fn is_for(&self, tokenizer: &Arc<Tokenizer>) -> bool {
        Arc::ptr_eq(&self.0.tokenizer, tokenizer)
    }

    /// Tokens that may begin the text, stop tokens apart.
    pub fn first(&self) -> &TokenSet {
        &self.0.first.allowed
    }

    /// How many of an answer's tokens, from the first on, it lets through.
    pub fn allows(&self, answer: &[u32]) -> usize {
        let mut guide = guide::Guide::new(self.clone(), []);
        let passes = |token: &&u32| {
            let allowed = matches!(guide.allowed(), Ok(Some(set)) if set.contains(**token));
            if allowed {
                guide.advance(**token);
            }
            allowed
        };
        answer.iter().take_while(passes).count()
    }

    /// The same constraint with a fault, for twins of tests.
    #[must_use]
    pub fn with_fault(&self, fault: Fault) -> Self {
        let compiled = &*self.0;
        let compiled = Arc::new(Compiled {
            grammar: compiled.grammar.clone(),
            tokenizer: Arc::clone(&compiled.tokenizer),
            lead: Arc::clone(&compiled.lead),
            start: Mutex::new(self.matcher()),
            first: compiled.first.clone(),
            fault: Some(fault),
        });
        Constraint(compiled, self.1.clone())
    }

    /// A matcher at the start of an answer that shares nothing with any other.
    fn matcher(&self) -> Matcher {
        self.0.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Constraint").field(&self.0.grammar).field(&self.1).finish()
    }
}
