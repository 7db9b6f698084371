//! Device memory of recurrent states: two places a slot, and the record of the rows that can be taken back.
//!
//! A place holds all layers, one after the other: that a state is one piece makes a copy of it one launch. Inside a layer come the
//! window `[taps - 1, channels]` and the matrices, in tiles of the columns a warp works on (`kernels/recurrent.cu`).

use std::ops::Range;
use std::sync::Arc;

use mlxcel_compute::recurrent::{Pass, Replay, Slots};
use mlxcel_compute::{Batch, ComputeError, DeltaShape, StateLayout};

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::{Block, Held};
use crate::module::{Function, RECURRENT, Unit};

/// Values that parts of a place are rounded up to: a line of 128 bytes.
const LINE: usize = 32;
/// Fewest rows a thread of the convolution takes.
pub const CHUNK: usize = 8;
/// No pass, or no place.
const NONE: u32 = u32::MAX;

/// How a head's matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiles {
    lanes: usize, // that share a column
    per: usize,   // fours of a column a lane holds
    tiles: usize, // of a head
}

/// Lanes of a warp that share a column: so many that none holds more than 32 of its values, as long as a warp is enough.
fn lanes(key_dim: usize) -> usize {
    key_dim.div_ceil(32).next_power_of_two().clamp(4, 32)
}

impl Tiles {
    fn new(shape: &DeltaShape) -> Self {
        let lanes = lanes(shape.key_dim);
        let columns = 32 / lanes;
        Tiles { lanes, per: shape.key_dim.div_ceil(4 * lanes), tiles: shape.value_dim.div_ceil(columns) }
    }

    /// Values of a head.
    fn values(&self) -> usize {
        self.tiles * self.per * 128
    }

    /// Where value `key` of a column lies inside a head.
    fn index(&self, key: usize, column: usize) -> usize {
        let columns = 32 / self.lanes;
        let (four, inside) = (key / 4, key % 4);
        let (j, part) = (four / self.lanes, four % self.lanes);
        let lane = column % columns * self.lanes + part;
        ((column / columns * self.per + j) * 32 + lane) * 4 + inside
    }
}

/// Values of a window as it lies in memory.
fn window_values(shape: &DeltaShape) -> usize {
    shape.window_values().next_multiple_of(LINE)
}

/// Values of a layer in a place.
pub fn layer_values(shape: &DeltaShape) -> usize {
    window_values(shape) + shape.value_heads * Tiles::new(shape).values()
}

/// Values of a row on record for the delta rule: k, v, decay, beta of all heads.
pub fn record_width(shape: &DeltaShape) -> usize {
    shape.key_width() + shape.value_width() + 2 * shape.value_heads
}

fn place_values(shapes: &[DeltaShape]) -> usize {
    shapes.iter().map(layer_values).sum()
}

/// Values of a row on record, all layers.
fn record_values(shapes: &[DeltaShape]) -> usize {
    shapes.iter().map(|l| l.channels() + record_width(l)).sum()
}

/// Bytes of one slot.
pub fn slot_bytes(layout: &StateLayout, record: usize) -> usize {
    let record = record.max(1);
    (2 * place_values(&layout.layers) + record * record_values(&layout.layers)) * size_of::<f32>()
}

/// Bytes of a copy of one slot's state.
pub fn snapshot_bytes(layout: &StateLayout) -> usize {
    place_values(&layout.layers) * size_of::<f32>()
}

/// One layer: where it lies, and its kernels.
pub struct LayerState {
    /// Its sizes.
    pub shape: DeltaShape,
    /// Blocks of the delta rule a value head is cut into.
    pub blocks: usize,
    /// Device address of its window in place 0 of slot 0, `[taps - 1, channels]`.
    pub window: u64,
    /// Likewise of its matrices, `[value_heads][tiles][per][32][4]`.
    pub matrices: u64,
    /// Device address of its rows on record as the convolution takes them, `[slots][record][channels]`.
    pub inputs: u64,
    /// Likewise as the delta rule takes them, `[slots][record][record_width]`.
    pub updates: u64,
    /// The convolution.
    pub conv: Function,
    /// The delta rule.
    pub rule: Function,
}

/// What the kernels are told of the spans of a batch, or of one replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Slot, first row, rows before those on record, rows on record, places to read, to pass through, to write; unused.
    pub passes: Vec<[u32; 8]>,
    /// Pieces of them for the convolution: pass, first row inside it. As many for every batch of as many rows and spans, so that
    /// the launches are the same: some may be empty.
    pub items: Vec<[u32; 2]>,
}

impl Plan {
    /// What a batch does.
    fn of_batch(passes: &[Pass], chunk: usize) -> Self {
        let mut plan = Plan::default();
        let mut rows = 0;
        for (i, pass) in passes.iter().enumerate() {
            let place = |p: Option<usize>| p.map_or(NONE, |p| p as u32);
            let (first, last) = (&pass.segments[0], &pass.segments[pass.segments.len() - 1]);
            let lead = if pass.segments.len() > 1 { first.len } else { 0 };
            let [slot, row, before, recorded] = [pass.slot, first.first_row, lead, last.len].map(|w| w as u32);
            let [middle, write] = [first.write, last.write].map(|p| p as u32);
            plan.passes.push([slot, row, before, recorded, place(first.read), middle, write, 0]);
            let len = lead + last.len;
            plan.items.extend((0..len).step_by(chunk).map(|at| [i as u32, at as u32]));
            rows += len;
        }
        plan.items.resize(rows / chunk + passes.len(), [NONE, 0]);
        plan
    }

    /// Rows of a slot's record once more.
    pub fn of_replay(slot: usize, replay: Replay) -> Self {
        let Replay { len, read, write } = replay;
        let read = read.map_or(NONE, |p| p as u32);
        // The rows are given from the record's start, so that they begin at 0; one piece moves the windows on.
        let pass = [slot as u32, 0, 0, len as u32, read, write as u32, write as u32, 0];
        Plan { passes: vec![pass], items: vec![[0, 0]] }
    }

    /// Bytes it brings.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.passes[..]) + size_of_val(&self.items[..])
    }
}

/// All recurrent layers.
pub struct CudaState {
    /// Which place holds what.
    pub slots: Slots,
    /// What the announced batch does.
    pub plan: Plan,
    /// The layers, in order.
    pub layers: Vec<LayerState>,
    /// Runs of neighbouring layers of one shape: they lie at equal distances and can share launches.
    pub runs: Vec<Range<usize>>,
    shapes: Vec<DeltaShape>,
    chunk: usize,
    copy: Option<Function>, // without layers there is nothing to copy
    places: Held,           // [slots][2][place]
    _record: Held,          // layer by layer: inputs, updates
    context: Arc<Context>,
}

/// A copy of a slot's state: a place as it lies in memory. Nothing is kept of a state at position 0: none is read from it.
pub struct CudaSnapshot {
    /// Rows the state has seen.
    pub position: usize,
    /// The layers it is of.
    pub shapes: Vec<DeltaShape>,
    /// `[place]`
    pub memory: Option<Block>,
}

/// Runs of equal neighbours.
fn runs(shapes: &[DeltaShape]) -> Vec<Range<usize>> {
    let mut start = 0;
    let run = |run: &[DeltaShape]| {
        start += run.len();
        start - run.len()..start
    };
    shapes.chunk_by(|a, b| a == b).map(run).collect()
}

/// The kernels of a layer; `chunk` is how many rows a block of the convolution takes, at least `taps - 1`.
pub fn unit(shape: &DeltaShape, chunk: usize) -> Unit {
    let defines = [
        ("KEY_DIM", shape.key_dim as i64),
        ("LANES", Tiles::new(shape).lanes as i64),
        ("TAPS", shape.taps as i64),
        ("CHUNK", chunk as i64),
    ];
    Unit::new(RECURRENT, &defines)
}

impl CudaState {
    /// Reserves the memory and compiles the kernels.
    ///
    /// # Errors
    /// [`ComputeError::Device`] when the device has no room; otherwise the layer there are no kernels for, and why.
    pub fn new(
        context: &Arc<Context>,
        layout: &StateLayout,
        slots: usize,
        record: usize,
    ) -> Result<Self, ComputeError> {
        let shapes = layout.layers.clone();
        let book = Slots::new(slots, record);
        let fault = |layer: usize, error: CudaError| match error {
            full @ CudaError::Memory { .. } => full.into(),
            other => ComputeError::Weight { name: format!("recurrent layer {layer}"), reason: other.to_string() },
        };
        let chunk = shapes.iter().map(|l| l.taps.saturating_sub(1)).fold(CHUNK, usize::max);
        let reserve = |values: usize| {
            let bytes = values.saturating_mul(slots).saturating_mul(size_of::<f32>());
            let held = context.held(bytes, "recurrent states")?;
            context.zero(held.address(), held.bytes())?;
            Ok(held)
        };
        let places = reserve(2 * place_values(&shapes)).map_err(|e| fault(0, e))?;
        let records = reserve(book.record() * record_values(&shapes)).map_err(|e| fault(0, e))?;
        let mut layers = Vec::with_capacity(shapes.len());
        let mut copy = None;
        let (mut place_at, mut record_at) = (places.address(), records.address());
        let take = |from: &mut u64, values: usize| {
            let at = *from;
            *from += (values * size_of::<f32>()) as u64;
            at
        };
        for (i, shape) in shapes.iter().enumerate() {
            let tiles = Tiles::new(shape);
            let unit = unit(shape, chunk);
            let function = |name| context.function(&unit, name, 0).map_err(|e| fault(i, e));
            if copy.is_none() {
                copy = Some(function("copy_state")?);
            }
            layers.push(LayerState {
                shape: *shape,
                blocks: tiles.tiles.div_ceil(2),
                window: take(&mut place_at, window_values(shape)),
                matrices: take(&mut place_at, shape.value_heads * tiles.values()),
                inputs: take(&mut record_at, slots * book.record() * shape.channels()),
                updates: take(&mut record_at, slots * book.record() * record_width(shape)),
                conv: function("causal_conv")?,
                rule: function("gated_delta")?,
            });
        }
        Ok(CudaState {
            slots: book,
            plan: Plan::default(),
            layers,
            runs: runs(&shapes),
            shapes,
            chunk,
            copy,
            places,
            _record: records,
            context: Arc::clone(context),
        })
    }

    /// Plans a batch.
    pub fn begin(&mut self, batch: &Batch) {
        self.plan = Plan::of_batch(&self.slots.begin(batch), self.chunk);
    }

    /// Values of a place, which is how far places lie apart.
    pub fn place_values(&self) -> usize {
        place_values(&self.shapes)
    }

    /// Device address of a slot's newest place.
    pub fn newest(&self, slot: usize) -> u64 {
        let place = 2 * slot + self.slots.now(slot);
        self.places.address() + (place * self.place_values() * size_of::<f32>()) as u64
    }

    /// The layers' shapes, in order.
    pub fn shapes(&self) -> &[DeltaShape] {
        &self.shapes
    }

    /// The kernel that copies a place.
    pub fn copy(&self) -> Option<Function> {
        self.copy
    }
}

impl Drop for CudaState {
    fn drop(&mut self) {
        // Launches that wait may name this memory, which goes back to the device at once. A device that failed launches nothing.
        let _ = self.context.synchronize();
    }
}

/// Windows `[taps - 1, channels]` and matrices `[value_heads, key_dim, value_dim]`, layer by layer, of a place as it lies in memory.
pub fn unpack(shapes: &[DeltaShape], place: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    let mut rest = place;
    for shape in shapes {
        let (layer, after) = rest.split_at(layer_values(shape));
        rest = after;
        let (window, matrices) = layer.split_at(window_values(shape));
        out.extend_from_slice(&window[..shape.window_values()]);
        let tiles = Tiles::new(shape);
        for head in matrices.chunks_exact(tiles.values()) {
            for key in 0..shape.key_dim {
                out.extend((0..shape.value_dim).map(|column| head[tiles.index(key, column)]));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_compute::Wanted;

    const fn shape(key_dim: usize, value_dim: usize) -> DeltaShape {
        DeltaShape { key_heads: 2, value_heads: 4, key_dim, value_dim, taps: 4 }
    }

    fn batch(spans: &[(usize, usize, usize)]) -> Batch {
        let mut batch = Batch::new();
        for (slot, start, len) in spans {
            batch.push(*slot, *start, &vec![0; *len], &[], Wanted::None);
        }
        batch
    }

    #[test]
    fn every_value_has_a_place_of_its_own() {
        for (key_dim, value_dim) in [(1, 1), (3, 5), (33, 15), (128, 128), (128, 17), (200, 9), (512, 3), (1024, 2)] {
            let tiles = Tiles::new(&shape(key_dim, value_dim));
            let mut seen = vec![false; tiles.values()];
            for key in 0..key_dim {
                for column in 0..value_dim {
                    let at = tiles.index(key, column);
                    assert!(!seen[at], "{key_dim} x {value_dim}: {key}, {column}");
                    seen[at] = true;
                }
            }
            assert!(tiles.per <= 8, "{key_dim}: {} registers", 4 * tiles.per);
        }
        assert_eq!(Tiles::new(&shape(128, 128)).values(), 128 * 128, "nothing is filled up");
        assert_eq!([1, 128, 129, 256, 300, 1024, 2000].map(lanes), [4, 4, 8, 8, 16, 32, 32]);
    }

    #[test]
    fn a_place_reads_back_in_order() {
        let shapes = [shape(3, 5), shape(33, 16)];
        let mut place = vec![f32::NAN; place_values(&shapes)];
        let mut at = 0;
        let mut next = 0.0;
        for shape in &shapes {
            let mut put = |place: &mut f32| {
                next += 1.0;
                *place = next;
            };
            place[at..at + shape.window_values()].iter_mut().for_each(&mut put);
            at += window_values(shape);
            let tiles = Tiles::new(shape);
            for _ in 0..shape.value_heads {
                for key in 0..shape.key_dim {
                    (0..shape.value_dim).for_each(|column| put(&mut place[at + tiles.index(key, column)]));
                }
                at += tiles.values();
            }
        }
        let values = StateLayout { layers: shapes.to_vec() }.values();
        assert_eq!(unpack(&shapes, &place), (1..=values).map(|v| v as f32).collect::<Vec<_>>());
    }

    #[test]
    fn sizes_cover_what_they_hold() {
        let layout = StateLayout { layers: vec![shape(12, 24), shape(128, 128)] };
        assert!(snapshot_bytes(&layout) >= layout.values() * 4);
        assert_eq!(slot_bytes(&layout, 0), slot_bytes(&layout, 1), "a record has at least one row");
        let row = layout.layers.iter().map(|l| l.channels() + record_width(l)).sum::<usize>() * 4;
        assert_eq!(slot_bytes(&layout, 9), 2 * snapshot_bytes(&layout) + 9 * row);
        assert_eq!(slot_bytes(&StateLayout::default(), 9), 0);
        assert!(layout.layers.iter().all(|l| layer_values(l).is_multiple_of(LINE)), "matrices begin on a line");
    }

    #[test]
    fn plans_say_what_segments_do() {
        let mut slots = Slots::new(3, 4);
        let plan = Plan::of_batch(&slots.begin(&batch(&[(2, 0, 3), (1, 0, 0), (0, 0, 19)])), 8);
        assert_eq!(plan.passes, [[2, 0, 0, 3, NONE, 1, 1, 0], [0, 3, 15, 4, NONE, 1, 0, 0]]);
        assert_eq!(plan.items, [[0, 0], [1, 0], [1, 8], [1, 16]]);
        let plan = Plan::of_batch(&slots.begin(&batch(&[(0, 19, 9), (2, 3, 4)])), 8);
        assert_eq!(plan.passes, [[0, 0, 5, 4, 0, 1, 0, 0], [2, 9, 0, 4, 1, 0, 0, 0]]);
        let replay = slots.take_back(2, 5).flatten().expect("two rows to run again");
        let plan = Plan::of_replay(2, replay);
        assert_eq!(plan.passes, [[2, 0, 0, 2, 1, 0, 0, 0]]);
        assert_eq!(plan.bytes(), 40);
    }

    #[test]
    fn pieces_are_as_many_for_as_many_rows_and_spans() {
        for lens in [[1, 1, 22], [8, 8, 8], [9, 9, 6], [17, 5, 2]] {
            let spans: Vec<_> = lens.iter().enumerate().map(|(slot, len)| (slot, 0, *len)).collect();
            let plan = Plan::of_batch(&Slots::new(3, 4).begin(&batch(&spans)), 8);
            assert_eq!(plan.items.len(), 24 / 8 + 3);
            for (i, len) in lens.iter().enumerate() {
                let of_pass = plan.items.iter().filter(|item| item[0] == i as u32);
                assert_eq!(of_pass.map(|item| item[1] as usize).collect::<Vec<_>>(), {
                    (0..*len).step_by(8).collect::<Vec<_>>()
                });
            }
        }
        assert_eq!(Plan::of_batch(&[], 8), Plan::default());
    }

    #[test]
    fn equal_neighbours_run_together() {
        let (a, b) = (shape(8, 8), shape(8, 9));
        assert_eq!(runs(&[a, a, b, a]), [0..2, 2..3, 3..4]);
        assert_eq!(runs(&[]), []);
    }
}
