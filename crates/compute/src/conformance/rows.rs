//! The row law for verbs whose rows are independent: one row alone is the oracle for that row in any company.

use super::rng::Rng;
use super::{Options, Report, Violation, bits, first_difference};

/// One input of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    /// So many values.
    Values(usize),
    /// So many values out of few, so that ties occur.
    Coarse(usize),
    /// An index below the limit, held as a float.
    Index(usize),
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Finite values of moderate size: checked in bounds and bits.
    Plain,
    /// Holds a NaN: its damage must show, and be the same in any company.
    Poisoned,
    /// Holds infinities, or values whose squares overflow: f32 and f64 may disagree, so bits only.
    Extreme,
}

/// A row's inputs, one vector each.
pub(super) type Row = Vec<Vec<f32>>;

/// Rows as a verb takes them: each input flat, `[n, width]`.
pub(super) struct Rows {
    pub n: usize,
    pub inputs: Vec<Vec<f32>>,
}

impl Rows {
    pub fn of(rows: &[&Row]) -> Self {
        let inputs = (0..rows[0].len()).map(|i| rows.iter().flat_map(|r| r[i].iter().copied()).collect()).collect();
        Rows { n: rows.len(), inputs }
    }

    /// An [`Input::Index`] input as indices.
    pub fn indices(&self, input: usize) -> Vec<u32> {
        self.inputs[input].iter().map(|v| *v as u32).collect()
    }
}

/// Draws the rows of a case.
pub(super) fn draw(rng: &mut Rng, inputs: &[Input], n: usize) -> Vec<(Kind, Row)> {
    (0..n)
        .map(|i| {
            // Every 14th row is damaged, so that several are among the first 17.
            let (kind, make): (Kind, Filler) = match (i % 14, i / 14 % 4) {
                (3, _) => (Kind::Plain, |_, _| 0.0),
                (5, _) => (Kind::Plain, |rng, i| if i == 0 { 40.0 } else { rng.normal() }),
                (7, _) => (Kind::Plain, |rng, _| 1e-3 * rng.normal()),
                (9, _) => (Kind::Plain, |rng, _| 30.0 * rng.normal()),
                (12, 0) => (Kind::Poisoned, |rng, i| if i == 0 { f32::NAN } else { rng.normal() }),
                (12, 1) => (Kind::Extreme, |rng, i| if i == 0 { f32::NEG_INFINITY } else { rng.normal() }),
                (12, 2) => (Kind::Extreme, |rng, _| 3e37 * (rng.unit() - 0.5)),
                (12, _) => (Kind::Extreme, |rng, _| 1e-40 * rng.normal()),
                _ => (Kind::Plain, |rng, _| rng.normal()),
            };
            (kind, inputs.iter().map(|input| fill(rng, *input, kind, make)).collect())
        })
        .collect()
}

type Filler = fn(&mut Rng, usize) -> f32;

fn fill(rng: &mut Rng, input: Input, kind: Kind, make: Filler) -> Vec<f32> {
    match input {
        Input::Index(limit) => vec![rng.below(limit) as f32],
        Input::Coarse(width) if kind == Kind::Plain => (0..width).map(|_| rng.below(17) as f32 / 4.0 - 2.0).collect(),
        Input::Values(width) | Input::Coarse(width) => {
            let turn = rng.below(width); // where the odd value is
            (0..width).map(|i| make(rng, (i + turn) % width)).collect()
        }
    }
}

/// A row that must not be noticed by its neighbours.
fn garbage(rng: &mut Rng, inputs: &[Input]) -> Row {
    let make: Filler = match rng.below(4) {
        0 => |_, _| f32::NAN,
        1 => |_, _| f32::INFINITY,
        2 => |rng, _| if rng.one_in(2) { f32::MAX } else { f32::MIN },
        _ => |rng, i| if i % 2 == 0 { f32::NAN } else { 1e4 * rng.normal() },
    };
    inputs.iter().map(|input| fill(rng, *input, Kind::Extreme, make)).collect()
}

/// Runs a verb: all its inputs to all its outputs of each row, `[n, outputs]`.
pub(super) type Run<'a> = &'a dyn Fn(&Rows) -> Vec<f32>;

/// A verb with its weights and parameters.
pub(super) struct Case<'a> {
    /// The verb.
    pub op: &'static str,
    /// Formats and shapes, for the message.
    pub label: String,
    /// Inputs of a row.
    pub inputs: &'a [Input],
    /// Values of an output row.
    pub outputs: usize,
    /// The backend's result.
    pub run: Run<'a>,
    /// The reference's result.
    pub want: Run<'a>,
    /// How far each value may be from the reference, given the inputs and the reference's result.
    pub bound: &'a dyn Fn(&Rows, &[f32]) -> Vec<f64>,
}

impl Case<'_> {
    fn violation(&self, what: String) -> Violation {
        Violation::new(self.op, format!("{}: {what}", self.label))
    }

    fn call(&self, rows: &[&Row]) -> Result<Vec<f32>, Violation> {
        let out = (self.run)(&Rows::of(rows));
        if out.len() != rows.len() * self.outputs {
            return Err(self.violation(format!("{} values read back from {} rows", out.len(), rows.len())));
        }
        Ok(out)
    }

    /// Checks bounds, then bits.
    pub fn check(&self, options: &Options, seed: u64, report: &mut Report) -> Result<(), Violation> {
        let mut rng = Rng::for_case(seed, &format!("{} {}", self.op, self.label));
        let rows = draw(&mut rng, self.inputs, options.rows());
        let alone = rows.iter().map(|(_, row)| self.call(&[row])).collect::<Result<Vec<_>, _>>()?;
        self.check_bounds(&rows, &alone, report)?;
        self.check_bits(&rows, &alone, options, &mut rng, report)
    }

    fn check_bounds(&self, rows: &[(Kind, Row)], got: &[Vec<f32>], report: &mut Report) -> Result<(), Violation> {
        let all = Rows::of(&rows.iter().map(|(_, row)| row).collect::<Vec<_>>());
        let want = (self.want)(&all);
        let bounds = (self.bound)(&all, &want);
        for (r, (kind, _)) in rows.iter().enumerate() {
            for (i, got) in got[r].iter().enumerate() {
                let (want, bound) = (want[r * self.outputs + i], bounds[r * self.outputs + i]);
                let good = match kind {
                    Kind::Plain => (f64::from(*got) - f64::from(want)).abs() <= bound,
                    Kind::Poisoned => !want.is_nan() || !got.is_finite(),
                    Kind::Extreme => continue,
                };
                if !good {
                    let what = format!("row {r}, value {i} is {got:e}, the reference has {want:e} ± {bound:.1e}");
                    return Err(self.violation(what));
                }
                report.entry(self.op).bounds += 1;
            }
        }
        Ok(())
    }

    fn check_bits(
        &self,
        rows: &[(Kind, Row)],
        alone: &[Vec<f32>],
        options: &Options,
        rng: &mut Rng,
        report: &mut Report,
    ) -> Result<(), Violation> {
        for width in options.widths() {
            let prefix: Vec<usize> = (0..width).collect();
            self.compare(rows, alone, &prefix, "the first rows", report)?;
            let rounds = if options.quick { 1 } else { 2 };
            for _ in 0..rounds {
                let subset = rng.sample(rows.len(), width);
                self.compare(rows, alone, &subset, "shuffled rows", report)?;
                self.compare_beside_garbage(rows, alone, &subset, rng, report)?;
            }
        }
        Ok(())
    }

    /// Computes the chosen rows together.
    fn compare(
        &self,
        rows: &[(Kind, Row)],
        alone: &[Vec<f32>],
        chosen: &[usize],
        how: &str,
        report: &mut Report,
    ) -> Result<(), Violation> {
        let together = self.call(&chosen.iter().map(|r| &rows[*r].1).collect::<Vec<_>>())?;
        for (at, r) in chosen.iter().enumerate() {
            self.same(&alone[*r], &together, at, &format!("{} {how}", chosen.len()), report)?;
        }
        Ok(())
    }

    /// Computes some of the chosen rows, the others replaced by garbage.
    fn compare_beside_garbage(
        &self,
        rows: &[(Kind, Row)],
        alone: &[Vec<f32>],
        chosen: &[usize],
        rng: &mut Rng,
        report: &mut Report,
    ) -> Result<(), Violation> {
        let sure = rng.below(chosen.len());
        let one_in = 1 + rng.below(4); // 1: all others are garbage
        let keep: Vec<bool> = (0..chosen.len()).map(|at| at == sure || one_in > 1 && !rng.one_in(one_in)).collect();
        let others: Vec<Row> = chosen.iter().map(|_| garbage(rng, self.inputs)).collect();
        let mixed: Vec<&Row> =
            keep.iter().enumerate().map(|(at, kept)| if *kept { &rows[chosen[at]].1 } else { &others[at] }).collect();
        let together = self.call(&mixed)?;
        for at in (0..chosen.len()).filter(|at| keep[*at]) {
            self.same(&alone[chosen[at]], &together, at, &format!("{} rows with garbage", chosen.len()), report)?;
        }
        Ok(())
    }

    fn same(
        &self,
        alone: &[f32],
        together: &[f32],
        at: usize,
        how: &str,
        report: &mut Report,
    ) -> Result<(), Violation> {
        let row = &together[at * self.outputs..][..self.outputs];
        if let Some(i) = first_difference(alone, row) {
            let (a, b) = (alone[i], row[i]);
            return Err(self.violation(format!(
                "value {i} of row {at} among {how} is {b:e} ({:08x}), alone it is {a:e} ({:08x})",
                bits(b),
                bits(a)
            )));
        }
        report.entry(self.op).bits += self.outputs as u64;
        Ok(())
    }
}
