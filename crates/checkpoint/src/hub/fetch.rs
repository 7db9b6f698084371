//! One file, from whatever part of it is there to its name.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::client::{Answer, Failure, Hub};
use super::digest::Hasher;
use super::error::HubError;
use super::{Event, Observer};
use crate::store::{Digest, ManifestFile, PART, RepoId, StoreError, free_space};

/// Bytes read and written at a time.
const BUFFER: usize = 64 << 10;

/// Most bytes given up for a whole file whose length the server does not say: it may be no file at all.
const LITTLE: u64 = 1 << 20;

/// Bytes a file must gain for each further attempt beyond the first hundred: bounds what a server can drag out.
const BYTES_PER_ATTEMPT: u64 = 16 << 20;

/// A file on its way.
struct Transfer<'a> {
    hub: &'a Hub,
    repo: &'a RepoId,
    commit: &'a str,
    file: &'a ManifestFile,
    part: PathBuf,
    out: File,
    /// Bytes written, all of them hashed.
    at: u64,
    hasher: Hasher,
    /// The file was not written in one go: bytes of an earlier process, or of another answer.
    pieced: bool,
    /// The server cannot or will not send ranges.
    whole_only: bool,
    /// The next request is for the whole file: the bytes that are there are of another version.
    anew: bool,
    /// Mark of the version the bytes belong to, where the server gives one.
    etag: Option<String>,
    /// Bytes received now.
    received: u64,
}

/// Fetches a file to `target`, going on from what lies in `target.part`, and gives it its name once size and hash are right.
/// Returns the bytes received.
pub(super) fn fetch(
    hub: &Hub,
    repo: &RepoId,
    commit: &str,
    file: &ManifestFile,
    target: &Path,
    observer: &mut Observer<'_>,
) -> Result<u64, HubError> {
    let part = part_of(target);
    if part.symlink_metadata().is_ok_and(|data| !data.is_file()) {
        let problem = std::io::Error::other("not a regular file; remove it");
        return Err(StoreError::io(&part, problem).into());
    }
    let out = File::options().read(true).write(true).create(true).truncate(false).open(&part);
    let out = out.map_err(|source| write_error(&part, file.size, source))?;
    let mut transfer = Transfer {
        hub,
        repo,
        commit,
        file,
        part,
        out,
        at: 0,
        hasher: Hasher::of(file),
        pieced: false,
        whole_only: false,
        anew: false,
        etag: None,
        received: 0,
    };
    transfer.take_up(observer)?;
    transfer.run(observer)?;
    let Transfer { out, part, received, .. } = transfer;
    // On the disk before the name says that it is.
    out.sync_all().map_err(|source| write_error(&part, 0, source))?;
    drop(out);
    std::fs::rename(&part, target).map_err(|source| StoreError::io(target, source))?;
    Ok(received)
}

/// Where a file is written until it is whole.
pub(super) fn part_of(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_os_string();
    name.push(PART);
    name.into()
}

impl Transfer<'_> {
    /// Hashes what an earlier attempt left.
    fn take_up(&mut self, observer: &mut Observer<'_>) -> Result<(), HubError> {
        let length = self.out.metadata().map_err(|source| StoreError::io(&self.part, source))?.len();
        if length > self.file.size {
            return self.start_over(observer);
        }
        let mut buffer = vec![0; BUFFER];
        while self.at < length {
            let count = match self.out.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(StoreError::io(&self.part, source).into()),
            };
            self.hasher.update(&buffer[..count]);
            self.at += count as u64;
            observer(Event::Bytes(count as u64));
        }
        self.pieced = self.at > 0;
        Ok(())
    }

    /// Attempts until the file is whole and right.
    fn run(&mut self, observer: &mut Observer<'_>) -> Result<(), HubError> {
        let mut attempt = 1;
        let mut furthest = self.at;
        let mut left = 100 + self.file.size / BYTES_PER_ATTEMPT;
        let mut again = true;
        loop {
            if self.at == self.file.size {
                let found = std::mem::replace(&mut self.hasher, Hasher::of(self.file)).finish();
                if found == self.file.hash {
                    return Ok(());
                }
                // What was put together from pieces may hold a stale one; what came in one go was sent damaged.
                again &= self.pieced;
                self.start_over(observer)?;
                if !std::mem::take(&mut again) {
                    let _ = std::fs::remove_file(&self.part);
                    return Err(HubError::Damaged {
                        repo: self.repo.to_string(),
                        path: self.file.path.clone(),
                        expected: self.file.hash.to_string(),
                        found: found.to_string(),
                    });
                }
                continue;
            }
            left = left.saturating_sub(1);
            if let Err(failure) = self.attempt(observer) {
                if self.at > furthest {
                    (attempt, furthest) = (1, self.at);
                }
                match failure {
                    Failure::Passing(error, _) if left == 0 => return Err(*error),
                    failure => self.hub.wait(failure, &mut attempt, observer)?,
                }
            }
        }
    }

    /// One request, and what comes of it. The bytes that are there are given up only for a whole file that can be the right one.
    fn attempt(&mut self, observer: &mut Observer<'_>) -> Result<(), Failure> {
        let from = if self.whole_only || self.anew { 0 } else { self.at };
        let answer = self.hub.open(self.repo, self.commit, &self.file.path, from)?;
        self.check_version(&answer)?;
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let etag = header("etag").map(str::to_string);
        let url = answer.url.to_string();
        let passing = |url: String, problem: String| Failure::passing(HubError::Answer { url, problem });
        match answer.status {
            206 if from > 0 => {
                let range = header("content-range").and_then(content_range);
                let Some((_, total)) = range.filter(|(from, _)| *from == self.at) else {
                    self.whole_only = true;
                    let problem = format!("a part from byte {} expected, found {:?}", self.at, header("content-range"));
                    return Err(passing(url, problem));
                };
                self.check_size(&url, total.unwrap_or(self.file.size))?;
                // Another version of the file: the bytes that are there are of no use.
                if self.etag.is_some() && etag.is_some() && self.etag != etag {
                    self.anew = true;
                    return Err(passing(url, "the file changed between two parts of it; starting over".into()));
                }
                self.pieced = true;
            }
            200 => {
                match answer.body.content_length() {
                    Some(length) => self.check_size(&url, length)?,
                    None if self.at > LITTLE => {
                        let problem = "a whole file of unknown length in place of the rest of one; `mlxcel rm --partial` \
                                       removes what is there, should it be in the way";
                        return Err(passing(url, problem.into()));
                    }
                    None => {}
                }
                self.anew = false;
                if self.at > 0 {
                    self.start_over(observer)?;
                }
            }
            // A part that begins beyond the end, so the server has another file: from the start, it will show.
            416 if from > 0 => {
                self.whole_only = true;
                return Err(passing(url, format!("no part from byte {} of {} bytes", self.at, self.file.size)));
            }
            status => {
                return Err(passing(url, format!("status {status} where none of the kind was asked for")));
            }
        }
        self.etag = etag;
        self.receive(answer, &url, observer)
    }

    /// Writes and hashes the body of an answer.
    fn receive(&mut self, answer: Answer, url: &str, observer: &mut Observer<'_>) -> Result<(), Failure> {
        let mut body = answer.body.into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; BUFFER];
        let connection = |problem: String| Failure::passing(HubError::Connection { url: url.into(), problem });
        loop {
            let count = match body.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(connection(format!("{error} after {} of {} bytes", self.at, self.file.size)));
                }
            };
            if count == 0 {
                if self.at == self.file.size {
                    return Ok(());
                }
                return Err(connection(format!("the connection ended after {} of {} bytes", self.at, self.file.size)));
            }
            if count as u64 > self.file.size - self.at {
                let error = self.wrong_size(url, self.at + count as u64);
                // The rest of the file is too long: the whole may be right.
                if self.pieced {
                    self.whole_only = true;
                    return Err(Failure::passing(error));
                }
                let _ = std::fs::remove_file(&self.part);
                return Err(error.into());
            }
            let bytes = &buffer[..count];
            let rest = self.file.size - self.at;
            self.out.write_all(bytes).map_err(|source| write_error(&self.part, rest, source))?;
            self.hasher.update(bytes);
            self.at += count as u64;
            self.received += count as u64;
            observer(Event::Bytes(count as u64));
        }
    }

    /// Forgets all bytes.
    fn start_over(&mut self, observer: &mut Observer<'_>) -> Result<(), HubError> {
        let empty = self.out.set_len(0).and_then(|()| self.out.seek(SeekFrom::Start(0)));
        empty.map_err(|source| StoreError::io(&self.part, source))?;
        if self.at > 0 {
            observer(Event::Lost(self.at));
        }
        (self.at, self.pieced, self.etag) = (0, false, None);
        self.hasher = Hasher::of(self.file);
        Ok(())
    }

    /// Refuses a size that is not the listed one. Where there are bytes already, this answer may be the wrong one (an error page,
    /// a mirror that lags behind): they are kept, and another attempt is worth it.
    fn check_size(&self, url: &str, found: u64) -> Result<(), Failure> {
        if found == self.file.size {
            return Ok(());
        }
        let error = self.wrong_size(url, found);
        if self.at > 0 {
            return Err(Failure::passing(error));
        }
        let _ = std::fs::remove_file(&self.part);
        Err(error.into())
    }

    fn wrong_size(&self, url: &str, found: u64) -> HubError {
        HubError::Size {
            repo: self.repo.to_string(),
            path: self.file.path.clone(),
            url: url.into(),
            expected: self.file.size,
            found,
        }
    }

    /// What the hub says of the file beside sending it, or before sending us elsewhere.
    fn check_version(&self, answer: &Answer) -> Result<(), HubError> {
        let header = |name: &str| answer.hub_headers.get(name).and_then(|value| value.to_str().ok());
        let check = |what, found: Option<&str>, expected: &str| match found {
            Some(found) if found != expected => Err(HubError::Changed {
                repo: self.repo.to_string(),
                path: self.file.path.clone(),
                what,
                expected: expected.into(),
                found: crate::store::printable(found),
            }),
            _ => Ok(()),
        };
        check("X-Repo-Commit", header("x-repo-commit"), self.commit)?;
        check("X-Linked-Size", header("x-linked-size"), &self.file.size.to_string())?;
        if let Digest::Sha256(hex) = &self.file.hash {
            let etag = header("x-linked-etag").map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
            check("X-Linked-ETag", etag, hex)?;
        }
        Ok(())
    }
}

/// First byte and total of `bytes 5-9/10`; a total of `*` is unknown.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first.parse().ok()?, total))
}

/// An error of writing; a full disk has its own message. `rest` bytes were still to be written.
pub(super) fn write_error(path: &Path, rest: u64, source: std::io::Error) -> HubError {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            HubError::DiskFull { path: path.into(), needed: rest, available: free_space(path) }
        }
        ErrorKind::FileTooLarge => HubError::FileTooLarge { path: path.into(), needed: rest },
        _ => StoreError::io(path, source).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 0-9/*"), Some((0, None)));
        for bad in ["", "bytes", "bytes */10", "bytes 5/10", "5-9/10", "bytes 5-9/x", "bytes -1-9/10"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_told_from_other_errors() {
        let mut full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let source = full.write_all(b"x").expect_err("full");
        let message = write_error(Path::new("models/model.safetensors.part"), 1234, source).to_string();
        for word in ["model.safetensors.part", "disk is full", "1234 bytes needed", "available", "same command"] {
            assert!(message.contains(word), "{word:?} is not in {message}");
        }
        assert!(!message.contains("unknown"), "{message}");
        let large = write_error(Path::new("a.part"), 5, std::io::Error::from(ErrorKind::FileTooLarge)).to_string();
        assert!(large.contains("no file this large") && !large.contains("disk is full"), "{large}");
        let other = write_error(Path::new("x"), 1, std::io::Error::other("on fire")).to_string();
        assert!(other.contains("on fire") && !other.contains("full"), "{other}");
    }
}
