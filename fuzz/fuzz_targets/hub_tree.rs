//! Any answer as a listing of files, any header as a link to the next page, any name as a path: an error, or something safe.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use mlxcel_checkpoint::hub::tree::{next_link, parse_tree};
use mlxcel_checkpoint::store::safe_path;

fuzz_target!(|data: &[u8]| {
    if let Ok(files) = parse_tree(data) {
        for file in files {
            check(&file.path);
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(next) = next_link(text) {
        assert!(text.contains(next));
    }
    check(text);
    let _ = text.parse::<mlxcel_checkpoint::store::RepoId>();
});

/// A name is refused, or stays inside any directory it is joined to.
fn check(name: &str) {
    if let Ok(path) = safe_path(name) {
        assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
        assert!(Path::new("/store").join(&path).starts_with("/store"));
    }
}
