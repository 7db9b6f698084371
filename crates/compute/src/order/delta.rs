//! Reduction orders of the recurrent layers (qwen3_5.md §2.3).

use super::{dot, exp, sigmoid, silu};

/// Chains of a sum over the key dimension: value `i` goes to chain `i % DELTA_CHAINS`.
pub const DELTA_CHAINS: usize = 4;

/// Added to the sum of squares of a q or k head.
pub const L2_EPS: f32 = 1e-6;

/// `ln(1 + t)` for `t` in 0..=1: twice the series of the inverse hyperbolic tangent of `t / (t + 2)`.
pub fn ln_1p(t: f32) -> f32 {
    let s = t / (t + 2.0);
    let square = s * s;
    let mut p = LN_SERIES[0];
    for c in &LN_SERIES[1..] {
        p = p.mul_add(square, *c);
    }
    2.0 * s * p
}

/// Coefficients `1 / (2n + 1)`, highest first; `s <= 1/3` keeps the error below one unit in the last place.
const LN_SERIES: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0];

/// `ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)`.
pub fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + ln_1p(exp(-x.abs()))
}

/// Factor a value head's state shrinks by at a row: `e^(-rate * softplus(a + dt_bias))`, NaN where any of them is not finite.
pub fn decay(a: f32, rate: f32, dt_bias: f32) -> f32 {
    let x = a + dt_bias;
    rate.mul_add(0.0, x.mul_add(0.0, exp(-rate * softplus(x))))
}

/// How much of the correction a row writes: the sigmoid.
pub fn beta(b: f32) -> f32 {
    sigmoid(b)
}

/// Factor that gives a q or k head the length 1: `1 / sqrt(sum of squares + eps)`, NaN when the sum overflowed.
#[inline(always)]
pub fn inverse_length(squares: f32) -> f32 {
    1.0 / (squares + L2_EPS).sqrt() + squares * 0.0
}

/// A head at length `scale`: squares summed as [`dot`] does, then times the factor, then times the scale.
pub fn l2_norm(x: &[f32], scale: f32) -> Vec<f32> {
    let factor = inverse_length(dot(x, x));
    x.iter().map(|v| v * factor * scale).collect()
}

/// One channel of one row of the convolution: taps fused in order, the oldest first, then SiLU.
pub fn conv(rows: &[f32], taps: &[f32]) -> f32 {
    silu(rows.iter().zip(taps).fold(0.0f32, |sum, (x, w)| w.mul_add(*x, sum)))
}

/// Sum of four chains: `(0 + 2) + (1 + 3)`.
#[inline(always)]
pub fn chains(c: [f32; DELTA_CHAINS]) -> f32 {
    (c[0] + c[2]) + (c[1] + c[3])
}

/// One row of the delta rule for one column of a head's state `[key_dim]`; returns the output value.
///
/// Sums over the key dimension go in [`DELTA_CHAINS`] fused chains. The decayed state is rounded before it is used.
pub fn delta_column(state: &mut [f32], q: &[f32], k: &[f32], v: f32, decay: f32, beta: f32) -> f32 {
    let mut predicted = [0.0f32; DELTA_CHAINS];
    for (i, (s, k)) in state.iter().zip(k).enumerate() {
        let chain = &mut predicted[i % DELTA_CHAINS];
        *chain = k.mul_add(s * decay, *chain);
    }
    let change = beta * (v - chains(predicted));
    let mut out = [0.0f32; DELTA_CHAINS];
    for (i, (s, (q, k))) in state.iter_mut().zip(q.iter().zip(k)).enumerate() {
        *s = k.mul_add(change, *s * decay);
        let chain = &mut out[i % DELTA_CHAINS];
        *chain = q.mul_add(*s, *chain);
    }
    chains(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_matches_f64() {
        for i in -90_000..90_000 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp().ln_1p();
            let got = f64::from(softplus(x));
            assert!((got - want).abs() <= 4e-7 * want + 1e-37, "softplus({x}) = {got:e}, expected {want:e}");
        }
        assert_eq!(softplus(100.0), 100.0);
    }

    #[test]
    fn gates_show_damage() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!decay(bad, 1.0, 0.0).is_finite());
            assert!(!decay(0.0, bad, 0.0).is_finite());
            assert!(!decay(0.0, 1.0, bad).is_finite());
            assert!(!beta(bad).is_finite());
        }
        assert!(l2_norm(&[f32::MAX, 1.0], 1.0).iter().all(|v| !v.is_finite()));
        assert_eq!(l2_norm(&[0.0; 4], 1.0), [0.0; 4]);
    }

    #[test]
    fn the_rule_writes_what_it_then_reads() {
        // With an empty state, no decay and beta 1, a query equal to the key reads back the value.
        let mut state = [0.0; 8];
        let mut k = [0.0; 8];
        k[5] = 1.0;
        assert_eq!(delta_column(&mut state, &k, &k, 3.5, 1.0, 1.0), 3.5);
        assert_eq!(delta_column(&mut state, &k, &k, -1.0, 0.5, 1.0), -1.0, "the old value is replaced");
    }
}
