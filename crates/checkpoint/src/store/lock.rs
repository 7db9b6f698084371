//! One process at a time changes a model.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::StoreError;

/// The right to change a model, until it is dropped. The system takes it back from a process that dies.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    pub(super) fn take(path: PathBuf, name: &str) -> Result<Self, StoreError> {
        for _ in 0..100 {
            let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = opened.map_err(|source| StoreError::io(&path, source))?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Self { path, file }),
                // Its last owner deleted the file between our opening and our locking: that lock excludes nobody.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { name: name.into(), path }),
                Err(TryLockError::Error(source)) => return Err(StoreError::io(&path, source)),
            }
        }
        let source =
            std::io::Error::other("the file is replaced again and again; locks do not work on this file system");
        Err(StoreError::io(&path, source))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Deleted while still held, and only where the one who comes next sees that.
        if cfg!(unix) && is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
    }
}

/// True when the path still names the opened file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Lock files are never deleted here, so the path names the opened file.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
