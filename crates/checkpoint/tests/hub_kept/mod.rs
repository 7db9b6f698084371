//! What a pull must not lose: files somebody changed, and bytes that have come.

use std::path::Path;

use mlxcel_checkpoint::hub::{Event, HubError, PullRequest};
use mlxcel_checkpoint::store::{MANIFEST, PART};

use crate::hub_place::{SIZE, WEIGHTS, chosen, files, names, new_place, options, request};
use crate::hub_server::{FakeHub, Fault, commit, noise};

#[test]
fn what_was_changed_is_not_replaced_unasked() {
    let hub = FakeHub::start(&files());
    let same_size = files()[0].1.to_ascii_uppercase();
    for text in [&b"{\"mine\": 1}"[..], &same_size] {
        hub.publish('1', &files());
        let place = new_place();
        place.pull(&hub).expect("pulled");
        let config = place.dir().join("config.json");
        std::fs::write(&config, text).expect("write");
        hub.publish('2', &files());
        hub.seen();
        let error = place.pull(&hub).expect_err("changed");
        place.judge(&error, &["config.json", "not as they were pulled", "mlxcel pull --verify o/n"]);
        assert!(!error.to_string().contains(WEIGHTS), "{error}");
        assert_eq!(std::fs::read(&config).expect("read"), text);
        assert!(hub.seen().iter().all(|s| s.target.starts_with("/api/")), "seen before the first byte");
        let verify = PullRequest { verify: true, ..request() };
        place.pull_as(&options(&hub), &verify).expect("asked for");
        place.is_whole();
    }
}

#[test]
fn what_comes_or_changes_during_a_pull_is_not_replaced() {
    let mut newer = files();
    newer[0].1 = b"{}".to_vec();
    let changes: [(&str, &str); 5] = [
        ("notes.txt", "not pulled"),
        (".env", "not pulled"),
        (".hidden/x", "not pulled"),
        ("config.json", "changed during"),
        (WEIGHTS, "changed during"),
    ];
    for (name, words) in changes {
        let hub = FakeHub::start(&files());
        let place = new_place();
        place.pull(&hub).expect("pulled");
        hub.publish('2', &newer);
        let path = place.dir().join(name);
        let error = place.pull_while(&hub, |event| {
            if matches!(event, Event::Install) {
                std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
                // As editors do: another file takes the name.
                let _ = std::fs::remove_file(&path);
                std::fs::write(&path, "mine").expect("write");
            }
        });
        place.judge(&error.expect_err("in the way"), &[name, words]);
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "mine");
        assert!(place.dir().join("tokenizer.json").exists());
    }
    // Where there was nothing before.
    let hub = FakeHub::start(&files());
    let place = new_place();
    let error = place.pull_while(&hub, |event| {
        if matches!(event, Event::Install) {
            std::fs::create_dir_all(place.dir()).expect("directory");
            std::fs::write(place.dir().join("mine.txt"), "mine").expect("write");
        }
    });
    place.judge(&error.expect_err("in the way"), &["came there"]);
    assert_eq!(names(&place.dir()), ["mine.txt"]);
    // What nobody misses.
    let hub = FakeHub::start(&files());
    let place = new_place();
    place.pull(&hub).expect("pulled");
    for name in [".DS_Store", "._config.json", ".mlxcel.json.part"] {
        std::fs::write(place.dir().join(name), "x").expect("write");
    }
    hub.publish('2', &newer);
    place.pull(&hub).expect("pulled");
}

#[test]
fn what_lies_in_the_place_of_a_pull_is_read() {
    // A finished file that is not what it should be.
    let hub = FakeHub::start(&files());
    let place = new_place();
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(0); 4]);
    place.fails(&hub, &[WEIGHTS]);
    let finished = place.partial('1').join("tokenizer.json");
    let mut bytes = std::fs::read(&finished).expect("finished");
    bytes[7] ^= 1;
    std::fs::write(&finished, bytes).expect("write");
    place.pull(&hub).expect("pulled");
    place.is_whole();
    // An old model, exchanged for the new one by a process that died before it deleted it.
    let mut newer = files();
    newer[0].1 = b"{}".to_vec();
    let old = tempfile::tempdir().expect("directory");
    copy(&place.dir(), old.path());
    hub.publish('2', &newer);
    place.pull(&hub).expect("pulled");
    copy(old.path(), &place.partial('2'));
    assert!(place.pull(&hub).expect("nothing to do").up_to_date);
    assert!(!place.partial('2').exists(), "nothing unfinished is left where all is up to date");
    copy(old.path(), &place.partial('2'));
    std::fs::write(place.partial('2').join("config.json.part"), "{").expect("write");
    std::fs::remove_file(place.dir().join("config.json")).expect("remove");
    hub.faults("content:config.json", vec![Fault::Cut(0); 4]);
    place.pull(&hub).expect_err("cut");
    let manifest = std::fs::read_to_string(place.partial('2').join(MANIFEST)).expect("manifest");
    assert!(manifest.contains(&commit('2')) && !place.partial('2').join("config.json").exists());
    assert_eq!(std::fs::metadata(place.partial('2').join("config.json.part")).map_or(0, |data| data.len()), 0);
    place.pull(&hub).expect("pulled");
    assert_eq!(std::fs::read(place.dir().join("config.json")).expect("read"), newer[0].1);
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("directory");
    for name in names(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).expect("copy");
        }
    }
}

#[test]
fn one_wrong_answer_costs_no_long_part() {
    let whole = |bytes: &str| Fault::Body(bytes.into());
    let total = |total: usize| Fault::Headers(vec![("Content-Range", format!("bytes 200000-{}/{total}", SIZE - 1))]);
    for fault in [
        // An error page, and a file of another length, in place of the rest.
        whole("<html>sorry</html>"),
        total(SIZE + 5),
        Fault::Short(5),
    ] {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(200_000), fault.clone()]);
        let place = new_place();
        let pulled = place.pull(&hub).expect("the next answer is right");
        place.is_whole();
        let bytes: usize = chosen().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(pulled.received as usize, bytes, "{fault:?}: no byte came twice");
        // Over and over: an error, and what was there is still there.
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(200_000)]);
        hub.faults(&format!("content:{WEIGHTS}"), vec![fault.clone(); 4]);
        let place = new_place();
        let error = place.fails(&hub, &[WEIGHTS, "300000"]);
        assert!(matches!(error, HubError::Size { .. }), "{error:?}");
        let part = place.partial('1').join(format!("{WEIGHTS}{PART}"));
        assert_eq!(std::fs::metadata(part).expect("part").len(), 200_000, "{fault:?}");
    }
    // A server that hears no range, and then says nothing: the part stays until a whole file begins.
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Cut(200_000), Fault::WrongRange]);
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Status(500, vec![]); 4]);
    let place = new_place();
    place.fails(&hub, &[WEIGHTS, "500"]);
    let part = place.partial('1').join(format!("{WEIGHTS}{PART}"));
    assert_eq!(std::fs::metadata(part).expect("part").len(), 200_000);
}

#[test]
fn a_whole_file_of_unknown_length_does_not_replace_a_long_part() {
    let size = 3 << 20;
    let mut large = files();
    large[1].1 = noise(size, 9);
    let hub = FakeHub::start(&large);
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Cut(2 << 20), Fault::Long(1)]);
    let place = new_place();
    let pulled = place.pull(&hub).expect("pulled");
    let bytes: usize = large[..5].iter().map(|file| file.1.len()).sum();
    assert_eq!(pulled.received as usize, bytes);
    assert!(std::fs::read(place.dir().join(WEIGHTS)).expect("read") == large[1].1);
}
