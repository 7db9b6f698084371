//! `.mlxcel.json`: what was pulled.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{RepoId, StoreError, disk, is_commit, safe_path};

/// Name of the manifest in a model's directory.
pub const MANIFEST: &str = ".mlxcel.json";

/// Largest manifest (or configuration, where only a label is wanted) that is read.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// The format written here.
const FORMAT: u32 = 1;

/// What a file's content must be, by whichever hash the hub keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// SHA-256 of the content, 64 hexadecimal digits: large files.
    Sha256(String),
    /// Git's name of the content, 40 digits: SHA-1 over `blob LENGTH\0` and the content.
    GitBlob(String),
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Digest::Sha256(hex) => write!(f, "sha256:{hex}"),
            Digest::GitBlob(hex) => write!(f, "git:{hex}"),
        }
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected sha256: and 64, or git: and 40 lower-case hexadecimal digits";
        let hex = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        match text.split_once(':') {
            Some(("sha256", digits)) if hex(digits, 64) => Ok(Digest::Sha256(digits.into())),
            Some(("git", digits)) if hex(digits, 40) => Ok(Digest::GitBlob(digits.into())),
            _ => Err(EXPECTED),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A file of a pulled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Path inside the repository and the model's directory, with slashes.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// What the content must be.
    pub hash: Digest,
}

impl ManifestFile {
    /// True when a file of that name and size lies in the directory. The content is not read.
    pub fn is_in(&self, dir: &Path) -> bool {
        std::fs::metadata(dir.join(&self.path)).is_ok_and(|data| data.is_file() && data.len() == self.size)
    }
}

/// What was pulled, from where and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    format: u32,
    /// `OWNER/NAME`.
    pub repo: String,
    /// The revision asked for: a branch, a tag, or a commit.
    pub revision: String,
    /// The commit it was.
    pub commit: String,
    /// When the pull ended (in a partial pull: began), RFC 3339 in UTC.
    pub pulled: String,
    /// The files, by path.
    pub files: Vec<ManifestFile>,
}

impl Manifest {
    /// A manifest of these files.
    pub fn new(repo: &RepoId, revision: &str, commit: &str, mut files: Vec<ManifestFile>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let pulled = super::rfc3339(std::time::SystemTime::now());
        let (repo, revision, commit) = (repo.to_string(), revision.to_string(), commit.to_string());
        Self { format: FORMAT, repo, revision, commit, pulled, files }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Reads the manifest of a model's directory; `None` when it has none.
    ///
    /// # Errors
    /// A file that cannot be read, is no manifest, or names files outside the directory.
    pub fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(MANIFEST);
        let bytes = match disk::read_capped(&path, MAX_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|source| StoreError::io(&path, source))?,
        };
        let error = |problem| StoreError::Manifest { path: path.clone(), problem };
        let manifest: Self = serde_json::from_slice(&bytes).map_err(|e| error(format!("not a manifest: {e}")))?;
        if manifest.format != FORMAT {
            return Err(error(format!("format is {}, expected {FORMAT}", manifest.format)));
        }
        manifest.repo.parse::<RepoId>().map_err(|e| error(e.to_string()))?;
        if !is_commit(&manifest.commit) {
            return Err(error(format!("commit is {:?}, expected 40 hexadecimal digits", manifest.commit)));
        }
        for file in &manifest.files {
            safe_path(&file.path).map_err(|e| error(e.to_string()))?;
        }
        Ok(Some(manifest))
    }

    /// Writes the manifest into a directory, whole or not at all.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write(&self, dir: &Path) -> Result<(), StoreError> {
        let path = dir.join(MANIFEST);
        let next = dir.join(".mlxcel.json.part");
        let json = serde_json::to_string_pretty(self).map_err(|e| StoreError::io(&path, e.into()))?;
        let write = || {
            let mut file = std::fs::File::create(&next)?;
            file.write_all(json.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&next, &path)
        };
        write().map_err(|source| StoreError::io(&path, source))
    }
}
