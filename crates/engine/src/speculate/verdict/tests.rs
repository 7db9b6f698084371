use super::*;
use crate::speculate::probe::{Difference, Outcome, What};
use mlxcel_model::drafters::HiddenRows;
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
        place.write("elsewhere.safetensors", "a shard");
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

    /// The key as it is now, with a shard in a folder elsewhere.
    fn key_of(&self, model: &str, backend: &str) -> Option<Key> {
        let shard = self.path("elsewhere.safetensors");
        Key::of_build(&self.path(model), [shard.as_path()], backend, &self.path("mlxcel"))
    }

    fn key(&self) -> Key {
        self.key_of("model", "cpu").expect("a key")
    }

    fn verdicts(&self) -> Verdicts {
        Verdicts::at(Some(self.path("cache")))
    }
}

/// What a probe came to: the outcome of this width and batch differs, or none.
fn report(probe: &Probe, differs: Option<(usize, usize)>) -> Report {
    let what = What::Logits { token: 1, expected: 0.5, found: 0.25 };
    let first = Difference { draw: 0, sequence: 0, position: 9, what, site: None };
    let outcome = |width, batch| Outcome {
        width,
        batch,
        mixed: false,
        rows: 8,
        bytes: 64,
        differing: 0,
        states: 0,
        first: (differs == Some((width, batch))).then(|| first.clone()),
    };
    Report {
        model: "model".into(),
        backend: "cpu".into(),
        seed: 0,
        draws: probe.draws,
        hidden: probe.hidden,
        outcomes: probe.batches.iter().flat_map(|b| probe.widths.iter().map(|w| outcome(*w, *b))).collect(),
        elapsed: Duration::ZERO,
    }
}

fn exact(probe: &Probe) -> Report {
    report(probe, None)
}

#[test]
fn verdicts_are_found_again() {
    let place = Place::new();
    let (verdicts, key) = (place.verdicts(), place.key());
    assert_eq!(verdicts.get(&key, &place.probe), None);
    for _ in 0..2 {
        verdicts.put(&key, &exact(&place.probe));
        assert_eq!(place.verdicts().get(&place.key(), &place.probe), Some(Verdict::Exact));
        let found = report(&place.probe, Some((3, 1)));
        verdicts.put(&key, &found);
        assert_eq!(place.verdicts().get(&place.key(), &place.probe), Some(found.verdict()));
        fs::remove_dir_all(place.path("cache/probe")).expect("removed");
    }
    verdicts.put(&key, &exact(&place.probe));
    let names: Vec<_> = fs::read_dir(place.path("cache/probe")).expect("made").flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

/// An exact verdict serves what it looked at and no more; one difference stands against all that would meet it.
#[test]
fn verdicts_serve_what_they_cover() {
    let place = Place::new();
    let (verdicts, key) = (place.verdicts(), place.key());
    let get = |probe: &Probe| verdicts.get(&key, probe);
    let start = Probe::startup;
    verdicts.put(&key, &exact(&start(8, 4)));
    for served in [start(8, 4), start(2, 1), start(5, 3), Probe { seed: 9, ..start(8, 4) }] {
        assert_eq!(get(&served), Some(Verdict::Exact), "{served:?}");
    }
    let hidden = Probe { hidden: HiddenRows::All, ..start(8, 4) };
    for other in [start(9, 1), start(8, 5), Probe { draws: 2, ..start(8, 4) }, hidden] {
        assert_eq!(get(&other), None, "{other:?}");
    }
    // A second one does not displace the first.
    verdicts.put(&key, &exact(&start(16, 1)));
    assert_eq!((get(&start(16, 1)), get(&start(8, 4))), (Some(Verdict::Exact), Some(Verdict::Exact)));
    assert_eq!(get(&start(16, 4)), None);

    let more = Probe { draws: 4, ..start(16, 4) };
    let found = report(&more, Some((12, 1)));
    verdicts.put(&key, &found);
    assert_eq!(get(&start(16, 1)), Some(found.verdict()));
    assert_eq!(get(&start(12, 4)), Some(found.verdict()));
    assert_eq!(get(&start(8, 4)), Some(Verdict::Exact), "narrower blocks are as they were");
    // Another difference takes its place; what was exact before the first stays in doubt.
    verdicts.put(&key, &report(&more, Some((2, 4))));
    assert_eq!(get(&start(16, 1)), None);
    verdicts.put(&key, &found);
    // Less than what found it does not speak against it.
    for less in [start(16, 4), Probe { draws: 4, ..start(8, 4) }] {
        verdicts.put(&key, &exact(&less));
        assert_eq!(get(&start(16, 1)), Some(found.verdict()), "{less:?}");
    }
    verdicts.put(&key, &exact(&more));
    assert_eq!(get(&start(16, 4)), Some(Verdict::Exact));
    for width in 2..=16 {
        verdicts.put(&key, &exact(&Probe { draws: 5, ..start(width, 1) }));
    }
    let text = fs::read_to_string(verdicts.path(&key).expect("a path")).expect("written");
    assert_eq!(text.matches("draws").count(), MOST_COVERS, "{text}");
}

#[test]
fn whatever_decides_about_bits_changes_the_key() {
    let place = Place::new();
    let mut keys = vec![place.key(), place.key_of("model", "cuda").expect("a key")];
    for file in ["model/model.safetensors", "elsewhere.safetensors", "mlxcel"] {
        place.write(file, "longer than it was");
        keys.push(place.key());
        place.touch(file, 1_000_000);
        keys.push(place.key());
    }
    fs::rename(place.path("model/config.json"), place.path("model/renamed.json")).expect("renamed");
    keys.push(place.key());
    #[cfg(unix)]
    {
        // Another program of the same size and time in the same place.
        place.write("other", "longer than it was");
        place.touch("other", 1_000_000);
        fs::rename(place.path("other"), place.path("mlxcel")).expect("renamed");
        keys.push(place.key());
    }
    fs::rename(place.path("model"), place.path("moved")).expect("moved");
    assert_eq!(place.key_of("model", "cpu"), None);
    keys.extend(place.key_of("moved", "cpu"));
    fs::remove_file(place.path("elsewhere.safetensors")).expect("removed");
    assert_eq!(place.key_of("moved", "cpu"), None, "a shard that is gone");
    assert_eq!(keys.len(), if cfg!(unix) { 11 } else { 10 });
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "key {i} is an earlier one");
    }
}

#[test]
fn damaged_and_foreign_files_are_not_verdicts() {
    let place = Place::new();
    let (verdicts, key) = (place.verdicts(), place.key());
    verdicts.put(&key, &exact(&place.probe));
    let file = verdicts.path(&key).expect("a path");
    let whole = fs::read_to_string(&file).expect("written");
    let other = place.key_of("model", "another").expect("a key");
    let damaged = [
        String::new(),
        whole[..whole.len() / 2].into(),
        "[]".into(),
        "null".into(),
        format!("{{\"key\": {:?}}}", key.0),
        format!("{{\"key\": {:?}, \"exact\": 1}}", key.0),
        whole.replace("inexact", "unexact"),
        whole.replace("exact", "verdict"),
        whole.replace("null", "\"probably\""),
        whole.replace("draws", "throws"),
        whole.replace(&key.0, &other.0),
        format!("{}{whole}", " ".repeat(LARGEST as usize)),
    ];
    for text in &damaged {
        fs::write(&file, text).expect("written");
        assert_eq!(verdicts.get(&key, &place.probe), None, "{text:.80?}");
    }
    fs::write(&file, [0xff, 0xfe, 0]).expect("written");
    assert_eq!(verdicts.get(&key, &place.probe), None, "bytes");
    // The twin: the file as it was is one.
    fs::write(&file, &whole).expect("written");
    assert_eq!(verdicts.get(&key, &place.probe), Some(Verdict::Exact));
    fs::remove_file(&file).expect("removed");
    fs::create_dir(&file).expect("a directory in its place");
    assert_eq!(verdicts.get(&key, &place.probe), None);
    verdicts.put(&key, &exact(&place.probe));
    assert_eq!(verdicts.get(&key, &place.probe), None);
    let left = fs::read_dir(place.path("cache/probe")).expect("there").count();
    assert_eq!(left, 1, "nothing half-written stays");
}

#[test]
fn no_place_to_write_is_no_cache() {
    let place = Place::new();
    let key = place.key();
    // No directory at all, and a file where the directory should be.
    for verdicts in [Verdicts::at(None), Verdicts::at(Some(place.path("mlxcel")))] {
        verdicts.put(&key, &exact(&place.probe));
        assert_eq!(verdicts.get(&key, &place.probe), None);
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
    verdicts.put(&place.key(), &exact(&place.probe));
    assert_eq!(verdicts.get(&place.key(), &place.probe), Some(Verdict::Exact));
    let exists = |i: usize, end: &str| dir.join(format!("{i:064x}.{end}")).exists();
    assert!(!exists(0, "json") && !exists(3, "77.tmp") && !exists(10, "json") && exists(11, "json"));
    assert!(dir.join("notes.json").exists());
    assert_eq!(fs::read_dir(&dir).expect("there").count(), MOST + 1);
}
