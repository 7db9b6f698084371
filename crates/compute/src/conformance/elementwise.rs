//! Verbs on activations alone: norms, sums, scales, activations, and moving rows and columns.

use super::rng::Rng;
use super::rows::{Case, Input, Rows, draw};
use super::{Options, Report, Violation, filled, first_difference, stale};
use crate::reference::Reference;
use crate::{Activation, Backend};

/// Row widths: shorter than a vector, with tails, and of models.
fn widths(options: &Options) -> &'static [usize] {
    if options.quick { &[1, 7, 20, 64, 352] } else { &[1, 7, 16, 20, 33, 64, 72, 100, 256, 352, 576, 1152] }
}

/// Random factors around 1 with some of either sign.
fn factors(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| if rng.one_in(9) { -rng.unit() } else { 1.0 + 0.5 * rng.normal() }).collect()
}

/// The error of a sum or product of a few terms, each about as large as the inputs at its place.
pub(super) fn near(options: &Options, want: &[f32], terms: &[&[f32]], factor: f32) -> Vec<f64> {
    want.iter()
        .enumerate()
        .map(|(i, want)| {
            let terms: f64 = terms.iter().map(|t| f64::from((t[i] * factor).abs())).sum();
            options.elementwise * (f64::from(want.abs()) + terms) + 1e-30
        })
        .collect()
}

/// `rms_norm` of whole rows and of heads, with and without a weight.
///
/// # Errors
/// The first violation found.
pub fn check_rms_norm<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, width) in widths(options).iter().enumerate() {
            let row = width * [1, 3, 1, 4][turn % 4];
            for weighted in [true, false] {
                let eps = [1e-6, 1e-5][turn % 2];
                let weight = factors(&mut Rng::for_case(*seed, "rms_norm"), *width);
                let case = Case {
                    op: "rms_norm",
                    label: format!("rows of {row}, normed by {width}, weight {weighted}, eps {eps:e}"),
                    inputs: &[Input::Values(row)],
                    outputs: row,
                    run: &|rows| rms_norm(b, row, *width, weighted.then_some(&weight), eps, rows),
                    want: &|rows| rms_norm(&Reference, row, *width, weighted.then_some(&weight), eps, rows),
                    bound: &|_, want| near(options, want, &[], 1.0),
                };
                case.check(options, *seed, &mut report)?;
            }
        }
    }
    Ok(report)
}

fn rms_norm<B: Backend>(b: &B, row: usize, width: usize, weight: Option<&Vec<f32>>, eps: f32, rows: &Rows) -> Vec<f32> {
    let x = filled(b, rows.n, row, &rows.inputs[0]);
    let mut out = stale(b, rows.n, row);
    b.rms_norm(&x, width, weight.map(|w| b.load_vector(w)).as_ref(), eps, &mut out);
    b.read(&out)
}

/// `add_rms_norm`.
///
/// # Errors
/// The first violation found.
pub fn check_add_rms_norm<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, width) in widths(options).iter().enumerate() {
            let (eps, scale) = (1e-6, [1.0, 0.37][turn % 2]);
            let weight = factors(&mut Rng::for_case(*seed, "add_rms_norm"), *width);
            let largest = weight.iter().fold(0.0f32, |m, w| m.max(w.abs())) * (*width as f32).sqrt();
            let case = Case {
                op: "add_rms_norm",
                label: format!("rows of {width}, scale {scale}"),
                inputs: &[Input::Values(*width), Input::Values(*width)],
                outputs: *width,
                run: &|rows| add_rms_norm(b, *width, &weight, eps, scale, rows),
                want: &|rows| add_rms_norm(&Reference, *width, &weight, eps, scale, rows),
                bound: &|rows, want| {
                    let normed = vec![largest; want.len()]; // a normed value is at most sqrt(width)
                    near(options, want, &[&rows.inputs[0], &normed], scale)
                },
            };
            case.check(options, *seed, &mut report)?;
        }
    }
    Ok(report)
}

fn add_rms_norm<B: Backend>(b: &B, width: usize, weight: &[f32], eps: f32, scale: f32, rows: &Rows) -> Vec<f32> {
    let mut residual = filled(b, rows.n, width, &rows.inputs[0]);
    let y = filled(b, rows.n, width, &rows.inputs[1]);
    b.add_rms_norm(&mut residual, &y, &b.load_vector(weight), eps, scale);
    b.read(&residual)
}

/// `add`.
///
/// # Errors
/// The first violation found.
pub fn check_add<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, width) in widths(options).iter().enumerate() {
            let scale = [1.0, 0.7][turn % 2];
            let case = Case {
                op: "add",
                label: format!("rows of {width}, scale {scale}"),
                inputs: &[Input::Values(*width), Input::Values(*width)],
                outputs: *width,
                run: &|rows| add(b, *width, scale, rows),
                want: &|rows| add(&Reference, *width, scale, rows),
                bound: &|rows, want| near(options, want, &[&rows.inputs[0], &rows.inputs[1]], scale),
            };
            case.check(options, *seed, &mut report)?;
        }
    }
    Ok(report)
}

fn add<B: Backend>(b: &B, width: usize, scale: f32, rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, width, &rows.inputs[0]);
    b.add(&mut x, &filled(b, rows.n, width, &rows.inputs[1]), scale);
    b.read(&x)
}

/// `add_gated`: one gate a row.
///
/// # Errors
/// The first violation found.
pub fn check_add_gated<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for width in widths(options) {
            let case = Case {
                op: "add_gated",
                label: format!("rows of {width}"),
                inputs: &[Input::Values(*width), Input::Values(*width), Input::Values(1)],
                outputs: *width,
                run: &|rows| add_gated(b, *width, rows),
                want: &|rows| add_gated(&Reference, *width, rows),
                bound: &|rows, want| near(options, want, &[&rows.inputs[0], &rows.inputs[1]], 1.0),
            };
            case.check(options, *seed, &mut report)?;
        }
    }
    Ok(report)
}

fn add_gated<B: Backend>(b: &B, width: usize, rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, width, &rows.inputs[0]);
    let y = filled(b, rows.n, width, &rows.inputs[1]);
    b.add_gated(&mut x, &y, &filled(b, rows.n, 1, &rows.inputs[2]));
    b.read(&x)
}

/// `add_vector`.
///
/// # Errors
/// The first violation found.
pub fn check_add_vector<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for width in widths(options) {
            let bias = factors(&mut Rng::for_case(*seed, "add_vector"), *width);
            let case = Case {
                op: "add_vector",
                label: format!("rows of {width}"),
                inputs: &[Input::Values(*width)],
                outputs: *width,
                run: &|rows| add_vector(b, *width, &bias, rows),
                want: &|rows| add_vector(&Reference, *width, &bias, rows),
                bound: &|rows, want| near(options, want, &[&rows.inputs[0]], 1.0),
            };
            case.check(options, *seed, &mut report)?;
        }
    }
    Ok(report)
}

fn add_vector<B: Backend>(b: &B, width: usize, bias: &[f32], rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, width, &rows.inputs[0]);
    b.add_vector(&mut x, &b.load_vector(bias));
    b.read(&x)
}

/// `scale`, with and without a weight.
///
/// # Errors
/// The first violation found.
pub fn check_scale<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for width in widths(options) {
            for weighted in [true, false] {
                let factor = 0.123;
                let weight = factors(&mut Rng::for_case(*seed, "scale"), *width);
                let case = Case {
                    op: "scale",
                    label: format!("rows of {width}, weight {weighted}"),
                    inputs: &[Input::Values(*width)],
                    outputs: *width,
                    run: &|rows| scale(b, *width, weighted.then_some(&weight), factor, rows),
                    want: &|rows| scale(&Reference, *width, weighted.then_some(&weight), factor, rows),
                    bound: &|_, want| near(options, want, &[], 1.0),
                };
                case.check(options, *seed, &mut report)?;
            }
        }
    }
    Ok(report)
}

fn scale<B: Backend>(b: &B, width: usize, weight: Option<&Vec<f32>>, factor: f32, rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, width, &rows.inputs[0]);
    b.scale(&mut x, weight.map(|w| b.load_vector(w)).as_ref(), factor);
    b.read(&x)
}

/// `activate_mul` with the second factor in the first, middle and last columns of a wider buffer.
///
/// # Errors
/// The first violation found.
pub fn check_activate_mul<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, width) in widths(options).iter().enumerate() {
            for act in [Activation::GeluTanh, Activation::Silu, Activation::Sigmoid] {
                let wide = width * 3 + 1;
                let column = [0, *width, wide - width][turn % 3];
                let case = Case {
                    op: "activate_mul",
                    label: format!("{act:?}, rows of {width}, columns {column}.. of {wide}"),
                    inputs: &[Input::Values(*width), Input::Values(wide)],
                    outputs: *width,
                    run: &|rows| activate_mul(b, *width, wide, act, column, rows),
                    want: &|rows| activate_mul(&Reference, *width, wide, act, column, rows),
                    bound: &|rows, want| {
                        (0..want.len())
                            .map(|i| {
                                let y = f64::from(rows.inputs[1][i / width * wide + column + i % width].abs());
                                options.elementwise * (1.0 + f64::from(rows.inputs[0][i].abs())) * y + 1e-30
                            })
                            .collect()
                    },
                };
                case.check(options, *seed, &mut report)?;
            }
        }
    }
    Ok(report)
}

fn activate_mul<B: Backend>(b: &B, width: usize, wide: usize, act: Activation, column: usize, rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, width, &rows.inputs[0]);
    b.activate_mul(&mut x, act, &filled(b, rows.n, wide, &rows.inputs[1]), column);
    b.read(&x)
}

/// `softcap`, where it hardly bends and where it saturates.
///
/// # Errors
/// The first violation found.
pub fn check_softcap<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, width) in widths(options).iter().enumerate() {
            let cap = [30.0, 1.5][turn % 2];
            let case = Case {
                op: "softcap",
                label: format!("rows of {width}, cap {cap}"),
                inputs: &[Input::Values(*width)],
                outputs: *width,
                run: &|rows| softcap(b, *width, cap, rows),
                want: &|rows| softcap(&Reference, *width, cap, rows),
                bound: &|_, want| vec![options.elementwise * f64::from(cap); want.len()],
            };
            case.check(options, *seed, &mut report)?;
        }
    }
    Ok(report)
}

fn softcap<B: Backend>(b: &B, width: usize, cap: f32, rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, width, &rows.inputs[0]);
    b.softcap(&mut x, cap);
    b.read(&x)
}

/// `gather`: any rows in any order, repeated or not, bit for bit.
///
/// # Errors
/// The first violation found.
pub fn check_gather<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for width in widths(options) {
            let mut rng = Rng::for_case(*seed, &format!("gather {width}"));
            let drawn = draw(&mut rng, &[Input::Values(*width)], options.rows());
            let flat = Rows::of(&drawn.iter().map(|(_, row)| row).collect::<Vec<_>>());
            let x = filled(b, flat.n, *width, &flat.inputs[0]);
            for wanted in std::iter::once(1).chain(options.widths()) {
                let rows: Vec<u32> = (0..wanted).map(|_| rng.below(flat.n) as u32).collect();
                let mut out = stale(b, wanted, *width);
                b.gather(&x, &rows, &mut out);
                let got = b.read(&out);
                let want: Vec<f32> = rows.iter().flat_map(|r| drawn[*r as usize].1[0].iter().copied()).collect();
                if got.len() != want.len() {
                    return Err(Violation::new("gather", format!("{wanted} rows: {} values", got.len())));
                }
                if let Some(i) = first_difference(&want, &got) {
                    let what =
                        format!("rows of {width}: output {} of {wanted} is not row {}", i / width, rows[i / width]);
                    return Err(Violation::new("gather", what));
                }
                let count = report.entry("gather");
                (count.bits, count.bounds) = (count.bits + got.len() as u64, count.bounds + got.len() as u64);
            }
        }
    }
    Ok(report)
}

/// Which columns are copied.
#[derive(Clone, Copy, Debug)]
struct Columns {
    /// Runs of a row.
    runs: usize,
    /// Values of a run.
    period: usize,
    /// First value copied of a run.
    offset: usize,
    /// Values copied of a run.
    width: usize,
}

/// `columns`: whole rows, halves of heads, single values, runs that no vector fits; copies, bit for bit.
///
/// # Errors
/// The first violation found.
pub fn check_columns<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let cases = [(1, 7, 0, 7), (3, 32, 0, 16), (3, 32, 16, 16), (4, 16, 5, 3), (20, 1, 0, 1), (2, 512, 256, 256)];
    let more = [(1, 64, 63, 1), (5, 33, 1, 31), (8, 128, 64, 64), (1, 1152, 100, 577), (17, 3, 2, 1)];
    let mut report = Report::default();
    for seed in &options.seeds {
        for (runs, period, offset, width) in cases.into_iter().chain(more).take(if options.quick { 6 } else { 11 }) {
            let which = Columns { runs, period, offset, width };
            let row = runs * period;
            let label = format!("{which:?}");
            let case = Case {
                op: "columns",
                label: label.clone(),
                inputs: &[Input::Values(row)],
                outputs: runs * width,
                run: &|rows| columns(b, which, rows),
                want: &|rows| columns(&Reference, which, rows),
                bound: &|_, want| vec![0.0; want.len()],
            };
            case.check(options, *seed, &mut report)?;
            // Rows that the reference is not asked for: infinities, and values that f32 arithmetic would flush.
            let mut rng = Rng::for_case(*seed, &label);
            for (kind, x) in draw(&mut rng, &[Input::Values(row)], options.rows()) {
                let got = columns(b, which, &Rows::of(&[&x]));
                let want: Vec<f32> =
                    x[0].chunks_exact(period).flat_map(|run| &run[offset..offset + width]).copied().collect();
                if let Some(i) = first_difference(&want, &got) {
                    let what = format!("{label}: value {i} of a {kind:?} row is {:e}, not {:e}", got[i], want[i]);
                    return Err(Violation::new("columns", what));
                }
                report.entry("columns").bits += got.len() as u64;
            }
        }
    }
    Ok(report)
}

fn columns<B: Backend>(b: &B, which: Columns, rows: &Rows) -> Vec<f32> {
    let Columns { runs, period, offset, width } = which;
    let mut out = stale(b, rows.n, runs * width);
    b.columns(&filled(b, rows.n, runs * period, &rows.inputs[0]), period, offset, width, &mut out);
    b.read(&out)
}
