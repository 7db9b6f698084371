//! The drafter's weights and one step of it (gemma4.md §5.3).

use mlxcel_checkpoint::gemma4::Gemma4AssistantConfig;
use mlxcel_checkpoint::{Checkpoint, Weights};
use mlxcel_compute::{Backend, Batch};

use super::head::Head;
use crate::gemma4::{Gemma4, Layer, rotations};
use crate::layers::Loader;
use crate::summary::Ledger;
use crate::tap::{Tap, show};
use crate::{ModelError, Network};

/// A decoder without K/V of its own, between two projections.
pub struct Assistant<B: Backend> {
    pre_projection: B::Weight,  // [hidden, 2 * backbone]
    post_projection: B::Weight, // [backbone, hidden]
    layers: Vec<Layer<B>>,
    norm: B::Vector,           // [hidden]
    rotations: Vec<B::Vector>, // frequencies, distinct ones
    head: Head<B>,
    hidden: usize,
    backbone: usize,
    eps: f32,
}

impl<B: Backend> Assistant<B> {
    /// Reads the drafter's tensors for a target that its configuration was found to fit; returns bytes of weights as well.
    pub fn load(
        checkpoint: &Checkpoint,
        config: &Gemma4AssistantConfig,
        target: &Gemma4<B>,
        backend: &B,
    ) -> Result<(Self, u64), ModelError> {
        let ledger = Ledger::default();
        let load = Loader { backend, weights: Weights::new(checkpoint, ""), ledger: &ledger, norm_shift: 0.0 };
        let (hidden, backbone) = (config.text.hidden_size, config.backbone_hidden_size);
        let (frequencies, which) = rotations(&config.text);
        let refuse = |problem| ModelError::NoDrafter {
            target: target.info().path.display().to_string(),
            drafter: checkpoint.dir().display().to_string(),
            problem,
        };
        let model = load.sub("model.");
        let mut layers = Vec::with_capacity(which.len());
        for (l, (kind, rotation)) in config.text.layer_types.iter().zip(which).enumerate() {
            let slot =
                target.shared_kv(*kind).ok_or_else(|| refuse(format!("the model has no {} layer", kind.name())))?;
            layers.push(Layer::load(&model.sub(&format!("layers.{l}.")), &config.text, l, slot, rotation)?);
        }
        let assistant = Assistant {
            pre_projection: load.linear("pre_projection", hidden, 2 * backbone)?,
            post_projection: load.linear("post_projection", backbone, hidden)?,
            layers,
            norm: model.vector("norm.weight", hidden)?,
            rotations: frequencies.iter().map(|f| backend.load_vector(f)).collect(),
            head: Head::load(&load, config.text.vocab_size, hidden, config.centroids, refuse)?,
            hidden,
            backbone,
            eps: config.text.rms_norm_eps as f32,
        };
        load.weights.finish(|_| false)?;
        Ok((assistant, ledger.modules().iter().map(|m| m.bytes).sum()))
    }

    /// The stack's output `[rows, hidden]`, after its norm, for the target's embeddings of the batch's tokens and the hidden states that
    /// come with them, `[rows, backbone]` each, the latter from what `source` names. Nothing is written to `kv`: it is the target's.
    pub fn step(
        &self,
        backend: &B,
        kv: &mut B::Kv,
        batch: &Batch,
        (embedding, states, source): (&B::Buffer, &B::Buffer, &'static str),
        tap: &mut Option<&mut dyn Tap>,
    ) -> B::Buffer {
        let rows = batch.rows();
        show(tap, backend, None, "the target's embed_tokens", embedding);
        show(tap, backend, None, source, states);
        let mut joined = backend.buffer(rows, 2 * self.backbone);
        backend.join(embedding, states, &mut joined);
        show(tap, backend, None, "inputs", &joined);
        let mut x = backend.buffer(rows, self.hidden);
        backend.linear(&joined, &[&self.pre_projection], &mut [&mut x]);
        show(tap, backend, None, "pre_projection", &x);
        let angles: Vec<B::Buffer> =
            self.rotations.iter().map(|f| backend.rope_angles(batch.positions(), 1, &[], f)).collect();
        for (l, layer) in self.layers.iter().enumerate() {
            layer.forward(backend, kv, batch, &mut x, &angles, None, l, tap);
        }
        let mut y = backend.buffer(rows, self.hidden);
        backend.rms_norm(&x, self.hidden, Some(&self.norm), self.eps, &mut y);
        show(tap, backend, None, "norm", &y);
        y
    }

    /// The head.
    pub fn head(&self) -> &Head<B> {
        &self.head
    }

    /// What the next step is fed, `[rows, backbone]`, of [`Assistant::step`]'s output.
    pub fn states(&self, backend: &B, y: &B::Buffer) -> B::Buffer {
        let mut states = backend.buffer(backend.shape(y).0, self.backbone);
        backend.linear(y, &[&self.post_projection], &mut [&mut states]);
        states
    }
}
