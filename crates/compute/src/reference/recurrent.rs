//! Recurrent layers in f64. Every row's state is kept, so that taking rows back is dropping some.

use super::Matrix;
use crate::recurrent::{DeltaShape, StateLayout};
use crate::{Batch, Span};

/// One sequence's state of one layer after some row.
#[derive(Clone, Debug)]
struct Layer {
    window: Vec<f64>, // [taps - 1, channels]
    s: Vec<f64>,      // [value_heads, key_dim, value_dim]
}

/// All states of a slot that can still be returned to: those after each of the last rows.
#[derive(Clone, Debug, Default)]
struct Slot {
    position: Option<usize>,
    before: usize,           // rows that can be taken back
    layers: Vec<Vec<Layer>>, // [layer][rows that can be taken back, and the newest]
}

/// The slots.
pub struct RefState {
    layout: StateLayout,
    slots: Vec<Slot>,
    record: usize,
    spans: Vec<Span>,
}

/// A copy of a slot.
pub struct RefSnapshot {
    position: usize,
    layers: Vec<Layer>,
}

impl RefSnapshot {
    /// Windows and matrices, layer by layer.
    pub fn read(&self) -> Vec<f32> {
        self.layers.iter().flat_map(|l| l.window.iter().chain(&l.s)).map(|v| *v as f32).collect()
    }
}

fn empty(shape: &DeltaShape) -> Layer {
    Layer { window: vec![0.0; shape.window_values()], s: vec![0.0; shape.state_values()] }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp()) + x * 0.0
}

impl RefState {
    pub(super) fn new(layout: &StateLayout, slots: usize, record: usize) -> Self {
        RefState { layout: layout.clone(), slots: vec![Slot::default(); slots], record, spans: Vec::new() }
    }

    pub(super) fn begin(&mut self, batch: &Batch) {
        self.spans = batch.spans().iter().filter(|s| s.len > 0).copied().collect();
        for span in &self.spans {
            let slot = &mut self.slots[span.sequence];
            if span.start == 0 {
                slot.layers = self.layout.layers.iter().map(|l| vec![empty(l)]).collect();
            } else {
                assert_eq!(slot.position, Some(span.start), "the slot stands elsewhere");
                slot.layers.iter_mut().for_each(|l| drop(l.drain(..l.len() - 1)));
            }
            slot.position = Some(span.start + span.len);
            slot.before = span.len.min(self.record);
        }
    }

    pub(super) fn position(&self, slot: usize) -> Option<usize> {
        self.slots[slot].position
    }

    pub(super) fn take_back(&mut self, slot: usize, len: usize) -> bool {
        let slot = &mut self.slots[slot];
        let Some(position) = slot.position else { return false };
        let back = position.wrapping_sub(len);
        if len > position || (len > 0 && back > slot.before) {
            return false;
        }
        if len == 0 {
            slot.layers = self.layout.layers.iter().map(|l| vec![empty(l)]).collect();
            slot.before = 0;
        } else {
            slot.layers.iter_mut().for_each(|l| l.truncate(l.len() - back));
            slot.before -= back;
        }
        slot.position = Some(len);
        true
    }

    pub(super) fn declare(&mut self, slot: usize, position: Option<usize>) {
        (self.slots[slot].position, self.slots[slot].before) = (position, 0);
    }

    pub(super) fn save(&self, slot: usize) -> RefSnapshot {
        let slot = &self.slots[slot];
        let last = |l: &Vec<Layer>| l.last().expect("a state").clone();
        RefSnapshot { position: slot.position.expect("a state"), layers: slot.layers.iter().map(last).collect() }
    }

    pub(super) fn restore(&mut self, slot: usize, from: &RefSnapshot) {
        let layers = from.layers.iter().map(|l| vec![l.clone()]).collect();
        let same = from.layers.iter().zip(&self.layout.layers).all(|(l, shape)| l.s.len() == shape.state_values());
        assert!(same && from.layers.len() == self.layout.layers.len(), "a copy of another layout");
        self.slots[slot] = Slot { position: Some(from.position), before: 0, layers };
    }

    pub(super) fn conv(&mut self, layer: usize, x: &Matrix, weight: &[f32], out: &mut Matrix) {
        let shape = self.layout.layers[layer];
        let channels = shape.channels();
        for span in &self.spans {
            let states = &mut self.slots[span.sequence].layers[layer];
            for r in span.first_row..span.first_row + span.len {
                let mut next = states.last().expect("a state").clone();
                next.window.extend_from_slice(x.row(r));
                for c in 0..channels {
                    let taps =
                        (0..shape.taps).map(|j| f64::from(weight[j * channels + c]) * next.window[j * channels + c]);
                    out.row_mut(r)[c] = silu(taps.sum());
                }
                next.window.drain(..channels);
                states.push(next);
            }
        }
    }

    pub(super) fn delta(
        &mut self,
        layer: usize,
        qkv: &Matrix,
        (a, b): (&Matrix, &Matrix),
        (rate, dt_bias): (&[f32], &[f32]),
        out: &mut Matrix,
    ) {
        let shape = self.layout.layers[layer];
        let (dk, dv, share) = (shape.key_dim, shape.value_dim, shape.value_heads / shape.key_heads);
        let normed = |x: &[f64]| -> Vec<f64> {
            let factor = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|v| v * factor).collect()
        };
        for span in &self.spans {
            let states = &mut self.slots[span.sequence].layers[layer];
            let first = states.len() - span.len; // the convolution has pushed a state a row
            for (i, r) in (span.first_row..span.first_row + span.len).enumerate() {
                let mut s = states[first + i - 1].s.clone();
                for h in 0..shape.value_heads {
                    let q = normed(&qkv.row(r)[h / share * dk..][..dk]);
                    let k = normed(&qkv.row(r)[shape.key_width() + h / share * dk..][..dk]);
                    let v = &qkv.row(r)[2 * shape.key_width() + h * dv..][..dv];
                    let raised = a.row(r)[h] + f64::from(dt_bias[h]);
                    let plus = raised.exp().ln_1p() + raised * 0.0;
                    let (decay, beta) = ((-f64::from(rate[h]) * plus).exp(), sigmoid(b.row(r)[h]));
                    let s = &mut s[h * dk * dv..][..dk * dv];
                    s.iter_mut().for_each(|s| *s *= decay);
                    for c in 0..dv {
                        let predicted: f64 = (0..dk).map(|i| k[i] * s[i * dv + c]).sum();
                        let change = beta * (v[c] - predicted);
                        (0..dk).for_each(|i| s[i * dv + c] += k[i] * change);
                        let read: f64 = (0..dk).map(|i| q[i] * s[i * dv + c]).sum();
                        out.row_mut(r)[h * dv + c] = read / (dk as f64).sqrt();
                    }
                }
                states[first + i].s = s;
            }
            // What can be taken back: the last rows, and the state before them.
            let keep = span.len.min(self.record) + 1;
            states.drain(..states.len() - keep);
        }
    }
}
