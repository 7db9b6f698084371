//! Where checkpoints are looked for.

use std::fmt;
use std::path::{Path, PathBuf};

use mlxcel_checkpoint::store::{HubCache, RepoId, Store};

/// Directories that may hold checkpoints. Nothing here is read from the environment; the binary fills it in.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// `--models-dir`, looked at first.
    pub models_dir: Option<PathBuf>,
    /// Directories called models/ (of the working tree, beside the executable); of each, its mlx/ is looked at after it.
    pub shelves: Vec<PathBuf>,
    /// The model store.
    pub store: Option<PathBuf>,
    /// The Hugging Face cache.
    pub hub_cache: Option<PathBuf>,
}

/// A checkpoint that is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Absent {
    /// What was asked for.
    pub name: String,
    /// The places looked at, in order.
    pub looked: Vec<String>,
    /// A copy that is there and cannot be used, and why.
    pub note: Option<String>,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, looked, note } = self;
        write!(f, "{name} is not on disk; looked in ")?;
        match &looked[..] {
            [] => write!(f, "no directory at all")?,
            looked => write!(f, "{}", looked.join(", "))?,
        }
        if let Some(note) = note {
            write!(f, "; {note}")?;
        }
        if name.parse::<RepoId>().is_ok() {
            write!(f, "; fetch it with: mlxcel pull {name}")?;
        }
        Ok(())
    }
}

impl From<Absent> for crate::row::Status {
    fn from(absent: Absent) -> Self {
        Self::Absent(absent.to_string())
    }
}

impl Places {
    /// The directories that are looked at by name, in order.
    fn directories(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.models_dir.iter().cloned().collect();
        for shelf in &self.shelves {
            all.extend([shelf.clone(), shelf.join("mlx")]);
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|dir| seen.insert(dir.clone()));
        all
    }

    /// The places, in order, for people.
    pub fn described(&self) -> Vec<String> {
        let mut all: Vec<String> = self.directories().iter().map(|dir| dir.display().to_string()).collect();
        all.extend(self.store.iter().map(|dir| format!("{} (model store)", dir.display())));
        all.extend(self.hub_cache.iter().map(|dir| format!("{} (Hugging Face cache)", dir.display())));
        all
    }

    /// The checkpoint that a flag names: a path that exists is used as given, anything else is looked for as [`Places::find`] does.
    ///
    /// # Errors
    /// As [`Places::find`].
    pub fn given(&self, path: &Path) -> Result<PathBuf, Absent> {
        if path.exists() {
            return Ok(path.into());
        }
        match path.to_str() {
            Some(name) if !path.is_absolute() && !name.starts_with('.') => self.find(name),
            _ => Err(Absent { name: path.display().to_string(), looked: vec![path.display().to_string()], note: None }),
        }
    }

    /// The directory of a checkpoint called `NAME` or `OWNER/NAME`: in `--models-dir`, models/, models/mlx/ (there also without
    /// its owner), the store, the cache. Upper and lower case are the same, as they are on the hub, but the name as written
    /// goes first.
    ///
    /// # Errors
    /// It is in none of them.
    pub fn find(&self, name: &str) -> Result<PathBuf, Absent> {
        let repo = name.parse::<RepoId>().ok();
        let last = repo.as_ref().map_or(name, RepoId::name);
        for place in self.directories() {
            let found = repo.as_ref().and_then(|repo| {
                let owner = entry(&place, repo.owner())?;
                checkpoint(&owner, repo.name())
            });
            if let Some(dir) = found.or_else(|| checkpoint(&place, last)) {
                return Ok(dir);
            }
        }
        let mut note = None;
        if let Some(store) = self.store.as_ref().map(Store::new) {
            let models = store.models().unwrap_or_default();
            let same = |asked: &str| models.iter().find(|model| model.name.eq_ignore_ascii_case(asked));
            let of_any_owner = || {
                let mut found =
                    models.iter().filter(|m| m.name.rsplit('/').next().unwrap_or("").eq_ignore_ascii_case(name));
                found.next().filter(|_| found.next().is_none())
            };
            let found = same(name).or_else(|| repo.is_none().then(of_any_owner).flatten());
            if let Some(model) = found {
                return Ok(model.dir.clone());
            }
            if store.partials().unwrap_or_default().iter().any(|partial| partial.name.eq_ignore_ascii_case(name)) {
                note = Some("a pull of it did not finish".to_string());
            }
        }
        if let (Some(cache), Some(repo)) = (self.hub_cache.as_ref().map(HubCache::new), &repo)
            && let Some(model) = cache.get(repo)
        {
            if model.missing.is_empty() {
                return Ok(model.dir);
            }
            note = Some(format!("the copy in the cache lacks {}", model.missing.join(", ")));
        }
        Err(Absent { name: name.into(), looked: self.described(), note })
    }
}

/// The checkpoint of that name in a directory.
fn checkpoint(dir: &Path, name: &str) -> Option<PathBuf> {
    entry(dir, name).filter(|dir| dir.join("config.json").is_file())
}

/// The directory of that name in another; where there is none, the first in the alphabet that differs in case alone.
fn entry(dir: &Path, name: &str) -> Option<PathBuf> {
    // A name is one component: it never leads out of the directory.
    let mut parts = Path::new(name).components();
    let (Some(std::path::Component::Normal(_)), None) = (parts.next(), parts.next()) else { return None };
    let exact = dir.join(name);
    if exact.is_dir() {
        return Some(exact);
    }
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let mut others: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|other| other.eq_ignore_ascii_case(name)))
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    others.sort();
    others.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with checkpoints at these paths, and places in it.
    fn world(checkpoints: &[&str]) -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for path in checkpoints {
            let path = dir.path().join(path);
            std::fs::create_dir_all(&path).expect("directory");
            std::fs::write(path.join("config.json"), "{}").expect("file");
        }
        let at = |name: &str| dir.path().join(name);
        let places = Places {
            models_dir: Some(at("given")),
            shelves: vec![at("models")],
            store: Some(at("store")),
            hub_cache: Some(at("cache")),
        };
        (dir, places)
    }

    fn found(checkpoints: &[&str], name: &str) -> Option<String> {
        let (dir, places) = world(checkpoints);
        let path = places.find(name).ok()?;
        Some(path.strip_prefix(dir.path()).expect("inside").to_str().expect("text").replace('\\', "/"))
    }

    #[test]
    fn places_are_looked_at_in_order() {
        let all = ["given/o/m", "given/m", "models/o/m", "models/m", "models/mlx/o/m", "models/mlx/m", "store/o/m"];
        for from in 0..all.len() {
            assert_eq!(found(&all[from..], "o/m").as_deref(), Some(all[from]), "with its owner");
        }
        for (from, expected) in [(0, "given/m"), (2, "models/m"), (4, "models/mlx/m"), (6, "store/o/m")] {
            assert_eq!(found(&all[from..], "m").as_deref(), Some(expected), "without");
        }
        assert_eq!(found(&[], "o/m"), None);
        assert_eq!(found(&["models/other/m"], "o/m"), None, "another owner's");
        assert_eq!(found(&["store/a/m", "store/b/m"], "m"), None, "two owners");
    }

    #[test]
    fn case_is_the_hubs_affair() {
        assert_eq!(found(&["models/Gemma-12b"], "o/gemma-12B").as_deref(), Some("models/Gemma-12b"));
        assert_eq!(found(&["store/o/Gemma-12b"], "o/gemma-12B").as_deref(), Some("store/o/Gemma-12b"));
        assert_eq!(found(&["models/GEMMA-12B", "models/gemma-12B"], "gemma-12B").as_deref(), Some("models/gemma-12B"));
        assert_eq!(found(&["models/gemma-13b"], "gemma-12b"), None);
    }

    #[test]
    fn the_absent_one_names_the_places() {
        let (dir, places) = world(&["models/other"]);
        // A directory without config.json is no checkpoint.
        std::fs::create_dir_all(dir.path().join("models/m")).expect("directory");
        let error = places.find("owner/m").expect_err("absent");
        let text = error.to_string();
        for part in
            ["owner/m is not on disk", "given", "models", "mlx", "store (model store)", "cache", "mlxcel pull owner/m"]
        {
            assert!(text.contains(part), "{text:?} lacks {part}");
        }
        assert!(!places.find("m").expect_err("absent").to_string().contains("pull"), "no repository");
        assert_eq!(error.looked.len(), 5);
    }

    #[test]
    fn a_path_is_used_as_given() {
        let (dir, places) = world(&["models/m"]);
        let empty = dir.path().join("elsewhere");
        std::fs::create_dir(&empty).expect("directory");
        assert_eq!(places.given(&empty), Ok(empty), "whatever is in it");
        assert_eq!(places.given(Path::new("m")), Ok(dir.path().join("models/m")));
        for path in [dir.path().join("nowhere"), "./m".into(), "../models/m".into()] {
            let error = places.given(&path).expect_err("absent");
            assert_eq!(error.looked, [path.display().to_string()]);
        }
        for name in ["..", "../models/m", "", "/"] {
            assert!(places.find(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn an_unfinished_pull_is_told() {
        let (dir, places) = world(&[]);
        let commit = "0123456789".repeat(4);
        std::fs::create_dir_all(dir.path().join(format!("store/.partial/o--m--{commit}"))).expect("directory");
        assert!(places.find("o/m").expect_err("absent").to_string().contains("a pull of it did not finish"));
    }
}
