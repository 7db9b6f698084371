//! Mixture of experts with one expert that every row shares (qwen3_5.md §2.4).

use mlxcel_compute::{Activation, Backend, Experts};

use super::Loader;
use super::mlp::Mlp;
use super::moe::Sizes;
use crate::ModelError;
use crate::tap::{Tap, show};

/// Router, experts and the shared expert of one layer.
pub struct SharedMoe<B: Backend> {
    gate: B::Weight,      // [experts, hidden]
    gate_proj: B::Weight, // [experts, width, hidden]
    up_proj: B::Weight,   // [experts, width, hidden]
    down_proj: B::Weight, // [experts, hidden, width]
    scale: B::Vector,     // [experts], ones
    shared_expert: Mlp<B>,
    shared_expert_gate: B::Weight, // [1, hidden]
    sizes: Sizes,
}

impl<B: Backend> SharedMoe<B> {
    /// Reads the tensors of a layer, in MLX's or transformers' naming. `shared` is the width of the shared expert.
    pub fn load(load: &Loader<'_, B>, sizes: Sizes, shared: usize) -> Result<Self, ModelError> {
        let Sizes { experts, width, hidden, .. } = sizes;
        let fused = load.weights.has("experts.gate_up_proj");
        let (gate_proj, up_proj) = if fused {
            load.fused_experts("experts.gate_up_proj", experts, width, hidden)?
        } else {
            (
                load.experts("switch_mlp.gate_proj", experts, width, hidden)?,
                load.experts("switch_mlp.up_proj", experts, width, hidden)?,
            )
        };
        let down = if fused { "experts.down_proj" } else { "switch_mlp.down_proj" };
        Ok(SharedMoe {
            gate: load.linear("gate", experts, hidden)?,
            gate_proj,
            up_proj,
            down_proj: load.experts(down, experts, hidden, width)?,
            scale: load.backend.load_vector(&vec![1.0; experts]),
            shared_expert: Mlp::load(&load.sub("shared_expert."), hidden, shared, Activation::Silu)?,
            shared_expert_gate: load.linear("shared_expert_gate", 1, hidden)?,
            sizes,
        })
    }

    /// `experts(x) + sigmoid(gate(x)) * shared(x)`, `[rows, hidden]`; `layer` is what the tap is told.
    pub fn forward(
        &self,
        backend: &B,
        x: &B::Buffer,
        rows: usize,
        layer: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let mut router = backend.buffer(rows, self.sizes.experts);
        let mut gate = backend.buffer(rows, 1);
        backend.linear(x, &[&self.gate, &self.shared_expert_gate], &mut [&mut router, &mut gate]);
        show(tap, backend, Some(layer), "router", &router);
        show(tap, backend, Some(layer), "shared_expert_gate", &gate);
        let experts = Experts {
            gate: &self.gate_proj,
            up: &self.up_proj,
            down: &self.down_proj,
            scale: &self.scale,
            top_k: self.sizes.top_k,
            activation: Activation::Silu,
        };
        let mut out = backend.buffer(rows, self.sizes.hidden);
        backend.moe(&router, x, &experts, &mut out);
        show(tap, backend, Some(layer), "experts", &out);
        let shared = self.shared_expert.forward(backend, x, rows, layer, tap);
        backend.add_gated(&mut out, &shared, &gate);
        out
    }
}
