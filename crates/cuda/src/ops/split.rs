//! Matrices times up to eight rows, on devices with clusters of blocks (`split.cu`). The bits are those of the narrow kernel.

use crate::args;
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::module::{Function, Unit};
use crate::ops::fuse::{Prepared, SUPER};
use crate::ops::linear::TILE;
use crate::ops::wide::{Part, with_parts};

/// Rows up to which the kernel is taken. Speed alone decides: any choice gives the same bits.
pub const SPLIT_TO: usize = 8;
/// Slices of a sum, which are the blocks of a cluster, and its tiles.
const SLICES: usize = 8;
/// Bytes that x of a superblock and its sums take in shared memory.
const NEAR: usize = 4096 + 256;
/// Bytes for what the blocks of a cluster send each other.
const SENT: usize = SLICES * 512 + 16;
/// Most superblocks of x that are in shared memory at once: with them four blocks fit a processor.
const CHUNK: usize = 12;
/// Blocks of a processor, by their registers.
const BLOCKS: usize = 4;
/// Most shared memory that is asked for.
const SHARED: usize = 120 << 10;

/// The kernel of a unit, on devices that have one.
///
/// # Errors
/// When it cannot be had.
pub fn function(ctx: &Context, unit: &Unit) -> Result<Option<Function>, CudaError> {
    let most = SHARED.min(ctx.device.shared_limit);
    let fits = ctx.device.capability >= 90 && most >= CHUNK * NEAR + SENT;
    if fits { ctx.function(unit, "split_8", most).map(Some) } else { Ok(None) }
}

/// Superblocks that are near at once, and bytes of shared memory, for a matrix of `supers` superblocks a row in `clusters` clusters.
///
/// Clusters are placed so that some processors are full while others are empty. Where all blocks have room at once, each takes as much
/// memory as keeps the number of blocks on a processor even.
fn sizes(supers: usize, clusters: usize, processors: usize, limit: usize) -> (usize, usize) {
    let longest = supers.div_ceil(SLICES).max(1);
    let chunk = longest.div_ceil(longest.div_ceil(CHUNK));
    let (needed, each) = (chunk * NEAR + SENT, (clusters * SLICES).div_ceil(processors.max(1)));
    let even = if each < BLOCKS { limit / (each + 1) + 1 } else { 0 };
    (chunk, needed.max(even.min(SHARED)))
}

/// Up to three matrices of one format times up to eight rows.
pub fn multiply(ctx: &Context, kernel: Function, x: &Prepared, rows: usize, inputs: usize, parts: &[Part]) {
    let clusters = parts.iter().map(|p| p.outputs.div_ceil(TILE)).sum::<usize>().div_ceil(SLICES);
    let supers = inputs.div_ceil(SUPER);
    let (chunk, shared) = sizes(supers, clusters, ctx.device.processors, ctx.device.shared_limit);
    let shape = Shape { grid: [clusters * SLICES, 1, 1], block: 256, shared };
    let args = with_parts(parts, args![x.x.address(), x.sums.address(), supers, rows, chunk]);
    ctx.launch(kernel, shape, &args);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 232_448;

    #[test]
    fn chunks_cover_a_slice_evenly() {
        for supers in 1..400 {
            let (chunk, shared) = sizes(supers, 1000, 132, LIMIT);
            let longest = supers.div_ceil(SLICES);
            assert!(chunk <= CHUNK && longest.div_ceil(chunk) == longest.div_ceil(CHUNK), "{supers}: {chunk}");
            assert!((chunk * NEAR + SENT..=SHARED).contains(&shared), "{supers}: {shared}");
        }
    }

    #[test]
    fn few_blocks_are_spread() {
        // A processor of 228 KiB, of which each block takes 1 KiB besides.
        let room = |shared: usize| 233_472 / (shared + 1024);
        for (tiles, each) in [(336, 3), (8, 1), (131, 2), (264, 2), (396, 4), (528, 4)] {
            let (_, shared) = sizes(8, usize::div_ceil(tiles, SLICES), 132, LIMIT);
            assert_eq!(room(shared).min(BLOCKS), each, "{tiles} tiles: {shared} bytes");
        }
    }
}
