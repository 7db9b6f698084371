//! Small dealings with the file system.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::StoreError;

/// Bytes an ordinary user can still write where the directory is or will be; `None` where the system does not say.
pub fn free_space(dir: &Path) -> Option<u64> {
    // The last ancestor of a relative path is the empty one, which is no directory's name.
    let existing = dir.ancestors().find(|dir| dir.as_os_str().is_empty() || dir.is_dir())?;
    free_at(existing)
}

#[cfg(unix)]
fn free_at(dir: &Path) -> Option<u64> {
    // Relative to nothing: the parent of a relative path is the empty one.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let stat = rustix::fs::statvfs(dir).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
fn free_at(_: &Path) -> Option<u64> {
    None
}

/// Exchanges two directories in one step; false where that cannot be done.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(super) fn exchange(a: &Path, b: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(super) fn exchange(_: &Path, _: &Path) -> bool {
    false
}

/// Makes a rename inside a directory last through a loss of power, where the system offers that.
pub(crate) fn sync_dir(dir: &Path) {
    if cfg!(unix)
        && let Ok(dir) = File::open(dir)
    {
        let _ = dir.sync_all();
    }
}

/// Bytes of all files under a directory, through links to files; what cannot be read counts as nothing.
pub(super) fn bytes_in(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_in(&entry.path()),
        // The manifest is ours, not the model's.
        Ok(_) if entry.file_name() == super::MANIFEST => 0,
        Ok(_) => std::fs::metadata(entry.path()).map_or(0, |data| if data.is_file() { data.len() } else { 0 }),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Deletes a directory with all in it, or a link to one; what is already gone is no error.
pub(super) fn delete(dir: &Path) -> Result<(), StoreError> {
    let link = dir.symlink_metadata().is_ok_and(|data| data.is_symlink());
    let deleted = if link { std::fs::remove_file(dir) } else { std::fs::remove_dir_all(dir) };
    match deleted {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| StoreError::io(dir, source)),
    }
}

/// A whole file of at most `limit` bytes.
pub(super) fn read_capped(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!("larger than {limit} bytes, the most such a file may have")));
    }
    Ok(bytes)
}
