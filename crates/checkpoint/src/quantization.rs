//! The `quantization` block of `config.json`, and the storage format of each module.
//!
//! A module is quantised iff `<path>.scales` exists. The block says how; the shapes say it too, and both must agree:
//! a block edited or copied from another conversion would otherwise decode to noise.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mlxcel_compute::format::{DType, QuantFormat};
use serde_json::Value;

use crate::error::{CheckpointError, Result};
use crate::fields::Fields;
use crate::safetensors::Tensor;

/// Code widths of the affine mode that can be read.
pub const AFFINE_BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];

/// Group sizes of the affine mode that can be read.
pub const AFFINE_GROUPS: [u16; 3] = [32, 64, 128];

/// What the block says of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// Stored in this format.
    Format(QuantFormat),
    /// Explicitly not quantised (`false`).
    Plain,
}

/// The parsed block; the empty one says nothing about any module.
#[derive(Clone, Debug, Default)]
pub struct Quantization {
    file: PathBuf,
    default: Option<QuantFormat>,
    /// Per-module entries by the path as written.
    exact: HashMap<String, Declared>,
    /// The same by the path without its leading wrapper names.
    stripped: HashMap<String, Declared>,
    ignored: Option<String>,
}

impl Quantization {
    /// Reads `quantization`, else `quantization_config` when it has MLX's form.
    pub fn from_config(file: &Path, config: &Value) -> Result<Self> {
        let root = Fields::root(file, config)?;
        let mut parsed = Self { file: file.into(), ..Self::default() };
        let block = match root.object("quantization")? {
            Some(block) => block,
            None => match root.object("quantization_config")? {
                Some(block) if block.is_written("bits") && block.is_written("group_size") => block,
                Some(block) => {
                    let method = block.raw("quant_method").map_or("none".into(), crate::fields::short);
                    parsed.ignored = Some(method);
                    return Ok(parsed);
                }
                None => return Ok(parsed),
            },
        };
        // Parameters at the top are the default; a block may also have only per-module entries.
        if ["group_size", "bits", "mode"].iter().any(|key| block.raw(key).is_some()) {
            parsed.default = Some(read_format(&block)?);
        }
        for (key, value) in block.entries() {
            let declared = match value {
                Value::Object(_) => match block.object(key)? {
                    Some(entry) => Declared::Format(read_format(&entry)?),
                    None => continue,
                },
                Value::Bool(false) => Declared::Plain,
                // `true` means the default, as no entry does; scalars are the default's own or a foreign note.
                _ => continue,
            };
            let stripped = strip(key);
            if let Some(other) = parsed.stripped.insert(stripped.into(), declared)
                && other != declared
            {
                return Err(block.error(key, format!("the parameters that another spelling of {stripped} has")));
            }
            parsed.exact.insert(key.clone(), declared);
        }
        Ok(parsed)
    }

    /// The `quant_method` of a foreign `quantization_config` that was not read.
    pub fn foreign_method(&self) -> Option<&str> {
        self.ignored.as_deref()
    }

    /// The default of modules without an entry.
    pub fn default_format(&self) -> Option<QuantFormat> {
        self.default
    }

    /// What the block says of a module, whichever of the wrapper names (`language_model.`, `model.`) either side has.
    pub fn declared(&self, module: &str) -> Option<Declared> {
        let entry = self.exact.get(module).or_else(|| self.stripped.get(strip(module))).copied();
        entry.or(self.default.map(Declared::Format))
    }

    /// Format of a module that has scales, checked against its shapes. `inputs` is the width by the configuration.
    pub fn resolve(&self, module: &str, weight: &Tensor, scales: &Tensor, inputs: usize) -> Result<QuantFormat> {
        weight.expect_dtype(&[DType::U32])?;
        let found = infer(weight, scales, inputs);
        let shapes = || {
            let (bits, group) = stored(weight, scales, inputs);
            format!(
                "found weight {:?}, scales {:?} of {} for {inputs} inputs ({bits} bits, group {group})",
                weight.shape, scales.shape, scales.dtype
            )
        };
        let error = |problem| CheckpointError::Quantization {
            file: weight.file.to_path_buf(),
            tensor: format!("tensor {module}.weight"),
            problem,
        };
        match self.declared(module) {
            None => found.ok_or_else(|| error(format!("unsupported quantisation: {}; {SUPPORTED}", shapes()))),
            Some(Declared::Format(declared)) if found == Some(declared) => Ok(declared),
            Some(Declared::Format(declared)) => {
                let outputs = &weight.shape[..weight.shape.len().saturating_sub(1)];
                let columns = |columns: Option<usize>| {
                    let columns = columns.map_or("?".into(), |columns| columns.to_string());
                    let dims = outputs.iter().map(usize::to_string).chain([columns]).collect::<Vec<_>>();
                    format!("[{}]", dims.join(", "))
                };
                let words = inputs.checked_mul(declared.bits()).map(|bits| bits / 32);
                Err(error(format!(
                    "{} says {declared}: expected weight {}, scales {}; {}",
                    self.file.display(),
                    columns(words),
                    columns(Some(inputs / declared.group())),
                    shapes()
                )))
            }
            Some(Declared::Plain) => {
                Err(error(format!("{} says not quantised, yet there are scales: {}", self.file.display(), shapes())))
            }
        }
    }
}

const SUPPORTED: &str =
    "expected affine with 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128, or mxfp4, mxfp8, nvfp4 with U8 scales";

/// A module path without its leading wrapper names.
fn strip(mut path: &str) -> &str {
    while let Some(rest) = path.strip_prefix("language_model.").or_else(|| path.strip_prefix("model.")) {
        path = rest;
    }
    path
}

/// Bits and group that the shapes tell, when they divide.
fn widths(weight: &Tensor, scales: &Tensor, inputs: usize) -> (Option<usize>, Option<usize>) {
    let exact = |a: Option<usize>, b: usize| a.filter(|a| b > 0 && a % b == 0).map(|a| a / b);
    let words = weight.shape.last().copied().unwrap_or(0);
    let bits = exact(words.checked_mul(32), inputs);
    let group = exact(Some(inputs), scales.shape.last().copied().unwrap_or(0));
    (bits, group)
}

fn stored(weight: &Tensor, scales: &Tensor, inputs: usize) -> (String, String) {
    let text = |width: Option<usize>| width.map_or("no whole number of".into(), |width| width.to_string());
    let (bits, group) = widths(weight, scales, inputs);
    (text(bits), text(group))
}

/// The format that the shapes and the type of the scales tell.
fn infer(weight: &Tensor, scales: &Tensor, inputs: usize) -> Option<QuantFormat> {
    let (bits, group) = widths(weight, scales, inputs);
    let (bits, group) = (bits?, group?);
    match scales.dtype {
        DType::U8 => match (bits, group) {
            (4, 16) => Some(QuantFormat::Nvfp4),
            (4, 32) => Some(QuantFormat::Mxfp4),
            (8, 32) => Some(QuantFormat::Mxfp8),
            _ => None,
        },
        DType::F32 | DType::Bf16 | DType::F16 => affine(bits as u64, group as u64),
        _ => None,
    }
}

fn affine(bits: u64, group: u64) -> Option<QuantFormat> {
    let bits = AFFINE_BITS.into_iter().find(|known| u64::from(*known) == bits)?;
    let group = AFFINE_GROUPS.into_iter().find(|known| u64::from(*known) == group)?;
    Some(QuantFormat::Affine { bits, group })
}

/// The parameters in an object: the block itself or an entry of it.
fn read_format(fields: &Fields<'_>) -> Result<QuantFormat> {
    let mode = fields.text("mode")?.unwrap_or("affine");
    let fixed = match mode {
        "affine" => None,
        "mxfp4" => Some(QuantFormat::Mxfp4),
        "mxfp8" => Some(QuantFormat::Mxfp8),
        "nvfp4" => Some(QuantFormat::Nvfp4),
        _ => return Err(fields.error("mode", "affine, mxfp4, mxfp8 or nvfp4")),
    };
    // What a converter leaves out has the mode's own default.
    let bits = fields.count("bits")?.unwrap_or(fixed.map_or(4, |format| format.bits() as u64));
    let group = fields.count("group_size")?.unwrap_or(fixed.map_or(64, |format| format.group() as u64));
    if let Some(format) = fixed {
        if bits != format.bits() as u64 {
            return Err(fields.error("bits", format!("{} (mode {mode})", format.bits())));
        }
        if group != format.group() as u64 {
            return Err(fields.error("group_size", format!("{} (mode {mode})", format.group())));
        }
        return Ok(format);
    }
    if !AFFINE_BITS.iter().any(|known| u64::from(*known) == bits) {
        return Err(fields.error("bits", "2, 3, 4, 5, 6 or 8"));
    }
    affine(bits, group).ok_or_else(|| fields.error("group_size", "32, 64 or 128"))
}
