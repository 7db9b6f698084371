//! The Llama family: Llama 2 and 3 and their like (SmolLM2), Mistral, dense Qwen 2 and Qwen 3. One pre-norm decoder; what
//! differs between the members (biases, norms of the heads, scaling of the rotary frequencies) is in the configuration.

use mlxcel_checkpoint::{Checkpoint, LlamaConfig, Weights};
use mlxcel_compute::{Activation, Backend, Batch, KvGroup, KvShape, KvSlot, StateLayout};

use crate::layers::attention::{Attention, Shape};
use crate::layers::mlp::Mlp;
use crate::layers::output::Output;
use crate::layers::{Loader, rope};
use crate::summary::{Facts, Ledger};
use crate::tap::{Tap, show};
use crate::{Memory, ModelError, ModelInfo, Network};

/// The decoder.
pub struct Llama<B: Backend> {
    info: ModelInfo,
    config: LlamaConfig,
    embed_tokens: B::Weight, // [vocab, hidden]
    layers: Vec<Layer<B>>,
    output: Output<B>,
    rotation: B::Vector, // frequencies, [head_dim / 2]
    kv_layout: Vec<KvGroup>,
    state_layout: StateLayout,
}

struct Layer<B: Backend> {
    input_layernorm: B::Vector, // [hidden]
    self_attn: Attention<B>,
    post_attention_layernorm: B::Vector, // [hidden]
    mlp: Mlp<B>,
}

fn facts(config: &LlamaConfig) -> Facts<'_> {
    Facts {
        architecture: &config.architecture,
        model_type: &config.model_type,
        vocab_size: config.vocab_size,
        max_position_embeddings: config.max_position_embeddings,
        layers: config.num_hidden_layers,
        hidden_size: config.hidden_size,
        stop_ids: &config.eos_token_ids,
        media: Vec::new(),
        media_tokens: Vec::new(),
        warnings: &config.warnings,
    }
}

impl<B: Backend> Llama<B> {
    /// Reads a checkpoint.
    ///
    /// # Errors
    /// Any missing, left-over or ill-shaped tensor, and configurations outside the family.
    pub fn load(checkpoint: &Checkpoint, backend: &B) -> Result<Self, ModelError> {
        let config = LlamaConfig::from_checkpoint(checkpoint)?;
        let weights = Weights::detect(checkpoint)?;
        let ledger = Ledger::default();
        let load = Loader { backend, weights, ledger: &ledger, norm_shift: 0.0 };
        let (hidden, vocab, count) = (config.hidden_size, config.vocab_size, config.num_hidden_layers);
        let layers = (0..count).map(|l| Layer::load(&load.sub(&format!("layers.{l}.")), &config, l));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let tied = config.tie_word_embeddings;
        let output = Output::load(&load, vocab, hidden, config.rms_norm_eps as f32, tied)?;
        let embed_tokens = load.linear("embed_tokens", vocab, hidden)?;
        load.weights.finish(|name| config.ignores(name))?;
        let shape = KvShape { kv_heads: config.num_key_value_heads, head_dim: config.head_dim };
        Ok(Llama {
            info: ModelInfo::new(checkpoint, facts(&config), ledger.modules()),
            embed_tokens,
            layers,
            output,
            rotation: backend.load_vector(&rope::llama_frequencies(&config.rope, config.head_dim)),
            kv_layout: vec![KvGroup { window: None, layers: vec![shape; count] }],
            state_layout: StateLayout::default(),
            config,
        })
    }
}

impl<B: Backend> Layer<B> {
    fn load(load: &Loader<'_, B>, config: &LlamaConfig, layer: usize) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let shape = Shape {
            hidden,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            scale: (config.head_dim as f32).sqrt().recip(),
            qk_norm: config.qk_norm,
            v_norm: false,
            qkv_bias: config.qkv_bias,
            o_bias: config.o_bias,
            gated: false,
            k_eq_v: false,
            shared: false,
            window: None,
            slot: KvSlot { group: 0, layer },
            eps: config.rms_norm_eps as f32,
        };
        let mlp = load.sub("mlp.");
        let plain = Mlp::load(&mlp, hidden, config.intermediate_size, Activation::Silu)?;
        Ok(Layer {
            input_layernorm: load.norm("input_layernorm.weight", hidden)?,
            self_attn: Attention::load(&load.sub("self_attn."), shape)?,
            post_attention_layernorm: load.norm("post_attention_layernorm.weight", hidden)?,
            mlp: if config.mlp_bias { plain.with_biases(&mlp)? } else { plain },
        })
    }
}

impl<B: Backend> Network<B> for Llama<B> {
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
        let hidden = self.config.hidden_size;
        let eps = self.config.rms_norm_eps as f32;
        let rows = batch.rows();
        let mut x = backend.buffer(rows, hidden);
        backend.embed(&self.embed_tokens, batch.tokens(), 1.0, &mut x);
        show(tap, backend, None, "embed", &x);
        let angles = backend.rope_angles(batch.positions(), 1, &[], &self.rotation);
        show(tap, backend, None, "rope_angles", &angles);
        let mut normed = backend.buffer(rows, hidden);
        for (l, layer) in self.layers.iter().enumerate() {
            backend.rms_norm(&x, hidden, Some(&layer.input_layernorm), eps, &mut normed);
            show(tap, backend, Some(l), "input_norm", &normed);
            let mixed = layer.self_attn.forward(backend, &mut memory.kv, batch, &normed, &angles, l, tap);
            show(tap, backend, Some(l), "attention", &mixed);
            backend.add(&mut x, &mixed, 1.0);
            show(tap, backend, Some(l), "attention_residual", &x);

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
