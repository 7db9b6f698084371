//! AVX2 with FMA and F16C: two 256-bit registers hold the sixteen lanes.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, word};

/// Sixteen f32: lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

/// Runs one intrinsic expression.
macro_rules! isa {
    ($e:expr) => {
        // SAFETY: Avx2 values exist only inside Isa::run, after detection of avx2, fma and f16c; pointers come from
        // references to arrays of the size read or written.
        unsafe { $e }
    };
}

macro_rules! lanewise {
    ($($name:ident $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, b: Self) -> Self {
            isa!(Avx2($intrinsic(self.0, b.0), $intrinsic(self.1, b.1)))
        }
    )*};
}

/// Four products a lane: u8 codes (pair sums must fit i16) times i8.
#[inline(always)]
fn dot8(acc: __m256i, codes: __m256i, x: __m256i, factor: i16) -> __m256i {
    isa!(_mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(factor))))
}

/// The last three levels of the reduction tree: 8 -> 4 -> 2 -> 1.
#[inline(always)]
pub(super) fn sum8(v: __m256) -> f32 {
    isa!({
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)))
    })
}

#[inline(always)]
fn bf16_wide(v: *const u8) -> __m256 {
    isa!(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(v.cast())), 16)))
}

impl Lanes for Avx2 {
    type Ints = (__m256i, __m256i);
    type Bytes = (__m256i, __m256i);
    const ROWS: usize = 4;

    lanewise!(add _mm256_add_ps, sub _mm256_sub_ps, mul _mm256_mul_ps, div _mm256_div_ps, max _mm256_max_ps,
        min _mm256_min_ps);

    #[inline(always)]
    fn splat(v: f32) -> Self {
        isa!(Avx2(_mm256_set1_ps(v), _mm256_set1_ps(v)))
    }

    #[inline(always)]
    fn load(v: &[f32; 16]) -> Self {
        isa!(Avx2(_mm256_loadu_ps(v.as_ptr()), _mm256_loadu_ps(v.as_ptr().add(8))))
    }

    #[inline(always)]
    fn load_bf16(v: &[u8; 32]) -> Self {
        isa!(Avx2(bf16_wide(v.as_ptr()), bf16_wide(v.as_ptr().add(16))))
    }

    #[inline(always)]
    fn load_f16(v: &[u8; 32]) -> Self {
        isa!(Avx2(
            _mm256_cvtph_ps(_mm_loadu_si128(v.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(v.as_ptr().add(16).cast()))
        ))
    }

    #[inline(always)]
    fn store(self, out: &mut [f32; 16]) {
        isa!({
            _mm256_storeu_ps(out.as_mut_ptr(), self.0);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), self.1);
        })
    }

    #[inline(always)]
    fn store_i8(self, out: &mut [i8; 16]) {
        isa!({
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            let words = _mm256_permute4x64_epi64(words, 0b11_01_10_00);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        })
    }

    #[inline(always)]
    fn round(self) -> Self::Ints {
        isa!((_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1)))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        isa!(Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        isa!({
            let sign = _mm256_set1_ps(-0.0);
            Avx2(_mm256_andnot_ps(sign, self.0), _mm256_andnot_ps(sign, self.1))
        })
    }

    #[inline(always)]
    fn within(self, from: usize, to: usize, other: f32) -> Self {
        #[inline(always)]
        fn half(v: __m256, from: i32, to: i32, other: f32) -> __m256 {
            isa!({
                let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let inside = _mm256_andnot_si256(
                    _mm256_cmpgt_epi32(_mm256_set1_epi32(from), lanes),
                    _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lanes),
                );
                _mm256_blendv_ps(_mm256_set1_ps(other), v, _mm256_castsi256_ps(inside))
            })
        }
        let (from, to) = (from as i32, to as i32);
        Avx2(half(self.0, from, to, other), half(self.1, from - 8, to - 8, other))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        isa!({
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)))
        })
    }

    #[inline(always)]
    fn add_exponent(self, t: Self) -> Self {
        #[inline(always)]
        fn half(p: __m256, t: __m256) -> __m256 {
            isa!(_mm256_castsi256_ps(_mm256_add_epi32(
                _mm256_castps_si256(p),
                _mm256_slli_epi32(_mm256_castps_si256(t), 23)
            )))
        }
        Avx2(half(self.0, t.0), half(self.1, t.1))
    }

    #[inline(always)]
    fn zero() -> Self::Ints {
        isa!((_mm256_setzero_si256(), _mm256_setzero_si256()))
    }

    #[inline(always)]
    fn bytes(v: &[u8; 64]) -> Self::Bytes {
        isa!((_mm256_loadu_si256(v.as_ptr().cast()), _mm256_loadu_si256(v.as_ptr().add(32).cast())))
    }

    #[inline(always)]
    fn broadcast(v: &[i8; 4]) -> Self::Bytes {
        let all = isa!(_mm256_set1_epi32(word(v)));
        (all, all)
    }

    #[inline(always)]
    fn nibbles(v: Self::Bytes) -> (Self::Bytes, Self::Bytes) {
        isa!({
            let mask = _mm256_set1_epi8(15);
            let high = (_mm256_srli_epi16(v.0, 4), _mm256_srli_epi16(v.1, 4));
            (
                (_mm256_and_si256(v.0, mask), _mm256_and_si256(v.1, mask)),
                (_mm256_and_si256(high.0, mask), _mm256_and_si256(high.1, mask)),
            )
        })
    }

    #[inline(always)]
    fn lookup(v: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        isa!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            (_mm256_shuffle_epi8(table, v.0), _mm256_shuffle_epi8(table, v.1))
        })
    }

    #[inline(always)]
    fn dot(acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints {
        (dot8(acc.0, codes.0, x.0, 1), dot8(acc.1, codes.1, x.1, 1))
    }

    #[inline(always)]
    fn dot_wide(acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints {
        // A pair of 8-bit products overflows i16: take the nibbles apart, each half fits.
        let (low, high) = Self::nibbles(codes);
        let acc = Self::dot(acc, low, x);
        (dot8(acc.0, high.0, x.0, 16), dot8(acc.1, high.1, x.1, 16))
    }

    #[inline(always)]
    fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        isa!((_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)))
    }

    #[inline(always)]
    fn to_f32(v: Self::Ints) -> Self {
        isa!(Avx2(_mm256_cvtepi32_ps(v.0), _mm256_cvtepi32_ps(v.1)))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        isa!(sum8(_mm256_add_ps(self.0, self.1)))
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        isa!(_mm_prefetch::<_MM_HINT_T0>(address.cast()))
    }
}
