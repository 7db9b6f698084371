//! Self-attention with rotary positions, and what families add to it: norms and biases of the heads, an output gate, K = V,
//! K/V that belong to another layer.

use mlxcel_compute::{Activation, Attend, Backend, Batch, KvSlot};

use super::Loader;
use crate::ModelError;
use crate::tap::{Tap, show};

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
    /// Factor on the scores.
    pub scale: f32,
    /// q and k are normed a head, with weights.
    pub qk_norm: bool,
    /// v is normed a head, without weights.
    pub v_norm: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The output has a bias.
    pub o_bias: bool,
    /// `q_proj` gives each head its query, then as many gate values: the output is times their sigmoid.
    pub gated: bool,
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
    q: Heads<B>,
    kv: Option<KeyValue<B>>,
    o_proj: B::Weight, // [hidden, heads * head_dim]
    o_bias: Option<B::Vector>,
}

/// A projection to heads and what follows it.
struct Heads<B: Backend> {
    proj: B::Weight,          // [heads * head_dim, hidden], twice as many outputs when gated
    bias: Option<B::Vector>,  // [outputs]
    norm: Option<B::Vector>,  // [head_dim]
    sites: [&'static str; 2], // where bias and norm are seen
}

/// Shows what a verb wrote, under its name.
type See<'a, B> = dyn FnMut(&'static str, &<B as Backend>::Buffer) + 'a;

struct KeyValue<B: Backend> {
    k: Heads<B>,
    v: Option<Heads<B>>,
}

impl<B: Backend> Heads<B> {
    fn load(load: &Loader<'_, B>, name: char, outputs: usize, shape: &Shape, norm: bool) -> Result<Self, ModelError> {
        let bias = shape.qkv_bias.then(|| load.vector(&format!("{name}_proj.bias"), outputs));
        let norm = norm.then(|| load.norm(&format!("{name}_norm.weight"), shape.head_dim));
        Ok(Heads {
            proj: load.linear(&format!("{name}_proj"), outputs, shape.hidden)?,
            bias: bias.transpose()?,
            norm: norm.transpose()?,
            sites: match name {
                'q' => ["q_bias", "q_norm"],
                'k' => ["k_bias", "k_norm"],
                _ => ["v_bias", "v_norm"],
            },
        })
    }

    /// Bias and norm of what the projection gave.
    fn finish(
        &self,
        backend: &B,
        mut x: B::Buffer,
        (rows, width): (usize, usize),
        shape: &Shape,
        see: &mut See<'_, B>,
    ) -> B::Buffer {
        if let Some(bias) = &self.bias {
            backend.add_vector(&mut x, bias);
            see(self.sites[0], &x);
        }
        let Some(norm) = &self.norm else { return x };
        let mut normed = backend.buffer(rows, width);
        backend.rms_norm(&x, shape.head_dim, Some(norm), shape.eps, &mut normed);
        see(self.sites[1], &normed);
        normed
    }
}

impl<B: Backend> Attention<B> {
    /// Reads the layer's tensors.
    pub fn load(load: &Loader<'_, B>, shape: Shape) -> Result<Self, ModelError> {
        let (q_width, kv_width) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let q_outputs = if shape.gated { 2 * q_width } else { q_width };
        let kv = if shape.shared {
            None
        } else {
            let v = (!shape.k_eq_v).then(|| Heads::load(load, 'v', kv_width, &shape, false));
            Some(KeyValue { k: Heads::load(load, 'k', kv_width, &shape, shape.qk_norm)?, v: v.transpose()? })
        };
        let o_bias = shape.o_bias.then(|| load.vector("o_proj.bias", shape.hidden));
        Ok(Attention {
            q: Heads::load(load, 'q', q_outputs, &shape, shape.qk_norm)?,
            kv,
            o_proj: load.linear("o_proj", shape.hidden, q_width)?,
            o_bias: o_bias.transpose()?,
            shape,
        })
    }

    /// `x` `[rows, hidden]`, already normed, to `[rows, hidden]`. `angles` are those of the layer's rotary embedding; `layer` is
    /// what the tap is told.
    #[allow(clippy::too_many_arguments, reason = "the operands of a layer, and who looks")]
    pub fn forward(
        &self,
        backend: &B,
        kv: &mut B::Kv,
        batch: &Batch,
        x: &B::Buffer,
        angles: &B::Buffer,
        layer: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let see: &mut See<'_, B> = &mut |op, buffer| show(tap, backend, Some(layer), op, buffer);
        let Shape { hidden, heads, head_dim, window, slot, scale, .. } = self.shape;
        let rows = batch.rows();
        let q_width = heads * head_dim;
        let mut projected = backend.buffer(rows, if self.shape.gated { 2 * q_width } else { q_width });
        match &self.kv {
            None => {
                backend.linear(x, &[&self.q.proj], &mut [&mut projected]);
                see("q_proj", &projected);
            }
            Some(own) => self.append(backend, kv, batch, x, angles, own, &mut projected, see),
        }
        let mut gate = None;
        if self.shape.gated {
            let mut split = [backend.buffer(rows, q_width), backend.buffer(rows, q_width)];
            for (i, half) in split.iter_mut().enumerate() {
                backend.columns(&projected, 2 * head_dim, i * head_dim, head_dim, half);
            }
            let [q, g] = split;
            see("q_split", &q);
            see("gate_split", &g);
            (projected, gate) = (q, Some(g));
        }
        let mut q = self.q.finish(backend, projected, (rows, q_width), &self.shape, see);
        backend.rope(&mut q, head_dim, angles);
        see("q_rope", &q);
        let mut mixed = backend.buffer(rows, q_width);
        backend.attend(kv, slot, batch, &q, Attend { heads, scale, window }, &mut mixed);
        see("attend", &mixed);
        if let Some(mut gate) = gate {
            backend.activate_mul(&mut gate, Activation::Sigmoid, &mixed, 0);
            mixed = gate;
            see("gated", &mixed);
        }
        let mut out = backend.buffer(rows, hidden);
        backend.linear(&mixed, &[&self.o_proj], &mut [&mut out]);
        see("o_proj", &out);
        if let Some(bias) = &self.o_bias {
            backend.add_vector(&mut out, bias);
            see("o_bias", &out);
        }
        out
    }

    /// Projects q, k and v in one go, and stores k and v.
    #[allow(clippy::too_many_arguments, reason = "the operands of a layer")]
    fn append(
        &self,
        backend: &B,
        kv: &mut B::Kv,
        batch: &Batch,
        x: &B::Buffer,
        angles: &B::Buffer,
        own: &KeyValue<B>,
        q: &mut B::Buffer,
        see: &mut See<'_, B>,
    ) {
        let Shape { kv_heads, head_dim, slot, eps, v_norm, .. } = self.shape;
        let (rows, width) = (batch.rows(), kv_heads * head_dim);
        let mut k = backend.buffer(rows, width);
        let mut v = backend.buffer(rows, width);
        match &own.v {
            Some(heads) => {
                backend.linear(x, &[&self.q.proj, &own.k.proj, &heads.proj], &mut [q, &mut k, &mut v]);
                see("q_proj", q);
                see("k_proj", &k);
                see("v_proj", &v);
                v = heads.finish(backend, v, (rows, width), &self.shape, see);
            }
            None => {
                // V is the raw K: before its norm and rotation.
                backend.linear(x, &[&self.q.proj, &own.k.proj], &mut [q, &mut k]);
                see("q_proj", q);
                see("k_proj", &k);
                backend.columns(&k, width, 0, width, &mut v);
                see("v_copy", &v);
            }
        }
        if v_norm {
            let mut normed = backend.buffer(rows, width);
            backend.rms_norm(&v, head_dim, None, eps, &mut normed);
            see("v_norm", &normed);
            v = normed;
        }
        let mut k = own.k.finish(backend, k, (rows, width), &self.shape, see);
        backend.rope(&mut k, head_dim, angles);
        see("k_rope", &k);
        backend.kv_append(kv, slot, batch, &k, &v);
    }
}
