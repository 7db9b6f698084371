//! Matrices times up to eight rows, on devices that copy in bulk (`teams.cu`, `split.cu`). The bits are those of the narrow kernel.

use mlxcel_compute::WeightFormat;

use crate::args;
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::module::{Function, Unit};
use crate::ops::fuse::{Prepared, SUPER};
use crate::ops::linear::{TILE, super_bytes};
use crate::ops::wide::{Part, with_parts};

/// Rows up to which the kernels are taken. Speed alone decides: any choice gives the same bits.
pub const SPLIT_TO: usize = 8;
/// Slices of a sum, which are the warps of a team, the blocks of a cluster, and its tiles.
const SLICES: usize = 8;
/// Bytes that the sums of a tile's slices take.
const LEFT: usize = SLICES * 512;
/// Most blocks of a processor for `split.cu`, by their registers.
const BLOCKS: usize = 3;
/// Most teams of a block for `teams.cu`, by their registers.
const TEAMS: usize = 3;
/// Superblocks of a warp that are on their way at once: fewer leave memory idle, more gain nothing.
const STAGES: [usize; 2] = [2, 8];

/// The kernels of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    teams: Function,
    split: Function,
    need: Need,
}

/// What a superblock takes of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    /// A tile's weights, bytes.
    weights: usize,
    /// The sums of x, bytes.
    sums: usize,
}

impl Need {
    fn of(format: WeightFormat) -> Self {
        let sums = match format {
            WeightFormat::Quant(quant, _) if quant.has_biases() => SUPER / quant.group() * 8 * 4,
            _ => 0,
        };
        Need { weights: super_bytes(format), sums }
    }

    /// Bytes for the rows of x and its sums.
    fn x(self, rows: usize) -> usize {
        SUPER * 2 * rows + self.sums
    }

    /// Bytes for a superblock on its way to each of eight warps, and its barrier.
    fn stage(self) -> usize {
        SLICES * (self.weights + 8)
    }
}

/// How a product is laid over the clusters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clusters {
    /// Superblocks of x that are near at once.
    chunk: usize,
    /// Superblocks of weights on their way, a warp.
    stages: usize,
    /// Bytes of shared memory, a block.
    shared: usize,
}

/// How a product is laid over the teams of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Teams {
    teams: usize,
    /// Superblocks of weights on their way, a warp.
    stages: usize,
    /// Binary logarithm of the places for sums of slices.
    slots: usize,
    /// Bytes of shared memory, a block.
    shared: usize,
}

/// The kernels of a unit, on devices that have them and memory enough for them.
///
/// # Errors
/// When they cannot be had.
pub fn kernels(ctx: &Context, unit: &Unit, format: WeightFormat) -> Result<Option<Split>, CudaError> {
    let (device, need) = (&ctx.device, Need::of(format));
    if device.capability < 90 || clusters(need, 1, 8, 1, (device.processors, device.shared_limit)).is_none() {
        return Ok(None);
    }
    let get = |name| ctx.function(unit, name, device.shared_limit);
    Ok(Some(Split { teams: get("teams_8")?, split: get("split_8")?, need }))
}

/// The plan for matrices of `supers` superblocks a row in `groups` groups of eight tiles, on so many processors with so much shared memory a block.
/// Of one superblock a row there is one whenever there is one at all.
///
/// As many blocks to a processor as registers allow, and all of its memory for what is on its way; but fewer where there are not that many
/// blocks, as clusters are placed so that some processors are full while others are empty, which memory keeps them from.
fn clusters(
    need: Need,
    supers: usize,
    rows: usize,
    groups: usize,
    (processors, limit): (usize, usize),
) -> Option<Clusters> {
    let longest = supers.div_ceil(SLICES).max(1);
    let fit = |blocks: usize, least: usize| {
        // A processor keeps a kilobyte for each block, which is what its whole memory has above a block's limit.
        let room = ((limit + 1024) / blocks).checked_sub(1024)?;
        let fixed = |chunk: usize| chunk * need.x(rows) + 2 * LEFT + 16;
        let stages = |chunk: usize| room.saturating_sub(fixed(chunk)) / need.stage();
        let mut chunks = (1..=longest).map(|pieces| longest.div_ceil(pieces));
        let chunk = chunks.find(|c| stages(*c) >= least)?;
        let stages = stages(chunk).min(STAGES[1]);
        // Another block would not fit.
        let alone = (limit + 1024) / (blocks + 1);
        Some(Clusters { chunk, stages, shared: (fixed(chunk) + stages * need.stage()).max(alone) })
    };
    let most = (groups * SLICES).div_ceil(processors.max(1)).clamp(1, BLOCKS);
    (1..=most).rev().find_map(|blocks| fit(blocks, STAGES[0])).or_else(|| fit(1, 1))
}

/// The plan for teams, if all of x has room with at least two of them.
fn teams(need: Need, supers: usize, rows: usize, limit: usize) -> Option<Teams> {
    (2..=TEAMS).rev().find_map(|teams| {
        [2, 1].into_iter().find_map(|slots| {
            let fixed = supers * need.x(rows) + teams * ((LEFT + 16) << slots);
            let stages = limit.saturating_sub(fixed) / (teams * need.stage());
            let stages = stages.min(STAGES[1]);
            (stages >= STAGES[0]).then(|| Teams { teams, stages, slots, shared: fixed + stages * teams * need.stage() })
        })
    })
}

/// Up to three matrices of one format times up to eight rows. False, and nothing launched, where memory is too small for either way.
pub fn multiply(ctx: &Context, kernels: Split, x: &Prepared, rows: usize, inputs: usize, parts: &[Part]) -> bool {
    let tiles: usize = parts.iter().map(|p| p.outputs.div_ceil(TILE)).sum();
    let (supers, limit, processors) = (inputs.div_ceil(SUPER), ctx.device.shared_limit, ctx.device.processors);
    let (x, sums) = (x.x.address(), x.sums.address());
    if let Some(p) = teams(kernels.need, supers, rows, limit) {
        let shape = Shape { grid: [processors.min(tiles), 1, 1], block: p.teams * 32 * SLICES, shared: p.shared };
        let args = with_parts(parts, args![x, sums, supers, rows, p.stages, p.slots, tiles]);
        ctx.launch(kernels.teams, shape, &args);
        return true;
    }
    if let Some(p) = clusters(kernels.need, supers, rows, tiles.div_ceil(SLICES), (processors, limit)) {
        let groups = tiles.div_ceil(SLICES);
        let count = groups.min(ctx.clusters_at_once(kernels.split, SLICES, 32 * SLICES, p.shared));
        let shape = Shape { grid: [count * SLICES, 1, 1], block: 32 * SLICES, shared: p.shared };
        let args = with_parts(parts, args![x, sums, supers, rows, p.chunk, p.stages, groups]);
        ctx.launch(kernels.split, shape, &args);
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 232_448;
    const FOUR: Need = Need { weights: 2304, sums: 128 };

    #[test]
    fn every_format_fits_every_device() {
        // 99 KiB is what the smallest device with clusters gives a block.
        for limit in [99 << 10, LIMIT] {
            for (weights, sums) in [(2304, 128), (8192, 0), (4096 + 1024, 256), (512, 64)] {
                for (rows, supers) in (1..=8).flat_map(|rows| (1..400).map(move |supers| (rows, supers))) {
                    let need = Need { weights, sums };
                    let p = clusters(need, supers, rows, 1000, (132, limit)).expect("a plan");
                    let used = p.stages * SLICES * (weights + 8) + p.chunk * (rows * 512 + sums) + 2 * 4096 + 16;
                    assert!(used <= p.shared && p.shared <= limit, "{supers} {rows} {weights}: {p:?}");
                    assert!(p.chunk >= 1 && (1..=STAGES[1]).contains(&p.stages), "{supers} {rows} {weights}: {p:?}");
                    let Some(t) = teams(need, supers, rows, limit) else { continue };
                    let each = t.stages * SLICES * (weights + 8) + (4096 + 16) * (1 << t.slots);
                    assert_eq!(
                        t.shared,
                        t.teams * each + supers * (rows * 512 + sums),
                        "{supers} {rows} {weights}: {t:?}"
                    );
                    assert!(t.shared <= limit && t.stages >= 2, "{supers} {rows} {weights}: {t:?}");
                }
            }
        }
        assert!(teams(FOUR, 21, 8, LIMIT).is_some_and(|t| t.teams == TEAMS) && teams(FOUR, 84, 8, LIMIT).is_none());
    }

    #[test]
    fn few_blocks_are_spread() {
        // A processor of 228 KiB, of which each block takes 1 KiB besides.
        let room = |shared: usize| 233_472 / (shared + 1024);
        for (tiles, each) in [(336, 3), (8, 1), (131, 2), (132, 2), (264, 2), (396, 4), (4000, 3)] {
            let p = clusters(FOUR, 21, 1, usize::div_ceil(tiles, SLICES), (132, LIMIT)).expect("a plan");
            assert_eq!(room(p.shared), each.min(BLOCKS), "{tiles} tiles: {p:?}");
        }
    }
}
