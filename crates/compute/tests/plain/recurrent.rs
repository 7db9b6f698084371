//! Recurrent states the way [`Slots`] plans them: two places a slot, and a record of rows to run again.

use mlxcel_compute::order;
use mlxcel_compute::recurrent::{Pass, Replay, Segment, Slots};
use mlxcel_compute::{DeltaShape, StateLayout};

/// One place's state of one layer.
#[derive(Clone)]
struct Place {
    window: Vec<f32>,   // (taps - 1, channels)
    matrices: Vec<f32>, // (value_heads, key_dim, value_dim)
}

/// What a row brings to the delta rule, once its gates are worked out.
#[derive(Clone)]
struct Update {
    qkv: Vec<f32>,
    decay: Vec<f32>, // (value_heads)
    beta: Vec<f32>,  // (value_heads)
}

struct Layer {
    shape: DeltaShape,
    places: Vec<[Place; 2]>,    // [slot]
    inputs: Vec<Vec<Vec<f32>>>, // [slot][recorded row]
    updates: Vec<Vec<Update>>,  // [slot][recorded row]
}

/// All slots.
pub struct State {
    pub slots: Slots,
    pub passes: Vec<Pass>,
    layers: Vec<Layer>,
}

/// A copy of a slot.
pub struct Snapshot {
    position: usize,
    layers: Vec<Place>,
}

impl Snapshot {
    /// Windows and matrices, layer by layer.
    pub fn read(&self) -> Vec<f32> {
        self.layers.iter().flat_map(|l| l.window.iter().chain(&l.matrices)).copied().collect()
    }
}

impl Place {
    fn new(shape: &DeltaShape) -> Self {
        Place { window: vec![0.0; shape.window_values()], matrices: vec![0.0; shape.state_values()] }
    }
}

impl Layer {
    /// Where a segment begins.
    fn begin(&self, slot: usize, read: Option<usize>) -> Place {
        read.map_or_else(|| Place::new(&self.shape), |place| self.places[slot][place].clone())
    }

    /// Runs a row over the matrices; its outputs.
    fn apply(&self, matrices: &mut [f32], update: &Update) -> Vec<f32> {
        let DeltaShape { key_dim: dk, value_dim: dv, .. } = self.shape;
        let share = self.shape.value_heads / self.shape.key_heads;
        let keys = self.shape.key_width();
        let mut out = Vec::new();
        for (h, s) in matrices.chunks_exact_mut(dk * dv).enumerate() {
            let at = h / share * dk;
            let q = normed(&update.qkv[at..][..dk], 1.0 / (dk as f32).sqrt());
            let k = normed(&update.qkv[keys + at..][..dk], 1.0);
            s.iter_mut().for_each(|s| *s *= update.decay[h]);
            for c in 0..dv {
                let read = |s: &[f32], x: &[f32]| -> f32 { x.iter().enumerate().map(|(i, x)| x * s[i * dv + c]).sum() };
                let change = update.beta[h] * (update.qkv[2 * keys + h * dv + c] - read(s, &k));
                k.iter().enumerate().for_each(|(i, k)| s[i * dv + c] += k * change);
                out.push(read(s, &q));
            }
        }
        out
    }
}

fn normed(x: &[f32], scale: f32) -> Vec<f32> {
    let squares: f32 = x.iter().map(|v| v * v).sum();
    x.iter().map(|v| v / (squares + order::L2_EPS).sqrt() * scale).collect()
}

impl State {
    pub fn new(layout: &StateLayout, slots: usize, record: usize) -> Self {
        let layer = |shape: &DeltaShape| Layer {
            shape: *shape,
            places: vec![[Place::new(shape), Place::new(shape)]; slots],
            inputs: vec![Vec::new(); slots],
            updates: vec![Vec::new(); slots],
        };
        State {
            slots: Slots::new(slots, record),
            passes: Vec::new(),
            layers: layout.layers.iter().map(layer).collect(),
        }
    }

    pub fn take_back(&mut self, slot: usize, len: usize) -> bool {
        let Some(replay) = self.slots.take_back(slot, len) else { return false };
        for layer in &mut self.layers {
            if let Some(Replay { len, read, write }) = replay {
                let mut place = layer.begin(slot, read);
                for row in 0..len {
                    slide(&mut place.window, &layer.inputs[slot][row]);
                    layer.apply(&mut place.matrices, &layer.updates[slot][row]);
                }
                layer.places[slot][write] = place;
            }
        }
        true
    }

    pub fn save(&self, slot: usize) -> Snapshot {
        let now = self.slots.now(slot);
        let position = self.slots.position(slot).expect("a slot that holds a state");
        Snapshot { position, layers: self.layers.iter().map(|l| l.places[slot][now].clone()).collect() }
    }

    pub fn restore(&mut self, slot: usize, from: &Snapshot) {
        let now = self.slots.now(slot);
        self.layers.iter_mut().zip(&from.layers).for_each(|(l, place)| l.places[slot][now] = place.clone());
        self.slots.declare(slot, Some(from.position));
    }

    pub fn conv(&mut self, layer: usize, x: &[f32], weight: &[f32], out: &mut [f32]) {
        let layer = &mut self.layers[layer];
        let channels = layer.shape.channels();
        for Pass { slot, segments } in &self.passes {
            for Segment { first_row, len, read, write, record } in segments {
                let mut window = layer.begin(*slot, *read).window;
                if *record {
                    layer.inputs[*slot].clear();
                }
                for r in *first_row..first_row + len {
                    let row = &x[r * channels..][..channels];
                    let seen: Vec<f32> = window.iter().chain(row).copied().collect();
                    for c in 0..channels {
                        let sum: f32 =
                            (0..layer.shape.taps).map(|j| weight[j * channels + c] * seen[j * channels + c]).sum();
                        out[r * channels + c] = order::silu(sum);
                    }
                    slide(&mut window, row);
                    if *record {
                        layer.inputs[*slot].push(row.to_vec());
                    }
                }
                layer.places[*slot][*write].window = window;
            }
        }
    }

    pub fn delta(
        &mut self,
        layer: usize,
        qkv: &[f32],
        (a, b): (&[f32], &[f32]),
        (rate, dt_bias): (&[f32], &[f32]),
        out: &mut [f32],
    ) {
        let layer = &mut self.layers[layer];
        let (channels, heads, width) = (layer.shape.channels(), layer.shape.value_heads, layer.shape.value_width());
        for Pass { slot, segments } in &self.passes {
            for Segment { first_row, len, read, write, record } in segments {
                let mut matrices = layer.begin(*slot, *read).matrices;
                if *record {
                    layer.updates[*slot].clear();
                }
                for r in *first_row..first_row + len {
                    let gates = |h: usize| r * heads + h;
                    let update = Update {
                        qkv: qkv[r * channels..][..channels].to_vec(),
                        decay: (0..heads).map(|h| order::decay(a[gates(h)], rate[h], dt_bias[h])).collect(),
                        beta: (0..heads).map(|h| order::beta(b[gates(h)])).collect(),
                    };
                    out[r * width..][..width].copy_from_slice(&layer.apply(&mut matrices, &update));
                    if *record {
                        layer.updates[*slot].push(update);
                    }
                }
                layer.places[*slot][*write].matrices = matrices;
            }
        }
    }
}

/// Moves a window on by a row.
fn slide(window: &mut Vec<f32>, row: &[f32]) {
    let len = window.len();
    window.extend_from_slice(row);
    window.drain(..window.len() - len);
}
