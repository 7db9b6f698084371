//! `kv_append` and `attend`: the cases, their bounds, and the oracle of the bits: the sequence fed token by token.

use super::cache::{Cache, Layer, Part, Tape};
use super::rng::Rng;
use super::{Options, Report, Violation, bits, first_difference, paging};
use crate::reference::Reference;
use crate::{Attend, Backend, KvGroup, KvShape, KvSlot};

/// Heads, K/V heads, head width.
const SHAPES: [(usize, usize, usize); 8] =
    [(2, 1, 32), (4, 2, 64), (6, 1, 16), (1, 1, 128), (4, 4, 16), (8, 2, 32), (2, 1, 256), (12, 2, 64)];

/// How sharply the rows attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Focus {
    /// Scores of about ±1: every key counts.
    Flat,
    /// Scores to about ±60: block maxima far apart, sums that underflow.
    Peaky,
    /// Flat, with K and V that bf16 pages must round.
    Rounded,
}

/// `kv_append` and `attend` over head shapes and windows, however the sequences came to be in the cache.
///
/// # Errors
/// The first violation found; `kv_append` is blamed on `attend`, where it shows.
pub fn check_attend<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    // Windows within a block, over two, of whole blocks, and none; a length past four blocks at least once.
    let windows = [None, Some(8), Some(100), Some(256), None, Some(64), Some(33)];
    let focuses = [Focus::Flat, Focus::Peaky, Focus::Rounded];
    let shapes = &SHAPES[..if options.quick { 4 } else { SHAPES.len() }];
    let per_shape = if options.quick { 1 } else { 3 };
    let mut report = Report::default();
    for seed in &options.seeds {
        for turn in 0..shapes.len() * per_shape {
            let (heads, kv_heads, head_dim) = shapes[turn % shapes.len()];
            let window = windows[turn % windows.len()];
            let layer = layer(heads, KvShape { kv_heads, head_dim }, window, turn);
            let length = match (options.quick, heads * head_dim) {
                (true, 0..=128) => 275,
                (true, _) => 150,
                (false, 0..=256) => 330,
                (false, _) => 270,
            };
            let focus = focuses[turn % focuses.len()];
            let label = format!("{heads}/{kv_heads} heads of {head_dim}, window {window:?}, {focus:?}");
            let subject = Subject::new(b, &layer, label, length, focus, *seed)?;
            subject.check_bounds(options, &mut report)?;
            paging::check(&subject, options, &mut report)?;
        }
    }
    Ok(report)
}

/// A layout in which the layer has neighbours of other shapes, before it in its group and in another group.
fn layer(heads: usize, shape: KvShape, window: Option<usize>, turn: usize) -> Layer {
    let other = KvShape { kv_heads: shape.kv_heads + 1, head_dim: 16 };
    let group =
        KvGroup { window, layers: if turn.is_multiple_of(2) { vec![shape, other] } else { vec![other, shape] } };
    let beside = KvGroup { window: window.map_or(Some(16), |_| None), layers: vec![other] };
    let at = turn / 2 % 2;
    let layout = if at == 0 { vec![group, beside] } else { vec![beside, group] };
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    Layer { layout, slot: KvSlot { group: at, layer: turn % 2 }, spec: Attend { heads, scale, window } }
}

/// Sequences of one layer with the outputs each row must have in every situation.
pub(super) struct Subject<'a, B: Backend> {
    pub b: &'a B,
    pub layer: &'a Layer,
    pub label: String,
    pub seed: u64,
    focus: Focus,
    tapes: Vec<Tape>,
    oracle: Vec<Vec<f32>>, // [sequence], (len, heads * head_dim)
}

impl<'a, B: Backend> Subject<'a, B> {
    fn new(
        b: &'a B,
        layer: &'a Layer,
        label: String,
        length: usize,
        focus: Focus,
        seed: u64,
    ) -> Result<Self, Violation> {
        let mut rng = Rng::for_case(seed, &label);
        let tapes: Vec<Tape> =
            [length, length / 2, 41, 7].iter().map(|len| tape(&mut rng, layer, *len, focus)).collect();
        let mut subject = Subject { b, layer, label, seed, focus, tapes, oracle: Vec::new() };
        for sequence in 0..subject.tapes.len() {
            let mut cache = Cache::new(b, layer, subject.len(sequence), &mut rng)?;
            let rows = (0..subject.len(sequence)).flat_map(|at| cache.step(&[subject.part(sequence, at, 1)])).collect();
            subject.oracle.push(rows);
        }
        Ok(subject)
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.tapes.len()
    }

    /// Positions of a sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.tapes[sequence].q.len() / self.layer.q_width()
    }

    /// A span of a sequence.
    pub fn part(&self, sequence: usize, start: usize, len: usize) -> Part<'_> {
        Part { sequence, start, len, tape: &self.tapes[sequence] }
    }

    /// A tape of other rows, to be taken back.
    pub fn draft(&self, rng: &mut Rng, len: usize) -> Tape {
        tape(rng, self.layer, len, self.focus)
    }

    /// The violation of this case.
    pub fn violation(&self, what: String) -> Violation {
        Violation::new("attend", format!("{}: {what}", self.label))
    }

    /// Compares rows of a sequence from `start` on with what they are when fed token by token.
    pub fn same(
        &self,
        sequence: usize,
        start: usize,
        got: &[f32],
        how: impl Fn() -> String,
        report: &mut Report,
    ) -> Result<(), Violation> {
        let width = self.layer.q_width();
        let want = &self.oracle[sequence][start * width..][..got.len()];
        if let Some(i) = first_difference(want, got) {
            return Err(self.violation(format!(
                "{}: value {} of position {} is {:e} ({:08x}), fed token by token it is {:e} ({:08x})",
                how(),
                i % width,
                start + i / width,
                got[i],
                bits(got[i]),
                want[i],
                bits(want[i])
            )));
        }
        report.entry("attend").bits += got.len() as u64;
        Ok(())
    }

    fn check_bounds(&self, options: &Options, report: &mut Report) -> Result<(), Violation> {
        let tolerance = if self.focus == Focus::Rounded { options.kv_pages } else { options.attention };
        let mut rng = Rng::new(self.seed);
        for sequence in 0..self.sequences() {
            let len = self.len(sequence);
            let want = Cache::new(&Reference, self.layer, len, &mut rng)?.step(&[self.part(sequence, 0, len)]);
            let bounds = bounds(&self.tapes[sequence], self.layer, tolerance);
            let width = self.layer.q_width();
            for (i, (got, want)) in self.oracle[sequence].iter().zip(&want).enumerate() {
                let bound = bounds[i / width];
                // Written so that NaN fails.
                if (f64::from(*got) - f64::from(*want)).abs() <= bound {
                    continue;
                }
                let what = format!(
                    "value {} of position {} is {got:e}, the reference has {want:e} ± {bound:.1e}",
                    i % width,
                    i / width
                );
                return Err(self.violation(what));
            }
            report.entry("attend").bounds += want.len() as u64;
        }
        Ok(())
    }
}

/// Random rows. K and V are bf16 values unless their rounding is the point.
fn tape(rng: &mut Rng, layer: &Layer, len: usize, focus: Focus) -> Tape {
    let spread = match focus {
        Focus::Flat => 1.0,
        Focus::Peaky => 20.0,
        Focus::Rounded => 0.25,
    };
    let exact = |v: f32| if focus == Focus::Rounded { v } else { half::bf16::from_f32(v).to_f32() };
    Tape {
        q: (0..len * layer.q_width()).map(|_| spread * rng.normal()).collect(),
        k: (0..len * layer.kv_width()).map(|_| exact(rng.normal())).collect(),
        v: (0..len * layer.kv_width()).map(|_| exact(rng.normal())).collect(),
    }
}

/// Largest error of the values of each row: scores err by `tolerance * scale |q| |k|`, which changes a share by that
/// power of e, and shares are of values no larger than the largest seen so far.
fn bounds(tape: &Tape, layer: &Layer, tolerance: f64) -> Vec<f64> {
    let dim = layer.layout[layer.slot.group].layers[layer.slot.layer].head_dim;
    let norm = |head: &[f32]| head.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let longest = |row: &[f32]| row.chunks_exact(dim).map(norm).fold(0.0, f64::max);
    let (mut longest_key, mut largest_value) = (0.0f64, 0.0f64);
    tape.q
        .chunks_exact(layer.q_width())
        .zip(tape.k.chunks_exact(layer.kv_width()).zip(tape.v.chunks_exact(layer.kv_width())))
        .map(|(q, (k, v))| {
            longest_key = longest_key.max(longest(k));
            largest_value = v.iter().fold(largest_value, |m, v| m.max(f64::from(v.abs())));
            let score = f64::from(layer.spec.scale) * longest(q) * longest_key;
            largest_value * ((2.0 * tolerance * score).exp_m1() + tolerance)
        })
        .collect()
}
