//! The text stack's fields, under the names the checkpoint gives them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::Result;
use crate::fields::{Fields, MAX_LAYERS};

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerType {
    /// The last `sliding_window` keys.
    Sliding,
    /// All keys.
    Full,
}

impl LayerType {
    /// The name in `layer_types` and `rope_parameters`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sliding => "sliding_attention",
            Self::Full => "full_attention",
        }
    }
}

/// Activation of the MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU by its tanh approximation.
    GeluPytorchTanh,
}

/// Which positions may see later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bidirectional {
    /// None.
    None,
    /// Image and video slots of one block see each other.
    Vision,
}

/// How frequencies are spread over a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeType {
    /// All pairs rotate.
    Default,
    /// The first `partial_rotary_factor` of the pairs rotate, at frequencies spaced for the whole head.
    Proportional,
}

/// Rotary embedding of one layer type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Spread of the frequencies.
    pub rope_type: RopeType,
    /// Base of the frequencies.
    pub rope_theta: f64,
    /// Share of the pairs that rotate.
    pub partial_rotary_factor: f64,
    /// Divides all frequencies.
    pub factor: f64,
}

/// Rotary embeddings by layer type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeParameters {
    /// Of full layers.
    pub full_attention: Rope,
    /// Of sliding layers.
    pub sliding_attention: Rope,
}

impl Default for RopeParameters {
    fn default() -> Self {
        Self {
            full_attention: Rope {
                rope_type: RopeType::Proportional,
                rope_theta: 1_000_000.0,
                partial_rotary_factor: 0.25,
                factor: 1.0,
            },
            sliding_attention: Rope {
                rope_type: RopeType::Default,
                rope_theta: 10_000.0,
                partial_rotary_factor: 1.0,
                factor: 1.0,
            },
        }
    }
}

/// Sizes of one layer that `per_layer_config` sets apart from its type's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerOverride {
    /// Head width.
    pub head_dim: Option<usize>,
    /// K/V heads.
    pub num_key_value_heads: Option<usize>,
}

/// Sizes of the mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeSizes {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts a row goes through.
    pub top_k_experts: usize,
    /// Width of one expert.
    pub moe_intermediate_size: usize,
}

/// Checked text fields. What a field means is in the architecture's description; sizes of one layer are better asked
/// for with the methods, which know about layer types, sharing and overrides.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the checkpoint's own")]
pub struct Gemma4TextConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub num_global_key_value_heads: Option<usize>,
    pub attention_k_eq_v: bool,
    pub head_dim: usize,
    pub global_head_dim: usize,
    pub layer_types: Vec<LayerType>,
    pub sliding_window: usize,
    pub rope_parameters: RopeParameters,
    pub rms_norm_eps: f64,
    pub hidden_activation: Activation,
    pub num_kv_shared_layers: usize,
    pub use_double_wide_mlp: bool,
    /// 0 when there are no per-layer inputs.
    pub hidden_size_per_layer_input: usize,
    pub vocab_size_per_layer_input: usize,
    pub enable_moe_block: bool,
    pub num_experts: Option<usize>,
    pub top_k_experts: Option<usize>,
    pub moe_intermediate_size: Option<usize>,
    pub final_logit_softcapping: Option<f64>,
    pub tie_word_embeddings: bool,
    pub use_bidirectional_attention: Bidirectional,
    pub max_position_embeddings: u64,
    pub pad_token_id: u32,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Vec<u32>,
    pub per_layer_config: BTreeMap<usize, LayerOverride>,
}

/// Keys that published files always write; one that is absent is worth a warning.
const EXPECTED_KEYS: [&str; 16] = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "attention_k_eq_v",
    "head_dim",
    "layer_types",
    "sliding_window",
    "rope_parameters",
    "rms_norm_eps",
    "hidden_activation",
    "num_kv_shared_layers",
    "use_double_wide_mlp",
    "final_logit_softcapping",
];

impl Gemma4TextConfig {
    /// Reads and checks the fields. `root` is the whole file, for what wrappers keep at the top.
    pub(super) fn read(
        fields: &Fields<'_>,
        root: &Fields<'_>,
        unified: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let config = Self::read_fields(fields, root, unified, warnings)?;
        config.validate(fields)?;
        Ok(config)
    }

    /// Reads the fields, each checked alone.
    pub(super) fn read_fields(
        fields: &Fields<'_>,
        root: &Fields<'_>,
        unified: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let size = |key: &str, default: usize| Ok::<_, crate::CheckpointError>(fields.size(key)?.unwrap_or(default));
        let flag = |key: &str, default: bool| Ok::<_, crate::CheckpointError>(fields.boolean(key)?.unwrap_or(default));
        let per_layer_config = read_overrides(fields)?;
        let mut expected: Vec<&str> = EXPECTED_KEYS.to_vec();
        if per_layer_config.is_empty() {
            expected.push("global_head_dim");
        }
        if !unified {
            expected.extend(["hidden_size_per_layer_input", "enable_moe_block"]);
        }
        for key in expected.into_iter().filter(|key| !fields.is_written(key)) {
            warnings.push(format!("{} is absent; the default of transformers is used", fields.name_of(key)));
        }

        if flag("attention_bias", false)? {
            return Err(fields.error("attention_bias", "false (biases of attention are not supported)"));
        }
        match fields.text("hidden_activation")? {
            None | Some("gelu_pytorch_tanh") => {}
            Some(_) => return Err(fields.error("hidden_activation", "gelu_pytorch_tanh")),
        }
        let num_hidden_layers = size("num_hidden_layers", 30)?;
        if !(1..=MAX_LAYERS).contains(&num_hidden_layers) {
            return Err(fields.error("num_hidden_layers", format!("1 to {MAX_LAYERS}")));
        }
        let vocab_size = size("vocab_size", 262_144)?;
        Ok(Self {
            vocab_size,
            hidden_size: size("hidden_size", 2304)?,
            num_hidden_layers,
            intermediate_size: size("intermediate_size", 9216)?,
            num_attention_heads: size("num_attention_heads", 8)?,
            num_key_value_heads: size("num_key_value_heads", 4)?,
            num_global_key_value_heads: fields.size("num_global_key_value_heads")?,
            attention_k_eq_v: flag("attention_k_eq_v", false)?,
            head_dim: size("head_dim", 256)?,
            global_head_dim: size("global_head_dim", 512)?,
            layer_types: read_layer_types(fields, num_hidden_layers, warnings)?,
            sliding_window: size("sliding_window", if unified { 1024 } else { 512 })?,
            rope_parameters: read_rope(fields)?,
            rms_norm_eps: fields.float("rms_norm_eps")?.unwrap_or(1e-6),
            hidden_activation: Activation::GeluPytorchTanh,
            num_kv_shared_layers: size("num_kv_shared_layers", 0)?,
            use_double_wide_mlp: flag("use_double_wide_mlp", false)?,
            hidden_size_per_layer_input: read_per_layer_input(fields, unified)?,
            vocab_size_per_layer_input: size("vocab_size_per_layer_input", 262_144)?,
            enable_moe_block: flag("enable_moe_block", false)?,
            num_experts: fields.size("num_experts")?,
            top_k_experts: fields.size("top_k_experts")?,
            moe_intermediate_size: fields.size("moe_intermediate_size")?,
            final_logit_softcapping: fields.float("final_logit_softcapping")?,
            tie_word_embeddings: match fields.boolean("tie_word_embeddings")? {
                Some(tied) => tied,
                None => root.boolean("tie_word_embeddings")?.unwrap_or(true),
            },
            use_bidirectional_attention: read_bidirectional(fields, unified)?,
            max_position_embeddings: fields.count("max_position_embeddings")?.unwrap_or(131_072),
            pad_token_id: fields.id("pad_token_id")?.unwrap_or(0),
            bos_token_id: if fields.is_written("bos_token_id") { fields.id("bos_token_id")? } else { Some(2) },
            eos_token_ids: if fields.is_written("eos_token_id") { fields.ids("eos_token_id")? } else { vec![1] },
            per_layer_config,
        })
    }

    /// The first layer that reuses another's K/V; the number of layers when none does.
    pub fn first_shared_layer(&self) -> usize {
        self.num_hidden_layers - self.num_kv_shared_layers
    }

    /// The layer whose K/V a layer reads: itself, or the last of its type below the sharing ones.
    pub fn kv_source(&self, layer: usize) -> usize {
        self.find_kv_source(layer).expect("checked when the configuration was read")
    }

    pub(super) fn find_kv_source(&self, layer: usize) -> Option<usize> {
        if layer < self.first_shared_layer() {
            return Some(layer);
        }
        self.last_caching(self.layer_types[layer])
    }

    /// The last layer of a type that has K/V of its own: what sharing layers and drafters read.
    pub fn last_caching(&self, kind: LayerType) -> Option<usize> {
        self.layer_types[..self.first_shared_layer()].iter().rposition(|own| *own == kind)
    }

    /// True for a sliding-window layer.
    pub fn is_sliding(&self, layer: usize) -> bool {
        self.layer_types[layer] == LayerType::Sliding
    }

    /// Head width of a layer.
    pub fn head_dim(&self, layer: usize) -> usize {
        let by_type = if self.is_sliding(layer) { self.head_dim } else { self.global_head_dim };
        self.per_layer_config.get(&layer).and_then(|own| own.head_dim).unwrap_or(by_type)
    }

    /// K/V heads of a layer.
    pub fn kv_heads(&self, layer: usize) -> usize {
        let by_type = match self.num_global_key_value_heads {
            Some(global) if self.k_eq_v(layer) => global,
            _ => self.num_key_value_heads,
        };
        self.per_layer_config.get(&layer).and_then(|own| own.num_key_value_heads).unwrap_or(by_type)
    }

    /// True when a layer has no `v_proj` and takes its values from the raw keys.
    pub fn k_eq_v(&self, layer: usize) -> bool {
        self.attention_k_eq_v && !self.is_sliding(layer)
    }

    /// Width of a layer's dense MLP.
    pub fn mlp_width(&self, layer: usize) -> usize {
        let doubled = self.use_double_wide_mlp && layer >= self.first_shared_layer();
        self.intermediate_size * if doubled { 2 } else { 1 }
    }

    /// Rotary embedding of a layer.
    pub fn rope(&self, layer: usize) -> &Rope {
        if self.is_sliding(layer) {
            &self.rope_parameters.sliding_attention
        } else {
            &self.rope_parameters.full_attention
        }
    }

    /// Sizes of the experts, when every layer has some.
    pub fn moe(&self) -> Option<MoeSizes> {
        if !self.enable_moe_block {
            return None;
        }
        Some(MoeSizes {
            num_experts: self.num_experts?,
            top_k_experts: self.top_k_experts?,
            moe_intermediate_size: self.moe_intermediate_size?,
        })
    }
}

/// `null` switches per-layer inputs off; absence means the default, which the unified text stack has as "off".
fn read_per_layer_input(fields: &Fields<'_>, unified: bool) -> Result<usize> {
    const KEY: &str = "hidden_size_per_layer_input";
    let default = if unified || fields.is_written(KEY) { 0 } else { 256 };
    Ok(fields.size(KEY)?.unwrap_or(default))
}

fn read_bidirectional(fields: &Fields<'_>, unified: bool) -> Result<Bidirectional> {
    const KEY: &str = "use_bidirectional_attention";
    match fields.raw(KEY) {
        None if unified && !fields.is_written(KEY) => Ok(Bidirectional::Vision),
        None | Some(Value::Bool(false)) => Ok(Bidirectional::None),
        Some(Value::String(kind)) if kind == "vision" => Ok(Bidirectional::Vision),
        Some(_) => Err(fields.error(KEY, "null or \"vision\" (\"all\" is for encoders and cannot generate)")),
    }
}

fn read_layer_types(fields: &Fields<'_>, layers: usize, warnings: &mut Vec<String>) -> Result<Vec<LayerType>> {
    const KEY: &str = "layer_types";
    let Some(list) = fields.list(KEY)? else {
        // Five sliding layers and a full one, repeated; the last is full wherever the pattern ends.
        let kind =
            |layer| if (layer + 1) % 6 == 0 || layer + 1 == layers { LayerType::Full } else { LayerType::Sliding };
        return Ok((0..layers).map(kind).collect());
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
        let kind = [LayerType::Sliding, LayerType::Full].into_iter().find(|kind| value.as_str() == Some(kind.name()));
        types.push(kind.ok_or_else(|| {
            let expected = "sliding_attention or full_attention";
            fields.error_found(&format!("{KEY}[{layer}]"), expected, crate::fields::short(value))
        })?);
    }
    if types.last() == Some(&LayerType::Sliding) {
        warnings.push(format!("{}: the last layer is not full_attention", fields.name_of(KEY)));
    }
    Ok(types)
}

fn read_rope(fields: &Fields<'_>) -> Result<RopeParameters> {
    let mut parameters = RopeParameters::default();
    let Some(block) = fields.object("rope_parameters")? else {
        return Ok(parameters);
    };
    for (kind, rope) in
        [(LayerType::Full, &mut parameters.full_attention), (LayerType::Sliding, &mut parameters.sliding_attention)]
    {
        let Some(own) = block.object(kind.name())? else { continue };
        rope.rope_type = match own.text("rope_type")? {
            None => rope.rope_type,
            Some("default") => RopeType::Default,
            Some("proportional") => RopeType::Proportional,
            Some(_) => return Err(own.error("rope_type", "default or proportional")),
        };
        rope.rope_theta = own.float("rope_theta")?.unwrap_or(rope.rope_theta);
        // Inside a block that is there, the library's default is a full rotation.
        rope.partial_rotary_factor = own.float("partial_rotary_factor")?.unwrap_or(1.0);
        rope.factor = own.float("factor")?.unwrap_or(1.0);
        if rope.rope_theta <= 0.0 {
            return Err(own.error("rope_theta", "a number above 0"));
        }
        if !(rope.partial_rotary_factor > 0.0 && rope.partial_rotary_factor <= 1.0) {
            return Err(own.error("partial_rotary_factor", "above 0 and at most 1"));
        }
        if rope.factor <= 0.0 {
            return Err(own.error("factor", "a number above 0"));
        }
    }
    Ok(parameters)
}

fn read_overrides(fields: &Fields<'_>) -> Result<BTreeMap<usize, LayerOverride>> {
    let mut overrides = BTreeMap::new();
    let Some(block) = fields.object("per_layer_config")? else {
        return Ok(overrides);
    };
    for (key, _) in block.entries() {
        let layer = key.parse::<usize>().map_err(|_| block.error(key, "a layer index as the key"))?;
        let Some(own) = block.object(key)? else { continue };
        let own =
            LayerOverride { head_dim: own.size("head_dim")?, num_key_value_heads: own.size("num_key_value_heads")? };
        overrides.insert(layer, own);
    }
    Ok(overrides)
}
