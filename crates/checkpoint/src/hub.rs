//! A client of the Hugging Face hub's plain HTTP routes, and the pull of a model into the [store](crate::store).
//!
//! | route | gives |
//! |---|---|
//! | `/api/models/REPO/revision/REVISION` | the commit a revision is |
//! | `/api/models/REPO/tree/COMMIT?recursive=true` | paths, sizes and hashes of its files, in pages |
//! | `/REPO/resolve/COMMIT/PATH` | a file, from any offset, often by way of a redirect to another host |
//!
//! What a server says is not trusted: answers are capped in size, file names are checked before they touch the disk, and a file
//! takes its name only when its size and its hash are those of the listing. The token goes to the endpoint's own origin and
//! nowhere else, and is never part of a message.
//!
//! The crate reads no environment: whoever makes a [`HubOptions`] does.

mod before;
mod client;
mod digest;
mod error;
mod fetch;
mod pull;
pub mod select;
pub mod tree;
mod url;
mod work;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use client::Hub;
pub use error::HubError;
pub use pull::{PullRequest, Pulled, pull};

use crate::store::{Digest, ManifestFile, StoreError};

/// The public hub.
pub const ENDPOINT: &str = "https://huggingface.co";

/// An access token. It shows itself to nobody: `Debug` prints that it is there.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, without the white space that files and shells leave around it; `None` when nothing remains.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Token(text.into()))
    }

    /// The token itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How often and how patiently a failed transfer is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Attempts before giving up; a new byte starts the count afresh, with the attempt that brought it as the first.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles with each.
    pub first: Duration,
    /// Longest wait, unless the server asks for a longer one.
    pub longest: Duration,
    /// Longest wait a server may ask for.
    pub patience: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 6,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
            patience: Duration::from_secs(300),
        }
    }
}

/// Where the hub is and how it is reached.
#[derive(Clone)]
pub struct HubOptions {
    /// Scheme, host, perhaps port and path, as [`ENDPOINT`].
    pub endpoint: String,
    /// Access token, for private and gated repositories.
    pub token: Option<Token>,
    /// Proxy for `https` addresses: a URL; credentials in it are allowed.
    pub https_proxy: Option<String>,
    /// Proxy for `http` addresses.
    pub http_proxy: Option<String>,
    /// Hosts that are reached without a proxy: `example.com`, `.example.com`, `*`.
    pub no_proxy: Vec<String>,
    /// PEM file of the certificates trusted, in place of the built-in ones (Mozilla's).
    pub certificates: Option<PathBuf>,
    /// Longest time without a byte, and to connect.
    pub timeout: Duration,
    /// Patience.
    pub retry: Retry,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: ENDPOINT.into(),
            token: None,
            https_proxy: None,
            http_proxy: None,
            no_proxy: Vec::new(),
            certificates: None,
            timeout: Duration::from_secs(30),
            retry: Retry::default(),
        }
    }
}

/// What happens during a pull, for whoever shows it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The files are known; their bytes follow as [`Bytes`](Event::Bytes), those already on this disk included.
    Plan {
        /// The commit.
        commit: &'a str,
        /// How many files.
        files: usize,
        /// Bytes of all of them.
        total: u64,
    },
    /// A file begins.
    File {
        /// Its path.
        path: &'a str,
        /// Its bytes.
        size: u64,
    },
    /// A file of the installed model is read, to see whether it is as it was pulled.
    Check {
        /// Its path.
        path: &'a str,
        /// Its bytes.
        size: u64,
    },
    /// Files of the repository that nobody asked for have names that must not be written; they are left out.
    LeftOut {
        /// How many.
        files: usize,
        /// What is wrong with the first.
        problem: &'a StoreError,
    },
    /// All files are there; the model takes its name next. It is better not to stop until the pull returns.
    Install,
    /// So many more bytes are there.
    Bytes(u64),
    /// So many bytes were no good and are fetched again.
    Lost(u64),
    /// Something failed and is tried again.
    Retry {
        /// What failed.
        problem: &'a HubError,
        /// The wait before the next attempt.
        wait: Duration,
    },
}

/// The hash a file of this content is listed with: a large one (`lfs`), or any other. For tests.
#[doc(hidden)]
pub fn digest_of(content: &[u8], lfs: bool) -> Digest {
    let (kind, digits) = if lfs { ("sha256", 64) } else { ("git", 40) };
    let Ok(hash) = format!("{kind}:{}", "0".repeat(digits)).parse() else { unreachable!("a digest of zeros") };
    let mut hasher = digest::Hasher::of(&ManifestFile { path: String::new(), size: content.len() as u64, hash });
    hasher.update(content);
    hasher.finish()
}

/// Who is told.
pub type Observer<'a> = dyn FnMut(Event<'_>) + 'a;
