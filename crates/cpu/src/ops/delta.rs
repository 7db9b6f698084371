//! Recurrent layers: the causal convolution and the gated delta rule, token by token for every row alike.
//!
//! Orders: `mlxcel_compute::order::{conv, l2_norm, decay, delta_column}`. Work is cut by rows (convolution, norms) and by
//! columns of the state (the rule): columns never meet, rows of a column go in order on one thread.

use std::ops::Range;

use mlxcel_compute::order::{self, DELTA_CHAINS};
use mlxcel_compute::recurrent::{Replay, Segment};

use crate::arch::{Isa, Kernel};
use crate::buffer::Shared;
use crate::lanes::{Lanes, silu};
use crate::ops::rows::{put, sixteen};
use crate::pool::Pool;
use crate::state::{CpuState, LayerState, STRIP, head_values, record_width};

/// Strips a job works on: with four chains each they hide the latency of a fused multiply-add and stay in the registers.
const PAIR: usize = 2;

/// Multiply-adds below which a call stays on one thread.
const SMALL: usize = 32_768;

/// One row of the convolution.
pub struct ConvRow<'a> {
    /// Rows before the span, `[taps - 1, channels]`; `None` = zeros.
    pub window: Option<&'a [f32]>,
    /// The span's rows up to this one, `[n, channels]`, n at least 1.
    pub rows: &'a [f32],
    /// Taps, `[taps, channels]`.
    pub weight: &'a [f32],
    /// Output, `[channels]`.
    pub out: &'a mut [f32],
}

impl Kernel for ConvRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let channels = self.out.len();
        let taps = self.weight.len() / channels;
        let n = self.rows.len() / channels;
        for at in (0..channels).step_by(16) {
            let mut sum = L::splat(0.0);
            for j in 0..taps {
                // Tap j takes the row `taps - 1 - j` before this one.
                let x = if n + j >= taps {
                    sixteen::<L>(&self.rows[(n + j - taps) * channels..][..channels], at)
                } else {
                    match self.window {
                        Some(window) => sixteen::<L>(&window[(n - 1 + j) * channels..][..channels], at),
                        None => L::splat(0.0),
                    }
                };
                let w = sixteen::<L>(&self.weight[j * channels..][..channels], at);
                sum = w.fma(x, sum);
            }
            put(self.out, at, silu(sum));
        }
    }
}

/// The rows before the next one after `rows` `[n, channels]` have followed those of `old`.
fn slide(old: Option<&[f32]>, rows: &[f32], new: &mut [f32]) {
    if rows.len() >= new.len() {
        new.copy_from_slice(&rows[rows.len() - new.len()..]);
        return;
    }
    let keep = new.len() - rows.len();
    let (head, tail) = new.split_at_mut(keep);
    match old {
        Some(old) => head.copy_from_slice(&old[rows.len()..]),
        None => head.fill(0.0),
    }
    tail.copy_from_slice(rows);
}

/// Two places of a slot's memory: one to read (or none), one to write.
fn places(memory: &mut [f32], read: Option<Range<usize>>, write: Range<usize>) -> (Option<&[f32]>, &mut [f32]) {
    match read {
        None => (None, &mut memory[write]),
        Some(read) if read.start < write.start => {
            let (low, high) = memory.split_at_mut(write.start);
            (Some(&low[read]), &mut high[..write.len()])
        }
        Some(read) => {
            let (low, high) = memory.split_at_mut(read.start);
            (Some(&high[..read.len()]), &mut low[write])
        }
    }
}

impl LayerState {
    fn slide(&mut self, slot: usize, read: Option<usize>, write: usize, rows: &[f32]) {
        let read = read.map(|place| self.window(slot, place));
        let write = self.window(slot, write);
        let (old, new) = places(&mut self.windows, read, write);
        slide(old, rows, new);
    }
}

/// After the outputs of a convolution are computed: moves the windows on and records the rows.
pub fn conv_advance(state: &mut CpuState, layer: usize, x: &[f32]) {
    let record = state.slots.record();
    let layer = &mut state.layers[layer];
    let channels = layer.shape.channels();
    for pass in &state.passes {
        for Segment { first_row, len, read, write, record: recorded } in &pass.segments {
            let rows = &x[first_row * channels..][..len * channels];
            layer.slide(pass.slot, *read, *write, rows);
            if *recorded {
                layer.inputs[pass.slot * record * channels..][..rows.len()].copy_from_slice(rows);
            }
        }
    }
}

/// What the delta rule needs of a row besides v: `[q | k | decay | beta]`, all heads.
pub struct Prepare<'a> {
    /// q, k, v after the convolution.
    pub qkv: &'a [f32],
    /// Decay before its gate, one a value head.
    pub a: &'a [f32],
    /// Beta before its gate.
    pub b: &'a [f32],
    /// `e^A_log`.
    pub rate: &'a [f32],
    /// Added to `a`.
    pub dt_bias: &'a [f32],
    /// Values of a q or k head.
    pub key_dim: usize,
    /// Output, `2 * key_width + 2 * value_heads`.
    pub out: &'a mut [f32],
}

impl Kernel for Prepare<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let heads = self.a.len();
        let both = self.out.len() - 2 * heads; // q and k
        let (keys, gates) = self.out.split_at_mut(both);
        for (h, head) in keys.chunks_exact_mut(self.key_dim).enumerate() {
            let x = &self.qkv[h * self.key_dim..][..self.key_dim];
            let mut acc = L::splat(0.0);
            for at in (0..x.len()).step_by(16) {
                let v = sixteen::<L>(x, at);
                acc = v.fma(v, acc);
            }
            let factor = L::splat(order::inverse_length(acc.sum()));
            let is_query = h * self.key_dim < both / 2;
            let scale = L::splat(if is_query { 1.0 / (self.key_dim as f32).sqrt() } else { 1.0 });
            for at in (0..x.len()).step_by(16) {
                put(head, at, sixteen::<L>(x, at).mul(factor).mul(scale));
            }
        }
        let (decay, beta) = gates.split_at_mut(heads);
        for h in 0..heads {
            decay[h] = order::decay(self.a[h], self.rate[h], self.dt_bias[h]);
            beta[h] = order::beta(self.b[h]);
        }
    }
}

/// Rows as the rule takes them: offsets of one head's operands inside each row.
#[derive(Clone, Copy)]
struct Feed<'a> {
    keys: &'a [f32],
    stride: usize,
    q: usize,
    k: usize,
    decay: usize,
    beta: usize,
    values: &'a [f32],
    value_stride: usize,
    v: usize,
    len: usize,
}

/// Where a job's outputs go: row `r`, values `column..`.
struct Out<'a> {
    shared: &'a Shared<'a, f32>,
    first: usize, // index of the first row's first value
    stride: usize,
}

/// The rule over up to [`PAIR`] neighbouring strips of a head, rows in order. Without `out`, only the state moves on.
struct Strips<'a> {
    feed: Feed<'a>,
    key_dim: usize,
    columns: usize,
    read: Option<&'a [f32]>,
    write: &'a mut [f32],
    out: Option<Out<'a>>,
}

impl Kernel for Strips<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        match self.read {
            Some(read) => self.write.copy_from_slice(read),
            None => self.write.fill(0.0),
        }
        if self.columns > STRIP { self.rows::<L, PAIR>() } else { self.rows::<L, 1>() }
    }
}

impl Strips<'_> {
    #[inline(always)]
    fn rows<L: Lanes, const N: usize>(self) {
        let Strips { feed, key_dim, columns, write, out, .. } = self;
        let (state, _) = write.as_chunks_mut::<STRIP>();
        let whole = key_dim - key_dim % DELTA_CHAINS;
        for r in 0..feed.len {
            let row = &feed.keys[r * feed.stride..][..feed.stride];
            let (q, k) = (&row[feed.q..][..key_dim], &row[feed.k..][..key_dim]);
            let decay = L::splat(row[feed.decay]);
            let mut predicted = [[L::splat(0.0); DELTA_CHAINS]; N];
            for i in (0..whole).step_by(DELTA_CHAINS) {
                for c in 0..DELTA_CHAINS {
                    let k = L::splat(k[i + c]);
                    for n in 0..N {
                        predicted[n][c] = k.fma(L::load(&state[n * key_dim + i + c]).mul(decay), predicted[n][c]);
                    }
                }
            }
            for i in whole..key_dim {
                let k = L::splat(k[i]);
                for n in 0..N {
                    let c = i - whole;
                    predicted[n][c] = k.fma(L::load(&state[n * key_dim + i]).mul(decay), predicted[n][c]);
                }
            }
            let beta = L::splat(row[feed.beta]);
            let v = &feed.values[r * feed.value_stride + feed.v..][..columns];
            let mut change = [L::splat(0.0); N];
            for n in 0..N {
                change[n] = beta.mul(sixteen::<L>(v, n * STRIP).sub(sum(predicted[n])));
            }
            let mut read = [[L::splat(0.0); DELTA_CHAINS]; N];
            for i in (0..whole).step_by(DELTA_CHAINS) {
                for c in 0..DELTA_CHAINS {
                    let (q, k) = (L::splat(q[i + c]), L::splat(k[i + c]));
                    for n in 0..N {
                        let s = &mut state[n * key_dim + i + c];
                        let next = k.fma(change[n], L::load(s).mul(decay));
                        next.store(s);
                        read[n][c] = q.fma(next, read[n][c]);
                    }
                }
            }
            for i in whole..key_dim {
                let (q, k) = (L::splat(q[i]), L::splat(k[i]));
                for n in 0..N {
                    let s = &mut state[n * key_dim + i];
                    let next = k.fma(change[n], L::load(s).mul(decay));
                    next.store(s);
                    read[n][i - whole] = q.fma(next, read[n][i - whole]);
                }
            }
            if let Some(out) = &out {
                // SAFETY: this job alone writes these columns of this row.
                let values = unsafe { out.shared.part(out.first + r * out.stride, columns) };
                for (n, read) in read.into_iter().enumerate() {
                    put(values, n * STRIP, sum(read));
                }
            }
        }
    }
}

/// [`order::chains`], lane by lane.
#[inline(always)]
fn sum<L: Lanes>(c: [L; DELTA_CHAINS]) -> L {
    c[0].add(c[2]).add(c[1].add(c[3]))
}

/// What the rule does to one slot: rows of `keys` and `values` from `first`, between two places.
struct Run {
    slot: usize,
    first: usize,
    len: usize,
    read: Option<usize>,
    write: usize,
}

/// Where the operands of a row lie.
struct Rows<'a> {
    keys: &'a [f32],
    stride: usize,
    q: usize,
    k: usize,
    gates: usize,
    values: &'a [f32],
    value_stride: usize,
    v: usize,
}

/// Runs the rule over columns in parallel; the runs of one group follow each other on the same slot.
fn rule(pool: &Pool, isa: Isa, layer: &mut LayerState, groups: &[Vec<Run>], rows: &Rows<'_>, out: Option<&mut [f32]>) {
    let shape = layer.shape;
    let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
    let share = shape.value_heads / shape.key_heads;
    let pairs = value_dim.div_ceil(PAIR * STRIP);
    let place = layer.matrix_values();
    let total: usize = groups.iter().flatten().map(|r| r.len).sum();
    let width = shape.value_width();
    let matrices = Shared::new(&mut layer.matrices);
    let out = out.map(Shared::new);
    let job = |index: usize| {
        let (group, rest) = (&groups[index / (shape.value_heads * pairs)], index % (shape.value_heads * pairs));
        let (h, pair) = (rest / pairs, rest % pairs);
        let column = pair * PAIR * STRIP;
        let columns = (value_dim - column).min(PAIR * STRIP);
        let len = columns.div_ceil(STRIP) * STRIP * key_dim;
        let inside = h * head_values(&shape) + column * key_dim;
        for run in group {
            let at = |p: usize| (2 * run.slot + p) * place + inside;
            // SAFETY: these strips of this slot are this job's alone, and the two places differ.
            let (read, write) =
                unsafe { (run.read.map(|p| &*matrices.part(at(p), len)), matrices.part(at(run.write), len)) };
            let feed = Feed {
                keys: &rows.keys[run.first * rows.stride..],
                stride: rows.stride,
                q: rows.q + h / share * key_dim,
                k: rows.k + h / share * key_dim,
                decay: rows.gates + h,
                beta: rows.gates + shape.value_heads + h,
                values: &rows.values[run.first * rows.value_stride..],
                value_stride: rows.value_stride,
                v: rows.v + h * value_dim + column,
                len: run.len,
            };
            let out = out.as_ref().map(|shared| Out {
                shared,
                first: run.first * width + h * value_dim + column,
                stride: width,
            });
            isa.run(Strips { feed, key_dim, columns, read, write, out });
        }
    };
    let jobs = groups.len() * shape.value_heads * pairs;
    if total.saturating_mul(shape.state_values()) < SMALL {
        (0..jobs).for_each(job);
    } else {
        // Bounded, whatever the shape; enough of them to even out.
        let step = jobs.div_ceil(pool.threads() * 32);
        pool.run(jobs.div_ceil(step), &|c| (c * step..((c + 1) * step).min(jobs)).for_each(&job));
    }
}

/// The rule over an announced batch: `prepared` as [`Prepare`] makes it, `qkv` `[rows, channels]`.
pub fn delta(
    pool: &Pool,
    isa: Isa,
    state: &mut CpuState,
    layer: usize,
    prepared: &[f32],
    qkv: &[f32],
    out: &mut [f32],
) {
    let record = state.slots.record();
    let layer = &mut state.layers[layer];
    let shape = layer.shape;
    let (keys, channels) = (shape.key_width(), shape.channels());
    let stride = 2 * keys + 2 * shape.value_heads;
    let groups: Vec<Vec<Run>> = state
        .passes
        .iter()
        .map(|pass| {
            let run =
                |s: &Segment| Run { slot: pass.slot, first: s.first_row, len: s.len, read: s.read, write: s.write };
            pass.segments.iter().map(run).collect()
        })
        .collect();
    let rows = Rows {
        keys: prepared,
        stride,
        q: 0,
        k: keys,
        gates: 2 * keys,
        values: qkv,
        value_stride: channels,
        v: 2 * keys,
    };
    rule(pool, isa, layer, &groups, &rows, Some(out));
    // What taking back would need, in the order k, decay, beta, v.
    let width = record_width(&shape);
    for pass in &state.passes {
        for s in pass.segments.iter().filter(|s| s.record) {
            let to = &mut layer.updates[pass.slot * record * width..][..s.len * width];
            for (i, to) in to.chunks_exact_mut(width).enumerate() {
                let (gated, v) = to.split_at_mut(keys + 2 * shape.value_heads);
                let r = s.first_row + i;
                gated.copy_from_slice(&prepared[r * stride + keys..(r + 1) * stride]);
                v.copy_from_slice(&qkv[r * channels + 2 * keys..(r + 1) * channels]);
            }
        }
    }
}

/// Takes a slot back to `len` rows; false when the rows are not on record.
pub fn take_back(pool: &Pool, isa: Isa, state: &mut CpuState, slot: usize, len: usize) -> bool {
    let record = state.slots.record();
    let Some(replay) = state.slots.take_back(slot, len) else { return false };
    let Some(Replay { len, read, write }) = replay else { return true };
    for layer in &mut state.layers {
        let shape = layer.shape;
        let channels = shape.channels();
        let inputs = std::mem::take(&mut layer.inputs);
        layer.slide(slot, read, write, &inputs[slot * record * channels..][..len * channels]);
        layer.inputs = inputs;
        let updates = std::mem::take(&mut layer.updates);
        let width = record_width(&shape);
        let (keys, heads) = (shape.key_width(), shape.value_heads);
        let recorded = &updates[slot * record * width..][..len * width];
        let rows = Rows {
            keys: recorded,
            stride: width,
            q: 0, // read, but only for outputs that are not asked for
            k: 0,
            gates: keys,
            values: recorded,
            value_stride: width,
            v: keys + 2 * heads,
        };
        rule(pool, isa, layer, &[vec![Run { slot, first: 0, len, read, write }]], &rows, None);
        layer.updates = updates;
    }
    true
}
