//! The wrapper: every verb passed on, spoilt where the fault says so.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::state::{Copied, Tracked};
use super::{Fault, Verb};
use crate::backend::{Activation, Attend, Backend, ComputeError, DeltaGates, Experts, KvGroup, KvSlot};
use crate::{Batch, HostWeight, StateLayout, Wanted};

/// A backend with one [`Fault`]; everything else is passed on.
#[derive(Debug)]
pub struct Faulty<B> {
    pub(super) inner: B,
    pub(super) fault: Fault,
    reads: AtomicUsize,
}

/// A buffer that knows its shape.
pub struct Shaped<T> {
    pub(super) inner: T,
    pub(super) rows: usize,
    pub(super) width: usize,
}

/// Pages, with a copy of what was stored where ([`Fault::Residue`] only).
pub struct Traced<T> {
    inner: T,
    stored: HashMap<(usize, usize, u32, usize), Vec<f32>>, // (group, layer, page, offset) -> K
}

impl<B: Backend> Faulty<B> {
    /// Wraps a backend.
    pub fn new(inner: B, fault: Fault) -> Self {
        Faulty { inner, fault, reads: AtomicUsize::new(0) }
    }

    /// Whether the device is gone ([`Fault::DeviceLost`]).
    fn is_lost(&self) -> bool {
        matches!(self.fault, Fault::DeviceLost(after) if self.reads.load(Ordering::Relaxed) > after)
    }

    /// A copy of a buffer with other values.
    pub(super) fn changed(&self, x: &Shaped<B::Buffer>, change: impl FnOnce(&mut [f32])) -> Shaped<B::Buffer> {
        let mut values = self.inner.read(&x.inner);
        change(&mut values);
        let mut copy = self.buffer(x.rows, x.width);
        self.inner.write(&mut copy.inner, &values);
        copy
    }

    /// Whether a verb's former output is needed to spoil the next.
    fn former(&self, verb: Verb, out: &Shaped<B::Buffer>) -> Option<Vec<f32>> {
        (self.fault == Fault::Unwritten(verb) && out.rows >= 5).then(|| self.inner.read(&out.inner))
    }

    /// Applies the faults that any verb can have to its output.
    fn spoil(&self, verb: Verb, out: &mut Shaped<B::Buffer>, former: Option<Vec<f32>>) {
        let (rows, width) = (out.rows, out.width);
        if self.fault.verb() != verb || rows == 0 || width == 0 {
            return;
        }
        let last = (rows - 1) * width;
        let mut values = self.inner.read(&out.inner);
        match self.fault {
            Fault::LastBit(_) | Fault::WideLinear if rows >= 2 => {
                values[last] = f32::from_bits(values[last].to_bits() ^ 1);
            }
            Fault::Inaccurate(_) => values.iter_mut().for_each(|v| *v *= 1.01),
            Fault::Leak(_) if rows >= 2 => {
                for r in 0..rows {
                    values[r * width] += 0.0 * values[(r + 1) % rows * width];
                }
            }
            Fault::Unwritten(_) => match former {
                Some(former) => values[last..].copy_from_slice(&former[last..]),
                None => return,
            },
            _ => return,
        }
        self.inner.write(&mut out.inner, &values);
    }

    /// The batch as [`Fault::StaleKeys`] has it: long spans one position early.
    fn stale(&self, batch: &Batch, group: usize) -> Batch {
        let mut early = Batch::new();
        for span in batch.spans() {
            let tables: Vec<&[u32]> = (0..=group).map(|g| batch.table(span.first_row, g)).collect();
            let start = if span.len >= 2 { span.start.saturating_sub(1) } else { span.start };
            let tokens = &batch.tokens()[span.first_row..][..span.len];
            early.push(span.sequence, start, tokens, &tables, Wanted::None);
        }
        early
    }
}

impl<B: Backend> Backend for Faulty<B> {
    type Buffer = Shaped<B::Buffer>;
    type Weight = B::Weight;
    type Vector = B::Vector;
    type Kv = Traced<B::Kv>;
    type State = Tracked<B::State>;
    type Snapshot = Copied<B::Snapshot>;

    fn describe(&self) -> String {
        format!("{} with the fault {:?}", self.inner.describe(), self.fault)
    }

    fn failure(&self) -> Option<String> {
        if self.is_lost() { Some("the device was taken away on purpose".into()) } else { self.inner.failure() }
    }

    fn page_len(&self) -> usize {
        self.inner.page_len()
    }

    fn step_rows(&self) -> usize {
        self.inner.step_rows()
    }

    fn load_weight(&self, weight: HostWeight) -> Result<B::Weight, ComputeError> {
        self.inner.load_weight(weight)
    }

    fn load_vector(&self, values: &[f32]) -> B::Vector {
        self.inner.load_vector(values)
    }

    fn kv_page_bytes(&self, group: &KvGroup) -> usize {
        self.inner.kv_page_bytes(group)
    }

    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<Self::Kv, ComputeError> {
        Ok(Traced { inner: self.inner.kv_new(layout, pages)?, stored: HashMap::new() })
    }

    fn state_new(&self, layout: &StateLayout, slots: usize, record: usize) -> Result<Self::State, ComputeError> {
        Ok(Tracked::new(self.inner.state_new(layout, slots, record)?, layout, slots))
    }

    fn state_bytes(&self, layout: &StateLayout, record: usize) -> usize {
        self.inner.state_bytes(layout, record)
    }

    fn state_begin(&self, state: &mut Self::State, batch: &Batch) {
        self.begin(state, batch);
    }

    fn state_position(&self, state: &Self::State, slot: usize) -> Option<usize> {
        self.position(state, slot)
    }

    fn state_take_back(&self, state: &mut Self::State, slot: usize, len: usize) -> bool {
        self.take_back(state, slot, len)
    }

    fn state_declare(&self, state: &mut Self::State, slot: usize, position: Option<usize>) {
        self.declare(state, slot, position);
    }

    fn state_save(&self, state: &Self::State, slot: usize) -> Self::Snapshot {
        self.save(state, slot)
    }

    fn state_restore(&self, state: &mut Self::State, slot: usize, snapshot: &Self::Snapshot) {
        self.restore(state, slot, snapshot);
    }

    fn state_read(&self, snapshot: &Self::Snapshot) -> Vec<f32> {
        self.inner.state_read(&snapshot.inner)
    }

    fn buffer(&self, rows: usize, width: usize) -> Self::Buffer {
        Shaped { inner: self.inner.buffer(rows, width), rows, width }
    }

    fn shape(&self, buffer: &Self::Buffer) -> (usize, usize) {
        (buffer.rows, buffer.width)
    }

    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]) {
        self.inner.write(&mut buffer.inner, values);
    }

    fn read(&self, buffer: &Self::Buffer) -> Vec<f32> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.is_lost() { vec![f32::NAN; buffer.rows * buffer.width] } else { self.inner.read(&buffer.inner) }
    }

    fn read_rows(&self, buffer: &Self::Buffer, rows: Range<usize>) -> Vec<f32> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.is_lost() {
            vec![f32::NAN; rows.len() * buffer.width]
        } else {
            self.inner.read_rows(&buffer.inner, rows)
        }
    }

    fn argmax(&self, x: &Self::Buffer) -> Vec<Option<u32>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let right = if self.is_lost() { vec![None; x.rows] } else { self.inner.argmax(&x.inner) };
        match self.fault {
            Fault::ArgmaxTies if x.rows >= 2 => self.argmax_late(x, &right),
            Fault::ArgmaxBlind => self.argmax_blind(x),
            _ => right,
        }
    }

    fn embed(&self, table: &B::Weight, ids: &[u32], scale: f32, out: &mut Self::Buffer) {
        let former = self.former(Verb::Embed, out);
        self.inner.embed(table, ids, scale, &mut out.inner);
        self.spoil(Verb::Embed, out, former);
    }

    fn argmax_into(&self, x: &Self::Buffer, ids: &mut Self::Buffer, at: usize) {
        let former = self.former(Verb::ArgmaxInto, ids);
        if matches!(self.fault, Fault::ArgmaxTies | Fault::ArgmaxBlind) {
            let numbers: Vec<f32> = self.argmax(x).into_iter().map(crate::order::number).collect();
            let rows: Vec<u32> = (at as u32..).take(numbers.len()).collect();
            self.inner.put_rows(&mut ids.inner, &rows, &numbers);
        } else {
            self.inner.argmax_into(&x.inner, &mut ids.inner, at);
        }
        self.spoil(Verb::ArgmaxInto, ids, former);
    }

    fn embed_at(&self, table: &B::Weight, ids: &Self::Buffer, at: usize, scale: f32, out: &mut Self::Buffer) {
        let former = self.former(Verb::EmbedAt, out);
        self.inner.embed_at(table, &ids.inner, at, scale, &mut out.inner);
        self.spoil(Verb::EmbedAt, out, former);
    }

    fn join(&self, a: &Self::Buffer, b: &Self::Buffer, out: &mut Self::Buffer) {
        let former = self.former(Verb::Join, out);
        self.inner.join(&a.inner, &b.inner, &mut out.inner);
        self.spoil(Verb::Join, out, former);
    }

    fn row_dots(&self, table: &B::Weight, ids: &[u32], y: &[f32]) -> Vec<f32> {
        self.inner.row_dots(table, ids, y)
    }

    fn gather(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer) {
        let former = self.former(Verb::Gather, out);
        self.inner.gather(&x.inner, rows, &mut out.inner);
        self.spoil(Verb::Gather, out, former);
    }

    fn rms_norm(&self, x: &Self::Buffer, width: usize, weight: Option<&B::Vector>, eps: f32, out: &mut Self::Buffer) {
        let former = self.former(Verb::RmsNorm, out);
        if self.fault == Fault::NeighbourNorm {
            let mixed = self.changed(x, |values| {
                (1..x.rows).rev().for_each(|r| values[r * x.width] = values[(r - 1) * x.width]);
            });
            self.inner.rms_norm(&mixed.inner, width, weight, eps, &mut out.inner);
        } else {
            self.inner.rms_norm(&x.inner, width, weight, eps, &mut out.inner);
        }
        self.spoil(Verb::RmsNorm, out, former);
    }

    fn add_rms_norm(&self, residual: &mut Self::Buffer, y: &Self::Buffer, weight: &B::Vector, eps: f32, scale: f32) {
        let former = self.former(Verb::AddRmsNorm, residual);
        self.inner.add_rms_norm(&mut residual.inner, &y.inner, weight, eps, scale);
        self.spoil(Verb::AddRmsNorm, residual, former);
    }

    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer, scale: f32) {
        let former = self.former(Verb::Add, x);
        self.inner.add(&mut x.inner, &y.inner, scale);
        self.spoil(Verb::Add, x, former);
    }

    fn add_gated(&self, x: &mut Self::Buffer, y: &Self::Buffer, gate: &Self::Buffer) {
        let former = self.former(Verb::AddGated, x);
        self.inner.add_gated(&mut x.inner, &y.inner, &gate.inner);
        self.spoil(Verb::AddGated, x, former);
    }

    fn add_vector(&self, x: &mut Self::Buffer, vector: &B::Vector) {
        let former = self.former(Verb::AddVector, x);
        self.inner.add_vector(&mut x.inner, vector);
        self.spoil(Verb::AddVector, x, former);
    }

    fn columns(&self, x: &Self::Buffer, period: usize, offset: usize, width: usize, out: &mut Self::Buffer) {
        let former = self.former(Verb::Columns, out);
        self.inner.columns(&x.inner, period, offset, width, &mut out.inner);
        self.spoil(Verb::Columns, out, former);
    }

    fn scale(&self, x: &mut Self::Buffer, weight: Option<&B::Vector>, scale: f32) {
        let former = self.former(Verb::Scale, x);
        self.inner.scale(&mut x.inner, weight, scale);
        self.spoil(Verb::Scale, x, former);
    }

    fn linear(&self, x: &Self::Buffer, weights: &[&B::Weight], outs: &mut [&mut Self::Buffer]) {
        let former: Vec<_> = outs.iter().map(|out| self.former(Verb::Linear, out)).collect();
        let third = self.fault == Fault::WidthDependentSum && x.rows >= 4;
        {
            let mut inner: Vec<&mut B::Buffer> = outs.iter_mut().map(|out| &mut out.inner).collect();
            if third {
                let x = self.changed(x, |values| values.iter_mut().for_each(|v| *v /= 3.0));
                self.inner.linear(&x.inner, weights, &mut inner);
            } else {
                self.inner.linear(&x.inner, weights, &mut inner);
            }
        }
        for (out, former) in outs.iter_mut().zip(former) {
            if third {
                let tripled: Vec<f32> = self.inner.read(&out.inner).iter().map(|v| v * 3.0).collect();
                self.inner.write(&mut out.inner, &tripled);
            }
            self.spoil(Verb::Linear, out, former);
        }
    }

    fn gated(&self, x: &Self::Buffer, gate: &B::Weight, up: &B::Weight, act: Activation, out: &mut Self::Buffer) {
        let former = self.former(Verb::Gated, out);
        self.inner.gated(&x.inner, gate, up, act, &mut out.inner);
        self.spoil(Verb::Gated, out, former);
    }

    fn activate_mul(&self, x: &mut Self::Buffer, act: Activation, y: &Self::Buffer, column: usize) {
        let former = self.former(Verb::ActivateMul, x);
        self.inner.activate_mul(&mut x.inner, act, &y.inner, column);
        self.spoil(Verb::ActivateMul, x, former);
    }

    fn softcap(&self, x: &mut Self::Buffer, cap: f32) {
        let former = self.former(Verb::Softcap, x);
        self.inner.softcap(&mut x.inner, cap);
        self.spoil(Verb::Softcap, x, former);
    }

    fn rope(&self, x: &mut Self::Buffer, head_dim: usize, angles: &Self::Buffer) {
        let former = self.former(Verb::Rope, x);
        self.inner.rope(&mut x.inner, head_dim, &angles.inner);
        self.spoil(Verb::Rope, x, former);
    }

    fn rope_angles(&self, positions: &[u32], axes: usize, axis: &[u8], frequencies: &B::Vector) -> Self::Buffer {
        let axis = if self.fault == Fault::AxisIgnored { &[] } else { axis };
        let inner = self.inner.rope_angles(positions, axes, axis, frequencies);
        let rows = positions.len() / axes;
        let width = self.inner.read(&inner).len() / rows.max(1);
        let mut angles = Shaped { inner, rows, width };
        let nothing = (self.fault == Fault::Unwritten(Verb::RopeAngles) && angles.rows >= 5)
            .then(|| vec![f32::NAN; angles.rows * width]);
        self.spoil(Verb::RopeAngles, &mut angles, nothing);
        angles
    }

    fn kv_append(&self, kv: &mut Self::Kv, slot: KvSlot, batch: &Batch, k: &Self::Buffer, v: &Self::Buffer) {
        if self.fault != Fault::Residue {
            return self.inner.kv_append(&mut kv.inner, slot, batch, &k.inner, &v.inner);
        }
        let stained = self.changed(k, |values| {
            for (r, row) in values.chunks_exact_mut(k.width).enumerate() {
                let position = batch.positions()[r] as usize;
                let page = batch.table(r, slot.group)[position / self.page_len()];
                let place = (slot.group, slot.layer, page, position % self.page_len());
                if let Some(old) = kv.stored.insert(place, row.to_vec()) {
                    let old = old.iter().map(|v| if v.is_finite() { v * 1e-3 } else { 0.0 });
                    row.iter_mut().zip(old).for_each(|(new, old)| *new += old);
                }
            }
        });
        self.inner.kv_append(&mut kv.inner, slot, batch, &stained.inner, &v.inner);
    }

    fn attend(
        &self,
        kv: &Self::Kv,
        slot: KvSlot,
        batch: &Batch,
        q: &Self::Buffer,
        spec: Attend,
        out: &mut Self::Buffer,
    ) {
        let former = self.former(Verb::Attend, out);
        match self.fault {
            Fault::StaleKeys => {
                let early = self.stale(batch, slot.group);
                self.inner.attend(&kv.inner, slot, &early, &q.inner, spec, &mut out.inner);
            }
            Fault::ChunkAttention => {
                let other = self.changed(q, |values| {
                    for span in batch.spans().iter().filter(|span| span.len > 8) {
                        let rows = &mut values[span.first_row * q.width..][..span.len * q.width];
                        rows.iter_mut().for_each(|v| *v = *v / 3.0 * 3.000_001);
                    }
                });
                self.inner.attend(&kv.inner, slot, batch, &other.inner, spec, &mut out.inner);
            }
            _ => self.inner.attend(&kv.inner, slot, batch, &q.inner, spec, &mut out.inner),
        }
        self.spoil(Verb::Attend, out, former);
    }

    fn moe(&self, router: &Self::Buffer, x: &Self::Buffer, experts: &Experts<'_, Self>, out: &mut Self::Buffer) {
        let former = self.former(Verb::Moe, out);
        let experts = Experts::<B> {
            gate: experts.gate,
            up: experts.up,
            down: experts.down,
            scale: experts.scale,
            top_k: experts.top_k,
            activation: experts.activation,
        };
        match self.fault {
            Fault::MoeOrder if x.rows >= 2 => self.moe_backwards(router, &x.inner, &experts, out),
            Fault::MoeTies if x.rows >= 2 => {
                let tilted = self.changed(router, |values| {
                    values.iter_mut().enumerate().for_each(|(i, v)| *v += 1e-5 * (i % router.width) as f32);
                });
                self.inner.moe(&tilted.inner, &x.inner, &experts, &mut out.inner);
            }
            _ => self.inner.moe(&router.inner, &x.inner, &experts, &mut out.inner),
        }
        self.spoil(Verb::Moe, out, former);
    }

    fn causal_conv(
        &self,
        state: &mut Self::State,
        layer: usize,
        x: &Self::Buffer,
        weight: &B::Vector,
        out: &mut Self::Buffer,
    ) {
        let former = self.former(Verb::CausalConv, out);
        let own = self.layer(state, layer, x.rows);
        self.inner.causal_conv(&mut state.inner, own, &x.inner, weight, &mut out.inner);
        self.keep_windows(state, layer, x);
        self.spoil(Verb::CausalConv, out, former);
    }

    fn gated_delta(
        &self,
        state: &mut Self::State,
        layer: usize,
        qkv: &Self::Buffer,
        a: &Self::Buffer,
        b: &Self::Buffer,
        gates: &DeltaGates<'_, Self>,
        out: &mut Self::Buffer,
    ) {
        let former = self.former(Verb::GatedDelta, out);
        let layer = self.layer(state, layer, qkv.rows);
        let gates = DeltaGates::<B> { rate: gates.rate, dt_bias: gates.dt_bias };
        if self.fault == Fault::ChunkedDelta {
            let other = self.changed(qkv, |values| {
                for span in state.spans.iter().filter(|span| span.len >= 16) {
                    let rows = &mut values[span.first_row * qkv.width..][..span.len * qkv.width];
                    rows.iter_mut().for_each(|v| *v = *v / 3.0 * 3.000_001);
                }
            });
            self.inner.gated_delta(&mut state.inner, layer, &other.inner, &a.inner, &b.inner, &gates, &mut out.inner);
        } else {
            self.inner.gated_delta(&mut state.inner, layer, &qkv.inner, &a.inner, &b.inner, &gates, &mut out.inner);
        }
        if self.fault == Fault::HiddenDamage {
            let shown: Vec<f32> = self.inner.read(&out.inner);
            let hidden: Vec<f32> = shown.iter().map(|v| if v.is_finite() { *v } else { 0.0 }).collect();
            self.inner.write(&mut out.inner, &hidden);
        }
        self.spoil(Verb::GatedDelta, out, former);
    }
}
