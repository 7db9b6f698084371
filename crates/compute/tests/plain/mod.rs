//! A plain f32 backend: int8 activations for quantised matrices, bf16 pages, plain sums, the functions of `order`.

mod recurrent;

use mlxcel_compute::dequant::dequantize_row;
use mlxcel_compute::order::{self, activation_group, quantize_group};
use mlxcel_compute::{
    Activation, Attend, Backend, Batch, ComputeError, DeltaGates, Experts, HostWeight, KvGroup, KvSlot, StateLayout,
    WeightFormat,
};

use recurrent::{Snapshot, State};

/// The backend.
pub struct Plain;

/// Activations.
pub struct Rows {
    width: usize,
    data: Vec<f32>,
}

impl Rows {
    fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.width)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.data.chunks_exact_mut(self.width)
    }
}

/// Dequantised matrices.
pub struct Weight {
    outputs: usize,
    inputs: usize,
    quantised: bool,
    data: Vec<f32>, // (experts, outputs, inputs)
}

impl Weight {
    fn apply(&self, expert: usize, x: &[f32]) -> Vec<f32> {
        let x = if self.quantised { rounded(x) } else { x.to_vec() };
        let size = self.outputs * self.inputs;
        self.data[expert * size..][..size].chunks_exact(self.inputs).map(|w| dot(&x, w)).collect()
    }
}

/// One after another: not the order of `order::dot`, whose fused operations are slow without the instruction.
fn dot(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

/// A row as int8 groups hold it.
fn rounded(x: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    for group in x.chunks(activation_group(x.len())) {
        let mut codes = vec![0i8; group.len()];
        let scale = quantize_group(group, &mut codes);
        out.extend(codes.iter().map(|c| f32::from(*c) * scale));
    }
    out
}

fn activate(act: Activation, x: f32) -> f32 {
    match act {
        Activation::GeluTanh => order::gelu_tanh(x),
        Activation::Silu => x / (order::exp(-x) + 1.0),
        Activation::Sigmoid => 1.0 / (order::exp(-x) + 1.0),
    }
}

fn norm(x: &[f32], weight: Option<&Vec<f32>>, eps: f32) -> Vec<f32> {
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| v * factor * weight.map_or(1.0, |w| w[i])).collect()
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|s| *s = order::exp(*s - max));
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
}

/// Cached rows.
pub type Pages = Vec<Vec<(Rows, Rows)>>; // [group][layer], rows by slot

const PAGE_LEN: usize = 64;

fn place(batch: &Batch, row: usize, group: usize, position: usize) -> usize {
    batch.table(row, group)[position / PAGE_LEN] as usize * PAGE_LEN + position % PAGE_LEN
}

impl Backend for Plain {
    type Buffer = Rows;
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Kv = Pages;
    type State = State;
    type Snapshot = Snapshot;

    fn describe(&self) -> String {
        "plain f32".into()
    }

    fn page_len(&self) -> usize {
        PAGE_LEN
    }

    fn load_weight(&self, weight: HostWeight) -> Result<Weight, ComputeError> {
        let mut data = vec![0.0; weight.experts * weight.outputs * weight.inputs];
        for (i, row) in data.chunks_exact_mut(weight.inputs).enumerate() {
            dequantize_row(&weight, i / weight.outputs, i % weight.outputs, row);
        }
        let quantised = matches!(weight.format, WeightFormat::Quant(..));
        Ok(Weight { outputs: weight.outputs, inputs: weight.inputs, quantised, data })
    }

    fn load_vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn kv_page_bytes(&self, group: &KvGroup) -> usize {
        group.layers.iter().map(|l| l.kv_heads * l.head_dim * PAGE_LEN * 8).sum()
    }

    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<Pages, ComputeError> {
        let rows = |pages: usize, width: usize| Rows { width, data: vec![0.0; pages * PAGE_LEN * width] };
        let group = |(g, p): (&KvGroup, &usize)| {
            g.layers.iter().map(|l| l.kv_heads * l.head_dim).map(|w| (rows(*p, w), rows(*p, w))).collect()
        };
        Ok(layout.iter().zip(pages).map(group).collect())
    }

    fn state_new(&self, layout: &StateLayout, slots: usize, record: usize) -> Result<State, ComputeError> {
        Ok(State::new(layout, slots, record))
    }

    fn state_bytes(&self, layout: &StateLayout, _record: usize) -> usize {
        2 * layout.values() * size_of::<f32>()
    }

    fn state_begin(&self, state: &mut State, batch: &Batch) {
        state.passes = state.slots.begin(batch);
    }

    fn state_position(&self, state: &State, slot: usize) -> Option<usize> {
        state.slots.position(slot)
    }

    fn state_take_back(&self, state: &mut State, slot: usize, len: usize) -> bool {
        state.take_back(slot, len)
    }

    fn state_declare(&self, state: &mut State, slot: usize, position: Option<usize>) {
        state.slots.declare(slot, position);
    }

    fn state_save(&self, state: &State, slot: usize) -> Snapshot {
        state.save(slot)
    }

    fn state_restore(&self, state: &mut State, slot: usize, snapshot: &Snapshot) {
        state.restore(slot, snapshot);
    }

    fn state_read(&self, snapshot: &Snapshot) -> Vec<f32> {
        snapshot.read()
    }

    fn buffer(&self, rows: usize, width: usize) -> Rows {
        Rows { width, data: vec![7.0; rows * width] }
    }

    fn shape(&self, buffer: &Rows) -> (usize, usize) {
        (buffer.data.len() / buffer.width, buffer.width)
    }

    fn write(&self, buffer: &mut Rows, values: &[f32]) {
        buffer.data.copy_from_slice(values);
    }

    fn read(&self, buffer: &Rows) -> Vec<f32> {
        buffer.data.clone()
    }

    fn embed(&self, table: &Weight, ids: &[u32], scale: f32, out: &mut Rows) {
        for (row, id) in out.iter_mut().zip(ids) {
            let from = &table.data[*id as usize * table.inputs..];
            row.iter_mut().zip(from).for_each(|(o, w)| *o = w * scale);
        }
    }

    fn gather(&self, x: &Rows, rows: &[u32], out: &mut Rows) {
        for (row, r) in out.iter_mut().zip(rows) {
            row.copy_from_slice(&x.data[*r as usize * x.width..][..x.width]);
        }
    }

    fn rms_norm(&self, x: &Rows, width: usize, weight: Option<&Vec<f32>>, eps: f32, out: &mut Rows) {
        out.data = x.data.chunks_exact(width).flat_map(|head| norm(head, weight, eps)).collect();
    }

    fn add_rms_norm(&self, residual: &mut Rows, y: &Rows, weight: &Vec<f32>, eps: f32, scale: f32) {
        for (row, y) in residual.iter_mut().zip(y.iter()) {
            row.iter_mut().zip(norm(y, Some(weight), eps)).for_each(|(x, n)| *x = (*x + n) * scale);
        }
    }

    fn add(&self, x: &mut Rows, y: &Rows, scale: f32) {
        x.data.iter_mut().zip(&y.data).for_each(|(x, y)| *x = (*x + y) * scale);
    }

    fn add_gated(&self, x: &mut Rows, y: &Rows, gate: &Rows) {
        for ((row, y), gate) in x.iter_mut().zip(y.iter()).zip(&gate.data) {
            row.iter_mut().zip(y).for_each(|(x, y)| *x += activate(Activation::Sigmoid, *gate) * y);
        }
    }

    fn add_vector(&self, x: &mut Rows, vector: &Vec<f32>) {
        x.iter_mut().for_each(|row| row.iter_mut().zip(vector).for_each(|(x, v)| *x += v));
    }

    fn columns(&self, x: &Rows, period: usize, offset: usize, width: usize, out: &mut Rows) {
        out.data = x.data.chunks_exact(period).flat_map(|run| &run[offset..offset + width]).copied().collect();
    }

    fn scale(&self, x: &mut Rows, weight: Option<&Vec<f32>>, scale: f32) {
        for row in x.iter_mut() {
            row.iter_mut().enumerate().for_each(|(i, v)| *v *= scale * weight.map_or(1.0, |w| w[i]));
        }
    }

    fn linear(&self, x: &Rows, weights: &[&Weight], outs: &mut [&mut Rows]) {
        for (w, out) in weights.iter().zip(outs) {
            out.data = x.iter().flat_map(|row| w.apply(0, row)).collect();
        }
    }

    fn gated(&self, x: &Rows, gate: &Weight, up: &Weight, act: Activation, out: &mut Rows) {
        let row = |x| gate.apply(0, x).into_iter().zip(up.apply(0, x)).map(|(g, u)| activate(act, g) * u);
        out.data = x.iter().flat_map(row).collect();
    }

    fn activate_mul(&self, x: &mut Rows, act: Activation, y: &Rows, column: usize) {
        for (row, y) in x.iter_mut().zip(y.iter()) {
            row.iter_mut().zip(&y[column..]).for_each(|(x, y)| *x = activate(act, *x) * y);
        }
    }

    fn softcap(&self, x: &mut Rows, cap: f32) {
        x.data.iter_mut().for_each(|x| *x = cap * order::tanh(*x / cap));
    }

    fn rope(&self, x: &mut Rows, head_dim: usize, angles: &Rows) {
        let half = angles.width / 2;
        for (row, angles) in x.iter_mut().zip(angles.iter()) {
            for head in row.chunks_exact_mut(head_dim) {
                for i in 0..half {
                    let (a, b, cos, sin) = (head[i], head[i + half], angles[i], angles[half + i]);
                    (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
    }

    fn rope_angles(&self, positions: &[u32], axes: usize, axis: &[u8], frequencies: &Vec<f32>) -> Rows {
        let mut data = Vec::new();
        for row in positions.chunks_exact(axes) {
            let position = |i: usize| row[axis.get(i).map_or(0, |a| usize::from(*a))] as f32;
            let angles: Vec<f32> = frequencies.iter().enumerate().map(|(i, w)| position(i) * w).collect();
            data.extend(angles.iter().map(|angle| angle.cos()).chain(angles.iter().map(|angle| angle.sin())));
        }
        Rows { width: 2 * frequencies.len(), data }
    }

    fn kv_append(&self, kv: &mut Pages, slot: KvSlot, batch: &Batch, k: &Rows, v: &Rows) {
        let (keys, values) = &mut kv[slot.group][slot.layer];
        for (pages, rows) in [(keys, k), (values, v)] {
            for (r, row) in rows.iter().enumerate() {
                let at = place(batch, r, slot.group, batch.positions()[r] as usize) * rows.width;
                let to = &mut pages.data[at..][..rows.width];
                to.iter_mut().zip(row).for_each(|(p, v)| *p = half::bf16::from_f32(*v).to_f32());
            }
        }
    }

    fn attend(&self, kv: &Pages, slot: KvSlot, batch: &Batch, q: &Rows, spec: Attend, out: &mut Rows) {
        let (keys, values) = &kv[slot.group][slot.layer];
        let dim = q.width / spec.heads;
        let share = spec.heads / (keys.width / dim);
        for (r, (q, out)) in q.iter().zip(out.iter_mut()).enumerate() {
            let position = batch.positions()[r] as usize;
            let first = spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
            for (h, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
                let at = |j: usize| place(batch, r, slot.group, j) * keys.width + h / share * dim;
                let score = |j: usize| dot(q, &keys.data[at(j)..][..dim]) * spec.scale;
                let mut p: Vec<f32> = (first..=position).map(score).collect();
                softmax(&mut p);
                out.fill(0.0);
                for (p, j) in p.iter().zip(first..) {
                    out.iter_mut().zip(&values.data[at(j)..][..dim]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
    }

    fn moe(&self, router: &Rows, x: &Rows, experts: &Experts<'_, Self>, out: &mut Rows) {
        for ((p, x), out) in router.iter().zip(x.iter()).zip(out.iter_mut()) {
            let mut p = p.to_vec();
            softmax(&mut p);
            let mut rank: Vec<usize> = (0..p.len()).collect();
            rank.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
            rank.truncate(experts.top_k);
            let sum: f32 = rank.iter().map(|e| p[*e]).sum();
            out.fill(0.0);
            for e in rank {
                let (g, u) = (experts.gate.apply(e, x), experts.up.apply(e, x));
                let h: Vec<f32> = g.iter().zip(&u).map(|(g, u)| activate(experts.activation, *g) * u).collect();
                let factor = p[e] / sum * experts.scale[e];
                out.iter_mut().zip(experts.down.apply(e, &h)).for_each(|(o, y)| *o += factor * y);
            }
        }
    }

    fn causal_conv(&self, state: &mut State, layer: usize, x: &Rows, weight: &Vec<f32>, out: &mut Rows) {
        state.conv(layer, &x.data, weight, &mut out.data);
    }

    fn gated_delta(
        &self,
        state: &mut State,
        layer: usize,
        qkv: &Rows,
        a: &Rows,
        b: &Rows,
        gates: &DeltaGates<'_, Self>,
        out: &mut Rows,
    ) {
        state.delta(layer, &qkv.data, (&a.data, &b.data), (gates.rate, gates.dt_bias), &mut out.data);
    }
}
