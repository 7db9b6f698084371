//! Number formats a weight can be stored in, and the borrowed host form in which a backend receives one.
//!
//! Nothing here does arithmetic: [`WeightFormat`] says how bytes are to be read, [`HostWeight`] carries them (usually
//! slices of a memory-mapped file) from the checkpoint to a backend without a copy.

use std::sync::Arc;

use bytes::Bytes;

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// Unsigned bytes: scales of the float quantisation modes.
    U8,
    /// Packed quantised codes.
    U32,
    /// Signed 32-bit integers (index lists).
    I32,
    /// Signed 64-bit integers (index lists).
    I64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::U32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }

    /// The name safetensors gives it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::F16 => "F16",
            DType::U8 => "U8",
            DType::U32 => "U32",
            DType::I32 => "I32",
            DType::I64 => "I64",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How MLX stores a quantised matrix (specs: gemma4.md §4).
///
/// In every mode a row is one little-endian bit stream of codes, least significant bit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// `w = code * scale + bias`, unsigned codes of 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128.
    Affine {
        /// Bits of a code.
        bits: u8,
        /// Values that share a scale and a bias.
        group: u16,
    },
    /// E2M1 elements, groups of 32 sharing a power of two (E8M0).
    Mxfp4,
    /// E4M3 elements, groups of 32 sharing a power of two (E8M0).
    Mxfp8,
    /// E2M1 elements, groups of 16 sharing an E4M3 scale.
    Nvfp4,
}

impl QuantFormat {
    /// Bits of one code.
    pub const fn bits(self) -> usize {
        match self {
            QuantFormat::Affine { bits, .. } => bits as usize,
            QuantFormat::Mxfp4 | QuantFormat::Nvfp4 => 4,
            QuantFormat::Mxfp8 => 8,
        }
    }

    /// Values that share a scale.
    pub const fn group(self) -> usize {
        match self {
            QuantFormat::Affine { group, .. } => group as usize,
            QuantFormat::Mxfp4 | QuantFormat::Mxfp8 => 32,
            QuantFormat::Nvfp4 => 16,
        }
    }

    /// The name MLX gives the mode.
    pub const fn mode(self) -> &'static str {
        match self {
            QuantFormat::Affine { .. } => "affine",
            QuantFormat::Mxfp4 => "mxfp4",
            QuantFormat::Mxfp8 => "mxfp8",
            QuantFormat::Nvfp4 => "nvfp4",
        }
    }

    /// True when the format has a `biases` tensor.
    pub const fn has_biases(self) -> bool {
        matches!(self, QuantFormat::Affine { .. })
    }
}

impl std::fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QuantFormat::Affine { bits, group } => write!(f, "affine {bits}-bit group {group}"),
            other => f.write_str(other.mode()),
        }
    }
}

/// Storage of a matrix: plain floats, or quantised codes with their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Plain floats ([`DType::F32`], [`DType::Bf16`] or [`DType::F16`]).
    Float(DType),
    /// Codes with scales of the given type ([`DType::U8`] for the float modes) and, for affine, biases of the same.
    Quant(QuantFormat, DType),
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WeightFormat::Float(dtype) => dtype.fmt(f),
            WeightFormat::Quant(format, _) => format.fmt(f),
        }
    }
}

/// A matrix `[experts, outputs, inputs]` as it lies in the file; `experts` is 1 for an ordinary linear.
///
/// The three byte ranges are reference-counted slices and may be unaligned. Whoever builds one guarantees the lengths:
/// `data` holds [`HostWeight::rows`] rows of `inputs * bits / 8` bytes, `scales` and `biases` one element a group.
#[derive(Clone, Debug)]
pub struct HostWeight {
    /// Checkpoint name of the module, for messages.
    pub name: String,
    /// Number of stacked matrices.
    pub experts: usize,
    /// Rows of one matrix.
    pub outputs: usize,
    /// Columns of one matrix.
    pub inputs: usize,
    /// Rows from the start of one matrix of a stack to the next: `outputs`, or more when another matrix lies between.
    pub stride: usize,
    /// How the bytes are read.
    pub format: WeightFormat,
    /// Codes or floats.
    pub data: Bytes,
    /// Scales (empty for plain floats).
    pub scales: Bytes,
    /// Biases (empty unless affine).
    pub biases: Bytes,
    /// Where the bytes come from.
    pub source: Source,
}

/// Memory that can be had again: a mapped file.
pub trait Pages: Send + Sync {
    /// Lets go of the memory of `part`, which lies in these pages, and of what shares its pages; reading it fetches it again. A part
    /// of other memory is left alone.
    fn unused(&self, part: &[u8]);
}

/// Who keeps a weight's bytes, so that a backend with a copy of its own can say that it is done with them.
#[derive(Clone, Default)]
pub struct Source(Option<Arc<dyn Pages>>);

impl Source {
    /// Bytes of these pages.
    pub fn of(pages: Arc<dyn Pages>) -> Self {
        Source(Some(pages))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "pages" } else { "memory" })
    }
}

impl HostWeight {
    /// Says that the bytes will hardly be read any more. They stay readable.
    pub fn unused(&self) {
        if let Some(pages) = &self.source.0 {
            [&self.data, &self.scales, &self.biases].into_iter().for_each(|part| pages.unused(part));
        }
    }

    /// The same of some stored rows.
    pub fn rows_unused(&self, rows: std::ops::Range<usize>) {
        if let Some(pages) = &self.source.0 {
            for (part, bytes) in [(&self.data, self.row_bytes()), (&self.scales, self.scale_row_bytes())] {
                if let Some(part) = part.get(rows.start * bytes..rows.end * bytes) {
                    pages.unused(part);
                }
            }
        }
    }

    /// Stored rows from the first of the first matrix to the last of the last.
    pub fn rows(&self) -> usize {
        (self.experts - 1) * self.stride + self.outputs
    }

    /// Bytes that a pass over the whole weight reads.
    pub fn byte_len(&self) -> usize {
        let scales = if self.biases.is_empty() { 1 } else { 2 } * self.scale_row_bytes();
        self.experts * self.outputs * (self.row_bytes() + scales)
    }

    /// Bytes of one row of `scales`, and of `biases` where there are some.
    pub fn scale_row_bytes(&self) -> usize {
        match self.format {
            WeightFormat::Float(_) => 0,
            WeightFormat::Quant(format, scale_type) => self.inputs / format.group() * scale_type.size(),
        }
    }

    /// Bytes of one row of `data`.
    pub fn row_bytes(&self) -> usize {
        match self.format {
            WeightFormat::Float(dtype) => self.inputs * dtype.size(),
            WeightFormat::Quant(format, _) => self.inputs * format.bits() / 8,
        }
    }
}
