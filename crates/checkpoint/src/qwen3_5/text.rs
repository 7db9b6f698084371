//! The text stack's fields, under the names the checkpoint gives them.

use crate::error::{CheckpointError, Result};
use crate::fields::{Fields, MAX_LAYERS};

/// Token mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerType {
    /// Gated DeltaNet: a convolution and a recurrent state of constant size.
    LinearAttention,
    /// Gated attention over all keys.
    FullAttention,
}

impl LayerType {
    /// The name in `layer_types`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinearAttention => "linear_attention",
            Self::FullAttention => "full_attention",
        }
    }
}

/// Rotary embedding of the full-attention layers. Scaled forms (YaRN and others) are refused when the file is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub rope_theta: f64,
    /// Share of a head's dimensions that rotates.
    pub partial_rotary_factor: f64,
    /// How many frequencies follow the temporal, the vertical and the horizontal position; they sum to half of
    /// [`Rope::rotary_dim`]. Of no consequence for text, whose three positions are equal.
    pub mrope_section: Option<[usize; 3]>,
    /// True when the sections are interleaved (t, h, w, t, h, w, …) rather than one after the other.
    pub mrope_interleaved: bool,
    rotary_dim: usize,
}

impl Rope {
    /// Dimensions at the start of a head that rotate: even, at least 2, at most the head.
    pub const fn rotary_dim(&self) -> usize {
        self.rotary_dim
    }
}

/// Sizes of the mixture of experts that every layer of a `_moe` member has, with one expert that every row shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Routed experts of a layer.
    pub num_experts: usize,
    /// Routed experts a row goes through.
    pub num_experts_per_tok: usize,
    /// Width of one routed expert.
    pub moe_intermediate_size: usize,
    /// Width of the shared expert.
    pub shared_expert_intermediate_size: usize,
}

/// Checked text fields. What a field means is in the architecture's description.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the checkpoint's own")]
pub struct Qwen3_5TextConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// 0 in a mixture of experts.
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    /// One for each layer.
    pub layer_types: Vec<LayerType>,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Biases on q, k, v and o.
    pub attention_bias: bool,
    pub rms_norm_eps: f64,
    pub linear_num_key_heads: usize,
    /// A multiple of `linear_num_key_heads`.
    pub linear_num_value_heads: usize,
    pub linear_key_head_dim: usize,
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution, at least 2.
    pub linear_conv_kernel_dim: usize,
    pub rope: Rope,
    pub max_position_embeddings: u64,
    pub tie_word_embeddings: bool,
    pub moe: Option<MoeConfig>,
    /// Layers of the multi-token-prediction head. Conversions that dropped the head keep the number: ask the tensors
    /// whether there is one.
    pub mtp_num_hidden_layers: usize,
}

/// Keys that published files always write; one that is absent is worth a warning.
const EXPECTED_KEYS: [&str; 12] = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];

/// Further ones of dense members.
const EXPECTED_DENSE: [&str; 1] = ["intermediate_size"];

/// Further ones of mixtures of experts.
const EXPECTED_MOE: [&str; 4] =
    ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"];

impl Qwen3_5TextConfig {
    /// Reads and checks the fields. `root` is the whole file, for what wrappers repeat at the top.
    pub(super) fn read(
        fields: &Fields<'_>,
        root: &Fields<'_>,
        is_moe: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let size = |key: &str, default: usize| Ok::<_, CheckpointError>(fields.size(key)?.unwrap_or(default));
        let own: &[&str] = if is_moe { &EXPECTED_MOE } else { &EXPECTED_DENSE };
        for key in EXPECTED_KEYS.iter().chain(own).filter(|key| !fields.is_written(key)) {
            warnings.push(format!("{} is absent; the default of transformers is used", fields.name_of(key)));
        }
        refuse_unsupported(fields, is_moe, warnings)?;

        let num_hidden_layers = size("num_hidden_layers", if is_moe { 40 } else { 32 })?;
        if !(1..=MAX_LAYERS).contains(&num_hidden_layers) {
            return Err(fields.error("num_hidden_layers", format!("1 to {MAX_LAYERS}")));
        }
        let head_dim = size("head_dim", 256)?;
        let config = Self {
            vocab_size: size("vocab_size", 248_320)?,
            hidden_size: size("hidden_size", if is_moe { 2048 } else { 4096 })?,
            intermediate_size: if is_moe { 0 } else { size("intermediate_size", 12_288)? },
            num_hidden_layers,
            layer_types: read_layer_types(fields, num_hidden_layers, warnings)?,
            num_attention_heads: size("num_attention_heads", 16)?,
            num_key_value_heads: size("num_key_value_heads", if is_moe { 2 } else { 4 })?,
            head_dim,
            attention_bias: fields.boolean("attention_bias")?.unwrap_or(false),
            rms_norm_eps: fields.float("rms_norm_eps")?.unwrap_or(1e-6),
            linear_num_key_heads: size("linear_num_key_heads", 16)?,
            linear_num_value_heads: size("linear_num_value_heads", 32)?,
            linear_key_head_dim: size("linear_key_head_dim", 128)?,
            linear_value_head_dim: size("linear_value_head_dim", 128)?,
            linear_conv_kernel_dim: size("linear_conv_kernel_dim", 4)?,
            rope: read_rope(fields, head_dim)?,
            max_position_embeddings: fields.count("max_position_embeddings")?.unwrap_or(32_768),
            tie_word_embeddings: match fields.boolean("tie_word_embeddings")? {
                Some(tied) => tied,
                None => root.boolean("tie_word_embeddings")?.unwrap_or(false),
            },
            moe: if is_moe { Some(read_moe(fields)?) } else { None },
            mtp_num_hidden_layers: size("mtp_num_hidden_layers", 0)?,
        };
        config.validate(fields)?;
        Ok(config)
    }

    /// True for a layer of the recurrent kind.
    pub fn is_linear(&self, layer: usize) -> bool {
        self.layer_types[layer] == LayerType::LinearAttention
    }

    /// Width of a linear layer's queries, and of its keys.
    pub const fn linear_key_dim(&self) -> usize {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    /// Width of a linear layer's values, and of its output gate.
    pub const fn linear_value_dim(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Channels of a linear layer's convolution: queries, keys and values.
    pub const fn linear_conv_dim(&self) -> usize {
        2 * self.linear_key_dim() + self.linear_value_dim()
    }
}

/// Fields whose other values would be another model.
fn refuse_unsupported(fields: &Fields<'_>, is_moe: bool, warnings: &mut Vec<String>) -> Result<()> {
    if fields.text("hidden_act")?.is_some_and(|name| name != "silu") {
        return Err(fields.error("hidden_act", "silu"));
    }
    if fields.boolean("attn_output_gate")? == Some(false) {
        return Err(fields.error("attn_output_gate", "true (attention without its output gate is not supported)"));
    }
    // Two names of one function.
    if fields.text("output_gate_type")?.is_some_and(|name| !["swish", "silu"].contains(&name)) {
        return Err(fields.error("output_gate_type", "swish"));
    }
    if fields.text("mamba_ssm_dtype")?.is_some_and(|name| name != "float32") {
        warnings.push(format!("{} is not float32; the recurrent state is float32", fields.name_of("mamba_ssm_dtype")));
    }
    if fields.boolean("mtp_use_dedicated_embeddings")? == Some(true) {
        warnings.push(format!(
            "{} is true: its prediction head has an embedding of its own and cannot be used",
            fields.name_of("mtp_use_dedicated_embeddings")
        ));
    }
    if !is_moe {
        // A dense model_type over a mixture's sizes: which of them is meant cannot be told.
        if fields.size("num_experts")?.is_some_and(|experts| experts > 0) {
            return Err(
                fields.error("num_experts", "0 or absent (the model_type of a mixture of experts ends in _moe)")
            );
        }
        return Ok(());
    }
    // Keys of an older family whose layers are not all mixtures.
    if fields.size("decoder_sparse_step")?.is_some_and(|step| step != 1) {
        return Err(fields.error("decoder_sparse_step", "1 or absent (every layer is a mixture of experts)"));
    }
    if fields.boolean("norm_topk_prob")? == Some(false) {
        return Err(fields.error("norm_topk_prob", "true (the weights of a row's experts sum to 1)"));
    }
    if fields.list("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(fields.error("mlp_only_layers", "an empty list or absent (every layer is a mixture of experts)"));
    }
    Ok(())
}

fn read_moe(fields: &Fields<'_>) -> Result<MoeConfig> {
    let size = |key: &str, default: usize| Ok::<_, CheckpointError>(fields.size(key)?.unwrap_or(default));
    Ok(MoeConfig {
        num_experts: size("num_experts", 256)?,
        num_experts_per_tok: size("num_experts_per_tok", 8)?,
        moe_intermediate_size: size("moe_intermediate_size", 512)?,
        shared_expert_intermediate_size: size("shared_expert_intermediate_size", 512)?,
    })
}

fn read_layer_types(fields: &Fields<'_>, layers: usize, warnings: &mut Vec<String>) -> Result<Vec<LayerType>> {
    const KEY: &str = "layer_types";
    const INTERVAL: &str = "full_attention_interval";
    let interval = fields.size(INTERVAL)?;
    if interval == Some(0) {
        return Err(fields.error(INTERVAL, "at least 1"));
    }
    let every = interval.unwrap_or(4);
    let derived: Vec<LayerType> = (1..=layers)
        .map(|n| if n.is_multiple_of(every) { LayerType::FullAttention } else { LayerType::LinearAttention })
        .collect();
    let Some(list) = fields.list(KEY)? else {
        if interval.is_none() {
            let (types, interval) = (fields.name_of(KEY), fields.name_of(INTERVAL));
            warnings.push(format!("{types} and {interval} are absent; every fourth layer is full_attention"));
        }
        return Ok(derived);
    };
    if list.len() != layers {
        return Err(fields.error_found(
            KEY,
            format!("{layers} entries (num_hidden_layers)"),
            format!("a list of {} entries", list.len()),
        ));
    }
    let mut types = Vec::with_capacity(layers);
    for (layer, value) in list.iter().enumerate() {
        let kinds = [LayerType::LinearAttention, LayerType::FullAttention];
        let kind = kinds.into_iter().find(|kind| value.as_str() == Some(kind.name()));
        types.push(kind.ok_or_else(|| {
            let expected = "linear_attention or full_attention";
            fields.error_found(&format!("{KEY}[{layer}]"), expected, crate::fields::short(value))
        })?);
    }
    if interval.is_some() && types != derived {
        let (types, interval) = (fields.name_of(KEY), fields.name_of(INTERVAL));
        warnings.push(format!("{interval} disagrees with {types}, which decides"));
    }
    Ok(types)
}

/// The rotation's fields, from `rope_parameters`, from the older `rope_scaling`, or flat beside the others.
fn read_rope(fields: &Fields<'_>, head_dim: usize) -> Result<Rope> {
    let blocks = [fields.object("rope_parameters")?, fields.object("rope_scaling")?];
    let blocks: Vec<&Fields<'_>> = blocks.iter().flatten().collect();
    for block in &blocks {
        for key in ["rope_type", "type"] {
            // "mrope" is how files of an older family say: default, with positions of three axes.
            if block.text(key)?.is_some_and(|name| !["default", "mrope"].contains(&name)) {
                return Err(block.error(key, "default (yarn and other scaled forms are not supported)"));
            }
        }
    }
    let float = |key: &str| {
        for place in blocks.iter().copied().chain([fields]) {
            if let Some(value) = place.float(key)? {
                return Ok::<_, CheckpointError>(Some((place, value)));
            }
        }
        Ok(None)
    };
    // Libraries disagree about the default, so there is none.
    let (place, rope_theta) = float("rope_theta")?
        .ok_or_else(|| fields.error("rope_parameters.rope_theta", "a number above 0 (it has no default)"))?;
    if rope_theta <= 0.0 {
        return Err(place.error("rope_theta", "a number above 0"));
    }
    let (place, partial_rotary_factor) = float("partial_rotary_factor")?.unwrap_or((fields, 0.25));
    if !(partial_rotary_factor > 0.0 && partial_rotary_factor <= 1.0) {
        return Err(place.error("partial_rotary_factor", "above 0 and at most 1"));
    }
    // Cut, not rounded, as transformers does.
    let rotary_dim = (head_dim as f64 * partial_rotary_factor) as usize;
    if rotary_dim == 0 || rotary_dim % 2 == 1 {
        let expected = format!("a share of head_dim ({head_dim}) that is even and above 0");
        return Err(place.error_found(
            "partial_rotary_factor",
            expected,
            format!("{partial_rotary_factor}, which gives {rotary_dim}"),
        ));
    }
    let mut mrope_section = None;
    let mut mrope_interleaved = None;
    for block in &blocks {
        if mrope_section.is_none() {
            mrope_section = read_section(block, rotary_dim)?;
        }
        mrope_interleaved = mrope_interleaved.or(block.boolean("mrope_interleaved")?);
    }
    Ok(Rope {
        rope_theta,
        partial_rotary_factor,
        mrope_section,
        mrope_interleaved: mrope_interleaved.unwrap_or(true),
        rotary_dim,
    })
}

fn read_section(block: &Fields<'_>, rotary_dim: usize) -> Result<Option<[usize; 3]>> {
    const KEY: &str = "mrope_section";
    let Some(list) = block.list(KEY)? else { return Ok(None) };
    let pairs = rotary_dim / 2;
    let sizes: Option<Vec<usize>> =
        list.iter().map(|size| size.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= pairs)).collect();
    match sizes.as_deref() {
        Some([t, h, w]) if t + h + w == pairs => Ok(Some([*t, *h, *w])),
        _ => Err(block.error(KEY, format!("three sizes that sum to {pairs}, half of the rotating dimensions"))),
    }
}
