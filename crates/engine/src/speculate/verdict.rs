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

use super::probe::{Probe, Verdict};

/// Verdicts that are kept; beyond, the oldest go.
const MOST: usize = 256;
/// No verdict is larger, in bytes.
const LARGEST: u64 = 1 << 16;

/// The verdicts on this machine.
#[derive(Clone, Debug)]
pub struct Verdicts {
    dir: Option<PathBuf>,
}

/// Everything that a verdict depends on, as one hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Of probing the checkpoint in a directory: its files (names, sizes, times), the backend as it describes itself
    /// ([`Model::backend`](mlxcel_model::Model::backend)), this build (version, size and time of the executable), and the probe's widths
    /// and batches. `None` when some of that cannot be found out.
    pub fn new(checkpoint: &Path, backend: &str, probe: &Probe) -> Option<Key> {
        Self::of_build(checkpoint, backend, probe, &std::env::current_exe().ok()?)
    }

    fn of_build(checkpoint: &Path, backend: &str, probe: &Probe, executable: &Path) -> Option<Key> {
        let dir = checkpoint.canonicalize().ok()?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&dir).ok()? {
            let entry = entry.ok()?;
            // Through links, as the files of the Hugging Face cache are.
            let data = fs::metadata(entry.path()).ok()?;
            if data.is_file() {
                files.push((entry.file_name().into_encoded_bytes(), stamp(&data)?));
            }
        }
        files.sort();
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
        part(stamp(&fs::metadata(executable).ok()?)?.as_bytes());
        for list in [&probe.widths, &probe.batches] {
            part(format!("{list:?}").as_bytes());
        }
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

impl Verdicts {
    /// Those kept in `probe/` below a cache directory; none without a directory.
    pub fn at(dir: Option<PathBuf>) -> Self {
        Verdicts { dir: dir.map(|dir| dir.join("probe")) }
    }

    /// The verdict kept under a key.
    pub fn get(&self, key: &Key) -> Option<Verdict> {
        let mut text = Vec::new();
        File::open(self.path(key)?).ok()?.take(LARGEST).read_to_end(&mut text).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        if value["key"].as_str() != Some(&key.0) {
            return None;
        }
        match value["verdict"].as_str()? {
            "exact" => Some(Verdict::Exact),
            "inexact" => Some(Verdict::Inexact { line: value["line"].as_str()?.into() }),
            _ => None,
        }
    }

    /// Keeps a verdict, if it can be written.
    pub fn put(&self, key: &Key, verdict: &Verdict) {
        let value = match verdict {
            Verdict::Exact => json!({ "key": key.0, "verdict": "exact" }),
            Verdict::Inexact { line } => json!({ "key": key.0, "verdict": "inexact", "line": line }),
        };
        if let Some(path) = self.path(key) {
            // Not being able to is no error: the next start probes again.
            let _ = replace(&path, format!("{value:#}\n").as_bytes());
            self.forget_oldest();
        }
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
mod tests {
    use super::*;
    use std::time::Duration;

    /// A checkpoint, an executable and a cache in a directory.
    struct Place {
        root: tempfile::TempDir,
        probe: Probe,
    }

    impl Place {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a directory");
            for dir in ["model", "cache"] {
                fs::create_dir(root.path().join(dir)).expect("a directory");
            }
            let place = Place { root, probe: Probe::startup(4, 2) };
            place.write("model/config.json", "{}");
            place.write("model/model.safetensors", "weights");
            place.write("mlxcel", "program");
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).expect("written");
        }

        fn touch(&self, name: &str, seconds: u64) {
            let file = File::options().append(true).open(self.path(name)).expect("open");
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("time");
        }

        fn key_of(&self, backend: &str, probe: &Probe) -> Key {
            Key::of_build(&self.path("model"), backend, probe, &self.path("mlxcel")).expect("a key")
        }

        fn key(&self) -> Key {
            self.key_of("cpu", &self.probe)
        }

        fn verdicts(&self) -> Verdicts {
            Verdicts::at(Some(self.path("cache")))
        }
    }

    fn inexact() -> Verdict {
        Verdict::Inexact { line: "K=4 B=1  INEXACT  \"quoted\"\nand more".into() }
    }

    #[test]
    fn verdicts_are_found_again() {
        let place = Place::new();
        let (verdicts, key) = (place.verdicts(), place.key());
        assert_eq!(verdicts.get(&key), None);
        for verdict in [Verdict::Exact, inexact(), Verdict::Exact] {
            verdicts.put(&key, &verdict);
            assert_eq!(place.verdicts().get(&place.key()), Some(verdict));
        }
        let names: Vec<_> = fs::read_dir(place.path("cache/probe")).expect("made").flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let shorter = Probe { draws: 1, seed: 9, budget: None, ..place.probe.clone() };
        assert_eq!(place.key_of("cpu", &shorter), key, "what was probed is the same");
    }

    #[test]
    fn whatever_decides_about_bits_changes_the_key() {
        let place = Place::new();
        let (wider, batched) = (Probe::startup(5, 2), Probe::startup(4, 3));
        let mut keys = vec![
            place.key(),
            place.key_of("cuda", &place.probe),
            place.key_of("cpu", &wider),
            place.key_of("cpu", &batched),
        ];
        place.write("model/model.safetensors", "longer weights");
        keys.push(place.key());
        place.touch("model/model.safetensors", 1_000_000);
        keys.push(place.key());
        fs::rename(place.path("model/config.json"), place.path("model/renamed.json")).expect("renamed");
        keys.push(place.key());
        place.write("mlxcel", "another program");
        keys.push(place.key());
        place.touch("mlxcel", 1_000_000);
        keys.push(place.key());
        fs::rename(place.path("model"), place.path("moved")).expect("moved");
        assert_eq!(Key::of_build(&place.path("model"), "cpu", &place.probe, &place.path("mlxcel")), None);
        keys.extend(Key::of_build(&place.path("moved"), "cpu", &place.probe, &place.path("mlxcel")));
        assert_eq!(keys.len(), 10);
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} is an earlier one");
        }
    }

    #[test]
    fn damaged_and_foreign_files_are_not_verdicts() {
        let place = Place::new();
        let (verdicts, key) = (place.verdicts(), place.key());
        verdicts.put(&key, &Verdict::Exact);
        let file = verdicts.path(&key).expect("a path");
        let whole = fs::read_to_string(&file).expect("written");
        let other = place.key_of("another", &place.probe);
        let damaged = [
            String::new(),
            whole[..whole.len() / 2].into(),
            "[]".into(),
            "null".into(),
            format!("{{\"key\": {:?}}}", key.0),
            format!("{{\"key\": {:?}, \"verdict\": 1}}", key.0),
            format!("{{\"key\": {:?}, \"verdict\": \"inexact\"}}", key.0),
            format!("{{\"key\": {:?}, \"verdict\": \"probably\"}}", key.0),
            whole.replace(&key.0, &other.0),
            format!("{}{whole}", " ".repeat(LARGEST as usize)),
        ];
        for text in &damaged {
            fs::write(&file, text).expect("written");
            assert_eq!(verdicts.get(&key), None, "{text:.80?}");
        }
        fs::write(&file, [0xff, 0xfe, 0]).expect("written");
        assert_eq!(verdicts.get(&key), None, "bytes");
        // The twin: the file as it was is one.
        fs::write(&file, &whole).expect("written");
        assert_eq!(verdicts.get(&key), Some(Verdict::Exact));
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("a directory in its place");
        assert_eq!(verdicts.get(&key), None);
        verdicts.put(&key, &Verdict::Exact);
        assert_eq!(verdicts.get(&key), None);
        let left = fs::read_dir(place.path("cache/probe")).expect("there").count();
        assert_eq!(left, 1, "nothing half-written stays");
    }

    #[test]
    fn no_place_to_write_is_no_cache() {
        let place = Place::new();
        let key = place.key();
        // No directory at all, and a file where the directory should be.
        for verdicts in [Verdicts::at(None), Verdicts::at(Some(place.path("mlxcel")))] {
            verdicts.put(&key, &Verdict::Exact);
            assert_eq!(verdicts.get(&key), None);
        }
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let place = Place::new();
        let verdicts = place.verdicts();
        let dir = place.path("cache/probe");
        fs::create_dir_all(&dir).expect("made");
        for i in 0..MOST + 10 {
            let name = format!("cache/probe/{i:064x}.{}", if i == 3 { "77.tmp" } else { "json" });
            place.write(&name, "{}");
            place.touch(&name, 1_000 + i as u64);
        }
        place.write("cache/probe/notes.json", "the user's own");
        place.touch("cache/probe/notes.json", 1);
        verdicts.put(&place.key(), &Verdict::Exact);
        assert_eq!(verdicts.get(&place.key()), Some(Verdict::Exact));
        let exists = |i: usize, end: &str| dir.join(format!("{i:064x}.{end}")).exists();
        assert!(!exists(0, "json") && !exists(3, "77.tmp") && !exists(10, "json") && exists(11, "json"));
        assert!(dir.join("notes.json").exists());
        assert_eq!(fs::read_dir(&dir).expect("there").count(), MOST + 1);
    }
}
