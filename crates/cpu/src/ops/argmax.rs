//! The largest value of each row, and whether all are finite, in one pass over the row where it lies.
//!
//! Contract: [`mlxcel_compute::order::argmax`]. A maximum is the same in any order, so rows are cut into pieces for threads and
//! pieces into blocks for lanes: a block's maximum is compared with the best so far, and only the best block is searched, by value.
//! A vocabulary's logits come from the last level of cache at best: it is the reading that takes the time.

use crate::arch::Kernel;
use crate::backend::CpuBackend;
use crate::buffer::{CpuBuffer, Shared};
use crate::lanes::Lanes;
use crate::ops::rows::sixteen;

/// Values of a block.
const BLOCK: usize = 1024;

/// Values that one thread looks at, in blocks.
const PIECE: usize = 32 * BLOCK;

/// Finds the first block that has the largest value of some.
struct Largest<'a>(&'a [f32]);

/// Of values that are all finite: the largest, and the first of the block that first has it.
#[derive(Clone, Copy)]
struct Found {
    max: f32,
    block: usize,
}

impl Kernel for Largest<'_> {
    /// `None` when a value is NaN or infinite, or there is none.
    type Out = Option<Found>;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Option<Found> {
        let values = self.0;
        let mut best = Found { max: *values.first()?, block: 0 };
        // 0 or -0 for every finite value, NaN for any other.
        let mut poison = L::splat(0.0);
        for start in (0..values.len()).step_by(BLOCK) {
            let block = &values[start..values.len().min(start + BLOCK)];
            let mut lanes = L::splat(f32::NEG_INFINITY);
            let (whole, rest) = block.as_chunks::<16>();
            for v in whole {
                let v = L::load(v);
                lanes = v.max(lanes);
                poison = v.fma(L::splat(0.0), poison);
            }
            if !rest.is_empty() {
                let v = sixteen::<L>(rest, 0);
                lanes = v.within(0, rest.len(), f32::NEG_INFINITY).max(lanes);
                poison = v.fma(L::splat(0.0), poison);
            }
            let max = lanes.largest();
            if max > best.max {
                best = Found { max, block: start };
            }
        }
        if poison.sum() == 0.0 { Some(best) } else { None }
    }
}

/// [`mlxcel_compute::Backend::argmax`].
pub(crate) fn run(b: &CpuBackend, x: &CpuBuffer) -> Vec<Option<u32>> {
    let (rows, width) = (x.rows(), x.width());
    let pieces = width.div_ceil(PIECE);
    let mut found = vec![None; rows * pieces];
    let out = Shared::new(&mut found);
    b.each_row(rows * pieces, width.min(PIECE), |i| {
        let (row, start) = (x.row(i / pieces), i % pieces * PIECE);
        // SAFETY: each piece has its own place.
        let place = unsafe { out.part(i, 1) };
        place[0] = b.isa.run(Largest(&row[start..width.min(start + PIECE)]));
    });
    let mut all = Vec::with_capacity(rows);
    for (r, of_row) in found.chunks_exact(pieces.max(1)).enumerate() {
        all.push(first(x.row(r), of_row));
    }
    all
}

/// The index that a row's pieces lead to.
fn first(row: &[f32], pieces: &[Option<Found>]) -> Option<u32> {
    let mut best = (0, (*pieces.first()?)?);
    for (p, piece) in pieces.iter().enumerate() {
        let piece = (*piece)?;
        if piece.max > best.1.max {
            best = (p, piece);
        }
    }
    let start = best.0 * PIECE + best.1.block;
    let at = row[start..].iter().position(|v| *v == best.1.max)?;
    Some((start + at) as u32)
}
