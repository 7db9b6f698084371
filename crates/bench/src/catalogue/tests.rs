//! The catalogue against the embedded checkpoints and the docs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use mlxcel_checkpoint::Checkpoint;
use mlxcel_checkpoint::store::RepoId;

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tree() -> Places {
    Places { shelves: vec![root().join("models")], ..Places::default() }
}

#[test]
fn every_pairing_is_whole() {
    let names: HashSet<&str> = PAIRINGS.iter().map(|pairing| pairing.name).collect();
    assert_eq!(names.len(), PAIRINGS.len(), "names are unique");
    for pairing in &PAIRINGS {
        assert!((2..=16).contains(&pairing.block_size), "{}", pairing.name);
        assert!(pairing.variant.takes(pairing.kind) && pairing.kind.needs_checkpoint(), "{}", pairing.name);
        for name in [pairing.target, pairing.drafter] {
            assert_eq!(name.parse::<RepoId>().is_ok(), !pairing.embedded, "{name}");
        }
        assert!(pairing.unverified.iter().all(|n| [pairing.target, pairing.drafter].contains(n)), "{}", pairing.name);
        assert_eq!(find(pairing.name), Some(pairing));
    }
    assert_eq!(find("no-such"), None);
}

#[test]
fn the_embedded_ones_are_what_they_say() {
    for pairing in PAIRINGS.iter().filter(|pairing| pairing.embedded) {
        let found = pairing.resolve(&tree()).expect("comes with the project");
        let target = Checkpoint::open(&found.target).expect("opens");
        assert_eq!(Variant::of_target(&target, pairing.kind), Ok(pairing.variant), "{}", pairing.name);
        let drafter = Checkpoint::open(&found.drafter).expect("opens");
        let block_size = drafter.config()["block_size"].as_u64();
        assert_eq!(block_size, Some(pairing.block_size as u64), "{}", pairing.name);
        assert_eq!(Variant::of_config(drafter.config()), None, "a drafter is no target");
        assert!(Variant::of_target(&drafter, pairing.kind).is_err());
    }
}

#[test]
fn a_sweep_takes_what_is_on_disk() {
    let names = |places: &Places, all| sweep(places, all).iter().map(|p| p.name).collect::<Vec<_>>();
    let embedded = ["gemma-4-tiny-4bit", "gemma-4-tiny-bf16", "qwen3.5-tiny-4bit"];
    assert_eq!(names(&tree(), false), embedded);
    assert_eq!(names(&tree(), true).len(), PAIRINGS.len());
    let dir = tempfile::tempdir().expect("temporary directory");
    let put = |name: &str| {
        std::fs::create_dir_all(dir.path().join(name)).expect("directory");
        std::fs::write(dir.path().join(name).join("config.json"), "{}").expect("file");
    };
    put("Qwen3.8-27B-4bit");
    let places = Places { models_dir: Some(dir.path().into()), ..tree() };
    assert_eq!(names(&places, false), embedded, "the drafter is absent");
    put("mlx-community/Qwen3.8-27B-MTP-bf16");
    assert_eq!(names(&places, false), ["qwen3.8-27b-mtp-bf16"], "the embedded ones are for those who have no other");
}

#[test]
fn an_absent_half_is_named() {
    let pairing = find("gemma-4-31b-bf16").expect("in the catalogue");
    let absent = pairing.resolve(&tree()).expect_err("not on disk");
    assert_eq!(absent.name, pairing.target);
    assert!(absent.to_string().contains("models"), "{absent}");
}

#[test]
fn the_list_shows_what_is_there() {
    let text = list(&tree());
    let line = |name: &str| text.lines().find(|l| l.split_whitespace().next() == Some(name)).expect(name).to_string();
    let embedded = line("gemma-4-tiny-4bit");
    assert!(embedded.contains("gemma-4-tiny-it-assistant-4bit") && !embedded.contains("absent"), "{embedded}");
    assert!(line("qwen3.8-27b-mtp-4bit").contains("absent: mlx-community/Qwen3.8-27B-4bit"));
    assert!(line("qwen3.5-35b-a3b-mtp-4bit").contains("Qwen3.5-35B-A3B-MTP-4bit?"));
    assert!(text.contains("Looked in:"), "{text}");
}

#[test]
fn the_docs_have_this_table() {
    let file = root().join("docs/benchmarks.md");
    let text = std::fs::read_to_string(&file).expect("docs/benchmarks.md");
    let between =
        |from: &str, to: &str| text.split_once(from).and_then(|(_, rest)| rest.split_once(to)).map(|(part, _)| part);
    let table = between("<!-- catalogue:begin -->\n", "<!-- catalogue:end -->").expect("catalogue markers");
    assert_eq!(
        table.trim(),
        markdown().trim(),
        "put the table of catalogue::markdown() between the markers:\n{}",
        markdown()
    );
}

#[test]
fn kinds_have_names() {
    for kind in Kind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "eagle".parse::<Kind>().expect_err("unknown");
    assert!(error.contains("ngram") && error.contains("\"eagle\""), "{error}");
}
