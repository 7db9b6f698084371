//! What can go wrong between the hub and the store.

use std::path::PathBuf;
use std::time::Duration;

use crate::store::StoreError;

/// An error of a pull; the message names the repository, file or address and says what to do. No message holds a token, nor
/// the query of an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An option that cannot be used.
    #[error("{name}: {problem}")]
    Option {
        /// Which.
        name: &'static str,
        /// Expected and found, without secrets.
        problem: String,
    },
    /// No answer.
    #[error("{url}: {problem}")]
    Connection {
        /// The address, without its query.
        url: String,
        /// What happened.
        problem: String,
    },
    /// An answer that is none of those expected.
    #[error("{url}: the server answers {status}{message}")]
    Status {
        /// The address, without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's words; empty, or begins with a separator.
        message: String,
    },
    /// An answer that breaks the protocol.
    #[error("{url}: {problem}")]
    Answer {
        /// The address, without its query.
        url: String,
        /// Expected and found.
        problem: String,
    },
    /// The server asks for more patience than there is.
    #[error("{url}: the server asks to wait {} s before the next attempt (status {status}); try again then", wait.as_secs())]
    Wait {
        /// The address, without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The wait asked for.
        wait: Duration,
    },
    /// No such repository, as far as the hub shows.
    #[error("{repo}: no such model on {endpoint}{hint}")]
    NoRepository {
        /// `OWNER/NAME`.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Why it may not show.
        hint: &'static str,
    },
    /// The licence was not accepted, or nobody knows by whom.
    #[error("{repo}: access is restricted; accept its conditions at {endpoint}/{repo}, then {what}")]
    Gated {
        /// `OWNER/NAME`.
        repo: String,
        /// The hub.
        endpoint: String,
        /// What to do after.
        what: &'static str,
    },
    /// The token is not valid.
    #[error(
        "{endpoint} refuses the access token (HF_TOKEN, the token file, or --token); check it, or unset it for public models"
    )]
    Token {
        /// The hub.
        endpoint: String,
    },
    /// No such branch, tag or commit.
    #[error("{repo}: no revision {revision:?}; expected a branch, a tag, or a commit (--revision)")]
    NoRevision {
        /// `OWNER/NAME`.
        repo: String,
        /// The one asked for.
        revision: String,
    },
    /// A file of the listing is not there.
    #[error("{repo}: the file {path} is listed but not there (404)")]
    NoFile {
        /// `OWNER/NAME`.
        repo: String,
        /// The file.
        path: String,
    },
    /// A listed file name that must not be written.
    #[error("{repo}: {source}; nothing was downloaded; --exclude leaves a file out")]
    Listing {
        /// `OWNER/NAME`.
        repo: String,
        /// What is wrong.
        source: StoreError,
    },
    /// The repository has nothing that was asked for.
    #[error("{repo}: {problem}")]
    Nothing {
        /// `OWNER/NAME`.
        repo: String,
        /// What there is instead, and what to do.
        problem: String,
    },
    /// The size is not the listed one.
    #[error("{repo}: {path} has {found} bytes at {url}, expected {expected} by the listing")]
    Size {
        /// `OWNER/NAME`.
        repo: String,
        /// The file.
        path: String,
        /// Where it came from, without the query.
        url: String,
        /// Bytes by the listing.
        expected: u64,
        /// Bytes announced or sent.
        found: u64,
    },
    /// The content is not the listed one.
    #[error(
        "{repo}: {path} arrived damaged: its hash is {found}, expected {expected}; it was deleted, the same command \
         fetches it again"
    )]
    Damaged {
        /// `OWNER/NAME`.
        repo: String,
        /// The file.
        path: String,
        /// Hash by the listing.
        expected: String,
        /// Hash of what came.
        found: String,
    },
    /// The server has another version than the one listed.
    #[error("{repo}: {path} is not what the listing says: {what} is {found:?}, expected {expected:?}; try again")]
    Changed {
        /// `OWNER/NAME`.
        repo: String,
        /// The file.
        path: String,
        /// Which of its properties.
        what: &'static str,
        /// By the listing.
        expected: String,
        /// By the answer.
        found: String,
    },
    /// The disk cannot take it.
    #[error(
        "{}: the disk is full: {needed} bytes needed, {} available; free some space, then the same command goes on where it \
         stopped", path.display(), available.map_or("an unknown number".into(), |n| n.to_string())
    )]
    DiskFull {
        /// The file being written, or the store.
        path: PathBuf,
        /// Bytes still to write.
        needed: u64,
        /// Bytes free.
        available: Option<u64>,
    },
    /// The file system, or a limit of the process, takes no file of that size.
    #[error(
        "{}: no file this large can be written here (File too large): a limit on the size of files (ulimit -f), or a file \
         system that has one, as FAT with 4 GiB; {needed} bytes are lacking; lift the limit or set MLXCEL_MODELS_DIR to \
         another file system, then pull again", path.display()
    )]
    FileTooLarge {
        /// The file being written.
        path: PathBuf,
        /// Bytes still to write.
        needed: u64,
    },
    /// A directory that is not ours to replace.
    #[error("{}: {problem}", dir.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
        /// What it holds, and what to do.
        problem: String,
    },
}
