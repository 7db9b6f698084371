//! The Hugging Face cache, read as a source of models and never written.
//!
//! ```text
//! CACHE/models--OWNER--NAME/refs/main              a commit
//! CACHE/models--OWNER--NAME/snapshots/COMMIT/…     links into ../../blobs
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{RepoId, StoreError, directories, disk, is_commit, safe_path};
use crate::checkpoint::INDEX;

/// Largest index or reference that is read.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// A Hugging Face cache. The directory need not exist.
#[derive(Clone, Debug)]
pub struct HubCache {
    root: PathBuf,
}

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// `OWNER/NAME`.
    pub name: String,
    /// The commit.
    pub commit: String,
    /// The snapshot.
    pub dir: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// When the snapshot was made.
    pub made: Option<std::time::SystemTime>,
    /// What the snapshot lacks; nothing when it can be used.
    pub missing: Vec<String>,
}

impl HubCache {
    /// A cache at this directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The snapshot of a model's main branch, complete or not, or the only one there is.
    pub fn get(&self, repo: &RepoId) -> Option<CachedModel> {
        let dir = self.root.join(format!("models--{}", repo.dashed()));
        let main = disk::read_capped(&dir.join("refs/main"), 1024).ok();
        let main = main.and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| text.trim().to_string());
        let snapshots = dir.join("snapshots");
        let commit = match main.filter(|commit| is_commit(commit)) {
            Some(commit) => commit,
            None => match &directories(&snapshots).ok()?[..] {
                [(only, _)] if is_commit(only) => only.clone(),
                _ => return None,
            },
        };
        let dir = snapshots.join(&commit);
        if !dir.is_dir() {
            return None;
        }
        let made = std::fs::metadata(&dir).and_then(|data| data.modified()).ok();
        Some(CachedModel {
            name: repo.to_string(),
            commit,
            bytes: disk::bytes_in(&dir),
            missing: missing(&dir),
            made,
            dir,
        })
    }

    /// All models with a checkpoint, sorted by name; other repositories are passed over.
    ///
    /// # Errors
    /// A directory that cannot be read; a cache that does not exist is empty.
    pub fn models(&self) -> Result<Vec<CachedModel>, StoreError> {
        let names = directories(&self.root)?.into_iter().filter_map(|(name, _)| {
            let (owner, name) = name.strip_prefix("models--")?.split_once("--")?;
            format!("{owner}/{name}").parse::<RepoId>().ok()
        });
        let mut models: Vec<_> = names.filter_map(|repo| self.get(&repo)).collect();
        models.retain(|model| model.dir.join("config.json").is_file());
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }
}

/// What a directory lacks of a checkpoint: config.json and all files its index names, or some weights. Links to nothing, which
/// an interrupted download leaves, count as absent.
fn missing(dir: &Path) -> Vec<String> {
    let mut missing = BTreeSet::new();
    let mut need = |name: &str| {
        if !dir.join(name).is_file() {
            missing.insert(name.to_string());
        }
    };
    need("config.json");
    let index = dir.join(INDEX);
    if index.symlink_metadata().is_ok() {
        let parsed = disk::read_capped(&index, MAX_JSON_BYTES).ok().and_then(|b| serde_json::from_slice(&b).ok());
        match parsed.as_ref().and_then(|value: &Value| value.get("weight_map")?.as_object()) {
            // Names that leave the directory are the loader's to refuse.
            Some(map) => {
                map.values().filter_map(Value::as_str).filter(|name| safe_path(name).is_ok()).for_each(need);
            }
            None => drop(missing.insert(INDEX.into())),
        }
    } else if !std::fs::read_dir(dir).is_ok_and(|entries| {
        let mut names = entries.flatten().filter(|entry| entry.path().is_file()).map(|entry| entry.file_name());
        names.any(|name| name.to_str().is_some_and(|name| name.ends_with(".safetensors")))
    }) {
        missing.insert("*.safetensors".into());
    }
    missing.into_iter().collect()
}
