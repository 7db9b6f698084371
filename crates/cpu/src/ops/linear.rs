//! Linears over every weight format: jobs of outputs ranges, shared out among threads by output.
//!
//! Quantised weights in int8 precision run [`tile`] over panels; everything else (float weights, mxfp8, or f32 precision)
//! decodes a row of weights to f32 once and takes fused dot products with all activation rows (order::dot). The choice
//! depends on the weight's format and shape and on the backend's precision, never on the number of rows.

use std::marker::PhantomData;

use mlxcel_compute::{Activation, DType, HostWeight};

use crate::CpuWeight;
use crate::arch::{Isa, Kernel};
use crate::buffer::Shared;
use crate::lanes::{Lanes, activate};
use crate::ops::decode::decode_row;
use crate::ops::panel::{Code, Matrix, OUTPUTS};
use crate::ops::quant::{QuantRows, quantize};
use crate::ops::scales::{Bf16, F16, F32, Halved, Scales};
use crate::ops::tile::{Decode, E2m1, Narrow, Nibbles, Wide, tile};
use crate::pool::Pool;

/// The input rows of one call, quantised once per group size that its weights need.
pub struct Input<'a> {
    x: &'a [f32],
    width: usize,
    quantised: Vec<QuantRows>,
}

impl<'a> Input<'a> {
    /// Prepares `x` `[rows, width]` for the given weights.
    pub fn new(pool: &Pool, isa: Isa, x: &'a [f32], width: usize, weights: &[&CpuWeight]) -> Self {
        let mut quantised: Vec<QuantRows> = Vec::new();
        for weight in weights {
            if let Some(panels) = weight.panels(pool) {
                let group = panels.format().group;
                if !quantised.iter().any(|q| q.group == group) {
                    quantised.push(quantize(pool, isa, x, width, group));
                }
            }
        }
        Input { x, width, quantised }
    }

    fn quantised(&self, group: usize) -> &QuantRows {
        self.quantised.iter().find(|q| q.group == group).expect("prepared by Input::new")
    }
}

/// One matrix times some of the input rows.
pub struct Job<'a> {
    /// The matrix or stack of matrices.
    pub weight: &'a CpuWeight,
    /// For a gated pair: the second matrix; the result is `activation(x @ weight^T) * (x @ up^T)`.
    pub up: Option<(&'a CpuWeight, Activation)>,
    /// Which matrix of the stack.
    pub expert: usize,
    /// Rows of the input, prepared for this weight.
    pub input: &'a Input<'a>,
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Where the rows go: `[rows of the input, outputs]`.
    pub out: &'a Shared<'a, f32>,
}

/// Rows up to which a job counts as narrow.
const NARROW: usize = 16;

/// Runs jobs with all threads. Outputs are cut into ranges of whole tiles; a range is computed by one thread for all
/// rows of its job.
pub fn run(pool: &Pool, isa: Isa, jobs: &[Job<'_>]) {
    // Enough chunks that a thread which loses its core does not hold up the others, big enough to pay for the claim.
    let work: usize = jobs.iter().map(|j| j.weight.host.outputs * j.weight.host.inputs * (1 + j.rows / 4)).sum();
    let threads = pool.threads();
    // A chunk is a dispatch, which shows beside few rows; with many, what it keeps of a gated pair should stay small.
    let most = match (jobs.iter().all(|j| j.rows <= NARROW), threads) {
        (false, _) => threads * 8,
        (true, 1) => 1,
        (true, _) => threads * 4,
    };
    let chunks = if work < 32_768 { 1 } else { (work / 16_384).clamp(threads, most) };
    let total: usize = jobs.iter().map(|j| j.weight.host.outputs).sum();
    let step = total.div_ceil(chunks).next_multiple_of(OUTPUTS);
    let mut ranges = Vec::with_capacity(chunks + jobs.len());
    for (j, job) in jobs.iter().enumerate() {
        for from in (0..job.weight.host.outputs).step_by(step) {
            ranges.push((j, from, (from + step).min(job.weight.host.outputs)));
        }
    }
    pool.run(ranges.len(), &|chunk| {
        let (j, from, to) = ranges[chunk];
        range(pool, isa, &jobs[j], from, to);
    });
}

/// One job's outputs `from..to`: one thread, all rows.
fn range(pool: &Pool, isa: Isa, job: &Job<'_>, from: usize, to: usize) {
    let Some((up, activation)) = job.up else {
        let sink = Sink { out: job.out, stride: job.weight.host.outputs, row: 0, column: 0 };
        return matmul(pool, isa, job, job.weight, from, to, sink);
    };
    let width = to - from;
    let mut gate = vec![0.0; job.rows * width];
    let local = Shared::new(&mut gate);
    matmul(pool, isa, job, job.weight, from, to, Sink { out: &local, stride: width, row: job.row, column: from });
    matmul(pool, isa, job, up, from, to, Sink { out: job.out, stride: up.host.outputs, row: 0, column: 0 });
    for (m, gate) in gate.chunks_exact(width).enumerate() {
        // SAFETY: this range of outputs belongs to this chunk alone.
        let up = unsafe { job.out.part((job.row + m) * up.host.outputs + from, width) };
        isa.run(Combine { activation, gate, up });
    }
}

/// Where a tile's results go.
#[derive(Clone, Copy)]
struct Sink<'a> {
    out: &'a Shared<'a, f32>,
    stride: usize,
    row: usize,
    column: usize,
}

impl Sink<'_> {
    /// Results of input row `row`, outputs from `o`.
    #[inline(always)]
    fn put(&self, row: usize, o: usize, values: &[f32]) {
        // SAFETY: a chunk writes only its own output range.
        let out = unsafe { self.out.part((row - self.row) * self.stride + o - self.column, values.len()) };
        out.copy_from_slice(values);
    }
}

/// `up = activation(gate) * up`.
struct Combine<'a> {
    activation: Activation,
    gate: &'a [f32],
    up: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (gate, gate_rest) = self.gate.as_chunks::<16>();
        let (up, up_rest) = self.up.as_chunks_mut::<16>();
        for (g, u) in gate.iter().zip(up) {
            activate(self.activation, L::load(g)).mul(L::load(u)).store(u);
        }
        if !gate_rest.is_empty() {
            let mut lanes = [0.0; 16];
            activate(self.activation, L::load_partial(gate_rest)).mul(L::load_partial(up_rest)).store(&mut lanes);
            up_rest.copy_from_slice(&lanes[..up_rest.len()]);
        }
    }
}

/// Picks the kernel by layout; each is compiled on its own for each instruction set.
fn matmul(pool: &Pool, isa: Isa, job: &Job<'_>, w: &CpuWeight, from: usize, to: usize, sink: Sink<'_>) {
    let Some(panels) = w.panels(pool) else {
        return isa.run(FloatRange { job, w: &w.host, from, to, sink });
    };
    let format = panels.format();
    let tiles = Tiles { job, w: panels.matrix(job.expert), x: job.input.quantised(format.group), from, to, sink };
    match (format.code, format.scales) {
        (Code::E2m1, _) => isa.run(Kind::<E2m1, Halved>::of(tiles)),
        (Code::Nibbles, scales) => affine::<Nibbles>(isa, scales, tiles),
        (Code::Narrow, scales) => affine::<Narrow>(isa, scales, tiles),
        (Code::Wide, scales) => affine::<Wide>(isa, scales, tiles),
    }
}

fn affine<D: Decode>(isa: Isa, scales: DType, tiles: Tiles<'_>) {
    match scales {
        DType::Bf16 => isa.run(Kind::<D, Bf16>::of(tiles)),
        DType::F16 => isa.run(Kind::<D, F16>::of(tiles)),
        DType::F32 => isa.run(Kind::<D, F32>::of(tiles)),
        other => unreachable!("{other} scales were refused when the weight was loaded"),
    }
}

/// An output range of a quantised matrix.
struct Tiles<'a> {
    job: &'a Job<'a>,
    w: Matrix<'a>,
    x: &'a QuantRows,
    from: usize,
    to: usize,
    sink: Sink<'a>,
}

/// [`Tiles`] with its decoder and scales.
struct Kind<'a, D, S>(Tiles<'a>, PhantomData<(D, S)>);

impl<'a, D, S> Kind<'a, D, S> {
    fn of(tiles: Tiles<'a>) -> Self {
        Kind(tiles, PhantomData)
    }
}

impl<D: Decode, S: Scales> Kernel for Kind<'_, D, S> {
    type Out = ();

    /// All rows before the next panel, so that a panel is read from memory once.
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let tiles = self.0;
        let end = tiles.job.row + tiles.job.rows;
        for panel in tiles.from / OUTPUTS..tiles.to.div_ceil(OUTPUTS) {
            let mut row = tiles.job.row;
            while row < end {
                let count = (end - row).min(L::ROWS);
                match count {
                    1 => tiles.rows::<L, D, S, 1>(panel, row),
                    2 => tiles.rows::<L, D, S, 2>(panel, row),
                    3 => tiles.rows::<L, D, S, 3>(panel, row),
                    4 => tiles.rows::<L, D, S, 4>(panel, row),
                    // Compiled only where the registers hold so many.
                    5 if L::ROWS >= 8 => tiles.rows::<L, D, S, 5>(panel, row),
                    6 if L::ROWS >= 8 => tiles.rows::<L, D, S, 6>(panel, row),
                    7 if L::ROWS >= 8 => tiles.rows::<L, D, S, 7>(panel, row),
                    8 if L::ROWS >= 8 => tiles.rows::<L, D, S, 8>(panel, row),
                    _ => unreachable!("at most {} rows", L::ROWS),
                }
                row += count;
            }
        }
    }
}

impl Tiles<'_> {
    /// One panel times M rows.
    #[inline(always)]
    fn rows<L: Lanes, D: Decode, S: Scales, const M: usize>(&self, panel: usize, row: usize) {
        let o = panel * OUTPUTS;
        for (m, sums) in tile::<L, D, S, M>(&self.w, panel, self.x, row).iter().enumerate() {
            let mut lanes = [0.0; OUTPUTS];
            sums.store(&mut lanes);
            self.sink.put(row + m, o, &lanes[..OUTPUTS.min(self.to - o)]);
        }
    }
}

/// Some rows of a matrix, each decoded and multiplied while it lies in the first-level cache.
struct RowDots<'a> {
    w: &'a HostWeight,
    ids: &'a [u32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for RowDots<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.y.len();
        let mut decoded = vec![0.0f32; width.next_multiple_of(16)];
        for (id, out) in self.ids.iter().zip(self.out) {
            decode_row::<L>(self.w, *id as usize, &mut decoded[..width]);
            let [dot] = float_dots::<L, 1>(decoded.as_chunks().0, [self.y]);
            *out = dot;
        }
    }
}

/// `order::dot(w[ids[i]], y)`, the rows shared out among threads.
pub fn row_dots(pool: &Pool, isa: Isa, w: &HostWeight, ids: &[u32], y: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; ids.len()];
    let shared = Shared::new(&mut out);
    let chunks = if ids.len() * y.len() < 65_536 { 1 } else { pool.threads() * 4 };
    let step = ids.len().div_ceil(chunks).max(1);
    pool.run(ids.len().div_ceil(step), &|chunk| {
        let from = chunk * step;
        let ids = &ids[from..(from + step).min(ids.len())];
        // SAFETY: each row belongs to one chunk.
        let out = unsafe { shared.part(from, ids.len()) };
        isa.run(RowDots { w, ids, y, out });
    });
    out
}

/// Decodes one weight row at a time and takes fused dot products with all rows.
struct FloatRange<'a> {
    job: &'a Job<'a>,
    w: &'a HostWeight,
    from: usize,
    to: usize,
    sink: Sink<'a>,
}

impl Kernel for FloatRange<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let FloatRange { job, w, from, to, sink } = self;
        let width = job.input.width;
        let mut decoded = vec![0.0f32; width.next_multiple_of(16)];
        for o in from..to {
            decode_row::<L>(w, job.expert * w.stride + o, &mut decoded[..width]);
            let (weights, _) = decoded.as_chunks::<16>();
            let mut row = job.row;
            while row < job.row + job.rows {
                let count = (job.row + job.rows - row).min(4);
                let mut x: [&[f32]; 4] = [&[]; 4];
                for (m, x) in x.iter_mut().enumerate() {
                    *x = &job.input.x[(row + m.min(count - 1)) * width..][..width];
                }
                for (m, v) in float_dots::<L, 4>(weights, x).iter().take(count).enumerate() {
                    sink.put(row + m, o, &[*v]);
                }
                row += count;
            }
        }
    }
}

/// Dot products with one weight row (repeat a row to have fewer).
#[inline(always)]
fn float_dots<L: Lanes, const N: usize>(weights: &[[f32; 16]], x: [&[f32]; N]) -> [f32; N] {
    let mut acc = [L::splat(0.0); N];
    let whole = x[0].len() / 16;
    for (i, w) in weights[..whole].iter().enumerate() {
        let w = L::load(w);
        for m in 0..N {
            acc[m] = L::load(x[m][16 * i..].first_chunk().expect("sixteen values")).fma(w, acc[m]);
        }
    }
    if weights.len() > whole {
        let w = L::load(&weights[whole]);
        for m in 0..N {
            acc[m] = L::load_partial(&x[m][16 * whole..]).fma(w, acc[m]);
        }
    }
    let mut out = [0.0; N];
    for m in 0..N {
        out[m] = acc[m].sum();
    }
    out
}
