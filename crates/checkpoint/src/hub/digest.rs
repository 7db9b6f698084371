//! Hashing while bytes go by.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::store::{Digest, ManifestFile};

/// A hash in progress, of whichever kind a file is listed with.
pub(super) enum Hasher {
    Sha256(Box<Sha256>),
    GitBlob(Box<Sha1>),
}

impl Hasher {
    /// A hash of nothing yet, for a file of this size.
    pub(super) fn of(file: &ManifestFile) -> Self {
        match file.hash {
            Digest::Sha256(_) => Self::Sha256(Box::default()),
            Digest::GitBlob(_) => {
                let mut sha1 = Sha1::new();
                sha1.update(format!("blob {}\0", file.size));
                Self::GitBlob(Box::new(sha1))
            }
        }
    }

    /// Further bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    /// The result.
    pub(super) fn finish(self) -> Digest {
        match self {
            Self::Sha256(hash) => Digest::Sha256(hex(&hash.finalize())),
            Self::GitBlob(hash) => Digest::GitBlob(hex(&hash.finalize())),
        }
    }
}

/// Reads a file through and compares its hash. Reports its bytes, all of them, whatever happens.
pub(super) fn is_intact(path: &Path, file: &ManifestFile, count: &mut dyn FnMut(u64)) -> bool {
    let mut left = file.size;
    let mut read = || {
        copy_hashed(path, file, &mut std::io::sink(), &mut |bytes| {
            left -= bytes;
            count(bytes);
        })
    };
    let hash = read();
    count(left);
    hash.is_ok_and(|hash| hash == file.hash)
}

/// Copies as much of a file as it should have, and gives the hash of that. Errors say whether reading or writing failed.
pub(super) fn copy_hashed(
    from: &Path,
    file: &ManifestFile,
    to: &mut dyn Write,
    count: &mut dyn FnMut(u64),
) -> Result<Digest, CopyError> {
    let mut hasher = Hasher::of(file);
    let mut from = File::open(from).map_err(|_| CopyError::Read)?.take(file.size);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Err(CopyError::Read),
        };
        hasher.update(&buffer[..bytes]);
        to.write_all(&buffer[..bytes]).map_err(CopyError::Write)?;
        count(bytes as u64);
    }
}

/// Which side of a copy failed.
pub(super) enum CopyError {
    Read,
    Write(std::io::Error),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(digest: &str, pieces: &[&str]) -> String {
        let size = pieces.iter().map(|piece| piece.len() as u64).sum();
        let file = ManifestFile { path: "f".into(), size, hash: digest.parse().expect("digest") };
        let mut hasher = Hasher::of(&file);
        pieces.iter().for_each(|piece| hasher.update(piece.as_bytes()));
        hasher.finish().to_string()
    }

    #[test]
    fn known_values() {
        // FIPS 180-2's "abc", and what `git hash-object` prints.
        let sha256 = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(sha256, &["a", "", "bc"]), sha256);
        let empty = "git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        assert_eq!(hash(empty, &[]), empty);
        let hello = "git:ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(hash(hello, &["hello", "\n"]), hello);
        assert_ne!(hash(hello, &["hellp", "\n"]), hello);
    }
}
