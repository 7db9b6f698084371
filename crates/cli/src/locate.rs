//! Finding checkpoints: a path as given, a name in the usual places, or the embedded demo.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

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
}

impl Environment {
    /// Reads it: `MLXCEL_MODELS_DIR`, else `XDG_DATA_HOME` or the home directory, names the store.
    pub fn read() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let data = || {
            let home = std::env::home_dir()?;
            let default = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" };
            Some(var("XDG_DATA_HOME").unwrap_or_else(|| home.join(default)).join("mlxcel/models"))
        };
        Environment {
            directory: std::env::current_dir().ok(),
            executable: std::env::current_exe().ok().and_then(|e| e.parent().map(Path::to_path_buf)),
            store: var("MLXCEL_MODELS_DIR").or_else(data),
        }
    }

    /// Directories that may hold checkpoints, in order.
    fn shelves(&self) -> Vec<PathBuf> {
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
