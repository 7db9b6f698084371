//! THE reduction orders (docs/NUMERICS.md): every floating-point sum of the CPU backend, spelled out once in scalar code.
//!
//! A sum is a function of the weight's shape and format, or of absolute key positions; never of the number of rows,
//! threads, or the instruction set. Kernels use vectors of any width; these functions are what they must equal in bits.
//! All fused multiply-adds are written out; elementary functions are polynomials in the same operations.

mod delta;

pub use delta::*;

/// Virtual lanes: element `i` of a long sum is added to lane `i % LANES`, lanes are combined by [`tree`].
pub const LANES: usize = 16;

/// Keys of one attention block, counted from position 0. Also the CPU backend's page length.
pub const KEY_BLOCK: usize = 64;

/// Adds the lanes pairwise: halves onto each other, 16 -> 8 -> 4 -> 2 -> 1.
pub fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `sum(x[i] * w[i])` for float weights: lane `i % 16`, fused, in order; a missing tail counts as zeros.
pub fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (i, (&x, &w)) in x.iter().zip(w).enumerate() {
        lanes[i % LANES] = x.mul_add(w, lanes[i % LANES]);
    }
    // A vector kernel pads the tail with zeros: 0 * 0 + lane, which only turns -0 into +0.
    if !x.len().is_multiple_of(LANES) {
        for lane in &mut lanes[x.len() % LANES..] {
            *lane = 0.0f32.mul_add(0.0, *lane);
        }
    }
    tree(lanes)
}

/// Index of the largest value, the lowest among equals; `None` when a value is NaN or infinite, or there is none. 0 and -0 are equal.
/// The same in any order, so kernels are free.
pub fn argmax(row: &[f32]) -> Option<u32> {
    let (mut best, mut poison) = (0, 0.0f32);
    for (i, v) in row.iter().enumerate() {
        // 0 or -0 for every finite value, NaN for any other: an infinity below all others would lose unseen.
        poison += v * 0.0;
        if *v > row[best] {
            best = i;
        }
    }
    (poison == 0.0 && !row.is_empty()).then_some(best as u32)
}

/// Length of an int8 activation group for a row of `inputs` values: 64 where it divides, else 32.
pub const fn activation_group(inputs: usize) -> usize {
    if inputs.is_multiple_of(64) { 64 } else { 32 }
}

/// One group of a row as int8: returns `(scale, codes)` with `x ~ scale * code`.
///
/// The scale is not finite when any input is not, so that damage shows in the logits instead of vanishing in a cast.
pub fn quantize_group(x: &[f32], codes: &mut [i8]) -> f32 {
    let mut amax = 0.0f32;
    let mut poison = 0.0f32;
    for &v in x {
        amax = if amax > v.abs() { amax } else { v.abs() };
        poison += v * 0.0;
    }
    // Capped: an infinite inverse would make zeros NaN. Groups below 4e-37 lose precision instead.
    let inverse = if amax > 0.0 { (127.0 / amax).min(f32::MAX) } else { 0.0 };
    for (code, &v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    amax / 127.0 + poison
}

/// `e^x` as every kernel computes it: range reduction by `ln 2` in two parts, a degree-6 polynomial, exponent added.
/// Inputs are clamped to the normal range; NaN stays NaN.
pub fn exp(x: f32) -> f32 {
    let x = if EXP_LO > x { EXP_LO } else { x };
    let x = if EXP_HI < x { EXP_HI } else { x };
    let t = x.mul_add(std::f32::consts::LOG2_E, EXP_MAGIC);
    let n = t - EXP_MAGIC;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    let mut p = EXP_POLY[0];
    for c in &EXP_POLY[1..] {
        p = p.mul_add(r, *c);
    }
    let y = f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
    x.mul_add(0.0, y)
}

/// Smallest argument of [`exp`]: the result stays a normal number.
pub const EXP_LO: f32 = -87.0;
/// Largest argument of [`exp`].
pub const EXP_HI: f32 = 88.0;
/// Adding this rounds to an integer held in the low mantissa bits.
pub const EXP_MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23
/// High part of ln 2: few bits, so that `n * LN2_HI` is exact.
pub const LN2_HI: f32 = 0.693_359_4;
/// `ln 2 - LN2_HI`.
pub const LN2_LO: f32 = -2.121_944_4e-4;
/// Taylor coefficients of e^r, highest first; |r| <= ln2/2 keeps the error below one unit in the last place.
pub const EXP_POLY: [f32; 7] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// `tanh(x) = 1 - 2 / (e^(2x) + 1)`, absolute error about 1e-7.
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// GELU, tanh form: `x * sigmoid(2u)`, `u = sqrt(2/pi) (x + 0.044715 x^3)`.
pub fn gelu_tanh(x: f32) -> f32 {
    let inner = (x * x).mul_add(0.044_715, 1.0) * x;
    x / (exp(inner * -GELU_SCALE) + 1.0)
}

/// `2 * sqrt(2 / pi)`.
pub const GELU_SCALE: f32 = 1.595_769;

/// A quantised weight row as [`int8_dot`] reads it.
#[derive(Clone, Copy, Debug)]
pub struct CodeRow<'a> {
    /// Unsigned codes, one a value: affine codes as stored; for E2M1 twice the value plus 12.
    pub codes: &'a [u8],
    /// Factor of each group of codes; for E2M1 half the stored scale.
    pub scales: &'a [f32],
    /// Value of code zero of each group; for E2M1 minus six times the stored scale.
    pub biases: &'a [f32],
}

/// Dot product of a quantised weight row with an activation row of codes `x` and scales `x_scales`, one an
/// [`activation_group`].
///
/// One chain over the groups of the weight in order. Values that share both scales (the smaller of the weight's group and
/// the activations') give an integer dot product, which is exact; it is multiplied by the product of the two scales, fused
/// onto the sum. After each group of the weight its bias follows, fused, times the sum of the group's activations, which is
/// exact in integers inside an activation group, then added in order.
///
/// # Panics
/// When the lengths do not fit each other.
pub fn int8_dot(w: CodeRow<'_>, x: &[i8], x_scales: &[f32]) -> f32 {
    assert_eq!(w.codes.len(), x.len(), "values of a row");
    let (group, step) = (x.len() / w.scales.len(), activation_group(x.len()));
    let run = group.min(step);
    let mut acc = 0.0f32;
    for (g, (codes, values)) in w.codes.chunks(group).zip(x.chunks(group)).enumerate() {
        let mut group_sum = 0.0f32;
        for (i, (codes, values)) in codes.chunks(run).zip(values.chunks(run)).enumerate() {
            let x_scale = x_scales[(g * group + i * run) / step];
            let dot: i32 = codes.iter().zip(values).map(|(c, v)| i32::from(*c) * i32::from(*v)).sum();
            acc = (dot as f32).mul_add(w.scales[g] * x_scale, acc);
            let sum: i32 = values.iter().map(|v| i32::from(*v)).sum();
            group_sum += sum as f32 * x_scale;
        }
        acc = w.biases[g].mul_add(group_sum, acc);
    }
    acc
}

/// Factor of an RMS norm from the sum of squares: `1 / sqrt(mean + eps)`, NaN when the sum overflowed: the row would
/// silently become zeros.
#[inline(always)]
pub fn inverse_rms(squares: f32, count: usize, eps: f32) -> f32 {
    let mean = squares / count as f32;
    1.0 / (mean + eps).sqrt() + mean * 0.0
}

/// RMS norm of a row or head: `x * inverse_rms * weight`, the squares summed as [`dot`] does.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let factor = inverse_rms(dot(x, x), x.len(), eps);
    x.iter().enumerate().map(|(i, v)| weight.map_or(v * factor, |w| v * factor * w[i])).collect()
}

/// Attention over some keys: their maximal score, the sum of `exp(score - max)`, and the values weighted by it.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// Largest score.
    pub max: f32,
    /// Sum of the weights.
    pub sum: f32,
    /// Weighted values, one head wide.
    pub values: Vec<f32>,
}

/// Attention of one query head over the visible keys of one block. `keys` and `values` are `[n, head_dim]`; the first of
/// them is key `inside` of its block, which decides its lane.
///
/// A score is a fused chain over the head in order, times `scale`. Weights are added in lane `j % 16` of their place `j` in
/// the block, in order, then by [`tree`]; weighted values are fused chains over the keys in order.
pub fn attend_block(q: &[f32], keys: &[f32], values: &[f32], inside: usize, scale: f32) -> Partial {
    let dim = q.len();
    let score = |key: &[f32]| q.iter().zip(key).fold(0.0f32, |a, (q, k)| q.mul_add(*k, a)) * scale;
    let scores: Vec<f32> = keys.chunks_exact(dim).map(score).collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |m, s| if m > *s { m } else { *s });
    let mut lanes = [0.0f32; LANES];
    let mut weighted = vec![0.0f32; dim];
    for (i, (score, value)) in scores.iter().zip(values.chunks_exact(dim)).enumerate() {
        let p = exp(score - max);
        lanes[(inside + i) % LANES] += p;
        weighted.iter_mut().zip(value).for_each(|(w, v)| *w = p.mul_add(*v, *w));
    }
    Partial { max, sum: tree(lanes), values: weighted }
}

/// Folds the next block into what came before: both are rescaled to the larger maximum and added, fused on the old side.
pub fn merge(old: Partial, new: Partial) -> Partial {
    let max = if old.max > new.max { old.max } else { new.max };
    let (keep, take) = (exp(old.max - max), exp(new.max - max));
    let fold = |old: f32, new: f32| old.mul_add(keep, new * take);
    let values = old.values.iter().zip(&new.values).map(|(o, n)| fold(*o, *n)).collect();
    Partial { max, sum: fold(old.sum, new.sum), values }
}

/// Causal attention of one query head: `keys` and `values` `[positions, head_dim]` are those of positions 0 up to the
/// row's own, of which it sees the last `window`. Blocks of [`KEY_BLOCK`] keys from position 0, folded in order.
///
/// # Panics
/// When there are no keys.
pub fn attend_row(q: &[f32], keys: &[f32], values: &[f32], scale: f32, window: Option<usize>) -> Vec<f32> {
    let dim = q.len();
    let positions = keys.len() / dim;
    let first = window.map_or(0, |w| positions.saturating_sub(w));
    let mut folded: Option<Partial> = None;
    for block in first / KEY_BLOCK..positions.div_ceil(KEY_BLOCK) {
        let (from, to) = (first.max(block * KEY_BLOCK), positions.min((block + 1) * KEY_BLOCK));
        let part = |all: &[f32]| all[from * dim..to * dim].to_vec();
        let next = attend_block(q, &part(keys), &part(values), from % KEY_BLOCK, scale);
        folded = Some(match folded {
            None => next,
            Some(old) => merge(old, next),
        });
    }
    let Partial { sum, values, .. } = folded.expect("a row sees itself");
    values.iter().map(|v| v / sum).collect()
}

/// Experts of a router row, best first (ties to the lower index), with their factors: softmax over the chosen ones, summed
/// in order of rank, times each expert's own scale. The factors are NaN when any of the row's values is not finite.
pub fn route(router: &[f32], scale: &[f32], top_k: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<usize> = (0..router.len()).collect();
    order.sort_by(|a, b| router[*b].total_cmp(&router[*a]).then(a.cmp(b)));
    order.truncate(top_k);
    let shares: Vec<f32> = order.iter().map(|e| exp(router[*e] - router[order[0]])).collect();
    let sum = shares.iter().fold(0.0f32, |a, s| a + s);
    let poison = router.iter().fold(0.0f32, |a, v| v.mul_add(0.0, a)); // 0, or NaN
    order.iter().zip(shares).map(|(e, s)| (*e, s / sum * scale[*e] + poison)).collect()
}

/// SiLU: `x / (e^-x + 1)`.
pub fn silu(x: f32) -> f32 {
    x / (exp(-x) + 1.0)
}

/// Sigmoid: `1 / (e^-x + 1)`, NaN where `x` is not finite, so that saturation hides no damage.
pub fn sigmoid(x: f32) -> f32 {
    x.mul_add(0.0, 1.0 / (exp(-x) + 1.0))
}

/// A token as a number among activations; NaN where there is none. Every id below 2^24 has a number of its own.
pub fn number(token: Option<u32>) -> f32 {
    token.map_or(f32::NAN, |token| token as f32)
}

/// The token of a [`number`]; `None` for NaN and for numbers that are no id.
pub fn token(number: f32) -> Option<u32> {
    let id = number as u32; // saturates
    (id as f32 == number && number.to_bits() == (id as f32).to_bits()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_range() {
        let mut worst = 0.0f64;
        for i in -86_000..88_000 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - want) / want).abs());
        }
        assert!(worst < 3e-7, "relative error {worst:e}");
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::from_bits(0x7fff_ffff)).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn gelu_and_tanh_match_f64() {
        for i in -12_000..12_000 {
            let x = i as f32 * 1e-3;
            let x64 = f64::from(x);
            assert!((f64::from(tanh(x)) - x64.tanh()).abs() < 2e-7);
            let want =
                0.5 * x64 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x64 + 0.044715 * x64.powi(3))).tanh());
            assert!((f64::from(gelu_tanh(x)) - want).abs() < 1e-6 * (1.0 + x64.abs()), "x {x}");
        }
    }

    #[test]
    fn quantize_shows_damage() {
        let mut codes = [0i8; 4];
        assert_eq!(quantize_group(&[0.0; 4], &mut codes), 0.0);
        assert!(!quantize_group(&[1.0, f32::NAN, 0.0, 0.0], &mut codes).is_finite());
        assert!(!quantize_group(&[1.0, f32::INFINITY, 0.0, 0.0], &mut codes).is_finite());
        let d = quantize_group(&[1.0, -2.0, 0.5, 0.0], &mut codes);
        assert_eq!(codes, [64, -127, 32, 0]);
        assert_eq!(d, 2.0 / 127.0);
    }
}
