//! Activations as int8: per row, per group of 64 (or 32) values, a scale and codes in order (order::quantize_group).

use mlxcel_compute::order::activation_group;

use crate::arch::{Isa, Kernel};
use crate::buffer::Shared;
use crate::lanes::Lanes;
use crate::pool::Pool;

/// Rows quantised for weights of one group size.
pub struct QuantRows {
    /// Values of a row.
    pub inputs: usize,
    /// Values that share a scale here.
    pub step: usize,
    /// Weight values that share a bias.
    pub group: usize,
    codes: Vec<i8>,
    steps: Vec<f32>,
    sums: Vec<f32>,
}

impl QuantRows {
    /// Codes of a row.
    #[inline(always)]
    pub fn codes(&self, row: usize) -> &[i8] {
        &self.codes[row * self.inputs..][..self.inputs]
    }

    /// Scales of a row, one a `step`.
    #[inline(always)]
    pub fn steps(&self, row: usize) -> &[f32] {
        let steps = self.inputs / self.step;
        &self.steps[row * steps..][..steps]
    }

    /// Sum of the dequantised values of each bias group of a row.
    #[inline(always)]
    pub fn sums(&self, row: usize) -> &[f32] {
        let groups = self.inputs / self.group;
        &self.sums[row * groups..][..groups]
    }
}

struct QuantizeRow<'a> {
    x: &'a [f32],
    step: usize,
    group: usize,
    codes: &'a mut [i8],
    steps: &'a mut [f32],
    sums: &'a mut [f32],
}

/// One group of `16 N` values: scale, and codes in order; the same as `order::quantize_group` for values that are all finite. Returns the
/// largest magnitude's scale and the codes.
#[inline(always)]
fn quantize_group<L: Lanes, const N: usize>(x: &[f32], codes: &mut [i8]) -> (f32, [L::Ints; N]) {
    let (x, _) = x.as_chunks::<16>();
    let x: &[[f32; 16]; N] = x.first_chunk().expect("a group's values");
    let mut amax = L::splat(0.0);
    for v in x {
        amax = L::load(v).abs().max(amax);
    }
    let amax = amax.largest();
    // Capped: an infinite inverse would make zeros NaN, whose code is arbitrary.
    let inverse = if amax > 0.0 { (127.0 / amax).min(f32::MAX) } else { 0.0 };
    let (codes, _) = codes.as_chunks_mut::<16>();
    let mut ints = [L::zero(); N];
    for i in 0..N {
        let scaled = L::load(&x[i]).mul(L::splat(inverse));
        let bounded = L::splat(-127.0).max(L::splat(127.0).min(scaled));
        bounded.store_i8(&mut codes[i]);
        ints[i] = bounded.round();
    }
    (amax / 127.0, ints)
}

/// NaN when any value is not finite, else 0: the maximum drops a NaN, and an infinity leaves a zero inverse, but both must show.
#[inline(always)]
fn poison<L: Lanes>(x: &[f32]) -> f32 {
    let mut zeros = L::splat(0.0);
    for v in x.as_chunks::<16>().0 {
        zeros = L::load(v).fma(L::splat(0.0), zeros);
    }
    zeros.sum()
}

impl QuantizeRow<'_> {
    /// Groups of `16 N` values, and their sums by bias group: exact in integers inside an activation group, then in order.
    #[inline(always)]
    fn groups<L: Lanes, const N: usize>(&mut self, damaged: bool) {
        // Codes that one sum is of.
        let run = self.group.min(self.step) / 16;
        self.sums.fill(0.0);
        let values = self.x.chunks_exact(self.step).zip(self.codes.chunks_exact_mut(self.step));
        for (i, (x, codes)) in values.enumerate() {
            let (mut step, ints) = quantize_group::<L, N>(x, codes);
            if damaged {
                step += poison::<L>(x);
            }
            self.steps[i] = step;
            let mut from = 0;
            while from < N {
                let mut total = ints[from];
                for more in ints.iter().take(N.min(from + run)).skip(from + 1) {
                    total = L::add_ints(total, *more);
                }
                // Exact: integers far below 2^24.
                let sum = L::to_f32(total).sum();
                self.sums[(i * self.step + 16 * from) / self.group] += sum * step;
                from += run;
            }
        }
    }
}

impl Kernel for QuantizeRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let damaged = poison::<L>(self.x).is_nan();
        match self.step {
            64 => self.groups::<L, 4>(damaged),
            32 => self.groups::<L, 2>(damaged),
            other => unreachable!("activations are quantised in groups of 64 or 32, not {other}"),
        }
    }
}

/// Quantises all rows of `x` `[rows, inputs]` for weights of the given group.
///
/// # Panics
/// When `inputs` is not a multiple of 32 and of `group`.
pub fn quantize(pool: &Pool, isa: Isa, x: &[f32], inputs: usize, group: usize) -> QuantRows {
    assert!(inputs.is_multiple_of(32) && inputs.is_multiple_of(group), "{inputs} inputs in groups of {group}");
    let rows = x.len() / inputs;
    let step = activation_group(inputs);
    let (steps, groups) = (inputs / step, inputs / group);
    let mut out = QuantRows {
        inputs,
        step,
        group,
        codes: vec![0; rows * inputs],
        steps: vec![0.0; rows * steps],
        sums: vec![0.0; rows * groups],
    };
    let (codes, scales, sums) = (Shared::new(&mut out.codes), Shared::new(&mut out.steps), Shared::new(&mut out.sums));
    let at_once = rows.div_ceil(if rows * inputs < 16_384 { 1 } else { pool.threads() * 2 });
    pool.run(rows.div_ceil(at_once.max(1)), &|chunk| {
        for r in chunk * at_once..((chunk + 1) * at_once).min(rows) {
            // SAFETY: each row belongs to one chunk.
            let (codes, steps, sums) = unsafe {
                (codes.part(r * inputs, inputs), scales.part(r * steps, steps), sums.part(r * groups, groups))
            };
            isa.run(QuantizeRow { x: &x[r * inputs..][..inputs], step, group, codes, steps, sums });
        }
    });
    out
}
