//! The one error type of this crate.

use std::path::PathBuf;

/// What can go wrong between text and token ids.
///
/// Every message names the file (or template) and field at fault, what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file the checkpoint must have is not there.
    #[error(
        "{}: no file `{file}`; expected the checkpoint directory to hold it. {fix}",
        dir.display()
    )]
    MissingFile {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The file expected in it.
        file: &'static str,
        /// What to do about it.
        fix: &'static str,
    },

    /// A file is there and cannot be read.
    #[error("{}: cannot be read: {source}. Check that it is a readable file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A file was read and is not what its name promises.
    #[error("{}: expected {expected}, found: {found}. {fix}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What the file should hold.
        expected: &'static str,
        /// What is wrong with it.
        found: String,
        /// What to do about it.
        fix: &'static str,
    },

    /// One field of a file has a value that makes no sense.
    #[error("{}: field `{field}`: expected {expected}, found {found}. {fix}", path.display())]
    BadField {
        /// The file.
        path: PathBuf,
        /// The field, as a dotted path.
        field: String,
        /// What the field should hold.
        expected: &'static str,
        /// What it holds.
        found: String,
        /// What to do about it.
        fix: &'static str,
    },

    /// The tokenizer could not encode a text.
    #[error(
        "{}: the tokenizer cannot encode this text ({bytes} bytes): {found}. Expected every text to have an \
         encoding; the file's model or pre-tokenizer is broken, download it again", path.display()
    )]
    Encode {
        /// The tokenizer's file.
        path: PathBuf,
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        found: String,
    },

    /// A chat template is not valid template source.
    #[error(
        "chat template {name}, line {line}: {message}. Expected a template that Jinja2 accepts; correct that line or \
         give another template with --chat-template-file"
    )]
    TemplateSyntax {
        /// Where the template came from.
        name: String,
        /// Line of the fault, counted from 1 (0: unknown).
        line: usize,
        /// What is wrong there.
        message: String,
    },

    /// A chat template failed while it was rendered.
    #[error(
        "chat template {name}, line {line}: {message}. Expected these messages to render; check their fields against \
         the template, or give another template with --chat-template-file"
    )]
    TemplateRender {
        /// Where the template came from.
        name: String,
        /// Line of the fault, counted from 1 (0: unknown).
        line: usize,
        /// What went wrong.
        message: String,
    },

    /// The template called `raise_exception`: it does not accept these messages.
    #[error("chat template {name}, line {line}, rejected the messages: {message}")]
    TemplateRejected {
        /// Where the template came from.
        name: String,
        /// Line of the call, counted from 1 (0: unknown).
        line: usize,
        /// The template's own words.
        message: String,
    },

    /// Rendering used up its budget.
    #[error(
        "chat template {name}, line {line}: stopped after {fuel} steps. Expected a render to end before that; the \
         template loops for ever or the conversation is far too long"
    )]
    TemplateBudget {
        /// Where the template came from.
        name: String,
        /// Line at which the budget ran out, counted from 1 (0: unknown).
        line: usize,
        /// The budget.
        fuel: u64,
    },
}

impl TextError {
    /// Whether the messages of a request are at fault (a client error), rather than the checkpoint's files.
    pub fn is_request_fault(&self) -> bool {
        matches!(self, Self::TemplateRejected { .. } | Self::TemplateRender { .. } | Self::TemplateBudget { .. })
    }
}
