//! Gated DeltaNet: a causal convolution and a recurrent state in place of attention (qwen3_5.md §2.3).

use mlxcel_checkpoint::ConvLayout;
use mlxcel_compute::{Activation, Backend, DeltaGates, DeltaShape};

use super::Loader;
use crate::ModelError;
use crate::tap::{Tap, show};

/// Weights of one layer.
pub struct DeltaNet<B: Backend> {
    shape: DeltaShape,
    hidden: usize,
    eps: f32,
    index: usize,
    in_proj_qkv: B::Weight, // [channels, hidden]
    in_proj_z: B::Weight,   // [value_heads * value_dim, hidden]
    in_proj_b: B::Weight,   // [value_heads, hidden]
    in_proj_a: B::Weight,   // [value_heads, hidden]
    conv1d: B::Vector,      // [taps, channels]
    rate: B::Vector,        // [value_heads], e^A_log
    dt_bias: B::Vector,     // [value_heads]
    norm: B::Vector,        // [value_dim], as it stands in every layout
    out_proj: B::Weight,    // [hidden, value_heads * value_dim]
}

impl<B: Backend> DeltaNet<B> {
    /// Reads the layer's tensors; `index` counts the recurrent layers.
    pub fn load(
        load: &Loader<'_, B>,
        shape: DeltaShape,
        hidden: usize,
        eps: f32,
        index: usize,
        layout: ConvLayout,
    ) -> Result<Self, ModelError> {
        let (channels, width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
        Ok(DeltaNet {
            shape,
            hidden,
            eps,
            index,
            in_proj_qkv: load.linear("in_proj_qkv", channels, hidden)?,
            in_proj_z: load.linear("in_proj_z", width, hidden)?,
            in_proj_b: load.linear("in_proj_b", heads, hidden)?,
            in_proj_a: load.linear("in_proj_a", heads, hidden)?,
            conv1d: load.taps("conv1d.weight", channels, shape.taps, layout)?,
            rate: load.exponential("A_log", heads)?,
            dt_bias: load.vector("dt_bias", heads)?,
            norm: load.vector("norm.weight", shape.value_dim)?,
            out_proj: load.linear("out_proj", hidden, width)?,
        })
    }

    /// `x` `[rows, hidden]`, already normed, to `[rows, hidden]`; the states of the announced batch move on.
    pub fn forward(
        &self,
        backend: &B,
        state: &mut B::State,
        x: &B::Buffer,
        rows: usize,
        layer: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let DeltaShape { value_heads, value_dim, .. } = self.shape;
        let (channels, width) = (self.shape.channels(), self.shape.value_width());
        let mut qkv = backend.buffer(rows, channels);
        let mut z = backend.buffer(rows, width);
        let mut b = backend.buffer(rows, value_heads);
        let mut a = backend.buffer(rows, value_heads);
        let weights = [&self.in_proj_qkv, &self.in_proj_z, &self.in_proj_b, &self.in_proj_a];
        backend.linear(x, &weights, &mut [&mut qkv, &mut z, &mut b, &mut a]);
        for (op, buffer) in [("in_proj_qkv", &qkv), ("in_proj_z", &z), ("in_proj_b", &b), ("in_proj_a", &a)] {
            show(tap, backend, Some(layer), op, buffer);
        }

        let mut conv = backend.buffer(rows, channels);
        backend.causal_conv(state, self.index, &qkv, &self.conv1d, &mut conv);
        show(tap, backend, Some(layer), "conv", &conv);
        let mut core = backend.buffer(rows, width);
        let gates = DeltaGates { rate: &self.rate, dt_bias: &self.dt_bias };
        backend.gated_delta(state, self.index, &conv, &a, &b, &gates, &mut core);
        show(tap, backend, Some(layer), "delta", &core);

        // Norm first, gate after.
        let mut normed = backend.buffer(rows, width);
        backend.rms_norm(&core, value_dim, Some(&self.norm), self.eps, &mut normed);
        show(tap, backend, Some(layer), "core_norm", &normed);
        backend.activate_mul(&mut z, Activation::Silu, &normed, 0);
        show(tap, backend, Some(layer), "gated", &z);
        let mut out = backend.buffer(rows, self.hidden);
        backend.linear(&z, &[&self.out_proj], &mut [&mut out]);
        show(tap, backend, Some(layer), "out_proj", &out);
        out
    }
}
