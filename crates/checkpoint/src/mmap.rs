//! The one place with `unsafe`: mapping a file.

use std::fs::File;
use std::path::Path;

use bytes::Bytes;

use crate::error::{CheckpointError, Result};

/// Maps a whole regular file, without reading it. An empty file gives empty bytes.
pub(crate) fn map(path: &Path) -> Result<Bytes> {
    let io = |source| CheckpointError::Io { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("not a regular file")));
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    if usize::try_from(metadata.len()).is_err() {
        return Err(io(std::io::Error::other("file does not fit the address space")));
    }
    // SAFETY: the mapping is private, read-only, and lives as long as the `Bytes` that owns it. What remains is that
    // another process changes the file meanwhile: checkpoints are written once, under a new name, and a program that
    // rewrites one in place while it is served breaks every mmap reader alike (documented in `SafetensorsFile::open`).
    #[allow(unsafe_code)]
    let mapping = unsafe { memmap2::MmapOptions::new().map(&file) }.map_err(io)?;
    Ok(Bytes::from_owner(mapping))
}
