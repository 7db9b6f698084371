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
        let values = self.x.chunks_exact(self.step).zip(self.codes.chunks_exact_mut(self.step));
        for ((x, codes), step) in values.zip(self.steps.iter_mut()) {
            *step = quantize_group::<L>(x, codes);
        }
        // Sums per bias group: exact in integers inside an activation group, then in order.
        self.sums.fill(0.0);
        let run = self.group.min(self.step);
        for (i, values) in self.codes.chunks_exact(run).enumerate() {
            let sum: i32 = values.iter().map(|v| i32::from(*v)).sum();
            self.sums[i * run / self.group] += sum as f32 * self.steps[i * run / self.step];
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
