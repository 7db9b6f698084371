//! Linears over every weight format: jobs of outputs ranges, shared out among threads by output.
//!
//! Quantised weights in int8 precision run [`tile`]; everything else (float weights, mxfp8, or f32 precision) decodes a
//! row of weights to f32 once and takes fused dot products with all activation rows (order::dot). The choice depends on
//! the weight's format and shape and on the backend's precision, never on the number of rows.

use std::marker::PhantomData;

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
        range(isa, precision, &jobs[j], from, to);
    });
}

/// One job's outputs `from..to`: one thread, all rows.
fn range(isa: Isa, precision: Precision, job: &Job<'_>, from: usize, to: usize) {
    let Some((up, activation)) = job.up else {
        let sink = Sink { out: job.out, stride: job.weight.outputs, row: 0, column: 0 };
        return matmul(isa, precision, job, job.weight, from, to, sink);
    };
    let width = to - from;
    let mut gate = vec![0.0; job.rows * width];
    let local = Shared::new(&mut gate);
    matmul(isa, precision, job, job.weight, from, to, Sink { out: &local, stride: width, row: job.row, column: from });
    matmul(isa, precision, job, up, from, to, Sink { out: job.out, stride: up.outputs, row: 0, column: 0 });
    for (m, gate) in gate.chunks_exact(width).enumerate() {
        // SAFETY: this range of outputs belongs to this chunk alone.
        let up = unsafe { job.out.part((job.row + m) * up.outputs + from, width) };
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

/// Picks the kernel by format; each is compiled on its own for each instruction set.
fn matmul(isa: Isa, precision: Precision, job: &Job<'_>, w: &HostWeight, from: usize, to: usize, sink: Sink<'_>) {
    let Some(layout) = int8_layout(w, precision) else {
        return isa.run(FloatRange { job, w, from, to, sink });
    };
    let WeightFormat::Quant(format, scale_type) = w.format else {
        unreachable!("int8 layouts are for quantised weights")
    };
    let groups = w.inputs / format.group();
    let scale_bytes = groups * scale_type.size();
    let rows = w.outputs;
    let row_bytes = w.row_bytes();
    let first = job.expert * w.stride;
    let part = |bytes: &[u8], row: usize| if bytes.is_empty() { 0..0 } else { first * row..(first + rows) * row };
    let w = Codes {
        data: &w.data[part(&w.data, row_bytes)],
        scales: &w.scales[part(&w.scales, scale_bytes)],
        biases: &w.biases[part(&w.biases, scale_bytes)],
        row_bytes,
        scale_bytes,
        groups,
        group: format.group(),
    };
    let tiles = Tiles { job, w, x: job.input.quantised(layout, format.group()), from, to, sink };
    match (format, scale_type) {
        (QuantFormat::Mxfp4, _) => isa.run(Kind::<E2m1, E8m0Half, 32>::of(tiles)),
        (QuantFormat::Nvfp4, _) => isa.run(Kind::<E2m1, E4m3Half, 16>::of(tiles)),
        // The common checkpoints, with the group known to the compiler.
        (QuantFormat::Affine { bits: 4, group: 32 }, DType::Bf16) => isa.run(Kind::<Nibbles, Bf16, 32>::of(tiles)),
        (QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16) => isa.run(Kind::<Nibbles, Bf16, 64>::of(tiles)),
        (QuantFormat::Affine { bits: 8, group: 64 }, DType::Bf16) => isa.run(Kind::<Bytes8, Bf16, 64>::of(tiles)),
        (QuantFormat::Affine { bits, .. }, DType::Bf16) => affine::<Bf16>(isa, bits, tiles),
        (QuantFormat::Affine { bits, .. }, DType::F16) => affine::<F16>(isa, bits, tiles),
        (QuantFormat::Affine { bits, .. }, DType::F32) => affine::<F32>(isa, bits, tiles),
        (other, scales) => unreachable!("{other} with {scales} scales was refused when it was loaded"),
    }
}

fn affine<S: Scales>(isa: Isa, bits: u8, tiles: Tiles<'_>) {
    match bits {
        2 => isa.run(Kind::<Packed<2>, S, 0>::of(tiles)),
        3 => isa.run(Kind::<Packed<3>, S, 0>::of(tiles)),
        4 => isa.run(Kind::<Nibbles, S, 0>::of(tiles)),
        5 => isa.run(Kind::<Packed<5>, S, 0>::of(tiles)),
        6 => isa.run(Kind::<Packed<6>, S, 0>::of(tiles)),
        _ => isa.run(Kind::<Bytes8, S, 0>::of(tiles)),
    }
}

/// An output range of a quantised matrix.
struct Tiles<'a> {
    job: &'a Job<'a>,
    w: Codes<'a>,
    x: &'a QuantRows,
    from: usize,
    to: usize,
    sink: Sink<'a>,
}

/// [`Tiles`] with its decoder, scales and group (0: any).
struct Kind<'a, D, S, const GROUP: usize>(Tiles<'a>, PhantomData<(D, S)>);

impl<'a, D, S, const GROUP: usize> Kind<'a, D, S, GROUP> {
    fn of(tiles: Tiles<'a>) -> Self {
        Kind(tiles, PhantomData)
    }
}

impl<D: Decode, S: Scales, const GROUP: usize> Kernel for Kind<'_, D, S, GROUP> {
    type Out = ();

    /// R outputs at a time, all rows before the next outputs, so that the weights of a tile are read from memory once.
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut o = self.0.from;
        if L::ACCUMULATORS >= 16 {
            while o + 4 <= self.0.to {
                self.0.rows::<L, D, S, GROUP, 4>(o);
                o += 4;
            }
        }
        while o < self.0.to {
            self.0.rows::<L, D, S, GROUP, 1>(o);
            o += 1;
        }
    }
}

impl Tiles<'_> {
    #[inline(always)]
    fn rows<L: Lanes, D: Decode, S: Scales, const GROUP: usize, const R: usize>(&self, o: usize) {
        let end = self.job.row + self.job.rows;
        let mut row = self.job.row;
        // The few left-over outputs of a wide instruction set are not worth wide tiles of their own.
        let wide = R > 1 || L::ACCUMULATORS < 16;
        while wide && row + 4 <= end {
            for (m, v) in tile::<L, D, S, GROUP, 4, R>(&self.w, o, self.x, row).iter().enumerate() {
                self.sink.put(row + m, o, v);
            }
            row += 4;
        }
        if wide && row + 2 <= end {
            for (m, v) in tile::<L, D, S, GROUP, 2, R>(&self.w, o, self.x, row).iter().enumerate() {
                self.sink.put(row + m, o, v);
            }
            row += 2;
        }
        while row < end {
            self.sink.put(row, o, &tile::<L, D, S, GROUP, 1, R>(&self.w, o, self.x, row)[0]);
            row += 1;
        }
    }
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
                for (m, v) in float_dots::<L>(weights, x).iter().take(count).enumerate() {
                    sink.put(row + m, o, &[*v]);
                }
                row += count;
            }
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
    [acc[0].sum(), acc[1].sum(), acc[2].sum(), acc[3].sum()]
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
        4 => {
            // The common width, in a form that vectorises.
            let mut out = [0; 64];
            for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(&codes[block * 32..]) {
                *pair = [byte & 15, byte >> 4];
            }
            out
        }
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
            let (whole, rest) = bytes.as_chunks::<32>();
            let (out, out_rest) = out.as_chunks_mut::<16>();
            for (b, o) in whole.iter().zip(out) {
                half_floats::<L>(dtype, b).store(o);
            }
            let mut padded = [0; 32];
            padded[..rest.len()].copy_from_slice(rest);
            let mut lanes = [0.0; 16];
            half_floats::<L>(dtype, &padded).store(&mut lanes);
            out_rest.copy_from_slice(&lanes[..out_rest.len()]);
        }
    }
}

/// Sixteen values of a 16-bit float type.
#[inline(always)]
fn half_floats<L: Lanes>(dtype: DType, bytes: &[u8; 32]) -> L {
    if dtype == DType::F16 { L::load_f16(bytes) } else { L::load_bf16(bytes) }
}
