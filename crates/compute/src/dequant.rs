//! The scalar meaning of every weight format: one row of a stored matrix as f32 values.
//!
//! This is the specification that packed kernels are tested against (gemma4.md §4), slow and obvious.

use crate::format::{DType, HostWeight, QuantFormat, WeightFormat};

/// Magnitudes of the E2M1 codes 0..=7; bit 3 is the sign.
pub const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Value of a 4-bit E2M1 code.
pub fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Value of an E4M3 byte: bias 7, subnormals, 0x7f and 0xff are NaN.
pub fn e4m3(code: u8) -> f32 {
    let exponent = i32::from(code >> 3 & 15);
    let mantissa = f32::from(code & 7);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2.0f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2.0f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Value of an E8M0 scale byte: `2^(code - 127)`, 255 is NaN.
pub fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22), // 2^-127 is subnormal
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Element `index` of a packed float tensor.
///
/// # Panics
/// When the type is not a float or the index is out of range.
pub fn float_at(dtype: DType, bytes: &[u8], index: usize) -> f32 {
    let at = index * dtype.size();
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")),
        DType::Bf16 => half::bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        DType::F16 => half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        other => panic!("{other} is not a float type"),
    }
}

/// Code `index` of a row that is one little-endian bit stream of `bits`-wide codes.
pub fn code_at(row: &[u8], bits: usize, index: usize) -> u8 {
    let bit = index * bits;
    let low = u16::from(row[bit / 8]);
    let high = row.get(bit / 8 + 1).map_or(0, |b| u16::from(*b));
    ((low | high << 8) >> (bit % 8)) as u8 & ((1u16 << bits) - 1) as u8
}

/// Writes row `row` of expert `expert` as f32: `code * scale + bias` rounded twice (affine), `element * scale` (float
/// modes), or the plain value.
///
/// # Panics
/// When `out` is not `inputs` long or the row does not exist.
pub fn dequantize_row(weight: &HostWeight, expert: usize, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), weight.inputs, "output length");
    let index = expert * weight.outputs + row;
    let bytes = &weight.data[index * weight.row_bytes()..][..weight.row_bytes()];
    match weight.format {
        WeightFormat::Float(dtype) => {
            for (k, v) in out.iter_mut().enumerate() {
                *v = float_at(dtype, bytes, k);
            }
        }
        WeightFormat::Quant(format, scale_type) => {
            let groups = weight.inputs / format.group();
            for (k, v) in out.iter_mut().enumerate() {
                let group = index * groups + k / format.group();
                let code = code_at(bytes, format.bits(), k);
                *v = match format {
                    QuantFormat::Affine { .. } => {
                        let scale = float_at(scale_type, &weight.scales, group);
                        let bias = float_at(scale_type, &weight.biases, group);
                        f32::from(code) * scale + bias
                    }
                    QuantFormat::Mxfp4 => e2m1(code) * e8m0(weight.scales[group]),
                    QuantFormat::Nvfp4 => e2m1(code) * e4m3(weight.scales[group]),
                    QuantFormat::Mxfp8 => e4m3(code) * e8m0(weight.scales[group]),
                };
            }
        }
    }
}
