//! A directory of safetensors as a source.
//!
//! The headers are checked through [`Checkpoint`]; rows are read from the files, not from a mapping, so that the memory a
//! conversion takes does not grow with the checkpoint and a file cut meanwhile is an error instead of a fault.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use mlxcel_compute::format::DType;
use serde_json::Value;

use super::source::{Companion, Content, Source, SourceTensor, Stored};
use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, Result};
use crate::header::StoredDType;

/// Largest companion file that is copied: the tokenizers of the largest vocabularies are half of it.
const MAX_COMPANION_BYTES: u64 = 64 << 20;

/// Companion files by ending; `config.json` and weight indices are written afresh.
const COMPANION_ENDINGS: [&str; 6] = ["json", "jsonl", "txt", "jinja", "model", "tiktoken"];

/// A checkpoint as transformers writes it, or a float one of MLX's layout.
pub struct HfSource {
    checkpoint: Checkpoint,
    tensors: Vec<SourceTensor>,
    /// Of each tensor: its file and where it begins there.
    places: Vec<(usize, u64)>,
    files: Vec<(PathBuf, Mutex<File>)>,
}

impl HfSource {
    /// Opens and checks a directory.
    pub fn open(dir: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(dir).map_err(|error| match error {
            CheckpointError::NoWeights { dir } => no_safetensors(dir),
            other => other,
        })?;
        refuse_quantised(&checkpoint)?;
        let (mut files, mut tensors, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for file in checkpoint.files() {
            let path = file.path().to_path_buf();
            for entry in file.entries() {
                let stored = match &entry.dtype {
                    StoredDType::Supported(dtype @ (DType::F32 | DType::Bf16 | DType::F16)) => Stored::Float(*dtype),
                    other => Stored::Other(other.name().into()),
                };
                // No tensor of a model is empty, and an empty one has a number of rows that nothing bounds.
                if entry.shape.contains(&0) {
                    return Err(CheckpointError::Convert {
                        path,
                        problem: format!("tensor {} has shape {:?}, expected sizes above 0", entry.name, entry.shape),
                    });
                }
                places.push((files.len(), entry.range.start as u64));
                tensors.push(SourceTensor {
                    name: entry.name.clone(),
                    shape: entry.shape.clone(),
                    stored,
                    bytes: entry.range.len() as u64,
                    file: path.clone(),
                });
            }
            let opened = File::open(&path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
            files.push((path, Mutex::new(opened)));
        }
        Ok(Self { checkpoint, tensors, places, files })
    }
}

impl Source for HfSource {
    fn path(&self) -> &Path {
        self.checkpoint.dir()
    }

    fn config_file(&self) -> PathBuf {
        self.checkpoint.config_file()
    }

    fn config(&self) -> &Value {
        self.checkpoint.config()
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let info = &self.tensors[tensor];
        let Stored::Float(dtype) = info.stored else { unreachable!("{} was refused before", info.name) };
        let (file, start) = self.places[tensor];
        let row = info.width() * dtype.size();
        let mut bytes = vec![0; rows.len() * row];
        let (path, file) = &self.files[file];
        {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(start + (rows.start * row) as u64))
                .and_then(|_| file.read_exact(&mut bytes))
                .map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
        }
        decode(dtype, &bytes, out);
        Ok(())
    }

    fn companions(&self) -> Result<(Vec<Companion>, Vec<String>)> {
        let dir = self.path();
        let io = |source| CheckpointError::Io { path: dir.into(), source };
        let (mut found, mut notes) = (Vec::new(), Vec::new());
        for item in std::fs::read_dir(dir).map_err(io)? {
            let path = item.map_err(io)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if !is_companion(name) {
                continue;
            }
            // Follows links: caches keep their files elsewhere.
            let metadata =
                std::fs::metadata(&path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
            if !metadata.is_file() {
                continue;
            }
            if metadata.len() > MAX_COMPANION_BYTES {
                notes.push(format!("{name} not copied: {} bytes, at most {MAX_COMPANION_BYTES}", metadata.len()));
                continue;
            }
            found.push(Companion { name: name.into(), content: Content::File(path.clone()) });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        notes.sort();
        Ok((found, notes))
    }
}

/// Little-endian floats as f32.
fn decode(dtype: DType, bytes: &[u8], out: &mut Vec<f32>) {
    match dtype {
        DType::F32 => out.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
        DType::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
        DType::F16 => out.extend(bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32())),
        other => unreachable!("{other} was refused before"),
    }
}

/// True for files that go along.
pub(super) fn is_companion(name: &str) -> bool {
    if name.starts_with('.') || name == "config.json" || name.ends_with(".index.json") {
        return false;
    }
    is_licence(name) || name.rsplit_once('.').is_some_and(|(_, ending)| COMPANION_ENDINGS.contains(&ending))
}

/// Licences oblige whoever passes the weights on.
pub(super) fn is_licence(name: &str) -> bool {
    ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY"].iter().any(|stem| name.starts_with(stem))
}

fn no_safetensors(dir: PathBuf) -> CheckpointError {
    let holds = |ending: &str| {
        let items = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        items.map(|item| item.path()).find(|path| path.extension().is_some_and(|found| found == ending))
    };
    if let Some(file) = holds("gguf") {
        let problem = format!("no *.safetensors file in this directory; for the GGUF file give {}", file.display());
        return CheckpointError::Convert { path: dir, problem };
    }
    if holds("bin").or_else(|| holds("pth")).is_some() {
        let problem = "only *.bin or *.pth weights in this directory; weights are read from safetensors: save the model \
                       with transformers first";
        return CheckpointError::Convert { path: dir, problem: problem.into() };
    }
    CheckpointError::NoWeights { dir }
}

/// Codes are no floats: converting them again would lose twice.
fn refuse_quantised(checkpoint: &Checkpoint) -> Result<()> {
    let error = |how: String| {
        let problem = format!("the source is already quantised ({how}); convert the original float checkpoint");
        Err(CheckpointError::Convert { path: checkpoint.dir().into(), problem })
    };
    if let Some(method) = checkpoint.quantization().foreign_method() {
        return error(format!("quant_method {method} in config.json"));
    }
    let names: HashMap<&str, &str> =
        checkpoint.names().filter_map(|name| Some((name, checkpoint.entry(name)?.dtype.name()))).collect();
    let coded = |name: &&str| {
        let Some(module) = name.strip_suffix(".scales") else { return false };
        names.get(format!("{module}.weight").as_str()) == Some(&"U32")
    };
    if let Some(scales) = checkpoint.names().find(coded) {
        return error(format!("MLX codes: tensor {scales}"));
    }
    // What foreign quantisers leave beside their codes; the types themselves are refused by name later.
    let narrow = |name: &&str| name.ends_with(".weight") && names[name].starts_with("F8_");
    if let Some(name) = checkpoint.names().find(narrow) {
        return error(format!("tensor {name} has dtype {}", names[name]));
    }
    Ok(())
}
