//! `config.json` and `generation_config.json` from metadata.

use serde_json::{Value as Json, json};

use super::error::GgufError;
use super::header::{Header, Metadata};
use super::names::{ATTENTION_BIASES, Architecture, Heads, MLP_BIASES, check_tensors, has_biases, required_size, size};
use super::rope;
use super::tokenizer;
use super::types::GgmlType;

/// Every n-th Gemma 3 layer attends to everything, the others to a window.
const GEMMA3_PATTERN: usize = 6;

/// The `config.json` of the model, with every tensor it implies checked to be there. `rope_factors` are the elements of
/// `rope_freqs.weight`, where there is such a tensor.
pub(crate) fn config(
    architecture: Architecture,
    header: &Header,
    rope_factors: Option<&[f32]>,
) -> Result<Json, GgufError> {
    let metadata = &header.metadata;
    let key = |rest: &str| architecture.key(rest);
    let need = |rest: &str| required_size(metadata, &key(rest));
    refuse_variants(architecture, metadata)?;
    let heads = Heads::read(architecture, metadata)?;
    let (hidden, blocks) = (need("embedding_length")?, need("block_count")?);
    check_tensors(architecture, &heads, blocks, header)?;
    let vocabulary = vocabulary(architecture, header, hidden)?;
    let epsilon = positive(metadata, &key("attention.layer_norm_rms_epsilon"))?
        .ok_or_else(|| metadata.error(&key("attention.layer_norm_rms_epsilon"), "a positive number"))?;
    let theta = positive(metadata, &key("rope.freq_base"))?.unwrap_or(10_000.0);
    let scaling = scaling(architecture, metadata, &heads, theta, rope_factors)?;

    let (class, model_type) = match architecture {
        Architecture::Llama => ("LlamaForCausalLM", "llama"),
        Architecture::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        Architecture::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
        Architecture::Gemma3 => ("Gemma3ForCausalLM", "gemma3_text"),
    };
    let mut config = json!({
        "architectures": [class],
        "model_type": model_type,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "head_dim": heads.dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": need("feed_forward_length")?,
        "max_position_embeddings": need("context_length")?,
        "num_attention_heads": heads.query,
        "num_hidden_layers": blocks,
        "num_key_value_heads": heads.key_value,
        "rms_norm_eps": epsilon,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": !header.tensors.iter().any(|tensor| tensor.name == "output.weight"),
        "torch_dtype": dtype(header),
        "use_cache": true,
        "vocab_size": vocabulary,
    });
    match architecture {
        Architecture::Llama => {
            config["attention_bias"] = has_biases(header, &ATTENTION_BIASES).into();
            config["mlp_bias"] = has_biases(header, &MLP_BIASES).into();
        }
        Architecture::Qwen2 | Architecture::Qwen3 => {
            config["max_window_layers"] = blocks.into();
            config["sliding_window"] = Json::Null;
            config["use_sliding_window"] = false.into();
            if architecture == Architecture::Qwen2
                && let Some(fields) = config.as_object_mut()
            {
                // Qwen 2 has biases on q, k and v by definition, and no field that says so.
                fields.shift_remove("attention_bias");
            }
        }
        Architecture::Gemma3 => gemma3(metadata, &heads, hidden, blocks, &mut config)?,
    }
    for (field, id) in tokenizer::special_ids(metadata)? {
        config[field] = id.into();
    }
    Ok(config)
}

/// What llama.cpp keeps under a supported architecture's name but is another model.
fn refuse_variants(architecture: Architecture, metadata: &Metadata) -> Result<(), GgufError> {
    if let Some(experts) = metadata.get(&architecture.key("expert_count"))
        && experts.as_u64() != Some(0)
    {
        let what = format!("a mixture of experts in architecture {}", architecture.name());
        return Err(GgufError::Unsupported { what: format!("{what} (metadata expert_count is {experts})") });
    }
    // Multipliers of other families (Granite, MiniCPM, …) that some converters file under these names.
    for rest in ["logit_scale", "embedding_scale", "residual_scale", "attention.scale", "attn_logit_softcapping"] {
        let key = architecture.key(rest);
        if metadata.float(&key)?.is_some_and(|number| number != 0.0) {
            return Err(GgufError::Unsupported { what: format!("metadata {key}") });
        }
    }
    Ok(())
}

fn positive(metadata: &Metadata, key: &str) -> Result<Option<f64>, GgufError> {
    match metadata.float(key)? {
        Some(number) if number <= 0.0 => Err(metadata.error(key, "a positive number")),
        other => Ok(other),
    }
}

/// The number of rows of the embedding, which the metadata must not contradict.
fn vocabulary(architecture: Architecture, header: &Header, hidden: usize) -> Result<usize, GgufError> {
    let embedding = header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let shape = embedding.map(|tensor| &tensor.shape[..]).unwrap_or_default();
    let [rows, width] = *shape else {
        let problem = format!("shape {shape:?}, expected a row of {hidden} elements for each token");
        return Err(GgufError::Tensor { tensor: "token_embd.weight".into(), problem });
    };
    if width != hidden {
        let key = architecture.key("embedding_length");
        let problem = format!("rows of {width} elements, expected {hidden} by metadata {key}");
        return Err(GgufError::Tensor { tensor: "token_embd.weight".into(), problem });
    }
    let metadata = &header.metadata;
    let key = architecture.key("vocab_size");
    if size(metadata, &key)?.is_some_and(|stated| stated != rows) {
        return Err(metadata.error(&key, format!("{rows}, the rows of token_embd.weight")));
    }
    if let Some(tokens) = metadata.list(tokenizer::TOKENS)?
        && tokens.len() > rows
    {
        return Err(metadata.error(tokenizer::TOKENS, format!("at most {rows} tokens, the rows of token_embd.weight")));
    }
    Ok(rows)
}

fn scaling(
    architecture: Architecture,
    metadata: &Metadata,
    heads: &Heads,
    theta: f64,
    rope_factors: Option<&[f32]>,
) -> Result<Option<Json>, GgufError> {
    let key = architecture.key("rope.dimension_count");
    if size(metadata, &key)?.is_some_and(|rotated| rotated != heads.dim) {
        return Err(metadata.error(&key, format!("{}, the size of a head", heads.dim)));
    }
    let stated = rope::from_metadata(architecture, metadata)?;
    let Some(factors) = rope_factors else { return Ok(stated) };
    let table = rope::llama3_from_table(theta, heads.dim, factors)?;
    match (stated, table) {
        (stated, None) => Ok(stated),
        (None, Some(parameters)) => Ok(Some(parameters.to_json())),
        (Some(stated), Some(_)) => Err(GgufError::Unsupported {
            what: format!("rope scaling {} together with tensor rope_freqs.weight", stated["rope_type"]),
        }),
    }
}

/// The type to compute in, as the original checkpoint would state it. Quantised files do not say; their originals are
/// nearly always bfloat16.
fn dtype(header: &Header) -> &'static str {
    let matrices = || header.tensors.iter().filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.kind);
    if matrices().all(|kind| kind == GgmlType::F32) {
        "float32"
    } else if matrices().all(|kind| matches!(kind, GgmlType::F16 | GgmlType::F32)) {
        "float16"
    } else {
        "bfloat16"
    }
}

fn gemma3(
    metadata: &Metadata,
    heads: &Heads,
    hidden: usize,
    blocks: usize,
    config: &mut Json,
) -> Result<(), GgufError> {
    let key = |rest: &str| Architecture::Gemma3.key(rest);
    let windows = windows(metadata, blocks)?;
    let kind = |window: &bool| if *window { "sliding_attention" } else { "full_attention" };
    // The largest model alone scales by its hidden size (llama.cpp knows it by its number of layers, too).
    config["query_pre_attn_scalar"] = if blocks == 62 { hidden / heads.query } else { heads.dim }.into();
    config["layer_types"] = windows.iter().map(kind).collect();
    config["sliding_window"] = required_size(metadata, &key("attention.sliding_window"))?.into();
    config["rope_local_base_freq"] = positive(metadata, &key("rope.freq_base_swa"))?.unwrap_or(10_000.0).into();
    config["final_logit_softcapping"] = match positive(metadata, &key("final_logit_softcapping"))? {
        Some(cap) => cap.into(),
        None => Json::Null,
    };
    config["attn_logit_softcapping"] = Json::Null;
    config["hidden_activation"] = "gelu_pytorch_tanh".into();
    if let Some(fields) = config.as_object_mut() {
        fields.shift_remove("hidden_act");
        if let Some(pattern) = period(&windows) {
            fields.insert("sliding_window_pattern".into(), pattern.into());
        }
    }
    Ok(())
}

/// Which layers attend to a window only.
fn windows(metadata: &Metadata, blocks: usize) -> Result<Vec<bool>, GgufError> {
    let key = Architecture::Gemma3.key("attention.sliding_window_pattern");
    let expected = || metadata.error(&key, format!("a positive integer, or a boolean for each of {blocks} layers"));
    let period = match metadata.get(&key) {
        None => GEMMA3_PATTERN,
        Some(value) => match value.as_array() {
            Some(list) => {
                let flags: Option<Vec<bool>> =
                    list.scalars().ok_or_else(expected)?.map(|value| value.as_bool()).collect();
                return flags.filter(|flags| flags.len() == blocks).ok_or_else(expected);
            }
            None => value.as_u64().filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok()).ok_or_else(expected)?,
        },
    };
    Ok((1..=blocks).map(|layer| layer % period != 0).collect())
}

/// The n of "every n-th layer attends to everything", if the layers follow such a rule.
fn period(windows: &[bool]) -> Option<usize> {
    let first = windows.iter().position(|window| !window)? + 1;
    windows.iter().enumerate().all(|(index, window)| *window == ((index + 1) % first != 0)).then_some(first)
}
