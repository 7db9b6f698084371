//! Targets: whole or not there, and nobody's own files replaced.

use std::path::Path;

use mlxcel_checkpoint::convert::{Options, abandon, convert, default_target, open};
use mlxcel_compute::format::DType;

use crate::convert_support::{Llama, convert_to, fails, names, read};

#[test]
fn targets_are_made_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, target) = (dir.path().join("hf"), dir.path().join("out"));
    Llama::new("F32").write(&source);
    let force = Options { force: true, ..Options::default() };
    let none = Options::default();

    fails(&source, &source, &force, &["is the source itself"]);
    fails(&source, dir.path(), &force, &["holds the source"]);
    fails(&source, &dir.path().join("a/b"), &none, &["a/b", "no directory to make it in"]);
    fails(&source, &dir.path().join(".."), &none, &["expected the path of a directory to make"]);

    // Ended by the caller, at once or after a while.
    for calls in [0, 5] {
        let opened = open(&source).expect("opens");
        let mut left = calls;
        let ended = convert(&*opened, &target, &none, &mut |_| {
            left -= 1;
            left >= 0
        });
        let message = ended.expect_err("ended").to_string();
        assert!(message.contains("interrupted; nothing was kept"), "{message}");
        assert_eq!(names(dir.path()), ["hf"]);
    }

    // What a dead process left goes; what somebody writes, and what only looks alike, stays.
    let partial = |id: &str| dir.path().join(format!(".out.partial-{id}"));
    for id in ["4000001", "4000002", "4000003x", "4000004-old", "4000005-older"] {
        std::fs::create_dir(partial(id)).expect("directory");
        std::fs::write(partial(id).join("model.safetensors"), "x").expect("write");
    }
    std::fs::create_dir(dir.path().join(".other.partial-4000001")).expect("directory");
    let alive = std::fs::File::open(partial("4000002")).expect("directory");
    alive.lock().expect("lock");
    convert_to(&source, &target, &none);
    assert!(!partial("4000001").exists());
    let kept = [".other.partial-4000001", ".out.partial-4000002", ".out.partial-4000003x"];
    let kept = [&kept[..], &[".out.partial-4000004-old", ".out.partial-4000005-older", "hf", "out"]].concat();
    assert_eq!(names(dir.path()), kept);

    // There already.
    fails(&source, &target, &none, &["out", "exists already", "--force"]);
    drop(alive);
    convert_to(&source, &target, &Options { dtype: Some(DType::Bf16), ..force.clone() });
    assert_eq!(read(&target)["model.norm.weight"].0, "BF16");
    assert!(!partial("4000002").exists(), "its process is gone now");

    // Not a checkpoint: kept, whatever is typed.
    let home = dir.path().join("home");
    std::fs::create_dir(&home).expect("directory");
    std::fs::write(home.join("letter.txt"), "dear").expect("write");
    fails(&source, &home, &force, &["home", "no checkpoint", "not replaced"]);
    fails(&source, &home.join("letter.txt"), &force, &["letter.txt", "not replaced"]);
    assert!(home.join("letter.txt").exists());
}

#[cfg(unix)]
#[test]
fn a_link_is_replaced_where_it_leads() {
    let dir = tempfile::tempdir().expect("temporary directory");
    Llama::new("F32").write(&dir.path().join("hf"));
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    convert_to(&dir.path().join("hf"), &real, &Options::default());
    std::os::unix::fs::symlink(&real, &link).expect("link");
    fails(&dir.path().join("hf"), &link, &Options::default(), &["exists already"]);
    convert_to(&dir.path().join("hf"), &link, &Options { force: true, dtype: Some(DType::F16), ..Options::default() });
    assert!(link.is_symlink());
    assert_eq!(read(&real)["model.norm.weight"].0, "F16");
    // A link to the source is the source.
    std::fs::remove_file(&link).expect("remove");
    std::os::unix::fs::symlink(dir.path().join("hf"), &link).expect("link");
    let force = Options { force: true, ..Options::default() };
    fails(&dir.path().join("hf"), &link, &force, &["is the source itself"]);
}

#[test]
fn targets_are_named_after_their_source() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = dir.path().join("My.Model-1.5B");
    std::fs::create_dir(&source).expect("directory");
    assert_eq!(default_target(&source, Some(4)), Path::new("My.Model-1.5B-mlx-4bit"));
    assert_eq!(default_target(&source, None), Path::new("My.Model-1.5B-mlx"));
    assert_eq!(default_target(Path::new("x/smol.q4.gguf"), Some(8)), Path::new("smol.q4-mlx-8bit"));
}

/// `--force` replaces what conversions and pulls write, and nothing of anybody's own, which it names.
#[test]
fn only_checkpoints_are_replaced() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, target) = (dir.path().join("hf"), dir.path().join("out"));
    Llama::new("F32").write(&source);
    std::fs::write(source.join("extra.txt"), "of the source").expect("write");
    let force = Options { force: true, ..Options::default() };
    convert_to(&source, &target, &force);
    for name in ["tokenizer.json", "vocab.txt", "LICENSE.txt", ".mlxcel.json", "chat_template.jinja"] {
        std::fs::write(target.join(name), "x").expect("write");
    }
    convert_to(&source, &target, &force);
    assert!(!target.join("vocab.txt").exists());
    for name in ["mine.txt", "README.md", "letter.docx", ".hidden.json", "adapter.safetensors", "training"] {
        let path = target.join(name);
        if name == "training" {
            std::fs::create_dir(&path).expect("directory");
        } else {
            std::fs::write(&path, "mine").expect("write");
        }
        fails(&source, &target, &force, &["out", name, "not replaced", "no conversion writes"]);
        assert!(path.exists(), "{name}");
        if name == "training" { std::fs::remove_dir(path) } else { std::fs::remove_file(path) }.expect("remove");
    }
    for config in ["{", "{}", "{\"model_type\": 3}"] {
        std::fs::write(target.join("config.json"), config).expect("write");
        fails(&source, &target, &force, &["no checkpoint", "model_type", "not replaced"]);
    }
    std::fs::write(target.join("config.json"), "{\"model_type\": \"llama\"}").expect("write");
    std::fs::remove_file(target.join("model.safetensors")).expect("remove");
    fails(&source, &target, &force, &["no checkpoint", "safetensors", "not replaced"]);
    // Empty directories cost nobody anything.
    std::fs::create_dir(dir.path().join("empty")).expect("directory");
    convert_to(&source, &dir.path().join("empty"), &force);
}

/// What changes while the conversion runs is judged again at its end.
#[test]
fn a_target_that_changes_meanwhile_is_left_alone() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, target) = (dir.path().join("hf"), dir.path().join("out"));
    Llama::new("F32").write(&source);
    let opened = open(&source).expect("opens");
    let during = |change: &dyn Fn(), words: &[&str]| {
        let mut first = true;
        let options = Options { force: true, ..Options::default() };
        let converted = convert(&*opened, &target, &options, &mut |_| {
            if std::mem::replace(&mut first, false) {
                change();
            }
            true
        });
        let message = converted.expect_err("changed").to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "{word:?} is not in {message}"));
        assert!(!names(dir.path()).iter().any(|name| name.contains("partial")), "{:?}", names(dir.path()));
    };
    let mine = target.join("mine.txt");
    // Nothing was there, and then something is, be it empty.
    during(&|| std::fs::create_dir(&target).expect("directory"), &["out", "changed meanwhile"]);
    std::fs::remove_dir(&target).expect("still empty");
    convert_to(&source, &target, &Options::default());
    // Another directory under the name.
    let swap = || {
        std::fs::rename(&target, dir.path().join("moved")).expect("rename");
        std::fs::create_dir(&target).expect("directory");
    };
    during(&swap, &["changed meanwhile"]);
    std::fs::remove_dir(&target).expect("still empty");
    std::fs::rename(dir.path().join("moved"), &target).expect("rename");
    // A file of one's own in the same directory.
    during(&|| std::fs::write(&mine, "mine").expect("write"), &["mine.txt", "not replaced"]);
    assert_eq!(std::fs::read(&mine).expect("still there"), b"mine");
    std::fs::remove_file(&mine).expect("remove");
    // Gone: nothing is lost by saying so.
    during(&|| std::fs::remove_dir_all(&target).expect("remove"), &["changed meanwhile"]);
    assert_eq!(names(dir.path()), ["hf"]);
}

/// Where exchanging takes two steps and the process died between: the old one comes back, or goes when it was replaced.
#[test]
fn what_was_moved_aside_comes_back() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, target, aside) =
        (dir.path().join("hf"), dir.path().join("out"), dir.path().join(".out.partial-4000001-old"));
    Llama::new("F32").write(&source);
    convert_to(&source, &target, &Options { dtype: Some(DType::F16), ..Options::default() });
    std::fs::rename(&target, &aside).expect("rename");
    std::fs::create_dir(dir.path().join(".out.partial-4000001")).expect("directory");
    let message = convert(&*open(&source).expect("opens"), &target, &Options::default(), &mut |_| true)
        .expect_err("there again")
        .to_string();
    assert!(message.contains("exists already"), "{message}");
    assert_eq!(names(dir.path()), ["hf", "out"]);
    assert_eq!(read(&target)["model.norm.weight"].0, "F16");
    // Both are there: the exchange was done, and the old one was to be removed.
    convert_to(&source, &aside, &Options::default());
    convert_to(&source, &target, &Options { force: true, ..Options::default() });
    assert_eq!(names(dir.path()), ["hf", "out"]);
    assert_eq!(read(&target)["model.norm.weight"].0, "F32");
}

/// Called from another thread in the middle of the work.
#[test]
fn an_abandoned_conversion_fails_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let source = dir.path().join("hf");
    Llama::new("F32").write(&source);
    // At every report, the last included, after which only the rename is left.
    let reports = std::cell::Cell::new(0);
    let count = |target: &str, at: usize| {
        reports.set(0);
        convert(&*open(&source).expect("opens"), &dir.path().join(target), &Options::default(), &mut |progress| {
            reports.set(reports.get() + 1);
            if reports.get() == at {
                abandon(progress.dir);
            }
            true
        })
    };
    count("whole", 0).expect("converts");
    let last = reports.get();
    for at in [1, last / 2, last] {
        count("out", at).expect_err("abandoned");
        assert_eq!(names(dir.path()), ["hf", "whole"], "at report {at} of {last}");
    }
}
