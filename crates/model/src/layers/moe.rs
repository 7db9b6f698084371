//! Mixture of experts beside a dense MLP (gemma4.md §2.7).

use mlxcel_compute::{Activation, Backend, Experts};

use super::Loader;
use crate::ModelError;
use crate::tap::{Tap, show};

/// Router and experts of one layer, with the norms around them.
pub struct Moe<B: Backend> {
    router_proj: B::Weight,                  // [experts, hidden]
    router_scale: B::Vector,                 // [hidden]
    per_expert_scale: B::Vector,             // [experts]
    gate_proj: B::Weight,                    // [experts, width, hidden]
    up_proj: B::Weight,                      // [experts, width, hidden]
    down_proj: B::Weight,                    // [experts, hidden, width]
    post_feedforward_layernorm_1: B::Vector, // [hidden]
    post_feedforward_layernorm_2: B::Vector, // [hidden]
    pre_feedforward_layernorm_2: B::Vector,  // [hidden]
    experts: usize,
    top_k: usize,
    hidden: usize,
    activation: Activation,
    eps: f32,
}

/// Sizes of a mixture.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts a row uses.
    pub top_k: usize,
    /// Width of an expert.
    pub width: usize,
    /// Width of the residual stream.
    pub hidden: usize,
}

impl<B: Backend> Moe<B> {
    /// Reads the tensors of a layer, in MLX's or transformers' naming.
    pub fn load(load: &Loader<'_, B>, sizes: Sizes, activation: Activation, eps: f32) -> Result<Self, ModelError> {
        let Sizes { experts, top_k, width, hidden } = sizes;
        let fused = load.weights.has("experts.gate_up_proj");
        let (gate_proj, up_proj) = if fused {
            load.fused_experts("experts.gate_up_proj", experts, width, hidden)?
        } else {
            (
                load.experts("experts.switch_glu.gate_proj", experts, width, hidden)?,
                load.experts("experts.switch_glu.up_proj", experts, width, hidden)?,
            )
        };
        let down = if fused { "experts.down_proj" } else { "experts.switch_glu.down_proj" };
        Ok(Moe {
            router_proj: load.linear("router.proj", experts, hidden)?,
            router_scale: load.vector("router.scale", hidden)?,
            per_expert_scale: load.vector("router.per_expert_scale", experts)?,
            gate_proj,
            up_proj,
            down_proj: load.experts(down, experts, hidden, width)?,
            post_feedforward_layernorm_1: load.vector("post_feedforward_layernorm_1.weight", hidden)?,
            post_feedforward_layernorm_2: load.vector("post_feedforward_layernorm_2.weight", hidden)?,
            pre_feedforward_layernorm_2: load.vector("pre_feedforward_layernorm_2.weight", hidden)?,
            experts,
            top_k,
            hidden,
            activation,
            eps,
        })
    }

    /// `rms(dense) + rms(experts(x))`, `[rows, hidden]`: `x` is the residual stream, un-normed, `dense` the MLP's output; `layer` is
    /// what the tap is told.
    pub fn forward(
        &self,
        backend: &B,
        x: &B::Buffer,
        dense: &B::Buffer,
        rows: usize,
        layer: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let mut see = |op: &'static str, buffer: &B::Buffer| show(tap, backend, Some(layer), op, buffer);
        let (hidden, eps) = (self.hidden, self.eps);
        // The router reads the residual through its own weightless norm.
        let mut r = backend.buffer(rows, hidden);
        backend.rms_norm(x, hidden, None, eps, &mut r);
        see("router_norm", &r);
        backend.scale(&mut r, Some(&self.router_scale), (hidden as f32).sqrt().recip());
        see("router_scale", &r);
        let mut router = backend.buffer(rows, self.experts);
        backend.linear(&r, &[&self.router_proj], &mut [&mut router]);
        see("router", &router);

        let mut normed = r;
        backend.rms_norm(x, hidden, Some(&self.pre_feedforward_layernorm_2), eps, &mut normed);
        see("pre_feedforward_norm_2", &normed);
        let mut sparse = backend.buffer(rows, hidden);
        let experts = Experts {
            gate: &self.gate_proj,
            up: &self.up_proj,
            down: &self.down_proj,
            scale: &self.per_expert_scale,
            top_k: self.top_k,
            activation: self.activation,
        };
        backend.moe(&router, &normed, &experts, &mut sparse);
        see("experts", &sparse);

        let mut sum = normed;
        backend.rms_norm(dense, hidden, Some(&self.post_feedforward_layernorm_1), eps, &mut sum);
        see("post_feedforward_norm_1", &sum);
        backend.add_rms_norm(&mut sum, &sparse, &self.post_feedforward_layernorm_2, eps, 1.0);
        sum
    }
}
