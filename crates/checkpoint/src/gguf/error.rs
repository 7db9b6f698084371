//! What can be wrong with a GGUF file. The file itself is named by the [`CheckpointError`](crate::CheckpointError)
//! around it.

/// A reason why a GGUF file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file begins with something else.
    #[error("not a GGUF file: begins with {found}, expected \"GGUF\"{hint}")]
    NotGguf {
        /// The first bytes.
        found: String,
        /// What it may be instead; empty, or begins with a separator.
        hint: &'static str,
    },
    /// A pointer that `git lfs` never replaced.
    #[error("this is a Git LFS pointer, not the model itself; fetch the file with git lfs or download again")]
    LfsPointer,
    /// All numbers are in the other byte order.
    #[error(
        "this GGUF file is big-endian; only little-endian files are supported: convert it with gguf_convert_endian of \
         the gguf package, or download a little-endian file"
    )]
    BigEndian,
    /// A version that is not read here.
    #[error("GGUF version {found}, expected 2 or 3; convert the model again with a current llama.cpp")]
    Version {
        /// The version field.
        found: u32,
    },
    /// The file ends inside its header.
    #[error("truncated GGUF file: {what} ends at byte {expected}, the file has {found}; download again")]
    Truncated {
        /// The part that is cut.
        what: String,
        /// Where that part ends.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// A count of things that cannot be in what is left of the file.
    #[error(
        "damaged GGUF file: {what} is {count}, but the rest of the file has room for at most {most}; download again"
    )]
    Count {
        /// The count's name.
        what: String,
        /// Its value.
        count: u64,
        /// The most that fit.
        most: u64,
    },
    /// An entry of the metadata cannot be read.
    #[error("damaged GGUF file: {what}: {problem}")]
    Metadata {
        /// The key, or which entry it is.
        what: String,
        /// Expected and found.
        problem: String,
    },
    /// A metadata value is absent or unusable.
    #[error("metadata {key} is {found}, expected {expected}")]
    Field {
        /// The key.
        key: String,
        /// What would do.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The description of a tensor contradicts itself, another, or the metadata.
    #[error("tensor {tensor}: {problem}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Expected and found.
        problem: String,
    },
    /// The file ends before a tensor does.
    #[error("truncated tensor {tensor}: expected {expected} bytes, found {found}; download again")]
    TruncatedTensor {
        /// The tensor.
        tensor: String,
        /// Bytes it takes.
        expected: u64,
        /// Bytes of it that are in the file.
        found: u64,
    },
    /// A storage type that cannot be dequantised here.
    #[error("tensor {tensor} has type {found}, expected one of {supported}")]
    Type {
        /// The tensor.
        tensor: String,
        /// The type, by name where it has one.
        found: String,
        /// The types that serve.
        supported: String,
    },
    /// A tensor that no model of this architecture has.
    #[error("tensor {tensor} is not known for architecture {architecture}")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A tensor that every model of this architecture has is absent.
    #[error("no tensor {tensor}, which architecture {architecture} needs; {hint}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: &'static str,
        /// What says so.
        hint: String,
    },
    /// One part of several.
    #[error(
        "this is one of {parts} parts of a split model; merge them first with llama-gguf-split --merge, then give the \
         merged file"
    )]
    Split {
        /// How many parts there are.
        parts: u64,
    },
    /// No import for this architecture.
    #[error("unsupported architecture {found:?}; supported: {supported}")]
    Architecture {
        /// `general.architecture`.
        found: String,
        /// Those that are supported.
        supported: String,
    },
    /// Something the architecture may have, but not here.
    #[error("{what} is not supported")]
    Unsupported {
        /// The feature, with the metadata or tensor that asks for it.
        what: String,
    },
}
