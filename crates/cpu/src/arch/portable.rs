//! Plain Rust lanes: correct on any machine, and the oracle the vector paths are compared with bit for bit.

use crate::lanes::Lanes;

/// Sixteen f32 in an array.
#[derive(Clone, Copy)]
pub struct Portable([f32; 16]);

impl Portable {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Portable(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Portable(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

impl Lanes for Portable {
    type Ints = [i32; 16];
    type Bytes = [u8; 64];
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(v: f32) -> Self {
        Portable([v; 16])
    }

    #[inline(always)]
    fn load(v: &[f32; 16]) -> Self {
        Portable(*v)
    }

    #[inline(always)]
    fn load_bf16(v: &[u8; 32]) -> Self {
        Portable(std::array::from_fn(|i| half::bf16::from_le_bytes([v[2 * i], v[2 * i + 1]]).to_f32()))
    }

    #[inline(always)]
    fn load_f16(v: &[u8; 32]) -> Self {
        Portable(std::array::from_fn(|i| half::f16::from_le_bytes([v[2 * i], v[2 * i + 1]]).to_f32()))
    }

    #[inline(always)]
    fn store(self, out: &mut [f32; 16]) {
        *out = self.0;
    }

    #[inline(always)]
    fn store_i8(self, out: &mut [i8; 16]) {
        *out = self.0.map(|v| v.round_ties_even() as i8);
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }

    #[inline(always)]
    fn round(self) -> [i32; 16] {
        self.0.map(|v| v.round_ties_even() as i32)
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Portable(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.map(f32::abs)
    }

    #[inline(always)]
    fn within(self, from: usize, to: usize, other: f32) -> Self {
        Portable(std::array::from_fn(|i| if (from..to).contains(&i) { self.0[i] } else { other }))
    }

    #[inline(always)]
    fn add_exponent(self, t: Self) -> Self {
        self.zip(t, |p, t| f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23)))
    }

    #[inline(always)]
    fn zero() -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn bytes(v: &[u8; 64]) -> [u8; 64] {
        *v
    }

    #[inline(always)]
    fn broadcast(v: &[i8; 4]) -> [u8; 64] {
        std::array::from_fn(|i| v[i % 4] as u8)
    }

    #[inline(always)]
    fn nibbles(v: [u8; 64]) -> ([u8; 64], [u8; 64]) {
        (v.map(|b| b & 15), v.map(|b| b >> 4))
    }

    #[inline(always)]
    fn lookup(v: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        v.map(|b| table[usize::from(b & 15)])
    }

    #[inline(always)]
    fn dot(acc: [i32; 16], codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        Self::dot_wide(acc, codes, x)
    }

    #[inline(always)]
    fn dot_wide(mut acc: [i32; 16], codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        for (i, (c, x)) in codes.iter().zip(x).enumerate() {
            acc[i / 4] += i32::from(*c) * i32::from(x as i8);
        }
        acc
    }

    #[inline(always)]
    fn add_ints(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn to_f32(v: [i32; 16]) -> Self {
        Portable(v.map(|i| i as f32))
    }
}

/// bf16 bits of `v`, nearest even; any NaN becomes a quiet NaN.
#[inline(always)]
pub fn bf16_bits(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if v.is_nan() { 0x7fc0 } else { rounded as u16 }
}
