//! The narrow door to SIMD: sixteen f32 lanes and sixty-four bytes, whatever the instruction set.
//!
//! Kernels are written once over [`Lanes`]; files in `arch/` implement it. Because every operation here is exactly
//! rounded (or exact in integers), all instruction sets give the same bits, and the portable one is the oracle.

/// Sixteen virtual f32 lanes (see [`mlxcel_compute::order::LANES`]) with the integer operations of quantised kernels.
///
/// Values of a type must only be made inside [`crate::arch::Isa::run`], which checked that the machine has the
/// instructions.
pub trait Lanes: Copy {
    /// Sixteen i32.
    type Ints: Copy;
    /// Sixty-four bytes.
    type Bytes: Copy;
    /// Rows whose sums fit the register file beside a kernel's temporaries.
    const ROWS: usize;

    /// All lanes `v`.
    fn splat(v: f32) -> Self;
    /// Lanes in order.
    fn load(v: &[f32; 16]) -> Self;
    /// Sixteen bf16 values, little-endian.
    fn load_bf16(v: &[u8; 32]) -> Self;
    /// Sixteen binary16 values, little-endian.
    fn load_f16(v: &[u8; 32]) -> Self;
    /// Lanes in order.
    fn store(self, out: &mut [f32; 16]);
    /// Rounded to nearest even and cast to i8; lanes are within -128..=127 or the result is arbitrary.
    fn store_i8(self, out: &mut [i8; 16]);
    /// Rounded to nearest even; lanes are within -127..=127 or the result is arbitrary.
    fn round(self) -> Self::Ints;
    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`.
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > b { self } else { b }`: a NaN on either side gives `b`.
    fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`.
    fn min(self, b: Self) -> Self;
    /// Absolute values.
    fn abs(self) -> Self;
    /// Lanes `from..to`, at most 16, as they are, `other` in place of the rest.
    fn within(self, from: usize, to: usize, other: f32) -> Self;
    /// Adds the low bits of `t`, shifted to the exponent field, to the bits of `self` (the last step of `exp`).
    fn add_exponent(self, t: Self) -> Self;

    /// Sixteen zeros.
    fn zero() -> Self::Ints;
    /// Sixty-four bytes in order.
    fn bytes(v: &[u8; 64]) -> Self::Bytes;
    /// Four values, sixteen times.
    fn broadcast(v: &[i8; 4]) -> Self::Bytes;
    /// Low and high nibble of each byte.
    fn nibbles(v: Self::Bytes) -> (Self::Bytes, Self::Bytes);
    /// Each byte (0..=15) replaced by the table's entry.
    fn lookup(v: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// Adds to lane `l` the four products `codes[4l + t] * x[4l + t]`; codes are unsigned and at most 63, x are i8 above
    /// -128.
    fn dot(acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints;
    /// As [`Lanes::dot`] with codes up to 255.
    fn dot_wide(acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints;
    /// Sums lane by lane.
    fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Exact for the magnitudes that occur (below 2^24).
    fn to_f32(v: Self::Ints) -> Self;

    /// Asks for a cache line that is read soon. Any address is allowed.
    #[inline(always)]
    fn prefetch(_address: *const u8) {}

    /// Sum of the lanes in the order of [`mlxcel_compute::order::tree`].
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; 16];
        self.store(&mut lanes);
        mlxcel_compute::order::tree(lanes)
    }

    /// The largest lane. Where one is NaN, that or any other.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = [0.0; 16];
        self.store(&mut lanes);
        let mut max = f32::NEG_INFINITY;
        for v in lanes {
            max = if max > v { max } else { v };
        }
        max
    }

    /// Loads up to sixteen values, the missing ones as zeros.
    #[inline(always)]
    fn load_partial(v: &[f32]) -> Self {
        let mut lanes = [0.0; 16];
        lanes[..v.len()].copy_from_slice(v);
        Self::load(&lanes)
    }
}

/// Four bytes as the word that [`Lanes::broadcast`] repeats.
#[inline(always)]
pub fn word(v: &[i8; 4]) -> i32 {
    i32::from_le_bytes([v[0] as u8, v[1] as u8, v[2] as u8, v[3] as u8])
}

/// `e^x` lane by lane: [`mlxcel_compute::order::exp`].
#[inline(always)]
pub fn exp<L: Lanes>(x: L) -> L {
    use mlxcel_compute::order::{EXP_HI, EXP_LO, EXP_MAGIC, EXP_POLY, LN2_HI, LN2_LO};
    // The bound comes first: a NaN input must be the operand that survives.
    let x = L::splat(EXP_LO).max(x);
    let x = L::splat(EXP_HI).min(x);
    let t = x.fma(L::splat(std::f32::consts::LOG2_E), L::splat(EXP_MAGIC));
    let n = t.sub(L::splat(EXP_MAGIC));
    let r = n.fma(L::splat(-LN2_HI), x);
    let r = n.fma(L::splat(-LN2_LO), r);
    let mut p = L::splat(EXP_POLY[0]);
    for c in &EXP_POLY[1..] {
        p = p.fma(r, L::splat(*c));
    }
    x.fma(L::splat(0.0), p.add_exponent(t))
}

/// GELU in its tanh form: [`mlxcel_compute::order::gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh<L: Lanes>(x: L) -> L {
    let inner = x.mul(x).fma(L::splat(0.044_715), L::splat(1.0)).mul(x);
    x.div(exp(inner.mul(L::splat(-mlxcel_compute::order::GELU_SCALE))).add(L::splat(1.0)))
}

/// SiLU: `x / (e^-x + 1)`.
#[inline(always)]
pub fn silu<L: Lanes>(x: L) -> L {
    x.div(exp(x.mul(L::splat(-1.0))).add(L::splat(1.0)))
}

/// Sigmoid: [`mlxcel_compute::order::sigmoid`].
#[inline(always)]
pub fn sigmoid<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    x.fma(L::splat(0.0), one.div(exp(x.mul(L::splat(-1.0))).add(one)))
}

/// tanh: [`mlxcel_compute::order::tanh`].
#[inline(always)]
pub fn tanh<L: Lanes>(x: L) -> L {
    let e = exp(L::splat(2.0).mul(x)).add(L::splat(1.0));
    L::splat(1.0).sub(L::splat(2.0).div(e))
}

/// The activation of a gated MLP.
#[inline(always)]
pub fn activate<L: Lanes>(activation: mlxcel_compute::Activation, x: L) -> L {
    match activation {
        mlxcel_compute::Activation::GeluTanh => gelu_tanh(x),
        mlxcel_compute::Activation::Silu => silu(x),
        mlxcel_compute::Activation::Sigmoid => sigmoid(x),
    }
}
