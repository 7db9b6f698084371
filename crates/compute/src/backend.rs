//! The contract of a backend: buffers, weights, KV pages, and wide verbs (DESIGN §4).
//!
//! **Row-law promise of every verb:** the bits of an output row are a function of that row's own inputs, the weights,
//! and, for attention and recurrent layers, that sequence's own rows up to its position. The conformance suite
//! ([`crate::conformance`]) holds each backend to it.
//!
//! **Damage shows:** a NaN or infinity in a row's inputs gives non-finite outputs, also where the formula would hide it (a
//! capped logit, an expert that is not chosen, a rounded activation), so that a broken weight is found at the first logits.

use std::ops::Range;

use crate::recurrent::StateLayout;
use crate::{Batch, HostWeight, order};

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
    /// Not enough memory for the recurrent states asked for.
    #[error("recurrent states: {needed} bytes needed, which could not be reserved; lower the number of sequences")]
    StateMemory {
        /// Bytes asked for.
        needed: usize,
    },
    /// The device has no room, or failed; the reason has the numbers.
    #[error("{reason}")]
    Device {
        /// In the backend's words.
        reason: String,
    },
}

/// Elementwise function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh form.
    GeluTanh,
    /// SiLU, `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + e^-x)`; not finite where `x` is not.
    Sigmoid,
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

/// Parameters of [`Backend::gated_delta`].
pub struct DeltaGates<'a, B: Backend> {
    /// `e^A_log` of each value head.
    pub rate: &'a B::Vector,
    /// Added to `a` before the softplus, one a value head.
    pub dt_bias: &'a B::Vector,
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
    /// The slots of all recurrent layers' states.
    type State: Send;
    /// A copy of one slot's state.
    type Snapshot: Send + 'static;

    /// Name for reports: device, precision, instruction set, threads.
    fn describe(&self) -> String;

    /// Widest block whose rows keep the law; `None` = every width. Anything else fails the conformance suite.
    fn max_exact_width(&self) -> Option<usize> {
        None
    }

    /// Why nothing that this backend gives can be trusted any more: its device failed. `None` as long as all is well; once there is a
    /// reason, it stays, and whoever reads a result asks for it before the result is used.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Positions of one KV page, a divisor of the attention key block.
    fn page_len(&self) -> usize;

    /// Rows of a step that use the backend well: a prompt goes in chunks of about so many. Speed alone; any number gives the same bits.
    fn step_rows(&self) -> usize {
        512
    }

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

    /// Reserves `slots` slots for recurrent states, none of which holds one yet. A span can take back up to `record` of its last
    /// rows.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn state_new(&self, layout: &StateLayout, slots: usize, record: usize) -> Result<Self::State, ComputeError>;

    /// Bytes of a copy of one slot's state.
    fn snapshot_bytes(&self, layout: &StateLayout) -> usize {
        layout.values() * size_of::<f32>()
    }

    /// Bytes of one slot.
    fn state_bytes(&self, layout: &StateLayout, record: usize) -> usize;

    /// Announces a batch to the recurrent layers, before the first of them: `Span::sequence` is the span's slot. A span starts
    /// at 0, whatever its slot holds, or where its slot stands ([`Backend::state_position`]).
    fn state_begin(&self, state: &mut Self::State, batch: &Batch);

    /// Rows a slot's state has seen; `None` when it holds none.
    fn state_position(&self, state: &Self::State, slot: usize) -> Option<usize>;

    /// Takes a slot back to `len` rows seen: the bits of its state are those of never having seen the others. False, changing
    /// nothing, when the rows are not on record. 0 is always possible for a slot that holds a state: it starts afresh.
    fn state_take_back(&self, state: &mut Self::State, slot: usize, len: usize) -> bool;

    /// Declares what a slot holds to be the state at `position`, whatever it is, or to be none. For running damaged rows once
    /// more, and for forgetting the result. A slot that never held a state can only be declared to hold none.
    fn state_declare(&self, state: &mut Self::State, slot: usize, position: Option<usize>);

    /// Copies a slot's state. The slot must hold one.
    fn state_save(&self, state: &Self::State, slot: usize) -> Self::Snapshot;

    /// Puts a copied state into a slot, with nothing to take back.
    ///
    /// # Panics
    /// When the copy is of another layout.
    fn state_restore(&self, state: &mut Self::State, slot: usize, snapshot: &Self::Snapshot);

    /// A copy in numbers: for each layer the window `[taps - 1, channels]`, then the matrices `[value_heads, key_dim, value_dim]`.
    fn state_read(&self, snapshot: &Self::Snapshot) -> Vec<f32>;

    /// A buffer of the given shape with arbitrary contents.
    fn buffer(&self, rows: usize, width: usize) -> Self::Buffer;

    /// Rows and width of a buffer.
    fn shape(&self, buffer: &Self::Buffer) -> (usize, usize);

    /// Fills a buffer, row-major.
    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]);

    /// Reads a buffer, row-major.
    fn read(&self, buffer: &Self::Buffer) -> Vec<f32>;

    /// Reads some rows of a buffer, row-major.
    fn read_rows(&self, buffer: &Self::Buffer, rows: Range<usize>) -> Vec<f32> {
        let width = self.shape(buffer).1;
        self.read(buffer)[rows.start * width..rows.end * width].to_vec()
    }

    /// [`order::argmax`] of each row: the index of its largest value, the lowest among equals; `None` for a row with a value that is
    /// not finite. For choosing without reading.
    fn argmax(&self, x: &Self::Buffer) -> Vec<Option<u32>> {
        let width = self.shape(x).1;
        self.read(x).chunks_exact(width.max(1)).map(order::argmax).collect()
    }

    /// [`argmax`](Backend::argmax) of each row as a number ([`order::token`] reads it), into rows `at..` of `ids` `[_, 1]`: for going on
    /// with what came out before anybody has seen it.
    fn argmax_into(&self, x: &Self::Buffer, ids: &mut Self::Buffer, at: usize) {
        let numbers: Vec<f32> = self.argmax(x).into_iter().map(order::number).collect();
        let rows: Vec<u32> = (at as u32..).take(numbers.len()).collect();
        self.put_rows(ids, &rows, &numbers);
    }

    /// [`embed`](Backend::embed) of the tokens in rows `at..` of `ids` `[_, 1]`, as many as `out` has rows. A row whose number is no
    /// token's becomes NaN.
    fn embed_at(&self, table: &Self::Weight, ids: &Self::Buffer, at: usize, scale: f32, out: &mut Self::Buffer) {
        let (rows, width) = self.shape(out);
        let tokens: Vec<Option<u32>> = self.read_rows(ids, at..at + rows).into_iter().map(order::token).collect();
        let known: Vec<u32> = tokens.iter().map(|token| token.unwrap_or(0)).collect();
        self.embed(table, &known, scale, out);
        let none: Vec<u32> = (0..).zip(&tokens).filter(|(_, token)| token.is_none()).map(|(row, _)| row).collect();
        if !none.is_empty() {
            self.put_rows(out, &none, &vec![f32::NAN; none.len() * width]);
        }
    }

    /// `out[r] = table[ids[r]] * scale`; ids are in range.
    fn embed(&self, table: &Self::Weight, ids: &[u32], scale: f32, out: &mut Self::Buffer);

    /// `order::dot(table[ids[i]], y)` for each of a few thousand rows out of a table, in f32 whatever its format: cheaper than `linear` with
    /// all rows. `y` has a row's width, ids are in range.
    fn row_dots(&self, table: &Self::Weight, ids: &[u32], y: &[f32]) -> Vec<f32> {
        let mut rows = self.buffer(ids.len(), y.len());
        self.embed(table, ids, 1.0, &mut rows);
        self.read(&rows).chunks_exact(y.len()).map(|row| order::dot(row, y)).collect()
    }

    /// `x[rows[i]] = values[i]`: rows that bring a vector in place of an embedding.
    fn put_rows(&self, x: &mut Self::Buffer, rows: &[u32], values: &[f32]) {
        let mut all = self.read(x);
        let width = values.len() / rows.len().max(1);
        for (row, value) in rows.iter().zip(values.chunks_exact(width.max(1))) {
            all[*row as usize * width..][..width].copy_from_slice(value);
        }
        self.write(x, &all);
    }

    /// `out[i] = x[rows[i]]`.
    fn gather(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer);

    /// `out[r] = a[r], b[r]`: rows side by side.
    fn join(&self, a: &Self::Buffer, b: &Self::Buffer, out: &mut Self::Buffer) {
        let (left, right) = (self.shape(a).1, self.shape(b).1);
        let (a, b) = (self.read(a), self.read(b));
        let rows = a.chunks_exact(left.max(1)).zip(b.chunks_exact(right.max(1)));
        let joined: Vec<f32> = rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect();
        self.write(out, &joined);
    }

    /// RMS norm of each consecutive `width` values of a row (a whole row, or each head):
    /// `x / sqrt(mean(x^2) + eps) * weight`, without the last factor when `weight` is `None`.
    fn rms_norm(&self, x: &Self::Buffer, width: usize, weight: Option<&Self::Vector>, eps: f32, out: &mut Self::Buffer);

    /// `residual = (residual + rms_norm(y, weight)) * scale`: the second half of a sandwich-normed block.
    fn add_rms_norm(&self, residual: &mut Self::Buffer, y: &Self::Buffer, weight: &Self::Vector, eps: f32, scale: f32);

    /// `x = (x + y) * scale`.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer, scale: f32);

    /// `x[r] = x[r] + sigmoid(gate[r]) * y[r]`, `gate` `[rows, 1]`; not finite where the gate is not.
    fn add_gated(&self, x: &mut Self::Buffer, y: &Self::Buffer, gate: &Self::Buffer);

    /// `x = x + vector`, the vector over the row: the bias of a linear.
    fn add_vector(&self, x: &mut Self::Buffer, vector: &Self::Vector);

    /// Values `offset..offset + width` of each consecutive `period` values of a row, one run after the other;
    /// `out` is `[rows, width(x) / period * width]`.
    fn columns(&self, x: &Self::Buffer, period: usize, offset: usize, width: usize, out: &mut Self::Buffer);

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

    /// Rotates each head of `x` in rotate-half form over its first `2 * n` values, where `angles` (from
    /// [`Backend::rope_angles`]) has `n` frequencies: pair `(i, i + n)` by its angle. The rest of a head stays as it is.
    fn rope(&self, x: &mut Self::Buffer, head_dim: usize, angles: &Self::Buffer);

    /// Cosines and sines `[rows, 2 * n]` of `position * frequency` for `n` frequencies; angles in f32. A row has `axes` positions
    /// (`positions` is `[rows, axes]`), and frequency `i` uses the one on axis `axis[i]`; an empty `axis` means the first.
    fn rope_angles(&self, positions: &[u32], axes: usize, axis: &[u8], frequencies: &Self::Vector) -> Self::Buffer;

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

    /// Causal depthwise convolution, then SiLU: `out[t, c] = silu(sum_j weight[j, c] * x[t - (taps - 1) + j, c])` over the
    /// sequence's own rows, the earlier ones from its slot, zeros before the first. `x` and `out` are `[rows, channels]`,
    /// `weight` `[taps, channels]`; `layer` counts the layers of the [`StateLayout`].
    fn causal_conv(
        &self,
        state: &mut Self::State,
        layer: usize,
        x: &Self::Buffer,
        weight: &Self::Vector,
        out: &mut Self::Buffer,
    );

    /// The gated delta rule, token by token (qwen3_5.md §2.3, steps 3 to 6). `qkv` `[rows, channels]` holds q, k and v after the
    /// convolution; q and k are L2-normed a head, q times `key_dim^-1/2`. With `g = -rate * softplus(a + dt_bias)` and
    /// `beta = sigmoid(b)`, `a` and `b` `[rows, value_heads]`, each value head does
    /// `S = e^g S; S = S + k (beta (v - k^T S))^T; out = q^T S`. `out` is `[rows, value_heads * value_dim]`.
    #[allow(clippy::too_many_arguments, reason = "the operands of the rule")]
    fn gated_delta(
        &self,
        state: &mut Self::State,
        layer: usize,
        qkv: &Self::Buffer,
        a: &Self::Buffer,
        b: &Self::Buffer,
        gates: &DeltaGates<'_, Self>,
        out: &mut Self::Buffer,
    );
}
