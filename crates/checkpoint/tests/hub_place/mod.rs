//! A store to pull into, and what every pull is held to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mlxcel_checkpoint::hub::select::Selection;
use mlxcel_checkpoint::hub::{Event, Hub, HubError, HubOptions, PullRequest, Pulled, Retry, pull};
use mlxcel_checkpoint::store::{MANIFEST, Store};

use crate::hub_server::{FakeHub, commit, noise};

pub const WEIGHTS: &str = "model.safetensors";
pub const SIZE: usize = 300_000;

pub fn files() -> Vec<(&'static str, Vec<u8>, bool)> {
    vec![
        ("config.json", b"{\"model_type\": \"x\"}".to_vec(), false),
        (WEIGHTS, noise(SIZE, 1), true),
        ("tokenizer.json", noise(70_000, 2), true),
        ("special_tokens_map.json", Vec::new(), false),
        ("additional_chat_templates/a b.jinja", b"{{ x }}".to_vec(), false),
        ("original/model.safetensors", noise(50, 3), true),
        ("pytorch_model.bin", noise(50, 4), true),
        (".gitattributes", b"*".to_vec(), false),
    ]
}

/// What a pull takes of them.
pub fn chosen() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    files().into_iter().take(5).map(|(path, bytes, _)| (path, bytes))
}

pub fn options(hub: &FakeHub) -> HubOptions {
    let retry = Retry {
        attempts: 4,
        first: Duration::from_millis(2),
        longest: Duration::from_millis(8),
        patience: Duration::from_secs(20),
    };
    HubOptions { endpoint: hub.url.clone(), retry, timeout: Duration::from_secs(5), ..HubOptions::default() }
}

pub fn request() -> PullRequest {
    PullRequest {
        repo: "o/n".parse().expect("name"),
        revision: "main".into(),
        selection: Selection::default(),
        verify: false,
    }
}

/// A store in a directory of its own, inside of one where nothing else may appear.
pub struct Place {
    outer: tempfile::TempDir,
    pub store: Store,
}

pub fn new_place() -> Place {
    let outer = tempfile::tempdir().expect("directory");
    let store = Store::new(outer.path().join("store"));
    Place { outer, store }
}

impl Place {
    pub fn dir(&self) -> PathBuf {
        self.store.root().join("o/n")
    }

    pub fn partial(&self, digit: char) -> PathBuf {
        self.store.root().join(format!(".partial/o--n--{}", commit(digit)))
    }

    pub fn pull(&self, hub: &FakeHub) -> Result<Pulled, HubError> {
        self.pull_as(&options(hub), &request())
    }

    pub fn pull_as(&self, options: &HubOptions, request: &PullRequest) -> Result<Pulled, HubError> {
        let (mut total, mut done) = (0, 0u64);
        let result = pull(&Hub::new(options)?, &self.store, request, &mut |event| match event {
            Event::Plan { total: bytes, .. } => total = bytes,
            Event::Bytes(count) => done += count,
            Event::Lost(count) => done = done.checked_sub(count).expect("no more is lost than was there"),
            _ => {}
        });
        if let Ok(pulled) = &result
            && !pulled.up_to_date
        {
            assert_eq!(done, total, "progress adds up");
        }
        let outside: Vec<_> = std::fs::read_dir(self.outer.path()).expect("directory").collect();
        assert!(outside.len() <= 1, "{outside:?}");
        result
    }

    /// A pull whose events somebody else sees too.
    pub fn pull_while(&self, hub: &FakeHub, mut see: impl FnMut(&Event<'_>)) -> Result<Pulled, HubError> {
        pull(&Hub::new(&options(hub))?, &self.store, &request(), &mut |event| see(&event))
    }

    /// The error of a pull that must fail, and leave no model.
    pub fn fails(&self, hub: &FakeHub, words: &[&str]) -> HubError {
        let error = self.pull(hub).expect_err("this pull must fail");
        self.judge(&error, words);
        assert!(self.store.models().expect("models").is_empty(), "{error}");
        error
    }

    pub fn judge(&self, error: &HubError, words: &[&str]) {
        let message = error.to_string();
        for word in words {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
        assert!(!message.contains("Signature") && !message.contains("sesame"), "a secret: {message}");
    }

    /// The model is there, whole, with nothing beside it and nothing unfinished.
    pub fn is_whole(&self) {
        for (path, bytes) in chosen() {
            assert!(std::fs::read(self.dir().join(path)).expect(path) == bytes, "{path} differs");
        }
        let mut names = names(&self.dir());
        names.retain(|name| name != MANIFEST && name != "additional_chat_templates");
        assert_eq!(names.len(), chosen().count() - 1, "{names:?}");
        assert_eq!(self.store.partials().expect("partials").len(), 0);
    }
}

pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("directory").map(|e| e.expect("entry").file_name());
    entries.map(|name| name.into_string().expect("UTF-8")).collect()
}
