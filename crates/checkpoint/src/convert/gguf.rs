//! A GGUF file as a source.

use std::ops::Range;
use std::path::{Path, PathBuf};

use mlxcel_compute::format::DType;
use serde_json::Value;

use super::source::{Companion, Content, Source, SourceTensor, Stored};
use crate::error::Result;
use crate::gguf::{GgmlType, Gguf};

/// A GGUF file, under the names of the checkpoint that it was made from.
pub struct GgufSource {
    file: Gguf,
    config: Value,
    tensors: Vec<SourceTensor>,
    /// Of each tensor: its number in the file.
    numbers: Vec<usize>,
}

impl GgufSource {
    /// Opens and checks a file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::new(Gguf::open(path)?)
    }

    /// Of an opened file.
    pub fn new(file: Gguf) -> Result<Self> {
        let (mut tensors, mut numbers) = (Vec::new(), Vec::new());
        for (number, tensor) in file.tensors().iter().enumerate() {
            // Tables that the configuration speaks for.
            let Some(name) = file.hf_name(number)? else { continue };
            let stored = match tensor.kind {
                GgmlType::F32 => Stored::Float(DType::F32),
                GgmlType::F16 => Stored::Float(DType::F16),
                GgmlType::Bf16 => Stored::Float(DType::Bf16),
                kind => Stored::Blocks(kind.name().into()),
            };
            // Rows are whole blocks: checked when the file was opened.
            let blocks = tensor.rows() * (tensor.width() / tensor.kind.block_elements());
            tensors.push(SourceTensor {
                name,
                shape: tensor.shape.clone(),
                stored,
                bytes: (blocks * tensor.kind.block_bytes()) as u64,
                file: file.path().into(),
            });
            numbers.push(number);
        }
        Ok(Self { config: file.config()?, file, tensors, numbers })
    }
}

impl Source for GgufSource {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn config_file(&self) -> PathBuf {
        self.file.path().into()
    }

    fn config(&self) -> &Value {
        &self.config
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    /// One type for all, since converters keep vectors in f32 whatever the matrices have: that of most of the float
    /// matrices' bytes, and f16, the type of the blocks' scales, when the matrices are quantised.
    fn default_dtype(&self) -> Option<DType> {
        let bytes = |dtype: Option<DType>| -> u64 {
            let counted = self.tensors.iter().filter(|tensor| match tensor.stored {
                Stored::Float(found) => dtype == Some(found),
                _ => dtype.is_none(),
            });
            counted.filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.bytes).sum()
        };
        if bytes(None) > 0 {
            return Some(DType::F16);
        }
        [DType::F16, DType::Bf16, DType::F32].into_iter().max_by_key(|dtype| bytes(Some(*dtype)))
    }

    fn read_rows(&self, tensor: usize, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        self.file.read_rows(self.numbers[tensor], rows, out)
    }

    fn companions(&self) -> Result<(Vec<Companion>, Vec<String>)> {
        let files = self.file.text_files()?.into_iter();
        Ok((files.map(|(name, bytes)| Companion { name, content: Content::Bytes(bytes) }).collect(), Vec::new()))
    }
}
