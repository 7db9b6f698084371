//! GGUF files: llama.cpp's single-file checkpoints, read as if they were Hugging Face directories.
//!
//! [`Gguf::open`] maps a file and checks all of its header. Names, configuration and tokenizer files are those of the
//! original checkpoint: what llama.cpp's converter did to them (rows of q and k reordered, 1 added to Gemma's norms,
//! spaces respelled) is undone. Weights come out in single precision, row by row; only quantisation is not undone.

mod config;
pub mod dequant;
pub mod error;
pub mod header;
mod names;
mod rope;
#[doc(hidden)]
pub mod testing;
mod tokenizer;
mod types;
mod value;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{CheckpointError, Result};
use crate::mmap;

pub use dequant::dequantize;
pub use error::GgufError;
pub use header::{GgufTensor, Header, Metadata};
pub use types::GgmlType;
pub use value::{Array, Value};

use names::{Architecture, Change, Heads, Target};

/// An opened, checked file.
#[derive(Clone, Debug)]
pub struct Gguf {
    path: Arc<Path>,
    bytes: Bytes,
    header: Header,
    architecture: Architecture,
    /// Where each tensor belongs; `None` for unknown names.
    targets: Vec<Option<Target>>,
}

impl Gguf {
    /// Maps a file and checks its header; no page of tensor data is touched.
    ///
    /// The file must not be changed in place while it is open (as for every mapped file).
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_bytes(path, mmap::map(path)?)
    }

    /// As [`open`](Self::open), of bytes in memory; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: impl Into<Bytes>) -> Result<Self> {
        let bytes = bytes.into();
        let wrap = |source| CheckpointError::Gguf { path: path.to_path_buf(), source };
        let header = header::parse(&bytes).map_err(wrap)?;
        let metadata = &header.metadata;
        if let Some(parts) = metadata.get("split.count").and_then(Value::as_u64).filter(|parts| *parts > 1) {
            return Err(wrap(GgufError::Split { parts }));
        }
        let architecture = Architecture::of(metadata).map_err(wrap)?;
        let heads = Heads::read(architecture, metadata).map_err(wrap)?;
        let blocks = names::required_size(metadata, &architecture.key("block_count")).map_err(wrap)?;
        let mut targets = Vec::with_capacity(header.tensors.len());
        for tensor in &header.tensors {
            let target = names::target(architecture, &heads, blocks, &tensor.name);
            check_heads(tensor, target.as_ref()).map_err(wrap)?;
            targets.push(target);
        }
        Ok(Self { path: path.into(), bytes, header, architecture, targets })
    }

    fn wrap(&self, source: GgufError) -> CheckpointError {
        CheckpointError::Gguf { path: self.path.to_path_buf(), source }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a metadata key.
    pub fn metadata(&self, key: &str) -> Option<&Value> {
        self.header.metadata.get(key)
    }

    /// The checked header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// `general.architecture`, one of the supported ones.
    pub fn architecture(&self) -> &str {
        self.architecture.name()
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.header.tensors
    }

    fn tensor(&self, index: usize) -> Result<&GgufTensor> {
        self.header.tensors.get(index).ok_or_else(|| {
            let problem = format!("there are {} tensors", self.header.tensors.len());
            self.wrap(GgufError::Tensor { tensor: format!("number {index}"), problem })
        })
    }

    /// Appends rows of a tensor to `out`, in the order and with the values of the original checkpoint. Rows run over
    /// the flattened leading dimensions; a vector is one row.
    pub fn read_rows(&self, tensor: usize, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let entry = self.tensor(tensor)?;
        if rows.start > rows.end || rows.end > entry.rows() {
            let problem = format!("rows {rows:?} asked for, there are {}", entry.rows());
            return Err(self.wrap(GgufError::Tensor { tensor: entry.name.clone(), problem }));
        }
        let change = match &self.targets[tensor] {
            Some(Target::Weight { change, .. }) => *change,
            Some(Target::Ignored) | None => Change::None,
        };
        let data = &self.bytes[entry.range.clone()];
        let start = out.len();
        out.reserve(rows.len() * entry.width());
        let row_bytes = |rows: Range<usize>| &data[rows.start * entry.row_bytes()..rows.end * entry.row_bytes()];
        match change {
            Change::PairedRows { head_dim } if entry.shape.len() > 1 => {
                for row in rows {
                    let row = paired(row, head_dim);
                    dequantize(entry.kind, row_bytes(row..row + 1), out);
                }
            }
            Change::PairedRows { head_dim } => {
                let mut values = Vec::with_capacity(entry.width());
                dequantize(entry.kind, row_bytes(rows), &mut values);
                out.extend((0..values.len()).map(|row| values[paired(row, head_dim)]));
            }
            Change::None | Change::PlusOne => dequantize(entry.kind, row_bytes(rows), out),
        }
        if change == Change::PlusOne {
            out[start..].iter_mut().for_each(|value| *value -= 1.0);
        }
        Ok(())
    }

    /// The name of a tensor in the original checkpoint, such as `model.layers.0.self_attn.q_proj.weight`; `None` for one
    /// that is no weight. A name that no model of the architecture has is an error.
    pub fn hf_name(&self, tensor: usize) -> Result<Option<String>> {
        let entry = self.tensor(tensor)?;
        match &self.targets[tensor] {
            Some(Target::Weight { name, .. }) => Ok(Some(name.clone())),
            Some(Target::Ignored) => Ok(None),
            None => Err(self.wrap(GgufError::UnknownTensor {
                tensor: value::shorten(&entry.name),
                architecture: self.architecture.name(),
            })),
        }
    }

    /// `config.json` as transformers writes it. Every tensor that it implies is checked to be there.
    pub fn config(&self) -> Result<serde_json::Value> {
        let table = self.tensors().iter().position(|tensor| tensor.name == rope::TABLE);
        let factors = table.map(|tensor| self.rope_factors(tensor)).transpose()?;
        config::config(self.architecture, &self.header, factors.as_deref()).map_err(|source| self.wrap(source))
    }

    /// The elements of a tensor that must be a table of rotary factors.
    fn rope_factors(&self, tensor: usize) -> Result<Vec<f32>> {
        let entry = self.tensor(tensor)?;
        Heads::read(self.architecture, &self.header.metadata)
            .and_then(|heads| rope::check_table(entry, heads.dim))
            .map_err(|source| self.wrap(source))?;
        let mut factors = Vec::new();
        self.read_rows(tensor, 0..entry.rows(), &mut factors).map(|()| factors)
    }

    /// The checkpoint's other files, by name: `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`, and
    /// `chat_template.jinja` where there is a template.
    pub fn text_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        tokenizer::files(self.architecture, &self.header.metadata).map_err(|source| self.wrap(source))
    }
}

/// Fails unless a tensor whose rows are reordered by heads consists of whole heads.
fn check_heads(tensor: &GgufTensor, target: Option<&Target>) -> Result<(), GgufError> {
    let Some(Target::Weight { change: Change::PairedRows { head_dim }, .. }) = target else { return Ok(()) };
    let rows = if tensor.shape.len() > 1 { tensor.rows() } else { tensor.width() };
    if rows.is_multiple_of(*head_dim) {
        return Ok(());
    }
    let problem = format!("{rows} rows, expected a multiple of {head_dim}, the size of a head");
    Err(GgufError::Tensor { tensor: tensor.name.clone(), problem })
}

/// Where the converter put a row of q or k: row `half * head_dim / 2 + i` of a head became row `2 i + half`, so that the
/// elements which rotate together are neighbours.
fn paired(row: usize, head_dim: usize) -> usize {
    let (head, row) = (row / head_dim, row % head_dim);
    let (half, i) = (row / (head_dim / 2), row % (head_dim / 2));
    head * head_dim + 2 * i + half
}

#[cfg(test)]
mod tests {
    use super::paired;

    /// The converter's own words: `reshape(heads, 2, dim / 2, …).swapaxes(1, 2)`.
    #[test]
    fn paired_rows_invert_the_converter() {
        for (heads, dim) in [(1, 2), (3, 4), (2, 64), (5, 10)] {
            let mut converted = Vec::new();
            for head in 0..heads {
                for i in 0..dim / 2 {
                    for half in 0..2 {
                        converted.push(head * dim + half * (dim / 2) + i);
                    }
                }
            }
            let back: Vec<usize> = (0..heads * dim).map(|row| converted[paired(row, dim)]).collect();
            assert_eq!(back, (0..heads * dim).collect::<Vec<_>>(), "{heads} heads of {dim}");
        }
    }
}
