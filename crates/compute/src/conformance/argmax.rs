//! `argmax`, and reading some rows: an exact answer in whatever company, so the reference is a definition instead of a tolerance.

use super::rng::Rng;
use super::{Options, Report, Violation, filled, first_difference};
use crate::Backend;

const OP: &str = "argmax";

/// Values of a row at most drawn for one width, so that vocabularies are checked with few rows.
const MOST: usize = 1 << 20;

/// Kinds of [`draw`].
const KINDS: usize = 14;

/// Row widths: around those of vectors, blocks of threads and vocabularies.
fn widths(options: &Options) -> Vec<usize> {
    let small = [1, 2, 7, 15, 16, 17, 33, 64, 100, 255, 257, 1000, 1025, 4097];
    let large = [3, 31, 32, 63, 65, 127, 128, 256, 511, 512, 513, 1023, 1024, 2049, 4096, 32_000, 32_769, 262_144];
    let mut all = small.to_vec();
    all.extend_from_slice(if options.quick { &[70_001] } else { &large });
    all
}

/// A row: where its largest value or its damage is, and how often, is what kinds differ in.
pub(super) fn draw(rng: &mut Rng, kind: usize, width: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (0..width).map(|_| rng.normal()).collect();
    let (one, other) = (rng.below(width), rng.below(width));
    match kind % KINDS {
        // The largest twice.
        0 => (row[one], row[other]) = (9.0, 9.0),
        // Many equal ones.
        1 => row.iter_mut().for_each(|v| *v = (*v * 2.0).round()),
        // Zeros of either sign are equal.
        2 => {
            row.iter_mut().for_each(|v| *v = -v.abs() - 1.0);
            let sign = if rng.one_in(2) { 1.0 } else { -1.0 };
            (row[one], row[other]) = (0.0 * sign, -0.0 * sign);
        }
        3 => row.iter_mut().for_each(|v| *v = 0.0f32.copysign(*v)),
        4 => row.fill([3.5, f32::MIN, f32::MAX][rng.below(3)]),
        // The ends of the range, one bit apart.
        5 => {
            row[one] = f32::MAX;
            row[other] = f32::from_bits(f32::MAX.to_bits() - 1);
        }
        6 => {
            row.fill(f32::MIN);
            row[one] = f32::from_bits(f32::MIN.to_bits() - 1);
        }
        // Below what is normal.
        7 => row.iter_mut().for_each(|v| *v *= 1e-42),
        8 => (0..).zip(&mut row).for_each(|(i, v): (u32, _)| *v = i as f32),
        9 => row[one] = f32::NAN.copysign(row[other]),
        10 => row[one] = f32::INFINITY,
        // Not the largest, and damage all the same.
        11 => row[one] = f32::NEG_INFINITY,
        12 => (row[one], row[width - 1]) = (f32::NEG_INFINITY, f32::NAN),
        _ => {}
    }
    row
}

/// The definition, step by step.
pub(super) fn definition(row: &[f32]) -> Option<u32> {
    if row.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let max = row.iter().copied().reduce(f32::max)?;
    row.iter().position(|v| *v == max).map(|i| i as u32)
}

/// `argmax`: rows alone against the definition, and in company against themselves. Besides, `read_rows` against what was written.
///
/// # Errors
/// The first violation found.
pub fn check_argmax<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for width in widths(options) {
            let mut rng = Rng::for_case(*seed, &format!("{OP} {width}"));
            for _ in 0..if width < 2000 { 3 } else { 1 } {
                check_width(b, options, width, &mut rng, &mut report)?;
            }
        }
    }
    Ok(report)
}

fn check_width<B: Backend>(
    b: &B,
    options: &Options,
    width: usize,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    let violation = |what: String| Violation::new(OP, format!("rows of {width}: {what}"));
    // At least one of each kind.
    let n = options.rows().min(MOST / width).max(KINDS);
    let turn = rng.below(KINDS);
    let rows: Vec<Vec<f32>> = (0..n).map(|i| draw(rng, i + turn, width)).collect();
    let mut alone = Vec::with_capacity(n);
    for (r, row) in rows.iter().enumerate() {
        let (found, want) = (b.argmax(&filled(b, 1, width, row)), definition(row));
        if found != [want] {
            let kind = (r + turn) % KINDS;
            return Err(violation(format!("a row of kind {kind} alone gives {found:?}, its largest is {want:?}")));
        }
        alone.push(want);
        report.entry(OP).bounds += 1;
    }
    for count in options.widths().into_iter().filter(|count| *count <= n) {
        for _ in 0..2 {
            let chosen = rng.sample(n, count);
            let values = chosen.iter().map(|r| rows[*r].as_slice()).collect::<Vec<_>>().concat();
            let buffer = filled(b, count, width, &values);
            let together = b.argmax(&buffer);
            let start = rng.below(count);
            let end = start + 1 + rng.below(count - start);
            let part = b.read_rows(&buffer, start..end);
            let right = &values[start * width..end * width];
            if part.len() != right.len() || first_difference(&part, right).is_some() {
                let what = format!("rows {start}..{end} of {count}, {width} wide, are not those that were written");
                return Err(Violation::new("read_rows", what));
            }
            if together.len() != count {
                return Err(violation(format!("{} indices of {count} rows", together.len())));
            }
            for (at, (r, found)) in chosen.iter().zip(&together).enumerate() {
                if *found != alone[*r] {
                    let what = format!("row {at} among {count} gives {found:?}, alone it gives {:?}", alone[*r]);
                    return Err(violation(what));
                }
                report.entry(OP).bits += 1;
            }
        }
    }
    Ok(())
}
