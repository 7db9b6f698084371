//! How group scales are stored, as a type parameter of the kernels.

use mlxcel_compute::dequant::{e4m3, e8m0};

use crate::lanes::Lanes;

/// Reads the scale (and bias) of group `i` of a row.
pub trait Scales {
    /// Bytes of a scale.
    const SIZE: usize;
    /// Factor on the integer codes.
    fn scale(scales: &[u8], i: usize) -> f32;
    /// Value of code zero.
    fn bias(scales: &[u8], biases: &[u8], i: usize) -> f32;

    /// Sixteen biases from group `i`, where the row has them and they can be read at once.
    #[inline(always)]
    fn biases16<L: Lanes>(_biases: &[u8], _i: usize) -> Option<L> {
        None
    }
}

/// Affine, f32.
pub struct F32;
/// Affine, bf16.
pub struct Bf16;
/// Affine, binary16.
pub struct F16;
/// mxfp4: codes are the doubled E2M1 value plus 12, scales powers of two.
pub struct E8m0Half;
/// nvfp4: the same codes, E4M3 scales.
pub struct E4m3Half;

#[inline(always)]
fn f32_at(bytes: &[u8], i: usize) -> f32 {
    let b = &bytes[4 * i..4 * i + 4];
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

#[inline(always)]
fn bf16_at(bytes: &[u8], i: usize) -> f32 {
    let b = &bytes[2 * i..2 * i + 2];
    f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)
}

#[inline(always)]
fn f16_at(bytes: &[u8], i: usize) -> f32 {
    let b = &bytes[2 * i..2 * i + 2];
    half::f16::from_le_bytes([b[0], b[1]]).to_f32()
}

macro_rules! affine {
    ($name:ident, $size:literal, $at:ident, $load:ident) => {
        impl Scales for $name {
            const SIZE: usize = $size;

            #[inline(always)]
            fn scale(scales: &[u8], i: usize) -> f32 {
                $at(scales, i)
            }

            #[inline(always)]
            fn bias(_: &[u8], biases: &[u8], i: usize) -> f32 {
                $at(biases, i)
            }

            $load! {}
        }
    };
}

macro_rules! one_by_one {
    () => {};
}

macro_rules! sixteen_bf16 {
    () => {
        #[inline(always)]
        fn biases16<L: Lanes>(biases: &[u8], i: usize) -> Option<L> {
            Some(L::load_bf16(biases.get(2 * i..2 * i + 32)?.first_chunk()?))
        }
    };
}

affine!(F32, 4, f32_at, one_by_one);
affine!(Bf16, 2, bf16_at, sixteen_bf16);
affine!(F16, 2, f16_at, one_by_one);

/// Twice the E2M1 values plus 12: unsigned bytes for the integer dot product. The factor is halved and the offset
/// becomes a bias of `-6 * scale`, both exact.
pub const E2M1_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl Scales for E8m0Half {
    const SIZE: usize = 1;

    #[inline(always)]
    fn scale(scales: &[u8], i: usize) -> f32 {
        0.5 * e8m0(scales[i])
    }

    #[inline(always)]
    fn bias(scales: &[u8], _: &[u8], i: usize) -> f32 {
        -6.0 * e8m0(scales[i])
    }
}

impl Scales for E4m3Half {
    const SIZE: usize = 1;

    #[inline(always)]
    fn scale(scales: &[u8], i: usize) -> f32 {
        0.5 * e4m3(scales[i])
    }

    #[inline(always)]
    fn bias(scales: &[u8], _: &[u8], i: usize) -> f32 {
        -6.0 * e4m3(scales[i])
    }
}

#[cfg(test)]
mod tests {
    use super::E2M1_CODES;
    use mlxcel_compute::dequant::e2m1;

    #[test]
    fn e2m1_codes_are_exact() {
        for code in 0..16u8 {
            assert_eq!(0.5 * f32::from(E2M1_CODES[usize::from(code)]) - 6.0, e2m1(code), "code {code}");
        }
    }
}
