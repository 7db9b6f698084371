//! Gemma 4, text: one definition for E2B, E4B, 12B, 26B-A4B and 31B (gemma4.md §2).
//!
//! What differs between the sizes is in the configuration: window and full layers with their own head sizes and rotary
//! embeddings, K = V, layers that share an earlier layer's K/V, per-layer embeddings, experts beside the dense MLP.

use mlxcel_checkpoint::gemma4::{Gemma4Config, Gemma4TextConfig, LayerType};
use mlxcel_checkpoint::{Checkpoint, Weights};
use mlxcel_compute::{Activation, Backend, Batch, KvGroup, KvShape, KvSlot, StateLayout};

use crate::drafters::HiddenRows;
use crate::layers::attention::{Attention, Shape};
use crate::layers::mlp::Mlp;
use crate::layers::moe::{Moe, Sizes};
use crate::layers::{Loader, rope};
use crate::summary::{Facts, Ledger};
use crate::tap::{Tap, show};
use crate::{Memory, ModelError, ModelInfo, Network};

/// The text stack.
pub struct Gemma4<B: Backend> {
    info: ModelInfo,
    config: Gemma4TextConfig,
    embed_tokens: B::Weight,    // [vocab, hidden]
    lm_head: Option<B::Weight>, // [vocab, hidden], when not tied
    per_layer: Option<PerLayer<B>>,
    layers: Vec<Layer<B>>,
    norm: B::Vector,           // [hidden]
    rotations: Vec<B::Vector>, // frequencies, distinct ones
    kv_layout: Vec<KvGroup>,
    state_layout: StateLayout,
}

struct PerLayer<B: Backend> {
    embed_tokens_per_layer: B::Weight,     // [vocab, layers * width]
    per_layer_model_projection: B::Weight, // [layers * width, hidden]
    per_layer_projection_norm: B::Vector,  // [width]
}

/// One decoder layer.
pub(crate) struct Layer<B: Backend> {
    input_layernorm: B::Vector, // [hidden]
    self_attn: Attention<B>,
    post_attention_layernorm: B::Vector,  // [hidden]
    pre_feedforward_layernorm: B::Vector, // [hidden]
    mlp: Mlp<B>,
    moe: Option<Moe<B>>,
    post_feedforward_layernorm: B::Vector, // [hidden]
    per_layer: Option<LayerInput<B>>,
    layer_scalar: f32,
    rotation: usize, // which of the distinct rotary embeddings
    hidden: usize,
    eps: f32,
}

struct LayerInput<B: Backend> {
    per_layer_input_gate: B::Weight,      // [width, hidden]
    per_layer_projection: B::Weight,      // [hidden, width]
    post_per_layer_input_norm: B::Vector, // [hidden]
    width: usize,
}

fn facts(config: &Gemma4Config) -> Facts<'_> {
    let tokens = [config.image_token_id, config.audio_token_id, config.video_token_id];
    Facts {
        architecture: &config.architecture,
        model_type: config.family.model_type(),
        vocab_size: config.text.vocab_size,
        max_position_embeddings: config.text.max_position_embeddings,
        layers: config.text.num_hidden_layers,
        hidden_size: config.text.hidden_size,
        stop_ids: &config.eos_token_ids,
        media: [(config.has_vision, "image"), (config.has_audio, "audio")]
            .into_iter()
            .filter_map(|(has, medium)| has.then_some(medium))
            .collect(),
        media_tokens: tokens.into_iter().flatten().collect(),
        warnings: &config.warnings,
    }
}

/// Groups layers that cache by the positions they keep: `(layout, slot of each layer's K/V)`.
fn kv_layout(config: &Gemma4TextConfig) -> (Vec<KvGroup>, Vec<KvSlot>) {
    let mut layout: Vec<KvGroup> = Vec::new();
    let mut slots: Vec<KvSlot> = Vec::new();
    for layer in 0..config.num_hidden_layers {
        if layer >= config.first_shared_layer() {
            slots.push(slots[config.kv_source(layer)]);
            continue;
        }
        let window = config.is_sliding(layer).then_some(config.sliding_window);
        let shape = KvShape { kv_heads: config.kv_heads(layer), head_dim: config.head_dim(layer) };
        let group = layout.iter().position(|g| g.window == window).unwrap_or_else(|| {
            layout.push(KvGroup { window, layers: Vec::new() });
            layout.len() - 1
        });
        layout[group].layers.push(shape);
        slots.push(KvSlot { group, layer: layout[group].layers.len() - 1 });
    }
    (layout, slots)
}

/// The distinct rotary embeddings' frequencies, and which of them each layer uses.
pub(crate) fn rotations(config: &Gemma4TextConfig) -> (Vec<Vec<f32>>, Vec<usize>) {
    let mut frequencies: Vec<Vec<f32>> = Vec::new();
    let of_layer = (0..config.num_hidden_layers).map(|l| {
        let wanted = rope::frequencies(config.rope(l), config.head_dim(l));
        frequencies.iter().position(|f| *f == wanted).unwrap_or_else(|| {
            frequencies.push(wanted);
            frequencies.len() - 1
        })
    });
    let of_layer = of_layer.collect();
    (frequencies, of_layer)
}

impl<B: Backend> Gemma4<B> {
    /// Reads the text stack of a checkpoint. Towers for other media are left alone.
    ///
    /// # Errors
    /// Any missing, left-over or ill-shaped tensor, and configurations outside the family.
    pub fn load(checkpoint: &Checkpoint, backend: &B) -> Result<Self, ModelError> {
        let all = Gemma4Config::from_checkpoint(checkpoint)?;
        let config = all.text.clone();
        let weights = Weights::detect(checkpoint)?;
        let ledger = Ledger::default();
        let load = Loader { backend, weights, ledger: &ledger, norm_shift: 0.0 };
        let (hidden, vocab, count) = (config.hidden_size, config.vocab_size, config.num_hidden_layers);
        let width = config.hidden_size_per_layer_input;
        let per_layer = if width == 0 {
            None
        } else {
            let rows = config.vocab_size_per_layer_input;
            Some(PerLayer {
                embed_tokens_per_layer: load.linear("embed_tokens_per_layer", rows, count * width)?,
                per_layer_model_projection: load.linear("per_layer_model_projection", count * width, hidden)?,
                per_layer_projection_norm: load.vector("per_layer_projection_norm.weight", width)?,
            })
        };
        let (kv_layout, slots) = kv_layout(&config);
        let (frequencies, rotations) = rotations(&config);
        let layers = (0..count)
            .map(|l| Layer::load(&load.sub(&format!("layers.{l}.")), &config, l, slots[l], rotations[l]))
            .collect::<Result<_, _>>()?;
        let lm_head = match config.tie_word_embeddings {
            true => None,
            false => Some(load.lm_head(vocab, hidden)?),
        };
        let embed_tokens = load.linear("embed_tokens", vocab, hidden)?;
        let norm = load.vector("norm.weight", hidden)?;
        load.weights.finish(|name| all.ignores(name))?;
        Ok(Gemma4 {
            info: ModelInfo::new(checkpoint, facts(&all), ledger.modules()),
            embed_tokens,
            lm_head,
            per_layer,
            layers,
            norm,
            rotations: frequencies.iter().map(|f| backend.load_vector(f)).collect(),
            kv_layout,
            state_layout: StateLayout::default(),
            config,
        })
    }

    /// What a drafter must know of the sizes.
    pub(crate) fn config(&self) -> &Gemma4TextConfig {
        &self.config
    }

    /// Cache place of the K/V that a drafter's layers of a type read: the last layer of that type with K/V of its own.
    pub(crate) fn shared_kv(&self, kind: LayerType) -> Option<KvSlot> {
        self.config.last_caching(kind).map(|layer| kv_layout(&self.config).1[layer])
    }

    /// Scaled embeddings `[rows, hidden]`.
    pub(crate) fn embed(&self, backend: &B, tokens: &[u32]) -> B::Buffer {
        let hidden = self.config.hidden_size;
        let mut x = backend.buffer(tokens.len(), hidden);
        backend.embed(&self.embed_tokens, tokens, (hidden as f32).sqrt(), &mut x);
        x
    }

    /// The same for the tokens in rows `at..at + rows` of `ids` ([`Backend::embed_at`]).
    pub(crate) fn embed_at(&self, backend: &B, ids: &B::Buffer, at: usize, rows: usize) -> B::Buffer {
        let hidden = self.config.hidden_size;
        let mut x = backend.buffer(rows, hidden);
        backend.embed_at(&self.embed_tokens, ids, at, (hidden as f32).sqrt(), &mut x);
        x
    }

    /// Per-layer inputs `[rows, layers * width]` (§2.9), from the scaled embeddings.
    fn per_layer_inputs(
        &self,
        backend: &B,
        per_layer: &PerLayer<B>,
        batch: &Batch,
        h: &B::Buffer,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let mut see = |op: &'static str, buffer: &B::Buffer| show(tap, backend, None, op, buffer);
        let width = self.config.hidden_size_per_layer_input;
        let (rows, all) = (batch.rows(), self.config.num_hidden_layers * width);
        let mut raw = backend.buffer(rows, all);
        backend.linear(h, &[&per_layer.per_layer_model_projection], &mut [&mut raw]);
        see("per_layer_model_projection", &raw);
        // The factor comes before the norm because of the norm's epsilon.
        backend.scale(&mut raw, None, (self.config.hidden_size as f32).sqrt().recip());
        see("per_layer_scale", &raw);
        let mut ple = backend.buffer(rows, all);
        let eps = self.config.rms_norm_eps as f32;
        backend.rms_norm(&raw, width, Some(&per_layer.per_layer_projection_norm), eps, &mut ple);
        see("per_layer_projection_norm", &ple);
        let mut tokens = raw;
        backend.embed(&per_layer.embed_tokens_per_layer, batch.tokens(), (width as f32).sqrt(), &mut tokens);
        see("embed_tokens_per_layer", &tokens);
        backend.add(&mut ple, &tokens, 0.5f32.sqrt());
        see("per_layer_inputs", &ple);
        ple
    }
}

impl<B: Backend> Layer<B> {
    /// Reads layer `layer` of a configuration; `slot` is the place of its K/V, `rotation` one of [`rotations`].
    pub(crate) fn load(
        load: &Loader<'_, B>,
        config: &Gemma4TextConfig,
        layer: usize,
        slot: KvSlot,
        rotation: usize,
    ) -> Result<Self, ModelError> {
        let (hidden, width) = (config.hidden_size, config.hidden_size_per_layer_input);
        let eps = config.rms_norm_eps as f32;
        let shape = Shape {
            hidden,
            heads: config.num_attention_heads,
            kv_heads: config.kv_heads(layer),
            head_dim: config.head_dim(layer),
            scale: 1.0,
            qk_norm: true,
            v_norm: true,
            qkv_bias: false,
            o_bias: false,
            gated: false,
            k_eq_v: config.k_eq_v(layer),
            shared: layer >= config.first_shared_layer(),
            window: config.is_sliding(layer).then_some(config.sliding_window),
            slot,
            eps,
        };
        let moe = config.moe().map(|m| {
            let sizes =
                Sizes { experts: m.num_experts, top_k: m.top_k_experts, width: m.moe_intermediate_size, hidden };
            Moe::load(load, sizes, Activation::GeluTanh, eps)
        });
        let per_layer = (width > 0).then(|| -> Result<_, ModelError> {
            Ok(LayerInput {
                per_layer_input_gate: load.linear("per_layer_input_gate", width, hidden)?,
                per_layer_projection: load.linear("per_layer_projection", hidden, width)?,
                post_per_layer_input_norm: load.vector("post_per_layer_input_norm.weight", hidden)?,
                width,
            })
        });
        Ok(Layer {
            input_layernorm: load.vector("input_layernorm.weight", hidden)?,
            self_attn: Attention::load(&load.sub("self_attn."), shape)?,
            post_attention_layernorm: load.vector("post_attention_layernorm.weight", hidden)?,
            pre_feedforward_layernorm: load.vector("pre_feedforward_layernorm.weight", hidden)?,
            mlp: Mlp::load(&load.sub("mlp."), hidden, config.mlp_width(layer), Activation::GeluTanh)?,
            moe: moe.transpose()?,
            post_feedforward_layernorm: load.vector("post_feedforward_layernorm.weight", hidden)?,
            per_layer: per_layer.transpose()?,
            layer_scalar: load.scalar("layer_scalar")?,
            rotation,
            hidden,
            eps,
        })
    }

    /// Runs the layer on `x` `[rows, hidden]`, in place. `rotations` are the angles of the batch for each of [`rotations`], `ple`
    /// the per-layer inputs of all layers; `l` is the layer's own index.
    #[allow(clippy::too_many_arguments, reason = "the operands of a layer, and who looks")]
    pub(crate) fn forward(
        &self,
        backend: &B,
        kv: &mut B::Kv,
        batch: &Batch,
        x: &mut B::Buffer,
        rotations: &[B::Buffer],
        ple: Option<&B::Buffer>,
        l: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) {
        let (rows, hidden, eps) = (batch.rows(), self.hidden, self.eps);
        let mut normed = backend.buffer(rows, hidden);
        backend.rms_norm(x, hidden, Some(&self.input_layernorm), eps, &mut normed);
        show(tap, backend, Some(l), "input_norm", &normed);
        let mixed = self.self_attn.forward(backend, kv, batch, &normed, &rotations[self.rotation], l, tap);
        show(tap, backend, Some(l), "attention", &mixed);
        backend.add_rms_norm(x, &mixed, &self.post_attention_layernorm, eps, 1.0);
        show(tap, backend, Some(l), "post_attention_norm", x);

        backend.rms_norm(x, hidden, Some(&self.pre_feedforward_layernorm), eps, &mut normed);
        show(tap, backend, Some(l), "pre_feedforward_norm", &normed);
        let mut f = self.mlp.forward(backend, &normed, rows, l, tap);
        show(tap, backend, Some(l), "mlp", &f);
        if let Some(moe) = &self.moe {
            f = moe.forward(backend, x, &f, rows, l, tap);
            show(tap, backend, Some(l), "moe", &f);
        }
        let last = if self.per_layer.is_none() { self.layer_scalar } else { 1.0 };
        backend.add_rms_norm(x, &f, &self.post_feedforward_layernorm, eps, last);

        if let (Some(input), Some(ple)) = (&self.per_layer, ple) {
            show(tap, backend, Some(l), "post_feedforward_norm", x);
            let mut gate = backend.buffer(rows, input.width);
            backend.linear(x, &[&input.per_layer_input_gate], &mut [&mut gate]);
            show(tap, backend, Some(l), "per_layer_input_gate", &gate);
            backend.activate_mul(&mut gate, Activation::GeluTanh, ple, l * input.width);
            show(tap, backend, Some(l), "per_layer_gated", &gate);
            backend.linear(&gate, &[&input.per_layer_projection], &mut [&mut f]);
            show(tap, backend, Some(l), "per_layer_projection", &f);
            backend.add_rms_norm(x, &f, &input.post_per_layer_input_norm, eps, self.layer_scalar);
        }
        show(tap, backend, Some(l), "output", x);
    }
}

impl<B: Backend> Network<B> for Gemma4<B> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> &[KvGroup] {
        &self.kv_layout
    }

    fn state_layout(&self) -> &StateLayout {
        &self.state_layout
    }

    fn forward(&self, backend: &B, memory: &mut Memory<B>, batch: &Batch, tap: &mut Option<&mut dyn Tap>) -> B::Buffer {
        debug_assert!(batch.is_text(), "image features are refused before they come here");
        memory.hidden.rows = None;
        let config = &self.config;
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps as f32);
        let mut x = self.embed(backend, batch.tokens());
        show(tap, backend, None, "embed", &x);
        let mut ple = self.per_layer.as_ref().map(|p| self.per_layer_inputs(backend, p, batch, &x, tap));
        let angles = |batch: &Batch| -> Vec<B::Buffer> {
            self.rotations.iter().map(|f| backend.rope_angles(batch.positions(), 1, &[], f)).collect()
        };
        let mut rotations = angles(batch);
        rotations.iter().for_each(|angles| show(tap, backend, None, "rope_angles", angles));
        // Sharing layers write no cache: from the first of them on, only the wanted rows matter.
        let wanted = batch.select(batch.wanted());
        let mut batch = batch;
        for (l, layer) in self.layers.iter().enumerate() {
            if l == config.first_shared_layer() && wanted.rows() < batch.rows() {
                if wanted.is_empty() {
                    return backend.buffer(0, config.vocab_size);
                }
                x = self.narrow(backend, batch, &x, hidden);
                let width = config.num_hidden_layers * config.hidden_size_per_layer_input;
                ple = ple.map(|p| self.narrow(backend, batch, &p, width));
                batch = &wanted;
                rotations = angles(batch);
            }
            layer.forward(backend, &mut memory.kv, batch, &mut x, &rotations, ple.as_ref(), l, tap);
        }
        if wanted.is_empty() {
            return backend.buffer(0, config.vocab_size);
        }
        if wanted.rows() < batch.rows() {
            x = self.narrow(backend, batch, &x, hidden);
        }
        let mut normed = backend.buffer(wanted.rows(), hidden);
        backend.rms_norm(&x, hidden, Some(&self.norm), eps, &mut normed);
        show(tap, backend, None, "norm", &normed);
        let mut logits = backend.buffer(wanted.rows(), config.vocab_size);
        backend.linear(&normed, &[self.lm_head.as_ref().unwrap_or(&self.embed_tokens)], &mut [&mut logits]);
        if let Some(cap) = config.final_logit_softcapping {
            show(tap, backend, None, "lm_head", &logits);
            backend.softcap(&mut logits, cap as f32);
        }
        show(tap, backend, None, "logits", &logits);
        // Sharing layers run for the wanted rows only, and those are all that this family's drafter reads.
        memory.hidden.rows = (memory.hidden.keep > HiddenRows::None).then_some(normed);
        logits
    }
}

impl<B: Backend> Gemma4<B> {
    /// The wanted rows of `x` `[rows of batch, width]`.
    fn narrow(&self, backend: &B, batch: &Batch, x: &B::Buffer, width: usize) -> B::Buffer {
        let mut out = backend.buffer(batch.wanted().len(), width);
        backend.gather(x, batch.wanted(), &mut out);
        out
    }
}
