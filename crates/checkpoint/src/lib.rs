//! Files on disk to named, typed, borrowed weights.
//!
//! A checkpoint is a directory: `config.json`, perhaps `generation_config.json`, and one or more safetensors files.
//! [`Checkpoint::open`] maps them and checks everything that can be checked without reading a page of weight data;
//! [`Gemma4Config`] gives the configuration types; [`Weights`] hands out matrices as
//! [`HostWeight`](mlxcel_compute::format::HostWeight)s that point into the mapping.
//!
//! ```no_run
//! # use mlxcel_checkpoint::{Checkpoint, Gemma4Config, Weights};
//! # fn load(dir: &std::path::Path) -> Result<(), mlxcel_checkpoint::CheckpointError> {
//! let checkpoint = Checkpoint::open(dir)?;
//! let config = Gemma4Config::from_checkpoint(&checkpoint)?;
//! let weights = Weights::detect(&checkpoint)?;
//! let embed = weights.linear("embed_tokens", config.text.vocab_size, config.text.hidden_size)?;
//! let layer = weights.sub("layers.0.");
//! let norm = layer.vector("input_layernorm.weight", config.text.hidden_size)?;
//! // … every other tensor …
//! weights.finish(|name| config.ignores(name))?;
//! # Ok(()) }
//! ```
//!
//! Whatever is wrong with a file is a [`CheckpointError`] that names the file, the tensor or field, what was expected
//! and what was found. The crate does no arithmetic beyond (de)quantising single rows.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod convert;

pub mod error;
mod fields;
pub mod gemma4;
pub mod generation;
pub mod gguf;
mod glob;
pub mod header;
#[cfg(feature = "hub")]
pub mod hub;
pub mod llama;
mod mmap;
pub mod quantization;
pub mod quantize;
pub mod qwen3_5;
pub mod safetensors;
pub mod store;
pub mod synth;
#[doc(hidden)]
pub mod testing;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use error::{CheckpointError, Result};
pub use gemma4::{Gemma4AssistantConfig, Gemma4Config, Gemma4Family, Gemma4TextConfig};
pub use generation::{GenerationDefaults, StopIds};
pub use gguf::{Gguf, GgufError};
pub use header::parse_header;
pub use llama::LlamaConfig;
pub use mlxcel_compute::dequant::{self, dequantize_element, dequantize_row};
pub use quantization::Quantization;
pub use qwen3_5::{Qwen3_5Config, Qwen3_5TextConfig};
pub use safetensors::{SafetensorsFile, Tensor};
pub use weights::{ConvLayout, Weights};
