//! The one error type: every message names the file, the tensor or field, what was expected and what was found.

use std::path::PathBuf;

use crate::gguf::GgufError;
use crate::header::HeaderError;

/// Result of anything in this crate.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// What can be wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path does not exist.
    #[error("{}: no such directory (expected a checkpoint directory with config.json and safetensors files)", path.display())]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// The path is a file.
    #[error("{}: not a directory (expected a checkpoint directory with config.json and safetensors files)", path.display())]
    NotADirectory {
        /// The path given.
        path: PathBuf,
    },
    /// A file every checkpoint has is absent.
    #[error("{}: no {file} in this directory", dir.display())]
    MissingFile {
        /// The checkpoint.
        dir: PathBuf,
        /// The file looked for.
        file: &'static str,
    },
    /// The directory has no weights.
    #[error("{}: no model.safetensors.index.json and no *.safetensors file in this directory", dir.display())]
    NoWeights {
        /// The checkpoint.
        dir: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A JSON file cannot be read.
    #[error("{}: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its place.
        problem: String,
    },
    /// A safetensors file is damaged.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: HeaderError,
    },
    /// A GGUF file is damaged, or describes something that is not imported.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// Files that belong to the checkpoint are absent; `missing` lists all of them.
    #[error(
        "{}: {} weight file(s) missing: {} (named by {named_by}); download again",
        dir.display(), missing.len(), missing.join(", ")
    )]
    MissingShards {
        /// The checkpoint.
        dir: PathBuf,
        /// What says that they should exist.
        named_by: String,
        /// Their names.
        missing: Vec<String>,
    },
    /// The index names absent files while other safetensors files are there.
    #[error(
        "{}: model.safetensors.index.json is stale: it names {}, absent here, while the directory holds {}; \
         remove or replace the index, or download again",
        dir.display(), missing.join(", "), present.join(", ")
    )]
    StaleIndex {
        /// The checkpoint.
        dir: PathBuf,
        /// Files named but absent.
        missing: Vec<String>,
        /// Files present but not named.
        present: Vec<String>,
    },
    /// The index names a file outside the checkpoint.
    #[error("{}: weight_map names {shard:?}; expected a file inside the checkpoint directory", index.display())]
    ShardEscapes {
        /// The index.
        index: PathBuf,
        /// The path it gives.
        shard: String,
    },
    /// The index names a tensor that is in no file.
    #[error("{}: tensor {tensor} should be in {shard} but no weight file holds it; download again", index.display())]
    IndexedTensorMissing {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where the index says it is.
        shard: String,
    },
    /// A tensor is in two files.
    #[error("tensor {tensor} is in both {} and {}; expected it once", first.display(), second.display())]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// A tensor the model needs is absent.
    #[error("{}: no tensor {tensor}{note}", dir.display())]
    MissingTensor {
        /// The checkpoint.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
        /// What else is worth knowing; empty, or begins with a separator.
        note: String,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("{}: tensor {tensor} has shape {found:?}, expected {expected:?}", file.display())]
    TensorShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the configuration asks for.
        expected: Vec<usize>,
        /// What the file has.
        found: Vec<usize>,
    },
    /// A tensor has an element type that cannot serve here.
    #[error("{}: tensor {tensor} has dtype {found}, expected {expected}", file.display())]
    TensorDType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The types that serve.
        expected: String,
        /// The type in the file.
        found: String,
    },
    /// The quantisation block and the tensors disagree, or describe something unsupported.
    #[error("{}: {tensor}: {problem}", file.display())]
    Quantization {
        /// The file with the tensor or the block.
        file: PathBuf,
        /// The module or the field.
        tensor: String,
        /// Expected and found.
        problem: String,
    },
    /// Tensors that nothing asked for.
    #[error("{}: {count} tensor(s) the model does not use: {}{}", dir.display(), names.join(", "),
        if *count > names.len() { ", …" } else { "" })]
    LeftOver {
        /// The checkpoint.
        dir: PathBuf,
        /// How many.
        count: usize,
        /// The first of them.
        names: Vec<String>,
    },
    /// A field of a JSON file is absent or has an unusable value.
    #[error("{}: field {field} is {found}, expected {expected}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// Path of the field, with dots.
        field: String,
        /// What would do.
        expected: String,
        /// What is there.
        found: String,
    },
    /// No model of that name.
    #[error("{}: model_type {found:?} is not supported; supported: {supported}", file.display())]
    UnknownModelType {
        /// The configuration.
        file: PathBuf,
        /// The type found.
        found: String,
        /// The types that are supported.
        supported: String,
    },
    /// A drafter was given where a model is expected.
    #[error(
        "{}: model_type {found:?} is a drafter: it proposes tokens for a target model and cannot be loaded as one",
        file.display()
    )]
    DrafterAsTarget {
        /// The configuration.
        file: PathBuf,
        /// The type found.
        found: String,
    },
    /// A conversion cannot be done.
    #[error("{}: {problem}", path.display())]
    Convert {
        /// The source, the target, or the file at fault.
        path: PathBuf,
        /// Expected and found, and what to do.
        problem: String,
    },
    /// The directory to be written exists.
    #[error("{}: exists already; give another directory, or --force to replace it", path.display())]
    TargetExists {
        /// The directory.
        path: PathBuf,
    },
    /// The disk is full, or would be.
    #[error(
        "{}: no space left: {needed} bytes needed in all, {} available; nothing was kept",
        path.display(), available.map_or("an unknown number".into(), |bytes| bytes.to_string())
    )]
    NoSpace {
        /// The file, or the directory when it was known beforehand.
        path: PathBuf,
        /// Bytes of everything that was to be written.
        needed: u64,
        /// Bytes that could still be written.
        available: Option<u64>,
    },
    /// The caller ended it.
    #[error("{what}: interrupted; nothing was kept")]
    Interrupted {
        /// What was going on.
        what: String,
    },
}
