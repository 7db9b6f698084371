//! Writing what was planned, a few rows at a time.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Progress;
use super::plan::{Plan, Unit, Written};
use super::rows::{Encoded, encode};
use super::source::{Content, Source};
use super::target::Staging;
use crate::checkpoint::INDEX;
use crate::error::{CheckpointError, Result};
use crate::store::free_space;

/// Values read at a time, fewest and most: 16 and 64 MiB as f32. Between them, half a million for each thread, so that
/// starting one costs little beside its work.
const CHUNK_VALUES: (usize, usize) = (4 << 20, 16 << 20);

/// A file being written.
pub(crate) trait Sink: Write + Seek {
    /// Waits until everything written is on disk.
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Where files are made: the disk, or in tests something that fails on purpose.
pub(crate) trait Files {
    /// Makes a new file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>>;
}

/// The disk.
pub(crate) struct Disk;

impl Files for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(File::create_new(path)?))
    }
}

/// What is told while writing; false ends the conversion.
pub(crate) type Report<'a> = &'a mut dyn FnMut(Progress<'_>) -> bool;

/// Makes encoded rows of a unit.
pub(crate) type Make<'a, F> = &'a dyn Fn(&Unit<F>, Range<usize>) -> Result<Vec<Encoded>>;

/// Where the rows of a plan come from.
pub(crate) struct Rows<'a, F> {
    /// What is going on, for the words of an interruption.
    pub(crate) doing: String,
    /// Values asked for at a time.
    pub(crate) chunk: usize,
    /// Makes them.
    pub(crate) make: Make<'a, F>,
}

/// Writes the plan of a conversion into a directory in the making.
pub(crate) fn write(
    source: &dyn Source,
    plan: &Plan,
    staging: &Staging,
    files: &dyn Files,
    threads: usize,
    report: Report<'_>,
) -> Result<()> {
    let rows = Rows {
        doing: format!("converting {}", source.path().display()),
        chunk: threads.saturating_mul(1 << 19).clamp(CHUNK_VALUES.0, CHUNK_VALUES.1),
        make: &|unit, rows| encode(source, unit, rows, threads),
    };
    write_rows(plan, &rows, staging, files, report)
}

/// Writes any plan into a directory in the making.
pub(crate) fn write_rows<F>(
    plan: &Plan<F>,
    source: &Rows<'_, F>,
    staging: &Staging,
    files: &dyn Files,
    report: Report<'_>,
) -> Result<()> {
    let writer = Writer { staging, files, needed: plan.total_bytes() };
    if let Some(available) = free_space(staging.dir())
        && available < writer.needed
    {
        return Err(writer.no_space(staging.target().into()));
    }
    // Small files first: what is wrong with them shows before the long part.
    writer.whole("config.json", &pretty(&plan.config))?;
    writer.whole(INDEX, &pretty(&plan.index))?;
    for companion in &plan.companions {
        match &companion.content {
            Content::Bytes(bytes) => writer.whole(&companion.name, bytes)?,
            Content::File(path) => {
                let bytes = std::fs::read(path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
                writer.whole(&companion.name, &bytes)?;
            }
        }
    }
    let mut progress = Progress {
        bytes: 0,
        total_bytes: plan.read,
        tensors: 0,
        total_tensors: plan.units.len(),
        tensor: "",
        dir: staging.dir(),
    };
    let interrupted = || CheckpointError::Interrupted { what: source.doing.clone() };
    let read: u64 = plan.units.iter().map(|unit| (unit.rows * unit.width) as u64).sum();
    let mut done = 0u64;
    for (number, shard) in plan.shards.iter().enumerate() {
        let mut file = writer.shard(&shard.name, &shard.header)?;
        for unit in plan.units.iter().filter(|unit| unit.shard == number) {
            progress.tensor = &unit.tensors[0].name;
            let step = (source.chunk / unit.width.max(1)).max(1);
            let mut row = 0;
            while row < unit.rows {
                // Progress is in bytes of the source: what a value takes differs little within one.
                progress.bytes = (u128::from(plan.read) * u128::from(done) / u128::from(read.max(1))) as u64;
                if !report(progress) {
                    return Err(interrupted());
                }
                let end = unit.rows.min(row + step);
                file.rows(&unit.tensors, row, (source.make)(unit, row..end)?)?;
                done += ((end - row) * unit.width) as u64;
                row = end;
            }
            progress.tensors += 1;
        }
        file.finish()?;
    }
    progress.bytes = plan.read;
    // The wish to end it may have come while the last file was forced to disk.
    if report(progress) { Ok(()) } else { Err(interrupted()) }
}

fn pretty(value: &serde_json::Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

struct Writer<'a> {
    staging: &'a Staging,
    files: &'a dyn Files,
    needed: u64,
}

impl Writer<'_> {
    /// An error of the operating system on a file; a full disk deserves its own words.
    fn error(&self, path: &Path, source: io::Error) -> CheckpointError {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded => self.no_space(path.into()),
            FileTooLarge => CheckpointError::Convert {
                path: path.into(),
                problem:
                    "the file system or a limit of the process does not allow files as large as this one (FAT32 ends \
                          at 4 GiB); nothing was kept; give a directory on another file system with -o"
                        .into(),
            },
            _ => CheckpointError::Io { path: path.into(), source },
        }
    }

    fn no_space(&self, path: PathBuf) -> CheckpointError {
        CheckpointError::NoSpace { path, needed: self.needed, available: free_space(self.staging.dir()) }
    }

    fn whole(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.staging.dir().join(name);
        let written = self.files.create(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync()
        });
        written.map_err(|source| self.error(&path, source))
    }

    fn shard(&self, name: &str, header: &[u8]) -> Result<ShardFile<'_>> {
        let path = self.staging.dir().join(name);
        let sink = self.files.create(&path).map_err(|source| self.error(&path, source))?;
        let mut file = ShardFile { writer: self, path, file: BufWriter::new(sink), start: 0, position: 0 };
        file.at(0, header)?;
        file.start = header.len() as u64;
        Ok(file)
    }
}

struct ShardFile<'a> {
    writer: &'a Writer<'a>,
    path: PathBuf,
    file: BufWriter<Box<dyn Sink>>,
    /// Where the data begins.
    start: u64,
    position: u64,
}

impl ShardFile<'_> {
    /// Writes the encoded pieces of consecutive rows, the first of which is `row`.
    fn rows(&mut self, tensors: &[Written], row: usize, pieces: Vec<Encoded>) -> Result<()> {
        for (which, tensor) in tensors.iter().enumerate() {
            let mut offset = self.start + tensor.offset + row as u64 * tensor.row_bytes;
            for piece in &pieces {
                self.at(offset, &piece[which])?;
                offset += piece[which].len() as u64;
            }
        }
        Ok(())
    }

    /// Writes at an offset; nothing but the offset tells codes, scales and biases of a chunk apart.
    fn at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = (|| {
            if self.position != offset {
                self.file.seek(SeekFrom::Start(offset))?;
            }
            self.file.write_all(bytes)
        })();
        self.position = offset + bytes.len() as u64;
        written.map_err(|source| self.writer.error(&self.path, source))
    }

    fn finish(self) -> Result<()> {
        let (writer, path) = (self.writer, self.path);
        let synced = self.file.into_inner().map_err(io::IntoInnerError::into_error).and_then(|mut sink| sink.sync());
        synced.map_err(|source| writer.error(&path, source))
    }
}
