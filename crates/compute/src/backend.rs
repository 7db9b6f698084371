//! The contract of a backend: buffers, weights, KV pages, and wide verbs (DESIGN §4).
//!
//! **Row-law promise of every verb:** the bits of an output row are a function of that row's own inputs, the weights,
//! and, for attention, that sequence's own cached rows up to its position. The conformance suite
//! ([`crate::conformance`]) holds each backend to it.
//!
//! **Damage shows:** a NaN or infinity in a row's inputs gives non-finite outputs, also where the formula would hide it (a
//! capped logit, an expert that is not chosen, a rounded activation), so that a broken weight is found at the first logits.

use crate::{Batch, HostWeight};

/// What a backend can refuse. Everything here is a load-time or capacity error; verbs on valid buffers do not fail.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// A weight the backend cannot hold.
    #[error("{name}: {reason}")]
    Weight {
        /// Checkpoint name of the module.
        name: String,
        /// What was expected and found.
        reason: String,
    },
    /// Not enough memory for the KV pages asked for.
    #[error(
        "KV cache: {needed} bytes needed, which could not be reserved; lower --ctx-size or the number of sequences"
    )]
    KvMemory {
        /// Bytes asked for.
        needed: usize,
    },
}

/// Elementwise function of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh form.
    GeluTanh,
    /// SiLU, `x * sigmoid(x)`.
    Silu,
}

/// K/V shape of one caching layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// K/V heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
}

/// Layers that share page tables because they see the same positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Keys a row sees including itself; `None` = all.
    pub window: Option<usize>,
    /// Shape of each layer of the group.
    pub layers: Vec<KvShape>,
}

/// One layer's place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSlot {
    /// Index of the [`KvGroup`].
    pub group: usize,
    /// Index of the layer inside it.
    pub layer: usize,
}

/// Parameters of [`Backend::attend`].
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Query heads; query head `h` reads K/V head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Keys a row sees including itself; `None` = all.
    pub window: Option<usize>,
}

/// Weights and parameters of [`Backend::moe`].
pub struct Experts<'a, B: Backend> {
    /// Gate matrices `[experts, width, hidden]`.
    pub gate: &'a B::Weight,
    /// Up matrices `[experts, width, hidden]`.
    pub up: &'a B::Weight,
    /// Down matrices `[experts, hidden, width]`.
    pub down: &'a B::Weight,
    /// Factor of each expert after renormalisation, `[experts]`.
    pub scale: &'a B::Vector,
    /// Experts a row uses.
    pub top_k: usize,
    /// Activation between gate and up.
    pub activation: Activation,
}

/// An implementation of the operation set. Buffers are f32 `[rows, width]` on every backend.
///
/// Output buffers must have the right shape; their former contents do not matter. `&self` verbs may be called from one
/// thread at a time per forward pass; a backend is shared by reference.
pub trait Backend: Send + Sync + Sized + 'static {
    /// Activations, `[rows, width]`.
    type Buffer: Send;
    /// A matrix or a stack of matrices in its stored format.
    type Weight: Send + Sync;
    /// A small f32 vector: norm weights, scales.
    type Vector: Send + Sync;
    /// The KV pages of all caching layers.
    type Kv: Send;

    /// Name for reports: device, precision, instruction set, threads.
    fn describe(&self) -> String;

    /// Widest block whose rows keep the law; `None` = every width. Anything else fails the conformance suite.
    fn max_exact_width(&self) -> Option<usize> {
        None
    }

    /// Positions of one KV page, a divisor of the attention key block.
    fn page_len(&self) -> usize;

    /// Takes over a weight. Shapes and lengths were checked by the loader.
    ///
    /// # Errors
    /// When the backend has no kernel for the format or shape.
    fn load_weight(&self, weight: HostWeight) -> Result<Self::Weight, ComputeError>;

    /// Takes over a vector.
    fn load_vector(&self, values: &[f32]) -> Self::Vector;

    /// Bytes of one page of a group, all its layers.
    fn kv_page_bytes(&self, group: &KvGroup) -> usize;

    /// Reserves `pages[g]` pages for each group.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<Self::Kv, ComputeError>;

    /// A buffer of the given shape with arbitrary contents.
    fn buffer(&self, rows: usize, width: usize) -> Self::Buffer;

    /// Fills a buffer, row-major.
    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]);

    /// Reads a buffer, row-major.
    fn read(&self, buffer: &Self::Buffer) -> Vec<f32>;

    /// `out[r] = table[ids[r]] * scale`; ids are in range.
    fn embed(&self, table: &Self::Weight, ids: &[u32], scale: f32, out: &mut Self::Buffer);

    /// `out[i] = x[rows[i]]`.
    fn gather(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer);

    /// RMS norm of each consecutive `width` values of a row (a whole row, or each head):
    /// `x / sqrt(mean(x^2) + eps) * weight`, without the last factor when `weight` is `None`.
    fn rms_norm(&self, x: &Self::Buffer, width: usize, weight: Option<&Self::Vector>, eps: f32, out: &mut Self::Buffer);

    /// `residual = (residual + rms_norm(y, weight)) * scale`: the second half of a sandwich-normed block.
    fn add_rms_norm(&self, residual: &mut Self::Buffer, y: &Self::Buffer, weight: &Self::Vector, eps: f32, scale: f32);

    /// `x = (x + y) * scale`.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer, scale: f32);

    /// `x = x * scale * weight` (weight over the row; `None` = ones).
    fn scale(&self, x: &mut Self::Buffer, weight: Option<&Self::Vector>, scale: f32);

    /// `outs[i] = x @ weights[i]^T`; all weights have `x`'s width as inputs.
    fn linear(&self, x: &Self::Buffer, weights: &[&Self::Weight], outs: &mut [&mut Self::Buffer]);

    /// `out = activation(x @ gate^T) * (x @ up^T)`.
    fn gated(&self, x: &Self::Buffer, gate: &Self::Weight, up: &Self::Weight, act: Activation, out: &mut Self::Buffer);

    /// `x = activation(x) * y[:, column..column + width(x)]`.
    fn activate_mul(&self, x: &mut Self::Buffer, act: Activation, y: &Self::Buffer, column: usize);

    /// `x = cap * tanh(x / cap)`; not finite where `x` is not.
    fn softcap(&self, x: &mut Self::Buffer, cap: f32);

    /// Rotates each head of `x` in rotate-half form: pair `(i, i + head_dim/2)` by `position * frequencies[i]`.
    /// `angles` comes from [`Backend::rope_angles`].
    fn rope(&self, x: &mut Self::Buffer, head_dim: usize, angles: &Self::Buffer);

    /// Cosines and sines `[rows, 2 * n]` for the positions of a batch and `n` frequencies; angles in f32.
    fn rope_angles(&self, positions: &[u32], frequencies: &Self::Vector) -> Self::Buffer;

    /// Stores K and V `[rows, kv_heads * head_dim]` of a layer at the rows' positions, rounded as the backend's pages are.
    fn kv_append(&self, kv: &mut Self::Kv, slot: KvSlot, batch: &Batch, k: &Self::Buffer, v: &Self::Buffer);

    /// Causal attention of `q` `[rows, heads * head_dim]` over the layer's cached keys up to each row's own position.
    fn attend(
        &self,
        kv: &Self::Kv,
        slot: KvSlot,
        batch: &Batch,
        q: &Self::Buffer,
        spec: Attend,
        out: &mut Self::Buffer,
    );

    /// Mixture of experts: the `top_k` largest logits of `router` `[rows, experts]` (ties to the lower index), a softmax over
    /// those (the same as over all, renormalised), times `scale`; each expert a gated MLP of `x`; a row's experts summed in
    /// rank order. A row of `router` with a non-finite logit gives a non-finite row.
    fn moe(&self, router: &Self::Buffer, x: &Self::Buffer, experts: &Experts<'_, Self>, out: &mut Self::Buffer);
}
