//! The model store: a directory of checkpoints, `STORE/OWNER/NAME/`, each as complete as on the day it was pulled.
//!
//! Nothing here talks to a network. A model appears under its name in one rename and leaves by one; what is not finished
//! lies in `STORE/.partial/`, where nothing looks for models:
//!
//! ```text
//! STORE/OWNER/NAME/                  a plain checkpoint directory and the manifest .mlxcel.json
//! STORE/.partial/OWNER--NAME--SHA/   a pull in progress: finished files, *.part, the manifest of what it will be
//! STORE/.partial/OWNER--NAME.lock    held while a process changes the model
//! STORE/.partial/.removed-*/         on its way out
//! STORE/.partial/.replaced-*/        moved aside while another takes its place, where directories cannot be exchanged
//! ```
//!
//! [`HubCache`] reads the Hugging Face cache, a second place where models may lie; it is never written.

mod cache;
mod date;
mod disk;
mod error;
mod install;
mod lock;
mod manifest;
mod name;
mod path;
mod remove;

use std::path::{Path, PathBuf};

pub use cache::{CachedModel, HubCache};
pub use date::{http_date, rfc3339};
pub use disk::free_space;
pub use error::StoreError;
pub use lock::Lock;
pub use manifest::{Digest, MANIFEST, Manifest, ManifestFile};
pub use name::{RepoId, is_commit, near};
pub use path::{MAX_PATH_BYTES, safe_path};

use crate::quantization::Quantization;

/// Directory of unfinished work inside the store; no owner can have a name that begins with a dot.
const PARTIAL: &str = ".partial";

/// Ending of a file that is still being written.
pub const PART: &str = ".part";

/// A model store on disk. The directory need not exist.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// A model in the store.
#[derive(Clone, Debug)]
pub struct StoredModel {
    /// `OWNER/NAME`, or `NAME` for a checkpoint that was copied into the store by hand.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// What was pulled; absent when the model was copied there or the manifest cannot be read.
    pub manifest: Option<Manifest>,
}

impl StoredModel {
    /// Files of the manifest that are absent or have another size now.
    pub fn damaged(&self) -> Vec<&str> {
        let files = self.manifest.iter().flat_map(|manifest| &manifest.files);
        files.filter(|file| !file.is_in(&self.dir)).map(|file| file.path.as_str()).collect()
    }
}

/// A pull that did not finish.
#[derive(Clone, Debug)]
pub struct PartialModel {
    /// `OWNER/NAME`.
    pub name: String,
    /// The commit it was pulling.
    pub commit: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes that are there.
    pub present: u64,
    /// Bytes of the whole, once the manifest was written.
    pub total: Option<u64>,
}

impl Store {
    /// A store at this directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a model lies when it is there.
    pub fn dir(&self, repo: &RepoId) -> PathBuf {
        self.root.join(repo.owner()).join(repo.name())
    }

    /// Where a pull of a commit works.
    pub fn partial_dir(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.partial_root().join(format!("{}--{}--{commit}", repo.owner(), repo.name()))
    }

    fn partial_root(&self) -> PathBuf {
        self.root.join(PARTIAL)
    }

    /// The model of that name, if it is there.
    pub fn get(&self, repo: &RepoId) -> Option<StoredModel> {
        let dir = self.dir(repo);
        is_model(&dir).then(|| stored(repo.to_string(), dir))
    }

    /// All models, sorted by name.
    ///
    /// # Errors
    /// A directory that cannot be read; a store that does not exist is empty.
    pub fn models(&self) -> Result<Vec<StoredModel>, StoreError> {
        let mut models = Vec::new();
        for (owner, dir) in directories(&self.root)? {
            // Copied in by hand, without an owner; a config.json that strayed there makes no model of an owner's directory.
            let inside = directories(&dir)?;
            if !inside.iter().any(|(_, dir)| is_model(dir)) && is_model(&dir) && has_weights(&dir) {
                models.push(stored(owner, dir));
                continue;
            }
            for (name, dir) in inside {
                if is_model(&dir) {
                    models.push(stored(format!("{owner}/{name}"), dir));
                }
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// The models a typed name can mean: the one of that whole name, else all with that last part.
    ///
    /// # Errors
    /// As [`models`](Self::models).
    pub fn find(&self, asked: &str) -> Result<Vec<StoredModel>, StoreError> {
        let mut models = self.models()?;
        if models.iter().any(|model| model.name == asked) {
            models.retain(|model| model.name == asked);
        } else {
            models.retain(|model| model.name.rsplit_once('/').is_some_and(|(_, name)| name == asked));
        }
        Ok(models)
    }

    /// All unfinished pulls, sorted by name.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn partials(&self) -> Result<Vec<PartialModel>, StoreError> {
        let mut partials = Vec::new();
        for (name, dir) in directories(&self.partial_root())? {
            let Some((rest, commit)) = name.rsplit_once("--") else { continue };
            let Some((owner, model)) = rest.split_once("--") else { continue };
            if !is_commit(commit) {
                continue;
            }
            let total = Manifest::read(&dir).ok().flatten().map(|manifest| manifest.bytes());
            partials.push(PartialModel {
                name: format!("{owner}/{model}"),
                commit: commit.into(),
                present: disk::bytes_in(&dir),
                total,
                dir,
            });
        }
        partials.sort_by(|a, b| (&a.name, &a.commit).cmp(&(&b.name, &b.commit)));
        Ok(partials)
    }

    /// Takes the right to change a model; no other process has it meanwhile. Where one died while it replaced the model, the
    /// old one is put back.
    ///
    /// # Errors
    /// Another process has it, or the store cannot be written.
    pub fn lock(&self, name: &str) -> Result<Lock, StoreError> {
        let dir = self.partial_root();
        std::fs::create_dir_all(&dir).map_err(|source| StoreError::io(&dir, source))?;
        let dashed = name.replace('/', "--");
        let lock = Lock::take(dir.join(format!("{dashed}.lock")), name)?;
        self.settle(&dashed)?;
        Ok(lock)
    }
}

/// True for a directory that a model can lie in: pulled, or a checkpoint.
fn is_model(dir: &Path) -> bool {
    dir.join(MANIFEST).is_file() || dir.join("config.json").is_file()
}

/// True when weights lie directly in the directory.
fn has_weights(dir: &Path) -> bool {
    let weights = |path: PathBuf| path.extension().is_some_and(|ending| ending == "safetensors" || ending == "gguf");
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| weights(entry.path())))
}

fn stored(name: String, dir: PathBuf) -> StoredModel {
    StoredModel { name, bytes: disk::bytes_in(&dir), manifest: Manifest::read(&dir).ok().flatten(), dir }
}

/// Subdirectories with names, without hidden ones; links to directories count. None when the directory does not exist.
fn directories(dir: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|source| StoreError::io(dir, source))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| StoreError::io(dir, source))?;
        if let Some(name) = entry.file_name().to_str()
            && !name.starts_with('.')
            && entry.path().is_dir()
        {
            found.push((name.to_string(), entry.path()));
        }
    }
    Ok(found)
}

/// How the weights of a checkpoint directory are stored, by its config.json: `affine 4-bit group 64`, or the element type of
/// weights that are not quantised. `None` when it does not say.
pub fn quantization_label(dir: &Path) -> Option<String> {
    let file = dir.join("config.json");
    let config: serde_json::Value =
        serde_json::from_slice(&disk::read_capped(&file, manifest::MAX_BYTES).ok()?).ok()?;
    if let Some(format) = Quantization::from_config(&file, &config).ok()?.default_format() {
        return Some(format.to_string());
    }
    if let Some(method) = config.pointer("/quantization_config/quant_method").and_then(|method| method.as_str()) {
        return Some(printable(method));
    }
    let keys = ["/dtype", "/torch_dtype", "/text_config/dtype", "/text_config/torch_dtype"];
    keys.iter().find_map(|key| config.pointer(key)?.as_str()).map(printable)
}

/// Text from a file or a server, fit for a terminal: no control characters, and not long.
pub fn printable(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    clean.trim().to_string()
}

#[cfg(test)]
mod tests;
