//! A small paged cache around a backend's KV pages: sequences that grow, roll back, lose pages and give them back.

use super::rng::Rng;
use super::{Violation, filled, stale};
use crate::{Attend, Backend, Batch, KvGroup, KvSlot, NO_PAGE, Wanted};

/// The rows of one sequence, as a layer would compute them.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    pub q: Vec<f32>, // (len, heads * head_dim)
    pub k: Vec<f32>, // (len, kv_heads * head_dim)
    pub v: Vec<f32>, // (len, kv_heads * head_dim)
}

/// One span of a step: rows `start..start + len` of a tape.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub sequence: usize,
    pub start: usize,
    pub len: usize,
    pub tape: &'a Tape,
}

/// The layer under test and how it attends.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub layout: Vec<KvGroup>,
    pub slot: KvSlot,
    pub spec: Attend,
}

impl Layer {
    /// Values of a query row.
    pub fn q_width(&self) -> usize {
        self.spec.heads * self.layout[self.slot.group].layers[self.slot.layer].head_dim
    }

    /// Values of a key or value row.
    pub fn kv_width(&self) -> usize {
        let shape = self.layout[self.slot.group].layers[self.slot.layer];
        shape.kv_heads * shape.head_dim
    }
}

/// Pages, page tables and the layer.
pub(super) struct Cache<'b, B: Backend> {
    b: &'b B,
    layer: &'b Layer,
    kv: B::Kv,
    free: Vec<Vec<u32>>,        // [group], taken from the end
    tables: Vec<Vec<Vec<u32>>>, // [sequence][group][page index]
    nan: Tape,
}

impl<'b, B: Backend> Cache<'b, B> {
    /// A cache of so many positions in whole pages, in random order, each page filled with NaN once.
    pub fn new(b: &'b B, layer: &'b Layer, positions: usize, rng: &mut Rng) -> Result<Self, Violation> {
        let pages = positions.div_ceil(b.page_len()) + 3;
        let kv = b
            .kv_new(&layer.layout, &vec![pages; layer.layout.len()])
            .map_err(|e| Violation::new("attend", format!("kv_new: {e}")))?;
        let mut free: Vec<Vec<u32>> = layer.layout.iter().map(|_| (0..pages as u32).collect()).collect();
        free.iter_mut().for_each(|f| rng.shuffle(f));
        let rows = |width: usize| vec![f32::NAN; pages * b.page_len() * width];
        let nan = Tape { q: rows(layer.q_width()), k: rows(layer.kv_width()), v: rows(layer.kv_width()) };
        let mut cache = Cache { b, layer, kv, free, tables: Vec::new(), nan };
        cache.poison((0..pages as u32).collect());
        Ok(cache)
    }

    /// Appends and attends in one step, as a forward pass does; the outputs of all rows, part after part.
    pub fn step(&mut self, parts: &[Part<'_>]) -> Vec<f32> {
        let batch = self.batch(parts);
        self.append(&batch, parts);
        self.attend(&batch, parts)
    }

    /// Stores the rows without looking at them.
    pub fn append_only(&mut self, part: Part<'_>) {
        let batch = self.batch(&[part]);
        self.append(&batch, &[part]);
    }

    /// Attends from rows that were stored before, as a layer that shares another's cache does.
    pub fn attend_only(&mut self, part: Part<'_>) -> Vec<f32> {
        let batch = self.batch(&[part]);
        self.attend(&batch, &[part])
    }

    fn append(&mut self, batch: &Batch, parts: &[Part<'_>]) {
        let width = self.layer.kv_width();
        let k = filled(self.b, batch.rows(), width, &rows_of(parts, width, |t| &t.k));
        let v = filled(self.b, batch.rows(), width, &rows_of(parts, width, |t| &t.v));
        self.b.kv_append(&mut self.kv, self.layer.slot, batch, &k, &v);
    }

    fn attend(&mut self, batch: &Batch, parts: &[Part<'_>]) -> Vec<f32> {
        let width = self.layer.q_width();
        let q = filled(self.b, batch.rows(), width, &rows_of(parts, width, |t| &t.q));
        let mut out = stale(self.b, batch.rows(), width);
        self.b.attend(&self.kv, self.layer.slot, batch, &q, self.layer.spec, &mut out);
        self.b.read(&out)
    }

    fn batch(&mut self, parts: &[Part<'_>]) -> Batch {
        let mut batch = Batch::new();
        for part in parts {
            self.reserve(part.sequence, part.start + part.len);
            let tables: Vec<&[u32]> = self.tables[part.sequence].iter().map(Vec::as_slice).collect();
            batch.push(part.sequence, part.start, &vec![0; part.len], &tables, Wanted::All);
        }
        batch
    }

    fn reserve(&mut self, sequence: usize, positions: usize) {
        let groups = self.layer.layout.len();
        if self.tables.len() <= sequence {
            self.tables.resize(sequence + 1, vec![Vec::new(); groups]);
        }
        for (table, free) in self.tables[sequence].iter_mut().zip(&mut self.free) {
            while table.len() * self.b.page_len() < positions {
                table.push(free.pop().expect("the case reserved too few pages"));
            }
        }
    }

    /// Overwrites the positions `start..start + len` with NaN, as a rejected block may leave them.
    pub fn spoil(&mut self, sequence: usize, start: usize, len: usize) {
        let nan = std::mem::replace(&mut self.nan, Tape { q: Vec::new(), k: Vec::new(), v: Vec::new() });
        self.append_only(Part { sequence, start, len, tape: &nan });
        self.nan = nan;
    }

    /// Gives a sequence's pages back, full of NaN, to be used again in another order.
    pub fn release(&mut self, sequence: usize, rng: &mut Rng) {
        let mut tables = vec![Vec::new(); self.layer.layout.len()];
        std::mem::swap(&mut tables, &mut self.tables[sequence]);
        for (table, free) in tables.iter_mut().zip(&mut self.free) {
            table.retain(|page| *page != NO_PAGE);
            free.extend(&*table);
            rng.shuffle(free);
        }
        self.poison(tables.swap_remove(self.layer.slot.group));
    }

    /// Frees the pages of the layer's group that lie wholly before a position, and fills them with NaN.
    pub fn drop_before(&mut self, sequence: usize, position: usize) {
        let (group, page_len) = (self.layer.slot.group, self.b.page_len());
        let table = &mut self.tables[sequence][group];
        let dropped = table.iter_mut().take(position / page_len).map(|page| std::mem::replace(page, NO_PAGE));
        let dropped: Vec<u32> = dropped.filter(|page| *page != NO_PAGE).collect();
        self.free[group].extend(&dropped);
        self.poison(dropped);
    }

    /// Lets a passing sequence write NaN to free pages of the layer's group.
    fn poison(&mut self, pages: Vec<u32>) {
        let group = self.layer.slot.group;
        if pages.is_empty() {
            return;
        }
        let mut tables = vec![vec![NO_PAGE; pages.len()]; self.layer.layout.len()];
        let width = self.layer.kv_width();
        let rows = pages.len() * self.b.page_len();
        tables[group] = pages;
        let mut batch = Batch::new();
        let refs: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
        batch.push(usize::MAX, 0, &vec![0; rows], &refs, Wanted::None);
        let nan = filled(self.b, rows, width, &self.nan.k[..rows * width]);
        self.b.kv_append(&mut self.kv, self.layer.slot, &batch, &nan, &nan);
    }
}

fn rows_of(parts: &[Part<'_>], width: usize, field: fn(&Tape) -> &Vec<f32>) -> Vec<f32> {
    parts.iter().flat_map(|p| field(p.tape)[p.start * width..][..p.len * width].iter().copied()).collect()
}
