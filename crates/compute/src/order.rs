//! THE reduction orders (docs/NUMERICS.md): every floating-point sum of the CPU backend, spelled out once in scalar code.
//!
//! A sum is a function of the weight's shape and format, or of absolute key positions; never of the number of rows,
//! threads, or the instruction set. Kernels use vectors of any width; these functions are what they must equal in bits.
//! All fused multiply-adds are written out; elementary functions are polynomials in the same operations.

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
    let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
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
