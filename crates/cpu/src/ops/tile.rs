//! Register tiles of the quantised linear: M activation rows by sixteen outputs, int8 dot products on the codes.
//!
//! Contract: a lane is an output; per run of values that share both scales `acc = fma(dot, scale_w * scale_x, acc)`, and
//! after each weight group `acc = fma(bias, sum_x, acc)`, groups in order (order::int8_dot). The dot products are exact, so
//! nothing depends on M, on the place in the tile or on how many chains dot products run in.
//!
//! Expected share of the roofline: a few rows stream weights at memory speed; wide blocks are bound by the dot products,
//! sixteen of every twenty operations on the multiplier ports for groups of 64.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed side by side")]

use std::marker::PhantomData;

use crate::lanes::Lanes;
use crate::ops::panel::{Matrix, VALUES};
use crate::ops::quant::QuantRows;
use crate::ops::scales::{E2M1_CODES, Scales};

/// How a block of a panel becomes unsigned bytes for [`Lanes::dot`].
pub trait Decode {
    /// Bytes of a block.
    const BYTES: usize;
    /// Takes a block: the first and the last four values of each output.
    fn unpack<L: Lanes>(block: &[u8]) -> [L::Bytes; 2];
    /// Adds four products a lane.
    #[inline(always)]
    fn dot<L: Lanes>(acc: L::Ints, codes: L::Bytes, x: L::Bytes) -> L::Ints {
        L::dot(acc, codes, x)
    }
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
fn bytes64<L: Lanes>(block: &[u8], i: usize) -> L::Bytes {
    L::bytes(block[64 * i..].first_chunk().expect("a block"))
}

impl Decode for Nibbles {
    const BYTES: usize = 64;

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> [L::Bytes; 2] {
        let (low, high) = L::nibbles(bytes64::<L>(block, 0));
        [low, high]
    }
}

impl Decode for E2m1 {
    const BYTES: usize = 64;

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> [L::Bytes; 2] {
        let (low, high) = L::nibbles(bytes64::<L>(block, 0));
        [L::lookup(low, &E2M1_CODES), L::lookup(high, &E2M1_CODES)]
    }
}

impl Decode for Narrow {
    const BYTES: usize = 128;

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> [L::Bytes; 2] {
        [bytes64::<L>(block, 0), bytes64::<L>(block, 1)]
    }
}

impl Decode for Wide {
    const BYTES: usize = 128;

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> [L::Bytes; 2] {
        [bytes64::<L>(block, 0), bytes64::<L>(block, 1)]
    }

    #[inline(always)]
    fn dot<L: Lanes>(acc: L::Ints, codes: L::Bytes, x: L::Bytes) -> L::Ints {
        L::dot_wide(acc, codes, x)
    }
}

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

    /// N values from `at`, without a check.
    ///
    /// # Safety
    /// `at + N` is within the run.
    #[inline(always)]
    unsafe fn array<const N: usize>(self, at: usize) -> &'a [V; N] {
        debug_assert!(at + N <= self.len);
        // SAFETY: inside a slice that lives for 'a, by the caller's promise; an array is aligned as its elements are.
        unsafe { &*self.start.add(at).cast() }
    }
}

/// Bytes ahead of the one being read for which a cache line is asked: what memory delivers while one row runs through them. More rows take
/// longer, and would only push what they need out of the cache (measured: docs/SPEED.md "How far ahead").
const fn ahead(rows: usize) -> usize {
    match rows {
        1 => 8192,
        2 => 5120,
        _ => 3072,
    }
}

/// Outputs of panel `panel` for rows `row..row + M` of `x`.
///
/// Plain loops: a closure handed to a library function is compiled on its own, without the instruction set's features,
/// and every intrinsic in it becomes a call (measured: ten times slower).
#[inline(always)]
pub fn tile<L: Lanes, D: Decode, S: Scales, const M: usize>(
    w: &Matrix<'_>,
    panel: usize,
    x: &QuantRows,
    row: usize,
) -> [L; M] {
    // Values that share both scales. Not a constant: unrolled over the blocks of a run, the compiler loads the words of `x`
    // as vectors and takes these apart again, which costs more than it saves.
    let run = w.group.min(x.step);
    let code_bytes = w.group / VALUES * D::BYTES;
    let group_bytes = code_bytes + S::BYTES;
    assert!(w.panel_bytes == w.groups * group_bytes, "bytes of a panel");
    assert!(x.inputs == w.groups * w.group && x.group == w.group, "rows for this matrix");
    assert!(
        x.step.is_power_of_two()
            && w.group.is_multiple_of(run)
            && x.step.is_multiple_of(run)
            && run.is_multiple_of(2 * VALUES),
        "runs"
    );
    let panel = Run::new(&w.data[panel * w.panel_bytes..][..w.panel_bytes]);
    let (mut codes, mut steps, mut sums) = ([Run::EMPTY; M], [Run::EMPTY; M], [Run::EMPTY; M]);
    for m in 0..M {
        (codes[m], steps[m], sums[m]) =
            (Run::new(x.codes(row + m)), Run::new(x.steps(row + m)), Run::new(x.sums(row + m)));
        assert!(
            codes[m].len == x.inputs && steps[m].len == x.inputs / x.step && sums[m].len == w.groups,
            "a row's values"
        );
    }
    // A dot product waits for the one before it in its chain: few rows take several chains each.
    let (at_once, chains) = match M {
        1 => (2, 4),
        2 => (2, 2),
        3 => (1, 2),
        _ => (1, 1),
    };
    let step_shift = x.step.trailing_zeros();
    let runs = w.group / run;
    let mut acc = [L::splat(0.0); M];
    // Positions in the row and in the panel.
    let (mut k, mut at) = (0, 0);
    for g in 0..w.groups {
        let scales = at + code_bytes;
        for _ in 0..runs {
            let step = k >> step_shift;
            let mut dots = [[L::zero(); 4]; M];
            for _ in 0..run / (at_once * VALUES) {
                for b in 0..at_once {
                    for line in 0..D::BYTES / 64 {
                        L::prefetch(panel.start.wrapping_add(at + ahead(M) + 64 * line));
                    }
                    // SAFETY: a group has `group / VALUES` blocks, a panel `groups` groups (asserted above).
                    let unpacked = D::unpack::<L>(unsafe { panel.get(at, D::BYTES) });
                    for m in 0..M {
                        for half in 0..2 {
                            // SAFETY: a row has `groups * group` values (asserted above).
                            let four = L::broadcast(unsafe { codes[m].array(k + 4 * half) });
                            let chain = (2 * b + half) % chains;
                            dots[m][chain] = D::dot::<L>(dots[m][chain], unpacked[half], four);
                        }
                    }
                    at += D::BYTES;
                    k += VALUES;
                }
            }
            // SAFETY: the scales follow a group's codes (asserted above).
            let scale = S::scale::<L>(unsafe { panel.get(scales, S::BYTES) });
            for m in 0..M {
                let dot = L::add_ints(L::add_ints(dots[m][0], dots[m][1]), L::add_ints(dots[m][2], dots[m][3]));
                // SAFETY: the run's values lie in the row, so their step exists (asserted above).
                let [step] = *unsafe { steps[m].array(step) };
                acc[m] = L::to_f32(dot).fma(scale.mul(L::splat(step)), acc[m]);
            }
        }
        // SAFETY: the scales and biases follow a group's codes (asserted above).
        let bias = S::bias::<L>(unsafe { panel.get(scales, S::BYTES) });
        for m in 0..M {
            // SAFETY: one sum a group (asserted above).
            let [sum] = *unsafe { sums[m].array(g) };
            acc[m] = bias.fma(L::splat(sum), acc[m]);
        }
        at = scales + S::BYTES;
    }
    acc
}
