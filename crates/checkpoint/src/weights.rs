//! A typed reader of a checkpoint's tensors that remembers what was read.
//!
//! A model asks for every tensor by name and size; a missing or ill-shaped one is an error at once, and one that nobody
//! asked for is an error at the end ([`Weights::finish`]). So a checkpoint either matches the model exactly or is refused.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use half::{bf16, f16};
use mlxcel_compute::format::{DType, HostWeight, QuantFormat, WeightFormat};

use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, Result};
use crate::safetensors::Tensor;

/// Where the text stack may live: MLX files, wrapper files of transformers, text-only files.
pub const TEXT_PREFIXES: [&str; 3] = ["language_model.model.", "model.language_model.", "model."];

const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// How many left-over tensors a message names.
const NAMED_LEFT_OVERS: usize = 5;

/// Order of a convolution's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvLayout {
    /// `[channels, 1, taps]`.
    Transformers,
    /// `[channels, taps, 1]`.
    Mlx,
}

/// Tensors under a name prefix. Readers made from one another share the record of what was taken.
#[derive(Clone, Debug)]
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
    taken: Arc<Mutex<HashSet<String>>>,
}

impl<'a> Weights<'a> {
    /// A reader with a fixed prefix (empty, or ending in a dot).
    pub fn new(checkpoint: &'a Checkpoint, prefix: &str) -> Self {
        Self { checkpoint, prefix: prefix.into(), taken: Arc::default() }
    }

    /// A reader at the text stack, wherever this file keeps it ([`TEXT_PREFIXES`]).
    pub fn detect(checkpoint: &'a Checkpoint) -> Result<Self> {
        const PROBE: &str = "embed_tokens.weight";
        for prefix in TEXT_PREFIXES {
            if checkpoint.has(&format!("{prefix}{PROBE}")) {
                return Ok(Self::new(checkpoint, prefix));
            }
        }
        Err(CheckpointError::MissingTensor {
            dir: checkpoint.dir().into(),
            tensor: PROBE.into(),
            note: format!(" under any of the prefixes {}", TEXT_PREFIXES.join(", ")),
        })
    }

    /// A reader below this one: `sub("layers.0.")`.
    pub fn sub(&self, suffix: &str) -> Self {
        self.at(&format!("{}{suffix}", self.prefix))
    }

    /// A reader at another prefix, counted from the root, with the same record of what was taken.
    pub fn at(&self, prefix: &str) -> Self {
        Self { checkpoint: self.checkpoint, prefix: prefix.into(), taken: self.taken.clone() }
    }

    /// The prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// True when a tensor of that name exists below the prefix.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.has(&format!("{}{name}", self.prefix))
    }

    /// Any tensor as it is.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let full = format!("{}{name}", self.prefix);
        let tensor = self.checkpoint.get(&full)?;
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(full);
        Ok(tensor)
    }

    /// The matrix `[outputs, inputs]` of the module `name` (without `.weight`), plain or quantised.
    pub fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<HostWeight> {
        self.matrix(name, &[outputs, inputs])
    }

    /// Stacked matrices `[experts, outputs, inputs]` of the module `name`. The tensor may be called `<name>.weight` (MLX)
    /// or `<name>` alone (transformers).
    pub fn experts(&self, name: &str, experts: usize, outputs: usize, inputs: usize) -> Result<HostWeight> {
        self.matrix(name, &[experts, outputs, inputs])
    }

    /// Gate and up matrices, each `[experts, outputs, inputs]`, out of the fused `[experts, 2 * outputs, inputs]` of
    /// transformers' files (gate first): two views of the same bytes.
    pub fn fused_experts(
        &self,
        name: &str,
        experts: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<(HostWeight, HostWeight)> {
        let fused = self.matrix(name, &[experts, outputs.saturating_mul(2), inputs])?;
        let rows = fused.rows() - outputs;
        let half = |which: usize| {
            let part = |bytes: &Bytes, row: usize| bytes.slice(which * outputs * row..(which * outputs + rows) * row);
            let scale_row = fused.scale_row_bytes();
            HostWeight {
                name: format!("{}.{}", fused.name, ["gate", "up"][which]),
                outputs,
                data: part(&fused.data, fused.row_bytes()),
                scales: if fused.scales.is_empty() { Bytes::new() } else { part(&fused.scales, scale_row) },
                biases: if fused.biases.is_empty() { Bytes::new() } else { part(&fused.biases, scale_row) },
                ..fused.clone()
            }
        };
        Ok((half(0), half(1)))
    }

    /// The output matrix of an untied model, wherever the file keeps it.
    pub fn lm_head(&self, outputs: usize, inputs: usize) -> Result<HostWeight> {
        for prefix in ["", "language_model.", "model.language_model."] {
            let root = self.at(prefix);
            if root.has("lm_head.weight") {
                return root.linear("lm_head", outputs, inputs);
            }
        }
        Err(CheckpointError::MissingTensor {
            dir: self.checkpoint.dir().into(),
            tensor: "lm_head.weight".into(),
            note: ": tie_word_embeddings is false, so the output matrix must be in the file".into(),
        })
    }

    /// A float vector by the tensor's whole name (`input_layernorm.weight`, `router.scale`), as f32.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        tensor.expect_dtype(&FLOATS)?;
        tensor.expect_shape(&[len])?;
        Ok(floats(&tensor))
    }

    /// Taps of a depthwise causal convolution, `[taps, channels]`, the oldest row's first. Files of transformers have them as
    /// `[channels, 1, taps]`, MLX's as `[channels, taps, 1]`.
    pub fn taps(&self, name: &str, channels: usize, taps: usize, layout: ConvLayout) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        tensor.expect_dtype(&FLOATS)?;
        match layout {
            ConvLayout::Transformers => tensor.expect_shape(&[channels, 1, taps])?,
            ConvLayout::Mlx => tensor.expect_shape(&[channels, taps, 1])?,
        }
        let values = floats(&tensor);
        Ok((0..taps).flat_map(|j| values.iter().skip(j).step_by(taps).copied()).collect())
    }

    /// How a convolution's tensor lies, by its last axis; `None` when there is no such tensor of three axes.
    pub fn conv_layout(&self, name: &str) -> Option<ConvLayout> {
        let tensor = self.checkpoint.get(&format!("{}{name}", self.prefix)).ok()?;
        let last = (tensor.shape.len() == 3).then(|| tensor.shape[2])?;
        Some(if last == 1 { ConvLayout::Mlx } else { ConvLayout::Transformers })
    }

    /// A single float, stored as `[1]` or as a scalar.
    pub fn scalar(&self, name: &str) -> Result<f32> {
        let tensor = self.tensor(name)?;
        tensor.expect_dtype(&FLOATS)?;
        if !tensor.shape.is_empty() {
            tensor.expect_shape(&[1])?;
        }
        Ok(floats(&tensor)[0])
    }

    /// A list of integers (I32 or I64).
    pub fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>> {
        let tensor = self.tensor(name)?;
        tensor.expect_dtype(&[DType::I32, DType::I64])?;
        tensor.expect_shape(&[len])?;
        Ok(match tensor.dtype {
            DType::I32 => chunks(&tensor.data).map(|bytes| i32::from_le_bytes(bytes).into()).collect(),
            _ => chunks(&tensor.data).map(i64::from_le_bytes).collect(),
        })
    }

    /// Fails when a tensor of the checkpoint was neither taken nor is one that `ignore` accepts by its whole name.
    pub fn finish(&self, ignore: impl Fn(&str) -> bool) -> Result<()> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = || self.checkpoint.names().filter(|name| !taken.contains(*name) && !ignore(name));
        let count = left().count();
        if count == 0 {
            return Ok(());
        }
        Err(CheckpointError::LeftOver {
            dir: self.checkpoint.dir().into(),
            count,
            names: left().take(NAMED_LEFT_OVERS).map(String::from).collect(),
        })
    }

    /// `dims` is `[outputs, inputs]` or `[experts, outputs, inputs]`.
    fn matrix(&self, name: &str, dims: &[usize]) -> Result<HostWeight> {
        let module = format!("{}{name}", self.prefix);
        let weight_name = format!("{name}.weight");
        let bare = dims.len() == 3 && !self.has(&weight_name) && self.has(name);
        let weight = self.tensor(if bare { name } else { &weight_name })?;
        let (&inputs, rows) = dims.split_last().expect("two or three dimensions");
        let (format, scales, biases) = if self.has(&format!("{name}.scales")) {
            self.quantised(name, &module, &weight, rows, inputs)?
        } else {
            self.expect_plain(&module, &weight)?;
            weight.expect_shape(dims)?;
            (WeightFormat::Float(weight.dtype), Bytes::new(), Bytes::new())
        };
        Ok(HostWeight {
            name: module,
            experts: if rows.len() == 2 { rows[0] } else { 1 },
            outputs: rows[rows.len() - 1],
            inputs,
            stride: rows[rows.len() - 1],
            format,
            data: weight.data,
            scales,
            biases,
            source: weight.source,
        })
    }

    fn quantised(
        &self,
        name: &str,
        module: &str,
        weight: &Tensor,
        rows: &[usize],
        inputs: usize,
    ) -> Result<(WeightFormat, Bytes, Bytes)> {
        let scales = self.tensor(&format!("{name}.scales"))?;
        let format = self.checkpoint.quantization().resolve(module, weight, &scales, inputs)?;
        let shape = |columns: usize| rows.iter().copied().chain([columns]).collect::<Vec<_>>();
        // Cannot overflow: the format was found to fit these very shapes.
        weight.expect_shape(&shape(inputs * format.bits() / 32))?;
        scales.expect_shape(&shape(inputs / format.group()))?;
        let biases = match format {
            QuantFormat::Affine { .. } => {
                let biases = self.tensor(&format!("{name}.biases"))?;
                biases.expect_dtype(&[scales.dtype])?;
                biases.expect_shape(&scales.shape)?;
                biases.data
            }
            // A `biases` tensor of a float mode stays untaken and is reported as left over.
            _ => Bytes::new(),
        };
        Ok((WeightFormat::Quant(format, scales.dtype), scales.data, biases))
    }

    /// A weight without scales must be floats; codes whose scales are lost deserve their own words.
    fn expect_plain(&self, module: &str, weight: &Tensor) -> Result<()> {
        if weight.dtype == DType::U32 {
            return Err(CheckpointError::MissingTensor {
                dir: self.checkpoint.dir().into(),
                tensor: format!("{module}.scales"),
                note: format!(", expected beside {} of dtype U32 (quantised codes)", weight.name),
            });
        }
        weight.expect_dtype(&FLOATS)
    }
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype {
        DType::F32 => chunks(&tensor.data).map(f32::from_le_bytes).collect(),
        DType::Bf16 => chunks(&tensor.data).map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        DType::F16 => chunks(&tensor.data).map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        other => unreachable!("{other} was refused before"),
    }
}
