//! The installed model that a pull replaces.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::digest::is_intact;
use super::error::HubError;
use super::{Event, Observer};
use crate::store::{MANIFEST, ManifestFile, StoreError, StoredModel};

/// An installed model, all of which was read. Nothing that is somebody's own goes with it: a file that was not pulled, or that
/// is not as it was pulled, is an error.
pub(super) struct Before<'a> {
    model: &'a StoredModel,
    /// Files whose content is that of the manifest, and what they looked like just before they were read.
    intact: HashMap<&'a str, Stamp>,
}

/// What changes with the content of a file, and not with its links.
#[derive(PartialEq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let data = std::fs::metadata(path).ok().filter(|data| data.is_file())?;
        Some(Self { length: data.len(), modified: data.modified().ok() })
    }
}

impl<'a> Before<'a> {
    /// Reads and checks the model. Where `replace` is set, files that are not as they were pulled are no error.
    ///
    /// # Errors
    /// Files that were not pulled, or that were changed since.
    pub(super) fn read(model: &'a StoredModel, replace: bool, observer: &mut Observer<'_>) -> Result<Self, HubError> {
        let mut before = Self { model, intact: HashMap::new() };
        before.check_foreign()?;
        let mut changed = Vec::new();
        for file in model.manifest.iter().flat_map(|manifest| &manifest.files) {
            let path = model.dir.join(&file.path);
            // What is absent cannot be lost.
            if path.symlink_metadata().is_err() {
                continue;
            }
            observer(Event::Check { path: &file.path, size: file.size });
            let stamp = Stamp::of(&path).filter(|stamp| stamp.length == file.size);
            match stamp {
                Some(stamp) if is_intact(&path, file, &mut |_| {}) => drop(before.intact.insert(&file.path, stamp)),
                _ => changed.push(file.path.as_str()),
            }
        }
        if changed.is_empty() || replace {
            return Ok(before);
        }
        let problem = format!(
            "holds files that are not as they were pulled: {}; copy what you changed elsewhere, then `mlxcel pull --verify {}` \
             replaces them",
            some(&changed),
            model.name
        );
        Err(HubError::Occupied { dir: model.dir.clone(), problem })
    }

    /// Looks again, just before the model is replaced.
    ///
    /// # Errors
    /// Files that came or changed since it was read.
    pub(super) fn check(&self) -> Result<(), HubError> {
        self.check_foreign()?;
        let is_as_before = |path: &str, stamp| Stamp::of(&self.model.dir.join(path)).as_ref() == Some(stamp);
        let mut changed: Vec<&str> =
            self.intact.iter().filter(|(path, stamp)| !is_as_before(path, stamp)).map(|f| *f.0).collect();
        if changed.is_empty() {
            return Ok(());
        }
        changed.sort();
        let problem = format!("changed during the pull: {}; the same command goes on", some(&changed));
        Err(HubError::Occupied { dir: self.model.dir.clone(), problem })
    }

    /// The file of the model that has the same content, whatever its name.
    pub(super) fn twin(&self, file: &ManifestFile) -> Option<PathBuf> {
        let files = self.model.manifest.iter().flat_map(|manifest| &manifest.files);
        let mut same = files.filter(|old| old.hash == file.hash && old.size == file.size);
        let twin = same.find(|old| self.intact.contains_key(old.path.as_str()))?;
        Some(self.model.dir.join(&twin.path))
    }

    fn check_foreign(&self) -> Result<(), HubError> {
        let Some(manifest) = &self.model.manifest else { return Ok(()) };
        let mut foreign = Vec::new();
        walk(&self.model.dir, &self.model.dir, &mut |path, name| {
            let last = path.file_name().unwrap_or_default().to_string_lossy();
            // The store's own, and what macOS scatters.
            let worthless = name == MANIFEST
                || name.strip_suffix(crate::store::PART) == Some(MANIFEST)
                || last == ".DS_Store"
                || last.starts_with("._");
            if !worthless && !manifest.files.iter().any(|file| file.path == name) {
                foreign.push(name.to_string());
            }
            Ok(())
        })?;
        if foreign.is_empty() {
            return Ok(());
        }
        foreign.sort();
        let problem = format!("holds files that were not pulled: {}; move them away, then pull again", some(&foreign));
        Err(HubError::Occupied { dir: self.model.dir.clone(), problem })
    }
}

/// The first few of some names.
fn some<T: AsRef<str>>(names: &[T]) -> String {
    let first: Vec<String> = names.iter().take(6).map(|name| crate::store::printable(name.as_ref())).collect();
    let more = if names.len() > 6 { format!(" and {} more", names.len() - 6) } else { String::new() };
    format!("{}{more}", first.join(", "))
}

/// Visits all files under `dir` with their names relative to `root`, with slashes.
pub(super) fn walk(
    root: &Path,
    dir: &Path,
    visit: &mut dyn FnMut(&Path, &str) -> Result<(), HubError>,
) -> Result<(), HubError> {
    let entries = std::fs::read_dir(dir).map_err(|source| StoreError::io(dir, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| StoreError::io(dir, source))?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(root, &path, visit)?;
            continue;
        }
        let parts = path.strip_prefix(root).unwrap_or(&path).iter().map(|part| part.to_string_lossy());
        let name = parts.collect::<Vec<_>>().join("/");
        visit(&path, &name)?;
    }
    Ok(())
}
