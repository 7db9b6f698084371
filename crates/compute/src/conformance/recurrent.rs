//! `causal_conv`, `gated_delta` and the states between their calls: the cases, their bounds, and the oracle of the bits:
//! each sequence alone, fed row by row in a fresh slot.

use super::rng::Rng;
use super::states::{Damage, Feed, Nature, Net, Outputs, Parameters, Tape};
use super::{Options, Report, Violation, rewind, walk};
use crate::Backend;
use crate::recurrent::{DeltaShape, StateLayout};
use crate::reference::Reference;

/// Key heads, value heads, key width, value width, taps.
const fn shape(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize, taps: usize) -> DeltaShape {
    DeltaShape { key_heads, value_heads, key_dim, value_dim, taps }
}

/// Layers that are tried together: of different sizes, and of the same, which only their states tell apart.
const LAYOUTS: [&[DeltaShape]; 8] = [
    &[shape(1, 2, 16, 24, 4), shape(2, 2, 12, 16, 2)],
    &[shape(2, 6, 6, 32, 3), shape(1, 1, 32, 16, 4), shape(1, 1, 32, 16, 4)],
    &[shape(1, 1, 128, 128, 4), shape(1, 1, 10, 24, 2)],
    // The full suite's.
    &[shape(1, 1, 1, 1, 2), shape(3, 3, 3, 5, 4), shape(1, 3, 4, 17, 3)],
    &[shape(2, 4, 64, 32, 4), shape(1, 3, 20, 40, 3)],
    &[shape(4, 4, 8, 16, 4)],
    &[shape(1, 2, 128, 128, 4)],
    &[shape(2, 2, 24, 48, 4), shape(2, 6, 33, 15, 4), shape(1, 2, 16, 24, 3)],
];

/// `causal_conv`, `gated_delta` and the verbs on states, however the sequences came to be in their slots.
///
/// # Errors
/// The first violation found; a state that is wrong before a row has shown it is blamed on `state`.
pub fn check_recurrent<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let mut report = Report::default();
    for seed in &options.seeds {
        for (turn, layers) in LAYOUTS.iter().take(if options.quick { 3 } else { LAYOUTS.len() }).enumerate() {
            let layout = StateLayout { layers: layers.to_vec() };
            let subject = Subject::new(b, layout, *seed, turn, options)?;
            subject.check_bounds(options, &mut report)?;
            rewind::check(&subject, options, &mut report)?;
            // Long walks on small layers: the bookkeeping is the same for all.
            let rounds = match (subject.is_large(), options.quick, turn) {
                (true, true, _) => 10,
                (true, false, _) => 50,
                (false, true, 0) => 300,
                (false, true, _) => 50,
                (false, false, 0) => 2000,
                (false, false, _) => 300,
            };
            walk::check(&subject, rounds, &mut report)?;
        }
    }
    Ok(report)
}

/// A sequence with what each of its rows gives in every situation.
pub(super) struct Sequence {
    pub nature: Nature,
    pub tape: Tape,
    pub outputs: Outputs,
    pub states: Vec<Vec<f32>>, // [rows seen - 1]
}

/// Layers with their sequences.
pub(super) struct Subject<'b, B: Backend> {
    pub net: Net<'b, B>,
    pub label: String,
    pub seed: u64,
    parameters: Vec<Parameters>,
    pub sequences: Vec<Sequence>,
}

impl<'b, B: Backend> Subject<'b, B> {
    fn new(b: &'b B, layout: StateLayout, seed: u64, turn: usize, options: &Options) -> Result<Self, Violation> {
        use Damage::{Beta, Decay, Key, Query, Value};
        let size = |l: &DeltaShape| {
            format!("{}/{} heads of {}x{}, {} taps", l.key_heads, l.value_heads, l.key_dim, l.value_dim, l.taps)
        };
        let label = layout.layers.iter().map(size).collect::<Vec<_>>().join("; ");
        let mut rng = Rng::for_case(seed, &label);
        let parameters: Vec<Parameters> = layout.layers.iter().map(|l| Parameters::random(&mut rng, l)).collect();
        let net = Net::new(b, &layout, &parameters);
        let mut subject = Subject { net, label, seed, parameters, sequences: Vec::new() };
        let longest = match (subject.is_large(), options.quick) {
            (true, true) => 40,
            (true, false) => 140,
            (false, _) => 200,
        };
        for len in [longest, longest / 2, 33, 7] {
            subject.add(Nature::Plain, Tape::plain(&mut rng, &layout, len))?;
        }
        let damages = [[Key, Decay], [Value, Beta], [Query, Key]][turn % 3];
        for (i, damage) in damages.into_iter().enumerate() {
            let place = (5 + 6 * i, (turn + i) % layout.layers.len());
            subject.add(Nature::Damaged, Tape::damaged(&mut rng, &layout, 25, place, damage))?;
        }
        subject.add(Nature::Extreme, Tape::extreme(&mut rng, &layout, 40))?;
        Ok(subject)
    }

    /// Whether a row costs enough to try fewer.
    pub fn is_large(&self) -> bool {
        self.net.layout.values() > 10_000
    }

    /// Rows of a sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].tape.len()
    }

    /// A violation of this case.
    pub fn violation(&self, op: &str, what: &str) -> Violation {
        Violation::new(op, format!("{}: {what}", self.label))
    }

    /// Runs a tape row by row in a fresh slot.
    fn add(&mut self, nature: Nature, tape: Tape) -> Result<(), Violation> {
        let mut state = self.net.state(1, 1)?;
        let (outputs, states) = self.alone(&mut state, &tape, |state, net| net.read(state, 0))?;
        self.sequences.push(Sequence { nature, tape, outputs, states });
        Ok(())
    }

    /// Runs a tape row by row from the start of slot 0, with a look at the state after each row.
    pub fn alone<T>(
        &self,
        state: &mut B::State,
        tape: &Tape,
        look: impl Fn(&B::State, &Net<'b, B>) -> T,
    ) -> Result<(Outputs, Vec<T>), Violation> {
        let layout = &self.net.layout;
        let mut outputs = Outputs::empty(layout);
        let mut looks = Vec::with_capacity(tape.len());
        for start in 0..tape.len() {
            let row = self.net.forward(state, &[&Feed { slot: 0, start, rows: tape.slice(start, 1) }], None);
            for (layer, shape) in layout.layers.iter().enumerate() {
                for (op, values, width) in [
                    ("causal_conv", &row.conv[layer], shape.channels()),
                    ("gated_delta", &row.delta[layer], shape.value_width()),
                ] {
                    if values.len() != width {
                        let what = format!("layer {layer}: {} values read back from one row", values.len());
                        return Err(self.violation(op, &what));
                    }
                }
            }
            outputs.append(&row, 1, 0, 1);
            looks.push(look(state, &self.net));
        }
        Ok((outputs, looks))
    }

    fn check_bounds(&self, options: &Options, report: &mut Report) -> Result<(), Violation> {
        let bytes = self.net.b.state_bytes(&self.net.layout, 8);
        if bytes < self.net.layout.values() {
            return Err(self.violation("state", &format!("state_bytes: {bytes} bytes for more values")));
        }
        for (number, sequence) in self.sequences.iter().enumerate() {
            if sequence.nature != Nature::Extreme {
                let damaged = self.check_sequence(number, options, report)?;
                let expected = sequence.nature == Nature::Damaged;
                assert_eq!(damaged > 0, expected, "sequence {number}: results of the reference that are not finite");
            }
        }
        Ok(())
    }

    /// Compares a sequence's outputs and states with the reference's; returns how many values are not finite there.
    ///
    /// The reference's delta rule gets what the backend's convolution gave, so that errors do not add up. Rounding a state
    /// errs in proportion to its columns, and the rule never lengthens an error: `decay <= 1`, and with `beta` in 0..1 and
    /// `|k| = 1` the factor `1 - beta k k^T` shrinks.
    fn check_sequence(&self, number: usize, options: &Options, report: &mut Report) -> Result<usize, Violation> {
        let Sequence { tape, outputs, states, .. } = &self.sequences[number];
        let layout = &self.net.layout;
        let net = Net::new(&Reference, layout, &self.parameters);
        let mut state = net.state(1, 1)?;
        let mut longest: Vec<Vec<f64>> = layout.layers.iter().map(|l| vec![0.0; l.value_width()]).collect();
        let mut damaged = 0;
        for (at, own) in states.iter().enumerate() {
            let row = |values: &[f32], width: usize| values[at * width..][..width].to_vec();
            let given: Vec<Vec<f32>> =
                layout.layers.iter().zip(&outputs.conv).map(|(l, conv)| row(conv, l.channels())).collect();
            let feed = Feed { slot: 0, start: at, rows: tape.slice(at, 1) };
            let want = net.forward(&mut state, &[&feed], Some(&given));
            let reference = net.read(&state, 0);
            let mut first = 0; // of the layer, among the values of a state
            for (layer, shape) in layout.layers.iter().enumerate() {
                let matrices = first + shape.window_values()..first + shape.window_values() + shape.state_values();
                let longest = &mut longest[layer];
                lengthen(longest, shape, &reference[matrices.clone()]);
                let fit = Fit { subject: self, number, layer, row: at };
                let bounds = self.conv_bounds(shape, layer, tape.x(layer), at, options);
                damaged += fit.check("causal_conv", &given[layer], &want.conv[layer], |i| bounds[i], report)?;
                let tolerance = options.recurrent / (shape.key_dim as f64).sqrt();
                let bound = |i: usize| tolerance * longest[i] + 1e-30;
                let delta = row(&outputs.delta[layer], shape.value_width());
                damaged += fit.check("gated_delta", &delta, &want.delta[layer], bound, report)?;
                let window = first..matrices.start;
                let bound = |i: usize| options.elementwise * f64::from(reference[window.start + i].abs());
                damaged += fit.check("state", &own[window.clone()], &reference[window.clone()], bound, report)?;
                let column = |i: usize| i / (shape.key_dim * shape.value_dim) * shape.value_dim + i % shape.value_dim;
                let bound = |i: usize| options.recurrent * longest[column(i)] + 1e-30;
                damaged += fit.check("state", &own[matrices.clone()], &reference[matrices.clone()], bound, report)?;
                first = matrices.end;
            }
        }
        Ok(damaged)
    }

    /// Largest errors of a row of the convolution: of the fused sum, which the activation steepens by no more than 1.1, and
    /// of the activation.
    fn conv_bounds(&self, shape: &DeltaShape, layer: usize, x: &[f32], at: usize, options: &Options) -> Vec<f64> {
        let (taps, channels) = (shape.taps, shape.channels());
        let weight = &self.parameters[layer].taps;
        let term = |c: usize, j: usize| match (at + j + 1).checked_sub(taps) {
            Some(row) => f64::from((weight[j * channels + c] * x[row * channels + c]).abs()),
            None => 0.0,
        };
        let sum = |c: usize| (0..taps).map(|j| term(c, j)).sum::<f64>();
        (0..channels).map(|c| 2.1 * options.elementwise * sum(c) + 1e-30).collect()
    }
}

/// Raises the length of each column, `(value_heads, value_dim)`, to what it is in `matrices`.
fn lengthen(longest: &mut [f64], shape: &DeltaShape, matrices: &[f32]) {
    let (dk, dv) = (shape.key_dim, shape.value_dim);
    for (head, longest) in matrices.chunks_exact(dk * dv).zip(longest.chunks_exact_mut(dv)) {
        for (c, longest) in longest.iter_mut().enumerate() {
            let squares: f64 = (0..dk).map(|i| f64::from(head[i * dv + c]).powi(2)).sum();
            *longest = longest.max(squares.sqrt()); // of a number and NaN, the number
        }
    }
}

/// What is compared with the reference.
struct Fit<'a, 'b, B: Backend> {
    subject: &'a Subject<'b, B>,
    number: usize,
    layer: usize,
    row: usize,
}

impl<B: Backend> Fit<'_, '_, B> {
    /// Values within their bounds; not finite where the reference's are not. Returns the number of those.
    fn check(
        &self,
        op: &str,
        got: &[f32],
        want: &[f32],
        bound: impl Fn(usize) -> f64,
        report: &mut Report,
    ) -> Result<usize, Violation> {
        let mut damaged = 0;
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let good = if want.is_finite() {
                (f64::from(*got) - f64::from(*want)).abs() <= bound(i)
            } else {
                damaged += 1;
                !got.is_finite()
            };
            if !good {
                let Fit { number, layer, row, .. } = self;
                let what = format!(
                    "sequence {number}, layer {layer}: value {i} after row {row} is {got:e}, the reference has {want:e} ± {:.1e}",
                    bound(i)
                );
                return Err(self.subject.violation(op, &what));
            }
        }
        report.entry(op).bounds += got.len() as u64;
        Ok(damaged)
    }
}
