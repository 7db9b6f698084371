//! One file of a pull, from wherever it can be had.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::before::Before;
use super::client::Hub;
use super::digest::{CopyError, copy_hashed, is_intact};
use super::error::HubError;
use super::fetch::{fetch, part_of, write_error};
use super::{Event, Observer};
use crate::store::{Manifest, ManifestFile, RepoId, StoreError};

/// What bringing files needs.
pub(super) struct Work<'a> {
    hub: &'a Hub,
    repo: &'a RepoId,
    commit: &'a str,
    pub(super) partial: &'a Path,
    before: Option<&'a Before<'a>>,
    /// Makes a second name of a file; tests put another in.
    link: fn(&Path, &Path) -> io::Result<()>,
    /// Files that are names of the installed model's files now.
    linked: HashSet<String>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        repo: &'a RepoId,
        commit: &'a str,
        partial: &'a Path,
        before: Option<&'a Before<'a>>,
    ) -> Self {
        Self {
            hub,
            repo,
            commit,
            partial,
            before,
            link: |from, to| std::fs::hard_link(from, to),
            linked: HashSet::new(),
        }
    }

    fn twin(&self, file: &ManifestFile) -> Option<PathBuf> {
        self.before?.twin(file)
    }

    /// Takes over from the installed model what costs nothing. Where the system makes no second name of a file, it is copied
    /// later, which needs its space.
    pub(super) fn link_twins(&mut self, manifest: &Manifest) -> Result<(), HubError> {
        for file in &manifest.files {
            let target = self.partial.join(&file.path);
            // A second name of a symbolic link would lead elsewhere.
            let twin = self.twin(file).filter(|twin| is_regular(twin));
            let Some(twin) = twin.filter(|_| target.symlink_metadata().is_err()) else { continue };
            make_parent(self.partial, &target)?;
            if (self.link)(&twin, &target).is_ok() {
                let _ = std::fs::remove_file(part_of(&target));
                self.linked.insert(file.path.clone());
            }
        }
        Ok(())
    }

    /// Bytes that bringing a file will write.
    pub(super) fn missing(&self, file: &ManifestFile) -> u64 {
        if file.is_in(self.partial) {
            return 0;
        }
        if self.twin(file).is_some() {
            return file.size;
        }
        let part = std::fs::metadata(part_of(&self.partial.join(&file.path)));
        file.size - part.map_or(0, |data| data.len()).min(file.size)
    }

    /// Brings a file into the partial directory: it is there, or the installed model has it, or the hub does. Returns the bytes
    /// received.
    pub(super) fn bring(&self, file: &ManifestFile, observer: &mut Observer<'_>) -> Result<u64, HubError> {
        let target = self.partial.join(&file.path);
        if self.linked.contains(&file.path) {
            observer(Event::Bytes(file.size));
            return Ok(0);
        }
        // It had its hash when it took its name, but what lies here may have been something else's, or changed.
        if file.is_in(self.partial) && is_regular(&target) {
            if is_intact(&target, file, &mut |bytes| observer(Event::Bytes(bytes))) {
                return Ok(0);
            }
            observer(Event::Lost(file.size));
        }
        if target.symlink_metadata().is_ok() {
            std::fs::remove_file(&target).map_err(|source| StoreError::io(&target, source))?;
        }
        make_parent(self.partial, &target)?;
        if let Some(twin) = self.twin(file)
            && self.copy(&twin, &target, file, observer)?
        {
            return Ok(0);
        }
        fetch(self.hub, self.repo, self.commit, file, &target, observer)
    }

    /// Copies a file of the installed model; false when it is not what it should be any more.
    fn copy(
        &self,
        twin: &Path,
        target: &Path,
        file: &ManifestFile,
        observer: &mut Observer<'_>,
    ) -> Result<bool, HubError> {
        let part = part_of(target);
        let _ = std::fs::remove_file(&part);
        let failed = |rest: u64, source| write_error(&part, rest, source);
        let mut out = File::options().write(true).create_new(true).open(&part).map_err(|e| failed(file.size, e))?;
        let mut copied = 0;
        let hash = copy_hashed(twin, file, &mut out, &mut |bytes| {
            copied += bytes;
            observer(Event::Bytes(bytes));
        });
        match hash {
            Err(CopyError::Write(source)) => return Err(failed(file.size - copied, source)),
            Ok(hash) if hash == file.hash => {}
            Ok(_) | Err(CopyError::Read) => {
                observer(Event::Lost(copied));
                drop(out);
                let _ = std::fs::remove_file(&part);
                return Ok(false);
            }
        }
        out.sync_all().map_err(|source| failed(0, source))?;
        drop(out);
        std::fs::rename(&part, target).map_err(|source| StoreError::io(target, source))?;
        Ok(true)
    }
}

/// True for a file itself, not a link to one.
fn is_regular(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_file())
}

/// Makes the directories above a file of the model, all of which must lie inside of it: a link there would lead elsewhere.
pub(super) fn make_parent(root: &Path, target: &Path) -> Result<(), HubError> {
    let parent = target.parent().unwrap_or(root);
    let io = |source| StoreError::io(parent, source);
    std::fs::create_dir_all(parent).map_err(io)?;
    let (inside, root) = (parent.canonicalize().map_err(io)?, root.canonicalize().map_err(io)?);
    if !inside.starts_with(&root) {
        let problem = "leads out of the directory being written".into();
        return Err(HubError::Occupied { dir: parent.into(), problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::{HubOptions, digest_of};
    use crate::store::{Store, StoredModel};

    #[test]
    fn a_file_that_cannot_be_linked_is_copied() {
        let dir = tempfile::tempdir().expect("directory");
        let store = Store::new(dir.path());
        let repo: RepoId = "o/n".parse().expect("name");
        let bytes = vec![7; 200_000];
        let file = ManifestFile { path: "new/a.bin".into(), size: 200_000, hash: digest_of(&bytes, true) };
        let old = ManifestFile { path: "a.bin".into(), ..file.clone() };
        let commit = "1".repeat(40);
        std::fs::create_dir_all(store.dir(&repo)).expect("directory");
        std::fs::write(store.dir(&repo).join("a.bin"), &bytes).expect("write");
        Manifest::new(&repo, "main", &commit, vec![old]).write(&store.dir(&repo)).expect("manifest");
        let model: StoredModel = store.get(&repo).expect("model");
        let before = Before::read(&model, false, &mut |_| {}).expect("as it was pulled");
        // Nothing listens there: what comes does not come from the hub.
        let hub =
            Hub::new(&HubOptions { endpoint: "http://127.0.0.1:9".into(), ..HubOptions::default() }).expect("hub");
        for refused in [false, true] {
            let partial = dir.path().join(format!("partial-{refused}"));
            std::fs::create_dir_all(&partial).expect("directory");
            let mut work = Work::new(&hub, &repo, &commit, &partial, Some(&before));
            if refused {
                work.link = |_, _| Err(io::Error::from(io::ErrorKind::Unsupported));
            }
            work.link_twins(&Manifest::new(&repo, "main", &commit, vec![file.clone()])).expect("linked");
            assert_eq!(work.missing(&file), if refused { 200_000 } else { 0 }, "a copy needs its space");
            let mut done = 0;
            let mut observer = |event: Event<'_>| {
                if let Event::Bytes(bytes) = event {
                    done += bytes;
                }
            };
            assert_eq!(work.bring(&file, &mut observer).expect("brought"), 0);
            assert_eq!(done, 200_000);
            assert!(std::fs::read(partial.join("new/a.bin")).expect("read") == bytes);
            assert!(!part_of(&partial.join("new/a.bin")).exists());
        }
    }
}
