//! How a panel's scales and biases are stored, as a type parameter of the kernels.

use crate::lanes::Lanes;

/// Reads the scales (and biases) of sixteen outputs' group.
pub trait Scales {
    /// Bytes of the scales and biases of a group.
    const BYTES: usize;
    /// Factors on the integer codes.
    fn scale<L: Lanes>(bytes: &[u8]) -> L;
    /// Values of code zero.
    fn bias<L: Lanes>(bytes: &[u8]) -> L;
}

/// Affine, f32.
pub struct F32;
/// Affine, bf16.
pub struct Bf16;
/// Affine, binary16.
pub struct F16;
/// E2M1: codes are the doubled value plus 12, scales the halved ones as bf16.
pub struct Halved;

#[inline(always)]
fn array<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("scales of sixteen outputs")
}

#[inline(always)]
fn load_f32<L: Lanes>(bytes: &[u8; 64]) -> L {
    let mut lanes = [0.0; 16];
    for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *lane = f32::from_le_bytes(*b);
    }
    L::load(&lanes)
}

macro_rules! affine {
    ($name:ident, $half:literal, $load:path) => {
        impl Scales for $name {
            const BYTES: usize = 2 * $half;

            #[inline(always)]
            fn scale<L: Lanes>(bytes: &[u8]) -> L {
                $load(array::<$half>(bytes, 0))
            }

            #[inline(always)]
            fn bias<L: Lanes>(bytes: &[u8]) -> L {
                $load(array::<$half>(bytes, $half))
            }
        }
    };
}

affine!(F32, 64, load_f32);
affine!(Bf16, 32, L::load_bf16);
affine!(F16, 32, L::load_f16);

/// Twice the E2M1 values plus 12: unsigned bytes for the integer dot product. The factor is halved and the offset
/// becomes a bias of `-6 * scale`, both exact.
pub const E2M1_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl Scales for Halved {
    const BYTES: usize = 32;

    #[inline(always)]
    fn scale<L: Lanes>(bytes: &[u8]) -> L {
        L::load_bf16(array(bytes, 0))
    }

    /// `-6 * scale`: exact, because so is the halving.
    #[inline(always)]
    fn bias<L: Lanes>(bytes: &[u8]) -> L {
        Self::scale::<L>(bytes).mul(L::splat(-12.0))
    }
}

#[cfg(test)]
mod tests {
    use super::E2M1_CODES;
    use mlxcel_compute::dequant::{e2m1, e4m3, e8m0};

    #[test]
    fn e2m1_codes_are_exact() {
        for code in 0..16u8 {
            assert_eq!(0.5 * f32::from(E2M1_CODES[usize::from(code)]) - 6.0, e2m1(code), "code {code}");
        }
    }

    #[test]
    fn halved_scales_are_bf16_and_give_the_bias() {
        for byte in 0..=255u8 {
            for scale in [e8m0(byte), e4m3(byte)] {
                let half = 0.5 * scale;
                let stored = half::bf16::from_bits((half.to_bits() >> 16) as u16).to_f32();
                if scale.is_nan() {
                    assert!(stored.is_nan(), "byte {byte}");
                } else {
                    assert_eq!(stored.to_bits(), half.to_bits(), "byte {byte}");
                    assert_eq!((-12.0 * stored).to_bits(), (-6.0 * scale).to_bits(), "byte {byte}");
                }
            }
        }
    }
}
