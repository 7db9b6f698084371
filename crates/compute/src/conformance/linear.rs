//! Verbs that read a matrix in its stored format: `linear`, `gated`, `embed`.

use super::rng::Rng;
use super::rows::{Case, Input, Rows, draw};
use super::weights::{Shape, random_weight};
use super::{Options, Report, Violation, all_formats, first_difference, stale};
use crate::dequant::dequantize_row;
use crate::reference::{Dense, Reference};
use crate::{Activation, Backend, DType, QuantFormat, WeightFormat};

/// Output counts: single, odd, more than a vector, no power of two.
const OUTPUTS: [usize; 4] = [33, 7, 100, 1];
/// Input counts of quantised matrices, where the group divides them.
const INPUTS: [usize; 8] = [96, 384, 32, 128, 352, 64, 896, 576];
/// Input counts of plain floats: tails of every kind as well.
const FLOAT_INPUTS: [usize; 8] = [20, 352, 48, 72, 33, 896, 128, 7];

/// A matrix on the backend, on the reference, and as plain values for the bounds.
pub(super) struct Loaded<B: Backend> {
    pub format: WeightFormat,
    pub shape: Shape,
    pub weight: B::Weight,
    pub dense: Dense,
    values: Vec<f32>, // (experts, outputs, inputs)
}

impl<B: Backend> Loaded<B> {
    /// Draws a matrix and loads it everywhere.
    pub fn random(b: &B, op: &str, rng: &mut Rng, format: WeightFormat, shape: Shape) -> Result<Self, Violation> {
        let offset = rng.below(4);
        let host = random_weight(rng, format, shape, offset);
        let mut values = vec![0.0; shape.experts * shape.outputs * shape.inputs];
        for (i, row) in values.chunks_exact_mut(shape.inputs).enumerate() {
            dequantize_row(&host, i / shape.outputs, i % shape.outputs, row);
        }
        let dense = Reference.load_weight(host.clone()).expect("the reference takes every format");
        let weight = b.load_weight(host).map_err(|e| Violation::new(op, format!("{format:?} {shape:?}: {e}")))?;
        Ok(Loaded { format, shape, weight, dense, values })
    }

    /// `x @ w^T` of one row with one expert's matrix.
    pub fn product(&self, expert: usize, x: &[f32]) -> Vec<f64> {
        self.sums(expert, x, |w, x| w * x)
    }

    /// What the errors of that product are relative to: `sum |term| |w|` with [`terms`].
    pub fn magnitude(&self, expert: usize, terms: &[f32]) -> Vec<f64> {
        self.sums(expert, terms, |w, x| (w * x).abs())
    }

    fn sums(&self, expert: usize, x: &[f32], term: fn(f64, f64) -> f64) -> Vec<f64> {
        let size = self.shape.outputs * self.shape.inputs;
        let sum = |w: &[f32]| w.iter().zip(x).map(|(w, x)| term(f64::from(*w), f64::from(*x))).sum();
        self.values[expert * size..][..size].chunks_exact(self.shape.inputs).map(sum).collect()
    }

    /// The magnitudes of several rows.
    fn magnitudes(&self, x: &[f32]) -> Vec<f64> {
        let terms = terms(self.format, x, self.shape.inputs);
        terms.chunks_exact(self.shape.inputs).flat_map(|row| self.magnitude(0, row)).collect()
    }
}

/// Magnitudes of a product's left operands: their own for floats; the row's largest where activations are rounded with
/// a shared scale.
pub(super) fn terms(format: WeightFormat, x: &[f32], width: usize) -> Vec<f32> {
    match format {
        WeightFormat::Float(_) => x.iter().map(|v| v.abs()).collect(),
        WeightFormat::Quant(..) => largest(x, width),
    }
}

/// The largest magnitude of each row, at each of its places.
fn largest(x: &[f32], width: usize) -> Vec<f32> {
    let of = |row: &[f32]| row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    x.chunks_exact(width).flat_map(|row| std::iter::repeat_n(of(row), width)).collect()
}

/// One call of `linear`; the outputs of a row side by side, weight after weight.
fn linear<B: Backend>(
    b: &B,
    weights: &[&B::Weight],
    outputs: &[usize],
    inputs: usize,
    x: &[f32],
    n: usize,
) -> Vec<f32> {
    let x = super::filled(b, n, inputs, x);
    let mut outs: Vec<B::Buffer> = outputs.iter().map(|o| stale(b, n, *o)).collect();
    b.linear(&x, weights, &mut outs.iter_mut().collect::<Vec<_>>());
    let parts: Vec<Vec<f32>> = outs.iter().map(|out| b.read(out)).collect();
    (0..n).flat_map(|r| parts.iter().zip(outputs).flat_map(move |(p, o)| p[r * o..][..*o].iter().copied())).collect()
}

/// Shapes to try for a format. Quantised formats are many and share kernels: each gets some, all sizes get their turn.
pub(super) fn shapes(options: &Options, format: WeightFormat, turn: usize) -> Vec<Shape> {
    let inputs: Vec<usize> = match format {
        WeightFormat::Float(_) => FLOAT_INPUTS.to_vec(),
        WeightFormat::Quant(q, _) => INPUTS.into_iter().filter(|i| i.is_multiple_of(q.group())).collect(),
    };
    let some = match (format, options.quick) {
        (WeightFormat::Float(_), false) => inputs.len(),
        (WeightFormat::Quant(..), false) => inputs.len().min(5),
        (WeightFormat::Float(_), true) => 5,
        (WeightFormat::Quant(..), true) => 2,
    };
    let outputs = |i: usize| OUTPUTS[(turn + i) % OUTPUTS.len()];
    let shape = |i: usize| Shape { experts: 1, outputs: outputs(i), inputs: inputs[(turn + i) % inputs.len()] };
    (0..some).map(shape).collect()
}

/// `linear` over every format, alone and several weights in one call.
///
/// # Errors
/// The first violation found.
pub fn check_linear<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, format) in all_formats().into_iter().enumerate() {
            for shape in shapes(options, format, turn) {
                let mut rng = Rng::for_case(*seed, &format!("linear {format:?} {shape:?}"));
                let w = Loaded::random(b, "linear", &mut rng, format, shape)?;
                let tolerance = options.matmul(format);
                let case = Case {
                    op: "linear",
                    label: format!("{format:?} {}x{}", shape.outputs, shape.inputs),
                    inputs: &[Input::Values(shape.inputs)],
                    outputs: shape.outputs,
                    run: &|rows| linear(b, &[&w.weight], &[shape.outputs], shape.inputs, &rows.inputs[0], rows.n),
                    want: &|rows| {
                        linear(&Reference, &[&w.dense], &[shape.outputs], shape.inputs, &rows.inputs[0], rows.n)
                    },
                    bound: &|rows, _| w.magnitudes(&rows.inputs[0]).iter().map(|m| tolerance * m + 1e-30).collect(),
                };
                case.check(options, *seed, &mut report)?;
            }
        }
        for inputs in [128, 384] {
            together(b, options, *seed, inputs, &mut report)?;
        }
    }
    Ok(report)
}

/// Several weights of mixed formats in one call equal one call each, at every width.
fn together<B: Backend>(
    b: &B,
    options: &Options,
    seed: u64,
    inputs: usize,
    report: &mut Report,
) -> Result<(), Violation> {
    let affine = |bits, group| WeightFormat::Quant(QuantFormat::Affine { bits, group }, DType::Bf16);
    let sets = [
        vec![affine(4, 64), affine(4, 64)],
        vec![affine(4, 64), affine(4, 64), affine(4, 64), affine(4, 64)],
        vec![affine(8, 32), affine(4, 64), WeightFormat::Float(DType::Bf16)],
        vec![WeightFormat::Float(DType::Bf16), WeightFormat::Float(DType::Bf16), WeightFormat::Float(DType::F32)],
        vec![WeightFormat::Quant(QuantFormat::Mxfp4, DType::U8), affine(6, 128), affine(4, 32)],
    ];
    for formats in sets {
        let label = format!("together {formats:?} {inputs} inputs");
        let mut rng = Rng::for_case(seed, &label);
        let mut weights = Vec::new();
        for (i, format) in formats.iter().enumerate() {
            let shape = Shape { experts: 1, outputs: OUTPUTS[(i + 2) % OUTPUTS.len()], inputs };
            weights.push(Loaded::random(b, "linear", &mut rng, *format, shape)?);
        }
        let refs: Vec<&B::Weight> = weights.iter().map(|w| &w.weight).collect();
        let outputs: Vec<usize> = weights.iter().map(|w| w.shape.outputs).collect();
        let total: usize = outputs.iter().sum();
        let input = [Input::Values(inputs)];
        let rows = draw(&mut rng, &input, options.rows());
        let one = |w: usize, row: &[f32]| linear(b, &[refs[w]], &[outputs[w]], inputs, row, 1);
        let alone: Vec<Vec<f32>> =
            rows.iter().map(|(_, row)| (0..refs.len()).flat_map(|w| one(w, &row[0])).collect()).collect();
        for width in std::iter::once(1).chain(options.widths()) {
            let chosen = rng.sample(rows.len(), width);
            let flat = Rows::of(&chosen.iter().map(|r| &rows[*r].1).collect::<Vec<_>>());
            let got = linear(b, &refs, &outputs, inputs, &flat.inputs[0], width);
            for (at, r) in chosen.iter().enumerate() {
                if let Some(i) = first_difference(&alone[*r], &got[at * total..][..total]) {
                    let what = format!("{label}: value {i} of row {at} of {width} differs from one weight at a time");
                    return Err(Violation::new("linear", what));
                }
                report.entry("linear").bits += total as u64;
            }
        }
    }
    Ok(())
}

/// `gated` over some formats and all activations, including gate and up of different formats.
///
/// # Errors
/// The first violation found.
pub fn check_gated<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let affine = |bits, group, scales| WeightFormat::Quant(QuantFormat::Affine { bits, group }, scales);
    let mut pairs = vec![
        (WeightFormat::Float(DType::F32), WeightFormat::Float(DType::F32)),
        (WeightFormat::Float(DType::Bf16), WeightFormat::Float(DType::Bf16)),
        (affine(4, 64, DType::Bf16), affine(4, 64, DType::Bf16)),
        (affine(8, 32, DType::F16), affine(4, 64, DType::Bf16)),
        (WeightFormat::Quant(QuantFormat::Mxfp4, DType::U8), WeightFormat::Quant(QuantFormat::Mxfp4, DType::U8)),
    ];
    if !options.quick {
        pairs.extend(all_formats().into_iter().map(|f| (f, f)));
    }
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, (gate, up)) in pairs.iter().enumerate() {
            let shape = Shape { experts: 1, outputs: OUTPUTS[turn % 4], inputs: if turn % 2 == 0 { 128 } else { 384 } };
            let act = [Activation::GeluTanh, Activation::Silu, Activation::Sigmoid][turn / 2 % 3];
            let mut rng = Rng::for_case(*seed, &format!("gated {gate:?} {up:?} {shape:?}"));
            let gate = Loaded::random(b, "gated", &mut rng, *gate, shape)?;
            let up = Loaded::random(b, "gated", &mut rng, *up, shape)?;
            let case = Case {
                op: "gated",
                label: format!("{act:?} {:?} {:?} {}x{}", gate.format, up.format, shape.outputs, shape.inputs),
                inputs: &[Input::Values(shape.inputs)],
                outputs: shape.outputs,
                run: &|rows| gated(b, &gate.weight, &up.weight, act, shape, rows),
                want: &|rows| gated(&Reference, &gate.dense, &up.dense, act, shape, rows),
                bound: &|rows, _| {
                    let x = &rows.inputs[0];
                    let products = |w: &Loaded<B>| -> Vec<f64> {
                        x.chunks_exact(shape.inputs).flat_map(|row| w.product(0, row)).collect()
                    };
                    let errors = |w: &Loaded<B>| -> Vec<f64> {
                        w.magnitudes(x).iter().map(|m| options.matmul(w.format) * m).collect()
                    };
                    let (g, dg, u, du) = (products(&gate), errors(&gate), products(&up), errors(&up));
                    (0..g.len()).map(|i| gated_error(act, (g[i], dg[i]), (u[i], du[i]), options.elementwise)).collect()
                },
            };
            case.check(options, *seed, &mut report)?;
        }
    }
    Ok(report)
}

/// Largest error of `act(g) * u` for `g` and `u` with their errors: no activation is steeper than 1.13, nor larger than
/// its argument, or 1 for the sigmoid.
pub(super) fn gated_error(act: Activation, (g, dg): (f64, f64), (u, du): (f64, f64), elementwise: f64) -> f64 {
    let largest = if act == Activation::Sigmoid { 1.0 } else { g.abs() };
    1.13 * dg * (u.abs() + du) + largest * du + elementwise * (1.0 + g.abs()) * u.abs() + 1e-30
}

fn gated<B: Backend>(b: &B, gate: &B::Weight, up: &B::Weight, act: Activation, shape: Shape, rows: &Rows) -> Vec<f32> {
    let x = super::filled(b, rows.n, shape.inputs, &rows.inputs[0]);
    let mut out = stale(b, rows.n, shape.outputs);
    b.gated(&x, gate, up, act, &mut out);
    b.read(&out)
}

/// `embed` over every format.
///
/// # Errors
/// The first violation found.
pub fn check_embed<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    const VOCABULARY: usize = 40;
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, format) in all_formats().into_iter().enumerate() {
            for (i, shape) in shapes(options, format, turn).into_iter().enumerate() {
                let shape = Shape { outputs: VOCABULARY, ..shape };
                let scale = [1.0, 12.7, 0.088_388_35][(turn + i) % 3];
                let mut rng = Rng::for_case(*seed, &format!("embed {format:?} {shape:?}"));
                let table = Loaded::random(b, "embed", &mut rng, format, shape)?;
                let case = Case {
                    op: "embed",
                    label: format!("{format:?} {VOCABULARY}x{} scale {scale}", shape.inputs),
                    inputs: &[Input::Index(VOCABULARY)],
                    outputs: shape.inputs,
                    run: &|rows| embed(b, &table.weight, shape.inputs, scale, rows),
                    want: &|rows| embed(&Reference, &table.dense, shape.inputs, scale, rows),
                    // code * scale + bias cancels: the error is relative to the largest value around, not to the sum.
                    bound: &|_, want| {
                        largest(want, shape.inputs).iter().map(|m| options.elementwise * f64::from(*m)).collect()
                    },
                };
                case.check(options, *seed, &mut report)?;
            }
        }
    }
    Ok(report)
}

fn embed<B: Backend>(b: &B, table: &B::Weight, width: usize, scale: f32, rows: &Rows) -> Vec<f32> {
    let mut out = stale(b, rows.n, width);
    b.embed(table, &rows.indices(0), scale, &mut out);
    b.read(&out)
}
