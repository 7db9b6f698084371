//! Tensors of a shape: names and shapes from the family's own table, and what each is filled with.
//!
//! Weights of a matrix have a variance of one over its inputs and norms are 1, so that activations stay near 1 at any depth.
//! Where that alone would not do:
//!
//! - Embeddings are small. A tied output matrix would else find the token itself in the residual stream, and the model would
//!   repeat it for ever; the final norm makes up for it, so that logits have a deviation of [`LOGITS`].
//! - Rows beyond the tokenizer's ids are 0: a drafter that proposed one would end its draft there.
//! - Gemma 4 does not scale its scores down, so the norms of its queries do.

use std::path::Path;

use mlxcel_compute::format::DType;
use serde_json::Value;

use super::config::assistant_types;
use super::fill::Fill;
use super::shape::{Assistant, Family, Gemma4, Shape};
use crate::convert::names::{self, Expected};
use crate::convert::plan::{Form, module_of};
use crate::error::Result;

/// Deviation of logits.
const LOGITS: f64 = 2.0;

/// All rows of a tensor.
const ALL: usize = usize::MAX;

/// How tensors are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storage {
    /// Bits of a code.
    pub(crate) bits: u8,
    /// Values that share a scale.
    pub(crate) group: u16,
    /// Rows of the vocabulary that are tokens.
    pub(crate) assigned: usize,
}

/// A tensor, as MLX's layout names it before codes, scales and biases are told apart.
#[derive(Clone, Debug)]
pub(crate) struct Filled {
    /// Its name.
    pub(crate) name: String,
    /// Its dimensions.
    pub(crate) shape: Vec<usize>,
    /// Its values.
    pub(crate) fill: Fill,
}

impl Filled {
    /// How it is written.
    pub(crate) fn form(&self) -> Form {
        match self.fill {
            Fill::Codes { bits, group, .. } => Form::Affine { bits, group, dtype: DType::Bf16 },
            Fill::Floats { dtype, .. } => Form::Float(dtype),
            Fill::Constant(_) => Form::Float(DType::Bf16),
            Fill::Permutation => Form::Float(DType::I32),
        }
    }
}

/// Factor of the final norm.
fn final_norm(shape: &Shape) -> f64 {
    match shape.family {
        Family::Qwen3_5(own) if !own.tied => LOGITS,
        _ => LOGITS / (embedding(shape) * (shape.hidden as f64).sqrt()),
    }
}

/// Deviation of the embedding: what is left of a token in the residual stream is half of what the first layers add, divided among
/// as many logits as the stream is wide.
fn embedding(shape: &Shape) -> f64 {
    let hidden = shape.hidden as f64;
    let stream = (0.5 / hidden).sqrt();
    // Gemma multiplies what it looks up by the root of the width.
    if matches!(shape.family, Family::Gemma4(_)) { stream / hidden.sqrt() } else { stream }
}

/// Tensors of the model that a configuration describes.
pub(crate) fn model(shape: &Shape, config: &Value, storage: Storage) -> Result<Vec<Filled>> {
    let (family, _) = names::family(Path::new("config.json"), config, &[])?;
    let filled = |(name, dimensions): Expected| {
        let own = module_of(&name, &dimensions).and_then(|path| family.own_format(path));
        let fill = fill(shape, &name, &dimensions, own, storage);
        Filled { name, shape: dimensions, fill }
    };
    Ok(family.expected().into_iter().map(filled).collect())
}

/// Tensors of its drafter, by the drafter's configuration.
pub(crate) fn drafter(shape: &Shape, layers: usize, model: &Value, storage: Storage) -> Result<Vec<Filled>> {
    match shape.family {
        Family::Gemma4(own) => Ok(assistant(shape, &own, layers, storage)),
        Family::Qwen3_5(_) => head(shape, model, storage),
        Family::Llama => Ok(Vec::new()),
    }
}

/// What a tensor of a model is filled with; `own` is the format of a module that always has its own.
fn fill(shape: &Shape, name: &str, dimensions: &[usize], own: Option<(u8, u16)>, storage: Storage) -> Fill {
    let is = |ending: &str| name.ends_with(ending);
    let gemma = matches!(shape.family, Family::Gemma4(_));
    let inputs = dimensions.last().copied().unwrap_or(1);
    let even = (inputs as f64).sqrt().recip();
    if module_of(name, dimensions).is_some() {
        let deviation = if is("embed_tokens.weight") { embedding(shape) } else { even };
        let live = if is("embed_tokens.weight") || is("lm_head.weight") { storage.assigned } else { ALL };
        return matrix(inputs, deviation, live, own, storage);
    }
    if is("conv1d.weight") {
        Fill::around_zero(0.5, ALL)
    } else if is("A_log") {
        // With the next, most of a state is kept from one token to the next.
        Fill::Floats { dtype: DType::F32, low: -2.0, high: 1.0, live: ALL }
    } else if is("dt_bias") {
        Fill::Floats { dtype: DType::Bf16, low: -4.0, high: -2.0, live: ALL }
    } else if is("router.scale") {
        // The model divides the router's input by as much.
        Fill::Constant((shape.hidden as f64).sqrt())
    } else if is("self_attn.q_norm.weight") && gemma {
        Fill::Constant(2.0 / (inputs as f64).sqrt())
    } else if is("model.norm.weight") {
        Fill::Constant(final_norm(shape))
    } else {
        Fill::Constant(1.0)
    }
}

/// Codes, or floats where no whole number of groups makes a row.
fn matrix(inputs: usize, deviation: f64, live: usize, own: Option<(u8, u16)>, storage: Storage) -> Fill {
    let divides = |group: u16| inputs.is_multiple_of(usize::from(group));
    let (bits, group) = own.filter(|(_, group)| divides(*group)).unwrap_or((storage.bits, storage.group));
    if divides(group) { Fill::Codes { bits, group, deviation, live } } else { Fill::around_zero(deviation, live) }
}

/// Qwen's drafting head: an attending layer of the model, fed with an embedding and a hidden state.
fn head(shape: &Shape, model: &Value, storage: Storage) -> Result<Vec<Filled>> {
    const LAYER: &str = "language_model.model.layers.0.";
    let mut one = model.clone();
    one["text_config"]["num_hidden_layers"] = 1.into();
    one["text_config"]["layer_types"] = vec!["full_attention"].into();
    one["text_config"]["full_attention_interval"] = 1.into();
    let mut tensors = self::model(shape, &one, storage)?;
    tensors.retain(|tensor| tensor.name.starts_with(LAYER));
    for tensor in &mut tensors {
        tensor.name = tensor.name.replacen("language_model.model.", "", 1);
    }
    let hidden = shape.hidden;
    let norm =
        |name: &str, factor: f64| Filled { name: name.into(), shape: vec![hidden], fill: Fill::Constant(factor) };
    let even = (2.0 * hidden as f64).sqrt().recip();
    let fc = matrix(2 * hidden, even, ALL, None, storage);
    tensors.insert(0, Filled { name: "fc.weight".into(), shape: vec![hidden, 2 * hidden], fill: fc });
    tensors.extend([
        // It stands before the model's output matrix.
        norm("norm.weight", final_norm(shape)),
        norm("pre_fc_norm_embedding.weight", 1.0),
        norm("pre_fc_norm_hidden.weight", 1.0),
    ]);
    Ok(tensors)
}

/// Gemma's drafter: four layers without K/V of their own, between two projections.
fn assistant(shape: &Shape, own: &Gemma4, layers: usize, storage: Storage) -> Vec<Filled> {
    let Assistant { hidden, inner, heads, centroids } = own.drafter;
    let mut tensors = Vec::new();
    let mut add = |name: String, dimensions: &[usize], fill: Fill| {
        tensors.push(Filled { name, shape: dimensions.to_vec(), fill });
    };
    let linear =
        |inputs: usize, gain: f64, live: usize| matrix(inputs, gain / (inputs as f64).sqrt(), live, None, storage);
    // The model's state is as large as its final norm makes it, and so is the drafter's own.
    let state = final_norm(shape);
    let both = [hidden, 2 * shape.hidden];
    add("pre_projection.weight".into(), &both, linear(both[1], state.recip(), ALL));
    add("model.embed_tokens.weight".into(), &[shape.vocab, hidden], linear(hidden, 1.0, storage.assigned));
    for (layer, kind) in assistant_types(layers).into_iter().enumerate() {
        let head_dim = if kind == "full_attention" { own.global_head_dim } else { shape.head_dim };
        let queries = heads * head_dim;
        let at = |leaf: &str| format!("model.layers.{layer}.{leaf}");
        for norm in
            ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
        {
            add(at(&format!("{norm}.weight")), &[hidden], Fill::Constant(1.0));
        }
        add(at("layer_scalar"), &[1], Fill::Constant(1.0));
        add(at("self_attn.q_norm.weight"), &[head_dim], Fill::Constant(2.0 / (head_dim as f64).sqrt()));
        for (module, outputs, inputs) in [
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ] {
            add(at(&format!("{module}.weight")), &[outputs, inputs], linear(inputs, 1.0, ALL));
        }
    }
    add("model.norm.weight".into(), &[hidden], Fill::Constant(LOGITS));
    add("post_projection.weight".into(), &[shape.hidden, hidden], linear(hidden, state / LOGITS, ALL));
    if let Some(count) = centroids {
        add("masked_embedding.centroids.weight".into(), &[count, hidden], linear(hidden, 1.0, ALL));
        add("masked_embedding.token_ordering".into(), &[shape.vocab], Fill::Permutation);
    }
    tensors
}
