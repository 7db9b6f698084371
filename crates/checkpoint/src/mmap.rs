//! The one place with `unsafe`: mapping a file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;
use mlxcel_compute::format::{Pages, Source};

use crate::error::{CheckpointError, Result};

/// A mapped file.
struct Mapping(Mmap);

/// Keeps the mapping alive for bytes of it.
struct Owner(Arc<Mapping>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

/// Bytes around a page that a fault may bring along, and the largest page in use.
const AROUND: usize = 64 << 10;

impl Pages for Mapping {
    #[cfg(unix)]
    fn unused(&self, part: &[u8]) {
        let start = (part.as_ptr() as usize).wrapping_sub(self.0.as_ptr() as usize);
        let Some(end) = start.checked_add(part.len()).filter(|end| *end <= self.0.len()) else { return };
        // What a neighbour loses it reads again; rounded the other way, a checkpoint of small tensors would stay in memory.
        let (from, to) = (start / AROUND * AROUND, end.next_multiple_of(AROUND).min(self.0.len()));
        if from < to {
            // SAFETY: the mapping is of a file, private and never written to, so that what is dropped is read from the file again.
            #[allow(unsafe_code)]
            let dropped = unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
            // A system that will not keeps the memory, no more.
            let _ = dropped;
        }
    }

    #[cfg(not(unix))]
    fn unused(&self, _: &[u8]) {}
}

/// Maps a whole regular file, without reading it. An empty file gives empty bytes.
pub(crate) fn map(path: &Path) -> Result<Bytes> {
    Ok(map_pages(path)?.0)
}

/// The same, with a handle to its pages.
pub(crate) fn map_pages(path: &Path) -> Result<(Bytes, Source)> {
    let io = |source| CheckpointError::Io { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("not a regular file")));
    }
    if metadata.len() == 0 {
        return Ok((Bytes::new(), Source::default()));
    }
    if usize::try_from(metadata.len()).is_err() {
        return Err(io(std::io::Error::other("file does not fit the address space")));
    }
    // SAFETY: the mapping is private, read-only, and lives as long as the `Bytes` that owns it. What remains is that
    // another process changes the file meanwhile: checkpoints are written once, under a new name, and a program that
    // rewrites one in place while it is served breaks every mmap reader alike (documented in `SafetensorsFile::open`).
    #[allow(unsafe_code)]
    let mapping = unsafe { memmap2::MmapOptions::new().map(&file) }.map_err(io)?;
    let mapping = Arc::new(Mapping(mapping));
    Ok((Bytes::from_owner(Owner(Arc::clone(&mapping))), Source::of(mapping)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a mapping that are in this process' memory, in KiB, as the system counts them.
    #[cfg(target_os = "linux")]
    fn resident(bytes: &Bytes) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = format!("{:x}-", bytes.as_ptr() as usize);
        let own = maps.lines().skip_while(|line| !line.starts_with(&start));
        own.skip(1).find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.parse().ok())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_let_go_of_leaves_memory_and_reads_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bytes");
        let written: Vec<u8> = (0..1u32 << 20).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &written).expect("a file");
        let (bytes, _) = map_pages(&path).expect("mapped");
        let file = File::open(&path).expect("the file");
        // SAFETY: nobody writes to the file.
        #[allow(unsafe_code)]
        let mapping = Mapping(unsafe { memmap2::MmapOptions::new().map(&file) }.expect("mapped"));
        let owner = Arc::new(mapping);
        let own = Bytes::from_owner(Owner(Arc::clone(&owner)));
        assert_eq!(own, written);
        let Some(before) = resident(&own) else {
            println!("skipped: this system does not tell what of a mapping is in memory");
            return;
        };
        assert!(before >= 1024, "{before} KiB in memory once read");
        // Of another mapping: nothing happens.
        owner.unused(&bytes);
        assert_eq!(resident(&own), Some(before));
        // A few bytes take along what shares their pages.
        owner.unused(&own[AROUND + 10..AROUND + 20]);
        let after = resident(&own).expect("still mapped");
        assert_eq!(before - after, AROUND / 1024, "KiB less in memory");
        owner.unused(&own[10..]);
        let after = resident(&own).expect("still mapped");
        assert_eq!(after, 0, "KiB in memory after all was let go of");
        assert_eq!(own, written);
    }
}
