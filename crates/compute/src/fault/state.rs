//! Faults of recurrent state: slots that keep what they should forget, and forget what they should keep.
//!
//! A backend's states are opaque, so that wrong ones are made by running rows: rows whose keys and values are zeros and
//! whose decay is 1 move the convolution windows on and leave the matrices as they are.

use super::faulty::Faulty;
use super::{Fault, Shaped};
use crate::backend::{Backend, DeltaGates};
use crate::{Batch, Span, StateLayout, Wanted};

/// States, with what the faults need to know about them.
pub struct Tracked<T> {
    pub(super) inner: T,
    /// Spans of the announced batch.
    pub(super) spans: Vec<Span>,
    layout: StateLayout,
    /// By how much the inner state's count is ahead of the one shown, for each slot.
    shift: Vec<usize>,
    /// The last rows each slot's convolutions saw, `[slot][layer]`, `(taps - 1, channels)`.
    windows: Vec<Vec<Vec<f32>>>,
}

/// A copy of a slot.
pub struct Copied<T> {
    pub(super) inner: T,
    shift: usize,
}

impl<T> Tracked<T> {
    pub(super) fn new(inner: T, layout: &StateLayout, slots: usize) -> Self {
        let zeros: Vec<Vec<f32>> = layout.layers.iter().map(|l| vec![0.0; l.window_values()]).collect();
        Tracked { inner, spans: Vec::new(), layout: layout.clone(), shift: vec![0; slots], windows: vec![zeros; slots] }
    }
}

impl<B: Backend> Faulty<B> {
    pub(super) fn begin(&self, state: &mut Tracked<B::State>, batch: &Batch) {
        state.spans = batch.spans().iter().filter(|span| span.len > 0).copied().collect();
        let residue = matches!(self.fault, Fault::WindowResidue | Fault::MatrixResidue);
        if !residue || state.layout.is_empty() {
            return self.inner.state_begin(&mut state.inner, batch);
        }
        let mut moved = Batch::new();
        for span in batch.spans() {
            if span.start == 0 && span.len > 0 {
                self.start(state, span.sequence);
            }
            let start = span.start + state.shift[span.sequence];
            moved.push(span.sequence, start, &vec![0; span.len], &[], Wanted::None);
        }
        self.inner.state_begin(&mut state.inner, &moved);
    }

    /// The layer whose state a layer uses on so many rows.
    pub(super) fn layer(&self, state: &Tracked<B::State>, layer: usize, rows: usize) -> usize {
        let same = |other: usize| state.layout.layers.get(other) == Some(&state.layout.layers[layer]);
        match self.fault {
            Fault::LayersSwapped if rows >= 2 && same(layer + 1) => layer + 1,
            Fault::LayersSwapped if rows >= 2 && layer > 0 && same(layer - 1) => layer - 1,
            _ => layer,
        }
    }

    /// A sequence starts in a slot.
    fn start(&self, state: &mut Tracked<B::State>, slot: usize) {
        let used = self.inner.state_position(&state.inner, slot).filter(|position| *position > 0);
        state.shift[slot] = 0;
        match (self.fault, used) {
            (Fault::WindowResidue, Some(_)) => {
                self.write_windows(state, slot, 0);
                state.shift[slot] = self.inner.state_position(&state.inner, slot).expect("rows were run");
            }
            (Fault::MatrixResidue, Some(position)) => {
                state.windows[slot].iter_mut().for_each(|window| window.fill(0.0));
                self.write_windows(state, slot, position);
                self.inner.state_declare(&mut state.inner, slot, Some(position));
                state.shift[slot] = position;
            }
            _ => {}
        }
    }

    /// Runs the rows of `windows` at `start` without touching the matrices.
    fn write_windows(&self, state: &mut Tracked<B::State>, slot: usize, start: usize) {
        let rows = state.layout.layers.iter().map(|l| l.taps - 1).max().unwrap_or(0).max(1);
        let mut batch = Batch::new();
        batch.push(slot, start, &vec![0; rows], &[], Wanted::None);
        self.inner.state_begin(&mut state.inner, &batch);
        let filled = |width: usize, values: &[f32]| {
            let mut buffer = self.inner.buffer(rows, width);
            self.inner.write(&mut buffer, values);
            buffer
        };
        for (layer, shape) in state.layout.layers.iter().enumerate() {
            let channels = shape.channels();
            let window = &state.windows[slot][layer];
            let mut x = vec![0.0; rows * channels - window.len()];
            x.extend_from_slice(window);
            let zeros = |width: usize| filled(width, &vec![0.0; rows * width]);
            let vector = |n: usize| self.inner.load_vector(&vec![0.0; n]);
            let taps = vector(shape.taps * channels);
            let mut out = zeros(channels);
            self.inner.causal_conv(&mut state.inner, layer, &filled(channels, &x), &taps, &mut out);
            // A rate of 0 is a decay of 1.
            let (rate, dt_bias) = (vector(shape.value_heads), vector(shape.value_heads));
            let gates = DeltaGates::<B> { rate: &rate, dt_bias: &dt_bias };
            let gate = zeros(shape.value_heads);
            let mut out = zeros(shape.value_width());
            self.inner.gated_delta(&mut state.inner, layer, &zeros(channels), &gate, &gate, &gates, &mut out);
        }
    }

    /// Notes the last rows a convolution saw.
    pub(super) fn keep_windows(&self, state: &mut Tracked<B::State>, layer: usize, x: &Shaped<B::Buffer>) {
        if !matches!(self.fault, Fault::WindowResidue | Fault::TakeBackWindow | Fault::RestoreWindow) {
            return;
        }
        let values = self.inner.read(&x.inner);
        for span in &state.spans {
            let window = &mut state.windows[span.sequence][layer];
            let len = window.len();
            if span.start == 0 {
                window.fill(0.0);
            }
            window.extend_from_slice(&values[span.first_row * x.width..][..span.len * x.width]);
            window.drain(..window.len() - len);
        }
    }

    pub(super) fn position(&self, state: &Tracked<B::State>, slot: usize) -> Option<usize> {
        self.inner.state_position(&state.inner, slot).map(|position| position - state.shift[slot])
    }

    pub(super) fn take_back(&self, state: &mut Tracked<B::State>, slot: usize, len: usize) -> bool {
        let position = self.position(state, slot);
        let inner = &mut state.inner;
        match self.fault {
            Fault::TakeBackShort if len > 0 && position.is_some_and(|p| len < p) => {
                let taken = self.inner.state_take_back(inner, slot, len + 1);
                if taken {
                    self.inner.state_declare(inner, slot, Some(len));
                }
                taken
            }
            Fault::TakeBackWindow if len > 0 && position.is_some_and(|p| len < p) => {
                let taken = self.inner.state_take_back(inner, slot, len);
                if taken {
                    self.write_windows(state, slot, len);
                    self.inner.state_declare(&mut state.inner, slot, Some(len));
                }
                taken
            }
            Fault::TakeBackAnything if position.is_some_and(|p| len <= p) => {
                if !self.inner.state_take_back(inner, slot, len) {
                    self.inner.state_declare(inner, slot, Some(len));
                }
                true
            }
            Fault::RefusalForgets => {
                let taken = self.inner.state_take_back(inner, slot, len);
                if !taken {
                    self.inner.state_declare(inner, slot, None);
                }
                taken
            }
            // The residue of a start cannot be taken back.
            _ if len == 0 => {
                state.shift[slot] = 0;
                self.inner.state_take_back(inner, slot, 0)
            }
            _ => self.inner.state_take_back(inner, slot, len + state.shift[slot]),
        }
    }

    pub(super) fn declare(&self, state: &mut Tracked<B::State>, slot: usize, position: Option<usize>) {
        let position = match self.fault {
            Fault::DeclareIgnored => return,
            _ => position.map(|position| position + state.shift[slot]),
        };
        self.inner.state_declare(&mut state.inner, slot, position);
    }

    pub(super) fn save(&self, state: &Tracked<B::State>, slot: usize) -> Copied<B::Snapshot> {
        Copied { inner: self.inner.state_save(&state.inner, slot), shift: state.shift[slot] }
    }

    pub(super) fn restore(&self, state: &mut Tracked<B::State>, slot: usize, snapshot: &Copied<B::Snapshot>) {
        self.inner.state_restore(&mut state.inner, slot, &snapshot.inner);
        state.shift[slot] = snapshot.shift;
        let position = self.inner.state_position(&state.inner, slot).filter(|position| *position > 0);
        if let (Fault::RestoreWindow, Some(position)) = (self.fault, position) {
            self.write_windows(state, slot, position);
            self.inner.state_declare(&mut state.inner, slot, Some(position));
        }
    }
}
