//! The client of the hub against a hub on this machine that does everything wrong that one can.

mod hub_kept;
mod hub_place;
mod hub_server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hub_place::{SIZE, WEIGHTS, chosen, files, names, new_place, options, request};
use hub_server::{FakeHub, Fault, Seen, commit, noise};
use mlxcel_checkpoint::hub::select::{Pattern, Selection};
use mlxcel_checkpoint::hub::{HubError, HubOptions, PullRequest, Token, digest_of};
use mlxcel_checkpoint::store::{MANIFEST, PART};
use serde_json::{Value, json};

/// Requests for the content of a file.
fn of<'a>(seen: &'a [Seen], path: &str) -> Vec<&'a Seen> {
    seen.iter().filter(|seen| seen.target.contains(&format!("/cdn/{path}"))).collect()
}

#[test]
fn a_model_comes_whole_and_only_once() {
    let hub = FakeHub::start(&files());
    hub.page(2);
    let place = new_place();
    let options = HubOptions { token: Token::new("sesame"), ..options(&hub) };
    let pulled = place.pull_as(&options, &request()).expect("pulled");
    place.is_whole();
    let bytes: usize = chosen().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!((pulled.up_to_date, pulled.received), (false, bytes as u64));
    assert_eq!((pulled.manifest.commit.as_str(), pulled.manifest.revision.as_str()), (&*commit('1'), "main"));
    assert_eq!(pulled.manifest.files.len(), 5);

    let seen = hub.seen();
    assert_eq!(seen.iter().filter(|s| s.target.contains("/tree/")).count(), 5, "nine entries in pages of two");
    assert!(seen.iter().any(|s| s.cdn) && seen.iter().any(|s| !s.cdn));
    for request in &seen {
        let expected = (!request.cdn).then_some("Bearer sesame");
        assert_eq!(request.authorization.as_deref(), expected, "{}", request.target);
        assert!(request.user_agent.as_deref().is_some_and(|agent| agent.starts_with("mlxcel/")));
    }
    assert!(seen.iter().any(|s| s.target.contains("additional_chat_templates/a%20b.jinja")));

    let again = place.pull_as(&options, &request()).expect("up to date");
    assert!(again.up_to_date && again.received == 0);
    assert!(hub.seen().iter().all(|s| s.target.starts_with("/api/")), "no file is asked for");
}

#[test]
fn a_connection_that_is_cut_goes_on() {
    let hub = FakeHub::start(&files());
    // Also right at the start and one byte before the end.
    hub.faults(&format!("content:{WEIGHTS}"), [0, 1, 70_000, 0, 0, 100, SIZE - 70_102].map(Fault::Cut));
    hub.faults("content:config.json", [Fault::Cut(3)]);
    let place = new_place();
    place.pull(&hub).expect("pulled");
    place.is_whole();
    let seen = hub.seen();
    let weights = of(&seen, WEIGHTS);
    let ranges: Vec<Option<&str>> = weights.iter().map(|s| s.range.as_deref()).collect();
    let at = |from: usize| format!("bytes={from}-");
    let expected = [1, 70_001, 70_001, 70_001, 70_101, SIZE - 1].map(at);
    let expected: Vec<_> = [None, None].into_iter().chain(expected.iter().map(|range| Some(range.as_str()))).collect();
    assert_eq!(ranges, expected);
    assert_eq!(weights.iter().map(|s| s.sent).sum::<usize>(), SIZE, "no byte came twice");
}

#[test]
fn attempts_without_a_byte_come_to_an_end() {
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Cut(1000)]);
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(0); 100]);
    let place = new_place();
    place.fails(&hub, &[WEIGHTS, "1000 of 300000"]);
    assert_eq!(of(&hub.seen(), WEIGHTS).len(), 4, "one that brought something, then three");
    let partials = place.store.partials().expect("partials");
    assert_eq!(partials.len(), 1);
    assert!(partials[0].present >= 1000 && partials[0].present < partials[0].total.expect("manifest"));
    // A server that sends its first bytes over and over makes no progress either.
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Cut(1000), Fault::WrongRange]);
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(900); 100]);
    new_place().fails(&hub, &[WEIGHTS, "900 of 300000"]);
    assert!(of(&hub.seen(), WEIGHTS).len() < 8);
}

#[test]
fn a_later_process_goes_on_where_one_died() {
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(200_000)]);
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(0); 4]);
    let place = new_place();
    place.fails(&hub, &[WEIGHTS]);
    hub.seen();
    let pulled = place.pull(&hub).expect("pulled");
    place.is_whole();
    assert_eq!(pulled.received, 100_000, "only what was lacking");
    let seen = hub.seen();
    assert_eq!(of(&seen, WEIGHTS)[0].range.as_deref(), Some("bytes=200000-"));
    assert!(of(&seen, "tokenizer.json").is_empty(), "what was whole is not asked for again");
}

#[test]
fn what_lies_in_a_part_is_not_believed() {
    let weights = noise(SIZE, 1);
    let mut wrong = weights[..100_000].to_vec();
    wrong[77] ^= 1;
    for (part, requests) in [
        (wrong, 2),                         // resumed, found wrong, fetched again
        (noise(SIZE + 1, 5), 1),            // longer than the file
        ([&weights[..], b"x"].concat(), 1), // longer by one
        (noise(SIZE, 6), 1),                // whole and wrong: nothing to resume
        (weights, 0),                       // whole and right: nothing to do
    ] {
        let hub = FakeHub::start(&files());
        let place = new_place();
        std::fs::create_dir_all(place.partial('1')).expect("directory");
        std::fs::write(place.partial('1').join(format!("{WEIGHTS}{PART}")), &part).expect("part");
        place.pull(&hub).expect("pulled");
        place.is_whole();
        assert_eq!(of(&hub.seen(), WEIGHTS).len(), requests, "{}", part.len());
    }
}

#[test]
fn servers_without_ranges_start_over() {
    for faults in [
        vec![Fault::Cut(100_000), Fault::Whole],
        vec![Fault::Cut(100_000), Fault::WrongRange],
        vec![Fault::Cut(100_000), Fault::Status(416, vec![])],
        // Another version in between.
        vec![Fault::Cut(100_000), Fault::Headers(vec![("ETag", "\"other\"".into())])],
    ] {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{WEIGHTS}"), faults.clone());
        let place = new_place();
        let pulled = place.pull(&hub).expect("pulled");
        place.is_whole();
        let lost = 100_000;
        let bytes: usize = chosen().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(pulled.received as usize, bytes + lost, "{faults:?}");
    }
}

#[test]
fn a_byte_damaged_on_the_way_is_refused_and_repaired() {
    for path in [WEIGHTS, "config.json"] {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{path}"), [Fault::Flip(10)]);
        let place = new_place();
        let error = place.fails(&hub, &[path, "damaged", "expected", "same command"]);
        assert!(matches!(error, HubError::Damaged { .. }), "{error:?}");
        let target = place.partial('1').join(path);
        assert!(!target.exists() && !PathBuf::from(format!("{}{PART}", target.display())).exists());
        place.pull(&hub).expect("repaired");
        place.is_whole();
    }
    // Damaged in one of several pieces: any of them may be stale, so the whole is fetched again at once, and once only.
    let requests = |second: Vec<Fault>| {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{WEIGHTS}"), [Fault::Cut(1000)]);
        hub.faults(&format!("content:{WEIGHTS}"), second);
        let place = new_place();
        let result = place.pull(&hub);
        if result.is_ok() {
            place.is_whole();
        }
        (result.is_ok(), of(&hub.seen(), WEIGHTS).len())
    };
    assert_eq!(requests(vec![]), (true, 2));
    assert_eq!(requests(vec![Fault::Flip(1500)]), (true, 3));
    assert_eq!(requests(vec![Fault::Flip(1500), Fault::Flip(0)]), (false, 3));
}

#[test]
fn wrong_sizes_are_refused() {
    for (fault, found) in [(Fault::Short(1), SIZE - 1), (Fault::Long(1), SIZE + 1), (Fault::Long(200_000), 0)] {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{WEIGHTS}"), [fault]);
        let place = new_place();
        let error = place.fails(&hub, &[WEIGHTS, "300000"]);
        assert!(matches!(error, HubError::Size { .. }), "{error:?}");
        if found > 0 {
            place.judge(&error, &[&found.to_string()]);
        }
        assert!(!place.partial('1').join(format!("{WEIGHTS}{PART}")).exists());
        place.pull(&hub).expect("the next is right");
        place.is_whole();
    }
}

#[test]
fn another_version_than_the_listed_is_refused() {
    for (name, value) in [
        ("X-Linked-Size", "299999".to_string()),
        ("X-Linked-ETag", format!("\"{}\"", "0".repeat(64))),
        ("X-Repo-Commit", commit('9')),
    ] {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("resolve:{WEIGHTS}"), [Fault::Headers(vec![(name, value.clone())])]);
        new_place().fails(&hub, &[WEIGHTS, name, value.trim_matches('"')]);
    }
    let hub = FakeHub::start(&files());
    let weak = format!("W/\"{}\"", digest_of(&noise(SIZE, 1), true).to_string().trim_start_matches("sha256:"));
    hub.faults(&format!("resolve:{WEIGHTS}"), [Fault::Headers(vec![("X-Linked-ETag", weak)])]);
    new_place().pull(&hub).expect("a weak mark is the same mark");
}

#[test]
fn passing_failures_are_tried_again() {
    let hub = FakeHub::start(&files());
    let status = |status, after: &str| Fault::Status(status, vec![("Retry-After", after.into())]);
    hub.faults("revision", [Fault::Status(500, vec![]), status(429, "1")]);
    hub.faults("tree", [Fault::Status(503, vec![]), Fault::Cut(10)]);
    hub.faults(&format!("resolve:{WEIGHTS}"), [status(429, "0"), Fault::Status(502, vec![])]);
    // A signed address that expired: the hub gives a new one.
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Status(403, vec![])]);
    let place = new_place();
    let start = Instant::now();
    place.pull(&hub).expect("pulled");
    place.is_whole();
    assert!(start.elapsed() >= Duration::from_secs(1), "Retry-After is honoured");

    let hub = FakeHub::start(&files());
    hub.faults("revision", vec![Fault::Status(500, vec![]); 100]);
    new_place().fails(&hub, &["/api/models/o/n/revision/main", "500"]);
    assert_eq!(hub.seen().len(), 4);

    let hub = FakeHub::start(&files());
    hub.faults("tree", [status(429, "4000")]);
    new_place().fails(&hub, &["4000 s", "429"]);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Hang(1000)]);
    let place = new_place();
    let options = HubOptions { timeout: Duration::from_secs(1), ..options(&hub) };
    place.pull_as(&options, &request()).expect("the next attempt goes on");
    place.is_whole();
    // Nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address");
    let options = HubOptions { endpoint: format!("http://{free}"), ..options };
    let error = new_place().pull_as(&options, &request()).expect_err("no server");
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    let code = |status, code: &str| Fault::Status(status, vec![("X-Error-Code", code.into())]);
    let cases: [(&str, Fault, bool, &[&str]); 12] = [
        ("revision", code(401, "RepoNotFound"), false, &["o/n", "no such model", "HF_TOKEN"]),
        ("revision", code(404, "RepoNotFound"), true, &["o/n", "no such model", "token given"]),
        ("revision", code(404, "RevisionNotFound"), false, &["o/n", "no revision \"main\"", "--revision"]),
        ("revision", code(401, "GatedRepo"), false, &["restricted", "/o/n", "HF_TOKEN"]),
        ("revision", code(403, "GatedRepo"), true, &["restricted", "no access yet"]),
        ("revision", Fault::Status(401, vec![]), true, &["refuses the access token", "HF_TOKEN"]),
        ("revision", Fault::Status(401, vec![]), false, &["o/n", "restricted", "HF_TOKEN"]),
        ("revision", Fault::Status(404, vec![]), false, &["o/n", "no such model"]),
        ("revision", Fault::Status(418, vec![("X-Error-Message", "teapot".into())]), false, &["418", "teapot"]),
        ("tree", code(404, "RevisionNotFound"), false, &["o/n", "no revision"]),
        ("resolve:config.json", code(404, "EntryNotFound"), false, &["o/n", "config.json", "404"]),
        ("resolve:config.json", code(403, "GatedRepo"), false, &["restricted", "HF_TOKEN"]),
    ];
    for (where_, fault, token, words) in cases {
        let hub = FakeHub::start(&files());
        hub.faults(where_, [fault]);
        let place = new_place();
        let token = if token { Token::new("sesame") } else { None };
        let error = place.pull_as(&HubOptions { token, ..options(&hub) }, &request()).expect_err("refused");
        place.judge(&error, words);
        assert_eq!(hub.seen().iter().filter(|s| s.target.contains("/revision/")).count(), 1, "no second attempt");
    }
    let hub = FakeHub::start(&files());
    let other = PullRequest { repo: "o/m".parse().expect("name"), ..request() };
    let error = new_place().pull_as(&options(&hub), &other).expect_err("no such model");
    assert!(error.to_string().contains("o/m"), "{error}");
    let other = PullRequest { revision: "refs/pr/1".into(), ..request() };
    new_place().pull_as(&options(&hub), &other).expect("a revision with slashes");
    assert!(hub.seen().iter().any(|s| s.target.ends_with("/revision/refs%2Fpr%2F1")));
}

#[test]
fn answers_that_are_none() {
    let hub_with = |place: &str, fault: Fault| {
        let hub = FakeHub::start(&files());
        hub.faults(place, [fault]);
        hub
    };
    for (where_, fault, words) in [
        ("revision", Fault::Body("<html>".into()), &["/revision/main", "JSON", "HF_ENDPOINT"][..]),
        ("revision", Fault::Body("{}".into()), &["sha", "absent", "commit"]),
        ("revision", Fault::Body(r#"{"sha": "../../../../store/x"}"#.into()), &["sha", "commit"]),
        ("revision", Fault::Huge((16 << 20) + 1), &["larger than"]),
        ("tree", Fault::Body("[".into()), &["/tree/", "JSON"]),
        ("tree", Fault::Body(r#"{"error": "x"}"#.into()), &["expected a list"]),
        ("tree", Fault::Body(r#"[{"path": "x"}]"#.into()), &["[0].type", "absent"]),
        ("tree", Fault::Headers(vec![("Link", "<http://evil.example/next>; rel=\"next\"".into())]), &["another host"]),
        ("tree", Fault::Headers(vec![("Link", "<ftp://x>; rel=next".into())]), &["next page"]),
        ("resolve:config.json", Fault::Redirect("/o/n/resolve/loop".into()), &["config.json"]),
        ("resolve:config.json", Fault::Redirect("ftp://example/x".into()), &["redirects to no usable address"]),
        ("resolve:config.json", Fault::Status(302, vec![]), &["without a Location"]),
    ] {
        new_place().fails(&hub_with(where_, fault), words);
    }
    // Round and round, here and over there.
    for target in ["/o/n/resolve/1111111111111111111111111111111111111111/config.json", ""] {
        let hub = FakeHub::start(&files());
        let target = if target.is_empty() { format!("{}/cdn/config.json", hub.cdn) } else { target.to_string() };
        hub.faults("resolve:config.json", vec![Fault::Redirect(target.clone()); 100]);
        hub.faults("content:config.json", vec![Fault::Redirect(target); 100]);
        new_place().fails(&hub, &["redirects more than 8 times"]);
        assert!(hub.seen().len() < 20);
    }
}

#[test]
fn the_token_stays_with_the_hub() {
    // The hub sends to another path of its own, that to the content network, and that back: only the hub sees the token.
    let hub = FakeHub::start(&files());
    let resolve = |query: &str| format!("/o/n/resolve/{}/config.json{query}", commit('1'));
    hub.faults(
        "resolve:config.json",
        [Fault::Redirect(resolve("?moved")), Fault::Redirect(format!("{}/cdn/config.json", hub.cdn))],
    );
    hub.faults("content:config.json", [Fault::Headers(vec![]), Fault::Headers(vec![])]);
    let place = new_place();
    place.pull_as(&HubOptions { token: Token::new("sesame"), ..options(&hub) }, &request()).expect("pulled");
    let seen = hub.seen();
    let cdn: Vec<_> = seen.iter().filter(|s| s.cdn).collect();
    assert!(cdn.iter().any(|s| s.target.contains("config.json")) && cdn.iter().all(|s| s.authorization.is_none()));
    assert!(seen.iter().filter(|s| !s.cdn).all(|s| s.authorization.is_some()));
    assert!(seen.iter().any(|s| s.target.ends_with("?moved")));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [
        "../evil",
        "/etc/evil",
        "a/../../evil",
        "..",
        "",
        ".",
        "a//b",
        "a\\..\\evil",
        "evil\0",
        "a\nb",
        "./config.json",
        "model.safetensors.part",
        ".mlxcel.json",
    ] {
        let hub = FakeHub::start(&files());
        let mut listing = hub.listing();
        listing.push(json!({"type": "file", "oid": "0".repeat(40), "size": 0, "path": name}));
        hub.lie(Value::Array(listing));
        let place = new_place();
        let everything = Selection { include: vec!["*".parse().expect("pattern")], exclude: vec![] };
        let asked = PullRequest { selection: everything.clone(), ..request() };
        let error = place.pull_as(&options(&hub), &asked).expect_err("refused");
        place.judge(&error, &["o/n", "refused", "--exclude"]);
        assert!(matches!(error, HubError::Listing { .. }), "{error:?}");
        assert!(hub.seen().iter().all(|s| s.target.starts_with("/api/")));
        // Where nobody asks for it, it is in nobody's way.
        let exclude: Vec<Pattern> = ["*evil*", "*.part"].iter().map(|p| p.parse().expect("pattern")).collect();
        let asked = if name.ends_with(PART) { Selection { exclude, ..everything } } else { Selection::default() };
        place.pull_as(&options(&hub), &PullRequest { selection: asked, ..request() }).expect("pulled");
        assert!(place.store.models().expect("models").len() == 1);
    }
    let hub = FakeHub::start(&files());
    let mut listing = hub.listing();
    listing.push(listing[2].clone());
    hub.lie(Value::Array(listing));
    new_place().fails(&hub, &["twice"]);
}

#[test]
#[cfg(unix)]
fn links_inside_a_partial_pull_lead_nowhere() {
    let hub = FakeHub::start(&files());
    let place = new_place();
    let elsewhere = tempfile::tempdir().expect("directory");
    std::fs::create_dir_all(place.partial('1')).expect("directory");
    std::os::unix::fs::symlink(elsewhere.path(), place.partial('1').join("additional_chat_templates")).expect("link");
    place.fails(&hub, &["additional_chat_templates", "out of the directory"]);
    assert!(names(elsewhere.path()).is_empty());
    let place = new_place();
    std::fs::create_dir_all(place.partial('1')).expect("directory");
    let target = elsewhere.path().join("victim");
    std::fs::write(&target, "precious").expect("write");
    std::os::unix::fs::symlink(&target, place.partial('1').join("config.json.part")).expect("link");
    place.fails(&hub, &["config.json.part", "not a regular file"]);
    assert_eq!(std::fs::read_to_string(&target).expect("read"), "precious");
}

#[test]
fn a_newer_commit_replaces_an_older_and_shares_what_is_the_same() {
    let hub = FakeHub::start(&files());
    let place = new_place();
    place.pull(&hub).expect("pulled");
    let mut newer = files();
    newer[0].1 = b"{\"model_type\": \"y\"}".to_vec();
    newer.remove(3);
    hub.publish('2', &newer);
    hub.seen();
    // Interrupted, the old one stays as it was.
    hub.faults("content:config.json", vec![Fault::Cut(0); 4]);
    place.pull(&hub).expect_err("cut");
    assert_eq!(place.store.models().expect("models").len(), 1);
    assert_eq!(std::fs::read(place.dir().join("config.json")).expect("read"), files()[0].1);
    let pulled = place.pull(&hub).expect("pulled");
    assert_eq!(pulled.received as usize, newer[0].1.len(), "only what differs comes over the network");
    assert_eq!(std::fs::read(place.dir().join("config.json")).expect("read"), newer[0].1);
    assert!(!place.dir().join("special_tokens_map.json").exists(), "gone there, gone here");
    assert_eq!(pulled.manifest.commit, commit('2'));
    assert_eq!(names(&place.store.root().join(".partial")), [] as [&str; 0]);
}

#[test]
fn an_unfinished_pull_of_an_older_commit_is_taken_over() {
    let hub = FakeHub::start(&files());
    let place = new_place();
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(200_000)]);
    hub.faults(&format!("content:{WEIGHTS}"), vec![Fault::Cut(0); 4]);
    place.fails(&hub, &[WEIGHTS]);
    let mut newer = files();
    newer[0].1 = b"{}".to_vec();
    hub.publish('2', &newer);
    let pulled = place.pull(&hub).expect("pulled");
    assert_eq!(pulled.received, 2 + 100_000);
    assert_eq!(place.store.partials().expect("partials").len(), 0);
}

#[test]
fn verification_finds_and_repairs_rot() {
    let hub = FakeHub::start(&files());
    let place = new_place();
    place.pull(&hub).expect("pulled");
    let path = place.dir().join(WEIGHTS);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[SIZE / 2] ^= 16;
    std::fs::write(&path, bytes).expect("write");
    assert!(place.pull(&hub).expect("sizes agree").up_to_date, "rot is not seen without reading");
    hub.seen();
    let verify = PullRequest { verify: true, ..request() };
    let pulled = place.pull_as(&options(&hub), &verify).expect("repaired");
    assert_eq!(pulled.received as usize, SIZE);
    place.is_whole();
    assert_eq!(place.pull_as(&options(&hub), &verify).expect("all well").received, 0);
    // What is absent or short is seen without being asked.
    std::fs::remove_file(place.dir().join("config.json")).expect("remove");
    let pulled = place.pull(&hub).expect("repaired");
    assert_eq!((pulled.up_to_date, pulled.received as usize), (false, files()[0].1.len()));
    place.is_whole();
}

#[test]
fn what_is_wanted_can_be_chosen() {
    let gguf = [
        ("config.json", b"{}".to_vec(), false),
        ("m-Q4_0.gguf", noise(1000, 1), true),
        ("m-Q8_0.gguf", noise(2000, 2), true),
        ("README.md", b"x".to_vec(), false),
    ];
    let hub = FakeHub::start(&gguf);
    let place = new_place();
    place.fails(&hub, &["only GGUF", "m-Q4_0.gguf, m-Q8_0.gguf", "--include '*Q8_0.gguf'"]);
    let chosen = |include: &[&str], exclude: &[&str]| {
        let parse = |patterns: &[&str]| patterns.iter().map(|p| p.parse().expect("pattern")).collect();
        PullRequest { selection: Selection { include: parse(include), exclude: parse(exclude) }, ..request() }
    };
    let error = place.pull_as(&options(&hub), &chosen(&["*Q5*"], &[])).expect_err("no match");
    place.judge(&error, &["*Q5*", "m-Q8_0.gguf"]);
    let pull = |request: &PullRequest| {
        let pulled = place.pull_as(&options(&hub), request).expect("pulled");
        pulled.manifest.files.into_iter().map(|file| file.path).collect::<Vec<_>>()
    };
    assert_eq!(pull(&chosen(&["*Q8_0.gguf"], &["README*"])), ["config.json", "m-Q8_0.gguf"]);
    // What is there stays.
    let all = ["README.md", "config.json", "m-Q4_0.gguf", "m-Q8_0.gguf"];
    assert_eq!(pull(&chosen(&["*Q4_0.gguf"], &[])), all);
    assert_eq!(pull(&request()), all, "and is what an update brings");
    assert!(place.pull(&hub).expect("pulled").up_to_date);
    assert_eq!(pull(&chosen(&[], &["*Q4*"])), ["README.md", "config.json", "m-Q8_0.gguf"]);

    let torch = [("config.json", b"{}".to_vec(), false), ("pytorch_model.bin", noise(10, 1), true)];
    new_place().fails(&FakeHub::start(&torch), &["only PyTorch", "pytorch_model.bin", "MLX"]);
    new_place().fails(&FakeHub::start(&[]), &["no safetensors", "none"]);
}

#[test]
fn a_disk_too_small_is_seen_before_the_first_byte() {
    let hub = FakeHub::start(&files());
    let mut listing = hub.listing();
    let weights = listing.iter_mut().find(|entry| entry["path"] == WEIGHTS).expect("weights");
    weights["lfs"]["size"] = json!(1u64 << 60);
    hub.lie(Value::Array(listing));
    let place = new_place();
    let error = place.fails(&hub, &["disk is full", "needed", "available", "same command"]);
    assert!(matches!(error, HubError::DiskFull { available: Some(free), needed, .. } if free < needed), "{error:?}");
    assert!(hub.seen().iter().all(|s| s.target.starts_with("/api/")));
    // Sizes that cannot even be added.
    let mut listing = hub.listing();
    for entry in listing.iter_mut().filter(|entry| entry["lfs"].is_object()) {
        entry["lfs"]["size"] = json!(u64::MAX);
    }
    hub.lie(Value::Array(listing));
    place.fails(&hub, &["2^64"]);
}

#[test]
fn what_is_somebodys_own_is_not_replaced() {
    let hub = FakeHub::start(&files());
    let place = new_place();
    std::fs::create_dir_all(place.dir()).expect("directory");
    std::fs::write(place.dir().join("mine.txt"), "mine").expect("write");
    let error = place.pull(&hub).expect_err("occupied");
    place.judge(&error, &["not pulled", "mlxcel rm"]);
    assert_eq!(names(&place.dir()), ["mine.txt"]);

    let place = new_place();
    place.pull(&hub).expect("pulled");
    std::fs::write(place.dir().join("notes.txt"), "mine").expect("write");
    std::fs::write(place.dir().join(".DS_Store"), "").expect("write");
    assert!(place.pull(&hub).expect("nothing to do").up_to_date);
    hub.publish('2', &files());
    let error = place.pull(&hub).expect_err("occupied");
    place.judge(&error, &["notes.txt", "move them away"]);
    assert!(!error.to_string().contains("DS_Store"));
    std::fs::remove_file(place.dir().join("notes.txt")).expect("remove");
    place.pull(&hub).expect("pulled");
    std::fs::write(place.dir().join(MANIFEST), "{").expect("write");
    place.judge(&place.pull(&hub).expect_err("broken"), &[MANIFEST, "mlxcel rm"]);
}

#[test]
fn two_at_once_are_one_too_many() {
    let hub = FakeHub::start(&files());
    hub.faults("tree", [Fault::Hang(1)]);
    let place = new_place();
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| place.pull_as(&HubOptions { timeout: Duration::from_secs(3), ..options(&hub) }, &request()));
        let start = Instant::now();
        while hub.seen().is_empty() {
            assert!(!first.is_finished(), "it ended before its first request");
            assert!(start.elapsed() < Duration::from_secs(20), "no request came");
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = place.pull(&hub).expect_err("locked");
        place.judge(&error, &["o/n", "another process"]);
        first.join().expect("no panic").expect("pulled");
    });
    place.is_whole();
}
