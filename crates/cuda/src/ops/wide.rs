//! Matrices times many rows, on devices with warpgroup instructions (`wide.cu`). The bits are those of the narrow kernel.

use crate::args;
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::memory::Block;
use crate::module::{Function, Unit};
use crate::ops::fuse::{self, SUPER};
use crate::ops::linear::TOGETHER;
use crate::ops::rows::RowKernels;

/// Rows from which the wide kernel is taken. Speed alone decides: any choice gives the same bits.
pub const WIDE_FROM: usize = 64;

/// Rows of a block, and outputs of a tile of the kernel.
const BLOCK: usize = 128;
/// Values of the sums of a row for each superblock: groups of 32, 64 and 128.
const SUMS: usize = 14;
/// Threads of the kernel.
const THREADS: usize = 384;
/// Bytes of shared memory it takes, whatever the format: all there is.
const SHARED: usize = 232_448;

/// The wide kernel of a unit, on devices that have one.
///
/// # Errors
/// When it cannot be had.
pub fn function(ctx: &Context, unit: &Unit) -> Result<Option<Function>, CudaError> {
    let fits = ctx.device.capability == 90 && ctx.device.shared_limit >= SHARED;
    if fits { ctx.function(unit, "wide_128", SHARED).map(Some) } else { Ok(None) }
}

/// Rows as the wide kernel reads them (`rows.cu`, `prepare_wide`).
pub struct Prepared {
    x: Block,
    sums: Block,
    supers: usize,
    rows: usize,
}

/// Stores `x` `[rows, inputs]` for the wide kernel.
pub fn prepare(ctx: &Context, k: &RowKernels, x: u64, inputs: usize, rows: usize) -> Prepared {
    let (supers, blocks) = (inputs.div_ceil(SUPER), rows.div_ceil(BLOCK));
    let used = fuse::used_last(ctx);
    let prepared = Prepared {
        x: ctx.block_apart(blocks * BLOCK * supers * SUPER * 2, &used),
        sums: ctx.block_apart(blocks * BLOCK * supers * SUMS * 4, &used),
        supers,
        rows,
    };
    // A warp takes 128 inputs of eight rows.
    let shape = Shape::new((supers * 2).div_ceil(8), blocks * (BLOCK / 8), 256);
    let (to, sums) = (prepared.x.address(), prepared.sums.address());
    let mut op = ctx.operation(0);
    if !fuse::gate_prepare_wide(&mut op, k, (x, inputs, rows), (to, sums), shape) {
        op.launch(k.prepare_wide, shape, &args![x, to, sums, inputs, rows]);
    }
    drop(op);
    prepared
}

/// A matrix and where its product goes.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its tiles.
    pub w: u64,
    /// `[rows, outputs]`.
    pub y: u64,
    /// Its rows.
    pub outputs: usize,
}

/// The arguments that every kernel of matrices begins with, of up to three of them, then `more`.
pub(super) fn with_parts<const MORE: usize>(parts: &[Part], more: [u64; MORE]) -> Vec<u64> {
    let none = Part { w: 0, y: 0, outputs: 0 };
    let p: [Part; TOGETHER] = std::array::from_fn(|i| parts.get(i).copied().unwrap_or(none));
    let words = p.map(|p| p.w).into_iter().chain(p.map(|p| p.y)).chain(p.map(|p| p.outputs as u64));
    words.chain(more).collect()
}

/// Up to three matrices of one format times the same rows.
pub fn multiply(ctx: &Context, kernel: Function, x: &Prepared, parts: &[Part]) {
    let tiles = parts.iter().map(|p| p.outputs.div_ceil(BLOCK)).sum::<usize>() * x.rows.div_ceil(BLOCK);
    // One block a processor, each of which takes tile after tile.
    let shape = Shape { grid: [tiles.min(ctx.device.processors), 1, 1], block: THREADS, shared: SHARED };
    let args = with_parts(parts, args![x.x.address(), x.sums.address(), x.supers, x.rows]);
    ctx.launch(kernel, shape, &args);
}
