//! Weights and forward pass of the head (qwen3_5.md §4.1, §4.2).

use mlxcel_checkpoint::qwen3_5::Qwen3_5MtpConfig;
use mlxcel_checkpoint::{Checkpoint, Weights};
use mlxcel_compute::{Backend, Batch, KvGroup, KvShape, KvSlot};

use super::layout::{Layout, Norms};
use crate::layers::attention::Attention;
use crate::layers::output::Output;
use crate::layers::{Loader, rope};
use crate::qwen3_5::{Ffn, Qwen3_5, attention};
use crate::summary::Ledger;
use crate::{Hidden, ModelError};

/// The head. Embedding and output matrix are its target's.
pub struct Head<B: Backend> {
    hidden: usize,
    eps: f32,
    pre_fc_norm_embedding: B::Vector, // [hidden]
    pre_fc_norm_hidden: B::Vector,    // [hidden]
    fc: B::Weight,                    // [hidden, 2 * hidden], the embedding's columns first
    layers: Vec<Layer<B>>,
    output: Output<B>,
    frequencies: B::Vector, // [rotary_dim / 2]
    kv: KvGroup,
    bytes: u64,
}

/// A decoder layer of the target's attending kind.
struct Layer<B: Backend> {
    input_layernorm: B::Vector, // [hidden]
    self_attn: Attention<B>,
    post_attention_layernorm: B::Vector, // [hidden]
    mlp: Ffn<B>,
}

/// The head's own memory.
pub struct Cache<B: Backend> {
    /// K and V of its layers.
    pub kv: B::Kv,
    /// Its own hidden states of the last pass, after `norm`: of the wanted rows.
    pub hidden: Hidden<B>,
}

impl<B: Backend> Head<B> {
    /// Reads a head's tensors, wherever the checkpoint has them.
    pub fn load(checkpoint: &Checkpoint, config: &Qwen3_5MtpConfig, backend: &B) -> Result<Self, ModelError> {
        let layout = Layout::detect(checkpoint);
        let (ledger, text) = (Ledger::default(), &config.text);
        let weights = Weights::new(checkpoint, layout.prefix);
        let load = Loader { backend, weights, ledger: &ledger, norm_shift: 0.0 };
        // Each norm by itself: files that mix both conventions exist (§3.3).
        let shifted = |load: &Loader<'_, B>, names: &[&str], len: usize| -> Result<f32, ModelError> {
            Ok(match layout.norms {
                Norms::Shifted => 0.0,
                Norms::Centred => 1.0,
                Norms::Unknown => super::layout::missing(&load.weights, names, len)?,
            })
        };
        let norm = |load: &Loader<'_, B>, name: &str| {
            let norm_shift = shifted(load, &[name], text.hidden_size)?;
            Loader { norm_shift, ..load.sub("") }.norm(name, text.hidden_size)
        };
        let (hidden, eps) = (text.hidden_size, text.rms_norm_eps as f32);
        let mut layers = Vec::new();
        for l in 0..text.mtp_num_hidden_layers {
            let load = load.sub(&format!("layers.{l}."));
            let own = load.sub("self_attn.");
            let norm_shift = shifted(&own, &["q_norm.weight", "k_norm.weight"], text.head_dim)?;
            let shape = attention(text, KvSlot { group: 0, layer: l });
            layers.push(Layer {
                input_layernorm: norm(&load, "input_layernorm.weight")?,
                self_attn: Attention::load(&Loader { norm_shift, ..own }, shape)?,
                post_attention_layernorm: norm(&load, "post_attention_layernorm.weight")?,
                mlp: Ffn::load(&load.sub("mlp."), text)?,
            });
        }
        let norm_shift = shifted(&load, &["norm.weight"], hidden)?;
        let output = Output::load(&Loader { norm_shift, ..load.sub("") }, text.vocab_size, hidden, eps, true)?;
        let pre_fc_norm_embedding = norm(&load, "pre_fc_norm_embedding.weight")?;
        let pre_fc_norm_hidden = norm(&load, "pre_fc_norm_hidden.weight")?;
        let fc = load.linear("fc", hidden, 2 * hidden)?;
        load.weights.finish(|name| !name.starts_with(layout.prefix) || name.contains("rotary_emb."))?;
        let shape = KvShape { kv_heads: text.num_key_value_heads, head_dim: text.head_dim };
        Ok(Head {
            hidden,
            eps,
            pre_fc_norm_embedding,
            pre_fc_norm_hidden,
            fc,
            kv: KvGroup { window: None, layers: vec![shape; layers.len()] },
            layers,
            output,
            frequencies: backend.load_vector(&rope::partial(text.rope.rope_theta, text.rope.rotary_dim())),
            bytes: ledger.modules().iter().map(|module| module.bytes).sum(),
        })
    }

    /// Width of a hidden state.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// What its layers cache.
    pub fn kv(&self) -> &KvGroup {
        &self.kv
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Logits `[wanted rows, vocab]` of pairs: the batch's tokens, or those in rows `at..` of `ids` ([`Backend::embed_at`]), with `hidden`
    /// `[rows, hidden]`, the target's states at the positions before them or the head's own. `step` counts a round's passes: each has its layer, in turn. K and V of every pair
    /// are stored in every layer; the rest is computed for the wanted rows only.
    pub fn forward(
        &self,
        backend: &B,
        target: &Qwen3_5<B>,
        cache: &mut Cache<B>,
        batch: &Batch,
        (ids, hidden): (Option<(&B::Buffer, usize)>, &B::Buffer),
        step: usize,
    ) -> B::Buffer {
        let (rows, wanted) = (batch.rows(), batch.wanted());
        let x = self.combine(backend, target, (batch, ids), hidden);
        let angles = backend.rope_angles(batch.positions(), 1, &[], &self.frequencies);
        let mut normed = backend.buffer(rows, self.hidden);
        let mut out = backend.buffer(wanted.len(), self.hidden);
        for (l, layer) in self.layers.iter().enumerate() {
            backend.rms_norm(&x, self.hidden, Some(&layer.input_layernorm), self.eps, &mut normed);
            let mixed = layer.self_attn.forward(backend, &mut cache.kv, batch, &normed, &angles, l, &mut None);
            if l != step % self.layers.len() || wanted.is_empty() {
                continue;
            }
            let mut attended = backend.buffer(wanted.len(), self.hidden);
            backend.gather(&mixed, wanted, &mut attended);
            backend.gather(&x, wanted, &mut out);
            backend.add(&mut out, &attended, 1.0);
            backend.rms_norm(&out, self.hidden, Some(&layer.post_attention_layernorm), self.eps, &mut attended);
            let f = layer.mlp.forward(backend, &attended, wanted.len(), l, &mut None);
            backend.add(&mut out, &f, 1.0);
        }
        let last = batch.select(wanted);
        self.output.forward(backend, &last, out, target.lm_head(), &mut cache.hidden, &mut None)
    }

    /// `fc([norm(embedding) | norm(hidden)])`, `[rows, hidden]`.
    fn combine(
        &self,
        backend: &B,
        target: &Qwen3_5<B>,
        (batch, ids): (&Batch, Option<(&B::Buffer, usize)>),
        hidden: &B::Buffer,
    ) -> B::Buffer {
        let rows = batch.rows();
        let mut x = backend.buffer(rows, self.hidden);
        match ids {
            None => backend.embed(target.embedding(), batch.tokens(), 1.0, &mut x),
            Some((ids, at)) => backend.embed_at(target.embedding(), ids, at, 1.0, &mut x),
        }
        let mut e = backend.buffer(rows, self.hidden);
        backend.rms_norm(&x, self.hidden, Some(&self.pre_fc_norm_embedding), self.eps, &mut e);
        let mut c = backend.buffer(rows, self.hidden);
        backend.rms_norm(hidden, self.hidden, Some(&self.pre_fc_norm_hidden), self.eps, &mut c);
        let mut both = backend.buffer(rows, 2 * self.hidden);
        backend.join(&e, &c, &mut both);
        backend.linear(&both, &[&self.fc], &mut [&mut x]);
        x
    }
}
