//! AVX-512 (F, BW, VL, DQ) with VNNI: one register holds the sixteen lanes, one instruction the four-byte dot product.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, word};

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

/// Runs one intrinsic expression.
macro_rules! isa {
    ($e:expr) => {
        // SAFETY: Avx512 values exist only inside Isa::run, after detection of the features named above; pointers come
        // from references to arrays of the size read or written.
        unsafe { $e }
    };
}

macro_rules! lanewise {
    ($($name:ident $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, b: Self) -> Self {
            isa!(Avx512($intrinsic(self.0, b.0)))
        }
    )*};
}

impl Lanes for Avx512 {
    type Ints = __m512i;
    type Bytes = __m512i;
    const ROWS: usize = 8;

    lanewise!(add _mm512_add_ps, sub _mm512_sub_ps, mul _mm512_mul_ps, div _mm512_div_ps, max _mm512_max_ps,
        min _mm512_min_ps);

    #[inline(always)]
    fn splat(v: f32) -> Self {
        isa!(Avx512(_mm512_set1_ps(v)))
    }

    #[inline(always)]
    fn load(v: &[f32; 16]) -> Self {
        isa!(Avx512(_mm512_loadu_ps(v.as_ptr())))
    }

    #[inline(always)]
    fn load_bf16(v: &[u8; 32]) -> Self {
        isa!(Avx512(_mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(v.as_ptr().cast())),
            16
        ))))
    }

    #[inline(always)]
    fn load_f16(v: &[u8; 32]) -> Self {
        isa!(Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(v.as_ptr().cast()))))
    }

    #[inline(always)]
    fn store(self, out: &mut [f32; 16]) {
        isa!(_mm512_storeu_ps(out.as_mut_ptr(), self.0))
    }

    #[inline(always)]
    fn store_i8(self, out: &mut [i8; 16]) {
        isa!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0))))
    }

    #[inline(always)]
    fn round(self) -> __m512i {
        isa!(_mm512_cvtps_epi32(self.0))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        isa!(Avx512(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        isa!(Avx512(_mm512_abs_ps(self.0)))
    }

    #[inline(always)]
    fn within(self, from: usize, to: usize, other: f32) -> Self {
        let mask = ((1u32 << to) - 1) & !((1u32 << from) - 1);
        isa!(Avx512(_mm512_mask_blend_ps(mask as __mmask16, _mm512_set1_ps(other), self.0)))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        isa!(_mm512_reduce_max_ps(self.0))
    }

    #[inline(always)]
    fn add_exponent(self, t: Self) -> Self {
        isa!(Avx512(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(self.0),
            _mm512_slli_epi32(_mm512_castps_si512(t.0), 23)
        ))))
    }

    #[inline(always)]
    fn zero() -> __m512i {
        isa!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn bytes(v: &[u8; 64]) -> __m512i {
        isa!(_mm512_loadu_si512(v.as_ptr().cast()))
    }

    #[inline(always)]
    fn broadcast(v: &[i8; 4]) -> __m512i {
        isa!(_mm512_set1_epi32(word(v)))
    }

    #[inline(always)]
    fn nibbles(v: __m512i) -> (__m512i, __m512i) {
        isa!({
            let mask = _mm512_set1_epi8(15);
            (_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16(v, 4), mask))
        })
    }

    #[inline(always)]
    fn lookup(v: __m512i, table: &[u8; 16]) -> __m512i {
        isa!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v))
    }

    #[inline(always)]
    fn dot(acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        isa!(_mm512_dpbusd_epi32(acc, codes, x))
    }

    #[inline(always)]
    fn dot_wide(acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        isa!(_mm512_dpbusd_epi32(acc, codes, x))
    }

    #[inline(always)]
    fn add_ints(a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn to_f32(v: __m512i) -> Self {
        isa!(Avx512(_mm512_cvtepi32_ps(v)))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        isa!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps(self.0, 1));
            super::avx2::sum8(eight)
        })
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        isa!(_mm_prefetch::<_MM_HINT_T0>(address.cast()))
    }
}
