//! Rows as files and tables. Everything is made of `&[Row]`.

pub mod csv;
pub mod json;
pub mod markdown;
pub mod plot;
pub mod table;
pub mod words;

#[cfg(test)]
pub(crate) mod sample;

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Why a report cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The operating system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file is not such a report.
    #[error("{}: {problem}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What is wrong: the line or field, what was expected, what was found.
        problem: String,
    },
}

impl ReportError {
    fn io(file: &Path, source: std::io::Error) -> Self {
        Self::Io { file: file.into(), source }
    }

    fn format(file: &Path, problem: impl Into<String>) -> Self {
        Self::Format { file: file.into(), problem: problem.into() }
    }
}

/// Writes a whole file, so that nobody ever sees a part of it: into a file beside it, which then takes its name. What is no
/// plain file (a pipe, /dev/stdout) is written as it is.
///
/// # Errors
/// The directory does not exist or cannot be written. The old file is then as it was.
pub fn write_whole(file: &Path, contents: &[u8]) -> Result<(), ReportError> {
    let io = |source| ReportError::io(file, source);
    // A link keeps its place; what it points to is replaced.
    let target = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    if target.exists() && !target.is_file() {
        return std::fs::OpenOptions::new()
            .write(true)
            .open(&target)
            .and_then(|mut f| f.write_all(contents))
            .map_err(io);
    }
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".report-").suffix(".part");
    // Temporary files are private by default; a report is a file like others.
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    #[cfg(unix)]
    builder.permissions(permissions);
    let mut part = builder.tempfile_in(dir).map_err(io)?;
    part.write_all(contents).map_err(io)?;
    part.persist(&target).map_err(|error| io(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("report.md");
        write_whole(&file, b"one").expect("written");
        write_whole(&file, b"two").expect("replaced");
        assert_eq!(std::fs::read(&file).expect("there"), b"two");
        let names: Vec<_> =
            std::fs::read_dir(dir.path()).expect("directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["report.md"], "nothing is left over");
        let error = write_whole(&dir.path().join("no/report.md"), b"x").expect_err("no directory").to_string();
        assert!(error.contains("no/report.md"), "{error}");
        assert!(write_whole(dir.path(), b"x").is_err(), "a directory");
        assert_eq!(std::fs::read(&file).expect("there"), b"two");
    }

    #[test]
    #[cfg(unix)]
    fn links_and_permissions_are_those_of_files() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("plain"), "x").expect("file");
        std::os::unix::fs::symlink(path("real"), path("link")).expect("link");
        write_whole(&path("real"), b"one").expect("written");
        write_whole(&path("link"), b"two").expect("written");
        assert_eq!(std::fs::read(path("real")).expect("there"), b"two");
        assert!(path("link").is_symlink());
        let mode = |name: &str| std::fs::metadata(path(name)).expect("there").permissions().mode();
        assert_eq!(mode("real"), mode("plain"));
        write_whole(Path::new("/dev/null"), b"x").expect("a device is written as it is");
    }
}
