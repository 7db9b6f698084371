//! What may be replaced: a checkpoint that holds nothing else, so that a mistyped path costs nobody a file of their own.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use super::hf::{is_companion, is_licence};
use crate::checkpoint::INDEX;
use crate::store::MANIFEST;

/// Largest `config.json` that is read.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Text files of tokenizers; any other may be somebody's notes.
const TEXTS: [&str; 2] = ["merges.txt", "vocab.txt"];

/// Which directory (or file) a name stands for: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

/// What has this name now, links not followed; `None` = nothing.
pub(super) fn identity(path: &Path) -> io::Result<Option<Identity>> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(of(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn of(metadata: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity(metadata.dev(), metadata.ino())
}

/// No numbers here: the time of creation is as near as one comes.
#[cfg(not(unix))]
fn of(metadata: &std::fs::Metadata) -> Identity {
    let created = metadata.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Identity(0, created.map_or(0, |time| time.as_nanos() as u64))
}

/// Why a directory may not be replaced; `None` when it is empty, or a checkpoint of files that conversions write.
/// `companions` are names that the new one will have as well.
pub(super) fn problem_with(dir: &Path, companions: &[String]) -> Option<String> {
    let not_one = |why: &str| Some(format!("exists and is no checkpoint ({why}); not replaced"));
    let items = match std::fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(items) => items,
        Err(error) => return not_one(&format!("cannot be listed: {error}")),
    };
    if items.is_empty() {
        return None;
    }
    let (mut weights, mut foreign) = (false, Vec::new());
    for item in &items {
        let name = item.file_name().to_string_lossy().into_owned();
        let is_dir = item.file_type().map_or(true, |kind| kind.is_dir());
        weights |= is_weights(&name);
        if is_dir || !(is_own(&name) || companions.contains(&name)) {
            foreign.push(name);
        }
    }
    if !has_model_type(&dir.join("config.json")) {
        return not_one("a directory with a config.json that names a model_type");
    }
    if !weights {
        return not_one("no *.safetensors file beside config.json");
    }
    if foreign.is_empty() {
        return None;
    }
    foreign.sort();
    let more = foreign.len().saturating_sub(5);
    foreign.truncate(5);
    let more = if more > 0 { format!(" and {more} others") } else { String::new() };
    Some(format!(
        "holds what no conversion writes: {}{more}; not replaced: move that away or give another directory with -o",
        foreign.join(", ")
    ))
}

fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

/// True for the names that conversions and pulls write.
fn is_own(name: &str) -> bool {
    is_weights(name)
        || ["config.json", INDEX, MANIFEST, ".DS_Store"].contains(&name)
        || is_licence(name)
        || (is_companion(name) && (!name.ends_with(".txt") || TEXTS.contains(&name)))
}

fn has_model_type(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes));
    read.is_ok()
        && serde_json::from_slice::<Value>(&bytes)
            .is_ok_and(|config| config.get("model_type").is_some_and(Value::is_string))
}
