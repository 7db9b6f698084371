//! Random matrices in every stored format, as a checkpoint would hold them: packed, and at any byte offset.

use bytes::Bytes;

use super::rng::Rng;
use crate::{DType, HostWeight, QuantFormat, Source, WeightFormat};

/// Shape of a random matrix.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Stacked matrices.
    pub experts: usize,
    /// Rows of one.
    pub outputs: usize,
    /// Columns of one; a multiple of the format's group.
    pub inputs: usize,
}

/// A matrix of random codes with scales of either sign. Values have a spread of about 1 except in some rows of plain
/// floats, which are tiny (subnormal in f16). `offset` moves each byte range off its natural alignment.
///
/// # Panics
/// When the format cannot hold rows of that length.
pub fn random_weight(rng: &mut Rng, format: WeightFormat, shape: Shape, offset: usize) -> HostWeight {
    let rows = shape.experts * shape.outputs;
    let (data, scales, biases) = match format {
        WeightFormat::Float(dtype) => (floats(rng, dtype, rows, shape.inputs), Vec::new(), Vec::new()),
        WeightFormat::Quant(quant, scale_type) => {
            assert!(shape.inputs.is_multiple_of(quant.group()), "{format}: {} inputs", shape.inputs);
            let codes = (0..rows * shape.inputs * quant.bits() / 8).map(|_| code_byte(rng, quant)).collect();
            let (scales, biases) = scales(rng, quant, scale_type, rows * shape.inputs / quant.group());
            (codes, scales, biases)
        }
    };
    HostWeight {
        name: format!("random.{format}"),
        experts: shape.experts,
        outputs: shape.outputs,
        inputs: shape.inputs,
        stride: shape.outputs,
        format,
        data: at_offset(&data, offset),
        scales: at_offset(&scales, offset),
        biases: at_offset(&biases, offset),
        source: Source::default(),
    }
}

/// The bytes as a slice that starts `offset` bytes into its allocation.
fn at_offset(bytes: &[u8], offset: usize) -> Bytes {
    let mut padded = vec![0xa5; offset];
    padded.extend_from_slice(bytes);
    Bytes::from(padded).slice(offset..)
}

fn floats(rng: &mut Rng, dtype: DType, rows: usize, inputs: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows * inputs * dtype.size());
    for row in 0..rows {
        // 2^-18 makes binary16 values subnormal, which a conversion by shifting gets wrong.
        let spread = if row % 5 == 3 { 2.0f32.powi(-18) } else { 1.0 };
        (0..inputs).for_each(|_| push_float(&mut out, dtype, rng.normal() * spread));
    }
    out
}

fn push_float(out: &mut Vec<u8>, dtype: DType, value: f32) {
    match dtype {
        DType::F32 => out.extend(value.to_le_bytes()),
        DType::Bf16 => out.extend(half::bf16::from_f32(value).to_le_bytes()),
        DType::F16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
        other => panic!("{other} is not a float type"),
    }
}

/// A byte of codes: anything, except that E4M3 has two NaN.
fn code_byte(rng: &mut Rng, format: QuantFormat) -> u8 {
    loop {
        let byte = rng.bits() as u8;
        if format != QuantFormat::Mxfp8 || byte & 0x7f != 0x7f {
            return byte;
        }
    }
}

fn scales(rng: &mut Rng, format: QuantFormat, scale_type: DType, groups: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..groups {
        match format {
            QuantFormat::Affine { bits, .. } => {
                let levels = (1u32 << bits) as f32;
                let sign = if rng.one_in(3) { -1.0 } else { 1.0 };
                let scale = if rng.one_in(50) { 0.0 } else { sign * (1.0 + 3.0 * rng.unit()) / levels };
                push_float(&mut scales, scale_type, scale);
                push_float(&mut biases, scale_type, -scale * levels * (0.3 + 0.4 * rng.unit()));
            }
            // Elements reach 6, resp. 448: the powers of two bring values near 1.
            QuantFormat::Mxfp4 => scales.push(122 + rng.below(5) as u8),
            QuantFormat::Mxfp8 => scales.push(116 + rng.below(7) as u8),
            // E4M3 with exponents 2^-4..2^0 and either sign; a few are subnormal or zero.
            QuantFormat::Nvfp4 => {
                let exponent = if rng.one_in(20) { 0 } else { 3 + rng.below(5) as u8 };
                scales.push((rng.below(2) as u8) << 7 | exponent << 3 | rng.below(8) as u8);
            }
        }
    }
    (scales, biases)
}
