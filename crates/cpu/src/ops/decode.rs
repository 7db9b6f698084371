//! Stored rows as f32: embeddings, and the weights that are not multiplied as integers.

use mlxcel_compute::dequant::{e2m1, e4m3, e8m0};
use mlxcel_compute::{DType, HostWeight, QuantFormat, WeightFormat};

use crate::lanes::Lanes;

/// One stored row as f32, bit-equal to [`mlxcel_compute::dequant::dequantize_row`].
#[inline(always)]
pub fn decode_row<L: Lanes>(w: &HostWeight, row: usize, out: &mut [f32]) {
    let bytes = &w.data[row * w.row_bytes()..][..w.row_bytes()];
    match w.format {
        WeightFormat::Float(dtype) => decode_floats::<L>(dtype, bytes, out),
        WeightFormat::Quant(format, scale_type) => {
            let group = format.group();
            let groups = w.inputs / group;
            let scales = &w.scales[row * groups * scale_type.size()..][..groups * scale_type.size()];
            match format {
                QuantFormat::Affine { bits, .. } => {
                    let biases = &w.biases[row * groups * scale_type.size()..][..groups * scale_type.size()];
                    let code_bytes = group * usize::from(bits) / 8;
                    for (g, (out, codes)) in out.chunks_exact_mut(group).zip(bytes.chunks_exact(code_bytes)).enumerate()
                    {
                        let (scale, bias) = (float_at(scale_type, scales, g), float_at(scale_type, biases, g));
                        for (i, out) in out.chunks_mut(64).enumerate() {
                            let codes = codes_of(bits, codes, i);
                            out.iter_mut().zip(codes).for_each(|(o, c)| *o = f32::from(c) * scale + bias);
                        }
                    }
                }
                QuantFormat::Mxfp4 | QuantFormat::Nvfp4 => {
                    for (k, o) in out.iter_mut().enumerate() {
                        let code = bytes[k / 2] >> (4 * (k % 2)) & 15;
                        let scale = scales[k / group];
                        *o = e2m1(code) * if format == QuantFormat::Mxfp4 { e8m0(scale) } else { e4m3(scale) };
                    }
                }
                QuantFormat::Mxfp8 => {
                    for (k, o) in out.iter_mut().enumerate() {
                        *o = e4m3(bytes[k]) * e8m0(scales[k / group]);
                    }
                }
            }
        }
    }
}

/// Element `i` of a row of scales or biases.
#[inline(always)]
pub fn float_at(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    let two = |i: usize| [bytes[2 * i], bytes[2 * i + 1]];
    match dtype {
        DType::F32 => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
        DType::F16 => half::f16::from_le_bytes(two(i)).to_f32(),
        _ => half::bf16::from_le_bytes(two(i)).to_f32(),
    }
}

/// Sixty-four codes from `8 * BITS` bytes (fewer at the end of a row): eight codes fill exactly BITS bytes.
#[inline(always)]
fn unpack<const BITS: usize>(row: &[u8], from: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let rest = &row[from..];
    for (eight, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(rest.chunks_exact(BITS)) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (i, code) in eight.iter_mut().enumerate() {
            *code = (word >> (i * BITS)) as u8 & ((1u16 << BITS) - 1) as u8;
        }
    }
    out
}

#[inline(always)]
fn codes_of(bits: u8, codes: &[u8], block: usize) -> [u8; 64] {
    match bits {
        2 => unpack::<2>(codes, block * 16),
        3 => unpack::<3>(codes, block * 24),
        4 => {
            // The common width, in a form that vectorises.
            let mut out = [0; 64];
            for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(&codes[block * 32..]) {
                *pair = [byte & 15, byte >> 4];
            }
            out
        }
        5 => unpack::<5>(codes, block * 40),
        6 => unpack::<6>(codes, block * 48),
        _ => unpack::<8>(codes, block * 64),
    }
}

#[inline(always)]
fn decode_floats<L: Lanes>(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(o, b)| *o = f32::from_le_bytes(*b));
        }
        _ => {
            let (whole, rest) = bytes.as_chunks::<32>();
            let (out, out_rest) = out.as_chunks_mut::<16>();
            for (b, o) in whole.iter().zip(out) {
                half_floats::<L>(dtype, b).store(o);
            }
            let mut padded = [0; 32];
            padded[..rest.len()].copy_from_slice(rest);
            let mut lanes = [0.0; 16];
            half_floats::<L>(dtype, &padded).store(&mut lanes);
            out_rest.copy_from_slice(&lanes[..out_rest.len()]);
        }
    }
}

/// Sixteen values of a 16-bit float type.
#[inline(always)]
fn half_floats<L: Lanes>(dtype: DType, bytes: &[u8; 32]) -> L {
    if dtype == DType::F16 { L::load_f16(bytes) } else { L::load_bf16(bytes) }
}
