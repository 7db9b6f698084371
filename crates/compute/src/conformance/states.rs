//! Rows as recurrent layers get them, and what runs them through a backend's slots.

use super::rng::Rng;
use super::{Violation, filled, stale};
use crate::recurrent::{DeltaShape, StateLayout};
use crate::{Backend, Batch, DeltaGates, Wanted};

/// Rows of one layer.
#[derive(Clone, Debug, Default)]
struct LayerRows {
    x: Vec<f32>, // (rows, channels)
    a: Vec<f32>, // (rows, value_heads)
    b: Vec<f32>, // (rows, value_heads)
}

/// Consecutive rows of a sequence, what each layer gets of them.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    rows: usize,
    layers: Vec<LayerRows>,
}

/// What a tape is made to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// As a model's: checked in bounds and bits.
    Plain,
    /// One value of one row is NaN or infinite, and its damage must show.
    Damaged,
    /// Values that overflow, underflow or saturate: f32 and f64 may disagree, so bits only.
    Extreme,
}

/// Where a damaged tape has its NaN or infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// NaN in a k head.
    Key,
    /// Infinity in a v head.
    Value,
    /// Infinity in the gate of a head's decay, which alone would saturate it.
    Decay,
    /// Minus infinity in the gate of a head's beta, likewise.
    Beta,
    /// Minus infinity in a q head.
    Query,
}

impl Tape {
    /// No rows.
    pub fn empty(layout: &StateLayout) -> Self {
        Tape { rows: 0, layers: vec![LayerRows::default(); layout.layers.len()] }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Adds rows.
    pub fn append(&mut self, other: &Tape) {
        self.rows += other.rows;
        for (own, new) in self.layers.iter_mut().zip(&other.layers) {
            own.x.extend_from_slice(&new.x);
            own.a.extend_from_slice(&new.a);
            own.b.extend_from_slice(&new.b);
        }
    }

    /// Rows `start..start + len`.
    pub fn slice(&self, start: usize, len: usize) -> Tape {
        let part = |values: &Vec<f32>| {
            let width = values.len() / self.rows.max(1);
            values[start * width..][..len * width].to_vec()
        };
        let layers = self.layers.iter().map(|l| LayerRows { x: part(&l.x), a: part(&l.a), b: part(&l.b) }).collect();
        Tape { rows: len, layers }
    }

    /// What the convolution of a layer gets, `(rows, channels)`.
    pub fn x(&self, layer: usize) -> &[f32] {
        &self.layers[layer].x
    }

    /// Every value from `make`, which is told the row and whether it is a gate's.
    fn make(layout: &StateLayout, rows: usize, mut make: impl FnMut(usize, bool) -> f32) -> Tape {
        let mut values = |width: usize, gate: bool| (0..rows * width).map(|i| make(i / width, gate)).collect();
        let layer = |l: &DeltaShape| LayerRows {
            x: values(l.channels(), false),
            a: values(l.value_heads, true),
            b: values(l.value_heads, true),
        };
        Tape { rows, layers: layout.layers.iter().map(layer).collect() }
    }

    /// Rows like a model's: standard normal, some small, large or zeros, some gates far out.
    pub fn plain(rng: &mut Rng, layout: &StateLayout, rows: usize) -> Tape {
        Tape::make(layout, rows, |row, gate| {
            let spread = match (gate, row % 14, row % 17) {
                (false, 3, _) => 0.0,
                (false, 7, _) => 1e-3,
                (false, 9, _) => 30.0,
                (true, _, 5) => 20.0,
                _ => 1.0,
            };
            spread * rng.normal()
        })
    }

    /// Plain rows with damage in row `at` of one layer, in the last head.
    pub fn damaged(
        rng: &mut Rng,
        layout: &StateLayout,
        rows: usize,
        (at, layer): (usize, usize),
        damage: Damage,
    ) -> Tape {
        let mut tape = Tape::plain(rng, layout, rows);
        let shape = layout.layers[layer];
        let LayerRows { x, a, b } = &mut tape.layers[layer];
        let channel = match damage {
            Damage::Query => shape.key_width() - 1,
            Damage::Key => 2 * shape.key_width() - 1,
            _ => shape.channels() - 1,
        };
        let head = at * shape.value_heads + shape.value_heads - 1;
        match damage {
            Damage::Key => x[at * shape.channels() + channel] = f32::NAN,
            Damage::Value => x[at * shape.channels() + channel] = f32::INFINITY,
            Damage::Query => x[at * shape.channels() + channel] = f32::NEG_INFINITY,
            Damage::Decay => a[head] = f32::INFINITY,
            Damage::Beta => b[head] = f32::NEG_INFINITY,
        }
        tape
    }

    /// Rows at the ends of what f32 holds, between plain ones.
    pub fn extreme(rng: &mut Rng, layout: &StateLayout, rows: usize) -> Tape {
        Tape::make(layout, rows, |row, gate| match (row % 9, gate) {
            (2, false) => 3e37 * (rng.unit() - 0.5),
            (3, false) => 1e-40 * rng.normal(),
            (5, false) => 1e18 * rng.normal(),
            (3, true) => 1e30 * rng.normal(),
            (6, true) => 300.0 * rng.normal(),
            (8, true) if row > rows / 2 && rng.one_in(3) => f32::INFINITY.copysign(rng.normal()),
            _ => rng.normal(),
        })
    }

    /// Rows that nobody may notice: other ones, or full of NaN, infinities or huge values.
    pub fn garbage(rng: &mut Rng, layout: &StateLayout, rows: usize) -> Tape {
        match rng.below(5) {
            0 => Tape::make(layout, rows, |_, _| f32::NAN),
            1 => Tape::make(layout, rows, |_, _| f32::INFINITY.copysign(rng.normal())),
            2 => Tape::make(layout, rows, |_, _| f32::MAX.copysign(rng.normal())),
            _ => Tape::plain(rng, layout, rows),
        }
    }
}

/// Weights of one layer, in numbers.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub taps: Vec<f32>,    // (taps, channels)
    pub rate: Vec<f32>,    // (value_heads)
    pub dt_bias: Vec<f32>, // (value_heads)
}

impl Parameters {
    /// Taps of about 1 together, rates from one that remembers hundreds of rows to one that forgets at once.
    pub fn random(rng: &mut Rng, shape: &DeltaShape) -> Self {
        let taps = (0..shape.taps * shape.channels()).map(|_| 0.7 * rng.normal()).collect();
        let rate = (0..shape.value_heads).map(|_| 0.05 * 80f32.powf(rng.unit())).collect();
        let dt_bias = (0..shape.value_heads).map(|_| rng.normal() - 1.0).collect();
        Parameters { taps, rate, dt_bias }
    }
}

/// Rows for a slot.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    pub slot: usize,
    pub start: usize,
    pub rows: Tape,
}

/// What the layers gave, for all rows of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    pub conv: Vec<Vec<f32>>,  // [layer], (rows, channels)
    pub delta: Vec<Vec<f32>>, // [layer], (rows, value_heads * value_dim)
}

impl Outputs {
    /// No rows.
    pub fn empty(layout: &StateLayout) -> Self {
        Outputs { conv: vec![Vec::new(); layout.layers.len()], delta: vec![Vec::new(); layout.layers.len()] }
    }

    /// Adds rows `first..first + n` of another batch's `rows`.
    pub fn append(&mut self, other: &Outputs, rows: usize, first: usize, n: usize) {
        for (own, new) in self.conv.iter_mut().zip(&other.conv).chain(self.delta.iter_mut().zip(&other.delta)) {
            let width = new.len() / rows;
            own.extend_from_slice(&new[first * width..][..n * width]);
        }
    }
}

/// The recurrent layers on a backend.
pub(super) struct Net<'b, B: Backend> {
    pub b: &'b B,
    pub layout: StateLayout,
    layers: Vec<(B::Vector, B::Vector, B::Vector)>, // taps, rate, dt_bias
}

impl<'b, B: Backend> Net<'b, B> {
    /// Loads the layers.
    pub fn new(b: &'b B, layout: &StateLayout, parameters: &[Parameters]) -> Self {
        let load = |p: &Parameters| (b.load_vector(&p.taps), b.load_vector(&p.rate), b.load_vector(&p.dt_bias));
        Net { b, layout: layout.clone(), layers: parameters.iter().map(load).collect() }
    }

    /// Slots.
    ///
    /// # Errors
    /// When the backend has no memory, which is then its violation.
    pub fn state(&self, slots: usize, record: usize) -> Result<B::State, Violation> {
        self.b
            .state_new(&self.layout, slots, record)
            .map_err(|e| Violation::new("state", format!("state_new of {slots} slots, record {record}: {e}")))
    }

    /// One forward pass: every layer's convolution, then its delta rule on the result, or on `given` instead.
    pub fn forward(&self, state: &mut B::State, feeds: &[&Feed], given: Option<&[Vec<f32>]>) -> Outputs {
        let mut batch = Batch::new();
        for feed in feeds {
            batch.push(feed.slot, feed.start, &vec![0; feed.rows.len()], &[], Wanted::None);
        }
        let n = batch.rows();
        self.b.state_begin(state, &batch);
        let mut outputs = Outputs::default();
        for (layer, (shape, (taps, rate, dt_bias))) in self.layout.layers.iter().zip(&self.layers).enumerate() {
            let input = |width: usize, field: fn(&LayerRows) -> &Vec<f32>| {
                let values: Vec<f32> =
                    feeds.iter().flat_map(|f| field(&f.rows.layers[layer]).iter().copied()).collect();
                filled(self.b, n, width, &values)
            };
            let x = input(shape.channels(), |l| &l.x);
            let mut qkv = stale(self.b, n, shape.channels());
            self.b.causal_conv(state, layer, &x, taps, &mut qkv);
            let conv = self.b.read(&qkv);
            // What was read is what goes on, also on a backend that holds more than f32.
            self.b.write(&mut qkv, given.map_or(&conv, |given| &given[layer]));
            outputs.conv.push(conv);
            let (a, b) = (input(shape.value_heads, |l| &l.a), input(shape.value_heads, |l| &l.b));
            let mut out = stale(self.b, n, shape.value_width());
            let gates = DeltaGates::<B> { rate, dt_bias };
            self.b.gated_delta(state, layer, &qkv, &a, &b, &gates, &mut out);
            outputs.delta.push(self.b.read(&out));
        }
        outputs
    }

    /// A slot's state in numbers.
    pub fn read(&self, state: &B::State, slot: usize) -> Vec<f32> {
        self.b.state_read(&self.b.state_save(state, slot))
    }
}
