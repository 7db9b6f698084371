//! The slow, obvious meaning of every verb, in f64: what kernels are compared with in bounds.
//!
//! One row at a time, whole softmax rows, no blocks, no tricks. It also keeps the row law, trivially, and so serves as
//! the first subject of the conformance suite.

use crate::backend::{Activation, Attend, Backend, ComputeError, DeltaGates, Experts, KvGroup, KvSlot};
use crate::dequant::dequantize_row;
use crate::{Batch, HostWeight, StateLayout};

mod recurrent;

pub use recurrent::{RefSnapshot, RefState};

/// The reference backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// Activations in f64, `[rows, width]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Number of rows.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// Row-major values.
    pub data: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, width: usize) -> Self {
        Matrix { rows, width, data: vec![0.0; rows * width] }
    }

    fn row(&self, r: usize) -> &[f64] {
        &self.data[r * self.width..][..self.width]
    }

    fn row_mut(&mut self, r: usize) -> &mut [f64] {
        &mut self.data[r * self.width..][..self.width]
    }
}

/// A stack of matrices, dequantised.
pub struct Dense {
    outputs: usize,
    inputs: usize,
    data: Vec<f32>,
}

impl Dense {
    fn row(&self, expert: usize, output: usize) -> &[f32] {
        &self.data[(expert * self.outputs + output) * self.inputs..][..self.inputs]
    }

    fn apply(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        (0..self.outputs).map(|o| self.row(expert, o).iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    }
}

/// Cached rows: `[group][layer]` maps a flat slot (page * page_len + offset) to its K and V row.
pub struct RefKv {
    layers: Vec<Vec<(Matrix, Matrix)>>,
}

const PAGE_LEN: usize = 16;

fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        // Saturation must not hide an infinity.
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()) + x * 0.0,
    }
}

fn norm(x: &[f64], weight: Option<&Vec<f32>>, eps: f32, out: &mut [f64]) {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    for (i, (o, v)) in out.iter_mut().zip(x).enumerate() {
        *o = v * factor * weight.map_or(1.0, |w| f64::from(w[i]));
    }
}

fn softmax(scores: &mut [f64]) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|s| *s = (*s - max).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
}

fn slot_of(batch: &Batch, row: usize, group: usize, position: usize) -> usize {
    batch.table(row, group)[position / PAGE_LEN] as usize * PAGE_LEN + position % PAGE_LEN
}

impl Backend for Reference {
    type Buffer = Matrix;
    type Weight = Dense;
    type Vector = Vec<f32>;
    type Kv = RefKv;
    type State = RefState;
    type Snapshot = RefSnapshot;

    fn describe(&self) -> String {
        "reference f64".into()
    }

    fn page_len(&self) -> usize {
        PAGE_LEN
    }

    fn load_weight(&self, weight: HostWeight) -> Result<Dense, ComputeError> {
        let mut data = vec![0.0; weight.experts * weight.outputs * weight.inputs];
        for (i, row) in data.chunks_exact_mut(weight.inputs).enumerate() {
            dequantize_row(&weight, i / weight.outputs, i % weight.outputs, row);
        }
        Ok(Dense { outputs: weight.outputs, inputs: weight.inputs, data })
    }

    fn load_vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn kv_page_bytes(&self, group: &KvGroup) -> usize {
        group.layers.iter().map(|l| l.kv_heads * l.head_dim * PAGE_LEN * 2 * size_of::<f64>()).sum()
    }

    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<RefKv, ComputeError> {
        let layer = |rows: usize, width: usize| {
            // Unwritten slots are NaN: a kernel that reads a masked key shows it.
            let mut m = Matrix::new(rows, width);
            m.data.fill(f64::NAN);
            m
        };
        let layers = layout
            .iter()
            .zip(pages)
            .map(|(g, p)| {
                let make = |w: usize| layer(p * PAGE_LEN, w);
                g.layers.iter().map(|s| (make(s.kv_heads * s.head_dim), make(s.kv_heads * s.head_dim))).collect()
            })
            .collect();
        Ok(RefKv { layers })
    }

    fn state_new(&self, layout: &StateLayout, slots: usize, record: usize) -> Result<RefState, ComputeError> {
        Ok(RefState::new(layout, slots, record))
    }

    fn state_bytes(&self, layout: &StateLayout, record: usize) -> usize {
        layout.values() * (record + 1) * size_of::<f64>()
    }

    fn state_begin(&self, state: &mut RefState, batch: &Batch) {
        state.begin(batch);
    }

    fn state_position(&self, state: &RefState, slot: usize) -> Option<usize> {
        state.position(slot)
    }

    fn state_take_back(&self, state: &mut RefState, slot: usize, len: usize) -> bool {
        state.take_back(slot, len)
    }

    fn state_declare(&self, state: &mut RefState, slot: usize, position: Option<usize>) {
        state.declare(slot, position);
    }

    fn state_save(&self, state: &RefState, slot: usize) -> RefSnapshot {
        state.save(slot)
    }

    fn state_restore(&self, state: &mut RefState, slot: usize, snapshot: &RefSnapshot) {
        state.restore(slot, snapshot);
    }

    fn state_read(&self, snapshot: &RefSnapshot) -> Vec<f32> {
        snapshot.read()
    }

    fn buffer(&self, rows: usize, width: usize) -> Matrix {
        Matrix::new(rows, width)
    }

    fn shape(&self, buffer: &Matrix) -> (usize, usize) {
        (buffer.rows, buffer.width)
    }

    fn write(&self, buffer: &mut Matrix, values: &[f32]) {
        assert_eq!(buffer.data.len(), values.len(), "values to write");
        buffer.data.iter_mut().zip(values).for_each(|(d, v)| *d = f64::from(*v));
    }

    fn read(&self, buffer: &Matrix) -> Vec<f32> {
        buffer.data.iter().map(|v| *v as f32).collect()
    }

    fn embed(&self, table: &Dense, ids: &[u32], scale: f32, out: &mut Matrix) {
        for (r, id) in ids.iter().enumerate() {
            for (o, w) in out.row_mut(r).iter_mut().zip(table.row(0, *id as usize)) {
                *o = f64::from(*w) * f64::from(scale);
            }
        }
    }

    fn gather(&self, x: &Matrix, rows: &[u32], out: &mut Matrix) {
        for (i, r) in rows.iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(*r as usize));
        }
    }

    fn rms_norm(&self, x: &Matrix, width: usize, weight: Option<&Vec<f32>>, eps: f32, out: &mut Matrix) {
        for (o, x) in out.data.chunks_exact_mut(width).zip(x.data.chunks_exact(width)) {
            norm(x, weight, eps, o);
        }
    }

    fn add_rms_norm(&self, residual: &mut Matrix, y: &Matrix, weight: &Vec<f32>, eps: f32, scale: f32) {
        let mut normed = vec![0.0; y.width];
        for r in 0..y.rows {
            norm(y.row(r), Some(weight), eps, &mut normed);
            for (x, n) in residual.row_mut(r).iter_mut().zip(&normed) {
                *x = (*x + n) * f64::from(scale);
            }
        }
    }

    fn add(&self, x: &mut Matrix, y: &Matrix, scale: f32) {
        x.data.iter_mut().zip(&y.data).for_each(|(x, y)| *x = (*x + y) * f64::from(scale));
    }

    fn add_gated(&self, x: &mut Matrix, y: &Matrix, gate: &Matrix) {
        for r in 0..x.rows {
            let factor = activate(Activation::Sigmoid, gate.data[r]);
            x.row_mut(r).iter_mut().zip(y.row(r)).for_each(|(x, y)| *x += factor * y);
        }
    }

    fn add_vector(&self, x: &mut Matrix, vector: &Vec<f32>) {
        for row in x.data.chunks_exact_mut(vector.len()) {
            row.iter_mut().zip(vector).for_each(|(x, v)| *x += f64::from(*v));
        }
    }

    fn columns(&self, x: &Matrix, period: usize, offset: usize, width: usize, out: &mut Matrix) {
        let runs = x.data.chunks_exact(period).flat_map(|run| &run[offset..offset + width]);
        out.data.iter_mut().zip(runs).for_each(|(o, v)| *o = *v);
    }

    fn scale(&self, x: &mut Matrix, weight: Option<&Vec<f32>>, scale: f32) {
        let width = x.width;
        for row in x.data.chunks_exact_mut(width) {
            for (i, v) in row.iter_mut().enumerate() {
                *v *= f64::from(scale) * weight.map_or(1.0, |w| f64::from(w[i]));
            }
        }
    }

    fn linear(&self, x: &Matrix, weights: &[&Dense], outs: &mut [&mut Matrix]) {
        for (w, out) in weights.iter().zip(outs) {
            for r in 0..x.rows {
                out.row_mut(r).copy_from_slice(&w.apply(0, x.row(r)));
            }
        }
    }

    fn gated(&self, x: &Matrix, gate: &Dense, up: &Dense, act: Activation, out: &mut Matrix) {
        for r in 0..x.rows {
            let (g, u) = (gate.apply(0, x.row(r)), up.apply(0, x.row(r)));
            for (o, (g, u)) in out.row_mut(r).iter_mut().zip(g.iter().zip(&u)) {
                *o = activate(act, *g) * u;
            }
        }
    }

    fn activate_mul(&self, x: &mut Matrix, act: Activation, y: &Matrix, column: usize) {
        for r in 0..x.rows {
            for (x, y) in x.row_mut(r).iter_mut().zip(&y.row(r)[column..]) {
                *x = activate(act, *x) * y;
            }
        }
    }

    fn softcap(&self, x: &mut Matrix, cap: f32) {
        let cap = f64::from(cap);
        x.data.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
    }

    fn rope(&self, x: &mut Matrix, head_dim: usize, angles: &Matrix) {
        let n = angles.width / 2;
        for r in 0..x.rows {
            let (cos, sin) = angles.row(r).split_at(n);
            for head in x.data[r * x.width..][..x.width].chunks_exact_mut(head_dim) {
                for i in 0..n {
                    let (a, b) = (head[i], head[i + n]);
                    head[i] = a * cos[i] - b * sin[i];
                    head[i + n] = b * cos[i] + a * sin[i];
                }
            }
        }
    }

    fn rope_angles(&self, positions: &[u32], axes: usize, axis: &[u8], frequencies: &Vec<f32>) -> Matrix {
        let n = frequencies.len();
        let mut out = Matrix::new(positions.len() / axes, 2 * n);
        for (r, row) in positions.chunks_exact(axes).enumerate() {
            for (i, f) in frequencies.iter().enumerate() {
                let position = row[axis.get(i).map_or(0, |a| usize::from(*a))];
                let angle = f64::from(position as f32 * f); // the angle itself is f32 by definition
                out.row_mut(r)[i] = angle.cos();
                out.row_mut(r)[n + i] = angle.sin();
            }
        }
        out
    }

    fn kv_append(&self, kv: &mut RefKv, slot: KvSlot, batch: &Batch, k: &Matrix, v: &Matrix) {
        let (keys, values) = &mut kv.layers[slot.group][slot.layer];
        for r in 0..k.rows {
            let at = slot_of(batch, r, slot.group, batch.positions()[r] as usize);
            keys.row_mut(at).copy_from_slice(k.row(r));
            values.row_mut(at).copy_from_slice(v.row(r));
        }
    }

    fn attend(&self, kv: &RefKv, slot: KvSlot, batch: &Batch, q: &Matrix, spec: Attend, out: &mut Matrix) {
        let (keys, values) = &kv.layers[slot.group][slot.layer];
        let dim = q.width / spec.heads;
        let share = spec.heads / (keys.width / dim);
        for r in 0..q.rows {
            let position = batch.positions()[r] as usize;
            let first = spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
            let slots: Vec<usize> = (first..=position).map(|j| slot_of(batch, r, slot.group, j)).collect();
            for h in 0..spec.heads {
                let from = h / share * dim;
                let query = &q.row(r)[h * dim..][..dim];
                let mut p: Vec<f64> = slots
                    .iter()
                    .map(|s| {
                        keys.row(*s)[from..][..dim].iter().zip(query).map(|(k, q)| k * q).sum::<f64>()
                            * f64::from(spec.scale)
                    })
                    .collect();
                softmax(&mut p);
                let target = &mut out.row_mut(r)[h * dim..][..dim];
                target.fill(0.0);
                for (p, s) in p.iter().zip(&slots) {
                    target.iter_mut().zip(&values.row(*s)[from..][..dim]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
    }

    fn moe(&self, router: &Matrix, x: &Matrix, experts: &Experts<'_, Self>, out: &mut Matrix) {
        for r in 0..x.rows {
            let mut p = router.row(r).to_vec();
            softmax(&mut p);
            let mut order: Vec<usize> = (0..p.len()).collect();
            order.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
            order.truncate(experts.top_k);
            let sum: f64 = order.iter().map(|e| p[*e]).sum();
            out.row_mut(r).fill(0.0);
            for e in order {
                let (g, u) = (experts.gate.apply(e, x.row(r)), experts.up.apply(e, x.row(r)));
                let inner: Vec<f64> = g.iter().zip(&u).map(|(g, u)| activate(experts.activation, *g) * u).collect();
                let factor = p[e] / sum * f64::from(experts.scale[e]);
                let y = experts.down.apply(e, &inner);
                out.row_mut(r).iter_mut().zip(&y).for_each(|(o, y)| *o += factor * y);
            }
        }
    }

    fn causal_conv(&self, state: &mut RefState, layer: usize, x: &Matrix, weight: &Vec<f32>, out: &mut Matrix) {
        state.conv(layer, x, weight, out);
    }

    fn gated_delta(
        &self,
        state: &mut RefState,
        layer: usize,
        qkv: &Matrix,
        a: &Matrix,
        b: &Matrix,
        gates: &DeltaGates<'_, Self>,
        out: &mut Matrix,
    ) {
        state.delta(layer, qkv, (a, b), (gates.rate, gates.dt_bias), out);
    }
}
