//! A model from the hub into the store.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::before::{Before, walk};
use super::client::Hub;
use super::error::HubError;
use super::fetch::{part_of, write_error};
use super::select::Selection;
use super::work::{Work, make_parent};
use super::{Event, Observer};
use crate::store::{Lock, Manifest, ManifestFile, RepoId, Store, StoreError, StoredModel, free_space, safe_path};

/// What to pull.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// The repository.
    pub repo: RepoId,
    /// Branch, tag or commit.
    pub revision: String,
    /// Which of its files.
    pub selection: Selection,
    /// Read and check the files of an up-to-date model too, and replace those that are not as they were pulled. Without it such
    /// files are an error wherever they would be replaced: somebody may have changed them.
    pub verify: bool,
}

/// A model that is in the store now.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Its directory.
    pub dir: PathBuf,
    /// What it is.
    pub manifest: Manifest,
    /// True when nothing had to be done.
    pub up_to_date: bool,
    /// Bytes that came over the network.
    pub received: u64,
}

/// Pulls a model. The store has it whole under its name afterwards, or is as it was; what came before an error stays in the
/// store's directory of unfinished pulls, and the same call goes on from there.
///
/// # Errors
/// Everything in [`HubError`].
pub fn pull(hub: &Hub, store: &Store, request: &PullRequest, observer: &mut Observer<'_>) -> Result<Pulled, HubError> {
    let repo = &request.repo;
    let lock = store.lock(&repo.to_string())?;
    store.sweep();
    let installed = installed(store, repo)?;
    let commit = hub.commit(repo, &request.revision, observer)?;
    let listed = hub.files(repo, &commit, observer)?;
    let listed = without_odd_names(repo, &request.selection, listed, observer)?;
    let pulled = installed.as_ref().and_then(|model| model.manifest.as_ref());
    let wanted = wanted(repo, &request.selection, &listed, pulled)?;
    let manifest = Manifest::new(repo, &request.revision, &commit, wanted);
    if let (Some(model), Some(pulled)) = (&installed, pulled)
        && pulled.commit == commit
        && pulled.files == manifest.files
        && model.damaged().is_empty()
        && !request.verify
    {
        clear_partials(store, &lock, repo);
        let manifest = pulled.clone();
        return Ok(Pulled { dir: model.dir.clone(), manifest, up_to_date: true, received: 0 });
    }
    let before = installed.as_ref().map(|model| Before::read(model, request.verify, observer)).transpose()?;

    observer(Event::Plan { commit: &commit, files: manifest.files.len(), total: manifest.bytes() });
    let partial = store.partial_dir(repo, &commit);
    empty_if_foreign(store, &lock, &partial)?;
    std::fs::create_dir_all(&partial).map_err(|source| write_error(&partial, manifest.bytes(), source))?;
    adopt(store, repo, &partial, &manifest)?;
    manifest.write(&partial)?;
    let mut work = Work::new(hub, repo, &commit, &partial, before.as_ref());
    work.link_twins(&manifest)?;
    check_space(&work, &manifest)?;
    // Small files first: what is wrong with a repository mostly shows in them.
    let mut order: Vec<&ManifestFile> = manifest.files.iter().collect();
    order.sort_by_key(|file| file.size);
    let mut received = 0;
    for file in order {
        observer(Event::File { path: &file.path, size: file.size });
        received += work.bring(file, observer)?;
    }

    // An earlier attempt may have wanted more; what is not in the manifest does not belong to the model.
    prune(&partial, &partial, &manifest)?;
    let manifest = Manifest::new(repo, &request.revision, &commit, manifest.files);
    manifest.write(&partial)?;
    observer(Event::Install);
    // A pull takes hours, in which somebody may have put there what must not be lost.
    match &before {
        Some(before) => before.check()?,
        None if store.dir(repo).symlink_metadata().is_ok() => {
            let problem = "came there during the pull; move it away, then the same command goes on".into();
            return Err(HubError::Occupied { dir: store.dir(repo), problem });
        }
        None => {}
    }
    let dir = store.install(&lock, repo, &partial)?;
    clear_partials(store, &lock, repo);
    Ok(Pulled { dir, manifest, up_to_date: false, received })
}

/// Removes what unfinished pulls of a model left that is there now. What cannot be removed is no reason to say that the pull
/// failed: `mlxcel list` shows it, and the next pull tries again.
fn clear_partials(store: &Store, lock: &Lock, repo: &RepoId) {
    let name = repo.to_string();
    for stale in store.partials().unwrap_or_default().iter().filter(|stale| stale.name == name) {
        let _ = store.remove_partial(lock, stale);
    }
}

/// Removes what lies in a pull's place and is of another commit: an old model, exchanged for this one by a process that died
/// before it deleted it.
fn empty_if_foreign(store: &Store, lock: &Lock, partial: &Path) -> Result<(), HubError> {
    for found in store.partials()?.iter().filter(|found| found.dir == partial) {
        let manifest = Manifest::read(partial).ok().flatten();
        if manifest.is_some_and(|manifest| manifest.commit != found.commit) {
            store.remove_partial(lock, found)?;
        }
    }
    Ok(())
}

/// The model as it is in the store, which must be one that was pulled.
fn installed(store: &Store, repo: &RepoId) -> Result<Option<StoredModel>, HubError> {
    let dir = store.dir(repo);
    if dir.symlink_metadata().is_err() {
        return Ok(None);
    }
    // An unreadable manifest is an error here, and a model without one is somebody's own.
    if Manifest::read(&dir)?.is_none() {
        let problem =
            "is there already but was not pulled; move it away, or remove it with `mlxcel rm`, then pull".into();
        return Err(HubError::Occupied { dir, problem });
    }
    Ok(store.get(repo))
}

/// The listing without names that must not be written. Nobody needs them, unless one is selected.
fn without_odd_names(
    repo: &RepoId,
    selection: &Selection,
    listed: Vec<ManifestFile>,
    observer: &mut Observer<'_>,
) -> Result<Vec<ManifestFile>, HubError> {
    let mut seen = HashSet::new();
    let mut first = None;
    let mut left_out = 0;
    let mut kept = Vec::with_capacity(listed.len());
    for file in &listed {
        let twice = || StoreError::Path { found: file.path.clone(), problem: "it is listed twice" };
        let fit = safe_path(&file.path).and_then(|_| if seen.insert(&file.path) { Ok(()) } else { Err(twice()) });
        match fit {
            Ok(()) => kept.push(file.clone()),
            Err(source) if selection.wants(&file.path, &listed) => {
                return Err(HubError::Listing { repo: repo.to_string(), source });
            }
            Err(source) => {
                left_out += 1;
                first.get_or_insert(source);
            }
        }
    }
    if let Some(problem) = &first {
        observer(Event::LeftOut { files: left_out, problem });
    }
    Ok(kept)
}

/// The files to have: those selected, and those the model has now and the repository still has.
fn wanted(
    repo: &RepoId,
    selection: &Selection,
    listed: &[ManifestFile],
    before: Option<&Manifest>,
) -> Result<Vec<ManifestFile>, HubError> {
    let nothing = |problem: String| HubError::Nothing { repo: repo.to_string(), problem };
    let some = |ending: &str| {
        let names: Vec<&str> = listed.iter().map(|f| f.path.as_str()).filter(|path| path.ends_with(ending)).collect();
        let more = if names.len() > 6 { format!(" and {} more", names.len() - 6) } else { String::new() };
        (!names.is_empty()).then(|| format!("{}{more}", names[..names.len().min(6)].join(", ")))
    };
    for pattern in &selection.include {
        if !listed.iter().any(|file| pattern.matches(&file.path)) {
            let all = some("").unwrap_or("none".into());
            return Err(nothing(format!("no file matches --include {:?}; its files: {all}", pattern.as_str())));
        }
    }
    let kept = |path: &str| {
        before.is_some_and(|before| before.files.iter().any(|file| file.path == path))
            && !selection.exclude.iter().any(|pattern| pattern.matches(path))
    };
    let chosen = |file: &&ManifestFile| selection.wants(&file.path, listed) || kept(&file.path);
    let files: Vec<ManifestFile> = listed.iter().filter(chosen).cloned().collect();
    if selection.include.is_empty() && !files.iter().any(|file| file.path.ends_with(".safetensors")) && before.is_none()
    {
        return Err(nothing(if let Some(gguf) = some(".gguf") {
            format!("has no safetensors files, only GGUF: {gguf}; choose with --include, as in --include '*Q8_0.gguf'")
        } else if let Some(other) = some(".bin").or_else(|| some(".pth")).or_else(|| some(".pt")) {
            format!("has no safetensors files, only PyTorch's: {other}; look for a conversion to MLX of this model")
        } else {
            format!("has no safetensors files in its root; its files: {}", some("").unwrap_or("none".into()))
        }));
    }
    files
        .iter()
        .try_fold(0u64, |sum, file| sum.checked_add(file.size))
        .ok_or_else(|| nothing("its listed sizes add up to more than 2^64 bytes".into()))?;
    Ok(files)
}

/// Takes over what unfinished pulls of other commits have of the same files.
fn adopt(store: &Store, repo: &RepoId, partial: &Path, manifest: &Manifest) -> Result<(), HubError> {
    for other in store.partials()? {
        if other.name != repo.to_string() || other.dir == partial {
            continue;
        }
        let Some(old) = Manifest::read(&other.dir).ok().flatten() else { continue };
        for file in &manifest.files {
            let Some(same) = old.files.iter().find(|old| old.hash == file.hash && old.size == file.size) else {
                continue;
            };
            let (from, to) = (other.dir.join(&same.path), partial.join(&file.path));
            if to.symlink_metadata().is_ok() || part_of(&to).symlink_metadata().is_ok() {
                continue;
            }
            make_parent(partial, &to)?;
            // One of the two is there, or neither.
            let _ = std::fs::rename(&from, &to);
            let _ = std::fs::rename(part_of(&from), part_of(&to));
        }
    }
    Ok(())
}

/// Refuses to begin what cannot end.
fn check_space(work: &Work<'_>, manifest: &Manifest) -> Result<(), HubError> {
    let needed = manifest.files.iter().map(|file| work.missing(file)).fold(0u64, u64::saturating_add);
    match free_space(work.partial) {
        Some(available) if available < needed => {
            Err(HubError::DiskFull { path: work.partial.into(), needed, available: Some(available) })
        }
        _ => Ok(()),
    }
}

/// Removes files of a directory that the manifest does not name.
fn prune(root: &Path, dir: &Path, manifest: &Manifest) -> Result<(), HubError> {
    walk(root, dir, &mut |path, name| {
        if name != crate::store::MANIFEST && !manifest.files.iter().any(|file| file.path == name) {
            std::fs::remove_file(path).map_err(|source| StoreError::io(path, source))?;
        }
        Ok(())
    })
}
