//! Register tiles of the quantised linear: M activation rows by R outputs, int8 dot products on the codes.
//!
//! Contract: `out[m][r] = tree(lanes)` with, per lane, `fma(dot, scale_w * scale_x, acc)` over the blocks of a row in
//! order, plus the bias sums (`fma(bias, sum_x, acc)`, bias group `g` in lane `g % 16`) added lane by lane
//! (order::int8_dot). Nothing depends on M, R or the position in the tile.
//!
//! Expected share of the roofline: width 1 streams weights at memory speed; wide blocks are bound by the dot products.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two dimensions at once")]

use std::marker::PhantomData;

use crate::lanes::Lanes;
use crate::ops::quant::QuantRows;
use crate::ops::scales::{E2M1_CODES, Scales};

/// One weight matrix as bytes: rows of codes, of scales, of biases.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    /// Packed codes, all rows.
    pub data: &'a [u8],
    /// Scales, all rows.
    pub scales: &'a [u8],
    /// Biases, all rows (empty for the float modes).
    pub biases: &'a [u8],
    /// Bytes of a row of codes.
    pub row_bytes: usize,
    /// Bytes of a row of scales.
    pub scale_bytes: usize,
    /// Groups of a row.
    pub groups: usize,
    /// Values of a group.
    pub group: usize,
}

impl<'a> Codes<'a> {
    #[inline(always)]
    fn row(&self, r: usize) -> &'a [u8] {
        &self.data[r * self.row_bytes..][..self.row_bytes]
    }

    #[inline(always)]
    fn scale_row(&self, r: usize) -> &'a [u8] {
        &self.scales[r * self.scale_bytes..][..self.scale_bytes]
    }

    #[inline(always)]
    fn bias_row(&self, r: usize) -> &'a [u8] {
        if self.biases.is_empty() { &[] } else { &self.biases[r * self.scale_bytes..][..self.scale_bytes] }
    }
}

/// How a block of a weight row becomes unsigned bytes for [`Lanes::dot`].
pub trait Decode {
    /// Values of a block; 128 (lane covers 8 values) or 64 (lane covers 4).
    const BLOCK: usize;
    /// Bytes of a block of codes.
    const BYTES: usize;
    /// A block's codes in registers.
    type Codes<L: Lanes>: Copy;
    /// Takes a block of `BYTES` bytes, fewer at the end of a row (the missing ones are zeros).
    fn unpack<L: Lanes>(block: &[u8]) -> Self::Codes<L>;
    /// Dot products of a block with one row's codes, `BLOCK` bytes.
    fn dot<L: Lanes>(codes: Self::Codes<L>, x: &[u8]) -> L::Ints;
}

/// 4-bit codes as they lie.
pub struct Nibbles;
/// E2M1 codes through a table.
pub struct E2m1;
/// 8-bit codes as they lie.
pub struct Bytes8;
/// Codes of 2, 3, 5 or 6 bits, unpacked to bytes.
pub struct Packed<const BITS: usize>;

#[inline(always)]
fn bytes64<L: Lanes>(block: &[u8]) -> L::Bytes {
    match block.first_chunk() {
        Some(all) => L::bytes(all),
        None => {
            let mut padded = [0; 64];
            padded[..block.len()].copy_from_slice(block);
            L::bytes(&padded)
        }
    }
}

#[inline(always)]
fn chunk64(x: &[u8], i: usize) -> &[u8; 64] {
    x[64 * i..].first_chunk().expect("a block of codes")
}

#[inline(always)]
fn nibble_dot<L: Lanes>((low, high): (L::Bytes, L::Bytes), x: &[u8]) -> L::Ints {
    let acc = L::dot(L::zero(), low, L::bytes(chunk64(x, 0)));
    L::dot(acc, high, L::bytes(chunk64(x, 1)))
}

impl Decode for Nibbles {
    const BLOCK: usize = 128;
    const BYTES: usize = 64;
    type Codes<L: Lanes> = (L::Bytes, L::Bytes);

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> (L::Bytes, L::Bytes) {
        L::nibbles(bytes64::<L>(block))
    }

    #[inline(always)]
    fn dot<L: Lanes>(codes: (L::Bytes, L::Bytes), x: &[u8]) -> L::Ints {
        nibble_dot::<L>(codes, x)
    }
}

impl Decode for E2m1 {
    const BLOCK: usize = 128;
    const BYTES: usize = 64;
    type Codes<L: Lanes> = (L::Bytes, L::Bytes);

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> (L::Bytes, L::Bytes) {
        let (low, high) = L::nibbles(bytes64::<L>(block));
        (L::lookup(low, &E2M1_CODES), L::lookup(high, &E2M1_CODES))
    }

    #[inline(always)]
    fn dot<L: Lanes>(codes: (L::Bytes, L::Bytes), x: &[u8]) -> L::Ints {
        nibble_dot::<L>(codes, x)
    }
}

impl Decode for Bytes8 {
    const BLOCK: usize = 64;
    const BYTES: usize = 64;
    type Codes<L: Lanes> = L::Bytes;

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> L::Bytes {
        bytes64::<L>(block)
    }

    #[inline(always)]
    fn dot<L: Lanes>(codes: L::Bytes, x: &[u8]) -> L::Ints {
        L::dot_wide(L::zero(), codes, L::bytes(chunk64(x, 0)))
    }
}

impl<const BITS: usize> Decode for Packed<BITS> {
    const BLOCK: usize = 64;
    const BYTES: usize = 8 * BITS;
    type Codes<L: Lanes> = L::Bytes;

    #[inline(always)]
    fn unpack<L: Lanes>(block: &[u8]) -> L::Bytes {
        L::bytes(&unpack::<BITS>(block, 0))
    }

    #[inline(always)]
    fn dot<L: Lanes>(codes: L::Bytes, x: &[u8]) -> L::Ints {
        L::dot(L::zero(), codes, L::bytes(chunk64(x, 0)))
    }
}

/// Sixty-four codes from `8 * BITS` bytes (fewer at the end of a row): eight codes fill exactly BITS bytes.
#[inline(always)]
pub fn unpack<const BITS: usize>(row: &[u8], from: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let rest = &row[from..];
    for (eight, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(rest.chunks_exact(BITS)) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (i, code) in eight.iter_mut().enumerate() {
            *code = (word >> (i * BITS)) as u8 & ((1u16 << BITS) - 1) as u8;
        }
    }
    out
}

/// Lane scales of a block of `D::BLOCK` values: lane `l` covers `BLOCK / 16` consecutive values. `scales` holds the
/// block's groups; one that the end of the row cut off scales zeros.
#[inline(always)]
fn lane_scales<L: Lanes, D: Decode, S: Scales>(scales: &[u8], group: usize) -> L {
    let groups = scales.len() / S::SIZE;
    let at = |i: usize| if i < groups { S::scale(scales, i) } else { 0.0 };
    match D::BLOCK / group.min(D::BLOCK) {
        1 => L::splat(at(0)),
        2 => L::halves(at(0), at(1)),
        4 => L::quads(&[at(0), at(1), at(2), at(3)]),
        _ => L::pairs(&[at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]),
    }
}

/// Biases of sixteen groups from `g`, zeros beyond the last.
#[inline(always)]
fn biases<L: Lanes, S: Scales>(w: &Codes<'_>, scales: &[u8], biases: &[u8], g: usize) -> L {
    if let Some(all) = S::biases16::<L>(biases, g) {
        return all;
    }
    let mut sixteen = [0.0; 16];
    for (i, b) in sixteen.iter_mut().enumerate().take(w.groups - g) {
        *b = S::bias(scales, biases, g + i);
    }
    L::load(&sixteen)
}

/// A run of bytes that was checked once, read block by block.
#[derive(Clone, Copy)]
struct Run<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> Run<'a> {
    const EMPTY: Self = Run { start: std::ptr::null(), len: 0, lifetime: PhantomData };

    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        Run { start: bytes.as_ptr(), len: bytes.len(), lifetime: PhantomData }
    }

    /// `len` bytes from `at`, without a check.
    ///
    /// # Safety
    /// `at + len` is within the run.
    #[inline(always)]
    unsafe fn get(self, at: usize, len: usize) -> &'a [u8] {
        debug_assert!(at + len <= self.len);
        // SAFETY: inside a slice that lives for 'a, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// The part of `at..at + len` that exists.
    #[inline(always)]
    fn rest(self, at: usize, len: usize) -> &'a [u8] {
        let at = at.min(self.len);
        // SAFETY: cut to the run.
        unsafe { self.get(at, len.min(self.len - at)) }
    }
}

/// Outputs `o..o + R` for rows `row..row + M` of `x`; returns `[m][r]`. `GROUP` is the weight's group, or 0 to read it
/// from `w`.
///
/// Plain loops: a closure handed to a library function is compiled on its own, without the instruction set's features,
/// and every intrinsic in it becomes a call (measured: ten times slower).
#[inline(always)]
pub fn tile<L: Lanes, D: Decode, S: Scales, const GROUP: usize, const M: usize, const R: usize>(
    w: &Codes<'_>,
    o: usize,
    x: &QuantRows,
    row: usize,
) -> [[f32; R]; M] {
    let group = if GROUP == 0 { w.group } else { GROUP };
    let mut acc = [[L::splat(0.0); R]; M];
    let (mut codes, mut scales) = ([Run::EMPTY; R], [Run::EMPTY; R]);
    for r in 0..R {
        (codes[r], scales[r]) = (Run::new(w.row(o + r)), Run::new(w.scale_row(o + r)));
        assert!(scales[r].len == w.groups * S::SIZE, "scales of a row");
    }
    let (mut x_codes, mut x_scales) = ([Run::EMPTY; M], [&[] as &[[f32; 16]]; M]);
    for m in 0..M {
        (x_codes[m], x_scales[m]) = (Run::new(x.row_codes(row + m)), x.row_scales(row + m));
        assert!(x_codes[m].len == x.blocks * D::BLOCK && x_scales[m].len() == x.blocks, "rows for this layout");
    }
    // Groups of a block, in bytes of scales.
    let step = D::BLOCK.div_ceil(group) * S::SIZE;
    let first = |block: usize| block * D::BLOCK / group * S::SIZE;
    let whole = w.row_bytes / D::BYTES;
    assert!(w.groups * group * D::BYTES == w.row_bytes * D::BLOCK && whole <= x.blocks, "groups of a row");
    let ahead = 2 * R * w.row_bytes;
    for block in 0..whole {
        for r in 0..R {
            L::prefetch(codes[0].start.wrapping_add(ahead + (block * R + r) * D::BYTES));
            // SAFETY: block < row_bytes / BYTES, and the scales of a row cover all its whole blocks (asserted above).
            let (bytes, groups) =
                unsafe { (codes[r].get(block * D::BYTES, D::BYTES), scales[r].get(first(block), step)) };
            let unpacked = D::unpack::<L>(bytes);
            let scale = lane_scales::<L, D, S>(groups, group);
            for m in 0..M {
                // SAFETY: every row has x.blocks >= whole blocks (asserted above).
                let (x, x_scale) =
                    unsafe { (x_codes[m].get(block * D::BLOCK, D::BLOCK), x_scales[m].get_unchecked(block)) };
                let dots = D::dot::<L>(unpacked, x);
                acc[m][r] = L::to_f32(dots).fma(scale.mul(L::load(x_scale)), acc[m][r]);
            }
        }
    }
    for block in whole..x.blocks {
        for r in 0..R {
            let unpacked = D::unpack::<L>(codes[r].rest(block * D::BYTES, D::BYTES));
            let scale = lane_scales::<L, D, S>(scales[r].rest(first(block), step), group);
            for m in 0..M {
                let dots = D::dot::<L>(unpacked, x_codes[m].rest(block * D::BLOCK, D::BLOCK));
                acc[m][r] = L::to_f32(dots).fma(scale.mul(L::load(&x_scales[m][block])), acc[m][r]);
            }
        }
    }
    for r in 0..R {
        let (scale_row, bias_row) = (w.scale_row(o + r), w.bias_row(o + r));
        for g in (0..w.groups).step_by(16) {
            let bias = biases::<L, S>(w, scale_row, bias_row, g);
            for m in 0..M {
                let sums = x.sums(row + m)[g..].first_chunk().expect("padded sums");
                acc[m][r] = bias.fma(L::load(sums), acc[m][r]);
            }
        }
    }
    let mut out = [[0.0; R]; M];
    for m in 0..M {
        for r in 0..R {
            out[m][r] = acc[m][r].sum();
        }
    }
    out
}
