//! The CPU backend against the scalar specification in `mlxcel_compute::order`, in bits.
//!
//! The conformance suite says that results are near the f64 reference and alike in every company; this says which of the
//! many near results they are, so that another build or machine can be held to the same.

use mlxcel_compute::conformance::all_formats;
use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::conformance::weights::{Shape, random_weight};
use mlxcel_compute::dequant::{code, dequantize_element, dequantize_row, e2m1, e4m3, e8m0};
use mlxcel_compute::order::{self, CodeRow};
use mlxcel_compute::{
    Activation, Attend, Backend, Batch, DType, Experts, HostWeight, KvGroup, KvShape, KvSlot, QuantFormat, Wanted,
    WeightFormat,
};
use mlxcel_cpu::{CpuBackend, CpuBuffer, Isa, Precision};

const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Int8];

/// Every instruction set, on two threads.
fn backends(precision: Precision) -> Vec<CpuBackend> {
    Isa::available().into_iter().map(|isa| CpuBackend::with_isa(precision, 2, isa)).collect()
}

fn filled(b: &CpuBackend, rows: usize, values: &[f32]) -> CpuBuffer {
    let mut buffer = b.buffer(rows, values.len() / rows);
    b.write(&mut buffer, values);
    buffer
}

fn normals(rng: &mut Rng, n: usize, spread: f32) -> Vec<f32> {
    (0..n).map(|_| spread * rng.normal()).collect()
}

#[track_caller]
fn same(got: &[f32], want: &[f32], what: impl Fn() -> String) {
    assert_eq!(got.len(), want.len(), "{}", what());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.to_bits(), w.to_bits(), "{}: value {i} is {g:e}, the specification says {w:e}", what());
    }
}

/// Little-endian scale or bias `i` as f32.
fn float_at(bytes: &[u8], dtype: DType, i: usize) -> f32 {
    let half = |i: usize| u16::from_le_bytes(bytes[2 * i..][..2].try_into().expect("two bytes"));
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes[4 * i..][..4].try_into().expect("four bytes")),
        DType::Bf16 => half::bf16::from_bits(half(i)).to_f32(),
        _ => half::f16::from_bits(half(i)).to_f32(),
    }
}

/// A weight row of a format that has an integer form.
struct Row {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// Row `row` of a quantised weight, or nothing when the format has no integer form.
fn code_row(w: &HostWeight, row: usize) -> Option<Row> {
    let WeightFormat::Quant(format, scale_type) = w.format else { return None };
    let bytes = &w.data[row * w.row_bytes()..][..w.row_bytes()];
    let codes = (0..w.inputs).map(|i| code(bytes, format.bits(), i));
    let groups = w.inputs / format.group();
    let groups = row * groups..(row + 1) * groups;
    let doubled = |scale: fn(u8) -> f32| {
        let scales: Vec<f32> = w.scales[groups.clone()].iter().map(|s| scale(*s)).collect();
        Row {
            codes: codes.clone().map(|c| (2.0 * e2m1(c) + 12.0) as u8).collect(),
            biases: scales.iter().map(|s| -6.0 * s).collect(),
            scales: scales.iter().map(|s| 0.5 * s).collect(),
        }
    };
    match format {
        QuantFormat::Mxfp8 => None,
        QuantFormat::Mxfp4 => Some(doubled(e8m0)),
        QuantFormat::Nvfp4 => Some(doubled(e4m3)),
        QuantFormat::Affine { .. } => Some(Row {
            codes: codes.collect(),
            scales: groups.clone().map(|g| float_at(&w.scales, scale_type, g)).collect(),
            biases: groups.map(|g| float_at(&w.biases, scale_type, g)).collect(),
        }),
    }
}

/// What a linear must give for one activation row and one weight row.
fn linear_spec(w: &HostWeight, row: usize, x: &[f32], precision: Precision) -> f32 {
    if precision == Precision::Int8
        && w.inputs.is_multiple_of(32)
        && let Some(Row { codes, scales, biases }) = code_row(w, row)
    {
        let step = order::activation_group(x.len());
        let mut x_codes = vec![0i8; x.len()];
        let x_scales: Vec<f32> =
            x.chunks(step).zip(x_codes.chunks_mut(step)).map(|(x, c)| order::quantize_group(x, c)).collect();
        let w = CodeRow { codes: &codes, scales: &scales, biases: &biases };
        return order::int8_dot(w, &x_codes, &x_scales);
    }
    let mut weights = vec![0.0; w.inputs];
    dequantize_row(w, row / w.outputs, row % w.outputs, &mut weights);
    order::dot(x, &weights)
}

#[test]
fn linear_is_int8_dot_or_dot() {
    let mut rng = Rng::new(1);
    let (mut compared, mut turn) = (0, 0);
    for precision in PRECISIONS {
        let backends = backends(precision);
        for format in all_formats() {
            let group = if let WeightFormat::Quant(format, _) = format { format.group() } else { 1 };
            // One group and many; odd numbers of small groups make activations come in 32 values. Every number of rows has
            // its turn, with whole panels and panels cut short.
            let columns =
                if group == 1 { vec![1, 15, 33, 96] } else { [1, 2, 3, 5, 7, 16].map(|n| n * group).to_vec() };
            for inputs in columns {
                let (rows, outputs) = (1 + turn % 17, 1 + rng.below(49));
                turn += 1;
                let shape = Shape { experts: 1, outputs, inputs };
                let host = random_weight(&mut rng, format, shape, 1);
                let spread = [1e-3, 1.0, 1e4][rng.below(3)];
                let x = normals(&mut rng, rows * inputs, spread);
                let want: Vec<f32> = (0..rows * outputs)
                    .map(|i| linear_spec(&host, i % outputs, &x[i / outputs * inputs..][..inputs], precision))
                    .collect();
                for b in &backends {
                    let weight = b.load_weight(host.clone()).expect("a supported weight");
                    let mut out = b.buffer(rows, outputs);
                    b.linear(&filled(b, rows, &x), &[&weight], &mut [&mut out]);
                    same(&b.read(&out), &want, || format!("{}: {format}, {rows} rows, {shape:?}", b.describe()));
                    compared += want.len();
                }
            }
        }
    }
    println!("{compared} values of linear");
    assert!(compared > 10_000);
}

#[test]
fn embed_is_the_dequantised_row_scaled() {
    let mut rng = Rng::new(2);
    for format in all_formats() {
        let shape = Shape { experts: 1, outputs: 9, inputs: 128 };
        let host = random_weight(&mut rng, format, shape, 3);
        let ids = [8u32, 0, 3];
        let want: Vec<f32> = ids
            .iter()
            .flat_map(|id| (0..128).map(|c| dequantize_element(&host, 0, *id as usize, c) * 19.6).collect::<Vec<_>>())
            .collect();
        for b in backends(Precision::Int8) {
            let table = b.load_weight(host.clone()).expect("a supported weight");
            let mut out = b.buffer(3, 128);
            b.embed(&table, &ids, 19.6, &mut out);
            same(&b.read(&out), &want, || format!("{}: {format}", b.describe()));
        }
    }
}

#[test]
fn norms_are_rms_norm() {
    let mut rng = Rng::new(3);
    for width in [1, 5, 16, 17, 64, 100, 256, 384] {
        let (rows, spread) = (3, [1e-4, 1.0, 1e3][rng.below(3)]);
        let (x, residual) = (normals(&mut rng, rows * width, spread), normals(&mut rng, rows * width, 1.0));
        let weight = normals(&mut rng, width, 1.0);
        for b in backends(Precision::F32) {
            let buffer = filled(&b, rows, &x);
            let vector = b.load_vector(&weight);
            for weights in [None, Some(&weight)] {
                let mut out = b.buffer(rows, width);
                b.rms_norm(&buffer, width, weights.map(|_| &vector), 1e-6, &mut out);
                let norm = |x| order::rms_norm(x, weights.map(Vec::as_slice), 1e-6);
                let want: Vec<f32> = x.chunks(width).flat_map(norm).collect();
                same(&b.read(&out), &want, || format!("{}: rms_norm of {width}", b.describe()));
            }
            let normed = x.chunks(width).flat_map(|x| order::rms_norm(x, Some(&weight), 1e-6));
            let want: Vec<f32> = residual.iter().zip(normed).map(|(r, n)| (r + n) * 0.7).collect();
            let mut sum = filled(&b, rows, &residual);
            b.add_rms_norm(&mut sum, &buffer, &vector, 1e-6, 0.7);
            same(&b.read(&sum), &want, || format!("{}: add_rms_norm of {width}", b.describe()));
        }
    }
}

#[test]
fn activations_are_those_of_the_specification() {
    let mut rng = Rng::new(4);
    let (x, y) = (normals(&mut rng, 1000, 6.0), normals(&mut rng, 1000, 1.0));
    for b in backends(Precision::F32) {
        for (act, f) in [(Activation::GeluTanh, order::gelu_tanh as fn(f32) -> f32), (Activation::Silu, order::silu)] {
            let mut out = filled(&b, 4, &x);
            b.activate_mul(&mut out, act, &filled(&b, 4, &y), 0);
            let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| f(*x) * y).collect();
            same(&b.read(&out), &want, || format!("{}: {act:?}", b.describe()));
        }
        let mut out = filled(&b, 4, &x);
        b.softcap(&mut out, 5.0);
        let want: Vec<f32> = x.iter().map(|x| order::tanh(x / 5.0) * 5.0).collect();
        same(&b.read(&out), &want, || format!("{}: softcap", b.describe()));
    }
}

#[test]
fn attend_is_attend_row() {
    const POSITIONS: usize = 150;
    let mut rng = Rng::new(5);
    for (heads, kv_heads, head_dim) in [(2, 1, 32), (4, 2, 64), (1, 1, 16), (3, 3, 24), (6, 2, 128)] {
        for window in [None, Some(8), Some(64), Some(100)] {
            let spread = [0.2, 1.0, 8.0][rng.below(3)];
            let q = normals(&mut rng, POSITIONS * heads * head_dim, spread);
            let k = normals(&mut rng, POSITIONS * kv_heads * head_dim, 1.0);
            let v = normals(&mut rng, POSITIONS * kv_heads * head_dim, 1.0);
            let scale = 1.0 / (head_dim as f32).sqrt();
            for precision in PRECISIONS {
                // What pages hold, one K/V head after another.
                let stored = |x: &[f32], head: usize| -> Vec<f32> {
                    let rows = x.chunks_exact(kv_heads * head_dim);
                    rows.flat_map(|row| row[head * head_dim..][..head_dim].to_vec())
                        .map(|v| if precision == Precision::F32 { v } else { half::bf16::from_f32(v).to_f32() })
                        .collect()
                };
                let (keys, values): (Vec<_>, Vec<_>) = (0..kv_heads).map(|h| (stored(&k, h), stored(&v, h))).unzip();
                let mut want = Vec::new();
                for (position, q) in q.chunks_exact(heads * head_dim).enumerate() {
                    for (h, q) in q.chunks_exact(head_dim).enumerate() {
                        let (kv, seen) = (h / (heads / kv_heads), ..(position + 1) * head_dim);
                        want.extend(order::attend_row(q, &keys[kv][seen], &values[kv][seen], scale, window));
                    }
                }
                let layout = [KvGroup { window, layers: vec![KvShape { kv_heads, head_dim }] }];
                let slot = KvSlot { group: 0, layer: 0 };
                for b in backends(precision) {
                    let mut kv = b.kv_new(&layout, &[3]).expect("pages");
                    let mut batch = Batch::new();
                    batch.push(0, 0, &[0; POSITIONS], &[&[2, 0, 1]], Wanted::None);
                    b.kv_append(&mut kv, slot, &batch, &filled(&b, POSITIONS, &k), &filled(&b, POSITIONS, &v));
                    let mut out = b.buffer(POSITIONS, heads * head_dim);
                    let spec = Attend { heads, scale, window };
                    b.attend(&kv, slot, &batch, &filled(&b, POSITIONS, &q), spec, &mut out);
                    same(&b.read(&out), &want, || {
                        format!("{}: {heads}/{kv_heads} heads of {head_dim}, window {window:?}", b.describe())
                    });
                }
            }
        }
    }
}

#[test]
fn moe_is_route_and_gated_experts_in_rank_order() {
    let mut rng = Rng::new(6);
    let affine = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 32 }, DType::Bf16);
    for (format, act) in [(WeightFormat::Float(DType::F32), Activation::GeluTanh), (affine, Activation::Silu)] {
        for (experts, top_k) in [(4, 1), (8, 2), (5, 5), (16, 4)] {
            let (rows, hidden, width) = (7, 64, 96);
            let inner = Shape { experts, outputs: width, inputs: hidden };
            let [gate, up] = [0, 1].map(|offset| random_weight(&mut rng, format, inner, offset));
            let down = random_weight(&mut rng, format, Shape { experts, outputs: hidden, inputs: width }, 2);
            // Halves, so that ties occur.
            let router: Vec<f32> = (0..rows * experts).map(|_| rng.below(8) as f32 * 0.5 - 2.0).collect();
            let x = normals(&mut rng, rows * hidden, 1.0);
            let scale: Vec<f32> = (0..experts).map(|_| 0.5 + rng.unit()).collect();
            let activate = if act == Activation::Silu { order::silu } else { order::gelu_tanh };
            for precision in PRECISIONS {
                let mut want = vec![0.0f32; rows * hidden];
                for (r, out) in want.chunks_exact_mut(hidden).enumerate() {
                    let x = &x[r * hidden..][..hidden];
                    for (e, factor) in order::route(&router[r * experts..][..experts], &scale, top_k) {
                        let h: Vec<f32> = (e * width..(e + 1) * width)
                            .map(|o| activate(linear_spec(&gate, o, x, precision)) * linear_spec(&up, o, x, precision))
                            .collect();
                        for (o, out) in out.iter_mut().enumerate() {
                            *out = factor.mul_add(linear_spec(&down, e * hidden + o, &h, precision), *out);
                        }
                    }
                }
                for b in backends(precision) {
                    let [gate, up, down] =
                        [&gate, &up, &down].map(|w| b.load_weight(w.clone()).expect("a supported weight"));
                    let scale = b.load_vector(&scale);
                    let weights = Experts { gate: &gate, up: &up, down: &down, scale: &scale, top_k, activation: act };
                    let mut out = b.buffer(rows, hidden);
                    b.moe(&filled(&b, rows, &router), &filled(&b, rows, &x), &weights, &mut out);
                    same(&b.read(&out), &want, || format!("{}: {format}, {top_k} of {experts}", b.describe()));
                }
            }
        }
    }
}

#[test]
fn damage_is_not_hidden() {
    let not_finite = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let stack = Shape { experts: 3, outputs: 32, inputs: 32 };
    let weight = random_weight(&mut Rng::new(8), WeightFormat::Float(DType::F32), stack, 0);
    for b in PRECISIONS.into_iter().flat_map(backends) {
        for bad in not_finite {
            let mut x = filled(&b, 1, &[1.0, bad, -2.0]);
            b.softcap(&mut x, 30.0);
            let capped = b.read(&x);
            assert!(capped[0].is_finite() && !capped[1].is_finite(), "{}: softcap of {bad}: {capped:?}", b.describe());

            // The damaged expert itself is not chosen.
            for router in [[1.0, 0.5, bad], [bad, 0.5, 1.0]] {
                let w = b.load_weight(weight.clone()).expect("a weight");
                let scale = b.load_vector(&[1.0; 3]);
                let experts =
                    Experts { gate: &w, up: &w, down: &w, scale: &scale, top_k: 1, activation: Activation::Silu };
                let mut out = b.buffer(1, 32);
                b.moe(&filled(&b, 1, &router), &filled(&b, 1, &[0.5; 32]), &experts, &mut out);
                assert!(b.read(&out).iter().all(|v| v.is_nan()), "{}: router {router:?}", b.describe());
                assert!(order::route(&router, &[1.0; 3], 1)[0].1.is_nan());
            }
        }
    }
}

#[test]
fn a_wrong_order_is_noticed() {
    // The twin: the same products added in plain order are near, and not equal.
    let mut rng = Rng::new(7);
    let (x, w) = (normals(&mut rng, 384, 1.0), normals(&mut rng, 384, 1.0));
    let plain = x.iter().zip(&w).fold(0.0f32, |a, (x, w)| x.mul_add(*w, a));
    let specified = order::dot(&x, &w);
    assert!((plain - specified).abs() < 1e-4 && plain.to_bits() != specified.to_bits());
}

#[test]
fn a_wrong_int8_order_is_noticed() {
    // The twin: all biases after all dot products instead of each after its group.
    let mut rng = Rng::new(9);
    let format = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16);
    let b = CpuBackend::new(Precision::Int8, 1);
    let (outputs, inputs) = (64, 512);
    let host = random_weight(&mut rng, format, Shape { experts: 1, outputs, inputs }, 0);
    let x = normals(&mut rng, inputs, 1.0);
    let mut out = b.buffer(1, outputs);
    b.linear(&filled(&b, 1, &x), &[&b.load_weight(host.clone()).expect("a weight")], &mut [&mut out]);
    let mut x_codes = vec![0i8; inputs];
    let x_scales: Vec<f32> =
        x.chunks(64).zip(x_codes.chunks_mut(64)).map(|(x, c)| order::quantize_group(x, c)).collect();
    let differing = (0..outputs).zip(b.read(&out)).filter(|(o, got)| {
        let Row { codes, scales, biases } = code_row(&host, *o).expect("an integer form");
        let none = vec![0.0; biases.len()];
        let w = CodeRow { codes: &codes, scales: &scales, biases: &none };
        let sums = x_codes.chunks(64).map(|c| c.iter().map(|v| i32::from(*v)).sum::<i32>() as f32);
        let late = biases.iter().zip(sums).zip(&x_scales);
        let late = late.fold(order::int8_dot(w, &x_codes, &x_scales), |a, ((b, s), x)| b.mul_add(s * x, a));
        assert!((late - got).abs() < 1e-2, "output {o}: {late} and {got}");
        late.to_bits() != got.to_bits()
    });
    assert!(differing.count() > outputs / 4);
}
