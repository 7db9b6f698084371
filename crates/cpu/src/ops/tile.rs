//! Register tiles of the quantised linear: M activation rows by T panels of sixteen outputs, int8 dot products on the
//! codes.
//!
//! Contract: a lane is an output; per run of values that share both scales `acc = fma(dot, scale_w * scale_x, acc)`, and
//! after each weight group `acc = fma(bias, sum_x, acc)`, groups in order (order::int8_dot). The dot products are exact, so
//! nothing depends on M, T, the place in the tile or how dot products are interleaved.
//!
//! Expected share of the roofline: a few rows stream weights at memory speed; wide blocks are bound by the dot products,
//! sixteen of every twenty operations on the multiplier ports for groups of 64.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two dimensions at once")]

use std::marker::PhantomData;

use crate::lanes::Lanes;
use crate::ops::panel::{BLOCK, Matrix};
use crate::ops::quant::QuantRows;
use crate::ops::scales::{E2M1_CODES, Scales};

/// How a block of a panel becomes unsigned bytes for [`Lanes::dot`].
pub trait Decode {
    /// Values of each output in a block.
    const VALUES: usize;
    /// A block's codes in registers.
    type Codes<L: Lanes>: Copy;
    /// Takes a block.
    fn unpack<L: Lanes>(block: &[u8; BLOCK]) -> Self::Codes<L>;
    /// Adds the products of a block with `VALUES` values of a row.
    fn dot<L: Lanes>(acc: L::Ints, codes: Self::Codes<L>, x: &[i8]) -> L::Ints;
}

/// Affine codes of up to 4 bits.
pub struct Nibbles;
/// E2M1 codes through a table.
pub struct E2m1;
/// Codes of 5 or 6 bits as bytes.
pub struct Narrow;
/// 8-bit codes.
pub struct Wide;

#[inline(always)]
fn four<L: Lanes>(x: &[i8], i: usize) -> L::Bytes {
    L::broadcast(x[4 * i..].first_chunk().expect("values of a block"))
}

macro_rules! decode {
    ($name:ident, nibbles, $v:ident => $unpacked:expr) => {
        impl Decode for $name {
            const VALUES: usize = 8;
            type Codes<L: Lanes> = (L::Bytes, L::Bytes);

            #[inline(always)]
            fn unpack<L: Lanes>(block: &[u8; BLOCK]) -> (L::Bytes, L::Bytes) {
                let $v = L::nibbles(L::bytes(block));
                $unpacked
            }

            #[inline(always)]
            fn dot<L: Lanes>(acc: L::Ints, (low, high): (L::Bytes, L::Bytes), x: &[i8]) -> L::Ints {
                L::dot(L::dot(acc, low, four::<L>(x, 0)), high, four::<L>(x, 1))
            }
        }
    };
    ($name:ident, bytes, $dot:ident) => {
        impl Decode for $name {
            const VALUES: usize = 4;
            type Codes<L: Lanes> = L::Bytes;

            #[inline(always)]
            fn unpack<L: Lanes>(block: &[u8; BLOCK]) -> L::Bytes {
                L::bytes(block)
            }

            #[inline(always)]
            fn dot<L: Lanes>(acc: L::Ints, codes: L::Bytes, x: &[i8]) -> L::Ints {
                L::$dot(acc, codes, four::<L>(x, 0))
            }
        }
    };
}

decode!(Nibbles, nibbles, v => v);
decode!(E2m1, nibbles, v => (L::lookup(v.0, &E2M1_CODES), L::lookup(v.1, &E2M1_CODES)));
decode!(Narrow, bytes, dot);
decode!(Wide, bytes, dot_wide);

/// A slice that was checked once, read piece by piece.
#[derive(Clone, Copy)]
struct Run<'a, V> {
    start: *const V,
    len: usize,
    lifetime: PhantomData<&'a [V]>,
}

impl<'a, V> Run<'a, V> {
    const EMPTY: Self = Run { start: std::ptr::null(), len: 0, lifetime: PhantomData };

    #[inline(always)]
    fn new(values: &'a [V]) -> Self {
        Run { start: values.as_ptr(), len: values.len(), lifetime: PhantomData }
    }

    /// `len` values from `at`, without a check.
    ///
    /// # Safety
    /// `at + len` is within the run.
    #[inline(always)]
    unsafe fn get(self, at: usize, len: usize) -> &'a [V] {
        debug_assert!(at + len <= self.len);
        // SAFETY: inside a slice that lives for 'a, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }
}

/// Bytes ahead of the one being read for which a cache line is asked.
const AHEAD: usize = 4096;

/// Outputs `16 * first..` of T panels for rows `row..row + M` of `x`; returns `[m][t]`.
///
/// Plain loops: a closure handed to a library function is compiled on its own, without the instruction set's features,
/// and every intrinsic in it becomes a call (measured: ten times slower).
#[inline(always)]
pub fn tile<L: Lanes, D: Decode, S: Scales, const M: usize, const T: usize>(
    w: &Matrix<'_>,
    first: usize,
    x: &QuantRows,
    row: usize,
) -> [[L; T]; M] {
    let code_bytes = w.group / D::VALUES * BLOCK;
    let group_bytes = code_bytes + S::BYTES;
    assert!(w.panel_bytes == w.groups * group_bytes, "bytes of a panel");
    assert!(x.inputs == w.groups * w.group && x.group == w.group, "rows for this matrix");
    // Values that share both scales. Not a constant: unrolled over the blocks of a run, the compiler loads the words of `x`
    // as vectors and takes these apart again, which costs more than it saves.
    let run = w.group.min(x.step);
    assert!(w.group.is_multiple_of(run) && x.step.is_multiple_of(run) && run.is_multiple_of(D::VALUES), "runs");
    let mut panels = [Run::EMPTY; T];
    for t in 0..T {
        panels[t] = Run::new(&w.data[(first + t) * w.panel_bytes..][..w.panel_bytes]);
    }
    let (mut codes, mut steps, mut sums) = ([Run::EMPTY; M], [Run::EMPTY; M], [Run::EMPTY; M]);
    for m in 0..M {
        (codes[m], steps[m], sums[m]) =
            (Run::new(x.codes(row + m)), Run::new(x.steps(row + m)), Run::new(x.sums(row + m)));
        assert!(
            codes[m].len == x.inputs && steps[m].len == x.inputs / x.step && sums[m].len == w.groups,
            "a row's values"
        );
    }
    let mut acc = [[L::splat(0.0); T]; M];
    for g in 0..w.groups {
        let at = g * group_bytes;
        for start in (0..w.group).step_by(run) {
            let mut dots = [[L::zero(); T]; M];
            for block in 0..run / D::VALUES {
                // In the group, and in the row.
                let from = start + block * D::VALUES;
                let k = g * w.group + from;
                for t in 0..T {
                    let byte = at + from / D::VALUES * BLOCK;
                    L::prefetch(panels[t].start.wrapping_add(byte + AHEAD));
                    // SAFETY: a group has `group / VALUES` blocks, a panel `groups` groups (asserted above).
                    let bytes = unsafe { panels[t].get(byte, BLOCK) };
                    let unpacked = D::unpack::<L>(bytes.first_chunk().expect("a block"));
                    for m in 0..M {
                        // SAFETY: `k + VALUES <= groups * group`, the length of a row (asserted above).
                        let values = unsafe { codes[m].get(k, D::VALUES) };
                        dots[m][t] = D::dot::<L>(dots[m][t], unpacked, values);
                    }
                }
            }
            for t in 0..T {
                // SAFETY: the scales follow a group's codes (asserted above).
                let scale = S::scale::<L>(unsafe { panels[t].get(at + code_bytes, S::BYTES) });
                for m in 0..M {
                    // SAFETY: the value lies in the row, so its step exists (asserted above).
                    let step = unsafe { steps[m].get((g * w.group + start) / x.step, 1) }[0];
                    acc[m][t] = L::to_f32(dots[m][t]).fma(scale.mul(L::splat(step)), acc[m][t]);
                }
            }
        }
        for t in 0..T {
            // SAFETY: the scales and biases follow a group's codes (asserted above).
            let bias = S::bias::<L>(unsafe { panels[t].get(at + code_bytes, S::BYTES) });
            for m in 0..M {
                // SAFETY: one sum a group (asserted above).
                let sum = unsafe { sums[m].get(g, 1) }[0];
                acc[m][t] = bias.fma(L::splat(sum), acc[m][t]);
            }
        }
    }
    acc
}
