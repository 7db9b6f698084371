//! [`CpuBackend`]: the verbs of [`Backend`], each a few lines over a kernel in `ops/`.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use mlxcel_compute::{
    Activation, Attend, Backend, Batch, ComputeError, DType, DeltaGates, Experts, HostWeight, KvGroup, KvSlot,
    QuantFormat, StateLayout, WeightFormat, order,
};

use crate::arch::{Isa, Kernel};
use crate::buffer::{Arena, CpuBuffer, Shared};
use crate::kv::{self, CpuKv, PAGE_LEN};
use crate::lanes::Lanes;
use crate::memory::Slabs;
use crate::ops::decode::decode_row;
use crate::ops::linear::{Input, Job, row_dots, run};
use crate::ops::panel::{PanelFormat, Panels};
use crate::ops::{argmax, attend, delta, moe, rows};
use crate::pool::Pool;
use crate::state::{self, CpuSnapshot, CpuState};

/// How activations enter quantised linears, and what KV pages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Activations stay f32, pages hold f32: for parity with references.
    F32,
    /// int8 activations per row and group with integer dot products, bf16 pages: the fast one.
    Int8,
}

impl Precision {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Int8 => "int8",
        }
    }
}

/// A weight as it lies in the file, and the copy that int8 products read, made at the first of them.
pub struct CpuWeight {
    pub(crate) host: HostWeight,
    /// The copy's layout, or nothing when the weight is multiplied by f32 activations. Depends on the weight and on the
    /// precision, never on the number of rows.
    format: Option<PanelFormat>,
    panels: OnceLock<Panels>,
    slabs: Arc<Slabs>,
}

impl CpuWeight {
    /// The panels, or nothing when the weight is multiplied by f32 activations.
    pub(crate) fn panels(&self, pool: &Pool) -> Option<&Panels> {
        let format = self.format?;
        Some(self.panels.get_or_init(|| {
            let panels = Panels::new(pool, &self.slabs, &self.host, format);
            self.host.unused();
            panels
        }))
    }
}

/// The CPU as a backend.
pub struct CpuBackend {
    pub(crate) precision: Precision,
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
    pub(crate) arena: Arc<Arena>,
    slabs: Arc<Slabs>,
}

impl CpuBackend {
    /// A backend with the machine's best instruction set and `threads` threads.
    pub fn new(precision: Precision, threads: usize) -> Self {
        Self::with_isa(precision, threads, Isa::best())
    }

    /// A backend with a chosen instruction set.
    pub fn with_isa(precision: Precision, threads: usize, isa: Isa) -> Self {
        CpuBackend { precision, isa, pool: Pool::new(threads), arena: Arc::default(), slabs: Arc::default() }
    }

    /// The thread pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs `f(first_row, rows)` over all rows, in parallel when there is enough to do. `f` must touch only its rows.
    pub(crate) fn each_row(&self, rows: usize, width: usize, f: impl Fn(usize) + Sync) {
        if rows * width < 16_384 {
            (0..rows).for_each(f);
        } else {
            let step = rows.div_ceil(self.pool.threads() * 4);
            self.pool.run(rows.div_ceil(step), &|c| (c * step..((c + 1) * step).min(rows)).for_each(&f));
        }
    }

    /// Runs `f(row index, row)` on each row of a buffer, in place.
    fn map_rows(&self, x: &mut CpuBuffer, f: impl Fn(usize, &mut [f32]) + Sync) {
        let (rows, width) = (x.rows(), x.width());
        let shared = Shared::new(x.data_mut());
        // SAFETY: each row is taken once.
        self.each_row(rows, width, |r| f(r, unsafe { shared.part(r * width, width) }));
    }
}

/// A row of a table, from its copy where there is one.
struct DecodeRow<'a>(&'a HostWeight, Option<&'a Panels>, usize, f32, &'a mut [f32]);

impl Kernel for DecodeRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let DecodeRow(weight, panels, row, scale, out) = self;
        match panels {
            Some(panels) => panels.row(row, out),
            None => decode_row::<L>(weight, row, out),
        }
        out.iter_mut().for_each(|v| *v *= scale);
    }
}

fn unsupported(weight: &HostWeight, reason: String) -> ComputeError {
    ComputeError::Weight { name: weight.name.clone(), reason }
}

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Weight = CpuWeight;
    type Vector = Vec<f32>;
    type Kv = CpuKv;
    type State = CpuState;
    type Snapshot = CpuSnapshot;

    fn describe(&self) -> String {
        format!("cpu {} {} {} threads", self.precision.name(), self.isa.name(), self.pool.threads())
    }

    fn page_len(&self) -> usize {
        PAGE_LEN
    }

    /// Copies nothing yet. In int8 precision the first product with a weight that has an integer form makes a copy of its
    /// own size and lets go of the mapped file's pages (`ops/panel.rs`); a table that is only embedded from never gets one.
    fn load_weight(&self, weight: HostWeight) -> Result<CpuWeight, ComputeError> {
        let rows = weight.rows();
        if weight.data.len() != rows * weight.row_bytes() {
            let found = weight.data.len();
            return Err(unsupported(&weight, format!("{} bytes expected, {found} found", rows * weight.row_bytes())));
        }
        let scales = rows * weight.scale_row_bytes();
        if weight.scales.len() != scales || (!weight.biases.is_empty() && weight.biases.len() != scales) {
            let found = weight.scales.len();
            return Err(unsupported(&weight, format!("{scales} bytes of scales expected, {found} found")));
        }
        match weight.format {
            WeightFormat::Float(DType::F32 | DType::Bf16 | DType::F16) => {}
            WeightFormat::Quant(
                QuantFormat::Affine { bits: 2..=6 | 8, group: 32 | 64 | 128 },
                DType::F32 | DType::Bf16 | DType::F16,
            ) => {}
            WeightFormat::Quant(QuantFormat::Mxfp4 | QuantFormat::Mxfp8 | QuantFormat::Nvfp4, DType::U8) => {}
            other => return Err(unsupported(&weight, format!("the CPU has no kernel for {other}"))),
        }
        let format = match self.precision {
            Precision::Int8 if weight.inputs.is_multiple_of(32) => PanelFormat::of(weight.format),
            _ => None,
        };
        Ok(CpuWeight { host: weight, format, panels: OnceLock::new(), slabs: Arc::clone(&self.slabs) })
    }

    fn load_vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn kv_page_bytes(&self, group: &KvGroup) -> usize {
        kv::page_bytes(group, self.precision)
    }

    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<CpuKv, ComputeError> {
        CpuKv::new(layout, pages, self.precision)
    }

    fn state_new(&self, layout: &StateLayout, slots: usize, record: usize) -> Result<CpuState, ComputeError> {
        CpuState::new(layout, slots, record)
    }

    fn snapshot_bytes(&self, layout: &StateLayout) -> usize {
        state::snapshot_bytes(layout)
    }

    fn state_bytes(&self, layout: &StateLayout, record: usize) -> usize {
        state::slot_bytes(layout, record)
    }

    fn state_begin(&self, state: &mut CpuState, batch: &Batch) {
        state.begin(batch);
    }

    fn state_position(&self, state: &CpuState, slot: usize) -> Option<usize> {
        state.slots.position(slot)
    }

    fn state_take_back(&self, state: &mut CpuState, slot: usize, len: usize) -> bool {
        delta::take_back(&self.pool, self.isa, state, slot, len)
    }

    fn state_declare(&self, state: &mut CpuState, slot: usize, position: Option<usize>) {
        state.slots.declare(slot, position);
    }

    fn state_save(&self, state: &CpuState, slot: usize) -> CpuSnapshot {
        state.save(slot)
    }

    fn state_restore(&self, state: &mut CpuState, slot: usize, snapshot: &CpuSnapshot) {
        state.restore(slot, snapshot);
    }

    fn state_read(&self, snapshot: &CpuSnapshot) -> Vec<f32> {
        snapshot.read()
    }

    fn buffer(&self, rows: usize, width: usize) -> CpuBuffer {
        CpuBuffer::new(&self.arena, rows, width)
    }

    fn shape(&self, buffer: &CpuBuffer) -> (usize, usize) {
        (buffer.rows(), buffer.width())
    }

    fn write(&self, buffer: &mut CpuBuffer, values: &[f32]) {
        buffer.data_mut().copy_from_slice(values);
    }

    fn read(&self, buffer: &CpuBuffer) -> Vec<f32> {
        buffer.data().to_vec()
    }

    fn read_rows(&self, buffer: &CpuBuffer, rows: Range<usize>) -> Vec<f32> {
        let width = buffer.width();
        buffer.data()[rows.start * width..rows.end * width].to_vec()
    }

    fn argmax(&self, x: &CpuBuffer) -> Vec<Option<u32>> {
        argmax::run(self, x)
    }

    fn embed(&self, table: &CpuWeight, ids: &[u32], scale: f32, out: &mut CpuBuffer) {
        // A table that is the output matrix as well is in memory once.
        let panels = table.panels.get();
        self.map_rows(out, |r, row| self.isa.run(DecodeRow(&table.host, panels, ids[r] as usize, scale, row)));
    }

    fn row_dots(&self, table: &CpuWeight, ids: &[u32], y: &[f32]) -> Vec<f32> {
        row_dots(&self.pool, self.isa, &table.host, ids, y)
    }

    fn gather(&self, x: &CpuBuffer, rows: &[u32], out: &mut CpuBuffer) {
        let width = x.width();
        for (row, out) in rows.iter().zip(out.data_mut().chunks_exact_mut(width)) {
            out.copy_from_slice(x.row(*row as usize));
        }
    }

    fn rms_norm(&self, x: &CpuBuffer, width: usize, weight: Option<&Vec<f32>>, eps: f32, out: &mut CpuBuffer) {
        let heads = x.data().len() / width;
        let shared = Shared::new(out.data_mut());
        self.each_row(heads, width, |h| {
            // SAFETY: each head is taken once.
            let out = unsafe { shared.part(h * width, width) };
            let x = &x.data()[h * width..][..width];
            self.isa.run(rows::RmsNorm { x, weight: weight.map(Vec::as_slice), eps, out });
        });
    }

    fn add_rms_norm(&self, residual: &mut CpuBuffer, y: &CpuBuffer, weight: &Vec<f32>, eps: f32, scale: f32) {
        self.map_rows(residual, |r, residual| {
            self.isa.run(rows::AddRmsNorm { residual, y: y.row(r), weight, eps, scale })
        });
    }

    fn add(&self, x: &mut CpuBuffer, y: &CpuBuffer, scale: f32) {
        self.map_rows(x, |r, x| self.isa.run(rows::Add { x, y: y.row(r), scale }));
    }

    fn add_gated(&self, x: &mut CpuBuffer, y: &CpuBuffer, gate: &CpuBuffer) {
        self.map_rows(x, |r, x| self.isa.run(rows::AddGated { x, y: y.row(r), gate: gate.data()[r] }));
    }

    fn add_vector(&self, x: &mut CpuBuffer, vector: &Vec<f32>) {
        self.map_rows(x, |_, x| self.isa.run(rows::Add { x, y: vector, scale: 1.0 }));
    }

    fn columns(&self, x: &CpuBuffer, period: usize, offset: usize, width: usize, out: &mut CpuBuffer) {
        self.map_rows(out, |r, out| {
            for (out, run) in out.chunks_exact_mut(width).zip(x.row(r).chunks_exact(period)) {
                out.copy_from_slice(&run[offset..offset + width]);
            }
        });
    }

    fn scale(&self, x: &mut CpuBuffer, weight: Option<&Vec<f32>>, scale: f32) {
        self.map_rows(x, |_, x| self.isa.run(rows::Scale { x, weight: weight.map(Vec::as_slice), scale }));
    }

    fn linear(&self, x: &CpuBuffer, weights: &[&CpuWeight], outs: &mut [&mut CpuBuffer]) {
        let input = Input::new(&self.pool, self.isa, x.data(), x.width(), weights);
        let outs: Vec<Shared<'_, f32>> = outs.iter_mut().map(|o| Shared::new(o.data_mut())).collect();
        let jobs: Vec<Job<'_>> = weights
            .iter()
            .zip(&outs)
            .map(|(weight, out)| Job { weight, up: None, expert: 0, input: &input, row: 0, rows: x.rows(), out })
            .collect();
        run(&self.pool, self.isa, &jobs);
    }

    fn gated(&self, x: &CpuBuffer, gate: &CpuWeight, up: &CpuWeight, act: Activation, out: &mut CpuBuffer) {
        let input = Input::new(&self.pool, self.isa, x.data(), x.width(), &[gate, up]);
        let out = Shared::new(out.data_mut());
        let job =
            Job { weight: gate, up: Some((up, act)), expert: 0, input: &input, row: 0, rows: x.rows(), out: &out };
        run(&self.pool, self.isa, &[job]);
    }

    fn activate_mul(&self, x: &mut CpuBuffer, act: Activation, y: &CpuBuffer, column: usize) {
        self.map_rows(x, |r, x| {
            let width = x.len();
            self.isa.run(rows::ActivateMul { x, activation: act, y: &y.row(r)[column..column + width] });
        });
    }

    fn softcap(&self, x: &mut CpuBuffer, cap: f32) {
        self.map_rows(x, |_, x| self.isa.run(rows::Softcap { x, cap }));
    }

    fn rope(&self, x: &mut CpuBuffer, head_dim: usize, angles: &CpuBuffer) {
        self.map_rows(x, |r, x| {
            let (cos, sin) = angles.row(r).split_at(angles.width() / 2);
            self.isa.run(rows::Rope { x, head_dim, cos, sin });
        });
    }

    fn rope_angles(&self, positions: &[u32], axes: usize, axis: &[u8], frequencies: &Vec<f32>) -> CpuBuffer {
        let n = frequencies.len();
        let mut out = self.buffer(positions.len() / axes, 2 * n);
        for (positions, row) in positions.chunks_exact(axes).zip(out.data_mut().chunks_exact_mut(2 * n)) {
            for (i, f) in frequencies.iter().enumerate() {
                let position = positions[axis.get(i).map_or(0, |a| usize::from(*a))];
                // The angle is an f32 by definition; its sine is taken in f64 and rounded once.
                let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                (row[i], row[n + i]) = (cos as f32, sin as f32);
            }
        }
        out
    }

    fn kv_append(&self, kv: &mut CpuKv, slot: KvSlot, batch: &Batch, k: &CpuBuffer, v: &CpuBuffer) {
        kv.append(slot, batch, k.data(), v.data());
    }

    fn attend(&self, kv: &CpuKv, slot: KvSlot, batch: &Batch, q: &CpuBuffer, spec: Attend, out: &mut CpuBuffer) {
        attend::run(&self.pool, self.isa, &self.arena, kv, slot, batch, q.data(), spec, out.data_mut());
    }

    fn moe(&self, router: &CpuBuffer, x: &CpuBuffer, experts: &Experts<'_, Self>, out: &mut CpuBuffer) {
        let routes: Vec<moe::Route> =
            (0..x.rows()).map(|r| order::route(router.row(r), experts.scale, experts.top_k)).collect();
        let weights = moe::Weights { gate: experts.gate, up: experts.up, down: experts.down };
        moe::apply(self, &routes, x, &weights, experts.activation, out);
    }

    fn causal_conv(&self, state: &mut CpuState, layer: usize, x: &CpuBuffer, weight: &Vec<f32>, out: &mut CpuBuffer) {
        let channels = x.width();
        let own = &state.layers[layer];
        let out = Shared::new(out.data_mut());
        for pass in &state.passes {
            let first = pass.segments[0].first_row;
            let len: usize = pass.segments.iter().map(|s| s.len).sum();
            let rows = &x.data()[first * channels..][..len * channels];
            let window = pass.segments[0].read.map(|place| &own.windows[own.window(pass.slot, place)]);
            self.each_row(len, channels, |r| {
                // SAFETY: each row is taken once.
                let out = unsafe { out.part((first + r) * channels, channels) };
                self.isa.run(delta::ConvRow { window, rows: &rows[..(r + 1) * channels], weight, out });
            });
        }
        delta::conv_advance(state, layer, x.data());
    }

    fn gated_delta(
        &self,
        state: &mut CpuState,
        layer: usize,
        qkv: &CpuBuffer,
        a: &CpuBuffer,
        b: &CpuBuffer,
        gates: &DeltaGates<'_, Self>,
        out: &mut CpuBuffer,
    ) {
        let shape = state.layers[layer].shape;
        let mut prepared = self.buffer(qkv.rows(), 2 * shape.key_width() + 2 * shape.value_heads);
        self.map_rows(&mut prepared, |r, out| {
            self.isa.run(delta::Prepare {
                qkv: qkv.row(r),
                a: a.row(r),
                b: b.row(r),
                rate: gates.rate,
                dt_bias: gates.dt_bias,
                key_dim: shape.key_dim,
                out,
            });
        });
        delta::delta(&self.pool, self.isa, state, layer, prepared.data(), qkv.data(), out.data_mut());
    }
}
