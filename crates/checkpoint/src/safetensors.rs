//! One safetensors file, mapped and checked.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mlxcel_compute::format::{DType, Source};

use crate::error::{CheckpointError, Result};
use crate::header::{Entry, Header, StoredDType, parse_header};
use crate::mmap;

/// A tensor whose bytes lie in a mapped file; cloning copies no data.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// The elements, little-endian, not necessarily aligned.
    pub data: Bytes,
    /// The file, for messages.
    pub file: Arc<Path>,
    /// Its pages.
    pub source: Source,
}

impl Tensor {
    /// Fails unless the shape is `expected`.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<()> {
        if self.shape == expected {
            return Ok(());
        }
        Err(CheckpointError::TensorShape {
            file: self.file.to_path_buf(),
            tensor: self.name.clone(),
            expected: expected.to_vec(),
            found: self.shape.clone(),
        })
    }

    /// Fails unless the element type is one of `expected`.
    pub fn expect_dtype(&self, expected: &[DType]) -> Result<()> {
        if expected.contains(&self.dtype) {
            return Ok(());
        }
        let names: Vec<_> = expected.iter().map(|dtype| dtype.name()).collect();
        Err(CheckpointError::TensorDType {
            file: self.file.to_path_buf(),
            tensor: self.name.clone(),
            expected: names.join(" or "),
            found: self.dtype.name().into(),
        })
    }
}

/// A mapped file with its checked header.
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    path: Arc<Path>,
    bytes: Bytes,
    pages: Source,
    header: Header,
}

impl SafetensorsFile {
    /// Maps a file and checks its header; no page of weight data is touched.
    ///
    /// The file must not be changed in place while it is open (as for every mapped file).
    pub fn open(path: &Path) -> Result<Self> {
        let (bytes, pages) = mmap::map_pages(path)?;
        let header =
            parse_header(&bytes).map_err(|source| CheckpointError::Header { path: path.to_path_buf(), source })?;
        Ok(Self { path: path.into(), bytes, pages, header })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tensors in the order of their bytes.
    pub fn entries(&self) -> &[Entry] {
        &self.header.entries
    }

    /// The checked header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The tensor of the entry at `index`; fails when its element type is not one the engine reads.
    ///
    /// # Panics
    /// If `index` is not below the number of entries.
    pub fn tensor(&self, index: usize) -> Result<Tensor> {
        let entry = &self.header.entries[index];
        let dtype = match &entry.dtype {
            StoredDType::Supported(dtype) => *dtype,
            StoredDType::Other(name) => {
                return Err(CheckpointError::TensorDType {
                    file: self.path.to_path_buf(),
                    tensor: entry.name.clone(),
                    expected: "F32, BF16, F16, U8, U32, I32 or I64".into(),
                    found: name.clone(),
                });
            }
        };
        Ok(Tensor {
            name: entry.name.clone(),
            dtype,
            shape: entry.shape.clone(),
            data: self.bytes.slice(entry.range.clone()),
            file: self.path.clone(),
            source: self.pages.clone(),
        })
    }
}
