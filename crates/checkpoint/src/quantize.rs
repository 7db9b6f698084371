//! MLX's affine quantiser: the same codes, scales and biases that its converter writes.

use bytes::Bytes;
use half::{bf16, f16};
use mlxcel_compute::format::{DType, HostWeight, QuantFormat, Source, WeightFormat};

use crate::quantization::{AFFINE_BITS, AFFINE_GROUPS};

/// A quantised matrix, rows one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineRows {
    /// Bits of a code.
    pub bits: u8,
    /// Values that share a scale and a bias.
    pub group: u16,
    /// Values of one row.
    pub inputs: usize,
    /// Codes: each row one little-endian bit stream in `inputs * bits / 32` words.
    pub words: Vec<u32>,
    /// One a group.
    pub scales: Vec<f32>,
    /// One a group.
    pub biases: Vec<f32>,
}

/// Smallest step, so that a constant group does not divide by zero.
const SMALLEST_STEP: f32 = 1e-7;

/// Quantises rows of `inputs` values each.
///
/// Of each group, the end of larger magnitude is met exactly and so is zero when it lies inside: the step is adjusted so
/// that the edge is a whole number of steps from zero. It is negative when the edge is the maximum.
///
/// # Panics
/// If `bits` or `group` is not one that MLX stores, or the lengths do not divide.
pub fn quantize_affine(values: &[f32], inputs: usize, bits: u8, group: u16) -> AffineRows {
    assert!(AFFINE_BITS.contains(&bits), "{bits} bits");
    assert!(AFFINE_GROUPS.contains(&group), "group of {group}");
    assert!(inputs > 0 && inputs.is_multiple_of(usize::from(group)), "{inputs} inputs in groups of {group}");
    assert!(values.len().is_multiple_of(inputs), "{} values in rows of {inputs}", values.len());
    let mut out = AffineRows { bits, group, inputs, words: Vec::new(), scales: Vec::new(), biases: Vec::new() };
    let highest = f32::from(((1u16 << bits) - 1) as u8);
    for row in values.chunks_exact(inputs) {
        let mut stream = BitStream::default();
        for group in row.chunks_exact(usize::from(group)) {
            let (scale, bias) = scale_and_bias(group, highest);
            out.scales.push(scale);
            out.biases.push(bias);
            for value in group {
                let code = ((value - bias) / scale).round_ties_even().clamp(0.0, highest);
                stream.push(code as u32, bits, &mut out.words);
            }
        }
    }
    out
}

fn scale_and_bias(group: &[f32], highest: f32) -> (f32, f32) {
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = ((high - low) / highest).max(SMALLEST_STEP);
    let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
    let whole = (edge / step).round_ties_even();
    if whole == 0.0 { (step, 0.0) } else { (edge / whole, edge) }
}

/// Packs codes least significant bit first. A row is a whole number of words, so nothing is left at its end.
#[derive(Default)]
struct BitStream {
    pending: u64,
    filled: u32,
}

impl BitStream {
    fn push(&mut self, code: u32, bits: u8, words: &mut Vec<u32>) {
        self.pending |= u64::from(code) << self.filled;
        self.filled += u32::from(bits);
        if self.filled >= 32 {
            words.push(self.pending as u32);
            self.pending >>= 32;
            self.filled -= 32;
        }
    }
}

impl AffineRows {
    /// The matrix as a checkpoint would hand it out, its scales and biases rounded to `dtype`.
    ///
    /// # Panics
    /// If `dtype` is not a float type or the rows do not divide into `experts`.
    pub fn into_host_weight(self, name: &str, experts: usize, dtype: DType) -> HostWeight {
        let words_a_row = self.inputs * usize::from(self.bits) / 32;
        let rows = self.words.len() / words_a_row;
        assert!(experts > 0 && rows.is_multiple_of(experts), "{rows} rows for {experts} experts");
        HostWeight {
            name: name.into(),
            experts,
            outputs: rows / experts,
            inputs: self.inputs,
            stride: rows / experts,
            format: WeightFormat::Quant(QuantFormat::Affine { bits: self.bits, group: self.group }, dtype),
            data: self.words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            scales: encode_floats(&self.scales, dtype),
            biases: encode_floats(&self.biases, dtype),
            source: Source::default(),
        }
    }
}

/// Floats as little-endian bytes of a float type, rounded to nearest even.
///
/// # Panics
/// If `dtype` is not a float type.
pub fn encode_floats(values: &[f32], dtype: DType) -> Bytes {
    match dtype {
        DType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        other => panic!("{other} is not a float type"),
    }
}
