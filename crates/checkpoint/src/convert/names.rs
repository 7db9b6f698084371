//! Names and layout: which tensors of a source become which tensors of MLX's layout. One module a family, one table.
//!
//! A family says of each name where the tensor goes ([`Place`]), and from the configuration which tensors there must be
//! and in which shapes; one more, one less or another shape is an error, so that a conversion either yields a checkpoint
//! that loads or nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};

use super::source::{Source, SourceTensor, Stored};
use crate::error::{CheckpointError, Result};
use crate::fields::{Fields, MAX_LAYERS};

mod decoder;
mod gemma4;
mod qwen3_5;

/// Where a tensor goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It becomes this tensor.
    Whole(String),
    /// Its first half and its second half along the last but one dimension become these two.
    Halves([String; 2]),
    /// It becomes the matrix `index` of a stack.
    Stacked {
        /// The stack.
        name: String,
        /// Its place in it.
        index: usize,
    },
    /// Left out, for this reason; the empty one (buffers and copies that carry nothing) is not worth a note.
    Dropped(&'static str),
    /// No tensor of the family.
    Unknown,
}

/// Name and shape of a tensor in MLX's layout.
pub(crate) type Expected = (String, Vec<usize>);

/// The rows of a table of tensors, under a prefix.
fn under(prefix: &str, table: &[(&str, &[usize])]) -> Vec<Expected> {
    table.iter().map(|(name, shape)| (format!("{prefix}{name}"), shape.to_vec())).collect()
}

/// A family of models.
pub(crate) trait Family {
    /// Where a tensor goes.
    fn place(&self, tensor: &SourceTensor) -> Place;

    /// Every tensor of the model in MLX's layout, by the configuration: name and shape.
    fn expected(&self) -> Vec<Expected>;

    /// True when 1 is added to every value of this tensor (by its name in MLX's layout).
    fn adds_one(&self, _name: &str, _shape: &[usize]) -> bool {
        false
    }

    /// True when a tensor keeps its type whatever type is asked for.
    fn keeps_dtype(&self, _name: &str) -> bool {
        false
    }

    /// Bits and group of a module that always has its own.
    fn own_format(&self, _module: &str) -> Option<(u8, u16)> {
        None
    }

    /// Matrices that a stack must have, when the configuration says.
    fn experts(&self) -> Option<usize> {
        None
    }

    /// What changes in the configuration beside the quantisation; returns a note for the user.
    fn edit_config(&self, _config: &mut Map<String, Value>) -> Option<String> {
        None
    }
}

/// Every `model_type` that can be converted, with its family.
#[allow(clippy::type_complexity, reason = "a table is read, not called")]
const FAMILIES: [(&[&str], fn(&Facts<'_>) -> Result<Box<dyn Family>>); 3] = [
    (&decoder::MODEL_TYPES, decoder::family),
    (&qwen3_5::MODEL_TYPES, qwen3_5::family),
    (&gemma4::MODEL_TYPES, gemma4::family),
];

/// Drafters and other companions, which are not models of their own.
const DRAFTERS: [&str; 3] = ["gemma4_assistant", "gemma4_unified_assistant", "qwen3_5_mtp"];

/// What a family is told of a source.
pub(crate) struct Facts<'a> {
    /// The file of the configuration, for messages.
    pub(crate) file: &'a Path,
    /// The configuration.
    pub(crate) config: &'a Value,
    /// The `model_type`.
    pub(crate) model_type: &'a str,
    /// The object with the fields of the text stack.
    pub(crate) text: Fields<'a>,
    /// The root of the configuration.
    pub(crate) root: Fields<'a>,
    /// True when the fields of the text stack are nested in `text_config`.
    pub(crate) nested: bool,
    /// `num_hidden_layers`.
    pub(crate) layers: usize,
    /// All tensors.
    pub(crate) tensors: &'a [SourceTensor],
}

impl Facts<'_> {
    /// `tie_word_embeddings`, of the text stack before that of the wrapper.
    pub(crate) fn tied(&self, default: bool) -> Result<bool> {
        const KEY: &str = "tie_word_embeddings";
        Ok(self.text.boolean(KEY)?.or(self.root.boolean(KEY)?).unwrap_or(default))
    }
}

/// Some rows of a source's tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The tensor's number.
    pub(crate) tensor: usize,
    /// The rows.
    pub(crate) rows: Range<usize>,
}

/// A tensor of MLX's layout: rows of source tensors one after another.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    /// Its name.
    pub(crate) name: String,
    /// Its dimensions.
    pub(crate) shape: Vec<usize>,
    /// Where its values lie.
    pub(crate) parts: Vec<Part>,
}

/// All tensors of MLX's layout that a source gives.
pub(crate) struct Layout {
    /// The family.
    pub(crate) family: Box<dyn Family>,
    /// Layers of the text stack.
    pub(crate) layers: usize,
    /// The tensors, in the order of their bytes in the source.
    pub(crate) tensors: Vec<Mapped>,
    /// What was left out.
    pub(crate) notes: Vec<String>,
}

/// Maps every tensor of a source.
pub(crate) fn layout(source: &dyn Source) -> Result<Layout> {
    let file = source.config_file();
    let (family, layers) = family(&file, source.config(), source.tensors())?;
    let mut dropped = BTreeMap::<&str, (usize, u64)>::new();
    let mut stacks = HashMap::<String, (usize, BTreeMap<usize, usize>)>::new();
    let mut tensors = Vec::<Mapped>::new();
    for (index, tensor) in source.tensors().iter().enumerate() {
        let place = family.place(tensor);
        if let Stored::Other(found) = &tensor.stored
            && !matches!(place, Place::Dropped(_))
        {
            return Err(CheckpointError::TensorDType {
                file: tensor.file.clone(),
                tensor: tensor.name.clone(),
                expected: "F32, BF16 or F16 (a float checkpoint; quantised ones cannot be converted again)".into(),
                found: found.clone(),
            });
        }
        let rows = tensor.rows();
        match place {
            Place::Whole(name) => {
                let shape = conv_shape(&name, &tensor.shape);
                tensors.push(Mapped { name, shape, parts: vec![Part { tensor: index, rows: 0..rows }] });
            }
            Place::Halves(names) => tensors.extend(halves(index, tensor, names)?),
            Place::Stacked { name, index: place } => match stacks.get_mut(&name) {
                Some((at, found)) => {
                    let first = &source.tensors()[*found.values().next().expect("never empty")];
                    if first.shape != tensor.shape {
                        return Err(CheckpointError::TensorShape {
                            file: tensor.file.clone(),
                            tensor: tensor.name.clone(),
                            expected: first.shape.clone(),
                            found: tensor.shape.clone(),
                        });
                    }
                    found.insert(place, index);
                    tensors[*at].parts.push(Part { tensor: index, rows: 0..rows });
                }
                None => {
                    stacks.insert(name.clone(), (tensors.len(), BTreeMap::from([(place, index)])));
                    let parts = vec![Part { tensor: index, rows: 0..rows }];
                    tensors.push(Mapped { name, shape: tensor.shape.clone(), parts });
                }
            },
            Place::Dropped(reason) => {
                let entry = dropped.entry(reason).or_default();
                entry.0 += 1;
                entry.1 += tensor.bytes;
            }
            Place::Unknown => return Err(unknown(source, tensor, layers)),
        }
    }
    for (name, (at, found)) in stacks {
        stack(&mut tensors[at], &found, family.experts()).map_err(|problem| CheckpointError::Convert {
            path: source.path().into(),
            problem: format!("experts of {name}: {problem}"),
        })?;
    }
    complete(source, &*family, layers, &tensors)?;
    let notes = dropped
        .into_iter()
        .filter(|(reason, _)| !reason.is_empty())
        .map(|(reason, (count, bytes))| format!("left out {count} tensors of {reason} ({bytes} bytes)"))
        .collect();
    Ok(Layout { family, layers, tensors, notes })
}

/// The family that a configuration names, and its number of layers.
pub(crate) fn family(file: &Path, config: &Value, tensors: &[SourceTensor]) -> Result<(Box<dyn Family>, usize)> {
    let root = Fields::root(file, config)?;
    let supported = || FAMILIES.iter().flat_map(|(types, _)| types.iter().copied()).collect::<Vec<_>>().join(", ");
    let Some(model_type) = root.text("model_type")? else {
        return Err(root.error("model_type", format!("one of {}", supported())));
    };
    let Some((_, make)) = FAMILIES.iter().find(|(types, _)| types.contains(&model_type)) else {
        let (file, found) = (file.to_path_buf(), model_type.to_string());
        if DRAFTERS.contains(&model_type) {
            let problem = format!("model_type {found:?} is a drafter; only models are converted, give the model");
            return Err(CheckpointError::Convert { path: file, problem });
        }
        return Err(CheckpointError::UnknownModelType { file, found, supported: supported() });
    };
    let nested = root.object("text_config")?;
    let text = nested.clone().unwrap_or_else(|| root.clone());
    let Some(layers) = text.size("num_hidden_layers")? else {
        return Err(text.error("num_hidden_layers", "the number of layers"));
    };
    if !(1..=MAX_LAYERS).contains(&layers) {
        return Err(text.error("num_hidden_layers", format!("1 to {MAX_LAYERS}")));
    }
    let facts = Facts { file, config, model_type, text, root, nested: nested.is_some(), layers, tensors };
    Ok((make(&facts)?, layers))
}

/// A depthwise convolution goes from `[channels, 1, taps]` to `[channels, taps, 1]`: the same bytes.
fn conv_shape(name: &str, shape: &[usize]) -> Vec<usize> {
    match shape {
        [channels, 1, taps] if name.ends_with("conv1d.weight") => vec![*channels, *taps, 1],
        _ => shape.to_vec(),
    }
}

/// Splits `[…, 2 * rows, columns]` into two of `[…, rows, columns]`.
fn halves(index: usize, tensor: &SourceTensor, names: [String; 2]) -> Result<[Mapped; 2]> {
    let (leading, double) = match tensor.shape.as_slice() {
        [leading @ .., double, _] if double.is_multiple_of(2) => (leading, *double),
        _ => {
            return Err(CheckpointError::Convert {
                path: tensor.file.clone(),
                problem: format!(
                    "tensor {} has shape {:?}, expected [experts, 2 * width, hidden] to split",
                    tensor.name, tensor.shape
                ),
            });
        }
    };
    let (half, blocks) = (double / 2, leading.iter().product::<usize>());
    let part = |which: usize| {
        let rows = |block: usize| {
            let start = block * double + which * half;
            Part { tensor: index, rows: start..start + half }
        };
        (0..blocks).map(rows).collect()
    };
    let mut shape = tensor.shape.clone();
    let second_last = shape.len() - 2;
    shape[second_last] = half;
    let [first, second] = names;
    Ok([Mapped { name: first, shape: shape.clone(), parts: part(0) }, Mapped { name: second, shape, parts: part(1) }])
}

/// Puts the matrices of a stack in order and checks that none is missing.
fn stack(stack: &mut Mapped, found: &BTreeMap<usize, usize>, experts: Option<usize>) -> Result<(), String> {
    let count = experts.unwrap_or_else(|| found.keys().next_back().map_or(0, |last| last + 1));
    if stack.parts.len() != found.len() {
        return Err("an expert is there twice".into());
    }
    if let Some(missing) = (0..count).find(|expert| !found.contains_key(expert)) {
        return Err(format!("expert {missing} of {count} is missing"));
    }
    if let Some(extra) = found.keys().find(|expert| **expert >= count) {
        return Err(format!("expert {extra} is there, expected {count} (0 to {})", count.saturating_sub(1)));
    }
    let order: HashMap<usize, usize> = found.iter().map(|(place, tensor)| (*tensor, *place)).collect();
    stack.parts.sort_by_key(|part| order[&part.tensor]);
    stack.shape.insert(0, count);
    Ok(())
}

/// Fails when two tensors have one name, one is not the model's or has another shape, or one is missing.
fn complete(source: &dyn Source, family: &dyn Family, layers: usize, tensors: &[Mapped]) -> Result<()> {
    let expected = family.expected();
    let shapes: HashMap<&str, &[usize]> = expected.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
    let mut found = HashSet::<&str>::new();
    for mapped in tensors {
        let first = &source.tensors()[mapped.parts[0].tensor];
        let error = |problem: String| Err(CheckpointError::Convert { path: first.file.clone(), problem });
        if !found.insert(&mapped.name) {
            return error(format!("two tensors would both become {}", mapped.name));
        }
        let Some(shape) = shapes.get(mapped.name.as_str()) else { return Err(unknown(source, first, layers)) };
        // A lone number may have a dimension or none.
        if mapped.shape != *shape && !(mapped.shape.is_empty() && *shape == [1]) {
            let becomes = if mapped.name == first.name { String::new() } else { format!(", as {},", mapped.name) };
            return error(format!(
                "tensor {}{becomes} has shape {:?}, expected {shape:?} by the configuration",
                first.name, mapped.shape
            ));
        }
    }
    let missing: Vec<&str> =
        expected.iter().map(|(name, _)| name.as_str()).filter(|name| !found.contains(name)).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    Err(CheckpointError::MissingTensor {
        dir: source.path().into(),
        tensor: (*first).into(),
        note: match missing.len() {
            1 => " (by its name in MLX's layout), which the model needs".into(),
            count => format!(" (by its name in MLX's layout) nor {} others that the model needs", count - 1),
        },
    })
}

fn unknown(source: &dyn Source, tensor: &SourceTensor, layers: usize) -> CheckpointError {
    let model_type = source.config().get("model_type").and_then(Value::as_str).unwrap_or_default();
    CheckpointError::Convert {
        path: tensor.file.clone(),
        problem: format!(
            "tensor {} is not one that a model of type {model_type} with {layers} layers has (by {})",
            tensor.name,
            source.config_file().display()
        ),
    }
}

/// `12.self_attn.q_proj.weight` as 12 and the rest, when 12 is one of the layers.
fn layer(rest: &str, layers: usize) -> Option<(usize, &str)> {
    let (index, leaf) = rest.split_once('.')?;
    let index = number(index).filter(|index| *index < layers)?;
    Some((index, leaf))
}

/// A number in digits alone and without leading zeros, so that no two spellings mean the same.
fn number(text: &str) -> Option<usize> {
    let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    text.parse().ok().filter(|_| canonical)
}

/// True for the buffers of rotary frequencies that old exports carry.
fn is_rotary_buffer(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}
