//! What probes found, kept on disk: a model that was exact at the last start is so at the next, as long as nothing that decides
//! about bits has changed.
//!
//! The cache only saves time. Whatever is wrong with it, or cannot be written, means that the probe runs again.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::MAX_BLOCK;
use super::probe::{Cover, Probe, Report, Verdict};

/// Verdicts that are kept; beyond, the oldest go.
const MOST: usize = 256;
/// No verdict is larger, in bytes.
const LARGEST: u64 = 1 << 16;
/// Exact probes that are kept of one model; beyond, the oldest go.
const MOST_COVERS: usize = 8;

/// The verdicts on this machine.
#[derive(Clone, Debug)]
pub struct Verdicts {
    dir: Option<PathBuf>,
}

/// Everything that bits depend on, as one hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

/// What is kept under a key.
#[derive(Default)]
struct Kept {
    exact: Vec<Cover>,
    inexact: Option<Inexact>,
}

/// The least block that was seen to differ.
struct Inexact {
    width: usize,
    batch: usize,
    draws: usize,
    line: String,
}

impl Key {
    /// Of a checkpoint in a directory: the files in it and the `shards` that were opened, wherever they lie (paths, sizes, times),
    /// the backend as it describes itself ([`Model::backend`](mlxcel_model::Model::backend)), and this build (version; path, size, time
    /// and number of the executable). `None` when some of that cannot be found out.
    pub fn new<'a>(checkpoint: &Path, shards: impl IntoIterator<Item = &'a Path>, backend: &str) -> Option<Key> {
        Self::of_build(checkpoint, shards, backend, &std::env::current_exe().ok()?)
    }

    fn of_build<'a>(
        checkpoint: &Path,
        shards: impl IntoIterator<Item = &'a Path>,
        backend: &str,
        executable: &Path,
    ) -> Option<Key> {
        let dir = checkpoint.canonicalize().ok()?;
        let mut paths: Vec<PathBuf> = shards.into_iter().map(|path| path.canonicalize().ok()).collect::<Option<_>>()?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&dir).ok()? {
            paths.push(entry.ok()?.path());
        }
        for path in paths {
            // Through links, as the files of the Hugging Face cache are.
            let data = fs::metadata(&path).ok()?;
            if data.is_file() {
                files.push((path.into_os_string().into_encoded_bytes(), stamp(&data)?));
            }
        }
        files.sort();
        files.dedup();
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            // With its length, so that parts cannot run into each other.
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(dir.as_os_str().as_encoded_bytes());
        for (name, stamp) in &files {
            part(name);
            part(stamp.as_bytes());
        }
        part(backend.as_bytes());
        part(env!("CARGO_PKG_VERSION").as_bytes());
        let executable = executable.canonicalize().ok()?;
        let data = fs::metadata(&executable).ok()?;
        part(executable.as_os_str().as_encoded_bytes());
        part(stamp(&data)?.as_bytes());
        part(number(&data).to_string().as_bytes());
        let hex = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Key(hex))
    }
}

/// Size and time of change of a file.
fn stamp(data: &fs::Metadata) -> Option<String> {
    let changed = data.modified().ok()?;
    // Before 1970 is as good a time as any.
    let nanos = match changed.duration_since(UNIX_EPOCH) {
        Ok(since) => format!("{}", since.as_nanos()),
        Err(before) => format!("-{}", before.duration().as_nanos()),
    };
    Some(format!("{} {nanos}", data.len()))
}

/// A file's number on its disk, which a build put in another's place does not share.
#[cfg(unix)]
fn number(data: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(data)
}

/// A file's number on its disk, where there is none.
#[cfg(not(unix))]
fn number(_: &fs::Metadata) -> u64 {
    0
}

impl Verdicts {
    /// Those kept in `probe/` below a cache directory; none without a directory.
    pub fn at(dir: Option<PathBuf>) -> Self {
        Verdicts { dir: dir.map(|dir| dir.join("probe")) }
    }

    /// The verdict that a probe would come to: inexact where a block was seen to differ that is no wider, in no larger a batch, than
    /// what it looks at; exact where all it looks at was seen to be.
    pub fn get(&self, key: &Key, probe: &Probe) -> Option<Verdict> {
        let kept = self.read(key)?;
        let most = |list: &[usize]| list.iter().max().copied().unwrap_or(0);
        let within = |seen: &Inexact| seen.width <= most(&probe.widths) && seen.batch <= most(&probe.batches);
        match kept.inexact.filter(within) {
            Some(seen) => Some(Verdict::Inexact { line: seen.line }),
            None => kept.exact.iter().any(|cover| cover.covers(probe)).then_some(Verdict::Exact),
        }
    }

    /// Keeps what a probe found, if it can be written. A difference that was seen once is forgotten only for an exact probe of
    /// that block, as many draws, and every width.
    pub fn put(&self, key: &Key, report: &Report) {
        let mut kept = self.read(key).unwrap_or_default();
        match report.outcomes.iter().find(|outcome| !outcome.is_exact()) {
            Some(outcome) => {
                let (width, batch, draws) = (outcome.width, outcome.batch, report.draws);
                kept.exact.retain(|cover| !cover.holds(width, batch, 0));
                kept.inexact = Some(Inexact { width, batch, draws, line: outcome.to_string() });
            }
            None => {
                let cover = report.cover();
                let all = Probe { hidden: report.hidden, ..Probe::startup(MAX_BLOCK, 1) };
                let mended = |seen: &Inexact| cover.covers(&all) && cover.holds(seen.width, seen.batch, seen.draws);
                kept.inexact = kept.inexact.filter(|seen| !mended(seen));
                kept.exact.retain(|known| *known != cover);
                kept.exact.push(cover);
                kept.exact.drain(..kept.exact.len().saturating_sub(MOST_COVERS));
            }
        }
        let inexact = kept
            .inexact
            .map(|seen| json!({ "width": seen.width, "batch": seen.batch, "draws": seen.draws, "line": seen.line }));
        let exact: Vec<Value> = kept.exact.iter().map(Cover::to_json).collect();
        let value = json!({ "key": key.0, "exact": exact, "inexact": inexact });
        if let Some(path) = self.path(key) {
            // Not being able to is no error: the next start probes again.
            let _ = replace(&path, format!("{value:#}\n").as_bytes());
            self.forget_oldest();
        }
    }

    /// What is kept under a key; `None` when any of it is not what [`Verdicts::put`] writes.
    fn read(&self, key: &Key) -> Option<Kept> {
        let mut text = Vec::new();
        File::open(self.path(key)?).ok()?.take(LARGEST).read_to_end(&mut text).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        if value["key"].as_str() != Some(&key.0) {
            return None;
        }
        let exact = value["exact"].as_array()?.iter().map(Cover::from_json).collect::<Option<_>>()?;
        let inexact = match value.get("inexact")? {
            Value::Null => None,
            seen => {
                let number = |field: &str| usize::try_from(seen[field].as_u64()?).ok();
                let line = seen["line"].as_str()?.into();
                Some(Inexact { width: number("width")?, batch: number("batch")?, draws: number("draws")?, line })
            }
        };
        Some(Kept { exact, inexact })
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(format!("{}.json", key.0)))
    }

    /// Removes the oldest beyond [`MOST`], and what writers that were killed left.
    fn forget_oldest(&self) {
        let Some(entries) = self.dir.as_ref().and_then(|dir| fs::read_dir(dir).ok()) else { return };
        let mut own: Vec<(SystemTime, PathBuf)> = entries
            .flatten()
            .filter(|entry| is_own(&entry.file_name().to_string_lossy()))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        own.sort();
        for (_, path) in own.iter().take(own.len().saturating_sub(MOST)) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a file name is one that this cache gives: anything else in the directory is left alone.
fn is_own(name: &str) -> bool {
    let is_key = |stem: &str| stem.len() == 64 && stem.bytes().all(|b| b.is_ascii_hexdigit());
    name.split_once('.').is_some_and(|(stem, rest)| is_key(stem) && (rest == "json" || rest.ends_with(".tmp")))
}

/// Writes a file whole or not at all.
fn replace(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = fs::write(&unfinished, contents).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests;
