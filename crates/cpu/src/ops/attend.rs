//! Attention over KV pages, one page (a block of 64 keys counted from position 0) at a time.
//!
//! Contract, per query row and head (order::attend_block, order::merge): in each block with visible keys, scores
//! `s_j = fma chain over d in order, times scale`; `m = max s_j`; `p_j = exp(s_j - m)`; `sum` over lanes `j % 16` and the
//! four groups of sixteen in order, then the tree; `w_d = fma chain over visible j in order`. Blocks are folded in order of
//! position: with the larger of the two maxima, both sides are rescaled by `exp(old - new)` and added. The result is
//! `w / sum`. Invisible keys are skipped, never added as zeros times something.
//!
//! Work is shared out by (rows, K/V head); a block stays in cache while all rows and query heads of the task use it.

use mlxcel_compute::order::KEY_BLOCK;
use mlxcel_compute::{Attend, Batch, KvSlot};

use crate::arch::{Isa, Kernel};
use crate::buffer::Shared;
use crate::kv::{Block, CpuKv};
use crate::lanes::{Lanes, exp};
use crate::pool::Pool;

/// Rows of one task.
const ROWS: usize = 8;

/// Runs attention of `q` `[rows, heads * head_dim]` into `out` of the same shape.
#[allow(clippy::too_many_arguments, reason = "the verb's own parameters plus the machine")]
pub fn run(pool: &Pool, isa: Isa, kv: &CpuKv, slot: KvSlot, batch: &Batch, q: &[f32], spec: Attend, out: &mut [f32]) {
    let kv_heads = kv.shape(slot).kv_heads;
    let mut tasks = Vec::new();
    for span in batch.spans() {
        for row in (span.first_row..span.first_row + span.len).step_by(ROWS) {
            let rows = (span.first_row + span.len - row).min(ROWS);
            tasks.extend((0..kv_heads).map(|head| (row, rows, head)));
        }
    }
    let out = Shared::new(out);
    let task = |i: usize| {
        let (row, rows, head) = tasks[i];
        isa.run(Task { kv, slot, batch, q, spec, out: &out, row, rows, head });
    };
    let keys: usize = batch.positions().iter().map(|p| *p as usize + 1).sum();
    if keys * spec.heads < 256 { (0..tasks.len()).for_each(task) } else { pool.run(tasks.len(), &task) }
}

struct Task<'a> {
    kv: &'a CpuKv,
    slot: KvSlot,
    batch: &'a Batch,
    q: &'a [f32],
    spec: Attend,
    out: &'a Shared<'a, f32>,
    row: usize,
    rows: usize,
    head: usize,
}

/// A partial result: maximum, sum, and weighted values in a slice beside it.
#[derive(Clone, Copy)]
struct Partial {
    max: f32,
    sum: f32,
}

/// Element type of the pages.
trait Element: Copy {
    fn load<L: Lanes>(v: &[Self; 16]) -> L;
    fn one(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn load<L: Lanes>(v: &[f32; 16]) -> L {
        L::load(v)
    }

    #[inline(always)]
    fn one(self) -> f32 {
        self
    }
}

impl Element for u16 {
    #[inline(always)]
    fn load<L: Lanes>(v: &[u16; 16]) -> L {
        const { assert!(cfg!(target_endian = "little"), "pages hold bf16 as little-endian bytes") };
        // SAFETY: sixteen halves are thirty-two bytes, which may stand at any address. (Copied one by one, they cost more than
        // all the arithmetic on them.)
        L::load_bf16(unsafe { &*std::ptr::from_ref(v).cast::<[u8; 32]>() })
    }

    #[inline(always)]
    fn one(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

impl Kernel for Task<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let shape = self.kv.shape(self.slot);
        let dim = shape.head_dim;
        let share = self.spec.heads / shape.kv_heads;
        let width = self.spec.heads * dim;
        let queries = self.rows * share;
        let mut state = vec![Partial { max: f32::NEG_INFINITY, sum: 0.0 }; queries];
        let mut sums = vec![0.0f32; queries * dim];
        let mut fresh = vec![0.0f32; dim];
        let positions = &self.batch.positions()[self.row..self.row + self.rows];
        let visible = |position: u32| {
            let position = position as usize;
            (self.spec.window.map_or(0, |w| (position + 1).saturating_sub(w)), position + 1)
        };
        let first = visible(positions[0]).0 / KEY_BLOCK;
        let last = positions[self.rows - 1] as usize / KEY_BLOCK;
        let table = self.batch.table(self.row, self.slot.group);
        for (block, page) in table.iter().enumerate().take(last + 1).skip(first) {
            let stored = self.kv.block(self.slot, *page, self.head);
            for (r, position) in positions.iter().enumerate() {
                let (from, to) = visible(*position);
                let from = from.saturating_sub(block * KEY_BLOCK);
                let to = to.saturating_sub(block * KEY_BLOCK).min(KEY_BLOCK);
                if from >= to {
                    continue;
                }
                for h in 0..share {
                    let i = r * share + h;
                    let q = &self.q[(self.row + r) * width + (self.head * share + h) * dim..][..dim];
                    let part = match stored {
                        Block::F32(b) => one_block::<L, f32>(b, q, from, to, self.spec.scale, &mut fresh),
                        Block::Bf16(b) => one_block::<L, u16>(b, q, from, to, self.spec.scale, &mut fresh),
                    };
                    state[i] = merge::<L>(state[i], &mut sums[i * dim..][..dim], part, &fresh);
                }
            }
        }
        for r in 0..self.rows {
            for h in 0..share {
                let i = r * share + h;
                // SAFETY: rows and K/V heads of a task are its own.
                let out = unsafe { self.out.part((self.row + r) * width + (self.head * share + h) * dim, dim) };
                let total = state[i].sum;
                out.iter_mut().zip(&sums[i * dim..][..dim]).for_each(|(o, w)| *o = w / total);
            }
        }
    }
}

/// Scores, softmax parts and weighted values of the keys `from..to` of one block.
#[inline(always)]
fn one_block<L: Lanes, T: Element>(
    block: &[T],
    q: &[f32],
    from: usize,
    to: usize,
    scale: f32,
    out: &mut [f32],
) -> Partial {
    const GROUPS: usize = KEY_BLOCK / 16;
    let dim = q.len();
    let (keys, values) = block.split_at(dim * KEY_BLOCK);
    // Lanes are keys; a lane's chain over d does not see its neighbours, so whole blocks are computed at once.
    let mut acc = [L::splat(0.0); GROUPS];
    for (q, keys) in q.iter().zip(keys.as_chunks::<KEY_BLOCK>().0) {
        let q = L::splat(*q);
        for (a, k) in acc.iter_mut().zip(keys.as_chunks::<16>().0) {
            *a = q.fma(T::load(k), *a);
        }
    }
    let mut scores = [0.0f32; KEY_BLOCK];
    let mut largest = L::splat(f32::NEG_INFINITY);
    for (a, s) in acc.iter().zip(scores.as_chunks_mut::<16>().0) {
        let scaled = a.mul(L::splat(scale));
        largest = largest.max(scaled);
        scaled.store(s);
    }
    let whole = from == 0 && to == KEY_BLOCK;
    // The largest is the same in any order; lanes find it sixteen times as fast where all keys count.
    let mut lanes = [0.0f32; 16];
    largest.store(&mut lanes);
    let among: &[f32] = if whole { &lanes } else { &scores[from..to] };
    let mut max = f32::NEG_INFINITY;
    for s in among {
        max = if max > *s { max } else { *s };
    }
    let mut total = L::splat(0.0);
    for (i, s) in scores.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let p = exp(L::load(s).sub(L::splat(max)));
        p.store(s);
        if !whole {
            for (j, s) in s.iter_mut().enumerate() {
                *s = if (from..to).contains(&(16 * i + j)) { *s } else { 0.0 };
            }
        }
        total = total.add(L::load(s));
    }
    weigh::<L, T>(&scores, values, dim, from, to, out);
    Partial { max, sum: total.sum() }
}

/// `out[d] = sum over j in from..to of p_j * v[j][d]`, a fused chain in order of j.
#[inline(always)]
fn weigh<L: Lanes, T: Element>(
    p: &[f32; KEY_BLOCK],
    values: &[T],
    dim: usize,
    from: usize,
    to: usize,
    out: &mut [f32],
) {
    let whole = dim / 16;
    let mut c = 0;
    while c < whole {
        // Four chains at once: one alone waits for its own multiply-add. Their number is a constant, or they lie in memory.
        c += match whole - c {
            1 => chains::<L, T, 1>(p, values, dim, from..to, c, out),
            2 => chains::<L, T, 2>(p, values, dim, from..to, c, out),
            3 => chains::<L, T, 3>(p, values, dim, from..to, c, out),
            _ => chains::<L, T, 4>(p, values, dim, from..to, c, out),
        };
    }
    for d in 16 * whole..dim {
        out[d] = (from..to).fold(0.0, |a, j| p[j].mul_add(values[j * dim + d].one(), a));
    }
}

/// Columns `16 c..16 (c + N)` of [`weigh`]; returns `N`.
#[inline(always)]
fn chains<L: Lanes, T: Element, const N: usize>(
    p: &[f32; KEY_BLOCK],
    values: &[T],
    dim: usize,
    keys: std::ops::Range<usize>,
    c: usize,
    out: &mut [f32],
) -> usize {
    let mut acc = [L::splat(0.0); N];
    for j in keys {
        let p = L::splat(p[j]);
        let row = &values[j * dim + 16 * c..][..16 * N];
        for (a, v) in acc.iter_mut().zip(row.as_chunks::<16>().0) {
            *a = p.fma(T::load(v), *a);
        }
    }
    for (a, o) in acc.iter().zip(out[16 * c..].as_chunks_mut::<16>().0) {
        a.store(o);
    }
    N
}

/// Folds the next block into what came before.
#[inline(always)]
fn merge<L: Lanes>(old: Partial, sums: &mut [f32], new: Partial, fresh: &[f32]) -> Partial {
    if old.max == f32::NEG_INFINITY && old.sum == 0.0 {
        sums.copy_from_slice(fresh);
        return new;
    }
    let max = if old.max > new.max { old.max } else { new.max };
    let (keep, take) = (mlxcel_compute::order::exp(old.max - max), mlxcel_compute::order::exp(new.max - max));
    let (keep_lanes, take_lanes) = (L::splat(keep), L::splat(take));
    let (whole, rest) = sums.as_chunks_mut::<16>();
    for (i, s) in whole.iter_mut().enumerate() {
        let fresh = L::load(fresh[16 * i..].first_chunk().expect("sixteen values"));
        L::load(s).fma(keep_lanes, fresh.mul(take_lanes)).store(s);
    }
    let at = fresh.len() - rest.len();
    for (s, f) in rest.iter_mut().zip(&fresh[at..]) {
        *s = s.mul_add(keep, f * take);
    }
    Partial { max, sum: old.sum.mul_add(keep, new.sum * take) }
}
