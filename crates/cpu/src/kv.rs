//! KV pages: f32 in f32 precision, bf16 (rounded once, when appended) in int8 precision.
//!
//! A page holds [`PAGE_LEN`] positions of every layer of its group; a page is one attention key block. Inside a layer's
//! part, per K/V head: keys transposed `[head_dim][PAGE_LEN]`, so that scores of neighbouring keys fill the lanes, then
//! values `[PAGE_LEN][head_dim]`, so that the weighted sum does.

use mlxcel_compute::{Batch, ComputeError, KvGroup, KvShape, KvSlot, order};

use crate::Precision;
use crate::arch::bf16_bits;
use crate::memory::prefer_huge;

/// Positions of a page.
pub const PAGE_LEN: usize = order::KEY_BLOCK;

/// The memory of one group's pages.
enum Pages {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

struct Group {
    pages: Pages,
    page_values: usize,
    layers: Vec<(KvShape, usize)>, // shape, offset inside a page in values
}

/// The KV pages of all groups.
pub struct CpuKv {
    groups: Vec<Group>,
}

/// K and V of one page, layer and head, borrowed as stored.
pub enum Block<'a> {
    /// Exact.
    F32(&'a [f32]),
    /// Rounded.
    Bf16(&'a [u16]),
}

fn layer_values(shape: &KvShape) -> usize {
    2 * shape.kv_heads * shape.head_dim * PAGE_LEN
}

fn page_values(group: &KvGroup) -> usize {
    group.layers.iter().map(layer_values).sum()
}

/// Bytes of one page of a group.
pub fn page_bytes(group: &KvGroup, precision: Precision) -> usize {
    page_values(group) * if precision == Precision::F32 { 4 } else { 2 }
}

fn reserve<T: Clone + Default>(len: usize, needed: usize) -> Result<Vec<T>, ComputeError> {
    let mut memory: Vec<T> = Vec::new();
    memory.try_reserve_exact(len).map_err(|_| ComputeError::KvMemory { needed })?;
    // Zeroed pages come from the system untouched: memory is used only as positions are.
    drop(memory);
    let mut memory = vec![T::default(); len];
    prefer_huge(&mut memory);
    Ok(memory)
}

impl CpuKv {
    /// Reserves the pages.
    pub fn new(layout: &[KvGroup], pages: &[usize], precision: Precision) -> Result<Self, ComputeError> {
        let needed = layout
            .iter()
            .zip(pages)
            .map(|(g, p)| page_bytes(g, precision).saturating_mul(*p))
            .fold(0, usize::saturating_add);
        let mut groups = Vec::new();
        for (group, pages) in layout.iter().zip(pages) {
            let mut offset = 0;
            let layers = group
                .layers
                .iter()
                .map(|shape| {
                    let at = offset;
                    offset += layer_values(shape);
                    (*shape, at)
                })
                .collect();
            let values = page_values(group);
            let len = values.checked_mul(*pages).ok_or(ComputeError::KvMemory { needed })?;
            let pages = match precision {
                Precision::F32 => Pages::F32(reserve(len, needed)?),
                Precision::Int8 => Pages::Bf16(reserve(len, needed)?),
            };
            groups.push(Group { pages, page_values: values, layers });
        }
        Ok(CpuKv { groups })
    }

    /// K/V shape of a layer.
    pub fn shape(&self, slot: KvSlot) -> KvShape {
        self.groups[slot.group].layers[slot.layer].0
    }

    /// One page of one layer's head: keys `[head_dim][PAGE_LEN]`, then values `[PAGE_LEN][head_dim]`.
    #[inline(always)]
    pub fn block(&self, slot: KvSlot, page: u32, head: usize) -> Block<'_> {
        let group = &self.groups[slot.group];
        let (shape, offset) = group.layers[slot.layer];
        let size = 2 * shape.head_dim * PAGE_LEN;
        let at = page as usize * group.page_values + offset + head * size;
        match &group.pages {
            Pages::F32(p) => Block::F32(&p[at..at + size]),
            Pages::Bf16(p) => Block::Bf16(&p[at..at + size]),
        }
    }

    /// Stores the rows of `k` and `v` `[rows, kv_heads * head_dim]` at their positions.
    pub fn append(&mut self, slot: KvSlot, batch: &Batch, k: &[f32], v: &[f32]) {
        let group = &mut self.groups[slot.group];
        let (shape, offset) = group.layers[slot.layer];
        let dim = shape.head_dim;
        let width = shape.kv_heads * dim;
        for (row, position) in batch.positions().iter().enumerate() {
            let position = *position as usize;
            let page = batch.table(row, slot.group)[position / PAGE_LEN] as usize;
            let inside = position % PAGE_LEN;
            for head in 0..shape.kv_heads {
                let at = page * group.page_values + offset + head * 2 * dim * PAGE_LEN;
                let (k, v) = (&k[row * width + head * dim..][..dim], &v[row * width + head * dim..][..dim]);
                match &mut group.pages {
                    Pages::F32(p) => store(&mut p[at..][..2 * dim * PAGE_LEN], inside, k, v, |x| x),
                    Pages::Bf16(p) => store(&mut p[at..][..2 * dim * PAGE_LEN], inside, k, v, bf16_bits),
                }
            }
        }
    }
}

fn store<T: Copy>(block: &mut [T], inside: usize, k: &[f32], v: &[f32], cast: impl Fn(f32) -> T) {
    let (keys, values) = block.split_at_mut(k.len() * PAGE_LEN);
    for (d, k) in k.iter().enumerate() {
        keys[d * PAGE_LEN + inside] = cast(*k);
    }
    values[inside * v.len()..][..v.len()].iter_mut().zip(v).for_each(|(o, v)| *o = cast(*v));
}
