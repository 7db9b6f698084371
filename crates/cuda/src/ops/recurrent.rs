//! Recurrent layers: the causal convolution and the gated delta rule, and what is done to their states.
//!
//! A step is two launches a layer: each also moves its part of the state on and puts its rows on record. Rows are taken back by
//! the same kernels, run over the record: for all layers of a shape at once.

use std::ops::Range;

use mlxcel_compute::DeltaShape;

use crate::args;
use crate::context::{Context, Operation, Shape};
use crate::state::{CudaSnapshot, CudaState, Plan, layer_values, record_width, unpack};

/// Threads of a block of the convolution, a channel each.
const CONV_THREADS: usize = 128;
/// Threads of a block of the delta rule.
const RULE_THREADS: usize = 64;
/// No memory: a kernel leaves out what would go there.
const NOWHERE: u64 = 0;

const VALUE: u64 = size_of::<f32>() as u64;

/// The convolution of an announced batch: `x` and `out` `[rows, channels]`, `weight` `[taps, channels]`.
pub fn causal_conv(ctx: &Context, state: &mut CudaState, layer: usize, x: u64, weight: u64, out: u64) {
    let own = &state.layers[layer];
    let rows = Rows { memory: x, layer: 0 };
    let mut op = ctx.operation(state.plan.bytes());
    conv(&mut op, state, layer..layer + 1, &state.plan, rows, Conv { weight, out, record: own.inputs });
}

/// Operands of the delta rule.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// q, k, v after the convolution, `[rows, channels]`.
    pub qkv: u64,
    /// Decay before its gate, `[rows, value_heads]`.
    pub a: u64,
    /// Beta before its gate, `[rows, value_heads]`.
    pub b: u64,
    /// `e^A_log`, `[value_heads]`.
    pub rate: u64,
    /// Added to `a`, `[value_heads]`.
    pub dt_bias: u64,
}

/// The delta rule over an announced batch; `out` is `[rows, value_heads * value_dim]`.
pub fn gated_delta(ctx: &Context, state: &mut CudaState, layer: usize, operands: Operands, out: u64) {
    let own = &state.layers[layer];
    let Operands { qkv, a, b, rate, dt_bias } = operands;
    let rule = Rule {
        stride: own.shape.channels(),
        k: own.shape.key_width(),
        a,
        b,
        gate_stride: own.shape.value_heads,
        rate,
        dt_bias,
        record: own.updates,
        out,
    };
    let mut op = ctx.operation(state.plan.bytes());
    delta(&mut op, state, layer..layer + 1, &state.plan, Rows { memory: qkv, layer: 0 }, rule);
}

/// Takes a slot back to `len` rows; false when the rows are not on record.
pub fn take_back(ctx: &Context, state: &mut CudaState, slot: usize, len: usize) -> bool {
    let Some(replay) = state.slots.take_back(slot, len) else { return false };
    let Some(replay) = replay else { return true };
    let plan = Plan::of_replay(slot, replay);
    let record = state.slots.record();
    let mut op = ctx.operation(plan.bytes());
    for run in &state.runs {
        let own = &state.layers[run.start];
        let shape = own.shape;
        let width = record_width(&shape);
        // A layer's two records lie one after the other.
        let apart = state.slots.len() * record * (shape.channels() + width);
        let row = |memory: u64, width: usize| memory + (slot * record * width) as u64 * VALUE;
        let inputs = Rows { memory: row(own.inputs, shape.channels()), layer: apart };
        conv(&mut op, state, run.clone(), &plan, inputs, Conv { weight: NOWHERE, out: NOWHERE, record: NOWHERE });
        let updates = Rows { memory: row(own.updates, width), layer: apart };
        let gates = updates.memory + (shape.key_width() + shape.value_width()) as u64 * VALUE;
        let rule = Rule {
            stride: width,
            k: 0,
            a: gates,
            b: gates + shape.value_heads as u64 * VALUE,
            gate_stride: width,
            rate: NOWHERE,
            dt_bias: NOWHERE,
            record: NOWHERE,
            out: NOWHERE,
        };
        delta(&mut op, state, run.clone(), &plan, updates, rule);
    }
    true
}

/// Copies a slot's newest state.
///
/// # Panics
/// When the slot holds none.
pub fn save(ctx: &Context, state: &CudaState, slot: usize) -> CudaSnapshot {
    let position = state.slots.position(slot).expect("a slot that holds a state");
    let memory = (position > 0 && state.place_values() > 0).then(|| {
        let memory = ctx.block(state.place_values() * size_of::<f32>());
        copy(ctx, state, state.newest(slot), memory.address());
        memory
    });
    CudaSnapshot { position, shapes: state.shapes().to_vec(), memory }
}

/// Puts a copy into a slot.
///
/// # Panics
/// When the copy is of another layout.
pub fn restore(ctx: &Context, state: &mut CudaState, slot: usize, snapshot: &CudaSnapshot) {
    assert!(state.shapes() == snapshot.shapes, "a copy of another layout");
    if let Some(memory) = &snapshot.memory {
        copy(ctx, state, memory.address(), state.newest(slot));
    }
    state.slots.declare(slot, Some(snapshot.position));
}

/// A copy in numbers: windows `[taps - 1, channels]` and matrices `[value_heads, key_dim, value_dim]`, layer by layer.
pub fn read(ctx: &Context, snapshot: &CudaSnapshot) -> Vec<f32> {
    let values = snapshot.shapes.iter().map(layer_values).sum();
    let mut place = vec![0.0; values];
    if let Some(memory) = &snapshot.memory {
        ctx.read(memory.address(), &mut place);
    }
    unpack(&snapshot.shapes, &place)
}

/// Copies a place.
fn copy(ctx: &Context, state: &CudaState, from: u64, to: u64) {
    let Some(function) = state.copy() else { return };
    // Places are whole lines.
    let fours = state.place_values() / 4;
    ctx.launch(function, Shape::each(fours), &args![from, to, fours as u64]);
}

/// Rows of one or several layers.
#[derive(Clone, Copy)]
struct Rows {
    memory: u64,
    layer: usize, // values from one layer's to the next's
}

/// What the convolution of a batch has besides its rows; a replay has none of it.
struct Conv {
    weight: u64,
    out: u64,
    record: u64,
}

/// Operands of the delta rule besides its vectors, and where those lie in their rows.
struct Rule {
    stride: usize,
    k: usize,
    a: u64,
    b: u64,
    gate_stride: usize,
    rate: u64,
    dt_bias: u64,
    record: u64,
    out: u64,
}

/// How far layers of a shape lie apart in a place, and places among each other.
fn distances(state: &CudaState, shape: &DeltaShape) -> (u64, u64) {
    (layer_values(shape) as u64, state.place_values() as u64)
}

fn conv(op: &mut Operation<'_>, state: &CudaState, layers: Range<usize>, plan: &Plan, x: Rows, conv: Conv) {
    let own = &state.layers[layers.start];
    let channels = own.shape.channels();
    let (layer, place) = distances(state, &own.shape);
    let (passes, items) = (op.feed(&plan.passes), op.feed(&plan.items));
    let grid = [channels.div_ceil(CONV_THREADS), plan.items.len(), layers.len()];
    let args = args![
        x.memory,
        x.layer as u64,
        conv.weight,
        conv.out,
        own.window,
        place,
        layer,
        conv.record,
        state.slots.record(),
        passes,
        items,
        channels,
    ];
    op.launch(own.conv, Shape { grid, block: CONV_THREADS, shared: 0 }, &args);
}

fn delta(op: &mut Operation<'_>, state: &CudaState, layers: Range<usize>, plan: &Plan, rows: Rows, rule: Rule) {
    let own = &state.layers[layers.start];
    let DeltaShape { key_heads, value_heads, value_dim, .. } = own.shape;
    let (layer, place) = distances(state, &own.shape);
    let passes = op.feed(&plan.passes);
    let grid = [value_heads * own.blocks, plan.passes.len(), layers.len()];
    let args = args![
        rows.memory,
        rows.layer as u64,
        rule.stride,
        rule.k,
        rule.a,
        rule.b,
        rule.gate_stride,
        rule.rate,
        rule.dt_bias,
        own.matrices,
        place,
        layer,
        rule.record,
        state.slots.record(),
        passes,
        rule.out,
        value_dim,
        key_heads,
        value_heads,
    ];
    op.launch(own.rule, Shape { grid, block: RULE_THREADS, shared: 0 }, &args);
}
