//! NEON: four 128-bit registers hold the sixteen lanes. Base AArch64 only (no dot-product extension).

use std::arch::aarch64::*;

use crate::lanes::{Lanes, word};

/// Sixteen f32, four a register.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 4]);

/// Runs one intrinsic expression.
macro_rules! isa {
    ($e:expr) => {
        // SAFETY: NEON is part of the base architecture; pointers come from references to arrays of the size read or
        // written.
        unsafe {
            $e
        }
    };
}

#[inline(always)]
fn zip(a: Neon, b: Neon, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Neon {
    Neon([f(a.0[0], b.0[0]), f(a.0[1], b.0[1]), f(a.0[2], b.0[2]), f(a.0[3], b.0[3])])
}

/// Products of sixteen codes (below 128) and sixteen i8, summed in fours.
#[inline(always)]
fn dot16(codes: uint8x16_t, x: uint8x16_t) -> int32x4_t {
    isa!({
        let (c, x) = (vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(x));
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(c), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_s8(vget_high_s8(c), vget_high_s8(x)));
        vpaddq_s32(low, high)
    })
}

impl Lanes for Neon {
    type Ints = [int32x4_t; 4];
    type Bytes = [uint8x16_t; 4];
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(v: f32) -> Self {
        Neon([isa!(vdupq_n_f32(v)); 4])
    }

    #[inline(always)]
    fn load(v: &[f32; 16]) -> Self {
        let p = v.as_ptr();
        isa!(Neon([vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))]))
    }

    #[inline(always)]
    fn load_bf16(v: &[u8; 32]) -> Self {
        let p = v.as_ptr();
        isa!({
            let (low, high) = (vreinterpretq_u16_u8(vld1q_u8(p)), vreinterpretq_u16_u8(vld1q_u8(p.add(16))));
            Neon([
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(low))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(high))),
            ])
        })
    }

    #[inline(always)]
    fn load_f16(v: &[u8; 32]) -> Self {
        let mut lanes = [0.0f32; 16];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = half::f16::from_le_bytes([v[2 * i], v[2 * i + 1]]).to_f32();
        }
        Self::load(&lanes)
    }

    #[inline(always)]
    fn store(self, out: &mut [f32; 16]) {
        let p = out.as_mut_ptr();
        isa!({
            vst1q_f32(p, self.0[0]);
            vst1q_f32(p.add(4), self.0[1]);
            vst1q_f32(p.add(8), self.0[2]);
            vst1q_f32(p.add(12), self.0[3]);
        })
    }

    #[inline(always)]
    fn store_i8(self, out: &mut [i8; 16]) {
        isa!({
            let words = [
                vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(self.0[0])), vqmovn_s32(vcvtnq_s32_f32(self.0[1]))),
                vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(self.0[2])), vqmovn_s32(vcvtnq_s32_f32(self.0[3]))),
            ];
            vst1q_s8(out.as_mut_ptr(), vcombine_s8(vqmovn_s16(words[0]), vqmovn_s16(words[1])));
        })
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        zip(self, b, |a, b| isa!(vaddq_f32(a, b)))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        zip(self, b, |a, b| isa!(vsubq_f32(a, b)))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        zip(self, b, |a, b| isa!(vmulq_f32(a, b)))
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        zip(self, b, |a, b| isa!(vdivq_f32(a, b)))
    }

    #[inline(always)]
    fn round(self) -> Self::Ints {
        isa!([
            vcvtnq_s32_f32(self.0[0]),
            vcvtnq_s32_f32(self.0[1]),
            vcvtnq_s32_f32(self.0[2]),
            vcvtnq_s32_f32(self.0[3])
        ])
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        let (a, b, c) = (self.0, b.0, c.0);
        isa!(Neon([
            vfmaq_f32(c[0], a[0], b[0]),
            vfmaq_f32(c[1], a[1], b[1]),
            vfmaq_f32(c[2], a[2], b[2]),
            vfmaq_f32(c[3], a[3], b[3])
        ]))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // Not vmaxq: a NaN on either side must give b.
        zip(self, b, |a, b| isa!(vbslq_f32(vcgtq_f32(a, b), a, b)))
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        zip(self, b, |a, b| isa!(vbslq_f32(vcltq_f32(a, b), a, b)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        let a = self.0;
        isa!(Neon([vabsq_f32(a[0]), vabsq_f32(a[1]), vabsq_f32(a[2]), vabsq_f32(a[3])]))
    }

    #[inline(always)]
    fn within(self, from: usize, to: usize, other: f32) -> Self {
        #[inline(always)]
        fn four(v: float32x4_t, from: i32, to: i32, other: f32) -> float32x4_t {
            isa!({
                let lanes = vld1q_s32([0, 1, 2, 3].as_ptr());
                let inside = vandq_u32(vcgeq_s32(lanes, vdupq_n_s32(from)), vcltq_s32(lanes, vdupq_n_s32(to)));
                vbslq_f32(inside, v, vdupq_n_f32(other))
            })
        }
        let (v, from, to) = (self.0, from as i32, to as i32);
        Neon([
            four(v[0], from, to, other),
            four(v[1], from - 4, to - 4, other),
            four(v[2], from - 8, to - 8, other),
            four(v[3], from - 12, to - 12, other),
        ])
    }

    #[inline(always)]
    fn add_exponent(self, t: Self) -> Self {
        zip(self, t, |p, t| {
            isa!(vreinterpretq_f32_u32(vaddq_u32(
                vreinterpretq_u32_f32(p),
                vshlq_n_u32::<23>(vreinterpretq_u32_f32(t))
            )))
        })
    }

    #[inline(always)]
    fn zero() -> Self::Ints {
        [isa!(vdupq_n_s32(0)); 4]
    }

    #[inline(always)]
    fn bytes(v: &[u8; 64]) -> Self::Bytes {
        let p = v.as_ptr();
        isa!([vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))])
    }

    #[inline(always)]
    fn broadcast(v: &[i8; 4]) -> Self::Bytes {
        [isa!(vreinterpretq_u8_s32(vdupq_n_s32(word(v)))); 4]
    }

    #[inline(always)]
    fn nibbles(v: Self::Bytes) -> (Self::Bytes, Self::Bytes) {
        isa!({
            let mask = vdupq_n_u8(15);
            (
                [vandq_u8(v[0], mask), vandq_u8(v[1], mask), vandq_u8(v[2], mask), vandq_u8(v[3], mask)],
                [vshrq_n_u8::<4>(v[0]), vshrq_n_u8::<4>(v[1]), vshrq_n_u8::<4>(v[2]), vshrq_n_u8::<4>(v[3])],
            )
        })
    }

    #[inline(always)]
    fn lookup(v: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        isa!({
            let table = vld1q_u8(table.as_ptr());
            [vqtbl1q_u8(table, v[0]), vqtbl1q_u8(table, v[1]), vqtbl1q_u8(table, v[2]), vqtbl1q_u8(table, v[3])]
        })
    }

    #[inline(always)]
    fn dot(acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints {
        isa!([
            vaddq_s32(acc[0], dot16(codes[0], x[0])),
            vaddq_s32(acc[1], dot16(codes[1], x[1])),
            vaddq_s32(acc[2], dot16(codes[2], x[2])),
            vaddq_s32(acc[3], dot16(codes[3], x[3]))
        ])
    }

    #[inline(always)]
    fn dot_wide(acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints {
        // Codes above 127 are no i8: take the nibbles apart.
        let (low, high) = Self::nibbles(codes);
        let acc = Self::dot(acc, low, x);
        isa!([
            vaddq_s32(acc[0], vshlq_n_s32::<4>(dot16(high[0], x[0]))),
            vaddq_s32(acc[1], vshlq_n_s32::<4>(dot16(high[1], x[1]))),
            vaddq_s32(acc[2], vshlq_n_s32::<4>(dot16(high[2], x[2]))),
            vaddq_s32(acc[3], vshlq_n_s32::<4>(dot16(high[3], x[3])))
        ])
    }

    #[inline(always)]
    fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        isa!([vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1]), vaddq_s32(a[2], b[2]), vaddq_s32(a[3], b[3])])
    }

    #[inline(always)]
    fn to_f32(v: Self::Ints) -> Self {
        isa!(Neon([vcvtq_f32_s32(v[0]), vcvtq_f32_s32(v[1]), vcvtq_f32_s32(v[2]), vcvtq_f32_s32(v[3])]))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        isa!({
            // 16 -> 8 -> 4 -> 2 -> 1, halves onto each other.
            let four = vaddq_f32(vaddq_f32(self.0[0], self.0[2]), vaddq_f32(self.0[1], self.0[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        })
    }
}
