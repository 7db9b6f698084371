//! Removing models and unfinished pulls.

use std::path::{Path, PathBuf};

use super::install::REPLACED;
use super::{Lock, PartialModel, Store, StoreError, StoredModel, disk};

/// Beginning of the names of directories on their way out; no owner has a name that begins with a dot.
const REMOVED: &str = ".removed-";

impl Store {
    /// Removes a model: its name is gone in one step, then the files go. An owner's directory that becomes empty goes too.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn remove(&self, _lock: &Lock, model: &StoredModel) -> Result<(), StoreError> {
        self.discard(&model.dir, &model.name.replace('/', "--"))?;
        if let Some(owner) = model.dir.parent()
            && owner != self.root()
        {
            // Fails when something is left in it, as it should.
            let _ = std::fs::remove_dir(owner);
        }
        Ok(())
    }

    /// Removes an unfinished pull.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn remove_partial(&self, _lock: &Lock, partial: &PartialModel) -> Result<(), StoreError> {
        self.discard(&partial.dir, &partial.name.replace('/', "--"))
    }

    /// Deletes what processes that died left on its way out, and puts back what they had moved aside to replace it. Another
    /// process that does the same is no harm.
    pub fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(self.partial_root()) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(REMOVED) {
                let _ = disk::delete(&entry.path());
            } else if let Some(dashed) = name.strip_prefix(REPLACED) {
                // Taking the lock does it; who has the lock did it.
                let _ = self.lock(&dashed.replacen("--", "/", 1));
            }
        }
    }

    /// Moves a directory out of the way, then deletes it.
    pub(super) fn discard(&self, dir: &Path, name: &str) -> Result<(), StoreError> {
        let aside = self.aside(name)?;
        std::fs::rename(dir, &aside).map_err(|source| StoreError::io(dir, source))?;
        disk::delete(&aside)
    }

    /// A free name for something on its way out.
    pub(super) fn aside(&self, name: &str) -> Result<PathBuf, StoreError> {
        let root = self.partial_root();
        std::fs::create_dir_all(&root).map_err(|source| StoreError::io(&root, source))?;
        let numbered = |n: u32| root.join(format!("{REMOVED}{name}-{}-{n}", std::process::id()));
        let free = (0..1000).map(numbered).find(|path| path.symlink_metadata().is_err());
        free.ok_or_else(|| StoreError::io(&root, std::io::Error::other("full of removed models; delete .removed-*")))
    }
}
