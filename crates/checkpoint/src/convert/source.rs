//! What is converted: float tensors by name, read in rows, and the files that go along.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mlxcel_compute::format::DType;
use serde_json::Value;

use super::gguf::GgufSource;
use super::hf::HfSource;
use crate::error::{CheckpointError, Result};

/// A tensor of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its name as transformers spells it (or as MLX does, in a float checkpoint of MLX's layout).
    pub name: String,
    /// Dimensions, slowest first; a row is the last one, a scalar one row of one value.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub stored: Stored,
    /// Bytes it takes in its file.
    pub bytes: u64,
    /// The file, for messages.
    pub file: PathBuf,
}

/// How a source stores a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Floats of this type, whose values rows give exactly.
    Float(DType),
    /// Blocks of a quantised kind that rows give decoded; the name of the kind.
    Blocks(String),
    /// Something that has no float rows; its name.
    Other(String),
}

impl SourceTensor {
    /// Values of a row.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of the leading dimensions.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, leading)| leading.iter().product())
    }
}

/// A file that goes along with the weights.
#[derive(Clone, Debug)]
pub struct Companion {
    /// Its name in the converted directory.
    pub name: String,
    /// Where its bytes come from.
    pub content: Content,
}

/// Bytes of a [`Companion`].
#[derive(Clone, Debug)]
pub enum Content {
    /// A file to copy.
    File(PathBuf),
    /// The bytes themselves.
    Bytes(Vec<u8>),
}

/// A checkpoint to convert. Opening one reads headers only.
pub trait Source: Sync {
    /// The directory or file.
    fn path(&self) -> &Path;

    /// What messages about the configuration name.
    fn config_file(&self) -> PathBuf;

    /// The configuration, as transformers writes `config.json`.
    fn config(&self) -> &Value;

    /// All tensors, in the order of their bytes.
    fn tensors(&self) -> &[SourceTensor];

    /// The type of floats to write when none is asked for; `None` = each tensor's own.
    fn default_dtype(&self) -> Option<DType> {
        None
    }

    /// Appends the rows of a tensor as f32. They must exist and the tensor must not be [`Stored::Other`].
    fn read_rows(&self, tensor: usize, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()>;

    /// Tokenizer, chat template and the like, and what is worth telling about those left out.
    fn companions(&self) -> Result<(Vec<Companion>, Vec<String>)>;
}

/// Opens a directory of safetensors or a GGUF file.
pub fn open(path: &Path) -> Result<Box<dyn Source>> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CheckpointError::Convert {
                path: path.into(),
                problem: "no such file or directory (expected a directory of safetensors or a .gguf file)".into(),
            });
        }
        Err(source) => return Err(CheckpointError::Io { path: path.into(), source }),
    };
    if metadata.is_dir() {
        return Ok(Box::new(HfSource::open(path)?));
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return Ok(Box::new(GgufSource::open(path)?));
    }
    Err(CheckpointError::Convert {
        path: path.into(),
        problem: "expected a directory (config.json, *.safetensors) or a .gguf file; give the directory of a \
                  safetensors file"
            .into(),
    })
}
