//! Conversion of a float checkpoint to MLX's layout, quantised or not.
//!
//! A [`Source`] (a directory of safetensors, a GGUF file) gives names, shapes and rows; a family's table says what each
//! tensor is called in MLX's layout; from both comes a plan of every byte to be written; rows are then streamed through it,
//! so that memory does not grow with the model. The output is complete or absent (see `target.rs`), and its bits do not
//! depend on the number of threads.
//!
//! ```no_run
//! # use mlxcel_checkpoint::convert::{Options, convert, open};
//! # fn run() -> Result<(), mlxcel_checkpoint::CheckpointError> {
//! let source = open("Qwen3-0.6B".as_ref())?;
//! let options = Options { bits: Some(4), ..Options::default() };
//! let summary = convert(&*source, "Qwen3-0.6B-4bit".as_ref(), &options, &mut |_| true)?;
//! println!("{:.2} bits per weight", summary.bits_per_weight());
//! # Ok(()) }
//! ```

use std::path::{Path, PathBuf};

use mlxcel_compute::format::DType;

use crate::error::{CheckpointError, Result};
use crate::quantization::{AFFINE_BITS, AFFINE_GROUPS};

mod gguf;
mod hf;
mod mixed;
pub(crate) mod names;
pub(crate) mod plan;
mod replace;
pub(crate) mod rows;
mod source;
pub(crate) mod target;
#[cfg(test)]
mod tests;
pub(crate) mod write;

pub use gguf::GgufSource;
pub use hf::HfSource;
pub use mixed::{Choice, Mixed, SENSITIVE};
pub use plan::default_target;
pub use source::{Companion, Content, Source, SourceTensor, Stored, open};
pub use target::abandon;

use plan::Plan;
use target::Staging;
use write::{Disk, Files, Report};

/// Largest weight file, that of mlx-lm: 5 GiB.
pub const SHARD_BYTES: u64 = 5 << 30;

/// What to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bits of a code; `None` = no quantisation.
    pub bits: Option<u8>,
    /// Values that share a scale and a bias.
    pub group: u16,
    /// Modules of another format; the last that matches decides.
    pub mixed: Vec<Mixed>,
    /// Type of all floats; `None` = that of the source.
    pub dtype: Option<DType>,
    /// Replace a checkpoint at the target.
    pub force: bool,
    /// Most bytes of tensors in a file; a larger tensor has one of its own.
    pub shard_bytes: u64,
    /// Threads that convert; the output does not depend on it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { bits: None, group: 64, mixed: Vec::new(), dtype: None, force: false, shard_bytes: SHARD_BYTES, threads }
    }
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Bytes of the source's tensors that were read.
    pub bytes: u64,
    /// Bytes that will be read.
    pub total_bytes: u64,
    /// Tensors written.
    pub tensors: usize,
    /// Tensors that will be written (codes, scales and biases count as one).
    pub total_tensors: usize,
    /// The tensor at work.
    pub tensor: &'a str,
    /// The directory in the making; [`abandon`] removes it.
    pub dir: &'a Path,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The directory.
    pub target: PathBuf,
    /// Weight files.
    pub files: usize,
    /// Values in all.
    pub parameters: u64,
    /// Bytes of the source's tensors that were read.
    pub read_bytes: u64,
    /// Bytes of the tensors written.
    pub written_bytes: u64,
    /// What was left out or done otherwise than a reader may expect.
    pub notes: Vec<String>,
}

impl Summary {
    /// Bits of tensors for each value.
    pub fn bits_per_weight(&self) -> f64 {
        self.written_bytes as f64 * 8.0 / self.parameters.max(1) as f64
    }
}

/// Converts a source into the directory `target`.
///
/// `progress` is called before each chunk of rows and once after the last; when it returns false, the conversion ends with
/// [`CheckpointError::Interrupted`]. After any error nothing is left of the output.
pub fn convert(
    source: &dyn Source,
    target: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>) -> bool,
) -> Result<Summary> {
    convert_to(source, target, options, &Disk, progress)
}

fn convert_to(
    source: &dyn Source,
    target: &Path,
    options: &Options,
    files: &dyn Files,
    progress: Report<'_>,
) -> Result<Summary> {
    check(source, options)?;
    let plan = Plan::new(source, options)?;
    let companions = plan.companions.iter().map(|companion| companion.name.clone()).collect();
    let staging = Staging::create(Some(source.path()), target, options.force, companions)?;
    write::write(source, &plan, &staging, files, options.threads.max(1), progress)?;
    let target = target.to_path_buf();
    staging.publish()?;
    Ok(Summary {
        target,
        files: plan.shards.len(),
        parameters: plan.parameters,
        read_bytes: plan.read,
        written_bytes: plan.tensor_bytes(),
        notes: plan.notes,
    })
}

fn check(source: &dyn Source, options: &Options) -> Result<()> {
    let error = |problem: String| Err(CheckpointError::Convert { path: source.path().into(), problem });
    if let Some(bits) = options.bits
        && !AFFINE_BITS.contains(&bits)
    {
        return error(format!("{bits} bits, expected 2, 3, 4, 5, 6 or 8"));
    }
    if !AFFINE_GROUPS.contains(&options.group) {
        return error(format!("group size {}, expected 32, 64 or 128", options.group));
    }
    if options.bits.is_none() && !options.mixed.is_empty() {
        return error("--mixed without --bits: give the width of the other modules".into());
    }
    match options.dtype {
        None | Some(DType::F32 | DType::Bf16 | DType::F16) => Ok(()),
        Some(other) => error(format!("dtype {other}, expected F32, BF16 or F16")),
    }
}
