//! Attention over paged keys and values (`attend.cu`).

use bytemuck::NoUninit;
use mlxcel_compute::{Attend, Batch, KvSlot};

use crate::args;
use crate::buffer::CudaBuffer;
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::kv::{CudaKv, PAGE_LEN};
use crate::module::{ATTEND, Function, Unit};
use crate::ops::fuse::{self, Places};

/// Keys of a block, counted from position 0.
const KEY_BLOCK: usize = 256;
/// Queries of a tile.
const QUERIES: usize = 16;
/// Threads that fold the partial results of a query.
const FOLDERS: usize = 128;
/// Rows up to which every key block is a block of threads of its own. Either way gives the same bits.
const FEW_ROWS: usize = 32;
/// Blocks of threads for each processor up to which they are those with many loads on their way, as there is room for that many of them. Either kind
/// gives the same bits.
const ROOM_OF_FEW: usize = 2;
/// Key blocks of a tile up to which the last block of threads folds them. Either way gives the same bits.
const FOLDED: u32 = 16;
/// Values of a tile up to which it does, two a thread: of more, every query has a block of threads that folds it. Either way gives the same bits.
const FOLDED_VALUES: usize = 512;
/// Zeros of a [`CudaKv`] that attention counts in: one for each tile and K/V head.
pub const TURNS: usize = 1 << 14;

/// The kernels of `attend.cu` for a head width.
#[derive(Clone, Copy)]
pub struct AttendKernels {
    attend: Function,
    many: Function,
    tiles: Function,
    fold: Function,
    append: Function,
    shared: usize,
}

impl AttendKernels {
    /// Compiles them.
    ///
    /// # Errors
    /// When they cannot be compiled or loaded; a head width that is no multiple of 8, or above 512.
    pub fn new(ctx: &Context, head_dim: usize) -> Result<Self, CudaError> {
        if head_dim == 0 || head_dim > 512 || !head_dim.is_multiple_of(8) {
            let log = format!("a head width that is a multiple of 8 up to 512 expected, {head_dim} found");
            return Err(CudaError::Compile { kernel: "attend.cu".into(), arch: ctx.device.arch(), log });
        }
        let unit = Unit::new(ATTEND, &[("HEAD_DIM", head_dim as i64)]);
        let shared = shared_bytes(head_dim);
        Ok(AttendKernels {
            attend: ctx.function(&unit, "attend", shared)?,
            many: ctx.function(&unit, "attend_many", shared)?,
            tiles: ctx.function(&unit, "attend_tiles", shared)?,
            fold: ctx.function(&unit, "attend_fold", 0)?,
            append: ctx.function(&unit, "append", 0)?,
            shared,
        })
    }
}

/// Size of the kernel's `Work`.
fn shared_bytes(head_dim: usize) -> usize {
    let operands = head_dim.div_ceil(32) * 2 * 2 * 32 * 16 + KEY_BLOCK / 16 * 2 * 32 * 16;
    let words = QUERIES * (2 * (KEY_BLOCK / 32) + 6) + KEY_BLOCK / PAGE_LEN + 2 * QUERIES;
    operands + words * 4
}

/// The kernel's `Tile`: queries `from..from + count` of a span, counted over its rows and the query heads of a K/V head.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, NoUninit)]
struct Tile {
    first_row: u32,
    from: u32,
    count: u32,
    table: u32,
    first_block: u32,
    blocks: u32,
    partials: u32,
    pages: u32,
}

/// What is to be done: tiles, the page tables they refer to, and the key blocks of all of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    tiles: Vec<Tile>,
    tables: Vec<u32>,
    blocks: Vec<[u32; 2]>,
}

fn plan(batch: &Batch, group: usize, share: usize, window: Option<usize>) -> Plan {
    let mut plan = Plan::default();
    for span in batch.spans().iter().filter(|s| s.len > 0) {
        let table = batch.table(span.first_row, group);
        let table_at = plan.tables.len() as u32;
        plan.tables.extend_from_slice(table);
        for from in (0..span.len * share).step_by(QUERIES) {
            let count = (span.len * share - from).min(QUERIES);
            let rows = span.first_row + from / share..=span.first_row + (from + count - 1) / share;
            let positions = &batch.positions()[rows];
            let low = positions.iter().map(|p| window.map_or(0, |w| (*p as usize + 1).saturating_sub(w))).min();
            let high = positions.iter().max();
            let (low, high) = (low.unwrap_or(0), high.map_or(0, |p| *p as usize));
            let (first, last) = (low / KEY_BLOCK, high / KEY_BLOCK);
            let tile = plan.tiles.len() as u32;
            plan.tiles.push(Tile {
                first_row: span.first_row as u32,
                from: from as u32,
                count: count as u32,
                table: table_at,
                first_block: first as u32,
                blocks: (last - first + 1) as u32,
                partials: plan.blocks.len() as u32,
                pages: table.len() as u32,
            });
            plan.blocks.extend((0..=last - first).map(|nth| [tile, nth as u32]));
        }
    }
    plan
}

/// Causal attention of `q` `[rows, heads * head_dim]`.
pub fn attend(ctx: &Context, kv: &CudaKv, slot: KvSlot, batch: &Batch, q: &CudaBuffer, spec: Attend, out: &CudaBuffer) {
    let layer = &kv.groups[slot.group][slot.layer];
    let (kv_heads, head_dim) = (layer.shape.kv_heads, layer.shape.head_dim);
    let plan = plan(batch, slot.group, spec.heads / kv_heads, spec.window);
    if plan.tiles.is_empty() {
        return;
    }
    let kernels = &layer.kernels;
    let few = batch.rows() <= FEW_ROWS;
    let partials = few.then(|| ctx.block(plan.blocks.len() * kv_heads * QUERIES * (head_dim + 2) * 4));
    let fed = size_of_val(batch.positions()) + plan.tables.len() * 4 + plan.tiles.len() * size_of::<Tile>();
    let mut op = ctx.operation(fed + plan.blocks.len() * 8);
    let (positions, tables) = (op.feed(batch.positions()), op.feed(&plan.tables));
    let tiles = op.feed(&plan.tiles);
    let window = spec.window.unwrap_or(0);
    let shape = |count| Shape { grid: [count, kv_heads, 1], block: KEY_BLOCK, shared: kernels.shared };
    let (q, pages) = (q.address(), [layer.keys, layer.values, layer.flags]);
    let Some(partials) = partials else {
        let given = [q, pages[0], pages[1], pages[2], positions, tables, tiles, out.address()];
        let all = [&given[..], &args![spec.heads, kv_heads, window, spec.scale]].concat();
        op.launch(kernels.tiles, shape(plan.tiles.len()), &all);
        return;
    };
    let items = op.feed(&plan.blocks);
    let short = |t: &Tile| t.blocks <= FOLDED && t.count as usize * head_dim <= FOLDED_VALUES;
    let folds = op.joins() && plan.tiles.iter().all(short) && plan.tiles.len() * kv_heads <= TURNS;
    let many = plan.blocks.len() * kv_heads > ROOM_OF_FEW * ctx.device.processors;
    fuse::attend(
        &mut op,
        if many { kernels.many } else { kernels.attend },
        shape(plan.blocks.len()),
        &args![
            q,
            pages[0],
            pages[1],
            pages[2],
            positions,
            tables,
            tiles,
            items,
            partials.address(),
            out.address(),
            spec.heads,
            kv_heads,
            window,
            spec.scale,
            if folds { kv.turns() } else { 0 }
        ],
        folds,
        head_dim,
    );
    if !folds {
        let queries = plan.tiles.iter().map(|t| t.count as usize).max().unwrap_or(0);
        fuse::fold(
            &mut op,
            kernels.fold,
            Shape { grid: [plan.tiles.len(), kv_heads, queries], block: FOLDERS, shared: 0 },
            &args![positions, tiles, partials.address(), out.address(), spec.heads, kv_heads, window],
            head_dim,
        );
    }
}

/// Stores K and V `[rows, kv_heads * head_dim]` at the rows' positions.
pub fn append(ctx: &Context, kv: &CudaKv, slot: KvSlot, batch: &Batch, k: &CudaBuffer, v: &CudaBuffer) {
    let layer = &kv.groups[slot.group][slot.layer];
    let place = |row: usize| {
        let position = batch.positions()[row] as usize;
        batch.table(row, slot.group)[position / PAGE_LEN] * PAGE_LEN as u32 + (position % PAGE_LEN) as u32
    };
    let slots: Vec<u32> = (0..k.rows).map(place).collect();
    let mut op = ctx.operation(size_of_val(slots.as_slice()));
    let slots = op.feed(&slots);
    let (heads, dim) = (layer.shape.kv_heads, layer.shape.head_dim);
    let places = Places { keys: layer.keys, values: layer.values, flags: layer.flags, slots };
    if !fuse::append(&mut op, [k.address(), v.address()], places, k.rows, (heads, dim)) {
        op.launch(
            layer.kernels.append,
            Shape::new(k.rows, heads, 128),
            &args![k.address(), v.address(), slots, layer.keys, layer.values, layer.flags],
        );
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_compute::Wanted;

    use super::*;

    #[test]
    fn tiles_cover_every_query_and_every_block_it_sees() {
        let mut batch = Batch::new();
        let pages: Vec<u32> = (0..40).collect();
        batch.push(0, 700, &[0; 5], &[&pages], Wanted::All);
        batch.push(1, 0, &[0; 1], &[&pages[..1]], Wanted::All);
        let plan = plan(&batch, 0, 3, Some(300));
        let counts: Vec<_> = plan.tiles.iter().map(|t| (t.first_row, t.from, t.count)).collect();
        assert_eq!(counts, [(0, 0, 15), (5, 0, 3)]);
        // Rows 700..=704 see 401 on: blocks 1 and 2.
        assert_eq!((plan.tiles[0].first_block, plan.tiles[0].blocks), (1, 2));
        assert_eq!((plan.tiles[1].first_block, plan.tiles[1].blocks, plan.tiles[1].table), (0, 1, 40));
        assert_eq!(plan.blocks, [[0, 0], [0, 1], [1, 0]]);
        batch.clear();
        batch.push(0, 0, &[0; 11], &[&pages], Wanted::All);
        let counts: Vec<_> = super::plan(&batch, 0, 3, None).tiles.iter().map(|t| (t.from, t.count)).collect();
        assert_eq!(counts, [(0, 16), (16, 16), (32, 1)]);
    }

    #[test]
    fn shared_memory_fits_every_device() {
        for head_dim in (8..=512).step_by(8) {
            assert!(shared_bytes(head_dim) <= 99 << 10, "{head_dim}: {}", shared_bytes(head_dim));
        }
    }
}
