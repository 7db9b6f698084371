//! What can go wrong in the store.

use std::path::{Path, PathBuf};

/// An error of the store; the message names the path and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Not a repository name.
    #[error(
        "{found:?} is not the name of a model repository: {problem}; expected OWNER/NAME, as in mlx-community/gemma-3-1b-it-4bit"
    )]
    Name {
        /// What was given.
        found: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A file name that must not be written.
    #[error("file name {found:?} is refused: {problem}")]
    Path {
        /// The name.
        found: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A manifest that cannot be read.
    #[error("{}: {problem}; `mlxcel rm` removes the model, `mlxcel pull` fetches it again", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody else changes the model.
    #[error(
        "{name}: another process is pulling or removing this model (it holds {}); wait for it, or stop it first",
        path.display()
    )]
    Locked {
        /// The model.
        name: String,
        /// The lock file.
        path: PathBuf,
    },
}

impl StoreError {
    /// An error of the operating system about a path.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}
