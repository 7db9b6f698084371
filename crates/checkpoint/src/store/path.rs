//! File names that come from elsewhere.

use std::path::{Component, Path, PathBuf};

use super::{MANIFEST, PART, StoreError};

/// Longest file name taken, in bytes.
pub const MAX_PATH_BYTES: usize = 1024;

/// The relative path that a name from a server or a manifest stands for.
///
/// # Errors
/// Names that are absolute, leave the directory, hold backslashes or control characters, or are the store's own.
pub fn safe_path(name: &str) -> Result<PathBuf, StoreError> {
    let error = |problem| StoreError::Path { found: name.chars().take(200).collect(), problem };
    if name.is_empty() {
        return Err(error("it is empty"));
    }
    if name.len() > MAX_PATH_BYTES {
        return Err(error("it is longer than 1024 bytes"));
    }
    if name.contains('\\') || name.chars().any(char::is_control) {
        return Err(error("it holds a backslash or a control character"));
    }
    // A drive or a stream there, an ordinary character here.
    if cfg!(windows) && name.contains(':') {
        return Err(error("it holds a colon"));
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(error("it is absolute, or a part of it is empty, \".\" or \"..\""));
    }
    if name == MANIFEST || name.ends_with(PART) {
        return Err(error("the store uses such names itself"));
    }
    let path = Path::new(name);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(error("it leaves its directory"));
    }
    Ok(path.into())
}
