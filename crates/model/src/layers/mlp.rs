//! The gated MLP: `down(activation(gate(x)) * up(x))`.

use mlxcel_compute::{Activation, Backend};

use super::Loader;
use crate::ModelError;

/// Weights of a gated MLP.
pub struct Mlp<B: Backend> {
    gate_proj: B::Weight, // [width, hidden]
    up_proj: B::Weight,   // [width, hidden]
    down_proj: B::Weight, // [hidden, width]
    width: usize,
    hidden: usize,
    activation: Activation,
}

impl<B: Backend> Mlp<B> {
    /// Reads `gate_proj`, `up_proj`, `down_proj`.
    pub fn load(load: &Loader<'_, B>, hidden: usize, width: usize, activation: Activation) -> Result<Self, ModelError> {
        Ok(Mlp {
            gate_proj: load.linear("gate_proj", width, hidden)?,
            up_proj: load.linear("up_proj", width, hidden)?,
            down_proj: load.linear("down_proj", hidden, width)?,
            width,
            hidden,
            activation,
        })
    }

    /// `[rows, hidden]` to `[rows, hidden]`.
    pub fn forward(&self, backend: &B, x: &B::Buffer, rows: usize) -> B::Buffer {
        let mut inner = backend.buffer(rows, self.width);
        backend.gated(x, &self.gate_proj, &self.up_proj, self.activation, &mut inner);
        let mut out = backend.buffer(rows, self.hidden);
        backend.linear(&inner, &[&self.down_proj], &mut [&mut out]);
        out
    }
}
