//! Self-attention with per-head norms, rotary positions, optional K = V, and K/V that may belong to another layer.

use mlxcel_compute::{Attend, Backend, Batch, KvSlot};

use super::Loader;
use crate::ModelError;

/// Sizes and place of one attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// K/V heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Values come from the raw keys; there is no `v_proj`.
    pub k_eq_v: bool,
    /// K/V are another layer's; there is no `k_proj`.
    pub shared: bool,
    /// Keys a row sees; `None` = all.
    pub window: Option<usize>,
    /// Cache place of this layer's K/V, or of the layer it shares with.
    pub slot: KvSlot,
    /// Epsilon of the norms.
    pub eps: f32,
}

/// Weights of an attention layer.
pub struct Attention<B: Backend> {
    shape: Shape,
    q_proj: B::Weight, // [heads * head_dim, hidden]
    q_norm: B::Vector, // [head_dim]
    kv: Option<KeyValue<B>>,
    o_proj: B::Weight, // [hidden, heads * head_dim]
}

struct KeyValue<B: Backend> {
    k_proj: B::Weight,         // [kv_heads * head_dim, hidden]
    k_norm: B::Vector,         // [head_dim]
    v_proj: Option<B::Weight>, // [kv_heads * head_dim, hidden]
}

impl<B: Backend> Attention<B> {
    /// Reads the layer's tensors.
    pub fn load(load: &Loader<'_, B>, shape: Shape) -> Result<Self, ModelError> {
        let (q_width, kv_width) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let kv = if shape.shared {
            None
        } else {
            Some(KeyValue {
                k_proj: load.linear("k_proj", kv_width, shape.hidden)?,
                k_norm: load.vector("k_norm.weight", shape.head_dim)?,
                v_proj: if shape.k_eq_v { None } else { Some(load.linear("v_proj", kv_width, shape.hidden)?) },
            })
        };
        Ok(Attention {
            q_proj: load.linear("q_proj", q_width, shape.hidden)?,
            q_norm: load.vector("q_norm.weight", shape.head_dim)?,
            kv,
            o_proj: load.linear("o_proj", shape.hidden, q_width)?,
            shape,
        })
    }

    /// `x` `[rows, hidden]`, already normed, to `[rows, hidden]`. `angles` are those of the layer's rotary embedding.
    pub fn forward(&self, backend: &B, kv: &mut B::Kv, batch: &Batch, x: &B::Buffer, angles: &B::Buffer) -> B::Buffer {
        let Shape { hidden, heads, kv_heads, head_dim, window, slot, eps, .. } = self.shape;
        let rows = batch.rows();
        let mut q_raw = backend.buffer(rows, heads * head_dim);
        let mut q = backend.buffer(rows, heads * head_dim);
        match &self.kv {
            None => backend.linear(x, &[&self.q_proj], &mut [&mut q_raw]),
            Some(own) => {
                let mut k_raw = backend.buffer(rows, kv_heads * head_dim);
                let mut k = backend.buffer(rows, kv_heads * head_dim);
                let mut v = backend.buffer(rows, kv_heads * head_dim);
                match &own.v_proj {
                    Some(v_proj) => {
                        let mut v_raw = backend.buffer(rows, kv_heads * head_dim);
                        let weights = [&self.q_proj, &own.k_proj, v_proj];
                        backend.linear(x, &weights, &mut [&mut q_raw, &mut k_raw, &mut v_raw]);
                        backend.rms_norm(&v_raw, head_dim, None, eps, &mut v);
                    }
                    None => {
                        // V is the raw K: before its norm and rotation.
                        backend.linear(x, &[&self.q_proj, &own.k_proj], &mut [&mut q_raw, &mut k_raw]);
                        backend.rms_norm(&k_raw, head_dim, None, eps, &mut v);
                    }
                }
                backend.rms_norm(&k_raw, head_dim, Some(&own.k_norm), eps, &mut k);
                backend.rope(&mut k, head_dim, angles);
                backend.kv_append(kv, slot, batch, &k, &v);
            }
        }
        backend.rms_norm(&q_raw, head_dim, Some(&self.q_norm), eps, &mut q);
        backend.rope(&mut q, head_dim, angles);
        let mut mixed = q_raw; // same shape, no longer needed
        backend.attend(kv, slot, batch, &q, Attend { heads, scale: 1.0, window }, &mut mixed);
        let mut out = backend.buffer(rows, hidden);
        backend.linear(&mixed, &[&self.o_proj], &mut [&mut out]);
        out
    }
}
