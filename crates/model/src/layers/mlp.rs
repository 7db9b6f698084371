//! The gated MLP: `down(activation(gate(x)) * up(x))`.

use mlxcel_compute::{Activation, Backend};

use super::Loader;
use crate::ModelError;
use crate::tap::{Tap, show};

/// Weights of a gated MLP.
pub struct Mlp<B: Backend> {
    gate_proj: B::Weight, // [width, hidden]
    up_proj: B::Weight,   // [width, hidden]
    down_proj: B::Weight, // [hidden, width]
    biases: Option<Biases<B>>,
    width: usize,
    hidden: usize,
    activation: Activation,
}

struct Biases<B: Backend> {
    gate: B::Vector, // [width]
    up: B::Vector,   // [width]
    down: B::Vector, // [hidden]
}

impl<B: Backend> Mlp<B> {
    /// Reads `gate_proj`, `up_proj`, `down_proj`.
    pub fn load(load: &Loader<'_, B>, hidden: usize, width: usize, activation: Activation) -> Result<Self, ModelError> {
        Ok(Mlp {
            gate_proj: load.linear("gate_proj", width, hidden)?,
            up_proj: load.linear("up_proj", width, hidden)?,
            down_proj: load.linear("down_proj", hidden, width)?,
            biases: None,
            width,
            hidden,
            activation,
        })
    }

    /// Reads the biases of the three as well.
    pub fn with_biases(self, load: &Loader<'_, B>) -> Result<Self, ModelError> {
        let biases = Biases {
            gate: load.vector("gate_proj.bias", self.width)?,
            up: load.vector("up_proj.bias", self.width)?,
            down: load.vector("down_proj.bias", self.hidden)?,
        };
        Ok(Mlp { biases: Some(biases), ..self })
    }

    /// `[rows, hidden]` to `[rows, hidden]`; `layer` is what the tap is told.
    pub fn forward(
        &self,
        backend: &B,
        x: &B::Buffer,
        rows: usize,
        layer: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let mut see = |op: &'static str, buffer: &B::Buffer| show(tap, backend, Some(layer), op, buffer);
        let mut inner = backend.buffer(rows, self.width);
        match &self.biases {
            None => backend.gated(x, &self.gate_proj, &self.up_proj, self.activation, &mut inner),
            Some(biases) => {
                let mut up = backend.buffer(rows, self.width);
                backend.linear(x, &[&self.gate_proj, &self.up_proj], &mut [&mut inner, &mut up]);
                see("gate_proj", &inner);
                see("up_proj", &up);
                backend.add_vector(&mut inner, &biases.gate);
                see("gate_bias", &inner);
                backend.add_vector(&mut up, &biases.up);
                see("up_bias", &up);
                backend.activate_mul(&mut inner, self.activation, &up, 0);
            }
        }
        see("gate_up", &inner);
        let mut out = backend.buffer(rows, self.hidden);
        backend.linear(&inner, &[&self.down_proj], &mut [&mut out]);
        see("down_proj", &out);
        if let Some(biases) = &self.biases {
            backend.add_vector(&mut out, &biases.down);
            see("down_bias", &out);
        }
        out
    }
}
