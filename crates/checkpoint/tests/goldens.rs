//! Every golden checkpoint and the demo open, and hold exactly the tensors that their configuration implies.

mod common;

use common::{golden, goldens, repo, walk};
use mlxcel_checkpoint::quantize::quantize_affine;
use mlxcel_checkpoint::{Checkpoint, Gemma4Config, Gemma4Family, dequantize_row};
use mlxcel_compute::format::{DType, HostWeight, QuantFormat, WeightFormat};

#[test]
fn every_golden_resolves() {
    let dirs = goldens();
    let names: Vec<_> = dirs.iter().map(|dir| dir.file_name().unwrap().to_str().unwrap()).collect();
    for expected in ["dense", "dense-mlx-mxfp4", "dense-mlx-nvfp4", "e2b-mlx-mixed", "moe", "moe-mlx-q4", "text_only"] {
        assert!(names.contains(&expected), "{expected} is not among {names:?}");
    }
    for (dir, name) in dirs.iter().zip(&names) {
        if name.contains("assistant") {
            let error = walk(dir).expect_err("a drafter is no target").to_string();
            assert!(error.contains("is a drafter"), "{error}");
            continue;
        }
        let weights = walk(dir).unwrap_or_else(|error| panic!("{name}: {error}"));
        for weight in &weights {
            check_lengths(weight);
        }
        let quantised = weights.iter().any(|weight| matches!(weight.format, WeightFormat::Quant(..)));
        assert_eq!(quantised, name.contains("-mlx-"), "{name}");
    }
}

#[test]
fn the_demo_resolves() {
    let dir = repo().join("models/gemma-4-tiny-it-4bit");
    for weight in walk(&dir).unwrap() {
        check_lengths(&weight);
        let expected = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16);
        assert_eq!(weight.format, expected, "{}", weight.name);
    }
    let config = Gemma4Config::from_checkpoint(&Checkpoint::open(&dir).unwrap()).unwrap();
    assert_eq!(config.eos_token_ids, [1, 106]);
    assert_eq!((config.family, config.has_vision), (Gemma4Family::Gemma4, false));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn mixed_goldens_have_every_width() {
    let mut bits: Vec<_> = walk(&golden("dense-mlx-mixed"))
        .unwrap()
        .iter()
        .filter_map(|weight| match weight.format {
            WeightFormat::Quant(format, _) => Some(format.bits()),
            WeightFormat::Float(_) => None,
        })
        .collect();
    bits.sort();
    bits.dedup();
    assert_eq!(bits, [3, 4, 5, 6, 8]);
}

/// The quantised goldens were made by MLX from the float ones: its codes, scales and biases must come out again.
#[test]
fn the_quantiser_reproduces_mlx_files() {
    for (float, quantised) in [("dense", "dense-mlx-q4"), ("dense", "dense-mlx-mixed"), ("e2b", "e2b-mlx-mixed")] {
        let (float, quantised) = (walk(&golden(float)).unwrap(), walk(&golden(quantised)).unwrap());
        assert_eq!(float.len(), quantised.len());
        for (float, stored) in float.iter().zip(&quantised) {
            let WeightFormat::Quant(QuantFormat::Affine { bits, group }, DType::F32) = stored.format else {
                panic!("{} is {}", stored.name, stored.format);
            };
            let ours = quantize_affine(&all_rows(float), float.inputs, bits, group);
            let ours = ours.into_host_weight(&stored.name, stored.experts, DType::F32);
            assert_eq!(ours.scales, stored.scales, "scales of {}", stored.name);
            assert_eq!(ours.biases, stored.biases, "biases of {}", stored.name);
            assert_eq!(ours.data, stored.data, "codes of {}", stored.name);
        }
    }
}

/// Dequantised weights of every mode are the floats they were made from, within the mode's coarseness (measured, rounded
/// up): a wrong order, scale or expert would be off by about 1.
#[test]
fn dequantised_goldens_are_near_the_floats() {
    for (float, quantised, bound) in [
        ("dense", "dense-mlx-q4", 0.09),
        ("dense", "dense-mlx-mixed", 0.2),
        ("dense", "dense-mlx-mxfp4", 0.13),
        ("dense", "dense-mlx-mxfp8", 0.03),
        ("dense", "dense-mlx-nvfp4", 0.11),
        ("moe", "moe-mlx-q4", 0.09),
    ] {
        let (float, stored) = (walk(&golden(float)).unwrap(), walk(&golden(quantised)).unwrap());
        for (float, stored) in float.iter().zip(&stored) {
            let (want, got) = (all_rows(float), all_rows(stored));
            let energy: f32 = want.iter().map(|value| value * value).sum();
            let error: f32 = want.iter().zip(&got).map(|(a, b)| (a - b) * (a - b)).sum();
            let relative = (error / energy).sqrt();
            assert!(relative < bound, "{quantised}: {}: relative error {relative}", stored.name);
        }
    }
}

fn all_rows(weight: &HostWeight) -> Vec<f32> {
    let mut out = vec![0.0; weight.experts * weight.outputs * weight.inputs];
    for (row, values) in out.chunks_exact_mut(weight.inputs).enumerate() {
        dequantize_row(weight, row / weight.outputs, row % weight.outputs, values);
    }
    out
}

/// What `HostWeight` promises of its byte ranges.
fn check_lengths(weight: &HostWeight) {
    let rows = weight.rows();
    assert_eq!(weight.data.len(), rows * weight.row_bytes(), "{}", weight.name);
    let (scales, biases) = match weight.format {
        WeightFormat::Float(_) => (0, 0),
        WeightFormat::Quant(format, scales) => {
            let groups = rows * weight.inputs / format.group() * scales.size();
            (groups, if format.has_biases() { groups } else { 0 })
        }
    };
    assert_eq!((weight.scales.len(), weight.biases.len()), (scales, biases), "{}", weight.name);
}
