//! A checkpoint directory: its JSON files and all its tensors by name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::error::{CheckpointError, Result};
use crate::header::Entry;
use crate::quantization::Quantization;
use crate::safetensors::{SafetensorsFile, Tensor};

/// Name of the shard index.
pub const INDEX: &str = "model.safetensors.index.json";

/// Largest JSON file read: the index of the largest public model is a twentieth of it.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// An opened checkpoint. Weights stay in their mapped files until somebody reads them.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Value,
    generation_config: Option<Value>,
    quantization: Quantization,
    files: Vec<SafetensorsFile>,
    tensors: BTreeMap<String, Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    entry: usize,
}

impl Checkpoint {
    /// Opens a directory: reads the JSON files, maps every weight file and checks that the set is complete.
    pub fn open(dir: &Path) -> Result<Self> {
        match std::fs::metadata(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::NotFound { path: dir.into() });
            }
            Err(source) => return Err(CheckpointError::Io { path: dir.into(), source }),
            Ok(metadata) if !metadata.is_dir() => return Err(CheckpointError::NotADirectory { path: dir.into() }),
            Ok(_) => {}
        }
        let config_file = dir.join("config.json");
        let config = read_json(&config_file)?
            .ok_or_else(|| CheckpointError::MissingFile { dir: dir.into(), file: "config.json" })?;
        if !config.is_object() {
            return Err(CheckpointError::Json { path: config_file, problem: "expected an object".into() });
        }
        let quantization = Quantization::from_config(&config_file, &config)?;
        let generation_config = read_json(&dir.join("generation_config.json"))?;

        let index_file = dir.join(INDEX);
        let index = read_json(&index_file)?.map(|value| read_index(&index_file, &value)).transpose()?;
        let shards = match &index {
            Some(index) => indexed_shards(dir, index)?,
            None => found_shards(dir)?,
        };
        let mut files = Vec::with_capacity(shards.len());
        let mut tensors = BTreeMap::<String, Place>::new();
        for shard in &shards {
            let opened = SafetensorsFile::open(&dir.join(shard))?;
            for (entry, item) in opened.entries().iter().enumerate() {
                let place = Place { file: files.len(), entry };
                if let Some(first) = tensors.insert(item.name.clone(), place) {
                    let first: &SafetensorsFile = &files[first.file];
                    return Err(CheckpointError::DuplicateTensor {
                        tensor: item.name.clone(),
                        first: first.path().into(),
                        second: opened.path().into(),
                    });
                }
            }
            files.push(opened);
        }
        if let Some((tensor, shard)) = index.iter().flatten().find(|(tensor, _)| !tensors.contains_key(*tensor)) {
            return Err(CheckpointError::IndexedTensorMissing {
                index: index_file,
                tensor: tensor.clone(),
                shard: shard.clone(),
            });
        }
        Ok(Self { dir: dir.into(), config, generation_config, quantization, files, tensors })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `config.json`, an object.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Path of `config.json`, for messages.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    /// `generation_config.json`, when there is one.
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// The quantisation block of `config.json`.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// True when a tensor of that name exists, whatever its element type.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Header entry of a tensor: shape, stored type and size without touching its data.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        let place = self.tensors.get(name)?;
        Some(&self.files[place.file].entries()[place.entry])
    }

    /// A tensor by name.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        let place = self.tensors.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            dir: self.dir.clone(),
            tensor: name.into(),
            note: String::new(),
        })?;
        self.files[place.file].tensor(place.entry)
    }

    /// The mapped files.
    pub fn files(&self) -> &[SafetensorsFile] {
        &self.files
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().flat_map(SafetensorsFile::entries).map(|entry| entry.range.len() as u64).sum()
    }
}

/// Reads a JSON file; `None` when it does not exist.
fn read_json(path: &Path) -> Result<Option<Value>> {
    use std::io::Read;
    let io = |source| CheckpointError::Io { path: path.into(), source };
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?,
    };
    // Read through a limit and not after asking for the length: pipes and devices have none.
    let mut bytes = Vec::new();
    file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    let json = |problem| CheckpointError::Json { path: path.into(), problem };
    if bytes.len() as u64 > MAX_JSON_BYTES {
        return Err(json(format!("larger than {MAX_JSON_BYTES} bytes, the most a JSON file of a checkpoint may have")));
    }
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(_) if bytes.is_empty() => Err(json("empty file, expected JSON; download again".into())),
        Err(error) => Err(json(format!("invalid JSON: {error}"))),
    }
}

/// Tensor name to shard, checked to stay inside the directory.
fn read_index(path: &Path, value: &Value) -> Result<BTreeMap<String, String>> {
    let field = |field: String, expected: &str, found: &Value| CheckpointError::Field {
        file: path.into(),
        field,
        expected: expected.into(),
        found: crate::fields::short(found),
    };
    let map = value.get("weight_map").unwrap_or(&Value::Null);
    let map = map.as_object().ok_or_else(|| field("weight_map".into(), "an object of tensor names", map))?;
    let mut index = BTreeMap::new();
    for (tensor, shard) in map {
        let name = shard.as_str().ok_or_else(|| field(format!("weight_map.{tensor}"), "a file name", shard))?;
        // Lexical on purpose: caches link shards to blobs elsewhere, and following such links is fine.
        let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || name.contains('\\') || !inside {
            return Err(CheckpointError::ShardEscapes { index: path.into(), shard: name.into() });
        }
        index.insert(tensor.clone(), name.to_string());
    }
    if index.is_empty() {
        return Err(field("weight_map".into(), "at least one tensor", value.get("weight_map").unwrap_or(&Value::Null)));
    }
    Ok(index)
}

/// The shards an index names, all of which must exist.
fn indexed_shards(dir: &Path, index: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let shards: BTreeSet<&String> = index.values().collect();
    let missing: Vec<String> = shards.iter().filter(|shard| !dir.join(shard).exists()).map(|s| s.to_string()).collect();
    if missing.is_empty() {
        return Ok(shards.into_iter().cloned().collect());
    }
    let present: Vec<String> = list_safetensors(dir)?.into_iter().filter(|name| !shards.contains(name)).collect();
    if present.is_empty() {
        return Err(CheckpointError::MissingShards { dir: dir.into(), named_by: INDEX.into(), missing });
    }
    Err(CheckpointError::StaleIndex { dir: dir.into(), missing, present })
}

/// The weight files of a directory without an index: `model*.safetensors` when there are any (what converters write;
/// other files may be adapters or test vectors), else every `*.safetensors`.
fn found_shards(dir: &Path) -> Result<Vec<String>> {
    let all = list_safetensors(dir)?;
    let model: Vec<String> = all.iter().filter(|name| name.starts_with("model")).cloned().collect();
    let shards = if model.is_empty() { all } else { model };
    if shards.is_empty() {
        return Err(CheckpointError::NoWeights { dir: dir.into() });
    }
    // A numbered set tells its own size, so a lost shard is found without an index.
    let mut missing = BTreeSet::new();
    let sets: BTreeSet<_> = shards.iter().filter_map(|name| numbered(name)).collect();
    for (stem, width, total) in sets {
        for number in 1..=total {
            let name = format!("{stem}-{number:0width$}-of-{total:0width$}.safetensors");
            if !shards.contains(&name) {
                missing.insert(name);
            }
        }
    }
    if missing.is_empty() {
        return Ok(shards);
    }
    let missing = missing.into_iter().collect();
    let named_by = "the numbering of the files present".into();
    Err(CheckpointError::MissingShards { dir: dir.into(), named_by, missing })
}

/// Splits `stem-00001-of-00003.safetensors` into stem, digits and total.
fn numbered(name: &str) -> Option<(&str, usize, usize)> {
    let name = name.strip_suffix(".safetensors")?;
    let (rest, total) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(number) || !digits(total) || number.len() != total.len() {
        return None;
    }
    Some((stem, total.len(), total.parse().ok()?))
}

fn list_safetensors(dir: &Path) -> Result<Vec<String>> {
    let io = |source| CheckpointError::Io { path: dir.into(), source };
    let mut names = Vec::new();
    for item in std::fs::read_dir(dir).map_err(io)? {
        let name = item.map_err(io)?.file_name();
        // Hidden files are left-overs of copying tools, and names that are not UTF-8 no converter writes.
        if let Some(name) = name.to_str()
            && name.ends_with(".safetensors")
            && !name.starts_with('.')
        {
            names.push(name.to_string());
        }
    }
    names.sort();
    Ok(names)
}
