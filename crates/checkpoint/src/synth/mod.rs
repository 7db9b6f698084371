//! Random-weight checkpoints of the shape of published models, for measuring speed where the real weights cannot be had.
//!
//! Every tensor has the name, type and shape that MLX's layout gives it, so that loading, memory traffic and kernels are those of
//! the real model; what it says is noise. A drafter of the right shape comes beside it. Weights come from a counter: the same
//! arguments make the same bytes, on any number of threads, and no more than a few rows are ever held.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::convert::plan::{self, Form, Plan, Unit, module_of};
use crate::convert::rows::spread;
use crate::convert::target::Staging;
use crate::convert::write::{Disk, Rows, write_rows};
use crate::convert::{Companion, Content, Progress, SHARD_BYTES};
use crate::error::{CheckpointError, Result};
use crate::quantization::{AFFINE_BITS, AFFINE_GROUPS};
use crate::store::free_space;

mod config;
mod fill;
mod shape;
mod tensors;
#[cfg(test)]
mod tests;

pub use shape::{Assistant, Experts, Family, Gemma4, Qwen3_5, Shape};

use config::Ids;
use fill::Fill;
use tensors::{Filled, Storage};

/// Values made at a time: 8 MiB of 4-bit codes, 64 MiB of bf16.
const CHUNK_VALUES: usize = 16 << 20;

/// Files that come from the tokenizer's checkpoint.
const COMPANIONS: [&str; 4] =
    ["chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// What to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bits of a code.
    pub bits: u8,
    /// Values that share a scale and a bias.
    pub group: u16,
    /// Layers of the model, if not all: at least 1.
    pub layers: Option<usize>,
    /// Replace checkpoints at the targets.
    pub force: bool,
    /// Most bytes of tensors in a file.
    pub shard_bytes: u64,
    /// Threads that make weights; the bytes do not depend on it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { bits: 4, group: 64, layers: None, force: false, shard_bytes: SHARD_BYTES, threads }
    }
}

/// A directory that was made.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Its path.
    pub path: PathBuf,
    /// Weight files.
    pub files: usize,
    /// Values in all.
    pub parameters: u64,
    /// Bytes of the tensors.
    pub bytes: u64,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The model.
    pub model: Directory,
    /// Its drafter.
    pub drafter: Option<Directory>,
    /// Layers of the model, and of its shape.
    pub layers: (usize, usize),
    /// What is otherwise than a reader may expect.
    pub notes: Vec<String>,
}

/// Where the drafter of a model goes: beside it, under a name by which it is found.
pub fn drafter_path(shape: &Shape, target: &Path) -> Option<PathBuf> {
    let mut name = target.file_name()?.to_owned();
    name.push(shape.drafter_suffix()?);
    Some(target.with_file_name(name))
}

/// Writes a checkpoint of a shape into the directory `target`, and its drafter's beside it. `tokenizer` is a checkpoint whose
/// tokenizer, chat template and defaults of generation go along.
///
/// `progress` is called before each chunk and once after the last of each directory; when it returns false, all ends with
/// [`CheckpointError::Interrupted`]. After any error neither directory is there.
///
/// # Errors
/// Options out of range; a target that exists, or is no directory to replace; too little space, with the bytes needed and free.
pub fn synth(
    shape: &Shape,
    tokenizer: &Path,
    target: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>) -> bool,
) -> Result<Made> {
    let plans = Plans::new(shape, tokenizer, target, options)?;
    let needed = plans.all().map(|(_, plan)| plan.total_bytes()).sum();
    let available = free_space(target);
    if available.is_some_and(|available| available < needed) {
        return Err(CheckpointError::NoSpace { path: target.into(), needed, available });
    }
    let total_bytes = plans.all().map(|(_, plan)| plan.read).sum();
    let total_tensors = plans.all().map(|(_, plan)| plan.units.len()).sum();
    let (mut bytes, mut tensors) = (0, 0);
    let staging = |(path, plan): &(PathBuf, Plan<Fill>)| {
        let companions = plan.companions.iter().map(|companion| companion.name.clone()).collect();
        Staging::create(None, path, options.force, companions)
    };
    // Both targets are looked at before anything is made.
    let ready = plans.all().map(staging).collect::<Result<Vec<_>>>()?;
    for ((path, plan), staging) in plans.all().zip(&ready) {
        let source = Rows {
            doing: format!("making {}", path.display()),
            chunk: CHUNK_VALUES,
            make: &|unit: &Unit<Fill>, rows| {
                let key = fill::key(&unit.tensors[0].name);
                let make = |rows| Ok(fill::encode(&unit.fill, key, unit.width, rows));
                spread(unit.width, rows, options.threads.max(1), &make)
            },
        };
        write_rows(plan, &source, staging, &Disk, &mut |own| {
            progress(Progress {
                bytes: bytes + own.bytes,
                total_bytes,
                tensors: tensors + own.tensors,
                total_tensors,
                ..own
            })
        })?;
        bytes += plan.read;
        tensors += plan.units.len();
    }
    // The drafter first: without its model it does no harm.
    ready.into_iter().try_for_each(Staging::publish)?;
    let directory = |(path, plan): &(PathBuf, Plan<Fill>)| Directory {
        path: path.clone(),
        files: plan.shards.len(),
        parameters: plan.parameters,
        bytes: plan.tensor_bytes(),
    };
    Ok(Made {
        model: directory(&plans.model),
        drafter: plans.drafter.as_ref().map(directory),
        layers: (plans.layers, shape.layers),
        notes: plans.all().flat_map(|(_, plan)| plan.notes.clone()).collect(),
    })
}

/// Everything that will be written.
struct Plans {
    drafter: Option<(PathBuf, Plan<Fill>)>,
    model: (PathBuf, Plan<Fill>),
    layers: usize,
}

impl Plans {
    fn new(shape: &Shape, tokenizer: &Path, target: &Path, options: &Options) -> Result<Self> {
        let error = |problem: String| CheckpointError::Convert { path: target.into(), problem };
        if !AFFINE_BITS.contains(&options.bits) {
            return Err(error(format!("{} bits, expected 2, 3, 4, 5, 6 or 8", options.bits)));
        }
        if !AFFINE_GROUPS.contains(&options.group) {
            return Err(error(format!("group size {}, expected 32, 64 or 128", options.group)));
        }
        if target.file_name().is_none() {
            return Err(error("expected the path of a directory to make".into()));
        }
        let layers = options.layers.unwrap_or(shape.layers);
        if !(1..=shape.layers).contains(&layers) {
            let problem = format!("--layers {layers}: 1 to {} expected, the layers of {}", shape.layers, shape.name);
            return Err(error(problem));
        }
        let file = tokenizer.join("config.json");
        let json = |problem: String| CheckpointError::Json { path: file.clone(), problem };
        let bytes = std::fs::read(&file).map_err(|source| CheckpointError::Io { path: file.clone(), source })?;
        let own: Value = serde_json::from_slice(&bytes).map_err(|e| json(e.to_string()))?;
        let ids = Ids::read(&own).ok_or_else(|| json("vocab_size: a number expected, found none".into()))?;
        if ids.assigned > shape.vocab {
            let problem =
                format!("vocab_size is {}: at most {} expected for {}", ids.assigned, shape.vocab, shape.name);
            return Err(json(problem));
        }
        let companion = |name: &str| {
            let path = tokenizer.join(name);
            path.is_file().then(|| Companion { name: name.into(), content: Content::File(path) })
        };
        let storage = Storage { bits: options.bits, group: options.group, assigned: ids.assigned };
        let config = config::model(shape, layers, &ids);
        let mut drafter = None;
        if let (Some(path), Some(own)) = (drafter_path(shape, target), config::drafter(shape, layers, &ids)) {
            let tensors = tensors::drafter(shape, layers, &config, storage)?;
            drafter = Some((path, plan(own, tensors, options, Vec::new())));
        }
        let companions = COMPANIONS.into_iter().filter_map(companion).collect();
        let tensors = tensors::model(shape, &config, storage)?;
        Ok(Self { drafter, model: (target.into(), plan(config, tensors, options, companions)), layers })
    }

    /// In the order in which they are written.
    fn all(&self) -> impl Iterator<Item = &(PathBuf, Plan<Fill>)> {
        self.drafter.iter().chain([&self.model])
    }
}

fn plan(mut config: Value, tensors: Vec<Filled>, options: &Options, companions: Vec<Companion>) -> Plan<Fill> {
    let modules = tensors.iter().filter_map(|tensor| Some((module_of(&tensor.name, &tensor.shape)?, tensor.form())));
    let modules: Vec<_> = modules.collect();
    let plain: Vec<_> =
        modules.iter().filter(|(_, form)| matches!(form, Form::Float(_))).map(|(path, _)| *path).collect();
    let notes = plain.first().map(|first| {
        let more = if plain.len() > 1 { format!(" and {} more", plain.len() - 1) } else { String::new() };
        format!("{first}{more} not quantised: not divisible by the group size {}", options.group)
    });
    let block = plan::quantization(options.bits, options.group, modules.into_iter());
    config["quantization_config"] = block.clone();
    config["quantization"] = block;
    let mut units: Vec<Unit<Fill>> = tensors.into_iter().map(unit).collect();
    let shards = plan::shards(&mut units, options.shard_bytes);
    let parameters = units.iter().map(|unit| unit.rows as u64 * unit.width as u64).sum();
    let index = plan::index(&units, &shards, parameters);
    let read = shards.iter().map(|shard| shard.data).sum();
    config.sort_all_objects();
    Plan { units, shards, config, index, companions, notes: notes.into_iter().collect(), read, parameters }
}

fn unit(tensor: Filled) -> Unit<Fill> {
    let (width, leading) = tensor.shape.split_last().map_or((1, &[][..]), |(width, leading)| (*width, leading));
    let rows = leading.iter().product();
    let tensors = plan::written(&tensor.name, &tensor.shape, (rows, width), tensor.form());
    Unit { fill: tensor.fill, width, rows, tensors, shard: 0 }
}
