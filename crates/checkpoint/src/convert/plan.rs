//! The plan of a conversion: every tensor to be written, with its type, shape and place, made from headers alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlxcel_compute::format::DType;
use serde_json::{Map, Value, json};

use super::Options;
use super::mixed::{Choice, Mixed, near};
use super::names::{Layout, Mapped, Part, layout};
use super::source::{Companion, Source, Stored};
use crate::error::{CheckpointError, Result};

/// How a module is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Floats of this type.
    Float(DType),
    /// Affine codes; scales and biases have the type.
    Affine {
        /// Bits of a code.
        bits: u8,
        /// Values that share a scale.
        group: u16,
        /// Type of scales and biases, to which values are rounded before they are quantised.
        dtype: DType,
    },
}

/// A tensor of the output.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// Its name.
    pub(crate) name: String,
    /// Its element type.
    pub(crate) dtype: DType,
    /// Its dimensions.
    pub(crate) shape: Vec<usize>,
    /// Bytes of it that one row of the unit gives.
    pub(crate) row_bytes: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Where it begins, from the beginning of the data of its shard.
    pub(crate) offset: u64,
}

/// Where a unit's values come from when they are a source's, and how they are written.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    /// How.
    pub(crate) form: Form,
    /// Rows of the source, one after another.
    pub(crate) parts: Vec<Part>,
    /// True when 1 is added to every value.
    pub(crate) adds_one: bool,
}

/// What is written together: one float tensor, or codes, scales and biases of one module.
#[derive(Clone, Debug)]
pub(crate) struct Unit<F = Copied> {
    /// Where its values come from.
    pub(crate) fill: F,
    /// Values of a row.
    pub(crate) width: usize,
    /// Rows in all.
    pub(crate) rows: usize,
    /// The tensors: one, or codes, scales and biases.
    pub(crate) tensors: Vec<Written>,
    /// Number of its shard.
    pub(crate) shard: usize,
}

impl<F> Unit<F> {
    fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }
}

/// One weight file of the output.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// Its name.
    pub(crate) name: String,
    /// Length field and header.
    pub(crate) header: Vec<u8>,
    /// Bytes of all tensors.
    pub(crate) data: u64,
}

/// Everything that will be written.
pub(crate) struct Plan<F = Copied> {
    /// In the order of the source's bytes.
    pub(crate) units: Vec<Unit<F>>,
    /// The weight files.
    pub(crate) shards: Vec<Shard>,
    /// `config.json`.
    pub(crate) config: Value,
    /// The weight index.
    pub(crate) index: Value,
    /// Files that go along.
    pub(crate) companions: Vec<Companion>,
    /// What the user should know.
    pub(crate) notes: Vec<String>,
    /// Bytes of the tensors that are read.
    pub(crate) read: u64,
    /// Values in all.
    pub(crate) parameters: u64,
}

impl Plan {
    /// Makes the plan; reads no tensor data.
    pub(crate) fn new(source: &dyn Source, options: &Options) -> Result<Self> {
        let mut layout = layout(source)?;
        let mut notes = std::mem::take(&mut layout.notes);
        let dtypes = dtypes(source, options, &layout)?;
        let forms = forms(source, options, &layout, &dtypes, &mut notes)?;
        let mut units: Vec<Unit> =
            layout.tensors.iter().zip(&forms).map(|(mapped, form)| unit(&layout, source, mapped, *form)).collect();
        let shards = shards(&mut units, options.shard_bytes);
        let parameters = units.iter().map(|unit| unit.rows as u64 * unit.width as u64).sum();
        let config = config(source, options, &layout, &forms, &mut notes)?;
        let (companions, left) = source.companions()?;
        notes.extend(left);
        let mut read = vec![false; source.tensors().len()];
        units.iter().flat_map(|unit| &unit.fill.parts).for_each(|part| read[part.tensor] = true);
        let read = source.tensors().iter().zip(read).filter(|(_, read)| *read).map(|(tensor, _)| tensor.bytes).sum();
        let index = index(&units, &shards, parameters);
        Ok(Self { units, shards, config, index, companions, notes, read, parameters })
    }
}

impl<F> Plan<F> {
    /// Bytes of all tensors.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.data).sum()
    }

    /// Bytes of everything that is written.
    pub(crate) fn total_bytes(&self) -> u64 {
        let companion = |companion: &Companion| match &companion.content {
            super::source::Content::Bytes(bytes) => bytes.len() as u64,
            super::source::Content::File(path) => std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
        };
        let headers: u64 = self.shards.iter().map(|shard| shard.header.len() as u64).sum();
        let json = self.config.to_string().len() + self.index.to_string().len();
        self.tensor_bytes() + headers + json as u64 + self.companions.iter().map(companion).sum::<u64>()
    }
}

/// The path of the module, when the tensor is a matrix that MLX quantises: a linear layer, a stack of them, an embedding.
pub(crate) fn module_of<'a>(name: &'a str, shape: &[usize]) -> Option<&'a str> {
    let path = name.strip_suffix(".weight")?;
    (shape.len() >= 2 && !path.ends_with("conv1d")).then_some(path)
}

fn module(mapped: &Mapped) -> Option<&str> {
    module_of(&mapped.name, &mapped.shape)
}

/// Type of the floats of each tensor.
fn dtypes(source: &dyn Source, options: &Options, layout: &Layout) -> Result<Vec<DType>> {
    let one = |mapped: &Mapped| {
        let tensor = &source.tensors()[mapped.parts[0].tensor];
        let own = match &tensor.stored {
            Stored::Float(dtype) => Some(*dtype),
            Stored::Blocks(_) | Stored::Other(_) => None,
        };
        if layout.family.keeps_dtype(&mapped.name)
            && let Some(own) = own
        {
            return Ok(own);
        }
        options.dtype.or(source.default_dtype()).or(own).ok_or_else(|| CheckpointError::TensorDType {
            file: tensor.file.clone(),
            tensor: tensor.name.clone(),
            expected: "F32, BF16 or F16".into(),
            found: format!("{:?}", tensor.stored),
        })
    };
    layout.tensors.iter().map(one).collect()
}

/// How each tensor is written.
fn forms(
    source: &dyn Source,
    options: &Options,
    layout: &Layout,
    dtypes: &[DType],
    notes: &mut Vec<String>,
) -> Result<Vec<Form>> {
    let Some(bits) = options.bits else { return Ok(dtypes.iter().map(|dtype| Form::Float(*dtype)).collect()) };
    let mut used = vec![false; options.mixed.len()];
    // Modules of one kind and width are one line.
    let mut undivided = BTreeMap::<(String, usize, u16), usize>::new();
    let mut forms = Vec::with_capacity(dtypes.len());
    for (mapped, dtype) in layout.tensors.iter().zip(dtypes) {
        let Some(path) = module(mapped) else {
            forms.push(Form::Float(*dtype));
            continue;
        };
        let width = mapped.shape.last().copied().unwrap_or(1);
        let divides = |group: u16| width > 0 && width.is_multiple_of(usize::from(group));
        let mut choice = Choice::Quantise { bits, group: None };
        // Where its own group does not divide, the common one may.
        if let Some((bits, group)) = layout.family.own_format(path) {
            choice = Choice::Quantise { bits, group: divides(group).then_some(group) };
        }
        for (rule, used) in options.mixed.iter().zip(&mut used) {
            if let Some(found) = rule.applies(path, layout.layers, bits) {
                (choice, *used) = (found, true);
            }
        }
        forms.push(match choice {
            Choice::Keep => Form::Float(*dtype),
            Choice::Quantise { bits, group } => {
                let group = group.unwrap_or(options.group);
                if divides(group) {
                    Form::Affine { bits, group, dtype: *dtype }
                } else {
                    *undivided.entry((general(path), width, group)).or_default() += 1;
                    Form::Float(*dtype)
                }
            }
        });
    }
    for (rule, _) in options.mixed.iter().zip(&used).filter(|(_, used)| !**used) {
        if let Mixed::Pattern(pattern, _) = rule {
            let near = near(pattern, layout.tensors.iter().filter_map(module));
            return Err(CheckpointError::Convert {
                path: source.path().into(),
                problem: format!("--mixed {pattern}: no module matches; nearest: {}", near.join(", ")),
            });
        }
    }
    for ((path, width, group), count) in undivided {
        notes.push(format!("{path} ({count} of width {width}) not quantised: not divisible by the group size {group}"));
    }
    if !forms.iter().any(|form| matches!(form, Form::Affine { .. })) {
        return Err(CheckpointError::Convert {
            path: source.path().into(),
            problem: format!(
                "no module would be quantised: no width is divisible by {}, or --mixed keeps all; try a smaller \
                 --group-size, or leave --bits out",
                options.group
            ),
        });
    }
    Ok(forms)
}

/// A path with its layer numbers as stars.
fn general(path: &str) -> String {
    path.split('.').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part }).collect::<Vec<_>>().join(".")
}

fn unit(layout: &Layout, source: &dyn Source, mapped: &Mapped, form: Form) -> Unit {
    let first = &source.tensors()[mapped.parts[0].tensor];
    let width = first.width();
    let rows: usize = mapped.parts.iter().map(|part| part.rows.len()).sum();
    let tensors = written(&mapped.name, &mapped.shape, (rows, width), form);
    let adds_one = layout.family.adds_one(&mapped.name, &mapped.shape);
    Unit { fill: Copied { form, parts: mapped.parts.clone(), adds_one }, width, rows, tensors, shard: 0 }
}

/// The tensors that a tensor of `rows` and values a row becomes: itself, or codes, scales and biases.
pub(crate) fn written(name: &str, shape: &[usize], (rows, width): (usize, usize), form: Form) -> Vec<Written> {
    // No product here is larger than a file of the source times the widest element.
    let written = |name: String, dtype: DType, columns: usize, shape: Vec<usize>| {
        let row_bytes = (columns * dtype.size()) as u64;
        Written { name, dtype, shape, row_bytes, bytes: row_bytes * rows as u64, offset: 0 }
    };
    match form {
        Form::Float(dtype) => vec![written(name.into(), dtype, width, shape.to_vec())],
        Form::Affine { bits, group, dtype } => {
            let path = name.strip_suffix(".weight").unwrap_or(name);
            let with = |columns: usize| {
                let mut shape = shape.to_vec();
                shape.pop();
                shape.push(columns);
                shape
            };
            let (words, groups) = (width * usize::from(bits) / 32, width / usize::from(group));
            vec![
                written(name.into(), DType::U32, words, with(words)),
                written(format!("{path}.scales"), dtype, groups, with(groups)),
                written(format!("{path}.biases"), dtype, groups, with(groups)),
            ]
        }
    }
}

/// Cuts the units into files of at most `limit` bytes of data, a larger unit alone, and places their tensors.
pub(crate) fn shards<F>(units: &mut [Unit<F>], limit: u64) -> Vec<Shard> {
    let (mut count, mut filled) = (0, 0);
    for unit in units.iter_mut() {
        let bytes = unit.bytes();
        if count == 0 || (filled > 0 && filled + bytes > limit) {
            count += 1;
            filled = 0;
        }
        filled += bytes;
        unit.shard = count - 1;
    }
    (0..count)
        .map(|number| {
            let mut tensors: Vec<&mut Written> =
                units.iter_mut().filter(|unit| unit.shard == number).flat_map(|unit| unit.tensors.iter_mut()).collect();
            // Wide elements first, so that every tensor is aligned to its own without gaps, which the format forbids.
            tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
            let (mut header, mut data) = (Map::new(), 0);
            header.insert("__metadata__".into(), json!({"format": "mlx"}));
            for tensor in tensors {
                tensor.offset = data;
                data += tensor.bytes;
                header.insert(
                    tensor.name.clone(),
                    json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [tensor.offset, data]}),
                );
            }
            let name = if count == 1 {
                "model.safetensors".into()
            } else {
                format!("model-{:05}-of-{count:05}.safetensors", number + 1)
            };
            Shard { name, header: encode_header(header), data }
        })
        .collect()
}

/// Length and JSON, padded with spaces so that the data begins at a multiple of 8.
fn encode_header(header: Map<String, Value>) -> Vec<u8> {
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json);
    out
}

/// `model.safetensors.index.json`.
pub(crate) fn index<F>(units: &[Unit<F>], shards: &[Shard], parameters: u64) -> Value {
    let places: BTreeMap<&str, &str> = units
        .iter()
        .flat_map(|unit| unit.tensors.iter().map(|tensor| (tensor.name.as_str(), shards[unit.shard].name.as_str())))
        .collect();
    let total: u64 = shards.iter().map(|shard| shard.data).sum();
    json!({"metadata": {"total_size": total, "total_parameters": parameters}, "weight_map": places})
}

/// `config.json` of the output, its keys sorted as mlx-lm sorts them.
fn config(
    source: &dyn Source,
    options: &Options,
    layout: &Layout,
    forms: &[Form],
    notes: &mut Vec<String>,
) -> Result<Value> {
    let Value::Object(mut config) = source.config().clone() else {
        return Err(CheckpointError::Json { path: source.config_file(), problem: "expected an object".into() });
    };
    for key in ["_name_or_path", "quantization", "quantization_config", "vision_config", "audio_config"] {
        config.remove(key);
    }
    notes.extend(layout.family.edit_config(&mut config));
    if let Some(dtype) = options.dtype.or(source.default_dtype()) {
        let name = match dtype {
            DType::Bf16 => "bfloat16",
            DType::F16 => "float16",
            _ => "float32",
        };
        let mut stated = state_dtype(&mut config, name);
        if let Some(Value::Object(text)) = config.get_mut("text_config") {
            stated |= state_dtype(text, name);
        }
        if !stated {
            config.insert("torch_dtype".into(), json!(name));
        }
    }
    state_tied(&mut config, layout);
    if let Some(bits) = options.bits {
        let modules = layout.tensors.iter().zip(forms).filter_map(|(mapped, form)| Some((module(mapped)?, *form)));
        let block = quantization(bits, options.group, modules);
        config.insert("quantization_config".into(), block.clone());
        config.insert("quantization".into(), block);
    }
    config.sort_keys();
    Ok(Value::Object(config))
}

/// The `quantization` block: what most modules have, and those that have something else.
pub(crate) fn quantization<'a>(bits: u8, group: u16, modules: impl Iterator<Item = (&'a str, Form)>) -> Value {
    let parameters = |bits: u8, group: u16| json!({"group_size": group, "bits": bits, "mode": "affine"});
    let mut block = parameters(bits, group);
    for (path, form) in modules {
        match form {
            Form::Affine { bits: own, group: other, .. } if (own, other) != (bits, group) => {
                block[path] = parameters(own, other);
            }
            Form::Float(_) => block[path] = json!(false),
            Form::Affine { .. } => {}
        }
    }
    block
}

/// Writes the type where there is one; false when there is none.
fn state_dtype(fields: &mut Map<String, Value>, name: &str) -> bool {
    let mut stated = false;
    for key in ["torch_dtype", "dtype"] {
        if let Some(value) = fields.get_mut(key) {
            (*value, stated) = (json!(name), true);
        }
    }
    stated
}

/// Readers have different defaults, so what the tensors tell is written out when the file leaves it open.
fn state_tied(config: &mut Map<String, Value>, layout: &Layout) {
    const KEY: &str = "tie_word_embeddings";
    let head = layout.tensors.iter().any(|mapped| mapped.name.ends_with("lm_head.weight"));
    let written = |fields: &Map<String, Value>| fields.get(KEY).is_some_and(Value::is_boolean);
    let top = config.get(KEY).cloned().filter(Value::is_boolean);
    match config.get_mut("text_config") {
        Some(Value::Object(text)) if !written(text) => {
            text.insert(KEY.into(), top.unwrap_or(json!(!head)));
        }
        Some(_) => {}
        None if top.is_none() => {
            config.insert(KEY.into(), json!(!head));
        }
        None => {}
    }
}

/// Where the output goes when nobody says: into the working directory, named after the source.
pub fn default_target(source: &Path, bits: Option<u8>) -> PathBuf {
    let resolved = source.canonicalize().unwrap_or_else(|_| source.into());
    let stem = if resolved.is_dir() { resolved.file_name() } else { resolved.file_stem() };
    let stem = stem.map_or("model".into(), |stem| stem.to_string_lossy().into_owned());
    PathBuf::from(match bits {
        Some(bits) => format!("{stem}-mlx-{bits}bit"),
        None => format!("{stem}-mlx"),
    })
}
