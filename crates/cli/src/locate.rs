//! Finding checkpoints: a path as given, a name in the usual places, or the embedded demo.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mlxcel_checkpoint::store::{HubCache, RepoId, Store};

/// The checkpoint that comes with the project.
pub const DEMO: &str = "gemma-4-tiny-it-4bit";

/// What the process's surroundings say.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Working directory.
    pub directory: Option<PathBuf>,
    /// Directory of the executable.
    pub executable: Option<PathBuf>,
    /// Where pulled models lie.
    pub store: Option<PathBuf>,
    /// The Hugging Face cache, which is only read.
    pub hub_cache: Option<PathBuf>,
    /// What may be lost at any time: verdicts of the exactness probe, compiled kernels.
    pub cache: Option<PathBuf>,
}

/// An environment variable that is set to something.
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where the hub's own tools keep their things: `HF_HOME`, else in the user's cache directory.
pub(crate) fn hub_home() -> Option<PathBuf> {
    variable("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(user_directory("XDG_CACHE_HOME", ".cache")?.join("huggingface")))
}

/// The directory that a variable names, or else one below the home directory, which need not exist where the variable does.
fn user_directory(name: &str, default: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(default)))
}

/// The user's cache directory.
fn own_cache() -> Option<PathBuf> {
    user_directory("XDG_CACHE_HOME", if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" })
}

impl Environment {
    /// Reads it: `MLXCEL_MODELS_DIR`, else `XDG_DATA_HOME` or the home directory, names the store; `HF_HUB_CACHE`, else
    /// `HF_HOME` or the home directory, the cache; `MLXCEL_CACHE_DIR`, else the user's cache directory, what may be lost.
    pub fn read() -> Self {
        let var = |name: &str| variable(name).map(PathBuf::from);
        let data = || {
            let default = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" };
            Some(user_directory("XDG_DATA_HOME", default)?.join("mlxcel/models"))
        };
        Environment {
            directory: std::env::current_dir().ok(),
            executable: std::env::current_exe().ok().and_then(|e| e.parent().map(Path::to_path_buf)),
            store: var("MLXCEL_MODELS_DIR").or_else(data),
            hub_cache: var("HF_HUB_CACHE")
                .or_else(|| var("HUGGINGFACE_HUB_CACHE"))
                .or_else(|| Some(hub_home()?.join("hub"))),
            cache: var("MLXCEL_CACHE_DIR").or_else(|| Some(own_cache()?.join("mlxcel"))),
        }
    }

    /// Where compiled kernels are kept.
    pub fn kernels(&self) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join("kernels"))
    }

    /// The model store.
    ///
    /// # Errors
    /// There is no place for one.
    pub fn model_store(&self) -> Result<Store> {
        let root = self.store.as_ref().context("no home directory for the model store; set MLXCEL_MODELS_DIR")?;
        Ok(Store::new(root))
    }

    /// The directory of a pulled model, or of one in the Hugging Face cache.
    fn repository(&self, repo: &RepoId) -> Result<PathBuf> {
        let place = |path: &Option<PathBuf>| path.as_ref().map_or("none".into(), |path| path.display().to_string());
        let mut notes = String::new();
        if let Ok(store) = self.model_store() {
            if let Some(model) = store.get(repo) {
                return Ok(model.dir);
            }
            if store.partials()?.iter().any(|partial| partial.name == repo.to_string()) {
                notes += "; a pull of it did not finish";
            }
        }
        if let Some(model) = self.hub_cache.as_ref().and_then(|root| HubCache::new(root).get(repo)) {
            if model.missing.is_empty() {
                return Ok(model.dir);
            }
            notes += &format!("; the copy in the cache is incomplete: it lacks {}", model.missing.join(", "));
        }
        bail!(
            "{repo}: no such directory, and no such model in the model store ({}) or the Hugging Face cache ({}){notes}. \
             Fetch it from the hub with: mlxcel pull {repo}",
            place(&self.store),
            place(&self.hub_cache)
        )
    }

    /// Directories that may hold checkpoints, in order.
    pub fn shelves(&self) -> Vec<PathBuf> {
        let mut shelves = Vec::new();
        // The working tree: here or above, so that a command works in any of its folders.
        if let Some(here) = &self.directory {
            shelves.extend(here.ancestors().take(6).map(|d| d.join("models")));
        }
        // Beside the executable; target/release lies two levels below the tree.
        if let Some(bin) = &self.executable {
            shelves.extend(bin.ancestors().take(4).map(|d| d.join("models")));
        }
        shelves.extend(self.store.clone());
        let mut seen = std::collections::HashSet::new();
        shelves.retain(|s| seen.insert(s.clone()));
        shelves
    }

    /// The directory of the model asked for, or of the demo.
    ///
    /// # Errors
    /// Says where it looked and what to do.
    pub fn model(&self, asked: Option<&Path>) -> Result<PathBuf> {
        let name = match asked {
            // A path is used as given.
            Some(path) if path.exists() => return Ok(path.to_path_buf()),
            Some(path) if path.components().count() != 1 || path.is_absolute() => {
                if let Some(repo) = path.to_str().and_then(|text| text.parse::<RepoId>().ok()) {
                    return self.repository(&repo);
                }
                bail!(
                    "{}: no such directory; give the directory of a checkpoint (config.json, *.safetensors)",
                    path.display()
                )
            }
            Some(name) => name.to_path_buf(),
            None => PathBuf::from(DEMO),
        };
        let shelves = self.shelves();
        if let Some(found) = shelves.iter().map(|s| s.join(&name)).find(|d| d.join("config.json").is_file()) {
            return Ok(found);
        }
        // A pulled model without its owner.
        if let (Ok(store), Some(name)) = (self.model_store(), name.to_str()) {
            match &store.find(name)?[..] {
                [] => {}
                [only] => return Ok(only.dir.clone()),
                [first, second, ..] => {
                    bail!(
                        "{name}: several models have this name, as {} and {}; say which, with its owner",
                        first.name,
                        second.name
                    )
                }
            }
        }
        let looked: Vec<String> = shelves.iter().map(|s| format!("  {}", s.join(&name).display())).collect();
        let what = if asked.is_some() { "the model" } else { "the embedded demo checkpoint" };
        bail!(
            "{what} {} was not found. Looked for\n{}\nRun inside a clone of the project (its models/ holds the demo), \
             copy models/{DEMO} beside the executable or into the store, or name a checkpoint directory with -m PATH.",
            name.display(),
            looked.join("\n")
        )
    }
}
