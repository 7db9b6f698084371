//! Text on one side, token ids on the other.
//!
//! - [`Tokenizer`]: ids from text, with exactly one BOS where one belongs.
//! - [`Detokenizer`]: text from ids as they come, never half a character, and a clone is a snapshot.
//! - [`ChatTemplate`]: a prompt from chat messages, as the checkpoint's own Jinja template prints it.
//! - [`parse`]: thoughts, content and tool calls from the answer, as it comes.
//!
//! Everything here is a pure function of the files and the arguments (the clock for `strftime_now` apart), and every
//! fault is a [`TextError`] that names the file, what was expected, what was found and what to do.

#![forbid(unsafe_code)]

mod config;
mod decoder;
mod detokenize;
mod error;
pub mod parse;
mod template;
mod tokenizer;

pub use config::SpecialTokens;
pub use detokenize::Detokenizer;
pub use error::TextError;
pub use template::{ChatTemplate, RenderRequest};
pub use tokenizer::Tokenizer;
