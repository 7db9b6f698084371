//! Activations as int8: per row, per group of 64 (or 32) values, a scale and codes (order::quantize_group).
//!
//! The codes are laid out as the weight kernels read them, in blocks with sixteen lane scales:
//! - [`Layout::Nibbles`] (4-bit weights): blocks of 128 values. The weight's low nibbles are the even values, the high
//!   ones the odd, so a block is `[even of 0..64, even of 64..128, odd of 0..64, odd of 64..128]`, 32 bytes each: lane
//!   `l` of the dot product covers values `8l..8l+8`.
//! - [`Layout::Bytes`] (other weights, unpacked to bytes): blocks of 64 values in order; lane `l` covers `4l..4l+4`.

use mlxcel_compute::order::activation_group;

use crate::arch::{Isa, Kernel};
use crate::buffer::Shared;
use crate::lanes::Lanes;
use crate::pool::Pool;

/// Order of the codes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Blocks of 128, even and odd values apart.
    Nibbles,
    /// Blocks of 64 in order.
    Bytes,
}

impl Layout {
    /// Values of one block.
    pub const fn block(self) -> usize {
        match self {
            Layout::Nibbles => 128,
            Layout::Bytes => 64,
        }
    }
}

/// Rows quantised for weights of one layout and one bias group.
pub struct QuantRows {
    /// Blocks of a row.
    pub blocks: usize,
    /// Which weights this serves.
    pub layout: Layout,
    /// Weight values that share a bias.
    pub group: usize,
    /// Padded number of bias groups of a row (a multiple of 16).
    pub sums_width: usize,
    codes: Vec<u8>,
    scales: Vec<[f32; 16]>,
    sums: Vec<f32>,
}

impl QuantRows {
    /// Codes of a row, block after block.
    #[inline(always)]
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let size = self.blocks * self.layout.block();
        &self.codes[row * size..][..size]
    }

    /// Lane scales of each block of a row.
    #[inline(always)]
    pub fn row_scales(&self, row: usize) -> &[[f32; 16]] {
        &self.scales[row * self.blocks..][..self.blocks]
    }

    /// Sum of the dequantised values of each bias group, zero-padded.
    #[inline(always)]
    pub fn sums(&self, row: usize) -> &[f32] {
        &self.sums[row * self.sums_width..][..self.sums_width]
    }
}

struct QuantizeRow<'a> {
    x: &'a [f32],
    layout: Layout,
    group: usize,
    natural: &'a mut [i8],
    steps: &'a mut [f32],
    codes: &'a mut [u8],
    scales: &'a mut [[f32; 16]],
    sums: &'a mut [f32],
}

/// One group: scale, and codes in order. The same as `order::quantize_group`, sixteen lanes at a time.
#[inline(always)]
fn quantize_group<L: Lanes>(x: &[f32], codes: &mut [i8]) -> f32 {
    let mut amax = L::splat(0.0);
    let mut poison = 0.0f32;
    let (x, _) = x.as_chunks::<16>();
    for v in x {
        amax = L::load(v).abs().max(amax);
    }
    let mut lanes = [0.0; 16];
    amax.store(&mut lanes);
    let amax = lanes.iter().fold(0.0f32, |a, v| if a > *v { a } else { *v });
    // max drops a NaN, and an infinity leaves a zero inverse: both must show in the scale.
    let mut zeros = L::splat(0.0);
    for v in x {
        zeros = L::load(v).fma(L::splat(0.0), zeros);
    }
    poison += zeros.sum();
    // Capped: an infinite inverse would make zeros NaN, whose code is arbitrary.
    let inverse = if amax > 0.0 { (127.0 / amax).min(f32::MAX) } else { 0.0 };
    let (codes, _) = codes.as_chunks_mut::<16>();
    for (v, c) in x.iter().zip(codes) {
        let scaled = L::load(v).mul(L::splat(inverse));
        L::splat(-127.0).max(L::splat(127.0).min(scaled)).store_i8(c);
    }
    amax / 127.0 + poison
}

impl Kernel for QuantizeRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let inputs = self.x.len();
        let step = activation_group(inputs);
        for (g, (x, codes)) in self.x.chunks_exact(step).zip(self.natural.chunks_exact_mut(step)).enumerate() {
            self.steps[g] = quantize_group::<L>(x, codes);
        }
        let block = self.layout.block();
        let per_lane = block / 16;
        for (b, (codes, scales)) in self.codes.chunks_exact_mut(block).zip(self.scales.iter_mut()).enumerate() {
            let from = b * block;
            let have = (inputs - from).min(block);
            for (lane, s) in scales.iter_mut().enumerate() {
                let at = from + lane * per_lane;
                *s = if at < inputs { self.steps[at / step] } else { 0.0 };
            }
            let values = &self.natural[from..from + have];
            match self.layout {
                Layout::Bytes => {
                    codes[..have].iter_mut().zip(values).for_each(|(c, v)| *c = *v as u8);
                    codes[have..].fill(0);
                }
                Layout::Nibbles => {
                    codes.fill(0);
                    for (half, values) in values.chunks(64).enumerate() {
                        for (i, pair) in values.as_chunks::<2>().0.iter().enumerate() {
                            codes[half * 32 + i] = pair[0] as u8;
                            codes[64 + half * 32 + i] = pair[1] as u8;
                        }
                    }
                }
            }
        }
        // Sums per bias group: exact in integers inside an activation group, then in order.
        self.sums.fill(0.0);
        let run = self.group.min(step);
        for (i, values) in self.natural[..inputs].chunks_exact(run).enumerate() {
            let sum: i32 = values.iter().map(|v| i32::from(*v)).sum();
            self.sums[i * run / self.group] += sum as f32 * self.steps[i * run / step];
        }
    }
}

/// Quantises all rows of `x` `[rows, inputs]` for weights of the given layout and bias group.
///
/// # Panics
/// When `inputs` is not a multiple of 32.
pub fn quantize(pool: &Pool, isa: Isa, x: &[f32], inputs: usize, layout: Layout, group: usize) -> QuantRows {
    assert!(inputs.is_multiple_of(32), "{inputs} inputs for int8 activations");
    let rows = x.len() / inputs;
    let block = layout.block();
    let blocks = inputs.div_ceil(block);
    let sums_width = (inputs / group).next_multiple_of(16);
    let mut out = QuantRows {
        blocks,
        layout,
        group,
        sums_width,
        codes: vec![0; rows * blocks * block],
        scales: vec![[0.0; 16]; rows * blocks],
        sums: vec![0.0; rows * sums_width],
    };
    let (codes, scales, sums) = (Shared::new(&mut out.codes), Shared::new(&mut out.scales), Shared::new(&mut out.sums));
    let at_once = rows.div_ceil(if rows * inputs < 16_384 { 1 } else { pool.threads() * 2 });
    pool.run(rows.div_ceil(at_once.max(1)), &|chunk| {
        let mut natural = vec![0i8; inputs];
        let mut steps = vec![0f32; inputs / 32];
        for r in chunk * at_once..((chunk + 1) * at_once).min(rows) {
            // SAFETY: each row belongs to one chunk.
            let (codes, scales, sums) = unsafe {
                (
                    codes.part(r * blocks * block, blocks * block),
                    scales.part(r * blocks, blocks),
                    sums.part(r * sums_width, sums_width),
                )
            };
            let x = &x[r * inputs..][..inputs];
            isa.run(QuantizeRow { x, layout, group, natural: &mut natural, steps: &mut steps, codes, scales, sums });
        }
    });
    out
}
