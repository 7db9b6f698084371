//! Memory of recurrent states: two places a slot, and the record of the rows that can be taken back.
//!
//! A head's matrix lies in strips of sixteen columns, `[strip][key_dim][16]`: the columns of the delta rule do not depend on
//! each other, so that a strip stays in the first-level cache while the rows of a span pass over it. Nothing is read from the
//! columns that fill up a last, partial strip.

use std::ops::Range;

use mlxcel_compute::recurrent::{Pass, Slots};
use mlxcel_compute::{Batch, ComputeError, DeltaShape, StateLayout};

/// Columns of a strip.
pub const STRIP: usize = 16;

/// One layer's memory, for all slots.
pub struct LayerState {
    /// Its sizes.
    pub shape: DeltaShape,
    /// Rows before the next one, `[slots][2][taps - 1][channels]`.
    pub windows: Vec<f32>,
    /// Matrices, `[slots][2][value_heads][strips][key_dim][16]`.
    pub matrices: Vec<f32>,
    /// Rows on record as the convolution takes them, `[slots][record][channels]`.
    pub inputs: Vec<f32>,
    /// Rows on record as the delta rule takes them, `[slots][record][record_width]`.
    pub updates: Vec<f32>,
}

/// Values of a head's matrix as it lies in memory.
pub fn head_values(shape: &DeltaShape) -> usize {
    shape.value_dim.div_ceil(STRIP) * STRIP * shape.key_dim
}

/// Values of a row on record for the delta rule: k, v, decay, beta of all heads.
pub fn record_width(shape: &DeltaShape) -> usize {
    shape.key_width() + shape.value_width() + 2 * shape.value_heads
}

impl LayerState {
    /// Values of all heads' matrices.
    pub fn matrix_values(&self) -> usize {
        self.shape.value_heads * head_values(&self.shape)
    }

    /// Where a place's window lies.
    pub fn window(&self, slot: usize, place: usize) -> Range<usize> {
        let len = self.shape.window_values();
        let at = (2 * slot + place) * len;
        at..at + len
    }

    /// Where a place's matrices lie.
    pub fn matrix(&self, slot: usize, place: usize) -> Range<usize> {
        let len = self.matrix_values();
        let at = (2 * slot + place) * len;
        at..at + len
    }
}

/// All recurrent layers.
pub struct CpuState {
    /// Which place holds what.
    pub slots: Slots,
    /// What the announced batch does.
    pub passes: Vec<Pass>,
    /// The layers, in order.
    pub layers: Vec<LayerState>,
}

/// A copy of a slot's state: window and matrices of each layer.
pub struct CpuSnapshot {
    position: usize,
    layers: Vec<(DeltaShape, Vec<f32>)>,
}

/// Bytes of one slot.
pub fn slot_bytes(layout: &StateLayout, record: usize) -> usize {
    let layer = |l: &DeltaShape| {
        2 * (l.window_values() + l.value_heads * head_values(l)) + record * (l.channels() + record_width(l))
    };
    layout.layers.iter().map(layer).sum::<usize>() * size_of::<f32>()
}

/// Bytes of a copy of one slot's state.
pub fn snapshot_bytes(layout: &StateLayout) -> usize {
    let layer = |l: &DeltaShape| l.window_values() + l.value_heads * head_values(l);
    layout.layers.iter().map(layer).sum::<usize>() * size_of::<f32>()
}

impl CpuState {
    /// Reserves the memory. Untouched slots cost none of it.
    pub fn new(layout: &StateLayout, slots: usize, record: usize) -> Result<Self, ComputeError> {
        let book = Slots::new(slots, record);
        let needed = slot_bytes(layout, book.record()).saturating_mul(slots);
        // All of it is asked for at once, so that it is refused as a whole; zeroed memory then comes from the system untouched.
        let mut probe: Vec<u8> = Vec::new();
        probe.try_reserve_exact(needed).map_err(|_| layout.refused(needed))?;
        drop(probe);
        let layer = |shape: &DeltaShape| LayerState {
            shape: *shape,
            windows: vec![0.0; slots * 2 * shape.window_values()],
            matrices: vec![0.0; slots * 2 * shape.value_heads * head_values(shape)],
            inputs: vec![0.0; slots * book.record() * shape.channels()],
            updates: vec![0.0; slots * book.record() * record_width(shape)],
        };
        let layers = layout.layers.iter().map(layer).collect();
        Ok(CpuState { slots: book, passes: Vec::new(), layers })
    }

    /// Plans a batch.
    pub fn begin(&mut self, batch: &Batch) {
        self.passes = self.slots.begin(batch);
    }

    /// Copies a slot's newest state.
    ///
    /// # Panics
    /// When the slot holds none.
    pub fn save(&self, slot: usize) -> CpuSnapshot {
        let position = self.slots.position(slot).expect("a slot that holds a state");
        let now = self.slots.now(slot);
        let copy = |l: &LayerState| {
            let values = match position {
                0 => vec![0.0; l.shape.window_values() + l.matrix_values()],
                _ => [&l.windows[l.window(slot, now)], &l.matrices[l.matrix(slot, now)]].concat(),
            };
            (l.shape, values)
        };
        CpuSnapshot { position, layers: self.layers.iter().map(copy).collect() }
    }

    /// Puts a copy into a slot.
    ///
    /// # Panics
    /// When the copy is of another layout.
    pub fn restore(&mut self, slot: usize, snapshot: &CpuSnapshot) {
        let own = self.layers.iter().map(|l| l.shape);
        assert!(own.eq(snapshot.layers.iter().map(|(shape, _)| *shape)), "a copy of another layout");
        let now = self.slots.now(slot);
        for (layer, (_, values)) in self.layers.iter_mut().zip(&snapshot.layers) {
            let (window, matrices) = values.split_at(layer.shape.window_values());
            let (w, m) = (layer.window(slot, now), layer.matrix(slot, now));
            layer.windows[w].copy_from_slice(window);
            layer.matrices[m].copy_from_slice(matrices);
        }
        self.slots.declare(slot, Some(snapshot.position));
    }
}

impl CpuSnapshot {
    /// Windows `[taps - 1, channels]` and matrices `[value_heads, key_dim, value_dim]`, layer by layer.
    pub fn read(&self) -> Vec<f32> {
        let mut out = Vec::new();
        for (shape, values) in &self.layers {
            let (window, matrices) = values.split_at(shape.window_values());
            out.extend_from_slice(window);
            for head in matrices.chunks_exact(head_values(shape)) {
                for i in 0..shape.key_dim {
                    let strip = |c: usize| head[(c / STRIP * shape.key_dim + i) * STRIP + c % STRIP];
                    out.extend((0..shape.value_dim).map(strip));
                }
            }
        }
        out
    }
}
