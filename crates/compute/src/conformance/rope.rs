//! Rotations: angles of one position or several, whole heads and their first part.

use super::elementwise::near;
use super::rng::Rng;
use super::rows::{Case, Input, Rows, draw};
use super::{Options, Report, Violation, filled, first_difference};
use crate::Backend;
use crate::reference::Reference;

/// Positions that rotations are tried at.
const POSITIONS: usize = 1 << 17;

/// Frequencies `base^(-i / n)` of which the first `rotated` are not zero.
fn frequencies(n: usize, rotated: usize) -> Vec<f32> {
    (0..n).map(|i| if i < rotated { 1e4f32.powf(-(i as f32) / n as f32) } else { 0.0 }).collect()
}

/// `rope_angles` and `rope`: frequencies of zero, fewer frequencies than pairs, positions on several axes.
///
/// # Errors
/// The first violation found.
pub fn check_rope<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let dims: &[usize] = if options.quick { &[16, 64] } else { &[2, 16, 20, 32, 64, 128, 256] };
    let partial: &[(usize, usize)] = if options.quick {
        &[(64, 11), (32, 4)]
    } else {
        &[(64, 11), (32, 4), (4, 1), (16, 7), (64, 16), (100, 23), (128, 32), (256, 32)]
    };
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, dim) in dims.iter().enumerate() {
            let (n, heads) = (dim / 2, [1, 3, 4][turn % 3]);
            let rotated = if turn % 2 == 0 { n } else { n.div_ceil(4) };
            check_angles(b, options, *seed, &frequencies(n, rotated), rotated, &mut report)?;
            check_heads(b, options, *seed, (*dim, heads), &frequencies(n, rotated), rotated, &mut report)?;
        }
        for (turn, (dim, n)) in partial.iter().enumerate() {
            check_heads(b, options, *seed, (*dim, [3, 1, 4][turn % 3]), &frequencies(*n, *n), *n, &mut report)?;
        }
        for n in if options.quick { vec![11] } else { vec![1, 11, 16, 32, 64] } {
            check_axes(b, options, *seed, n, &mut report)?;
        }
    }
    Ok(report)
}

/// `rope_angles` of one position a row.
fn check_angles<B: Backend>(
    b: &B,
    options: &Options,
    seed: u64,
    frequencies: &[f32],
    rotated: usize,
    report: &mut Report,
) -> Result<(), Violation> {
    let n = frequencies.len();
    let case = Case {
        op: "rope_angles",
        label: format!("{n} frequencies, {rotated} not zero"),
        inputs: &[Input::Index(POSITIONS)],
        outputs: 2 * n,
        run: &|rows| angles(b, &rows.indices(0), 1, &[], frequencies),
        want: &|rows| angles(&Reference, &rows.indices(0), 1, &[], frequencies),
        bound: &|_, want| vec![options.elementwise; want.len()],
    };
    case.check(options, seed, report)
}

/// `rope_angles` of three positions a row, spread over the frequencies in several ways; positions that are equal on all
/// axes give the bits of one.
fn check_axes<B: Backend>(b: &B, options: &Options, seed: u64, n: usize, report: &mut Report) -> Result<(), Violation> {
    const AXES: usize = 3;
    let mut rng = Rng::for_case(seed, &format!("axes {n}"));
    let frequencies = frequencies(n, n);
    let maps: [(&str, Vec<u8>); 5] = [
        ("interleaved", (0..n).map(|i| (i % AXES) as u8).collect()),
        // As models have it: the second and third axis end early, the first takes what is left.
        ("interleaved at first", (0..n).map(|i| if i < n * 2 / 3 { (i % AXES) as u8 } else { 0 }).collect()),
        ("in sections", (0..n).map(|i| (i * AXES / n) as u8).collect()),
        ("at random", (0..n).map(|_| rng.below(AXES) as u8).collect()),
        ("on the first", Vec::new()),
    ];
    for (how, axis) in &maps {
        let positions = |rows: &Rows| -> Vec<u32> {
            let axes: Vec<Vec<u32>> = (0..AXES).map(|a| rows.indices(a)).collect();
            (0..rows.n).flat_map(|r| axes.iter().map(move |positions| positions[r])).collect()
        };
        let case = Case {
            op: "rope_angles",
            label: format!("{n} frequencies over {AXES} axes {how}"),
            inputs: &[Input::Index(POSITIONS); AXES],
            outputs: 2 * n,
            run: &|rows| angles(b, &positions(rows), AXES, axis, &frequencies),
            want: &|rows| angles(&Reference, &positions(rows), AXES, axis, &frequencies),
            bound: &|_, want| vec![options.elementwise; want.len()],
        };
        case.check(options, seed, report)?;
        let equal: Vec<u32> = (0..options.rows()).map(|_| rng.below(POSITIONS) as u32).collect();
        let tripled: Vec<u32> = equal.iter().flat_map(|p| [*p; AXES]).collect();
        let want = angles(b, &equal, 1, &[], &frequencies);
        let got = angles(b, &tripled, AXES, axis, &frequencies);
        if want.len() != got.len() {
            return Err(Violation::new("rope_angles", format!("{}: {} values", case.label, got.len())));
        }
        if let Some(i) = first_difference(&want, &got) {
            let what = format!(
                "{}: value {} of position {} on all axes is {:e}, of one axis it is {:e}",
                case.label,
                i % (2 * n),
                equal[i / (2 * n)],
                got[i],
                want[i]
            );
            return Err(Violation::new("rope_angles", what));
        }
        report.entry("rope_angles").bits += got.len() as u64;
    }
    Ok(())
}

fn angles<B: Backend>(b: &B, positions: &[u32], axes: usize, axis: &[u8], frequencies: &[f32]) -> Vec<f32> {
    b.read(&b.rope_angles(positions, axes, axis, &b.load_vector(frequencies)))
}

/// `rope` over heads of `dim` values, of which the first two for each frequency are rotated and the others stay.
fn check_heads<B: Backend>(
    b: &B,
    options: &Options,
    seed: u64,
    (dim, heads): (usize, usize),
    frequencies: &[f32],
    rotated: usize,
    report: &mut Report,
) -> Result<(), Violation> {
    let n = frequencies.len();
    let width = heads * dim;
    let inputs = [Input::Values(width), Input::Index(POSITIONS)];
    let case = Case {
        op: "rope",
        label: format!("{heads} heads of {dim}, {rotated} of {n} pairs rotated"),
        inputs: &inputs,
        outputs: width,
        run: &|rows| rope(b, dim, heads, frequencies, rows),
        want: &|rows| rope(&Reference, dim, heads, frequencies, rows),
        bound: &|rows, want| {
            let x = &rows.inputs[0];
            let other = |i: usize| match i % dim {
                at if at < n => i + n,
                at if at < 2 * n => i - n,
                _ => i,
            };
            let partner: Vec<f32> = (0..want.len()).map(|i| x[other(i)]).collect();
            near(options, want, &[x, &partner], 2.0)
        },
    };
    case.check(options, seed, report)?;
    // What is not rotated stays in bits, whatever it is.
    let mut rng = Rng::for_case(seed, &case.label);
    for (kind, row) in draw(&mut rng, &inputs, options.rows()) {
        let got = rope(b, dim, heads, frequencies, &Rows::of(&[&row]));
        for (head, (x, got)) in row[0].chunks_exact(dim).zip(got.chunks_exact(dim)).enumerate() {
            if let Some(i) = first_difference(&x[2 * n..], &got[2 * n..]) {
                let what = format!("{}: value {} of head {head} of a {kind:?} row changed", case.label, 2 * n + i);
                return Err(Violation::new("rope", what));
            }
            report.entry("rope").bits += (dim - 2 * n) as u64;
        }
    }
    Ok(())
}

fn rope<B: Backend>(b: &B, dim: usize, heads: usize, frequencies: &[f32], rows: &Rows) -> Vec<f32> {
    let mut x = filled(b, rows.n, heads * dim, &rows.inputs[0]);
    let angles = b.rope_angles(&rows.indices(1), 1, &[], &b.load_vector(frequencies));
    b.rope(&mut x, dim, &angles);
    b.read(&x)
}
