//! Every instruction set against plain Rust: the same bits from every verb, for ordinary values and for damaged, huge and
//! tiny ones. Any NaN equals any other: which operand's payload survives is nobody's promise.

use mlxcel_compute::conformance::all_formats;
use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::conformance::weights::{Shape, random_weight};
use mlxcel_compute::{
    Activation, Attend, Backend, Batch, DType, Experts, KvGroup, KvShape, KvSlot, QuantFormat, Wanted, WeightFormat,
};
use mlxcel_cpu::{CpuBackend, CpuBuffer, Isa, Precision};

/// What inputs look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// About 1.
    Normal,
    /// Of every magnitude, to the ends of the range.
    AnyExponent,
    /// So small that a reciprocal overflows, many of them zero.
    Tiny,
    /// Near the largest float.
    Huge,
    /// Normal, with a few infinities.
    Infinities,
    /// Normal, with a few NaN.
    Nans,
    /// Any bits at all.
    AnyBits,
}

const KINDS: [Kind; 7] =
    [Kind::Normal, Kind::AnyExponent, Kind::Tiny, Kind::Huge, Kind::Infinities, Kind::Nans, Kind::AnyBits];

fn draw(rng: &mut Rng, kind: Kind) -> f32 {
    let v = rng.normal();
    let sign = if v < 0.0 { -1.0 } else { 1.0 };
    match kind {
        Kind::Normal => v,
        Kind::AnyExponent => v * 2.0f32.powi(rng.below(252) as i32 - 126),
        Kind::Tiny => [0.0, v * 1e-38, v * 1e-41, sign * f32::MIN_POSITIVE][rng.below(4)],
        Kind::Huge => sign * (1.0 - 0.5 * rng.unit()) * f32::MAX,
        Kind::Infinities => {
            if rng.one_in(20) {
                sign * f32::INFINITY
            } else {
                v
            }
        }
        Kind::Nans => {
            if rng.one_in(20) {
                f32::NAN.copysign(v)
            } else {
                v
            }
        }
        Kind::AnyBits => f32::from_bits(rng.bits() as u32),
    }
}

fn values(rng: &mut Rng, kind: Kind, n: usize) -> Vec<f32> {
    (0..n).map(|_| draw(rng, kind)).collect()
}

fn filled(b: &CpuBackend, rows: usize, values: &[f32]) -> CpuBuffer {
    let mut buffer = b.buffer(rows, values.len() / rows);
    b.write(&mut buffer, values);
    buffer
}

fn bits(v: f32) -> u32 {
    if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }
}

/// Runs `run` on every instruction set in both precisions and compares with plain Rust.
fn check(what: impl Fn() -> String, run: impl Fn(&CpuBackend) -> Vec<f32>) {
    for precision in [Precision::F32, Precision::Int8] {
        let mut wanted: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let b = CpuBackend::with_isa(precision, 1, isa);
            let got = run(&b);
            let Some(want) = &wanted else {
                assert_eq!(isa.name(), "portable");
                wanted = Some(got);
                continue;
            };
            assert_eq!(got.len(), want.len());
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                assert!(
                    bits(*g) == bits(*w),
                    "{}, {}: value {i} is {g:e} ({:08x}), portable has {w:e} ({:08x})",
                    b.describe(),
                    what(),
                    g.to_bits(),
                    w.to_bits()
                );
            }
        }
    }
}

#[test]
fn linear_gated_and_embed() {
    let mut rng = Rng::new(1);
    for format in all_formats() {
        let group = if let WeightFormat::Quant(format, _) = format { format.group() } else { 1 };
        for kind in KINDS {
            let inputs = if group == 1 { [16, 33, 100][rng.below(3)] } else { group * (1 + rng.below(4)) };
            let (rows, outputs) = (1 + rng.below(9), 1 + rng.below(11));
            let shape = Shape { experts: 1, outputs, inputs };
            let [first, second] = [0, 1].map(|offset| random_weight(&mut rng, format, shape, offset));
            let x = values(&mut rng, kind, rows * inputs);
            check(
                || format!("linear {format} {kind:?} {rows} rows {shape:?}"),
                |b| {
                    let [first, second] = [&first, &second].map(|w| b.load_weight(w.clone()).expect("a weight"));
                    let x = filled(b, rows, &x);
                    let (mut one, mut two, mut both) =
                        (b.buffer(rows, outputs), b.buffer(rows, outputs), b.buffer(rows, outputs));
                    b.linear(&x, &[&first, &second], &mut [&mut one, &mut two]);
                    b.gated(&x, &first, &second, Activation::GeluTanh, &mut both);
                    let mut row = b.buffer(1, inputs);
                    b.embed(&first, &[outputs as u32 - 1], 3.0, &mut row);
                    [b.read(&one), b.read(&two), b.read(&both), b.read(&row)].concat()
                },
            );
        }
    }
}

#[test]
fn damaged_scales() {
    let mut rng = Rng::new(2);
    for bits in [2, 3, 4, 5, 6, 8] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let format = WeightFormat::Quant(QuantFormat::Affine { bits, group: 64 }, DType::F32);
            let mut host = random_weight(&mut rng, format, Shape { experts: 1, outputs: 6, inputs: 192 }, 0);
            let mut scales = host.scales.to_vec();
            scales[4 * 7..][..4].copy_from_slice(&bad.to_le_bytes()); // row 2, group 1
            host.scales = scales.into();
            let x = values(&mut rng, Kind::Normal, 3 * 192);
            check(
                || format!("{bits}-bit codes, a scale of {bad}"),
                |b| {
                    let weight = b.load_weight(host.clone()).expect("a weight");
                    let mut out = b.buffer(3, 6);
                    b.linear(&filled(b, 3, &x), &[&weight], &mut [&mut out]);
                    let out = b.read(&out);
                    assert!(bad == f32::MAX || (0..3).all(|r| !out[r * 6 + 2].is_finite()), "{}", b.describe());
                    out
                },
            );
        }
    }
}

#[test]
fn rows_and_elements() {
    let mut rng = Rng::new(3);
    for kind in KINDS {
        for width in [1, 7, 16, 40, 128] {
            let rows = 3;
            let [x, y] = [0, 1].map(|_| values(&mut rng, kind, rows * width));
            let weight = values(&mut rng, Kind::Normal, width);
            check(
                || format!("rows of {width}, {kind:?}"),
                |b| {
                    let vector = b.load_vector(&weight);
                    let other = filled(b, rows, &y);
                    let mut out = Vec::new();
                    for weight in [None, Some(&vector)] {
                        let mut normed = b.buffer(rows, width);
                        b.rms_norm(&other, width, weight, 1e-6, &mut normed);
                        out.extend(b.read(&normed));
                    }
                    let mut in_place = |f: &dyn Fn(&mut CpuBuffer)| {
                        let mut x = filled(b, rows, &x);
                        f(&mut x);
                        out.extend(b.read(&x));
                    };
                    in_place(&|x| b.add_rms_norm(x, &other, &vector, 1e-6, 0.3));
                    in_place(&|x| b.add(x, &other, 0.3));
                    in_place(&|x| b.scale(x, None, 0.3));
                    in_place(&|x| b.scale(x, Some(&vector), 0.3));
                    in_place(&|x| b.activate_mul(x, Activation::GeluTanh, &other, 0));
                    in_place(&|x| b.activate_mul(x, Activation::Silu, &other, 0));
                    in_place(&|x| b.softcap(x, 30.0));
                    let mut picked = b.buffer(2, width);
                    b.gather(&other, &[2, 0], &mut picked);
                    out.extend(b.read(&picked));
                    out.extend(b.argmax(&other).into_iter().map(|best| best.map_or(f32::NAN, |i| i as f32)));
                    out
                },
            );
        }
        for head_dim in [2, 6, 32, 64, 80] {
            let x = values(&mut rng, kind, 3 * 2 * head_dim);
            let frequencies = values(&mut rng, Kind::Normal, head_dim / 2);
            check(
                || format!("rope, heads of {head_dim}, {kind:?}"),
                |b| {
                    let angles = b.rope_angles(&[0, 77, 100_000], 1, &[], &b.load_vector(&frequencies));
                    let mut x = filled(b, 3, &x);
                    b.rope(&mut x, head_dim, &angles);
                    [b.read(&x), b.read(&angles)].concat()
                },
            );
        }
    }
}

#[test]
fn attention() {
    const POSITIONS: usize = 140;
    let mut rng = Rng::new(4);
    for kind in KINDS {
        for (heads, kv_heads, head_dim, window) in [(2, 1, 32, None), (4, 2, 24, Some(70)), (3, 3, 64, Some(8))] {
            let q =
                values(&mut rng, if kind == Kind::Tiny { Kind::Normal } else { kind }, POSITIONS * heads * head_dim);
            let [k, v] = [0, 1].map(|_| values(&mut rng, kind, POSITIONS * kv_heads * head_dim));
            let layout = [KvGroup { window, layers: vec![KvShape { kv_heads, head_dim }] }];
            let slot = KvSlot { group: 0, layer: 0 };
            check(
                || format!("{heads}/{kv_heads} heads of {head_dim}, window {window:?}, {kind:?}"),
                |b| {
                    let mut kv = b.kv_new(&layout, &[3]).expect("pages");
                    let mut batch = Batch::new();
                    batch.push(0, 0, &[0; POSITIONS], &[&[1, 2, 0]], Wanted::None);
                    b.kv_append(&mut kv, slot, &batch, &filled(b, POSITIONS, &k), &filled(b, POSITIONS, &v));
                    let mut out = b.buffer(POSITIONS, heads * head_dim);
                    let spec = Attend { heads, scale: 0.2, window };
                    b.attend(&kv, slot, &batch, &filled(b, POSITIONS, &q), spec, &mut out);
                    b.read(&out)
                },
            );
        }
    }
}

#[test]
fn experts() {
    let mut rng = Rng::new(5);
    let affine = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 32 }, DType::Bf16);
    for format in [affine, WeightFormat::Float(DType::Bf16), WeightFormat::Quant(QuantFormat::Mxfp4, DType::U8)] {
        for kind in KINDS {
            let (rows, experts, hidden, width) = (5, 6, 64, 96);
            let inner = Shape { experts, outputs: width, inputs: hidden };
            let [gate, up] = [0, 1].map(|offset| random_weight(&mut rng, format, inner, offset));
            let down = random_weight(&mut rng, format, Shape { experts, outputs: hidden, inputs: width }, 0);
            let (router, x) = (values(&mut rng, kind, rows * experts), values(&mut rng, kind, rows * hidden));
            check(
                || format!("moe {format} {kind:?}"),
                |b| {
                    let [gate, up, down] = [&gate, &up, &down].map(|w| b.load_weight(w.clone()).expect("a weight"));
                    let scale = b.load_vector(&vec![0.5; experts]);
                    let activation = Activation::GeluTanh;
                    let weights = Experts { gate: &gate, up: &up, down: &down, scale: &scale, top_k: 2, activation };
                    let mut out = b.buffer(rows, hidden);
                    b.moe(&filled(b, rows, &router), &filled(b, rows, &x), &weights, &mut out);
                    b.read(&out)
                },
            );
        }
    }
}
