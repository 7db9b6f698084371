//! What a file's tensors are called in a Hugging Face checkpoint, and what the GGUF converter did to them.

use std::ops::RangeInclusive;

use super::error::GgufError;
use super::header::{Header, Metadata};

/// The architectures that are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

impl Architecture {
    const ALL: [Self; 4] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma3];

    /// The name in `general.architecture`, which is also the prefix of its metadata keys.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
        }
    }

    /// The architecture of a file; anything not supported is an error that says what is.
    pub(crate) fn of(metadata: &Metadata) -> Result<Self, GgufError> {
        let Some(name) = metadata.text("general.architecture")? else {
            return Err(metadata.error("general.architecture", "the name of an architecture"));
        };
        Self::ALL.into_iter().find(|this| this.name() == name).ok_or_else(|| GgufError::Architecture {
            found: name.into(),
            supported: Self::ALL.map(Self::name).join(", "),
        })
    }

    /// A metadata key of this architecture.
    pub(crate) fn key(self, rest: &str) -> String {
        format!("{}.{rest}", self.name())
    }

    /// The modules of a block.
    fn modules(self) -> impl Iterator<Item = &'static Module> {
        MODULES.iter().filter(move |module| module.architectures.contains(&self))
    }
}

/// What must be undone to have the checkpoint's values again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// The rows of each head were reordered from halves to pairs, as the rotation of adjacent elements wants them: row
    /// `2 i + half` of a head was row `half * head_dim / 2 + i`.
    PairedRows {
        head_dim: usize,
    },
    /// 1 was added to a norm's weight, since GGML's norm multiplies by it and Gemma's by 1 + weight.
    PlusOne,
}

/// A tensor's place in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A weight.
    Weight { name: String, change: Change },
    /// Something that is not a weight: frequencies that the configuration implies.
    Ignored,
}

/// A module of a block.
struct Module {
    gguf: &'static str,
    huggingface: &'static str,
    architectures: &'static [Architecture],
    bias: Bias,
    head: Option<Head>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bias {
    /// There is none.
    Never,
    /// There may be one, in every block or in none.
    Maybe,
}

/// Whose heads the rows of a projection are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Query,
    Key,
}

use Architecture::{Gemma3, Llama, Qwen2, Qwen3};

const EVERY: &[Architecture] = &Architecture::ALL;

const fn module(gguf: &'static str, huggingface: &'static str, architectures: &'static [Architecture]) -> Module {
    Module { gguf, huggingface, architectures, bias: Bias::Never, head: None }
}

const fn projection(
    gguf: &'static str,
    huggingface: &'static str,
    architectures: &'static [Architecture],
    head: Option<Head>,
) -> Module {
    Module { gguf, huggingface, architectures, bias: Bias::Maybe, head }
}

/// Every module, by the tensor mapping of the gguf package. `attn_output` and the feed-forward may have a bias in llama
/// only, so those with one are listed apart.
const MODULES: &[Module] = &[
    module("attn_norm", "input_layernorm", EVERY),
    projection("attn_q", "self_attn.q_proj", &[Llama, Qwen2], Some(Head::Query)),
    projection("attn_k", "self_attn.k_proj", &[Llama, Qwen2], Some(Head::Key)),
    projection("attn_v", "self_attn.v_proj", &[Llama, Qwen2], None),
    projection("attn_output", "self_attn.o_proj", &[Llama], None),
    module("attn_q", "self_attn.q_proj", &[Qwen3, Gemma3]),
    module("attn_k", "self_attn.k_proj", &[Qwen3, Gemma3]),
    module("attn_v", "self_attn.v_proj", &[Qwen3, Gemma3]),
    module("attn_output", "self_attn.o_proj", &[Qwen2, Qwen3, Gemma3]),
    module("attn_q_norm", "self_attn.q_norm", &[Qwen3, Gemma3]),
    module("attn_k_norm", "self_attn.k_norm", &[Qwen3, Gemma3]),
    module("post_attention_norm", "post_attention_layernorm", &[Gemma3]),
    module("ffn_norm", "post_attention_layernorm", &[Llama, Qwen2, Qwen3]),
    module("ffn_norm", "pre_feedforward_layernorm", &[Gemma3]),
    projection("ffn_gate", "mlp.gate_proj", &[Llama], None),
    projection("ffn_up", "mlp.up_proj", &[Llama], None),
    projection("ffn_down", "mlp.down_proj", &[Llama], None),
    module("ffn_gate", "mlp.gate_proj", &[Qwen2, Qwen3, Gemma3]),
    module("ffn_up", "mlp.up_proj", &[Qwen2, Qwen3, Gemma3]),
    module("ffn_down", "mlp.down_proj", &[Qwen2, Qwen3, Gemma3]),
    module("post_ffw_norm", "post_feedforward_layernorm", &[Gemma3]),
];

/// Modules whose biases a llama checkpoint has together or not at all (`attention_bias`, `mlp_bias`).
pub(crate) const ATTENTION_BIASES: [&str; 4] = ["attn_q", "attn_k", "attn_v", "attn_output"];
pub(crate) const MLP_BIASES: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];
/// The biases that every qwen2 checkpoint has.
pub(crate) const QWEN2_BIASES: [&str; 3] = ["attn_q", "attn_k", "attn_v"];

/// Sizes of heads, which say how the rows of q and k were reordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) query: usize,
    pub(crate) key_value: usize,
    /// Elements of a head.
    pub(crate) dim: usize,
}

/// Most heads, layers, elements of a row or positions that metadata may state.
pub(crate) const SIZES: RangeInclusive<usize> = 1..=1 << 24;

/// A size of the architecture; `None` where the key is absent.
pub(crate) fn size(metadata: &Metadata, key: &str) -> Result<Option<usize>, GgufError> {
    // Some writers give a list of one value a layer; equal values are as good as one.
    if let Some(list) = metadata.get(key).and_then(|value| value.as_array()) {
        let mut values = list.scalars().into_iter().flatten().map(|value| value.as_u64());
        let first = values.next().flatten().and_then(|value| usize::try_from(value).ok());
        return match first {
            Some(first) if SIZES.contains(&first) && values.all(|value| value == Some(first as u64)) => Ok(Some(first)),
            _ => Err(GgufError::Unsupported { what: format!("metadata {key} with another value for each layer") }),
        };
    }
    metadata.integer(key, *SIZES.start(), *SIZES.end())
}

/// As [`size`], for a key that must be there.
pub(crate) fn required_size(metadata: &Metadata, key: &str) -> Result<usize, GgufError> {
    let (low, high) = (SIZES.start(), SIZES.end());
    size(metadata, key)?.ok_or_else(|| metadata.error(key, format!("an integer from {low} to {high}")))
}

impl Heads {
    pub(crate) fn read(architecture: Architecture, metadata: &Metadata) -> Result<Self, GgufError> {
        let key = |rest: &str| architecture.key(rest);
        let query = required_size(metadata, &key("attention.head_count"))?;
        let key_value = size(metadata, &key("attention.head_count_kv"))?.unwrap_or(query);
        if !query.is_multiple_of(key_value) {
            let expected = format!("a divisor of the {query} heads of attention.head_count");
            return Err(metadata.error(&key("attention.head_count_kv"), expected));
        }
        let dim = match size(metadata, &key("attention.key_length"))? {
            Some(dim) => dim,
            None => {
                let hidden = required_size(metadata, &key("embedding_length"))?;
                if !hidden.is_multiple_of(query) {
                    let expected = format!("a multiple of the {query} heads, or attention.key_length");
                    return Err(metadata.error(&key("embedding_length"), expected));
                }
                hidden / query
            }
        };
        if !dim.is_multiple_of(2) {
            return Err(metadata.error(&key("attention.key_length"), format!("an even head size (it is {dim})")));
        }
        if let Some(value) = size(metadata, &key("attention.value_length"))?
            && value != dim
        {
            return Err(metadata.error(&key("attention.value_length"), format!("{dim}, the size of a key")));
        }
        Ok(Self { query, key_value, dim })
    }

    /// Rows of a projection.
    fn rows(&self, head: Head) -> usize {
        self.dim * if head == Head::Query { self.query } else { self.key_value }
    }
}

/// Where a tensor belongs; `None` for a name that no model of the architecture has.
pub(crate) fn target(architecture: Architecture, heads: &Heads, blocks: usize, name: &str) -> Option<Target> {
    let norm = if architecture == Gemma3 { Change::PlusOne } else { Change::None };
    let weight = |name: &str, change| Some(Target::Weight { name: name.into(), change });
    match name {
        "token_embd.weight" => return weight("model.embed_tokens.weight", Change::None),
        "output_norm.weight" => return weight("model.norm.weight", norm),
        "output.weight" => return weight("lm_head.weight", Change::None),
        "rope_freqs.weight" => return Some(Target::Ignored),
        _ => {}
    }
    let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let index: usize = block.parse().ok().filter(|index: &usize| *index < blocks && index.to_string() == block)?;
    let (stem, kind) = rest.rsplit_once('.')?;
    if stem == "attn_rot_embd" {
        return Some(Target::Ignored);
    }
    let module = architecture.modules().find(|module| module.gguf == stem)?;
    match kind {
        "weight" => {}
        "bias" if module.bias == Bias::Maybe => {}
        _ => return None,
    }
    let change = match module.head {
        Some(_) if architecture == Llama => Change::PairedRows { head_dim: heads.dim },
        _ if stem.ends_with("norm") => norm,
        _ => Change::None,
    };
    weight(&format!("model.layers.{index}.{}.{kind}", module.huggingface), change)
}

/// Fails unless every tensor that the architecture needs is there, and q and k have the rows of their heads.
pub(crate) fn check_tensors(
    architecture: Architecture,
    heads: &Heads,
    blocks: usize,
    header: &Header,
) -> Result<(), GgufError> {
    let name = architecture.name();
    let shapes: std::collections::HashMap<&str, &[usize]> =
        header.tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
    let need = |tensor: String, hint: String| match shapes.get(tensor.as_str()) {
        Some(shape) => Ok(*shape),
        None => Err(GgufError::MissingTensor { tensor, architecture: name, hint }),
    };
    for tensor in ["token_embd.weight", "output_norm.weight"] {
        need(tensor.into(), "download again".into())?;
    }
    for block in 0..blocks {
        let hint = || format!("{name}.block_count is {blocks}");
        for module in architecture.modules() {
            let tensor = format!("blk.{block}.{}.weight", module.gguf);
            let shape = need(tensor.clone(), hint())?;
            let Some(rows) = module.head.map(|head| heads.rows(head)) else { continue };
            if shape.len() != 2 || shape[0] != rows {
                let problem = format!("shape {shape:?}, expected {rows} rows: heads of {} elements", heads.dim);
                return Err(GgufError::Tensor { tensor, problem });
            }
            let bias = format!("blk.{block}.{}.bias", module.gguf);
            if let Some(shape) = shapes.get(bias.as_str())
                && *shape != [rows]
            {
                let problem = format!("shape {shape:?}, expected [{rows}]: heads of {} elements", heads.dim);
                return Err(GgufError::Tensor { tensor: bias, problem });
            }
        }
    }
    let groups: &[&[&str]] = match architecture {
        Llama => &[&ATTENTION_BIASES, &MLP_BIASES],
        Qwen2 => &[&QWEN2_BIASES],
        Qwen3 | Gemma3 => &[],
    };
    for group in groups {
        let bias = |block: usize, stem: &str| format!("blk.{block}.{stem}.bias");
        let all = || (0..blocks).flat_map(|block| group.iter().map(move |stem| bias(block, stem)));
        let first = all().find(|tensor| shapes.contains_key(tensor.as_str()));
        let Some(first) = first.or_else(|| (architecture == Qwen2).then(|| bias(0, group[0]))) else { continue };
        for tensor in all() {
            need(tensor, format!("biases belong to all of {} together, as {first} does", group.join(", ")))?;
        }
    }
    Ok(())
}

/// True when the file has the biases of a group in its first block.
pub(crate) fn has_biases(header: &Header, group: &[&str]) -> bool {
    let first = format!("blk.0.{}.bias", group[0]);
    header.tensors.iter().any(|tensor| tensor.name == first)
}
