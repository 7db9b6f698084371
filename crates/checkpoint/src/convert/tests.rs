//! Failing on purpose: disks that fill up or break at any moment leave nothing behind.

use std::cell::Cell;
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;

use serde_json::json;

use super::plan::Plan;
use super::source::Source;
use super::target::{Staging, exchange_in_steps};
use super::write::{Disk, Files, Report, Sink, write};
use super::{HfSource, Options, Summary, convert_to};
use crate::error::{CheckpointError, Result};
use crate::testing::write_checkpoint;

/// A Llama of one layer, small enough to fail at each of its writes.
fn source(dir: &Path) -> HfSource {
    let config = json!({
        "model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": true, "vocab_size": 96, "hidden_size": 64,
        "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
    });
    let layer = "model.layers.0";
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![96, 64]),
        ("model.norm.weight".into(), vec![64]),
        (format!("{layer}.input_layernorm.weight"), vec![64]),
        (format!("{layer}.post_attention_layernorm.weight"), vec![64]),
    ];
    for module in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push((format!("{layer}.self_attn.{module}.weight"), vec![64, 64]));
    }
    for module in ["gate_proj", "up_proj", "down_proj"] {
        tensors.push((format!("{layer}.mlp.{module}.weight"), vec![64, 64]));
    }
    let bytes = |shape: &[usize]| -> Vec<u8> {
        (0..shape.iter().product()).flat_map(|i: usize| ((i * 37 % 64) as f32 - 20.0).to_le_bytes()).collect()
    };
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, shape)| bytes(shape)).collect();
    let raw: Vec<_> =
        tensors.iter().zip(&data).map(|((name, shape), data)| (name.as_str(), "F32", &shape[..], &data[..])).collect();
    write_checkpoint(dir, &config, &raw);
    std::fs::write(dir.join("tokenizer.json"), "{}").expect("test file");
    HfSource::open(dir).expect("a valid source")
}

fn options() -> Options {
    Options { bits: Some(4), threads: 1, ..Options::default() }
}

/// Files of which one operation fails with this kind.
struct Failing {
    /// Only operations on a file of this name count; empty = all.
    name: &'static str,
    left: Rc<Cell<usize>>,
    kind: io::ErrorKind,
}

impl Failing {
    /// Fails at the operation number `fail` on files of that name.
    fn at(name: &'static str, fail: usize, kind: io::ErrorKind) -> Self {
        Self { name, left: Rc::new(Cell::new(fail)), kind }
    }
}

struct FailingFile {
    inner: Box<dyn Sink>,
    left: Rc<Cell<usize>>,
    kind: io::ErrorKind,
}

fn count(left: &Cell<usize>, kind: io::ErrorKind) -> io::Result<()> {
    match left.get().checked_sub(1) {
        Some(rest) => left.set(rest),
        None => return Err(kind.into()),
    }
    Ok(())
}

impl Files for Failing {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        if !self.name.is_empty() && !path.ends_with(self.name) {
            return Disk.create(path);
        }
        count(&self.left, self.kind)?;
        Ok(Box::new(FailingFile { inner: Disk.create(path)?, left: self.left.clone(), kind: self.kind }))
    }
}

impl Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        count(&self.left, self.kind)?;
        // Half a write is what a full disk gives first.
        self.inner.write(&bytes[..bytes.len().div_ceil(2)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Seek for FailingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl Sink for FailingFile {
    fn sync(&mut self) -> io::Result<()> {
        count(&self.left, self.kind)?;
        self.inner.sync()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("directory")
        .map(|item| item.expect("item").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

fn attempt(source: &HfSource, target: &Path, files: &dyn Files) -> Result<Summary> {
    convert_to(source, target, &options(), files, &mut |_| true)
}

#[test]
fn a_failure_at_any_write_leaves_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    let target = dir.path().join("out");
    let mut fail = 0;
    // Every operation in turn, until one attempt needs no more.
    loop {
        let files = Failing::at("", fail, io::ErrorKind::BrokenPipe);
        match attempt(&source, &target, &files) {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, CheckpointError::Io { .. }), "{error}"),
        }
        assert_eq!(names(dir.path()), ["hf"], "after failure {fail}");
        fail += 1;
    }
    assert!(fail > 20, "only {fail} operations were seen");
    assert_eq!(names(dir.path()), ["hf", "out"]);
}

/// The twin: a conversion that fails at its first write and does not clean up is seen by the check above, and what it
/// leaves goes with the next one once its lock is gone.
#[test]
fn a_left_over_would_be_seen() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    let target = dir.path().join("out");
    let plan = Plan::new(&source, &options()).expect("plan");
    let staging = Staging::create(Some(source.path()), &target, false, Vec::new()).expect("staging");
    let files = Failing::at("", 2, io::ErrorKind::BrokenPipe);
    write(&source, &plan, &staging, &files, 1, &mut |_| true).expect_err("broken");
    std::mem::forget(staging);
    let left = names(dir.path());
    assert!(left.len() == 2 && left[0].starts_with(".out.partial-"), "{left:?}");
}

#[test]
fn a_full_disk_says_what_is_needed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    for (fail, file) in [(1, "config.json"), (4, "model.safetensors")] {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let error = attempt(&source, &dir.path().join("out"), &Failing::at(file, fail, kind)).expect_err("full");
            let CheckpointError::NoSpace { path, needed, available } = &error else { panic!("{error}") };
            assert!(path.ends_with(file), "{} is not {file}", path.display());
            // Codes, scales, biases of 6144 + 7 * 4096 values, and some JSON.
            assert!((21_760..40_000).contains(needed), "{needed}");
            assert!(available.is_some() || cfg!(not(unix)));
            assert!(error.to_string().contains("bytes needed"), "{error}");
            assert_eq!(names(dir.path()), ["hf"]);
        }
        // Not a full disk: no space that is made would help.
        let files = Failing::at(file, fail, io::ErrorKind::FileTooLarge);
        let message = attempt(&source, &dir.path().join("out"), &files).expect_err("too large").to_string();
        assert!(message.contains(file) && message.contains("files as large as this"), "{message}");
        assert!(!message.contains("no space"), "{message}");
        assert_eq!(names(dir.path()), ["hf"]);
    }
}

/// The wish to end it that comes with the last report, when all is written, is honoured.
#[test]
fn the_last_report_can_end_it() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    let target = dir.path().join("out");
    let convert = |report: Report<'_>| convert_to(&source, &target, &options(), &Disk, report);
    let last = convert(&mut |progress| progress.bytes < progress.total_bytes).expect_err("ended");
    assert!(matches!(last, CheckpointError::Interrupted { .. }), "{last}");
    assert_eq!(names(dir.path()), ["hf"]);
    convert(&mut |_| true).expect("converts");
}

/// The fallback of file systems without exchange.
#[test]
fn directories_change_places_in_steps() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (new, old) = (dir.path().join(".out.partial-1"), dir.path().join("out"));
    for (path, text) in [(&new, "new"), (&old, "old")] {
        std::fs::create_dir(path).expect("directory");
        std::fs::write(path.join("config.json"), text).expect("write");
    }
    let read = |path: &Path| std::fs::read_to_string(path.join("config.json")).expect("file");
    exchange_in_steps(&new, &old).expect("exchange");
    assert_eq!((read(&new), read(&old)), ("old".into(), "new".into()));
    assert_eq!(names(dir.path()), [".out.partial-1", "out"]);
    // The new one is gone (abandoned): the old one is put back.
    std::fs::remove_dir_all(&new).expect("remove");
    exchange_in_steps(&new, &old).expect_err("nothing to put there");
    assert_eq!(read(&old), "new");
    assert_eq!(names(dir.path()), ["out"]);
}

/// A failure under `--force` keeps what was there.
#[test]
fn a_failed_replacement_keeps_the_old() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    let target = dir.path().join("out");
    attempt(&source, &target, &Disk).expect("first");
    let before = std::fs::read(target.join("model.safetensors")).expect("weights");
    std::fs::write(target.join("tokenizer_config.json"), "old").expect("file");
    let force = Options { force: true, bits: Some(8), ..options() };
    let files = Failing::at("model.safetensors", 3, io::ErrorKind::StorageFull);
    convert_to(&source, &target, &force, &files, &mut |_| true).expect_err("full");
    assert_eq!(std::fs::read(target.join("model.safetensors")).expect("weights"), before);
    assert_eq!(names(dir.path()), ["hf", "out"]);
    convert_to(&source, &target, &force, &Disk, &mut |_| true).expect("second");
    assert_ne!(std::fs::read(target.join("model.safetensors")).expect("weights"), before);
    assert!(!target.join("tokenizer_config.json").exists(), "the old directory is gone as a whole");
    assert_eq!(names(dir.path()), ["hf", "out"]);
}

/// Unmounts, even when a check fails; otherwise the temporary directory could not be removed.
#[cfg(target_os = "linux")]
struct Mount<'a>(&'a Path);

#[cfg(target_os = "linux")]
impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let done = std::process::Command::new("umount").arg(self.0).status().is_ok_and(|status| status.success());
        assert!(done || std::thread::panicking(), "{} is still mounted", self.0.display());
    }
}

/// A real full disk, where one may be made.
#[cfg(target_os = "linux")]
#[test]
fn a_small_file_system_fills_up() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    let small = dir.path().join("small");
    std::fs::create_dir(&small).expect("directory");
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&small).output();
    let reason = match mounted {
        Ok(out) if out.status.success() => None,
        Ok(out) => Some(String::from_utf8_lossy(&out.stderr).trim().to_string()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = reason {
        eprintln!("SKIPPED a_small_file_system_fills_up: no file system can be mounted here: {reason}");
        return;
    }
    let _mount = Mount(&small);
    // 24 KiB left, which is not enough: known before anything is written.
    std::fs::write(small.join("filler"), vec![0; 40 << 10]).expect("filler");
    let known = attempt(&source, &small.join("out"), &Disk);
    // Enough at the beginning, and not once another program has written: found at the write itself.
    std::fs::write(small.join("filler"), vec![0; 4 << 10]).expect("filler");
    let mut filled = false;
    let late = convert_to(&source, &small.join("out"), &options(), &Disk, &mut |_| {
        if !filled {
            filled = true;
            // Whatever fits.
            let _ = std::fs::write(small.join("another"), vec![0; 64 << 10]);
        }
        true
    });
    let mut left = names(&small);
    left.retain(|name| name != "filler" && name != "another");
    let known = known.expect_err("does not fit");
    assert!(matches!(&known, CheckpointError::NoSpace { path, .. } if path.ends_with("out")), "{known}");
    let late = late.expect_err("filled up");
    assert!(matches!(&late, CheckpointError::NoSpace { path, .. } if path.ends_with("model.safetensors")), "{late}");
    assert_eq!(left, Vec::<String>::new());
}

/// What the planned offsets promise: the file is the header, then exactly the planned data, however it is written.
#[test]
fn writing_in_memory_gives_what_the_disk_gets() {
    struct Memory(Rc<std::cell::RefCell<Vec<Vec<u8>>>>);
    struct MemoryFile(Cursor<Vec<u8>>, Rc<std::cell::RefCell<Vec<Vec<u8>>>>);
    impl Files for Memory {
        fn create(&self, _: &Path) -> io::Result<Box<dyn Sink>> {
            Ok(Box::new(MemoryFile(Cursor::default(), self.0.clone())))
        }
    }
    impl Write for MemoryFile {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Seek for MemoryFile {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }
    impl Sink for MemoryFile {
        fn sync(&mut self) -> io::Result<()> {
            self.1.borrow_mut().push(self.0.get_ref().clone());
            Ok(())
        }
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = source(&dir.path().join("hf"));
    let written = Rc::default();
    attempt(&source, &dir.path().join("memory"), &Memory(Rc::clone(&written))).expect("memory");
    attempt(&source, &dir.path().join("disk"), &Disk).expect("disk");
    let disk = std::fs::read(dir.path().join("disk/model.safetensors")).expect("weights");
    assert!(written.borrow().contains(&disk));
}
