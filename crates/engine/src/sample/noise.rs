//! Counter-based Gumbel noise: a function of (seed, position, token id) and of nothing else.
//!
//! Sampling by Gumbel-max needs one noise value per (position, token). Making it a hash of a counter rather than the
//! next number of a generator is what lets a verify block, a batch or a re-run in any order see the same noise as one
//! step at a time: there is no state to keep in step. A drafter may use the same noise on its own logits.
//!
//! The hash is two rounds of the SplitMix64 finaliser: Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators" (OOPSLA 2014), with the constants of Stafford's variant 13. A row's first round walks that paper's
//! stream from a start hashed from (seed, position); the second round, keyed, keeps two rows apart even where their
//! streams would overlap. Philox would do as well, with many more operations for each of 262,144 tokens.
//!
//! The values are frozen by a test: changing them changes every sampled answer.

use super::math;

/// The golden-ratio increment of SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// No value of [`RowNoise::gumbel`] is larger: that of the largest uniform, 1 - 2^-53, is 53 ln 2 = 36.7368.
pub(crate) const GUMBEL_MAX: f64 = 36.737;

/// Standard Gumbel noise for one token at one position: mean 0.5772, variance pi^2/6, within -3.61 ..= 36.74.
///
/// `position` is the absolute index, in the sequence, of the token to be chosen.
pub fn gumbel(seed: u64, position: u64, token: u32) -> f64 {
    RowNoise::new(seed, position).gumbel(token)
}

/// The noise of one row of logits, with the part of the hash that all its tokens share done once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNoise {
    stream: u64,
    key: u64,
}

impl RowNoise {
    pub(crate) fn new(seed: u64, position: u64) -> Self {
        let seed = mix(seed.wrapping_add(GAMMA));
        let stream = mix(seed.wrapping_add(position.wrapping_add(1).wrapping_mul(GAMMA)));
        RowNoise { stream, key: mix(stream ^ seed.rotate_left(32)) }
    }

    /// 52 random bits `k`, standing for the uniform (2k + 1) / 2^53: exact in f64, never 0 and never 1.
    #[inline]
    pub(crate) fn bits(self, token: u32) -> u64 {
        let counter = (u64::from(token) + 1).wrapping_mul(GAMMA);
        mix(mix(self.stream.wrapping_add(counter)).wrapping_add(self.key)) >> 12
    }

    /// The noise itself, at the price of two logarithms.
    #[inline]
    pub(crate) fn gumbel(self, token: u32) -> f64 {
        from_bits(self.bits(token))
    }
}

/// -ln(-ln u) for the uniform u that `bits` stand for.
#[inline]
pub(crate) fn from_bits(bits: u64) -> f64 {
    -math::ln(-math::ln(uniform(bits)))
}

/// An upper bound of [`from_bits`], at most 1.02 above it for u >= 1/2 and near 0.7 at most in the tail, for a few
/// integer operations.
///
/// With v = 1 - u: -ln u >= v, so g <= -ln v, and v >= 2^-j gives g <= j ln 2. The last term is far more than the
/// rounding of `from_bits`.
#[inline]
pub(crate) fn upper_bound(bits: u64) -> f64 {
    let v = (1_u64 << 53) - (2 * bits + 1); // 1 - u in units of 2^-53: odd, so not 0
    let j = v.leading_zeros() - 10; // 2^-j <= v < 2^-(j-1)
    f64::from(j) * std::f64::consts::LN_2 + 1e-9
}

#[inline]
fn uniform(bits: u64) -> f64 {
    (2 * bits + 1) as f64 * (1.0 / (1_u64 << 53) as f64)
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Source = fn(u64, u64, u32) -> f64;

    /// What a faulty engine would do: the same noise at every position, for every seed, for every token.
    const NO_POSITION: Source = |seed, _, token| gumbel(seed, 0, token);
    const NO_SEED: Source = |_, position, token| gumbel(0, position, token);
    const NO_TOKEN: Source = |seed, position, _| gumbel(seed, position, 0);
    /// Weak mixing: position and token are interchangeable.
    const SUM: Source = |seed, position, token| gumbel(seed, 0, token + position as u32);

    /// Statistic over pairs of neighbours along one axis: correlation of the noise, and chi-square over a 16 x 16 grid
    /// of their uniforms in units of its standard deviation from the mean.
    fn pairs(count: u32, pair: impl Fn(u32) -> (f64, f64)) -> (f64, f64) {
        const SIDE: usize = 16;
        let cell = |g: f64| (((-(-g).exp()).exp() * SIDE as f64) as usize).min(SIDE - 1);
        let mut grid = [0_u32; SIDE * SIDE];
        let (mut a1, mut a2, mut b1, mut b2, mut ab) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for i in 0..count {
            let (a, b) = pair(i);
            grid[cell(a) * SIDE + cell(b)] += 1;
            (a1, a2, b1, b2, ab) = (a1 + a, a2 + a * a, b1 + b, b2 + b * b, ab + a * b);
        }
        let n = f64::from(count);
        let correlation =
            (ab / n - a1 / n * b1 / n) / ((a2 / n - (a1 / n).powi(2)) * (b2 / n - (b1 / n).powi(2))).sqrt();
        let expected = n / (SIDE * SIDE) as f64;
        let chi: f64 = grid.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
        let freedom = (SIDE * SIDE - 1) as f64;
        (correlation, (chi - freedom) / (2.0 * freedom).sqrt())
    }

    /// Names the neighbours that are not independent under `g`, if any.
    fn dependence(g: Source) -> Option<&'static str> {
        const N: u32 = 60_000;
        // (a, b): 600 rows of 100 tokens.
        let split = |i: u32| (u64::from(i / 100), i % 100);
        let checks: [(&str, (f64, f64)); 6] = [
            ("tokens", pairs(N, |i| (g(7, 3, i), g(7, 3, i + 1)))),
            ("positions", pairs(N, |i| (g(7, i.into(), 5), g(7, u64::from(i) + 1, 5)))),
            ("positions, all tokens", pairs(N, |i| (g(7, split(i).0, split(i).1), g(7, split(i).0 + 1, split(i).1)))),
            ("diagonal", pairs(N, |i| (g(7, split(i).0, split(i).1 + 1), g(7, split(i).0 + 1, split(i).1)))),
            ("seeds", pairs(N, |i| (g(i.into(), 3, 5), g(u64::from(i) + 1, 3, 5)))),
            ("seed and position", pairs(N, |i| (g(split(i).0, 1, split(i).1), g(1, split(i).0, split(i).1 + 200)))),
        ];
        let bad = |(r, chi): (f64, f64)| !(r.abs() < 4.0 / f64::from(N).sqrt() && chi.abs() < 4.5);
        checks.into_iter().find(|(_, s)| bad(*s)).map(|(name, _)| name)
    }

    #[test]
    fn moments_are_those_of_a_gumbel() {
        let n = 400_000_u32;
        let values: Vec<f64> = (0..n).map(|i| gumbel(42, u64::from(i % 4000), i / 4000)).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.577_215_66).abs() < 0.008, "mean {mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.03, "variance {variance}");
    }

    #[test]
    fn neighbours_are_independent() {
        assert_eq!(dependence(gumbel), None);
    }

    #[test]
    fn the_independence_test_can_fail() {
        for (name, fault) in [("position", NO_POSITION), ("seed", NO_SEED), ("token", NO_TOKEN), ("sum", SUM)] {
            assert!(dependence(fault).is_some(), "noise without {name} passed");
        }
    }

    #[test]
    fn uniforms_stay_inside_the_open_interval() {
        let last = (1_u64 << 52) - 1;
        for bits in [0, 1, last - 1, last] {
            assert!(uniform(bits) > 0.0 && uniform(bits) < 1.0);
            assert!(from_bits(bits).is_finite());
        }
        assert!(from_bits(last) <= GUMBEL_MAX && from_bits(last) > 36.7);
        assert!(from_bits(0) > -3.61);
    }

    #[test]
    fn bound_holds_and_is_near() {
        let edges = (0..52).flat_map(|j| [(1_u64 << j) - 1, (1 << 52) - (1 << j), ((1_u64 << 52) - (1 << j)) ^ 1]);
        let row = RowNoise::new(1, 2);
        for bits in edges.chain((0..100_000).map(|t| row.bits(t))) {
            let (g, bound) = (from_bits(bits), upper_bound(bits));
            assert!(g <= bound && bound <= GUMBEL_MAX, "bits {bits:x}: {g} {bound}");
            assert!(uniform(bits) < 0.5 || bound - g < 1.02, "bits {bits:x}: {g} {bound}");
        }
    }

    /// Made by an independent script (integers exactly, logarithms to f64). Never edit: see the head of this file.
    #[test]
    fn values_never_change() {
        let frozen: [(u64, u64, u32, u64, f64); 8] = [
            (0, 0, 0, 0x0009_b695_8cee_6187, 0.694_946_931_856_495_1),
            (0, 0, 1, 0x0000_a47a_effa_aaee, -1.167_819_836_918_919_7),
            (0, 1, 0, 0x0006_c160_f88b_ccd4, 0.148_211_623_937_029_97),
            (1, 0, 0, 0x000d_b197_4444_f0dd, 1.860_133_831_395_317_5),
            (42, 7, 262_143, 0x000b_e255_9e52_b76e, 1.212_725_138_533_287),
            (42, 8, 262_143, 0x0007_9c35_da31_ed67, 0.296_925_057_078_180_6),
            (u64::MAX, 1 << 40, 123_456, 0x0005_e718_743b_1f6d, 0.002_828_007_359_214_685),
            (0xdead_beef, 511, u32::MAX, 0x0004_ec76_da20_9c86, -0.164_268_552_236_293_75),
        ];
        for (seed, position, token, bits, g) in frozen {
            assert_eq!(RowNoise::new(seed, position).bits(token), bits, "({seed}, {position}, {token})");
            assert!((gumbel(seed, position, token) - g).abs() < 1e-13, "({seed}, {position}, {token})");
        }
    }
}
