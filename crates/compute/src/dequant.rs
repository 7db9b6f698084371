//! Scalar dequantisation: what the bytes of a weight mean, one element at a time.
//!
//! Slow and obvious on purpose; tests and conversion use it, kernels are compared with it.

use crate::format::{DType, HostWeight, QuantFormat, WeightFormat};
use half::{bf16, f16};

/// Magnitudes of E2M1 by the low three bits of the code.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Writes one row as f32. Affine: `code as f32 * scale + bias`, two roundings in f32.
///
/// # Panics
/// If `expert` or `row` is out of range, `out` is not one row long, or the weight's byte ranges are too short.
pub fn dequantize_row(weight: &HostWeight, expert: usize, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), weight.inputs, "{}: a row has {} elements", weight.name, weight.inputs);
    let row = row_index(weight, expert, row);
    for (column, value) in out.iter_mut().enumerate() {
        *value = element(weight, row, column);
    }
}

/// One element as f32.
///
/// # Panics
/// As [`dequantize_row`].
pub fn dequantize_element(weight: &HostWeight, expert: usize, row: usize, column: usize) -> f32 {
    assert!(column < weight.inputs, "{}: column {column} of {}", weight.name, weight.inputs);
    element(weight, row_index(weight, expert, row), column)
}

fn row_index(weight: &HostWeight, expert: usize, row: usize) -> usize {
    assert!(expert < weight.experts, "{}: expert {expert} of {}", weight.name, weight.experts);
    assert!(row < weight.outputs, "{}: row {row} of {}", weight.name, weight.outputs);
    expert * weight.stride + row
}

fn element(weight: &HostWeight, row: usize, column: usize) -> f32 {
    match weight.format {
        WeightFormat::Float(dtype) => float(&weight.data, dtype, row * weight.inputs + column),
        WeightFormat::Quant(format, scale_dtype) => {
            let row_bytes = weight.row_bytes();
            let code = code(&weight.data[row * row_bytes..][..row_bytes], format.bits(), column);
            let group = row * (weight.inputs / format.group()) + column / format.group();
            match format {
                QuantFormat::Affine { .. } => {
                    let scale = float(&weight.scales, scale_dtype, group);
                    let bias = float(&weight.biases, scale_dtype, group);
                    f32::from(code) * scale + bias
                }
                QuantFormat::Mxfp4 => e2m1(code) * e8m0(weight.scales[group]),
                QuantFormat::Mxfp8 => e4m3(code) * e8m0(weight.scales[group]),
                QuantFormat::Nvfp4 => e2m1(code) * e4m3(weight.scales[group]),
            }
        }
    }
}

/// Element `index` of an array of floats.
fn float(bytes: &[u8], dtype: DType, index: usize) -> f32 {
    fn at<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
        bytes[index * N..][..N].try_into().expect("a slice of N bytes")
    }
    match dtype {
        DType::F32 => f32::from_le_bytes(at(bytes, index)),
        DType::Bf16 => bf16::from_le_bytes(at(bytes, index)).to_f32(),
        DType::F16 => f16::from_le_bytes(at(bytes, index)).to_f32(),
        other => panic!("{other} is not a float type"),
    }
}

/// Code `index` of a row: bits `[index * bits, (index + 1) * bits)` of its little-endian bit stream.
///
/// # Panics
/// If `bits` is above 8 or the row is too short.
pub fn code(row: &[u8], bits: usize, index: usize) -> u8 {
    assert!((1..=8).contains(&bits), "codes of {bits} bits");
    let first = index * bits;
    let byte = first / 8;
    // A code of up to 8 bits touches at most two bytes; the last one of a row has no second.
    let low = u16::from(row[byte]);
    let high = row.get(byte + 1).map_or(0, |byte| u16::from(*byte));
    assert!(first + bits <= row.len() * 8, "code {index} lies beyond the row");
    // Cannot truncate: masked to 8 bits.
    (((low | high << 8) >> (first % 8)) & ((1 << bits) - 1)) as u8
}

/// Value of a 4-bit E2M1 code (the low four bits).
pub fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Value of an E4M3 byte: bias 7, no infinities, `0x7f` and `0xff` are NaN.
pub fn e4m3(byte: u8) -> f32 {
    let exponent = i32::from(byte >> 3 & 15);
    let mantissa = f32::from(byte & 7);
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * power_of_two(-6),
        _ => (1.0 + mantissa / 8.0) * power_of_two(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Value of an E8M0 byte: `2^(byte - 127)`, `0xff` is NaN.
pub fn e8m0(byte: u8) -> f32 {
    if byte == 0xff { f32::NAN } else { power_of_two(i32::from(byte) - 127) }
}

/// Exact `2^exponent` for exponents from -127 (subnormal) to 127.
fn power_of_two(exponent: i32) -> f32 {
    if exponent == -127 {
        return f32::from_bits(1 << 22);
    }
    f32::from_bits(((exponent + 127) as u32) << 23)
}
