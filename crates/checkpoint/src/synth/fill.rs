//! Where random weights come from: a counter, so that any part of a tensor can be made by itself, on any number of threads.

use std::ops::Range;

use half::bf16;
use mlxcel_compute::format::DType;

use crate::convert::rows::Encoded;

/// What a tensor is filled with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fill {
    /// One value, in bf16.
    Constant(f64),
    /// Floats, evenly spread over a range; rows from `live` on are 0.
    Floats {
        /// bf16 or f32.
        dtype: DType,
        /// The least.
        low: f64,
        /// The greatest.
        high: f64,
        /// Rows that are not 0.
        live: usize,
    },
    /// Random affine codes; rows from `live` on have scales and biases of 0.
    Codes {
        /// Bits of a code.
        bits: u8,
        /// Values that share a scale.
        group: u16,
        /// Standard deviation of what they stand for.
        deviation: f64,
        /// Rows that are not 0.
        live: usize,
    },
    /// All numbers below the width once each, in i32.
    Permutation,
}

impl Fill {
    /// Floats with a standard deviation, around 0.
    pub(crate) fn around_zero(deviation: f64, live: usize) -> Fill {
        let high = deviation * 3f64.sqrt();
        Fill::Floats { dtype: DType::Bf16, low: -high, high, live }
    }
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) at a place of its stream.
fn word(key: u64, counter: u64) -> u64 {
    let x = key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The key of a tensor: its name's bytes, one after another.
pub(crate) fn key(name: &str) -> u64 {
    name.bytes().fold(0, |key, byte| word(key, u64::from(byte) + 1))
}

/// Bytes of some rows of `width` values.
pub(crate) fn encode(fill: &Fill, key: u64, width: usize, rows: Range<usize>) -> Encoded {
    match *fill {
        Fill::Constant(value) => {
            let bytes = bf16::from_f64(value).to_le_bytes();
            [bytes.repeat(rows.len() * width), Vec::new(), Vec::new()]
        }
        Fill::Floats { dtype, low, high, live } => {
            let mut out = Vec::with_capacity(rows.len() * width * dtype.size());
            for row in rows {
                let (key, step) = (word(key, row as u64), (high - low) / 65_535.0);
                for column in 0..width {
                    let sixteen = word(key, column as u64 / 4) >> (column % 4 * 16) & 0xffff;
                    let value = if row < live { low + step * sixteen as f64 } else { 0.0 };
                    match dtype {
                        DType::F32 => out.extend_from_slice(&(value as f32).to_le_bytes()),
                        _ => out.extend_from_slice(&bf16::from_f64(value).to_le_bytes()),
                    }
                }
            }
            [out, Vec::new(), Vec::new()]
        }
        Fill::Codes { bits, group, deviation, live } => codes(key, width, rows, bits, group, deviation, live),
        Fill::Permutation => {
            let mut out = Vec::with_capacity(width * 4);
            let step = stride(width);
            (0..width).for_each(|i| out.extend_from_slice(&((i * step % width) as i32).to_le_bytes()));
            [out, Vec::new(), Vec::new()]
        }
    }
}

/// A number that shares no factor with `len` and is far from its own multiples' neighbours: about the golden section of it.
fn stride(len: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (len * 5 / 8 + 1..).find(|step| gcd(*step, len) == 1).unwrap_or(1)
}

/// Pairs of scale and bias whose codes, all equally likely, have the deviation and a mean of 0: of four sizes and both signs.
fn pairs(bits: u8, deviation: f64) -> [[u8; 4]; 8] {
    let codes = f64::from(1u32 << bits);
    // Of the numbers below `codes`, and of the four factors (root of their mean square).
    let one = deviation / ((codes * codes - 1.0) / 12.0).sqrt() / 0.898_437_5f64.sqrt();
    std::array::from_fn(|i| {
        let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
        let scale = bf16::from_f64(sign * one * (0.75 + 0.125 * (i / 2) as f64));
        let bias = bf16::from_f64(-scale.to_f64() * (codes - 1.0) / 2.0);
        let ([a, b], [c, d]) = (scale.to_le_bytes(), bias.to_le_bytes());
        [a, b, c, d]
    })
}

fn codes(key: u64, width: usize, rows: Range<usize>, bits: u8, group: u16, deviation: f64, live: usize) -> Encoded {
    let row_bytes = width * usize::from(bits) / 8;
    let groups = width / usize::from(group);
    let pairs = pairs(bits, deviation);
    let mut words = vec![0; rows.len() * row_bytes];
    let mut scales = Vec::with_capacity(rows.len() * groups * 2);
    let mut biases = Vec::with_capacity(rows.len() * groups * 2);
    for (row, bytes) in rows.zip(words.chunks_exact_mut(row_bytes)) {
        let key = word(key, row as u64);
        let (eights, rest) = bytes.as_chunks_mut::<8>();
        for (counter, eight) in eights.iter_mut().enumerate() {
            *eight = word(key, counter as u64).to_le_bytes();
        }
        let last = word(key, eights.len() as u64).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        // Codes count up from 0, choices of scales down from the end.
        for group in 0..groups {
            let choice = word(key, u64::MAX - group as u64 / 16) >> (group % 16 * 4) & 7;
            let [a, b, c, d] = if row < live { pairs[choice as usize] } else { [0; 4] };
            scales.extend_from_slice(&[a, b]);
            biases.extend_from_slice(&[c, d]);
        }
    }
    [words, scales, biases]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequant::dequantize_row;
    use mlxcel_compute::format::{HostWeight, QuantFormat, Source, WeightFormat};

    fn joined(fill: &Fill, width: usize, parts: &[Range<usize>]) -> Encoded {
        let mut out = Encoded::default();
        for rows in parts {
            let made = encode(fill, key("a"), width, rows.clone());
            out.iter_mut().zip(made).for_each(|(out, made)| out.extend(made));
        }
        out
    }

    #[test]
    fn rows_do_not_depend_on_what_is_made_with_them() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let fill = Fill::Codes { bits, group: 32, deviation: 0.1, live: 6 };
            let whole = encode(&fill, key("a"), 96, 0..7);
            assert_eq!(whole, joined(&fill, 96, &[0..1, 1..4, 4..7]));
            // The twin: another tensor, or the rows in another order, are other bytes.
            assert_ne!(whole, encode(&fill, key("b"), 96, 0..7));
            assert_ne!(whole, joined(&fill, 96, &[1..4, 0..1, 4..7]));
        }
        let floats = Fill::around_zero(1.0, 9);
        assert_eq!(encode(&floats, key("a"), 50, 0..7), joined(&floats, 50, &[0..2, 2..7]));
    }

    /// Mean and standard deviation of what a matrix stands for.
    fn moments(values: &[f32]) -> (f64, f64) {
        let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / values.len() as f64;
        (mean, square.sqrt())
    }

    #[test]
    fn codes_have_the_deviation_that_was_asked_for() {
        let (width, rows) = (512, 200);
        for bits in [2, 3, 4, 5, 6, 8] {
            let [words, scales, biases] =
                encode(&Fill::Codes { bits, group: 64, deviation: 0.05, live: rows - 1 }, key("x"), width, 0..rows);
            let weight = HostWeight {
                name: "x".into(),
                experts: 1,
                outputs: rows,
                inputs: width,
                stride: rows,
                format: WeightFormat::Quant(QuantFormat::Affine { bits, group: 64 }, DType::Bf16),
                data: words.into(),
                scales: scales.into(),
                biases: biases.into(),
                source: Source::default(),
            };
            let mut values = vec![0f32; rows * width];
            for (row, out) in values.chunks_exact_mut(width).enumerate() {
                dequantize_row(&weight, 0, row, out);
            }
            let rest = values.split_off((rows - 1) * width);
            assert!(rest.iter().all(|value| *value == 0.0), "a row beyond the live ones");
            let (mean, deviation) = moments(&values);
            assert!(mean.abs() < 0.001 && (deviation / 0.05 - 1.0).abs() < 0.02, "{bits} bits: {mean} {deviation}");
        }
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        for len in [1, 2, 9, 18_432, 262_144] {
            let [bytes, ..] = encode(&Fill::Permutation, 0, len, 0..1);
            let mut numbers: Vec<i32> = bytes.as_chunks().0.iter().map(|four| i32::from_le_bytes(*four)).collect();
            let moved = numbers.iter().enumerate().filter(|(i, n)| *i as i32 != **n).count();
            assert!(len < 9 || moved * 2 > len, "{moved} of {len} moved");
            numbers.sort_unstable();
            assert!(numbers.iter().enumerate().all(|(i, n)| *n == i as i32));
        }
    }
}
