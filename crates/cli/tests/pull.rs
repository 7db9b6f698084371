//! `pull`, `list`, `rm` and `-m OWNER/NAME` as a user meets them, against a hub on this machine.

#[path = "../../checkpoint/tests/hub_server/mod.rs"]
mod hub_server;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hub_server::{FakeHub, Fault, commit, noise};
use serde_json::Value;

const WEIGHTS: &str = "model.safetensors";
const SIZE: usize = 400_000;

/// Files that pass for a checkpoint as long as nobody opens it.
fn files() -> Vec<(&'static str, Vec<u8>, bool)> {
    vec![
        ("config.json", br#"{"quantization": {"group_size": 64, "bits": 4}}"#.to_vec(), false),
        (WEIGHTS, noise(SIZE, 1), true),
        ("tokenizer.json", noise(2000, 2), false),
    ]
}

/// The demo checkpoint as a repository.
fn demo() -> Vec<(String, Vec<u8>, bool)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-4bit");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("demo") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_str().expect("UTF-8").to_string();
        if path.is_file() && name != "golden.safetensors" {
            files.push((name.clone(), std::fs::read(&path).expect("read"), name.ends_with(".safetensors")));
        }
    }
    files
}

/// A user with nothing yet.
struct User {
    home: tempfile::TempDir,
    endpoint: String,
}

impl User {
    fn new(hub: &FakeHub) -> Self {
        Self { home: tempfile::tempdir().expect("directory"), endpoint: hub.url.clone() }
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("store")
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join("cache")
    }

    fn part(&self) -> PathBuf {
        self.store().join(format!(".partial/o--n--{}/{WEIGHTS}.part", commit('1')))
    }

    /// A command that sees nothing of this machine's own settings.
    fn dress(&self, command: &mut Command) {
        let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
        for name in proxies.iter().flat_map(|name| [name.to_string(), name.to_ascii_lowercase()]) {
            command.env_remove(name);
        }
        for name in ["MLXCEL_MODEL", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command
            .env_remove("TRANSFORMERS_OFFLINE")
            .env_remove("SSL_CERT_FILE")
            .env("MLXCEL_MODELS_DIR", self.store())
            .env("MLXCEL_CACHE_DIR", self.home.path().join("cache"))
            .env("HF_HOME", self.home.path().join("hf"))
            .env("HF_HUB_CACHE", self.cache())
            .env("HF_ENDPOINT", &self.endpoint)
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    fn mlxcel(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
        self.dress(&mut command);
        command.args(args);
        command
    }

    fn ok(&self, args: &[&str]) -> String {
        let out = self.mlxcel(args).output().expect("the binary runs");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("UTF-8")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).expect("JSON")
    }

    fn fails(&self, args: &[&str], words: &[&str]) -> String {
        judge(self.mlxcel(args).output().expect("the binary runs"), words)
    }

    /// Starts a pull and waits until so many bytes of the weights are on the disk.
    fn start(&self, bytes: u64) -> Child {
        let mut child = self.mlxcel(&["pull", "o/n"]).spawn().expect("the binary runs");
        let start = Instant::now();
        while std::fs::metadata(self.part()).map_or(0, |data| data.len()) < bytes {
            assert!(child.try_wait().expect("wait").is_none(), "it ended");
            assert!(start.elapsed() < Duration::from_secs(20), "nothing came");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }
}

/// An output that must be a failure with a message holding the words.
fn judge(out: Output, words: &[&str]) -> String {
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "it succeeded: {message}");
    assert!(!message.contains("panicked"), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert!(!message.contains("sesame") && !message.contains("Signature"), "a secret: {message}");
    message
}

#[test]
fn a_model_is_pulled_used_and_removed() {
    let files = demo();
    let files: Vec<(&str, Vec<u8>, bool)> =
        files.iter().map(|(name, bytes, lfs)| (name.as_str(), bytes.clone(), *lfs)).collect();
    let hub = FakeHub::start(&files);
    let user = User::new(&hub);
    assert!(user.ok(&["list"]).contains("mlxcel pull OWNER/NAME"));
    user.fails(&["inspect", "-m", "o/n"], &["o/n", "mlxcel pull o/n", "store", "cache"]);

    let said = user.ok(&["pull", "o/n"]);
    assert!(said.contains("o/n: pulled at commit 111111111111"), "{said}");
    let listed = user.json(&["list", "--json"]);
    let model = &listed["models"][0];
    assert_eq!((&model["name"], &model["source"], &model["problem"]), (&"o/n".into(), &"store".into(), &Value::Null));
    assert_eq!(model["weights"], "affine 4-bit group 64");
    let table = user.ok(&["ls"]);
    assert!(table.contains("o/n") && table.contains("MiB") && table.contains("store"), "{table}");
    for name in ["o/n", "n"] {
        assert_eq!(user.json(&["inspect", "-m", name, "--json"])["parameters"], 21_054_346);
    }
    let spoken = user.ok(&["generate", "-m", "o/n", "-p", "What is speculative decoding?", "--temp", "0", "-q"]);
    assert!(spoken.contains("draft model"), "{spoken}");

    hub.seen();
    let again = user.json(&["pull", &format!("{}/o/n/", hub.url), "--json"]);
    assert_eq!((&again["status"], &again["received_bytes"]), (&"up to date".into(), &0.into()));
    assert!(hub.seen().iter().all(|seen| seen.target.starts_with("/api/")));
    assert_eq!(user.ok(&["pull", "o/n", "--quiet"]), "");

    user.fails(&["rm", "o/n"], &["o/n", "-y"]);
    user.fails(&["rm", "o/m", "-y"], &["o/m", "no such model", "did you mean o/n"]);
    assert!(user.ok(&["rm", "n", "-y"]).contains("removed o/n"));
    assert!(!user.store().join("o").exists());
    user.fails(&["rm", "o/n", "-y"], &["no such model", "mlxcel list"]);
    // A path that exists still wins over the store.
    std::fs::create_dir_all(user.home.path().join("o/n")).expect("directory");
    user.fails(&["inspect", "-m", "o/n"], &["config.json"]);
}

#[test]
#[cfg(unix)]
fn an_interrupted_pull_goes_on() {
    for signal in ["KILL", "INT", "TERM"] {
        let hub = FakeHub::start(&files());
        hub.faults(&format!("content:{WEIGHTS}"), [Fault::Hang(150_000)]);
        let user = User::new(&hub);
        let child = user.start(150_000);
        let sent = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
        let out = child.wait_with_output().expect("wait");
        assert!(!out.status.success());
        if signal == "INT" {
            assert_eq!(out.status.code(), Some(130));
            let message = String::from_utf8_lossy(&out.stderr);
            assert!(message.contains("mlxcel pull o/n") && message.contains("rm --partial"), "{message}");
        }
        let listed = user.json(&["list", "--json"]);
        assert_eq!(listed["models"].as_array().expect("models").len(), 1);
        assert_eq!(listed["models"][0]["source"], "partial");
        let table = user.ok(&["list"]);
        assert!(table.contains("partial") && table.contains("unfinished") && table.contains("%"), "{table}");
        assert!(!user.store().join("o").exists(), "nothing that looks like a model");
        user.fails(&["inspect", "-m", "o/n"], &["did not finish", "mlxcel pull o/n"]);

        hub.seen();
        user.ok(&["pull", "o/n"]);
        let seen = hub.seen();
        let weights: Vec<_> = seen.iter().filter(|seen| seen.cdn).collect();
        assert_eq!(weights.len(), 1);
        assert_eq!(weights[0].range.as_deref(), Some("bytes=150000-"));
        assert_eq!(std::fs::read(user.store().join("o/n").join(WEIGHTS)).expect("read"), files()[1].1);
        assert_eq!(std::fs::read_dir(user.store().join(".partial")).expect("directory").count(), 0);
    }
}

#[test]
#[cfg(unix)]
fn unfinished_pulls_can_be_removed() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    assert!(user.ok(&["rm", "--partial"]).contains("nothing"));
    for args in [&["rm", "--partial", "-y"][..], &["rm", "--partial", "o/n", "-y"], &["rm", "o/n", "-y"]] {
        hub.faults(&format!("content:{WEIGHTS}"), [Fault::Hang(1000)]);
        let mut child = user.start(1000);
        // Not while somebody works on it.
        user.fails(args, &["o/n", "another process"]);
        child.kill().expect("kill");
        child.wait().expect("wait");
        user.fails(&args[..args.len() - 1], &["-y"]);
        assert!(user.ok(args).contains("removed the unfinished pull of o/n"));
        assert_eq!(std::fs::read_dir(user.store().join(".partial")).expect("directory").count(), 0);
    }
    user.fails(&["rm", "--partial", "o/n", "-y"], &["no such unfinished pull"]);
    user.fails(&["rm"], &["NAME"]);
}

#[test]
fn two_pulls_at_once_are_one_too_many() {
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Hang(1000)]);
    let user = User::new(&hub);
    let mut child = user.start(1000);
    user.fails(&["pull", "o/n"], &["o/n", "another process"]);
    child.kill().expect("kill");
    child.wait().expect("wait");
    // The lock went with its holder.
    user.ok(&["pull", "o/n"]);
}

#[test]
fn a_byte_damaged_on_the_way_is_refused_and_repaired() {
    let hub = FakeHub::start(&files());
    hub.faults(&format!("content:{WEIGHTS}"), [Fault::Flip(SIZE / 2)]);
    let user = User::new(&hub);
    let out = user.mlxcel(&["pull", "o/n", "--json"]).output().expect("the binary runs");
    assert!(out.stdout.is_empty());
    judge(out, &["o/n", WEIGHTS, "damaged", "sha256:"]);
    assert!(!user.store().join("o").exists() && !user.part().exists());
    let pulled = user.json(&["pull", "o/n", "--json"]);
    assert_eq!((&pulled["status"], &pulled["received_bytes"]), (&"pulled".into(), &SIZE.into()));
    assert_eq!(pulled["files"].as_array().expect("files").len(), 3);
    // And one that rots later, when asked to look.
    let path = user.store().join("o/n").join(WEIGHTS);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[7] ^= 1;
    std::fs::write(&path, bytes).expect("write");
    assert_eq!(user.json(&["pull", "o/n", "--verify", "--json"])["received_bytes"], SIZE);
    assert_eq!(std::fs::read(&path).expect("read"), files()[1].1);
    std::fs::remove_file(&path).expect("remove");
    assert!(user.ok(&["list"]).contains("mlxcel pull --verify o/n"), "what lacks a file says so");
}

#[test]
#[cfg(unix)]
fn a_disk_that_takes_no_more_leaves_what_it_took() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    // No file above 100 KiB; with the signal ignored the write fails as one to a full disk does.
    let script = format!("trap '' XFSZ; ulimit -f 100 || exit 77; exec {} pull o/n", env!("CARGO_BIN_EXE_mlxcel"));
    let mut command = Command::new("bash");
    user.dress(&mut command);
    let out = match command.args(["-c", &script]).output() {
        Ok(out) if out.status.code() != Some(77) => out,
        _ => return println!("skipped: no bash, or no limit on file sizes here"),
    };
    judge(out, &[WEIGHTS, "no file this large", "ulimit -f", "MLXCEL_MODELS_DIR"]);
    assert!(!user.store().join("o").exists());
    assert_eq!(std::fs::metadata(user.part()).expect("part").len(), 100 << 10);
    hub.seen();
    user.ok(&["pull", "o/n"]);
    assert!(hub.seen().iter().any(|seen| seen.range.as_deref() == Some("bytes=102400-")));
    assert_eq!(std::fs::read(user.store().join("o/n").join(WEIGHTS)).expect("read"), files()[1].1);
}

#[test]
fn offline_means_offline() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    user.fails(&["pull", "o/n", "--offline"], &["o/n", "offline", "HF_HUB_OFFLINE"]);
    let out = user.mlxcel(&["pull", "o/n"]).env("HF_HUB_OFFLINE", "1").output().expect("the binary runs");
    judge(out, &["o/n", "offline"]);
    assert!(hub.seen().is_empty());
    user.ok(&["pull", "o/n"]);
    hub.seen();
    assert!(user.ok(&["pull", "o/n", "--offline"]).contains("not compared with the hub"));
    assert_eq!(user.json(&["pull", "o/n", "--offline", "--json"])["source"], "store");
    assert!(hub.seen().is_empty());
}

#[test]
#[cfg(unix)]
fn the_cache_of_the_hubs_own_tools_is_read() {
    use std::os::unix::fs::symlink;
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    let model = user.cache().join("models--o--n");
    let snapshot = model.join("snapshots").join(commit('7'));
    std::fs::create_dir_all(&snapshot).expect("directory");
    std::fs::create_dir_all(model.join("blobs")).expect("directory");
    std::fs::create_dir_all(model.join("refs")).expect("directory");
    std::fs::write(model.join("refs/main"), commit('7')).expect("write");
    for (number, (name, bytes, _)) in demo().iter().enumerate() {
        if !name.ends_with(".safetensors") {
            std::fs::write(model.join(format!("blobs/{number}")), bytes).expect("write");
        }
        symlink(format!("../../blobs/{number}"), snapshot.join(name)).expect("link");
    }
    user.fails(&["inspect", "-m", "o/n"], &["incomplete", WEIGHTS, "mlxcel pull o/n"]);
    assert!(user.ok(&["list"]).contains("incomplete"));
    user.fails(&["pull", "o/n", "--offline"], &["not complete"]);
    for (number, (name, bytes, _)) in demo().iter().enumerate() {
        if name.ends_with(".safetensors") {
            std::fs::write(model.join(format!("blobs/{number}")), bytes).expect("write");
        }
    }
    let inspected = user.json(&["inspect", "-m", "o/n", "--json"]);
    assert_eq!(inspected["path"], snapshot.to_str().expect("UTF-8"), "used where it lies");
    let listed = &user.json(&["list", "--json"])["models"][0];
    assert_eq!((&listed["source"], &listed["commit"]), (&"cache".into(), &commit('7').into()));
    assert_eq!(user.json(&["pull", "o/n", "--offline", "--json"])["source"], "cache");
    user.fails(&["rm", "o/n", "-y"], &["o/n", "cache", "only reads"]);
    assert!(snapshot.join("config.json").exists());
    // Once pulled, the store comes first.
    user.ok(&["pull", "o/n", "-q"]);
    assert_eq!(user.json(&["list", "--json"])["models"].as_array().expect("models").len(), 2);
    user.ok(&["rm", "o/n", "-y"]);
    assert!(snapshot.join("config.json").exists());
}

#[test]
fn the_token_comes_from_where_it_should_and_goes_nowhere_else() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    let token = |variable: Option<(&str, &str)>, args: &[&str]| {
        let _ = std::fs::remove_dir_all(user.store());
        let mut command = user.mlxcel(&["pull", "o/n"]);
        command.args(args).envs(variable);
        let out = command.output().expect("the binary runs");
        let said = [out.stdout, out.stderr].concat();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&said));
        assert!(!String::from_utf8_lossy(&said).contains("sesame"));
        let seen = hub.seen();
        assert!(seen.iter().filter(|seen| seen.cdn).all(|seen| seen.authorization.is_none()));
        seen[0].authorization.clone()
    };
    let bearer = |text: &str| Some(format!("Bearer {text}"));
    assert_eq!(token(None, &[]), None);
    assert_eq!(token(Some(("HF_TOKEN", " sesame1\n")), &[]), bearer("sesame1"));
    std::fs::create_dir_all(user.home.path().join("hf")).expect("directory");
    std::fs::write(user.home.path().join("hf/token"), "sesame2\n").expect("write");
    assert_eq!(token(None, &[]), bearer("sesame2"));
    std::fs::write(user.home.path().join("other"), "sesame3").expect("write");
    assert_eq!(token(Some(("HF_TOKEN_PATH", "other")), &[]), bearer("sesame3"));
    assert_eq!(token(Some(("HF_TOKEN", "x")), &["--token", "sesame4"]), bearer("sesame4"));

    hub.faults("revision", [Fault::Status(401, vec![])]);
    user.fails(&["pull", "o/n", "--token", "sesame5"], &["refuses the access token"]);
    user.fails(&["pull", "o/n", "--token", "sesame 6"], &["token", "characters"]);
    user.fails(&["pull", "o/n", "--token", " "], &["--token", "token expected"]);
    hub.faults("revision", [Fault::Status(403, vec![("X-Error-Code", "GatedRepo".into())])]);
    user.fails(&["pull", "o/n", "--token", "sesame7"], &["restricted", &format!("{}/o/n", hub.url)]);
}

#[test]
fn what_is_typed_wrong_is_said() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    for name in ["n", "../o/n", "o/n/x", "o/..", "https://elsewhere.example/o/n"] {
        user.fails(&["pull", name], &["OWNER/NAME"]);
    }
    user.fails(&["pull", "o/n", "--revision", "nope"], &["o/n", "no revision \"nope\"", "--revision"]);
    user.fails(&["pull", "o/m"], &["o/m", "no such model", "HF_TOKEN"]);
    user.fails(&["pull", "o/n", "--include", "*.gguf"], &["*.gguf", "config.json"]);
    user.fails(&["pull", "o/n", "--include", ""], &["--include", "1 to 1024"]);
    let out = user.mlxcel(&["pull", "o/n"]).env("HF_ENDPOINT", "hub.example").output().expect("the binary runs");
    judge(out, &["HF_ENDPOINT", "https://HOST"]);
    let out = user.mlxcel(&["pull", "o/n"]).env("HTTP_PROXY", "bad proxy:sesame").output().expect("the binary runs");
    judge(out, &["HTTP_PROXY"]);
    // Passed over, it would send the token to the public hub.
    #[cfg(unix)]
    for name in ["HF_ENDPOINT", "HF_TOKEN", "https_proxy", "HF_HUB_OFFLINE"] {
        use std::os::unix::ffi::OsStrExt;
        let odd = std::ffi::OsStr::from_bytes(b"http://127.0.0.1:9/\xff");
        let out = user.mlxcel(&["pull", "o/n", "--token", "sesame"]).env(name, odd).output().expect("the binary runs");
        judge(out, &[name, "UTF-8"]);
    }
    assert!(!user.store().join("o").exists());
    for verb in ["pull", "list", "rm"] {
        let text = user.ok(&[verb, "--help"]);
        assert!(text.contains("Examples:") && text.contains(&format!("mlxcel {verb}")), "{text}");
    }
}

#[test]
fn what_stood_aside_when_a_process_died_is_put_back() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    user.ok(&["pull", "o/n"]);
    let aside = user.store().join(".partial/.replaced-o--n");
    for args in [&["pull", "o/n"][..], &["rm", "--partial"]] {
        std::fs::rename(user.store().join("o/n"), &aside).expect("rename");
        user.ok(args);
        assert!(user.store().join("o/n/config.json").exists() && !aside.exists(), "{args:?}");
    }
    hub.seen();
    std::fs::rename(user.store().join("o/n"), &aside).expect("rename");
    assert_eq!(user.json(&["pull", "o/n", "--json"])["received_bytes"], 0);
}

#[test]
fn names_that_nobody_asked_for_are_left_out_with_a_word() {
    let hub = FakeHub::start(&files());
    let mut listing = hub.listing();
    listing.push(serde_json::json!({"type": "file", "oid": "0".repeat(40), "size": 0, "path": "../odd"}));
    hub.lie(Value::Array(listing));
    let user = User::new(&hub);
    let out = user.mlxcel(&["pull", "o/n"]).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("../odd") && said.contains("left out"), "{said}");
    user.fails(&["pull", "o/n", "--include", "*"], &["../odd", "refused", "--exclude"]);
}

#[test]
fn one_name_of_two_owners_is_asked_about() {
    let hub = FakeHub::start(&files());
    let user = User::new(&hub);
    for owner in ["a", "b"] {
        let dir = user.store().join(owner).join("same");
        std::fs::create_dir_all(&dir).expect("directory");
        std::fs::write(dir.join("config.json"), "{}").expect("write");
    }
    user.fails(&["inspect", "-m", "same"], &["a/same", "b/same", "owner"]);
    user.fails(&["rm", "same", "-y"], &["a/same", "b/same", "owner"]);
    user.ok(&["rm", "a/same", "-y"]);
    user.fails(&["inspect", "-m", "same"], &["store/b/same"]);
}
