//! Giving a finished pull its name.

use std::path::{Path, PathBuf};

use super::{Lock, RepoId, Store, StoreError, disk, is_model};

/// Beginning of the name under which a model waits while another takes its place. No sweep deletes it: until the other is
/// there, it is the only one.
pub(super) const REPLACED: &str = ".replaced-";

/// What installing needs of the file system; tests put others in.
pub(super) struct Steps<'a> {
    /// Exchanges two directories in one step; false where that cannot be done.
    pub(super) exchange: fn(&Path, &Path) -> bool,
    /// Makes the names in a directory last through a loss of power.
    pub(super) sync: &'a dyn Fn(&Path),
}

impl Store {
    /// Gives a finished pull its name, in place of what had it. At every moment the name stands for one whole model or, where
    /// the system cannot exchange two directories in one step, for none while the old one is moved aside; a process that dies
    /// there leaves it to the next that takes the lock, which puts it back.
    ///
    /// # Errors
    /// What the system refuses; the finished pull then still lies where it was, and so does the old model.
    pub fn install(&self, _lock: &Lock, repo: &RepoId, partial: &Path) -> Result<PathBuf, StoreError> {
        self.install_by(&Steps { exchange: disk::exchange, sync: &disk::sync_dir }, repo, partial)
    }

    pub(super) fn install_by(&self, steps: &Steps<'_>, repo: &RepoId, partial: &Path) -> Result<PathBuf, StoreError> {
        let target = self.dir(repo);
        let owner = self.root().join(repo.owner());
        std::fs::create_dir_all(&owner).map_err(|source| StoreError::io(&owner, source))?;
        // The files are on the disk; their names must be too, before the name that says so.
        for_each_directory(partial, steps.sync)?;
        let renamed = |from: &Path, to: &Path| std::fs::rename(from, to).map_err(|source| StoreError::io(to, source));
        let old = if target.symlink_metadata().is_err() {
            renamed(partial, &target)?;
            None
        } else if (steps.exchange)(partial, &target) {
            // The old model now lies where the new one was made.
            Some(partial.to_path_buf())
        } else {
            let aside = self.replaced(&repo.dashed());
            renamed(&target, &aside)?;
            if let Err(error) = renamed(partial, &target) {
                // Should this fail too, the next that takes the lock does it.
                let _ = std::fs::rename(&aside, &target);
                return Err(error);
            }
            Some(aside)
        };
        let partials = self.partial_root();
        for dir in [Some(&*owner), Some(&partials), Some(self.root()), self.root().parent()].into_iter().flatten() {
            (steps.sync)(dir);
        }
        // The new model is there; what cannot be deleted of the old one now is found again by the next pull.
        if let Some(old) = old {
            let _ = self.discard(&old, &repo.dashed());
        }
        Ok(target)
    }

    /// Ends what a process began that died while it replaced this model: puts the old one back, or deletes it where the new
    /// one is in place. For the holder of the model's lock.
    pub(super) fn settle(&self, dashed: &str) -> Result<(), StoreError> {
        let aside = self.replaced(dashed);
        let Some((owner, name)) = dashed.split_once("--") else { return Ok(()) };
        if aside.symlink_metadata().is_err() {
            return Ok(());
        }
        let owner = self.root().join(owner);
        let target = owner.join(name);
        if target.symlink_metadata().is_err() {
            std::fs::create_dir_all(&owner).map_err(|source| StoreError::io(&owner, source))?;
            std::fs::rename(&aside, &target).map_err(|source| StoreError::io(&target, source))?;
            disk::sync_dir(&owner);
        } else if is_model(&target) {
            let _ = self.discard(&aside, dashed);
        }
        Ok(())
    }

    fn replaced(&self, dashed: &str) -> PathBuf {
        self.partial_root().join(format!("{REPLACED}{dashed}"))
    }
}

/// Visits a directory and all in it, the innermost first.
fn for_each_directory(dir: &Path, visit: &dyn Fn(&Path)) -> Result<(), StoreError> {
    for entry in std::fs::read_dir(dir).map_err(|source| StoreError::io(dir, source))? {
        let entry = entry.map_err(|source| StoreError::io(dir, source))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            for_each_directory(&entry.path(), visit)?;
        }
    }
    visit(dir);
    Ok(())
}
