//! Logarithm and exponential for sampling, written out.
//!
//! The C library's `exp` and `ln` may differ in the last bit from one system to the next, and one bit can move a cut or
//! turn a near-tie. These use only IEEE additions, multiplications and divisions in a fixed order, so a choice made
//! from given logits is the same on every machine; they also vectorise, which a library call does not.

/// High part of ln 2: its low bits are zero, so `n * LN2_HI` is exact for every exponent `n`.
const LN2_HI: f64 = 6.931_471_803_691_238e-1;
/// ln 2 - `LN2_HI`.
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
/// Adding and subtracting this rounds a small f64 to the nearest integer, which is then in its low mantissa bits.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// 1/n! for n = 13 down to 0.
const TAYLOR: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `e^x` for each `x <= 0`, relative error below 6e-16. Below -700 it stays at `e^-700` (1e-304), nothing beside `e^0`.
///
/// Several at once, because one alone is a long chain of dependent operations; each lane's bits are its own.
#[inline(always)]
pub(crate) fn exp<const N: usize>(x: [f64; N]) -> [f64; N] {
    let x = x.map(|x| if x > -700.0 { x } else { -700.0 });
    let shifted = x.map(|x| x * std::f64::consts::LOG2_E + ROUND);
    let mut r = [0.0; N]; // |r| <= ln(2)/2
    for i in 0..N {
        let n = shifted[i] - ROUND;
        r[i] = (x[i] - n * LN2_HI) - n * LN2_LO;
    }
    let mut p = [0.0; N]; // the first term left out, r^14/14!, is below 5e-18
    for term in TAYLOR {
        for i in 0..N {
            p[i] = p[i] * r[i] + term;
        }
    }
    // 2^n: the integer n sits in the low bits of `shifted`; shifting by 52 drops everything above it.
    for i in 0..N {
        p[i] *= f64::from_bits(shifted[i].to_bits().wrapping_add(1023) << 52);
    }
    p
}

/// Natural logarithm of a positive, normal `x`, relative error below 1e-15 (also beside 1, where the result is small).
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut k = ((bits >> 52) as i64 - 1023) as f64;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        k += 1.0;
    }
    // ln m = 2 artanh(s); |s| <= 0.1716, so the first term left out is below 1e-18.
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let mut p = 1.0 / 23.0;
    for odd in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        p = p * q + 1.0 / odd;
    }
    let ln_m = 2.0 * s + 2.0 * s * (q * p);
    k * LN2_HI + (ln_m + k * LN2_LO)
}

/// Fixed-point softmax mass: integers add up to the same sum in any order, so a nucleus is the same set however it is
/// searched for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mass {
    scale: f64,
}

impl Mass {
    /// A unit small enough to be far below the precision of an f32 `top_p`, and large enough that `vocab` masses of 1
    /// fit in a u64. It depends on the vocabulary size alone.
    pub(crate) fn new(vocab: usize) -> Self {
        let log2 = usize::BITS - vocab.leading_zeros();
        Mass { scale: (1_u64 << (62 - log2).min(50)) as f64 }
    }

    /// The masses `e^d` of tokens whose scaled logits are `d <= 0` below the best, in units of 1 / [`Mass::scale`].
    #[inline(always)]
    pub(crate) fn of<const N: usize>(self, d: [f64; N]) -> [u64; N] {
        // Adding 2^52 rounds to an integer in the mantissa: no float-to-int conversion, so the loop vectorises.
        const INTEGER: f64 = 4_503_599_627_370_496.0;
        exp(d).map(|e| (e * self.scale + INTEGER).to_bits() & ((1 << 52) - 1))
    }

    /// How many units make a mass of 1.
    pub(crate) fn scale(self) -> f64 {
        self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_follows_the_library() {
        for i in 0..200_000 {
            let x = -(i as f64) * 0.0034 - 1e-9 * i as f64;
            let (got, want) = (exp([x])[0], x.exp());
            assert!((got - want).abs() <= 6e-16 * want, "x={x} got={got:e} want={want:e}");
        }
        assert_eq!(exp([0.0, -0.0]), [1.0, 1.0]);
        assert!(exp([-1e300])[0] < 1e-300);
    }

    #[test]
    fn lanes_do_not_see_each_other() {
        for i in 0..1000 {
            let x: [f64; 8] = std::array::from_fn(|lane| -(lane as f64 + 0.3) * i as f64 * 0.017);
            assert_eq!(exp(x).map(f64::to_bits), x.map(|x| exp([x])[0].to_bits()));
        }
    }

    #[test]
    fn ln_follows_the_library() {
        for i in 1..200_000_u32 {
            for x in [f64::from(i) / 200_000.0, f64::from(i) * 1e-20, 1.0 - f64::from(i) * 1e-15, f64::from(i)] {
                let (got, want) = (ln(x), x.ln());
                assert!((got - want).abs() <= 1e-15 * want.abs(), "x={x:e} got={got:e} want={want:e}");
            }
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn masses_of_a_whole_vocabulary_fit() {
        for vocab in [1, 2, 1000, 262_144, 1 << 22] {
            let mass = Mass::new(vocab);
            let [best, nothing] = mass.of([0.0, -2000.0]);
            assert!(u128::from(best) * (vocab as u128) < u128::from(u64::MAX));
            assert_eq!((best as f64, nothing), (mass.scale(), 0));
        }
    }
}
