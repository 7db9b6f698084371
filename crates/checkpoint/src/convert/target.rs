//! The directory that is written: complete under its name, or not there.
//!
//! Everything goes into `.NAME.partial-PID` beside the target, which is locked while its process lives, removed when the
//! conversion fails, and renamed when it is done. A lock tells a dead process's left-over from one that is being written,
//! which a process id alone does not (they are used again, and differ between containers). Where two directories cannot
//! be exchanged in one step, the one that is replaced lies in `.NAME.partial-PID-old` for a moment.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::replace::{Identity, identity, problem_with};
use crate::error::{CheckpointError, Result};

/// A directory in the making; dropping it removes it.
pub(crate) struct Staging {
    /// The final path, links resolved.
    target: PathBuf,
    /// The directory written to.
    dir: PathBuf,
    /// Open for as long as the directory is in the making: its lock says so to others.
    _lock: Option<File>,
    /// The directory that may be replaced; `None` = nothing was there.
    replaced: Option<Identity>,
    /// Companions that will be written, whose namesakes may be replaced.
    companions: Vec<String>,
}

impl Staging {
    /// Checks the target, which must not be nor hold the source, and makes the directory; removes what dead processes left for the same target.
    pub(crate) fn create(source: Option<&Path>, target: &Path, force: bool, companions: Vec<String>) -> Result<Self> {
        let target = resolve(source, target)?;
        let (parent, name) = split(&target)?;
        tidy(&parent, &name, &target, &companions);
        let replaced = judge(&target, force, &companions)?;
        let dir = parent.join(format!(".{name}.partial-{}", std::process::id()));
        let io = |source| CheckpointError::Io { path: dir.clone(), source };
        // Another thread of this process that converts to the same target owns the name.
        std::fs::create_dir(&dir).map_err(io)?;
        let mut staging = Self { target, dir: dir.clone(), _lock: None, replaced, companions };
        // Where directories cannot be locked, left-overs are not removed, and nothing else is lost.
        staging._lock = File::open(&dir).ok().filter(|handle| handle.lock().is_ok());
        Ok(staging)
    }

    /// The directory to write to.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where it goes.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Puts the directory, all of whose files are on disk, under its name, which must stand as it was found.
    pub(crate) fn publish(self) -> Result<()> {
        let (parent, _) = split(&self.target)?;
        let io = |source| CheckpointError::Io { path: self.target.clone(), source };
        sync_dir(&self.dir).map_err(io)?;
        // Hours may have gone by.
        if identity(&self.target).map_err(io)? != self.replaced {
            return Err(self.changed());
        }
        if self.replaced.is_some() {
            judge(&self.target, true, &self.companions)?;
            exchange(&self.dir, &self.target).map_err(io)?;
            // What is dropped now under this name is the old directory.
        } else {
            rename_new(&self.dir, &self.target).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => self.changed(),
                _ => io(error),
            })?;
        }
        // It is there, and every byte of it is on disk: a name that a power cut could lose is no failed conversion.
        let _ = sync_dir(&parent);
        Ok(())
    }

    fn changed(&self) -> CheckpointError {
        CheckpointError::Convert {
            path: self.target.clone(),
            problem: "changed meanwhile: another file or directory has the name now; nothing was replaced or kept"
                .into(),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nothing to do about a failure here: the name says what it is, and the next conversion tries again.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Removes a directory in the making ([`Progress::dir`](super::Progress::dir)) while another thread may still be at it;
/// that thread then fails. For a process that must end at once.
pub fn abandon(dir: &Path) {
    let mut gone = dir.as_os_str().to_owned();
    // Under another name first, so that nobody can publish the half that is left. Digits, so that the name is still that
    // of a left-over, should the process die here.
    gone.push("0000000000");
    if std::fs::rename(dir, &gone).is_ok() {
        // The other thread may make one more file meanwhile.
        let _ = std::fs::remove_dir_all(&gone).or_else(|_| std::fs::remove_dir_all(&gone));
    }
}

/// The target with its links resolved.
fn resolve(source: Option<&Path>, target: &Path) -> Result<PathBuf> {
    let problem = |problem: String| CheckpointError::Convert { path: target.into(), problem };
    let (parent, name) = split(target)?;
    let parent = parent.canonicalize().map_err(|error| problem(format!("no directory to make it in: {error}")))?;
    // A link is replaced where it leads.
    let resolved = target.canonicalize().unwrap_or_else(|_| parent.join(name));
    let Some(source) = source else { return Ok(resolved) };
    let source = source.canonicalize().map_err(|error| CheckpointError::Io { path: source.into(), source: error })?;
    if source == resolved {
        return Err(problem("is the source itself; give another directory with -o".into()));
    }
    if source.starts_with(&resolved) {
        return Err(problem(format!("holds the source {}; give another directory with -o", source.display())));
    }
    Ok(resolved)
}

/// What lies at the target, when it may be replaced.
fn judge(target: &Path, force: bool, companions: &[String]) -> Result<Option<Identity>> {
    let found = identity(target).map_err(|source| CheckpointError::Io { path: target.into(), source })?;
    if found.is_none() {
        return Ok(None);
    }
    if !force {
        return Err(CheckpointError::TargetExists { path: target.into() });
    }
    match problem_with(target, companions) {
        None => Ok(found),
        Some(problem) => Err(CheckpointError::Convert { path: target.into(), problem }),
    }
}

/// Parent and name of a path.
fn split(path: &Path) -> Result<(PathBuf, String)> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| CheckpointError::Convert {
        path: path.into(),
        problem: "expected the path of a directory to make, with a name in UTF-8".into(),
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.into(), name.into()))
}

/// Clears up after processes that are gone: what they were making goes, what they had moved aside comes back when its
/// name is free. What cannot be removed stays.
fn tidy(parent: &Path, name: &str, target: &Path, companions: &[String]) {
    let prefix = format!(".{name}.partial-");
    let items = || std::fs::read_dir(parent).into_iter().flatten().flatten();
    // First what was moved aside: nothing else may take its name.
    for ending in ["-old", ""] {
        for item in items() {
            let file_name = item.file_name();
            let owner = file_name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(ending));
            let numbered = owner.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()));
            if !numbered || !item.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = item.path();
            let Ok(handle) = File::open(&path) else { continue };
            match handle.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
            }
            if ending.is_empty() {
                drop(std::fs::remove_dir_all(path));
            } else if problem_with(&path, companions).is_some() {
                // Only checkpoints are moved aside: this is somebody's own.
            } else if matches!(identity(target), Ok(None)) {
                drop(rename_new(&path, target));
            } else {
                drop(std::fs::remove_dir_all(path));
            }
        }
    }
}

/// Swaps two directories, in one step where the system can.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        if renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE).is_ok() {
            return Ok(());
        }
    }
    exchange_in_steps(new, old)
}

/// For file systems that cannot. Between the steps the target does not exist; `tidy` brings it back if the process dies.
pub(super) fn exchange_in_steps(new: &Path, old: &Path) -> io::Result<()> {
    let mut aside = new.as_os_str().to_owned();
    aside.push("-old");
    // Others leave it alone while this process lives.
    let _lock = File::open(old).ok().filter(|handle| handle.try_lock().is_ok());
    std::fs::rename(old, &aside)?;
    if let Err(error) = std::fs::rename(new, old) {
        std::fs::rename(&aside, old)?;
        return Err(error);
    }
    std::fs::rename(&aside, new)
}

/// Renames a directory to a name that nothing may have.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems cannot promise it.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            other => return other.map_err(io::Error::from),
        }
    }
    if identity(to)?.is_some() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    std::fs::rename(from, to)
}

/// Makes sure that the names in a directory are on disk.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(dir)?.sync_all() {
        // Some file systems have no such thing.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}
