//! Qwen 3.5, 3.6 and 3.8, text: one definition for the dense sizes and the mixtures of experts (qwen3_5.md §2).
//!
//! Three layers in four are recurrent (Gated DeltaNet), every fourth attends to all positions, with an output gate and
//! rotary positions over a part of each head.

use mlxcel_checkpoint::qwen3_5::{Qwen3_5Config, Qwen3_5TextConfig};
use mlxcel_checkpoint::{Checkpoint, ConvLayout, Weights};
use mlxcel_compute::{Activation, Backend, Batch, DeltaShape, KvGroup, KvShape, KvSlot, StateLayout};

use crate::layers::attention::{Attention, Shape};
use crate::layers::delta_net::DeltaNet;
use crate::layers::mlp::Mlp;
use crate::layers::moe::Sizes;
use crate::layers::output::Output;
use crate::layers::shared_moe::SharedMoe;
use crate::layers::{Loader, rope};
use crate::summary::{Facts, Ledger};
use crate::tap::{Tap, show};
use crate::{Memory, ModelError, ModelInfo, Network};

/// The text stack.
pub struct Qwen3_5<B: Backend> {
    info: ModelInfo,
    hidden: usize,
    eps: f32,
    embed_tokens: B::Weight, // [vocab, hidden]
    layers: Vec<Layer<B>>,
    output: Output<B>,
    frequencies: B::Vector, // [rotary_dim / 2]
    axes: Vec<u8>,          // position axis of each frequency
    kv_layout: Vec<KvGroup>,
    state_layout: StateLayout,
}

struct Layer<B: Backend> {
    input_layernorm: B::Vector, // [hidden]
    mixer: Mixer<B>,
    post_attention_layernorm: B::Vector, // [hidden]
    mlp: Ffn<B>,
}

enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Delta(DeltaNet<B>),
}

/// The feed-forward part of a layer.
pub(crate) enum Ffn<B: Backend> {
    Dense(Mlp<B>),
    Sparse(SharedMoe<B>),
}

fn delta_shape(config: &Qwen3_5TextConfig) -> DeltaShape {
    DeltaShape {
        key_heads: config.linear_num_key_heads,
        value_heads: config.linear_num_value_heads,
        key_dim: config.linear_key_head_dim,
        value_dim: config.linear_value_head_dim,
        taps: config.linear_conv_kernel_dim,
    }
}

fn facts(config: &Qwen3_5Config) -> Facts<'_> {
    let tokens =
        [config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id];
    Facts {
        architecture: &config.architecture,
        model_type: &config.model_type,
        vocab_size: config.text.vocab_size,
        max_position_embeddings: config.text.max_position_embeddings,
        layers: config.text.num_hidden_layers,
        hidden_size: config.text.hidden_size,
        stop_ids: &config.eos_token_ids,
        media: if config.has_vision { vec!["image"] } else { Vec::new() },
        media_tokens: if config.has_vision { tokens.into_iter().flatten().collect() } else { Vec::new() },
        warnings: &config.warnings,
    }
}

impl<B: Backend> Qwen3_5<B> {
    /// Reads the text stack of a checkpoint, in transformers' or MLX's layout. The vision tower and the drafting head are left
    /// alone.
    ///
    /// # Errors
    /// Any missing, left-over or ill-shaped tensor, and configurations outside the family.
    pub fn load(checkpoint: &Checkpoint, backend: &B) -> Result<Self, ModelError> {
        let all = Qwen3_5Config::from_checkpoint(checkpoint)?;
        let config = &all.text;
        let weights = Weights::detect(checkpoint)?;
        // Whoever moves the convolution's axes also adds the 1 to the norms (§3.2). Without a convolution the names must tell.
        let by_name =
            if weights.prefix().starts_with("language_model.") { ConvLayout::Mlx } else { ConvLayout::Transformers };
        let conv = (0..config.num_hidden_layers)
            .find_map(|l| weights.conv_layout(&format!("layers.{l}.linear_attn.conv1d.weight")))
            .unwrap_or(by_name);
        let norm_shift = if conv == ConvLayout::Transformers { 1.0 } else { 0.0 };
        let ledger = Ledger::default();
        let load = Loader { backend, weights, ledger: &ledger, norm_shift };
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let mut kv_layers = Vec::new();
        let mut state_layout = StateLayout::default();
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for l in 0..config.num_hidden_layers {
            let load = load.sub(&format!("layers.{l}."));
            let mixer = if config.is_linear(l) {
                state_layout.layers.push(delta_shape(config));
                let (index, eps) = (state_layout.layers.len() - 1, config.rms_norm_eps as f32);
                let load = load.sub("linear_attn.");
                Mixer::Delta(DeltaNet::load(&load, delta_shape(config), hidden, eps, index, conv)?)
            } else {
                kv_layers.push(KvShape { kv_heads: config.num_key_value_heads, head_dim: config.head_dim });
                let slot = KvSlot { group: 0, layer: kv_layers.len() - 1 };
                Mixer::Attention(Attention::load(&load.sub("self_attn."), attention(config, slot))?)
            };
            layers.push(Layer {
                input_layernorm: load.norm("input_layernorm.weight", hidden)?,
                mixer,
                post_attention_layernorm: load.norm("post_attention_layernorm.weight", hidden)?,
                mlp: Ffn::load(&load.sub("mlp."), config)?,
            });
        }
        let output = Output::load(&load, vocab, hidden, config.rms_norm_eps as f32, config.tie_word_embeddings)?;
        let embed_tokens = load.linear("embed_tokens", vocab, hidden)?;
        load.weights.finish(|name| all.ignores(name))?;
        let kv_layout = match kv_layers.is_empty() {
            true => Vec::new(),
            false => vec![KvGroup { window: None, layers: kv_layers }],
        };
        Ok(Qwen3_5 {
            info: ModelInfo::new(checkpoint, facts(&all), ledger.modules()),
            hidden,
            eps: config.rms_norm_eps as f32,
            embed_tokens,
            layers,
            output,
            frequencies: backend.load_vector(&rope::partial(config.rope.rope_theta, config.rope.rotary_dim())),
            axes: rope::axes(config.rope.mrope_section, config.rope.mrope_interleaved, config.rope.rotary_dim() / 2),
            kv_layout,
            state_layout,
        })
    }

    /// The embedding, which a drafting head shares.
    pub(crate) fn embedding(&self) -> &B::Weight {
        &self.embed_tokens
    }

    /// The output matrix, which a drafting head shares.
    pub(crate) fn lm_head(&self) -> &B::Weight {
        self.output.head(&self.embed_tokens)
    }
}

/// Gated attention at its place in a cache.
pub(crate) fn attention(config: &Qwen3_5TextConfig, slot: KvSlot) -> Shape {
    Shape {
        hidden: config.hidden_size,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        scale: (config.head_dim as f32).sqrt().recip(),
        qk_norm: true,
        v_norm: false,
        qkv_bias: config.attention_bias,
        o_bias: config.attention_bias,
        gated: true,
        k_eq_v: false,
        shared: false,
        window: None,
        slot,
        eps: config.rms_norm_eps as f32,
    }
}

impl<B: Backend> Ffn<B> {
    /// Reads the tensors under `mlp.`.
    pub(crate) fn load(load: &Loader<'_, B>, config: &Qwen3_5TextConfig) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        Ok(match &config.moe {
            None => Ffn::Dense(Mlp::load(load, hidden, config.intermediate_size, Activation::Silu)?),
            Some(moe) => {
                let (experts, top_k) = (moe.num_experts, moe.num_experts_per_tok);
                let sizes = Sizes { experts, top_k, width: moe.moe_intermediate_size, hidden };
                Ffn::Sparse(SharedMoe::load(load, sizes, moe.shared_expert_intermediate_size)?)
            }
        })
    }

    /// `[rows, hidden]` to `[rows, hidden]`; `layer` is what the tap is told.
    pub(crate) fn forward(
        &self,
        backend: &B,
        x: &B::Buffer,
        rows: usize,
        layer: usize,
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        match self {
            Ffn::Dense(mlp) => mlp.forward(backend, x, rows, layer, tap),
            Ffn::Sparse(moe) => moe.forward(backend, x, rows, layer, tap),
        }
    }
}

impl<B: Backend> Network<B> for Qwen3_5<B> {
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
        let (hidden, eps, rows) = (self.hidden, self.eps, batch.rows());
        let mut x = backend.buffer(rows, hidden);
        backend.embed(&self.embed_tokens, batch.tokens(), 1.0, &mut x);
        if let Some((rows, values)) = batch.vectors() {
            backend.put_rows(&mut x, rows, values);
        }
        show(tap, backend, None, "embed", &x);
        // One axis for text, three where an image gives them; then each frequency follows its own.
        let (axes, positions) = batch.rope_positions();
        let axis: &[u8] = if axes == 1 { &[] } else { &self.axes };
        let angles = backend.rope_angles(positions, axes, axis, &self.frequencies);
        show(tap, backend, None, "rope_angles", &angles);
        let mut normed = backend.buffer(rows, hidden);
        for (l, layer) in self.layers.iter().enumerate() {
            backend.rms_norm(&x, hidden, Some(&layer.input_layernorm), eps, &mut normed);
            show(tap, backend, Some(l), "input_norm", &normed);
            let mixed = match &layer.mixer {
                Mixer::Attention(attention) => {
                    attention.forward(backend, &mut memory.kv, batch, &normed, &angles, l, tap)
                }
                Mixer::Delta(delta) => delta.forward(backend, &mut memory.state, &normed, rows, l, tap),
            };
            show(tap, backend, Some(l), "mixer", &mixed);
            backend.add(&mut x, &mixed, 1.0);
            show(tap, backend, Some(l), "mixer_residual", &x);

            backend.rms_norm(&x, hidden, Some(&layer.post_attention_layernorm), eps, &mut normed);
            show(tap, backend, Some(l), "post_attention_norm", &normed);
            let f = layer.mlp.forward(backend, &normed, rows, l, tap);
            show(tap, backend, Some(l), "mlp", &f);
            backend.add(&mut x, &f, 1.0);
            show(tap, backend, Some(l), "output", &x);
        }
        self.output.forward(backend, batch, x, &self.embed_tokens, &mut memory.hidden, tap)
    }
}
