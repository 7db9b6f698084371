//! The storage formats against a table of values that MLX itself produced, element by element and bit by bit.
#![allow(clippy::excessive_precision, reason = "the digits are the table's")]

use bytes::Bytes;
use mlxcel_checkpoint::dequant::{code, e2m1, e4m3, e8m0};
use mlxcel_checkpoint::quantize::quantize_affine;
use mlxcel_checkpoint::{dequantize_element, dequantize_row};
use mlxcel_compute::format::{DType, HostWeight, QuantFormat, Source, WeightFormat};

/// `w[k] = ((37 k) mod 64 - 20) / 16`, the row of the table.
fn row() -> Vec<f32> {
    (0..64).map(|k| ((37 * k) % 64 - 20) as f32 / 16.0).collect()
}

/// Bits, words a row, first three words, scale, bias, first codes, first dequantised values.
type AffineLine = (u8, usize, [u32; 3], f32, f32, [u8; 8], [f32; 4]);

const AFFINE: [AffineLine; 6] = [
    (
        2,
        4,
        [0x7499e267, 0x26789d22, 0x9e27499d],
        -1.34375,
        2.6875,
        [3, 1, 2, 1, 2, 0, 2, 3],
        [-1.34375, 1.34375, 0.0, 1.34375],
    ),
    (
        3,
        6,
        [0xb3f0d59f, 0x310d5d8a, 0x1567e1ab],
        -0.53750002,
        2.6875,
        [7, 3, 6, 2, 5, 1, 4, 7],
        [-1.0750003, 1.0749999, -0.53750014, 1.612_499_95],
    ),
    (
        4,
        8,
        [0xe81a4c6f, 0x5d7193c5, 0xa4d6092b],
        -0.26875001,
        2.6875,
        [15, 6, 12, 4, 10, 1, 8, 14],
        [-1.34375, 1.0749999, -0.53750014, 1.612_499_95],
    ),
    (
        5,
        10,
        [0x075469bf, 0x1a1b0bec, 0x48b7571e],
        -0.12797619,
        2.6875,
        [31, 13, 26, 8, 21, 3, 16, 29],
        [-1.279_762, 1.0238094, -0.63988113, 1.6636904],
    ),
    (
        6,
        12,
        [0xab4356bf, 0xdc97f211, 0x539783a0],
        -0.0625,
        2.6875,
        [63, 26, 53, 16, 43, 6, 33, 60],
        [-1.25, 1.0625, -0.625, 1.6875],
    ),
    (
        8,
        16,
        [0x41d669ff, 0xf38618ae, 0xa235ca5d],
        -0.015445402,
        2.6875,
        [255, 105, 214, 65, 174, 24, 134, 243],
        [-1.2510774, 1.0657328, -0.617_815_97, 1.6835489],
    ),
];

/// Format, first two words, scale bytes, first codes, first dequantised values.
type FloatLine = (QuantFormat, [u32; 2], &'static [u8], [u8; 8], [f32; 4]);

const FLOAT: [FloatLine; 3] = [
    (QuantFormat::Mxfp4, [0xc2605a4c, 0x5b3616a4], &[126, 126], [12, 4, 10, 5, 0, 6, 2, 12], [-1.0, 1.0, -0.5, 1.5]),
    (
        QuantFormat::Nvfp4,
        [0xd3706b5d, 0x6c4716a5],
        &[45, 46, 46, 46],
        [13, 5, 11, 6, 0, 7, 3, 13],
        [-1.21875, 1.21875, -0.609375, 1.625],
    ),
    (
        QuantFormat::Mxfp8,
        [0x76ea70f2, 0xf06a7900],
        &[120, 120],
        [242, 112, 234, 118, 0, 121, 106, 240],
        [-1.25, 1.0, -0.625, 1.75],
    ),
];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn quantising_gives_the_table() {
    for (bits, words, first, scale, bias, codes, _) in AFFINE {
        let rows = quantize_affine(&row(), 64, bits, 64);
        assert_eq!(rows.words.len(), words, "{bits} bits");
        assert_eq!(rows.words[..3], first, "{bits} bits");
        assert_eq!((rows.scales[0].to_bits(), rows.biases[0].to_bits()), (scale.to_bits(), bias.to_bits()));
        let stream = bytes(&rows.words);
        let got: Vec<u8> = (0..8).map(|k| code(&stream, bits.into(), k)).collect();
        assert_eq!(got, codes, "{bits} bits");
    }
}

#[test]
fn dequantising_gives_the_table() {
    for (bits, _, _, _, _, codes, values) in AFFINE {
        let weight = quantize_affine(&row(), 64, bits, 64).into_host_weight("table", 1, DType::F32);
        check_line(&weight, &codes, &values, code).unwrap();
    }
    for (format, words, scales, codes, values) in FLOAT {
        check_line(&float_line(format, words, scales), &codes, &values, code).unwrap();
    }
}

/// The same check with the nibbles of a byte swapped: it must fail for every 4-bit line, or it checks nothing.
#[test]
fn the_table_catches_swapped_nibbles() {
    let swapped = |row: &[u8], bits: usize, index: usize| code(row, bits, if bits == 4 { index ^ 1 } else { index });
    for (bits, _, _, _, _, codes, values) in AFFINE {
        let mut weight = quantize_affine(&row(), 64, bits, 64).into_host_weight("table", 1, DType::F32);
        assert_eq!(check_line(&weight, &codes, &values, swapped).is_err(), bits == 4, "{bits} bits");
        // And the other way round: right reading, wrong bytes.
        if bits == 4 {
            weight.data = weight.data.iter().map(|byte| byte.rotate_left(4)).collect();
            check_line(&weight, &codes, &values, code).unwrap_err();
        }
    }
    for (format, words, scales, codes, values) in FLOAT {
        let weight = float_line(format, words, scales);
        let fails = check_line(&weight, &codes, &values, swapped).is_err();
        assert_eq!(fails, format.bits() == 4, "{format}");
    }
}

fn check_line(
    weight: &HostWeight,
    codes: &[u8],
    values: &[f32],
    code: impl Fn(&[u8], usize, usize) -> u8,
) -> Result<(), String> {
    let WeightFormat::Quant(format, _) = weight.format else { panic!("a quantised line") };
    for (k, want) in codes.iter().enumerate() {
        let got = code(&weight.data, format.bits(), k);
        if got != *want {
            return Err(format!("{format}: code {k} is {got}, expected {want}"));
        }
    }
    for (k, want) in values.iter().enumerate() {
        let got = dequantize_element(weight, 0, 0, k);
        if got.to_bits() != want.to_bits() {
            return Err(format!("{format}: value {k} is {got:?}, expected {want:?}"));
        }
    }
    Ok(())
}

/// A row as long as the scales say, beginning with the words of the table.
fn float_line(format: QuantFormat, words: [u32; 2], scales: &[u8]) -> HostWeight {
    let mut data = bytes(&words);
    data.resize(64 * format.bits() / 8, 0);
    HostWeight {
        name: "table".into(),
        experts: 1,
        outputs: 1,
        inputs: 64,
        stride: 1,
        format: WeightFormat::Quant(format, DType::U8),
        data: data.into(),
        scales: Bytes::copy_from_slice(scales),
        biases: Bytes::new(),
        source: Source::default(),
    }
}

#[test]
fn packing_is_one_little_endian_bit_stream() {
    for bits in [2u8, 3, 4, 5, 6, 8] {
        let stream: Vec<u8> = bytes(&quantize_affine(&row(), 64, bits, 64).words);
        let bit = |b: usize| stream[b / 8] >> (b % 8) & 1;
        for k in 0..64 {
            let want = (0..usize::from(bits)).map(|i| bit(k * usize::from(bits) + i) << i).sum::<u8>();
            assert_eq!(code(&stream, bits.into(), k), want, "{bits} bits, code {k}");
        }
    }
}

#[test]
fn e2m1_table() {
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32];
    for (code, magnitude) in magnitudes.into_iter().enumerate() {
        assert_eq!(e2m1(code as u8).to_bits(), magnitude.to_bits());
        assert_eq!(e2m1(code as u8 | 8).to_bits(), (-magnitude).to_bits());
    }
}

#[test]
fn e4m3_table() {
    // Written independently of the implementation: from exponent and mantissa in f64.
    for byte in 0..=255u8 {
        let (sign, exponent, mantissa) = (byte >> 7, i32::from(byte >> 3 & 15), f64::from(byte & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        };
        let want = if sign == 1 { -magnitude } else { magnitude };
        if byte & 0x7f == 0x7f {
            assert!(e4m3(byte).is_nan());
        } else {
            assert_eq!(f64::from(e4m3(byte)), want, "{byte:#04x}");
        }
    }
    for (byte, value) in
        [(0x01, 0.001953125), (0x08, 0.015625), (0x38, 1.0), (0x7e, 448.0), (0xb8, -1.0), (45, 0.40625)]
    {
        assert_eq!(e4m3(byte), value);
    }
}

#[test]
fn e8m0_table() {
    for byte in 0..255u8 {
        assert_eq!(f64::from(e8m0(byte)), 2f64.powi(i32::from(byte) - 127));
    }
    assert!(e8m0(255).is_nan());
}

#[test]
fn float_rows_and_experts() {
    let values: Vec<f32> = (0..12).map(|k| k as f32 - 3.5).collect();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let weight = HostWeight {
            name: "w".into(),
            experts: 2,
            outputs: 3,
            inputs: 2,
            stride: 3,
            format: WeightFormat::Float(dtype),
            data: mlxcel_checkpoint::quantize::encode_floats(&values, dtype),
            scales: Bytes::new(),
            biases: Bytes::new(),
            source: Source::default(),
        };
        let mut row = [0.0; 2];
        dequantize_row(&weight, 1, 2, &mut row);
        assert_eq!(row, [6.5, 7.5], "{dtype}");
        assert_eq!(dequantize_element(&weight, 0, 1, 1), -0.5, "{dtype}");
    }
}

#[test]
fn scales_in_half_precision() {
    for dtype in [DType::Bf16, DType::F16] {
        // 6 bits: scale and bias of the table are exact in both.
        let weight = quantize_affine(&row(), 64, 6, 64).into_host_weight("w", 1, dtype);
        let mut got = vec![0.0; 64];
        dequantize_row(&weight, 0, 0, &mut got);
        assert_eq!(got, row(), "{dtype}");
    }
}

#[test]
fn constant_groups_quantise_to_themselves() {
    for value in [0.0f32, 0.75, -0.75] {
        let weight = quantize_affine(&[value; 32], 32, 4, 32).into_host_weight("w", 1, DType::F32);
        let mut got = vec![0.0; 32];
        dequantize_row(&weight, 0, 0, &mut got);
        assert!(got.iter().all(|got| (got - value).abs() < 1e-6), "{value}: {got:?}");
    }
}
