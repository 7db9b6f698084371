use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn repo(text: &str) -> RepoId {
    text.parse().expect(text)
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
    std::fs::write(path, text).expect("file");
}

fn manifest(id: &str, files: &[(&str, u64)]) -> Manifest {
    let hash: Digest = format!("git:{}", "a".repeat(40)).parse().expect("hash");
    let files =
        files.iter().map(|(path, size)| ManifestFile { path: path.to_string(), size: *size, hash: hash.clone() });
    Manifest::new(&repo(id), "main", COMMIT, files.collect())
}

/// A partial pull with these files, all of them there.
fn partial(store: &Store, id: &str, files: &[(&str, u64)]) -> PathBuf {
    let dir = store.partial_dir(&repo(id), COMMIT);
    for (name, size) in files {
        write(&dir.join(name), &"x".repeat(*size as usize));
    }
    manifest(id, files).write(&dir).expect("manifest");
    dir
}

#[test]
fn names() {
    for good in ["a/b", "mlx-community/gemma-3-1b-it-4bit", "o_1/N.a-m_e", "_x/y_"] {
        assert_eq!(repo(good).to_string(), good);
    }
    let long = format!("o/{}", "n".repeat(97));
    for bad in [
        "",
        "a",
        "/",
        "a/",
        "/b",
        "a/b/c",
        "a//b",
        "../b",
        "a/..",
        "./a",
        ".hidden/b",
        "a/b.",
        "-a/b",
        "a/b--c",
        "a/b..c",
        "a/b c",
        "a/b\\c",
        "a/é",
        "a/b\0",
        "a/b:c",
        &long,
    ] {
        let message = bad.parse::<RepoId>().expect_err(bad).to_string();
        assert!(message.contains("OWNER/NAME"), "{message}");
    }
}

#[test]
fn paths() {
    for good in ["a", "a/b.json", "a..b", "...", "ü/x", ".gitattributes", "a.part/b"] {
        assert_eq!(safe_path(good).expect(good), Path::new(good));
    }
    let long = "x".repeat(1025);
    for bad in [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../x",
        "a/../b",
        "a/..",
        "./a",
        "a/.",
        "a//b",
        "a/",
        "a\\b",
        "..\\x",
        "a\0b",
        "a\nb",
        "x.part",
        "d/x.part",
        ".mlxcel.json",
        &long,
    ] {
        assert!(safe_path(bad).is_err(), "{bad:?}");
    }
    assert!(safe_path("d/.mlxcel.json").is_ok(), "only the one in the root is ours");
}

#[test]
fn nearness() {
    let all = ["mlx-community/gemma-3-1b-it-4bit", "mlx-community/Qwen3-0.6B-4bit", "me/smollm2"];
    assert_eq!(near("gemma-3-1b", all), ["mlx-community/gemma-3-1b-it-4bit"]);
    assert_eq!(near("mlx-community/qwen3-0.6b-4bit", all), ["mlx-community/Qwen3-0.6B-4bit"]);
    assert_eq!(near("smolm2", all), ["me/smollm2"]);
    assert_eq!(near("something-else-entirely", all), [] as [&str; 0]);
    assert_eq!(near("", all), [] as [&str; 0]);
}

#[test]
fn dates() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_709_251_199, "2024-02-29T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
    }
    assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1969-12-31T23:59:59Z");
    assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
    assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    for bad in
        ["", "soon", "Sun, 6 Nov 1994 08:49:37 GMT", "Sun, 06 Xyz 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT"]
    {
        assert_eq!(http_date(bad), None, "{bad}");
    }
}

#[test]
fn manifests_survive_and_lies_do_not() {
    let dir = tempfile::tempdir().expect("directory");
    assert_eq!(Manifest::read(dir.path()).expect("none"), None);
    let written = manifest("o/n", &[("b/c.json", 3), ("a", 1)]);
    written.write(dir.path()).expect("write");
    assert_eq!(Manifest::read(dir.path()).expect("read"), Some(written));
    let text = std::fs::read_to_string(dir.path().join(MANIFEST)).expect("read");
    for (from, to, word) in [
        ("b/c.json", "../c.json", "../c.json"),
        ("b/c.json", "/etc/passwd", "/etc/passwd"),
        ("\"o/n\"", "\"o\"", "OWNER/NAME"),
        (COMMIT, "../../x", "commit"),
        ("git:aaaa", "md5:aaaa", "sha256"),
        ("\"format\": 1", "\"format\": 2", "format is 2"),
        ("{", "", "not a manifest"),
    ] {
        assert!(text.contains(from));
        std::fs::write(dir.path().join(MANIFEST), text.replacen(from, to, 1)).expect("write");
        let message = Manifest::read(dir.path()).expect_err(to).to_string();
        assert!(message.contains(word) && message.contains(MANIFEST), "{message}");
    }
}

#[test]
fn a_model_comes_is_replaced_and_goes() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::new(dir.path().join("not/yet/there"));
    let (id, text) = (repo("o/n"), "o/n");
    assert!(store.models().expect("empty").is_empty() && store.partials().expect("empty").is_empty());
    let lock = store.lock(text).expect("lock");
    let work = partial(&store, text, &[("config.json", 10), ("a.safetensors", 5)]);
    let partials = store.partials().expect("partials");
    assert_eq!((partials[0].name.as_str(), partials[0].present, partials[0].total), (text, 15, Some(15)));
    assert!(store.models().expect("models").is_empty(), "not a model before it is installed");
    let place = store.install(&lock, &id, &work).expect("install");
    assert!(store.partials().expect("partials").is_empty() && place == store.dir(&id));
    let model = store.get(&id).expect("there");
    assert_eq!((model.bytes, model.damaged()), (15, vec![]));

    let work = partial(&store, text, &[("config.json", 20)]);
    store.install(&lock, &id, &work).expect("replace");
    let model = store.get(&id).expect("there");
    assert_eq!(model.bytes, 20);
    assert!(!place.join("a.safetensors").exists() && !work.exists());
    std::fs::remove_file(place.join("config.json")).expect("damage");
    assert_eq!(store.get(&id).expect("there").damaged(), ["config.json"]);

    store.remove(&lock, &model).expect("remove");
    assert!(store.get(&id).is_none() && !place.parent().expect("owner").exists());
    drop(lock);
    let left: Vec<_> = std::fs::read_dir(store.root().join(PARTIAL)).expect("directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn names_are_found() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::new(dir.path());
    for place in ["a/x", "b/x", "b/y", "plain"] {
        write(&dir.path().join(place).join("config.json"), "{}");
    }
    write(&dir.path().join("c/empty/other.txt"), "");
    write(&dir.path().join("plain/model.safetensors"), "");
    // Strays: the one hides no model of its owner, the other is none itself.
    write(&dir.path().join("a/config.json"), "{}");
    write(&dir.path().join("a/model.safetensors"), "");
    write(&dir.path().join("c/config.json"), "{}");
    let names = |asked: &str| store.find(asked).expect("find").into_iter().map(|model| model.name).collect::<Vec<_>>();
    assert_eq!(store.models().expect("models").len(), 4);
    assert_eq!(names("x"), ["a/x", "b/x"]);
    assert_eq!(names("y"), ["b/y"]);
    assert_eq!(names("a/x"), ["a/x"]);
    assert_eq!(names("plain"), ["plain"]);
    assert_eq!(names("a"), [] as [&str; 0], "an owner is no model");
    assert_eq!(names("c/empty"), [] as [&str; 0]);
}

#[test]
fn one_at_a_time() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::new(dir.path());
    let lock = store.lock("o/n").expect("free");
    let message = store.lock("o/n").expect_err("taken").to_string();
    assert!(message.contains("o/n") && message.contains("another process"), "{message}");
    store.lock("o/m").expect("another model is free");
    drop(lock);
    store.lock("o/n").expect("free again");
}

#[test]
fn what_a_dead_process_left_is_swept() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::new(dir.path());
    write(&dir.path().join(".partial/.removed-o--n-1-0/model.safetensors"), "x");
    write(&dir.path().join(format!(".partial/o--n--{COMMIT}/config.json")), "x");
    store.sweep();
    assert!(!dir.path().join(".partial/.removed-o--n-1-0").exists());
    let partials = store.partials().expect("partials");
    assert_eq!((partials.len(), partials[0].total), (1, None), "a pull in progress stays");
}

#[test]
fn an_owner_may_have_any_name() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::new(dir.path());
    let work = partial(&store, "removed-o/n", &[("config.json", 10)]);
    store.sweep();
    assert!(work.join("config.json").exists(), "a pull in progress was swept away");
    assert_eq!(store.partials().expect("partials")[0].name, "removed-o/n");
}

/// A store with a model of one file, `old`, and a finished pull of another, `new`.
fn to_replace() -> (tempfile::TempDir, Store, PathBuf) {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::new(dir.path().join("store"));
    write(&store.root().join("o/n/config.json"), "old");
    let work = partial(&store, "o/n", &[("config.json", 3), ("sub/deep/a.safetensors", 5)]);
    (dir, store, work)
}

fn content(store: &Store) -> String {
    std::fs::read_to_string(store.root().join("o/n/config.json")).expect("a model")
}

/// All that lies in the directory of unfinished work, but for what is given.
fn unfinished(store: &Store, but: &[&str]) -> Vec<String> {
    let entries = std::fs::read_dir(store.root().join(PARTIAL)).expect("directory");
    let names = entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"));
    names.filter(|name| !but.contains(&name.as_str())).collect()
}

#[test]
fn without_exchange_the_old_model_waits_aside() {
    let (_dir, store, work) = to_replace();
    let lock = store.lock("o/n").expect("lock");
    let steps = install::Steps { exchange: |_, _| false, sync: &|_| {} };
    store.install_by(&steps, &repo("o/n"), &work).expect("installed");
    assert_eq!(content(&store), "xxx");
    drop(lock);
    assert!(unfinished(&store, &[]).is_empty());
    // A new model that is not where it should be: the old one is back.
    let (_dir, store, work) = to_replace();
    let steps = install::Steps {
        exchange: |partial, _| {
            std::fs::rename(partial, partial.with_extension("gone")).expect("rename");
            false
        },
        sync: &|_| {},
    };
    store.install_by(&steps, &repo("o/n"), &work).expect_err("no new model");
    assert_eq!(content(&store), "old");
}

#[test]
fn a_process_that_dies_between_the_renames_loses_no_model() {
    let (_dir, store, work) = to_replace();
    let aside = store.root().join(".partial/.replaced-o--n");
    // It died after the first rename.
    std::fs::rename(store.root().join("o/n"), &aside).expect("rename");
    std::fs::remove_dir(store.root().join("o")).expect("remove");
    store.sweep();
    assert_eq!(content(&store), "old", "swept away or not put back");
    // The same, found by the one who takes the lock.
    std::fs::rename(store.root().join("o/n"), &aside).expect("rename");
    let lock = store.lock("o/n").expect("lock");
    assert_eq!(content(&store), "old");
    // Somebody holds the lock and is at it: hands off.
    std::fs::rename(store.root().join("o/n"), &aside).expect("rename");
    store.sweep();
    assert!(aside.join("config.json").exists() && !store.root().join("o/n").exists());
    // It died after the second.
    std::fs::rename(&work, store.root().join("o/n")).expect("rename");
    drop(lock);
    store.sweep();
    assert_eq!(content(&store), "xxx");
    assert!(unfinished(&store, &[]).is_empty());
    // What lies there is no model: neither is touched.
    write(&aside.join("config.json"), "old");
    std::fs::remove_dir_all(store.root().join("o/n")).expect("remove");
    write(&store.root().join("o/n/mine.txt"), "mine");
    store.sweep();
    assert!(aside.join("config.json").exists() && store.root().join("o/n/mine.txt").exists());
}

#[test]
fn what_the_new_name_stands_for_is_on_the_disk_first() {
    for exchange in [|_: &Path, _: &Path| false, disk::exchange] {
        let (dir, store, work) = to_replace();
        let seen = std::cell::RefCell::new(Vec::new());
        let sync = |synced: &Path| {
            let old_is_left = unfinished(&store, &[]).iter().any(|name| store.root().join(PARTIAL).join(name).is_dir());
            let path = synced.strip_prefix(dir.path()).expect("inside").to_path_buf();
            seen.borrow_mut().push((path, content(&store), old_is_left));
        };
        store.install_by(&install::Steps { exchange, sync: &sync }, &repo("o/n"), &work).expect("installed");
        let seen = seen.into_inner();
        let work = work.strip_prefix(dir.path()).expect("inside");
        let before: Vec<PathBuf> = ["sub/deep", "sub", ""].map(|name| work.join(name)).to_vec();
        let after: Vec<PathBuf> = ["store/o", "store/.partial", "store", ""].map(PathBuf::from).to_vec();
        let paths: Vec<PathBuf> = seen.iter().map(|(path, ..)| path.clone()).collect();
        assert_eq!(paths, [before, after].concat());
        assert!(seen[..3].iter().all(|(_, content, _)| content == "old"), "before the rename: {seen:?}");
        assert!(seen[3..].iter().all(|(_, content, left)| content == "xxx" && *left), "before the deletion: {seen:?}");
    }
}

#[test]
#[cfg(unix)]
fn the_cache_is_read() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().expect("directory");
    let cache = HubCache::new(dir.path());
    assert!(cache.get(&repo("o/n")).is_none() && cache.models().expect("empty").is_empty());
    let model = dir.path().join("models--o--n");
    write(&model.join("blobs/1"), "{}");
    write(
        &model.join("blobs/2"),
        r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "../../x"}}"#,
    );
    write(&model.join("blobs/3"), "weights");
    let snapshot = model.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).expect("directory");
    let link = |blob: &str, name: &str| symlink(format!("../../blobs/{blob}"), snapshot.join(name)).expect("link");
    link("1", "config.json");
    assert_eq!(cache.get(&repo("o/n")).expect("the only snapshot").missing, ["*.safetensors"]);
    link("2", "model.safetensors.index.json");
    link("3", "model-1.safetensors");
    link("not-yet", "model-2.safetensors");
    assert_eq!(cache.get(&repo("o/n")).expect("there").missing, ["model-2.safetensors"], "a link to nothing");
    write(&model.join("blobs/not-yet"), "more");
    write(&model.join("refs/main"), COMMIT);
    let found = cache.get(&repo("o/n")).expect("there");
    assert!(found.missing.is_empty() && found.commit == COMMIT && found.dir == snapshot);
    assert_eq!(found.bytes, 2 + std::fs::metadata(model.join("blobs/2")).expect("file").len() + 7 + 4);
    // A reference is not a path.
    write(&model.join("refs/main"), "../../../etc");
    assert_eq!(cache.get(&repo("o/n")).expect("the only snapshot").commit, COMMIT);
    std::fs::create_dir_all(model.join("snapshots").join("f".repeat(40))).expect("directory");
    assert!(cache.get(&repo("o/n")).is_none(), "two snapshots and no reference");
    write(&model.join("refs/main"), &format!("{COMMIT}\n"));
    write(&dir.path().join("datasets--o--d/refs/main"), COMMIT);
    assert_eq!(cache.models().expect("models").len(), 1);
}

#[test]
fn labels() {
    let dir = tempfile::tempdir().expect("directory");
    let label = |config: &str| {
        write(&dir.path().join("config.json"), config);
        quantization_label(dir.path())
    };
    assert_eq!(label(r#"{"quantization": {"group_size": 64, "bits": 4}}"#).as_deref(), Some("affine 4-bit group 64"));
    assert_eq!(label(r#"{"torch_dtype": "bfloat16"}"#).as_deref(), Some("bfloat16"));
    assert_eq!(label(r#"{"text_config": {"dtype": "float16"}}"#).as_deref(), Some("float16"));
    assert_eq!(label(r#"{"quantization_config": {"quant_method": "gp\u001btq"}}"#).as_deref(), Some("gp tq"));
    assert_eq!(label("{}"), None);
    assert_eq!(label("not JSON"), None);
}
