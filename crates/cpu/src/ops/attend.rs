//! Attention over KV pages, one page (a block of 64 keys counted from position 0) at a time.
//!
//! Contract, per query row and head (order::attend_block, order::merge): in each block with visible keys, scores
//! `s_j = fma chain over d in order, times scale`; `m = max s_j`; `p_j = exp(s_j - m)`; `sum` over lanes `j % 16` and the
//! four groups of sixteen in order, then the tree; `w_d = fma chain over visible j in order`. Blocks are folded in order of
//! position: with the larger of the two maxima, both sides are rescaled by `exp(old - new)` and added. The result is
//! `w / sum`. Invisible keys are skipped, never added as zeros times something.
//!
//! Work is shared out by (rows, K/V head); a block stays in cache while all rows and query heads of the task use it. Where that
//! leaves threads idle, blocks are computed apart and folded afterwards, which gives the same bits.

mod block;

use std::ops::Range;
use std::sync::Arc;

use mlxcel_compute::order::KEY_BLOCK;
use mlxcel_compute::{Attend, Batch, KvSlot};

use self::block::{NOTHING, Partial, Query, attend, merge};
use crate::arch::{Isa, Kernel};
use crate::buffer::{Arena, CpuBuffer, Shared};
use crate::kv::{Block, CpuKv};
use crate::lanes::Lanes;
use crate::pool::Pool;

/// Rows of one task.
const ROWS: usize = 8;

/// Blocks a thread must be spared for a second pass to pay.
const WORTH: usize = 6;

/// Runs attention of `q` `[rows, heads * head_dim]` into `out` of the same shape.
#[allow(clippy::too_many_arguments, reason = "the verb's own parameters plus the machine")]
pub fn run(
    pool: &Pool,
    isa: Isa,
    arena: &Arc<Arena>,
    kv: &CpuKv,
    slot: KvSlot,
    batch: &Batch,
    q: &[f32],
    spec: Attend,
    out: &mut [f32],
) {
    let kv_heads = kv.shape(slot).kv_heads;
    let all = Call { kv, slot, batch, q, spec, out: &Shared::new(out) };
    let mut tasks = Vec::new();
    for span in batch.spans() {
        for row in (span.first_row..span.first_row + span.len).step_by(ROWS) {
            let rows = (span.first_row + span.len - row).min(ROWS);
            tasks.extend((0..kv_heads).map(|head| Task { row, rows, head }));
        }
    }
    let keys: usize = batch.positions().iter().map(|p| *p as usize + 1).sum();
    if keys * spec.heads < 256 || pool.threads() == 1 {
        tasks.iter().for_each(|task| isa.run(Whole { all: &all, task: *task }));
        return;
    }
    let blocks: Vec<Range<usize>> = tasks.iter().map(|task| all.blocks(*task)).collect();
    let total: usize = blocks.iter().map(Range::len).sum();
    let longest = blocks.iter().map(Range::len).max().unwrap_or(0);
    let (threads, alone) = (pool.threads(), tasks.len().div_ceil(pool.threads()) * longest);
    if alone < total.div_ceil(threads) + WORTH {
        pool.run(tasks.len(), &|i| isa.run(Whole { all: &all, task: tasks[i] }));
        return;
    }
    apart(pool, isa, arena, &all, &tasks, &blocks, total.div_ceil(4 * threads).max(2));
}

/// Computes blocks apart, `piece` of a task at a time, and folds them afterwards.
fn apart(
    pool: &Pool,
    isa: Isa,
    arena: &Arc<Arena>,
    all: &Call<'_>,
    tasks: &[Task],
    blocks: &[Range<usize>],
    piece: usize,
) {
    let (mut pieces, mut starts, mut size) = (Vec::new(), Vec::new(), 0);
    for (i, (task, blocks)) in tasks.iter().zip(blocks).enumerate() {
        starts.push(size);
        size += blocks.len() * all.block_values(*task);
        pieces.extend(blocks.clone().step_by(piece).map(|from| (i, from..(from + piece).min(blocks.end))));
    }
    // Arbitrary contents: only what was written is folded.
    let mut partials = CpuBuffer::new(arena, 1, size);
    let shared = Shared::new(partials.data_mut());
    pool.run(pieces.len(), &|p| {
        let (i, range) = &pieces[p];
        let each = all.block_values(tasks[*i]);
        let at = starts[*i] + (range.start - blocks[*i].start) * each;
        // SAFETY: each block of a task lies in one piece.
        let out = unsafe { shared.part(at, range.len() * each) };
        isa.run(Piece { all, task: tasks[*i], blocks: range.clone(), out });
    });
    let folds = |i: usize| {
        let own = &partials.data()[starts[i]..][..blocks[i].len() * all.block_values(tasks[i])];
        isa.run(Fold { all, task: tasks[i], blocks: blocks[i].clone(), partials: own });
    };
    pool.run(tasks.len(), &folds);
}

/// What all tasks share.
struct Call<'a> {
    kv: &'a CpuKv,
    slot: KvSlot,
    batch: &'a Batch,
    q: &'a [f32],
    spec: Attend,
    out: &'a Shared<'a, f32>,
}

/// Rows of one sequence and a K/V head.
#[derive(Clone, Copy)]
struct Task {
    row: usize,
    rows: usize,
    head: usize,
}

impl Call<'_> {
    fn dim(&self) -> usize {
        self.kv.shape(self.slot).head_dim
    }

    /// Query heads of a K/V head.
    fn share(&self) -> usize {
        self.spec.heads / self.kv.shape(self.slot).kv_heads
    }

    /// Floats of a block's partial results: the weighted values of all queries, then their maxima and sums.
    fn block_values(&self, task: Task) -> usize {
        task.rows * self.share() * (self.dim() + 2)
    }

    /// Keys that a row sees.
    #[inline(always)]
    fn visible(&self, row: usize) -> Range<usize> {
        let position = self.batch.positions()[row] as usize;
        self.spec.window.map_or(0, |w| (position + 1).saturating_sub(w))..position + 1
    }

    /// Blocks that any row of the task sees.
    fn blocks(&self, task: Task) -> Range<usize> {
        let last = self.visible(task.row + task.rows - 1).end - 1;
        self.visible(task.row).start / KEY_BLOCK..last / KEY_BLOCK + 1
    }

    /// Values of a query head or of a head of the result, inside all rows: `[rows, heads * head_dim]`.
    #[inline(always)]
    fn head(&self, task: Task, i: usize) -> usize {
        let share = self.share();
        let head = task.head * share + i % share;
        ((task.row + i / share) * self.spec.heads + head) * self.dim()
    }

    /// The queries of a task that see something of a block, and which they are.
    #[inline(always)]
    fn queries<'q>(&'q self, task: Task, block: usize, queries: &mut Vec<Query<'q>>, who: &mut Vec<usize>) {
        queries.clear();
        who.clear();
        let share = self.share();
        for r in 0..task.rows {
            let visible = self.visible(task.row + r);
            let from = visible.start.saturating_sub(block * KEY_BLOCK);
            let to = visible.end.saturating_sub(block * KEY_BLOCK).min(KEY_BLOCK);
            if from >= to {
                continue;
            }
            for i in r * share..(r + 1) * share {
                queries.push(Query { q: &self.q[self.head(task, i)..][..self.dim()], from, to });
                who.push(i);
            }
        }
    }

    /// Attention of queries to a block.
    #[inline(always)]
    fn block<L: Lanes>(&self, task: Task, block: usize, queries: &[Query<'_>], parts: &mut [Partial], out: &mut [f32]) {
        let page = self.batch.table(task.row, self.slot.group)[block];
        match self.kv.block(self.slot, page, task.head) {
            Block::F32(stored) => attend::<L, f32>(stored, queries, self.spec.scale, parts, out),
            Block::Bf16(stored) => attend::<L, u16>(stored, queries, self.spec.scale, parts, out),
        }
    }

    /// Writes the results of a task.
    #[inline(always)]
    fn finish(&self, task: Task, state: &[Partial], sums: &[f32]) {
        let dim = self.dim();
        for (i, (state, sums)) in state.iter().zip(sums.chunks_exact(dim)).enumerate() {
            // SAFETY: rows and K/V heads of a task are its own.
            let out = unsafe { self.out.part(self.head(task, i), dim) };
            for (o, w) in out.iter_mut().zip(sums) {
                *o = w / state.sum;
            }
        }
    }
}

/// A task from its first block to its last.
struct Whole<'a> {
    all: &'a Call<'a>,
    task: Task,
}

impl Kernel for Whole<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Whole { all, task } = self;
        let (dim, count) = (all.dim(), task.rows * all.share());
        let (mut state, mut parts) = (vec![NOTHING; count], vec![NOTHING; count]);
        let mut memory = vec![0.0f32; 2 * count * dim];
        let (sums, fresh) = memory.split_at_mut(count * dim);
        let (mut queries, mut who) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for block in all.blocks(task) {
            all.queries(task, block, &mut queries, &mut who);
            all.block::<L>(task, block, &queries, &mut parts, fresh);
            for (k, i) in who.iter().enumerate() {
                let sums = &mut sums[i * dim..][..dim];
                state[*i] = merge::<L>(state[*i], sums, parts[k], &fresh[k * dim..][..dim]);
            }
        }
        all.finish(task, &state, sums);
    }
}

/// Some blocks of a task, kept apart.
struct Piece<'a> {
    all: &'a Call<'a>,
    task: Task,
    blocks: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for Piece<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Piece { all, task, blocks, out } = self;
        let count = task.rows * all.share();
        let mut parts = vec![NOTHING; count];
        let (mut queries, mut who) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (block, out) in blocks.zip(out.chunks_exact_mut(all.block_values(task))) {
            let (values, numbers) = out.split_at_mut(count * all.dim());
            all.queries(task, block, &mut queries, &mut who);
            all.block::<L>(task, block, &queries, &mut parts, values);
            for (part, numbers) in parts.iter().zip(numbers.chunks_exact_mut(2)) {
                (numbers[0], numbers[1]) = (part.max, part.sum);
            }
        }
    }
}

/// Folds the blocks of a task.
struct Fold<'a> {
    all: &'a Call<'a>,
    task: Task,
    blocks: Range<usize>,
    partials: &'a [f32],
}

impl Kernel for Fold<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Fold { all, task, blocks, partials } = self;
        let (dim, count) = (all.dim(), task.rows * all.share());
        let mut state = vec![NOTHING; count];
        let mut sums = vec![0.0f32; count * dim];
        let (mut queries, mut who) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (block, own) in blocks.zip(partials.chunks_exact(all.block_values(task))) {
            let (values, numbers) = own.split_at(count * dim);
            all.queries(task, block, &mut queries, &mut who);
            for (k, i) in who.iter().enumerate() {
                let part = Partial { max: numbers[2 * k], sum: numbers[2 * k + 1] };
                state[*i] = merge::<L>(state[*i], &mut sums[i * dim..][..dim], part, &values[k * dim..][..dim]);
            }
        }
        all.finish(task, &state, &sums);
    }
}
