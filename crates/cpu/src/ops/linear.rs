//! Linears over every weight format: jobs of outputs ranges, shared out among threads by output.
//!
//! Quantised weights in int8 precision run [`tile`]; everything else (float weights, mxfp8, or f32 precision) decodes a
//! row of weights to f32 once and takes fused dot products with all activation rows (order::dot). The choice depends on
//! the weight's format and shape and on the backend's precision, never on the number of rows.

use mlxcel_compute::dequant::{e2m1, e4m3, e8m0};
use mlxcel_compute::{Activation, DType, HostWeight, QuantFormat, WeightFormat};

use crate::Precision;
use crate::arch::{Isa, Kernel};
use crate::buffer::Shared;
use crate::lanes::{Lanes, activate};
use crate::ops::quant::{Layout, QuantRows, quantize};
use crate::ops::scales::{Bf16, E4m3Half, E8m0Half, F16, F32, Scales};
use crate::ops::tile::{Bytes8, Codes, Decode, E2m1, Nibbles, Packed, tile, unpack};
use crate::pool::Pool;

/// Whether a weight is multiplied by int8 activations, and in which layout it wants them.
pub fn int8_layout(weight: &HostWeight, precision: Precision) -> Option<Layout> {
    if precision != Precision::Int8 || !weight.inputs.is_multiple_of(32) {
        return None;
    }
    match weight.format {
        WeightFormat::Quant(QuantFormat::Affine { bits: 4, .. } | QuantFormat::Mxfp4 | QuantFormat::Nvfp4, _) => {
            Some(Layout::Nibbles)
        }
        WeightFormat::Quant(QuantFormat::Affine { .. }, _) => Some(Layout::Bytes),
        // E4M3 elements have no integer form: activations stay f32.
        WeightFormat::Quant(QuantFormat::Mxfp8, _) | WeightFormat::Float(_) => None,
    }
}

fn group_of(weight: &HostWeight) -> usize {
    match weight.format {
        WeightFormat::Quant(format, _) => format.group(),
        WeightFormat::Float(_) => weight.inputs,
    }
}

/// The input rows of one call, quantised once per (layout, bias group) that its weights need.
pub struct Input<'a> {
    x: &'a [f32],
    width: usize,
    quantised: Vec<QuantRows>,
}

impl<'a> Input<'a> {
    /// Prepares `x` `[rows, width]` for the given weights.
    pub fn new(
        pool: &Pool,
        isa: Isa,
        precision: Precision,
        x: &'a [f32],
        width: usize,
        weights: &[&HostWeight],
    ) -> Self {
        let mut quantised: Vec<QuantRows> = Vec::new();
        for weight in weights {
            if let Some(layout) = int8_layout(weight, precision) {
                let group = group_of(weight);
                if !quantised.iter().any(|q| q.layout == layout && q.group == group) {
                    quantised.push(quantize(pool, isa, x, width, layout, group));
                }
            }
        }
        Input { x, width, quantised }
    }

    fn quantised(&self, layout: Layout, group: usize) -> &QuantRows {
        self.quantised.iter().find(|q| q.layout == layout && q.group == group).expect("prepared by Input::new")
    }
}

/// One matrix times some of the input rows.
pub struct Job<'a> {
    /// The matrix or stack of matrices.
    pub weight: &'a HostWeight,
    /// For a gated pair: the second matrix; the result is `activation(x @ weight^T) * (x @ up^T)`.
    pub up: Option<(&'a HostWeight, Activation)>,
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

/// Runs jobs with all threads. Outputs are cut into ranges of whole tiles; a range is computed by one thread for all
/// rows of its job.
pub fn run(pool: &Pool, isa: Isa, precision: Precision, jobs: &[Job<'_>]) {
    // Enough chunks that a thread which loses its core does not hold up the others, big enough to pay for the claim.
    let work: usize = jobs.iter().map(|j| j.weight.outputs * j.weight.inputs * (1 + j.rows / 4)).sum();
    let chunks = if work < 32_768 { 1 } else { (work / 16_384).clamp(pool.threads(), pool.threads() * 8) };
    let total: usize = jobs.iter().map(|j| j.weight.outputs).sum();
    let step = total.div_ceil(chunks).next_multiple_of(8);
    let mut ranges = Vec::with_capacity(chunks + jobs.len());
    for (j, job) in jobs.iter().enumerate() {
        for from in (0..job.weight.outputs).step_by(step) {
            ranges.push((j, from, (from + step).min(job.weight.outputs)));
        }
    }
    pool.run(ranges.len(), &|chunk| {
        let (j, from, to) = ranges[chunk];
        isa.run(Range { job: &jobs[j], precision, from, to });
    });
}

struct Range<'a> {
    job: &'a Job<'a>,
    precision: Precision,
    from: usize,
    to: usize,
}

impl Kernel for Range<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let job = self.job;
        match job.up {
            None => matmul::<L>(
                job,
                job.weight,
                self.precision,
                self.from,
                self.to,
                &mut Store(job.out, job.weight.outputs),
            ),
            Some((up, activation)) => {
                let mut gate = vec![0.0; job.rows * (self.to - self.from)];
                let width = self.to - self.from;
                let mut sink = Local { out: &mut gate, width, from: self.from, row: job.row };
                matmul::<L>(job, job.weight, self.precision, self.from, self.to, &mut sink);
                matmul::<L>(job, up, self.precision, self.from, self.to, &mut Store(job.out, up.outputs));
                for m in 0..job.rows {
                    // SAFETY: this range of outputs belongs to this chunk alone.
                    let out = unsafe { job.out.part((job.row + m) * up.outputs + self.from, width) };
                    combine::<L>(activation, &gate[m * width..][..width], out);
                }
            }
        }
    }
}

/// `up = activation(gate) * up`.
#[inline(always)]
fn combine<L: Lanes>(activation: Activation, gate: &[f32], up: &mut [f32]) {
    let (gate, gate_rest) = gate.as_chunks::<16>();
    let (up, up_rest) = up.as_chunks_mut::<16>();
    for (g, u) in gate.iter().zip(up) {
        activate(activation, L::load(g)).mul(L::load(u)).store(u);
    }
    if !gate_rest.is_empty() {
        let mut lanes = [0.0; 16];
        activate(activation, L::load_partial(gate_rest)).mul(L::load_partial(up_rest)).store(&mut lanes);
        up_rest.copy_from_slice(&lanes[..up_rest.len()]);
    }
}

/// Where a tile's results go.
trait Sink {
    /// Result of input row `row` and output `o`.
    fn put(&mut self, row: usize, o: usize, values: &[f32]);
}

struct Store<'a>(&'a Shared<'a, f32>, usize);

impl Sink for Store<'_> {
    #[inline(always)]
    fn put(&mut self, row: usize, o: usize, values: &[f32]) {
        // SAFETY: a chunk writes only its own output range.
        unsafe { self.0.part(row * self.1 + o, values.len()) }.copy_from_slice(values);
    }
}

struct Local<'a> {
    out: &'a mut [f32],
    width: usize,
    from: usize,
    row: usize,
}

impl Sink for Local<'_> {
    #[inline(always)]
    fn put(&mut self, row: usize, o: usize, values: &[f32]) {
        self.out[(row - self.row) * self.width + o - self.from..][..values.len()].copy_from_slice(values);
    }
}

#[inline(always)]
fn matmul<L: Lanes>(job: &Job<'_>, w: &HostWeight, precision: Precision, from: usize, to: usize, sink: &mut impl Sink) {
    let Some(layout) = int8_layout(w, precision) else {
        return float_matmul::<L>(job, w, from, to, sink);
    };
    let WeightFormat::Quant(format, scale_type) = w.format else {
        unreachable!("int8 layouts are for quantised weights")
    };
    let x = job.input.quantised(layout, format.group());
    let groups = w.inputs / format.group();
    let scale_bytes = groups * scale_type.size();
    let rows = w.outputs;
    let row_bytes = w.row_bytes();
    let codes = Codes {
        data: &w.data[job.expert * rows * row_bytes..][..rows * row_bytes],
        scales: &w.scales[job.expert * rows * scale_bytes..][..rows * scale_bytes],
        biases: if w.biases.is_empty() {
            &[]
        } else {
            &w.biases[job.expert * rows * scale_bytes..][..rows * scale_bytes]
        },
        row_bytes,
        scale_bytes,
        groups,
        group: format.group(),
    };
    match format {
        QuantFormat::Mxfp4 => tiles::<L, E2m1, E8m0Half>(job, &codes, x, from, to, sink),
        QuantFormat::Nvfp4 => tiles::<L, E2m1, E4m3Half>(job, &codes, x, from, to, sink),
        QuantFormat::Affine { bits, .. } => match scale_type {
            DType::F32 => affine::<L, F32>(bits, job, &codes, x, from, to, sink),
            DType::F16 => affine::<L, F16>(bits, job, &codes, x, from, to, sink),
            _ => affine::<L, Bf16>(bits, job, &codes, x, from, to, sink),
        },
        QuantFormat::Mxfp8 => unreachable!("mxfp8 takes f32 activations"),
    }
}

#[inline(always)]
fn affine<L: Lanes, S: Scales>(
    bits: u8,
    job: &Job<'_>,
    w: &Codes<'_>,
    x: &QuantRows,
    from: usize,
    to: usize,
    sink: &mut impl Sink,
) {
    match bits {
        2 => tiles::<L, Packed<2>, S>(job, w, x, from, to, sink),
        3 => tiles::<L, Packed<3>, S>(job, w, x, from, to, sink),
        4 => tiles::<L, Nibbles, S>(job, w, x, from, to, sink),
        5 => tiles::<L, Packed<5>, S>(job, w, x, from, to, sink),
        6 => tiles::<L, Packed<6>, S>(job, w, x, from, to, sink),
        _ => tiles::<L, Bytes8, S>(job, w, x, from, to, sink),
    }
}

/// Walks an output range in tiles: R outputs at a time, all rows before the next outputs, so that the weights of a tile
/// are read from memory once.
#[inline(always)]
fn tiles<L: Lanes, D: Decode, S: Scales>(
    job: &Job<'_>,
    w: &Codes<'_>,
    x: &QuantRows,
    from: usize,
    to: usize,
    sink: &mut impl Sink,
) {
    let mut o = from;
    if L::ACCUMULATORS >= 16 {
        while o + 4 <= to {
            tile_rows::<L, D, S, 4>(job, w, x, o, sink);
            o += 4;
        }
    }
    while o < to {
        tile_rows::<L, D, S, 1>(job, w, x, o, sink);
        o += 1;
    }
}

#[inline(always)]
fn tile_rows<L: Lanes, D: Decode, S: Scales, const R: usize>(
    job: &Job<'_>,
    w: &Codes<'_>,
    x: &QuantRows,
    o: usize,
    sink: &mut impl Sink,
) {
    let end = job.row + job.rows;
    let mut row = job.row;
    while row + 4 <= end {
        for (m, v) in tile::<L, D, S, 4, R>(w, o, x, row).iter().enumerate() {
            sink.put(row + m, o, v);
        }
        row += 4;
    }
    if row + 2 <= end {
        for (m, v) in tile::<L, D, S, 2, R>(w, o, x, row).iter().enumerate() {
            sink.put(row + m, o, v);
        }
        row += 2;
    }
    if row < end {
        sink.put(row, o, &tile::<L, D, S, 1, R>(w, o, x, row)[0]);
    }
}

/// Decodes one weight row at a time and takes fused dot products with all rows.
#[inline(always)]
fn float_matmul<L: Lanes>(job: &Job<'_>, w: &HostWeight, from: usize, to: usize, sink: &mut impl Sink) {
    let width = job.input.width;
    let mut decoded = vec![0.0f32; width.next_multiple_of(16)];
    for o in from..to {
        decode_row::<L>(w, job.expert * w.outputs + o, &mut decoded[..width]);
        let (weights, _) = decoded.as_chunks::<16>();
        let mut row = job.row;
        while row < job.row + job.rows {
            let count = (job.row + job.rows - row).min(4);
            let x: [&[f32]; 4] = std::array::from_fn(|m| &job.input.x[(row + m.min(count - 1)) * width..][..width]);
            for (m, v) in float_dots::<L>(weights, x).iter().take(count).enumerate() {
                sink.put(row + m, o, &[*v]);
            }
            row += count;
        }
    }
}

/// Four dot products with one weight row (repeat a row to have fewer).
#[inline(always)]
fn float_dots<L: Lanes>(weights: &[[f32; 16]], x: [&[f32]; 4]) -> [f32; 4] {
    let mut acc = [L::splat(0.0); 4];
    let whole = x[0].len() / 16;
    for (i, w) in weights[..whole].iter().enumerate() {
        let w = L::load(w);
        for m in 0..4 {
            acc[m] = L::load(x[m][16 * i..].first_chunk().expect("sixteen values")).fma(w, acc[m]);
        }
    }
    if weights.len() > whole {
        let w = L::load(&weights[whole]);
        for m in 0..4 {
            acc[m] = L::load_partial(&x[m][16 * whole..]).fma(w, acc[m]);
        }
    }
    acc.map(L::sum)
}

/// One stored row as f32, bit-equal to [`mlxcel_compute::dequant::dequantize_row`].
#[inline(always)]
pub fn decode_row<L: Lanes>(w: &HostWeight, row: usize, out: &mut [f32]) {
    let bytes = &w.data[row * w.row_bytes()..][..w.row_bytes()];
    match w.format {
        WeightFormat::Float(dtype) => decode_floats::<L>(dtype, bytes, out),
        WeightFormat::Quant(format, scale_type) => {
            let group = format.group();
            let groups = w.inputs / group;
            let scales = &w.scales[row * groups * scale_type.size()..][..groups * scale_type.size()];
            match format {
                QuantFormat::Affine { bits, .. } => {
                    let biases = &w.biases[row * groups * scale_type.size()..][..groups * scale_type.size()];
                    let code_bytes = group * usize::from(bits) / 8;
                    for (g, (out, codes)) in out.chunks_exact_mut(group).zip(bytes.chunks_exact(code_bytes)).enumerate()
                    {
                        let (scale, bias) = match scale_type {
                            DType::F32 => (F32::scale(scales, g), F32::bias(scales, biases, g)),
                            DType::F16 => (F16::scale(scales, g), F16::bias(scales, biases, g)),
                            _ => (Bf16::scale(scales, g), Bf16::bias(scales, biases, g)),
                        };
                        for (i, out) in out.chunks_mut(64).enumerate() {
                            let codes = codes_of(bits, codes, i);
                            out.iter_mut().zip(codes).for_each(|(o, c)| *o = f32::from(c) * scale + bias);
                        }
                    }
                }
                QuantFormat::Mxfp4 | QuantFormat::Nvfp4 => {
                    for (k, o) in out.iter_mut().enumerate() {
                        let code = bytes[k / 2] >> (4 * (k % 2)) & 15;
                        let scale = scales[k / group];
                        *o = e2m1(code) * if format == QuantFormat::Mxfp4 { e8m0(scale) } else { e4m3(scale) };
                    }
                }
                QuantFormat::Mxfp8 => {
                    for (k, o) in out.iter_mut().enumerate() {
                        *o = e4m3(bytes[k]) * e8m0(scales[k / group]);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn codes_of(bits: u8, codes: &[u8], block: usize) -> [u8; 64] {
    match bits {
        2 => unpack::<2>(codes, block * 16),
        3 => unpack::<3>(codes, block * 24),
        4 => unpack::<4>(codes, block * 32),
        5 => unpack::<5>(codes, block * 40),
        6 => unpack::<6>(codes, block * 48),
        _ => unpack::<8>(codes, block * 64),
    }
}

#[inline(always)]
fn decode_floats<L: Lanes>(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(o, b)| *o = f32::from_le_bytes(*b));
        }
        _ => {
            let half = |b: &[u8; 32]| if dtype == DType::F16 { L::load_f16(b) } else { L::load_bf16(b) };
            let (whole, rest) = bytes.as_chunks::<32>();
            let (out, out_rest) = out.as_chunks_mut::<16>();
            for (b, o) in whole.iter().zip(out) {
                half(b).store(o);
            }
            let mut padded = [0; 32];
            padded[..rest.len()].copy_from_slice(rest);
            let mut lanes = [0.0; 16];
            half(&padded).store(&mut lanes);
            out_rest.copy_from_slice(&lanes[..out_rest.len()]);
        }
    }
}
