//! [`CudaBackend`]: the verbs of [`Backend`], each a few lines over what `ops/` launches.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mlxcel_compute::{
    Activation, Attend, Backend, Batch, ComputeError, DeltaGates, Experts, HostWeight, KvGroup, KvSlot, StateLayout,
};

use crate::args;
use crate::buffer::{CudaBuffer, CudaVector};
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::kv::{self, CudaKv, PAGE_LEN};
use crate::ops::fuse;
use crate::ops::linear::{self, CudaWeight};
use crate::ops::moe::{self, MoeKernels};
use crate::ops::rows::RowKernels;
use crate::ops::{attend, recurrent};
use crate::state::{self, CudaSnapshot, CudaState};

/// Which device, and where compiled kernels are kept.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Number of the device.
    pub device: usize,
    /// Folder for compiled kernels; without one they are compiled in every process.
    pub cache: Option<PathBuf>,
}

/// A GPU as a backend.
pub struct CudaBackend {
    pub(crate) ctx: Arc<Context>,
    rows: RowKernels,
    moe: MoeKernels,
}

impl CudaBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// What is missing: a driver, a device, a compiler.
    pub fn open(options: &CudaOptions) -> Result<Self, CudaError> {
        let ctx = Context::open(options.device, options.cache.clone())?;
        let rows = RowKernels::new(&ctx)?;
        let moe = MoeKernels::new(&ctx)?;
        Ok(CudaBackend { ctx, rows, moe })
    }

    /// The device, its memory and its queue.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }
}

impl Backend for CudaBackend {
    type Buffer = CudaBuffer;
    type Weight = CudaWeight;
    type Vector = CudaVector;
    type Kv = CudaKv;
    type State = CudaState;
    type Snapshot = CudaSnapshot;

    fn describe(&self) -> String {
        format!("cuda {} {}", self.ctx.device.name, self.ctx.device.arch())
    }

    fn failure(&self) -> Option<String> {
        self.ctx.failure().map(ToString::to_string)
    }

    fn page_len(&self) -> usize {
        PAGE_LEN
    }

    fn step_rows(&self) -> usize {
        // Fewer leave processors without a tile of the wide kernel.
        2048
    }

    fn load_weight(&self, weight: HostWeight) -> Result<CudaWeight, ComputeError> {
        CudaWeight::load(&self.ctx, &weight)
    }

    fn load_vector(&self, values: &[f32]) -> CudaVector {
        let block = self.ctx.block(size_of_val(values));
        if let Err(error) = self.ctx.write(block.address(), bytemuck::cast_slice(values)) {
            self.ctx.device.fail(error);
        }
        CudaVector { block, len: values.len() }
    }

    fn kv_page_bytes(&self, group: &KvGroup) -> usize {
        kv::page_bytes(group)
    }

    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<CudaKv, ComputeError> {
        CudaKv::new(&self.ctx, layout, pages)
    }

    fn state_new(&self, layout: &StateLayout, slots: usize, record: usize) -> Result<CudaState, ComputeError> {
        CudaState::new(&self.ctx, layout, slots, record)
    }

    fn snapshot_bytes(&self, layout: &StateLayout) -> usize {
        state::snapshot_bytes(layout)
    }

    fn state_bytes(&self, layout: &StateLayout, record: usize) -> usize {
        state::slot_bytes(layout, record)
    }

    fn state_begin(&self, state: &mut CudaState, batch: &Batch) {
        state.begin(batch);
    }

    fn state_position(&self, state: &CudaState, slot: usize) -> Option<usize> {
        state.slots.position(slot)
    }

    fn state_take_back(&self, state: &mut CudaState, slot: usize, len: usize) -> bool {
        recurrent::take_back(&self.ctx, state, slot, len)
    }

    fn state_declare(&self, state: &mut CudaState, slot: usize, position: Option<usize>) {
        state.slots.declare(slot, position);
    }

    fn state_save(&self, state: &CudaState, slot: usize) -> CudaSnapshot {
        recurrent::save(&self.ctx, state, slot)
    }

    fn state_restore(&self, state: &mut CudaState, slot: usize, snapshot: &CudaSnapshot) {
        recurrent::restore(&self.ctx, state, slot, snapshot);
    }

    fn state_read(&self, snapshot: &CudaSnapshot) -> Vec<f32> {
        recurrent::read(&self.ctx, snapshot)
    }

    fn buffer(&self, rows: usize, width: usize) -> CudaBuffer {
        CudaBuffer { block: self.ctx.block(rows * width * size_of::<f32>()), rows, width }
    }

    fn shape(&self, buffer: &CudaBuffer) -> (usize, usize) {
        (buffer.rows, buffer.width)
    }

    fn write(&self, buffer: &mut CudaBuffer, values: &[f32]) {
        // Small ones go along with the next launches; large ones are worth sending off for.
        const LARGE: usize = 1 << 20;
        assert_eq!(buffer.len(), values.len(), "values to write");
        let bytes = size_of_val(values);
        if bytes <= LARGE {
            let mut op = self.ctx.operation(bytes);
            let from = op.feed(values);
            op.launch(self.rows.copy, Shape::each(values.len()), &args![from, buffer.address(), values.len() as u64]);
        } else if self.ctx.failure().is_none()
            && let Err(error) = self.ctx.write(buffer.address(), bytemuck::cast_slice(values))
        {
            self.ctx.device.fail(error);
        }
    }

    fn read(&self, buffer: &CudaBuffer) -> Vec<f32> {
        let mut values = vec![0.0; buffer.len()];
        self.ctx.read(buffer.address(), &mut values);
        values
    }

    fn read_rows(&self, buffer: &CudaBuffer, rows: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * buffer.width];
        self.ctx.read(buffer.address() + (rows.start * buffer.width * size_of::<f32>()) as u64, &mut values);
        values
    }

    fn argmax(&self, x: &CudaBuffer) -> Vec<Option<u32>> {
        if x.width == 0 {
            return vec![None; x.rows];
        }
        let found = self.ctx.block(x.rows * size_of::<u32>());
        self.rows.argmax(&self.ctx, x, found.address(), 0);
        let mut places = vec![0.0f32; x.rows];
        self.ctx.read(found.address(), &mut places);
        // A device that failed reads as NaN, which is no place either.
        let place = |bits: u32| ((bits as usize) < x.width).then_some(bits);
        places.iter().map(|v| place(v.to_bits())).collect()
    }

    fn argmax_into(&self, x: &CudaBuffer, ids: &mut CudaBuffer, at: usize) {
        self.rows.argmax(&self.ctx, x, 0, ids.address() + (at * size_of::<f32>()) as u64);
    }

    fn embed_at(&self, table: &CudaWeight, ids: &CudaBuffer, at: usize, scale: f32, out: &mut CudaBuffer) {
        table.embed_at(&self.ctx, ids.address() + (at * size_of::<f32>()) as u64, scale, out);
    }

    fn join(&self, a: &CudaBuffer, b: &CudaBuffer, out: &mut CudaBuffer) {
        let args = args![a.address(), b.address(), out.address(), a.width, b.width, out.len() as u64];
        self.ctx.launch(self.rows.join, Shape::each(out.len()), &args);
    }

    fn embed(&self, table: &CudaWeight, ids: &[u32], scale: f32, out: &mut CudaBuffer) {
        table.embed(&self.ctx, ids, scale, out);
    }

    fn row_dots(&self, table: &CudaWeight, ids: &[u32], y: &[f32]) -> Vec<f32> {
        table.row_dots(&self.ctx, ids, y)
    }

    fn put_rows(&self, x: &mut CudaBuffer, rows: &[u32], values: &[f32]) {
        let mut op = self.ctx.operation(size_of_val(rows) + size_of_val(values));
        let (rows_at, from) = (op.feed(rows), op.feed(values));
        op.launch(
            self.rows.put_rows,
            Shape::each(values.len()),
            &args![x.address(), rows_at, from, x.width, values.len() as u64],
        );
    }

    fn gather(&self, x: &CudaBuffer, rows: &[u32], out: &mut CudaBuffer) {
        let mut op = self.ctx.operation(size_of_val(rows));
        let rows_at = op.feed(rows);
        op.launch(
            self.rows.gather,
            Shape::each(out.len()),
            &args![x.address(), rows_at, out.address(), x.width, out.len() as u64],
        );
    }

    fn rms_norm(&self, x: &CudaBuffer, width: usize, weight: Option<&CudaVector>, eps: f32, out: &mut CudaBuffer) {
        let weight = weight.map_or(0, CudaVector::address);
        fuse::rms_norm(&self.ctx, &self.rows, x.address(), (x.rows, x.width), width, weight, eps, out.address());
    }

    fn add_rms_norm(&self, residual: &mut CudaBuffer, y: &CudaBuffer, weight: &CudaVector, eps: f32, scale: f32) {
        let (x, y_at, shape) = (residual.address(), y.address(), (y.rows, y.width));
        fuse::add_rms_norm(&self.ctx, &self.rows, x, y_at, weight.address(), shape, eps, scale);
    }

    fn add(&self, x: &mut CudaBuffer, y: &CudaBuffer, scale: f32) {
        let args = args![x.address(), y.address(), scale, x.len() as u64];
        self.ctx.launch(self.rows.add, Shape::each(x.len()), &args);
    }

    fn add_gated(&self, x: &mut CudaBuffer, y: &CudaBuffer, gate: &CudaBuffer) {
        let args = args![x.address(), y.address(), gate.address(), x.width, x.len() as u64];
        self.ctx.launch(self.rows.add_gated, Shape::each(x.len()), &args);
    }

    fn add_vector(&self, x: &mut CudaBuffer, vector: &CudaVector) {
        let args = args![x.address(), vector.address(), vector.len(), x.len() as u64];
        self.ctx.launch(self.rows.add_vector, Shape::each(x.len()), &args);
    }

    fn columns(&self, x: &CudaBuffer, period: usize, offset: usize, width: usize, out: &mut CudaBuffer) {
        let args = args![x.address(), out.address(), period, offset, width, out.len() as u64];
        self.ctx.launch(self.rows.columns, Shape::each(out.len()), &args);
    }

    fn scale(&self, x: &mut CudaBuffer, weight: Option<&CudaVector>, scale: f32) {
        let weight = weight.map_or(0, CudaVector::address);
        let args = args![x.address(), weight, scale, x.width, x.len() as u64];
        self.ctx.launch(self.rows.scale, Shape::each(x.len()), &args);
    }

    fn linear(&self, x: &CudaBuffer, weights: &[&CudaWeight], outs: &mut [&mut CudaBuffer]) {
        let outs: Vec<u64> = outs.iter().map(|o| o.address()).collect();
        linear::linear(&self.ctx, &self.rows, x, weights, &outs);
    }

    fn gated(&self, x: &CudaBuffer, gate: &CudaWeight, up: &CudaWeight, act: Activation, out: &mut CudaBuffer) {
        let beside = self.buffer(out.rows, out.width);
        linear::linear(&self.ctx, &self.rows, x, &[gate, up], &[out.address(), beside.address()]);
        let shape = (out.rows, out.width);
        fuse::activate_mul(&self.ctx, &self.rows, out.address(), act, beside.address(), 0, shape, out.width);
    }

    fn activate_mul(&self, x: &mut CudaBuffer, act: Activation, y: &CudaBuffer, column: usize) {
        fuse::activate_mul(&self.ctx, &self.rows, x.address(), act, y.address(), column, (x.rows, x.width), y.width);
    }

    fn softcap(&self, x: &mut CudaBuffer, cap: f32) {
        self.ctx.launch(self.rows.softcap, Shape::each(x.len()), &args![x.address(), cap, x.len() as u64]);
    }

    fn rope(&self, x: &mut CudaBuffer, head_dim: usize, angles: &CudaBuffer) {
        let shape = (x.rows, x.width);
        fuse::rope(&self.ctx, &self.rows, x.address(), shape, head_dim, angles.address(), angles.width / 2);
    }

    fn rope_angles(&self, positions: &[u32], axes: usize, axis: &[u8], frequencies: &CudaVector) -> CudaBuffer {
        let count = frequencies.len();
        let out = self.buffer(positions.len() / axes, 2 * count);
        let values = out.rows * count;
        let mut op = self.ctx.operation(size_of_val(positions) + axis.len());
        let positions = op.feed(positions);
        let axis = if axis.is_empty() { 0 } else { op.feed(axis) };
        op.launch(
            self.rows.rope_angles,
            Shape::each(values),
            &args![positions, axis, frequencies.address(), out.address(), axes, count, values as u64],
        );
        drop(op);
        out
    }

    fn kv_append(&self, kv: &mut CudaKv, slot: KvSlot, batch: &Batch, k: &CudaBuffer, v: &CudaBuffer) {
        attend::append(&self.ctx, kv, slot, batch, k, v);
    }

    fn attend(&self, kv: &CudaKv, slot: KvSlot, batch: &Batch, q: &CudaBuffer, spec: Attend, out: &mut CudaBuffer) {
        attend::attend(&self.ctx, kv, slot, batch, q, spec, out);
    }

    fn moe(&self, router: &CudaBuffer, x: &CudaBuffer, experts: &Experts<'_, Self>, out: &mut CudaBuffer) {
        let layer = moe::Layer {
            gate: experts.gate,
            up: experts.up,
            down: experts.down,
            scale: experts.scale,
            top_k: experts.top_k,
            activation: experts.activation,
        };
        moe::apply(&self.ctx, (&self.moe, &self.rows), router, x, &layer, out);
    }

    fn causal_conv(
        &self,
        state: &mut CudaState,
        layer: usize,
        x: &CudaBuffer,
        weight: &CudaVector,
        out: &mut CudaBuffer,
    ) {
        recurrent::causal_conv(&self.ctx, state, layer, x.address(), weight.address(), out.address());
    }

    fn gated_delta(
        &self,
        state: &mut CudaState,
        layer: usize,
        qkv: &CudaBuffer,
        a: &CudaBuffer,
        b: &CudaBuffer,
        gates: &DeltaGates<'_, Self>,
        out: &mut CudaBuffer,
    ) {
        let operands = recurrent::Operands {
            qkv: qkv.address(),
            a: a.address(),
            b: b.address(),
            rate: gates.rate.address(),
            dt_bias: gates.dt_bias.address(),
        };
        recurrent::gated_delta(&self.ctx, state, layer, operands, out.address());
    }
}
