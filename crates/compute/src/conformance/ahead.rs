//! `argmax_into`, `embed_at` and `join`: what lets a drafter go on with what it found before anybody has seen it. Copies and exact
//! answers, so the references are definitions.

use super::argmax::{definition, draw};
use super::linear::{Loaded, shapes};
use super::rng::Rng;
use super::weights::Shape;
use super::{Options, Report, Violation, all_formats, filled, first_difference, stale};
use crate::{Backend, order};

/// Rows of a table.
const VOCABULARY: usize = 40;

/// `argmax_into` against the definition, `embed_at` against `embed`, `join` against the values it was given.
///
/// # Errors
/// The first violation found.
pub fn check_ahead<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        check_argmax_into(b, options, *seed, &mut report)?;
        check_embed_at(b, options, *seed, &mut report)?;
        check_join(b, options, *seed, &mut report)?;
    }
    Ok(report)
}

fn check_argmax_into<B: Backend>(b: &B, options: &Options, seed: u64, report: &mut Report) -> Result<(), Violation> {
    const OP: &str = "argmax_into";
    let (mut rng, mut turn, turns) = (Rng::for_case(seed, OP), 0, if options.quick { 8 } else { 24 });
    for width in [1, 7, 64, 257, 1000, 4100] {
        for rows in options.widths().into_iter().flat_map(|rows| std::iter::repeat_n(rows, turns)) {
            turn += 3;
            let drawn: Vec<Vec<f32>> = (0..rows).map(|i| draw(&mut rng, i + turn, width)).collect();
            let want: Vec<Option<u32>> = drawn.iter().map(|row| definition(row)).collect();
            let at = rng.below(9);
            // What lies before and behind must stay.
            let before: Vec<f32> = (0..at + rows + rng.below(3)).map(|i| i as f32 - 1e6).collect();
            let mut ids = filled(b, before.len(), 1, &before);
            b.argmax_into(&filled(b, rows, width, &drawn.concat()), &mut ids, at);
            let found = b.read(&ids);
            for (i, number) in found.iter().enumerate() {
                let right = match i.checked_sub(at).and_then(|row| want.get(row)) {
                    Some(token) => order::token(*number) == *token && (token.is_some() || number.is_nan()),
                    None => *number == before[i],
                };
                if !right {
                    let what =
                        format!("{rows} rows of {width} into rows {at}..: row {i} is {number:e}, {want:?} expected");
                    return Err(Violation::new(OP, what));
                }
            }
            let count = report.entry(OP);
            (count.bits, count.bounds) = (count.bits + found.len() as u64, count.bounds + rows as u64);
        }
    }
    Ok(())
}

fn check_embed_at<B: Backend>(b: &B, options: &Options, seed: u64, report: &mut Report) -> Result<(), Violation> {
    const OP: &str = "embed_at";
    for (turn, format) in all_formats().into_iter().enumerate() {
        let Some(shape) = shapes(options, format, turn).into_iter().next() else { continue };
        let shape = Shape { outputs: VOCABULARY, ..shape };
        let mut rng = Rng::for_case(seed, &format!("{OP} {format:?} {shape:?}"));
        let table = Loaded::random(b, OP, &mut rng, format, shape)?;
        for rows in [1, 2, 5, 16] {
            let at = rng.below(4);
            let tokens: Vec<u32> = (0..at + rows + 2).map(|_| rng.below(VOCABULARY) as u32).collect();
            let mut numbers: Vec<f32> = tokens.iter().map(|token| order::number(Some(*token))).collect();
            let none = rng.one_in(2).then(|| at + rng.below(rows));
            if let Some(row) = none {
                numbers[row] = f32::NAN;
            }
            let mut want = stale(b, rows, shape.inputs);
            b.embed(&table.weight, &tokens[at..at + rows], 1.7, &mut want);
            let mut want = b.read(&want);
            if let Some(row) = none {
                want[(row - at) * shape.inputs..][..shape.inputs].fill(f32::NAN);
            }
            let mut out = filled(b, rows, shape.inputs, &vec![1e30; rows * shape.inputs]);
            b.embed_at(&table.weight, &filled(b, numbers.len(), 1, &numbers), at, 1.7, &mut out);
            same(OP, &b.read(&out), &want, || format!("{format}, rows {at}..{} of {numbers:?}", at + rows), report)?;
        }
    }
    Ok(())
}

fn check_join<B: Backend>(b: &B, options: &Options, seed: u64, report: &mut Report) -> Result<(), Violation> {
    const OP: &str = "join";
    let mut rng = Rng::for_case(seed, OP);
    for (left, right) in [(1, 1), (3, 5), (64, 64), (128, 256), (257, 31), (640, 640)] {
        for rows in options.widths() {
            // Copies of what is no number, too.
            let mut value = |_| if rng.one_in(20) { f32::INFINITY } else { rng.normal() };
            let a: Vec<f32> = (0..rows * left).map(&mut value).collect();
            let c: Vec<f32> = (0..rows * right).map(&mut value).collect();
            let want: Vec<f32> =
                a.chunks_exact(left).zip(c.chunks_exact(right)).flat_map(|(a, c)| a.iter().chain(c)).copied().collect();
            let mut out = stale(b, rows, left + right);
            b.join(&filled(b, rows, left, &a), &filled(b, rows, right, &c), &mut out);
            same(OP, &b.read(&out), &want, || format!("{rows} rows of {left} and {right}"), report)?;
        }
    }
    Ok(())
}

/// Compares copies.
fn same(op: &str, found: &[f32], want: &[f32], how: impl Fn() -> String, report: &mut Report) -> Result<(), Violation> {
    if found.len() != want.len() {
        return Err(Violation::new(op, format!("{}: {} values, {} expected", how(), found.len(), want.len())));
    }
    if let Some(i) = first_difference(want, found) {
        return Err(Violation::new(op, format!("{}: value {i} is {:e}, not {:e}", how(), found[i], want[i])));
    }
    let count = report.entry(op);
    (count.bits, count.bounds) = (count.bits + found.len() as u64, count.bounds + found.len() as u64);
    Ok(())
}
