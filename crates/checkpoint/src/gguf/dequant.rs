//! Blocks of codes to single precision.
//!
//! Every formula is that of GGML's reference (`ggml-quants.c`): products of a half and small integers are exact in single
//! precision, and the only rounding is that of the final sum, so the values are equal bit for bit.

use half::{bf16, f16};

use super::types::GgmlType;

/// Appends the elements of whole blocks to `out`. Bytes after the last whole block are not read.
pub fn dequantize(kind: GgmlType, bytes: &[u8], out: &mut Vec<f32>) {
    match kind {
        GgmlType::F32 => out.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
        GgmlType::F16 => out.extend(bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32())),
        GgmlType::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
        GgmlType::Q4_0 => blocks(bytes, out, q4_0),
        GgmlType::Q4_1 => blocks(bytes, out, q4_1),
        GgmlType::Q5_0 => blocks(bytes, out, q5_0),
        GgmlType::Q5_1 => blocks(bytes, out, q5_1),
        GgmlType::Q8_0 => blocks(bytes, out, q8_0),
        GgmlType::Q4K => blocks(bytes, out, q4_k),
        GgmlType::Q5K => blocks(bytes, out, q5_k),
        GgmlType::Q6K => blocks(bytes, out, q6_k),
    }
}

fn blocks<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut Vec<f32>,
    block: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let mut values = [0.0; ELEMENTS];
    for bytes in bytes.as_chunks().0 {
        block(bytes, &mut values);
        out.extend_from_slice(&values);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `d`; 16 bytes whose low nibbles are elements 0..16 and whose high nibbles are elements 16..32, each less 8.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = d * f32::from((byte & 15) as i8 - 8);
        out[i + 16] = d * f32::from((byte >> 4) as i8 - 8);
    }
}

/// `d`, `m`; nibbles as in [`q4_0`], times `d`, plus `m`.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// The fifth bit of element `i`, in its place.
fn fifth(high: u32, i: usize) -> u8 {
    ((high >> i & 1) << 4) as u8
}

/// `d`; 32 fifth bits; nibbles as in [`q4_0`], less 16.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (i, byte) in block[6..].iter().enumerate() {
        out[i] = d * f32::from((byte & 15 | fifth(high, i)) as i8 - 16);
        out[i + 16] = d * f32::from((byte >> 4 | fifth(high, i + 16)) as i8 - 16);
    }
}

/// `d`, `m`; codes as in [`q5_0`], times `d`, plus `m`.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (i, byte) in block[8..].iter().enumerate() {
        out[i] = d * f32::from(byte & 15 | fifth(high, i)) + m;
        out[i + 16] = d * f32::from(byte >> 4 | fifth(high, i + 16)) + m;
    }
}

/// `d`; 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (value, byte) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(*byte as i8);
    }
}

/// Scale and minimum number `i` of eight: 6 bits each in 12 bytes. The first four of both have a byte each; the others
/// have their low four bits in the last four bytes and their high two in the spare bits of the first eight.
fn scale_and_minimum(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, minimum) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// `d`, `dmin`, 12 bytes of scales, 128 bytes: of each 32, the low nibbles are one group of 32, the high ones the next.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
        let (scale, minimum) = (d * scale, dmin * minimum);
        let codes = &block[16 + group / 2 * 32..][..32];
        for (value, byte) in out.iter_mut().zip(codes) {
            *value = scale * f32::from(byte >> (group % 2 * 4) & 15) - minimum;
        }
    }
}

/// As [`q4_k`], with 32 bytes of fifth bits before the nibbles: bit `g` of byte `i` belongs to element `i` of group `g`.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
        let (scale, minimum) = (d * scale, dmin * minimum);
        let codes = &block[48 + group / 2 * 32..][..32];
        for ((value, byte), high) in out.iter_mut().zip(codes).zip(&block[16..48]) {
            let code = byte >> (group % 2 * 4) & 15 | (high >> group & 1) << 4;
            *value = scale * f32::from(code) - minimum;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales, `d`. Each half of 128 elements takes 64 bytes of
/// nibbles and 32 of pairs: element `32 g + i` has nibble `g / 2` of byte `32 (g % 2) + i` and pair `g` of byte `i`.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, g) = (group / 4, group % 4);
        let low = &block[half * 64 + g % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for (i, value) in out.iter_mut().enumerate() {
            let code = low[i] >> (g / 2 * 4) & 15 | (high[i] >> (g * 2) & 3) << 4;
            let scale = d * f32::from(block[192 + group * 2 + i / 16] as i8);
            *value = scale * f32::from(code as i8 - 32);
        }
    }
}
