//! CSV: a header, then a line a row, quoted as RFC 4180 has it; lines end in LF.
//!
//! Every field of [`Row`] is a column of its name. A spread is three (`_median`, `_min`, `_max`), the widths that were verified
//! two, `depth_acceptance` one cell with the depths joined by `;` (their number depends on the width), `status` two (`ok`,
//! `absent`, `skipped` or `failed`, and why). A figure that was not measured is an empty cell; `k` of an adaptive row is `adaptive`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ReportError;
use crate::row::{Row, Spread, Status};

/// A row without nesting.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    pairing: String,
    target: String,
    drafter: Option<String>,
    kind: String,
    batch: usize,
    k: String,
    k_effective_min: Option<usize>,
    k_effective_max: Option<usize>,
    prompt: String,
    prompt_tokens: Option<usize>,
    generated_tokens: Option<usize>,
    repeat: usize,
    tokens_per_second_median: Option<f64>,
    tokens_per_second_min: Option<f64>,
    tokens_per_second_max: Option<f64>,
    speedup_median: Option<f64>,
    speedup_min: Option<f64>,
    speedup_max: Option<f64>,
    rounds: Option<usize>,
    proposed: Option<usize>,
    accepted: Option<usize>,
    acceptance_rate: Option<f64>,
    mean_accepted_len: Option<f64>,
    tokens_per_round: Option<f64>,
    depth_acceptance: String,
    ms_plain_step: Option<f64>,
    ms_draft: Option<f64>,
    ms_verify: Option<f64>,
    ms_rest: Option<f64>,
    round_cost: Option<f64>,
    output_identical: Option<bool>,
    probe: Option<String>,
    simulated: bool,
    #[serde(default)]
    simulated_acceptance: Option<f64>,
    temperature: f32,
    top_p: f32,
    seed: u64,
    backend: String,
    device: String,
    threads: usize,
    version: String,
    commit: Option<String>,
    date: String,
    status: String,
    status_why: String,
}

impl From<&Row> for Line {
    fn from(row: &Row) -> Self {
        let (status, why) = match &row.status {
            Status::Ok => ("ok", ""),
            Status::Absent(why) => ("absent", why.as_str()),
            Status::Skipped(why) => ("skipped", why.as_str()),
            Status::Failed(why) => ("failed", why.as_str()),
        };
        let depths: Vec<String> = row.depth_acceptance.iter().map(f64::to_string).collect();
        let (rate, speedup) = (row.tokens_per_second, row.speedup);
        let row = row.clone();
        Line {
            pairing: row.pairing,
            target: row.target,
            drafter: row.drafter,
            kind: row.kind,
            batch: row.batch,
            k: super::words::width(row.k),
            k_effective_min: row.k_effective.map(|k| k.0),
            k_effective_max: row.k_effective.map(|k| k.1),
            prompt: row.prompt,
            prompt_tokens: row.prompt_tokens,
            generated_tokens: row.generated_tokens,
            repeat: row.repeat,
            tokens_per_second_median: rate.map(|s| s.median),
            tokens_per_second_min: rate.map(|s| s.min),
            tokens_per_second_max: rate.map(|s| s.max),
            speedup_median: speedup.map(|s| s.median),
            speedup_min: speedup.map(|s| s.min),
            speedup_max: speedup.map(|s| s.max),
            rounds: row.rounds,
            proposed: row.proposed,
            accepted: row.accepted,
            acceptance_rate: row.acceptance_rate,
            mean_accepted_len: row.mean_accepted_len,
            tokens_per_round: row.tokens_per_round,
            depth_acceptance: depths.join(";"),
            ms_plain_step: row.ms_plain_step,
            ms_draft: row.ms_draft,
            ms_verify: row.ms_verify,
            ms_rest: row.ms_rest,
            round_cost: row.round_cost,
            output_identical: row.output_identical,
            probe: row.probe,
            simulated: row.simulated,
            simulated_acceptance: row.simulated_acceptance,
            temperature: row.temperature,
            top_p: row.top_p,
            seed: row.seed,
            backend: row.backend,
            device: row.device,
            threads: row.threads,
            version: row.version,
            commit: row.commit,
            date: row.date,
            status: status.into(),
            status_why: why.into(),
        }
    }
}

impl TryFrom<Line> for Row {
    /// The column and what is wrong with it.
    type Error = String;

    fn try_from(line: Line) -> Result<Self, String> {
        let k = match line.k.as_str() {
            "adaptive" => None,
            k => Some(k.parse().map_err(|_| format!("k: expected a block width or \"adaptive\", found {k:?}"))?),
        };
        let depths = line.depth_acceptance.split(';').filter(|depth| !depth.is_empty());
        let depths = depths.map(|depth| {
            depth.parse().map_err(|_| format!("depth_acceptance: expected numbers joined by ';', found {depth:?}"))
        });
        let spread = |name: &str, median: Option<f64>, min: Option<f64>, max: Option<f64>| match (median, min, max) {
            (Some(median), Some(min), Some(max)) => Ok(Some(Spread { median, min, max })),
            (None, None, None) => Ok(None),
            _ => Err(format!("{name}_median, _min, _max: expected all three or none")),
        };
        let status = match line.status.as_str() {
            "ok" => Status::Ok,
            "absent" => Status::Absent(line.status_why),
            "skipped" => Status::Skipped(line.status_why),
            "failed" => Status::Failed(line.status_why),
            other => return Err(format!("status: expected ok, absent, skipped or failed, found {other:?}")),
        };
        Ok(Row {
            k,
            k_effective: line.k_effective_min.zip(line.k_effective_max),
            tokens_per_second: spread(
                "tokens_per_second",
                line.tokens_per_second_median,
                line.tokens_per_second_min,
                line.tokens_per_second_max,
            )?,
            speedup: spread("speedup", line.speedup_median, line.speedup_min, line.speedup_max)?,
            depth_acceptance: depths.collect::<Result<_, _>>()?,
            status,
            pairing: line.pairing,
            target: line.target,
            drafter: line.drafter,
            kind: line.kind,
            batch: line.batch,
            prompt: line.prompt,
            prompt_tokens: line.prompt_tokens,
            generated_tokens: line.generated_tokens,
            repeat: line.repeat,
            rounds: line.rounds,
            proposed: line.proposed,
            accepted: line.accepted,
            acceptance_rate: line.acceptance_rate,
            mean_accepted_len: line.mean_accepted_len,
            tokens_per_round: line.tokens_per_round,
            ms_plain_step: line.ms_plain_step,
            ms_draft: line.ms_draft,
            ms_verify: line.ms_verify,
            ms_rest: line.ms_rest,
            round_cost: line.round_cost,
            output_identical: line.output_identical,
            probe: line.probe,
            simulated: line.simulated,
            simulated_acceptance: line.simulated_acceptance,
            temperature: line.temperature,
            top_p: line.top_p,
            seed: line.seed,
            backend: line.backend,
            device: line.device,
            threads: line.threads,
            version: line.version,
            commit: line.commit,
            date: line.date,
        })
    }
}

/// A row as text, with the header before it on demand.
fn text(row: &Row, header: bool) -> Vec<u8> {
    let mut writer = csv::WriterBuilder::new().has_headers(header).from_writer(Vec::new());
    // Neither can fail: the line has no nesting, and the writer is memory.
    writer.serialize(Line::from(row)).expect("a flat line");
    writer.into_inner().expect("memory")
}

/// The header, with its newline.
pub fn header() -> String {
    let text = String::from_utf8(text(&Row::default(), true)).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_string() + "\n"
}

/// Rows into a file as they come: each is there, whole, once [`CsvWriter::append`] returns, so a process that is killed leaves a
/// file of all rows so far.
#[derive(Debug)]
pub struct CsvWriter<W: Write = File> {
    out: W,
    file: PathBuf,
}

impl CsvWriter {
    /// Begins a file, in the place of one that is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(file: &Path) -> Result<Self, ReportError> {
        // Not buffered: a line is one write.
        let out = File::create(file).map_err(|source| ReportError::io(file, source))?;
        Self::new(out, file)
    }
}

impl<W: Write> CsvWriter<W> {
    /// Begins a table on something else; `file` is its name in messages.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(out: W, file: &Path) -> Result<Self, ReportError> {
        let mut writer = Self { out, file: file.into() };
        writer.put(header().as_bytes())?;
        Ok(writer)
    }

    /// Writes a row, as one line in one write.
    ///
    /// # Errors
    /// As the operating system says, for instance that the disk is full.
    pub fn append(&mut self, row: &Row) -> Result<(), ReportError> {
        self.put(&text(row, false))
    }

    fn put(&mut self, text: &[u8]) -> Result<(), ReportError> {
        self.out.write_all(text).and_then(|()| self.out.flush()).map_err(|source| ReportError::io(&self.file, source))
    }
}

/// Reads the rows of a file.
///
/// # Errors
/// It cannot be read, a column is absent, a line is cut off or holds a cell that is no such value; the message has file, line and
/// column.
pub fn read(file: &Path) -> Result<Vec<Row>, ReportError> {
    let bytes = std::fs::read(file).map_err(|source| ReportError::io(file, source))?;
    parse(file, &bytes)
}

/// [`read`], of bytes that stand for the file.
fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<Row>, ReportError> {
    let bad = |problem: String| ReportError::format(file, problem);
    if bytes.last() != Some(&b'\n') {
        let line = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
        return Err(bad(format!(
            "line {line} is cut off: expected a newline at the end of the file; remove that line"
        )));
    }
    let mut reader = csv::Reader::from_reader(bytes);
    let found = reader.headers().map_err(|error| bad(error.to_string()))?;
    for column in header().trim_end().split(',') {
        if !found.iter().any(|name| name == column) {
            return Err(bad(format!(
                "line 1: column {column} is absent; expected the header of speculative_bench --csv"
            )));
        }
    }
    let headers = found.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| bad(error.to_string()))?;
        let at = |problem: String| {
            let line = record.position().map_or(0, csv::Position::line);
            bad(format!("line {line}: {problem}"))
        };
        let line: Line = record.deserialize(Some(&headers)).map_err(|error| at(cell(&error, &headers, &record)))?;
        rows.push(Row::try_from(line).map_err(at)?);
    }
    Ok(rows)
}

/// What is wrong with a record: the column's name, and what stands in it.
fn cell(error: &csv::Error, headers: &csv::StringRecord, record: &csv::StringRecord) -> String {
    let csv::ErrorKind::Deserialize { err, .. } = error.kind() else { return error.to_string() };
    match err.field().and_then(|field| usize::try_from(field).ok()) {
        Some(field) => {
            let (name, found) = (headers.get(field).unwrap_or("?"), record.get(field).unwrap_or_default());
            format!("{name}: {}, found {found:?}", err.kind())
        }
        None => err.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use proptest::prelude::*;

    fn whole(rows: &[Row]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = CsvWriter::new(&mut out, Path::new("t.csv")).expect("memory");
        for row in rows {
            writer.append(row).expect("memory");
        }
        out
    }

    fn parsed(bytes: &[u8]) -> Result<Vec<Row>, String> {
        parse(Path::new("t.csv"), bytes).map_err(|error| error.to_string())
    }

    /// Text with everything that needs quotes.
    const NASTY: &str = "a, \"b\"\r\nc\n,;\t=1";

    #[test]
    fn rows_come_back_as_they_were() {
        let mut rows = sample::sweep();
        rows[0].prompt = NASTY.into();
        rows[1].status = Status::Failed(NASTY.into());
        rows[2].probe = Some(NASTY.into());
        rows[3].tokens_per_second = Some(Spread { median: 1.0 / 3.0, min: 1e-300, max: 1e17 });
        rows[4].temperature = 0.1;
        rows[4].seed = u64::MAX;
        assert_eq!(parsed(&whole(&rows)), Ok(rows));
        assert_eq!(parsed(&whole(&[])), Ok(vec![]), "a header alone");
    }

    proptest! {
        #[test]
        fn any_text_and_number_comes_back(text in "[ -~\r\n\"é]{1,20}", value in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
            let mut row = sample::row("p", &text, Some(4));
            row.acceptance_rate = Some(value);
            row.depth_acceptance = vec![value, 0.5];
            prop_assert_eq!(parsed(&whole(std::slice::from_ref(&row))), Ok(vec![row]));
        }
    }

    #[test]
    fn columns_are_the_fields_of_a_row() {
        let json = serde_json::to_value(sample::row("p", "q", Some(4))).expect("JSON");
        let header = header();
        let columns: Vec<&str> = header.trim_end().split(',').collect();
        for field in json.as_object().expect("an object").keys() {
            let derived = ["", "_median", "_min", "_max"].map(|end| format!("{field}{end}"));
            assert!(derived.iter().any(|name| columns.contains(&name.as_str())), "{field} has no column");
        }
        assert_eq!(header.matches('\n').count(), 1);
    }

    #[test]
    fn the_docs_explain_every_column() {
        let docs = include_str!("../../../../docs/benchmarks.md");
        let (_, rest) = docs.split_once("## Columns").expect("a section");
        let (section, _) = rest.split_once("\n## ").expect("another");
        for column in header().trim_end().split(',') {
            let base = ["_median", "_min", "_max"].iter().find_map(|end| column.strip_suffix(end)).unwrap_or(column);
            assert!(section.contains(&format!("`{base}")), "docs/benchmarks.md does not explain {column}");
        }
        assert!(!section.contains("`no_such_column"));
    }

    /// Notes what every call of `write` got.
    struct Calls<'a>(&'a mut Vec<Vec<u8>>);

    impl Write for Calls<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_write_and_every_beginning_of_lines_is_a_table() {
        let mut rows = sample::sweep();
        rows[1].prompt = NASTY.into();
        let mut calls = Vec::new();
        let mut writer = CsvWriter::new(Calls(&mut calls), Path::new("t.csv")).expect("memory");
        rows.iter().for_each(|row| writer.append(row).expect("memory"));
        assert_eq!(calls.len(), 1 + rows.len());
        let mut so_far = Vec::new();
        for (written, call) in calls.iter().enumerate() {
            so_far.extend_from_slice(call);
            assert_eq!(parsed(&so_far).as_deref(), Ok(&rows[..written]), "after {written} rows");
            // The twin: a torn line is no row.
            let error = parsed(&so_far[..so_far.len() - 1]).expect_err("no newline");
            assert!(error.contains("cut off"), "{error}");
        }
    }

    #[test]
    fn rows_are_on_disk_before_the_writer_ends() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("t.csv");
        let rows = sample::sweep();
        let mut writer = CsvWriter::create(&file).expect("created");
        assert_eq!(read(&file).expect("a header"), []);
        for (n, row) in rows.iter().enumerate() {
            writer.append(row).expect("written");
            assert_eq!(read(&file).expect("a table"), rows[..=n]);
        }
        // As if the process had been killed: nothing is written on the way out.
        std::mem::forget(writer);
        assert_eq!(read(&file).expect("a table"), rows);
        let error = CsvWriter::create(&dir.path().join("no/t.csv")).expect_err("no directory").to_string();
        assert!(error.contains("no/t.csv"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_column() {
        let good = String::from_utf8(whole(&[sample::row("p", "q", Some(4))])).expect("text");
        for (from, to, parts) in [
            ("batch,", "bunch,", &["line 1: column batch is absent"][..]),
            (",mtp,1,4,", ",mtp,one,4,", &["line 2: batch", "\"one\""]),
            (",mtp,1,4,", ",mtp,1,four,", &["line 2: k:", "adaptive", "\"four\""]),
            (",ok,", ",fine,", &["line 2: status", "\"fine\""]),
            ("0.95;", "0.95:", &["line 2: depth_acceptance"]),
            (",mtp,1,4,", ",mtp,4,", &["line: 2", "44 fields"]),
        ] {
            assert!(good.contains(from), "{from}");
            let error = parsed(good.replacen(from, to, 1).as_bytes()).expect_err(to);
            for part in parts {
                assert!(error.contains(part), "{error:?} lacks {part:?}");
            }
            assert!(error.contains("t.csv"), "{error}");
        }
        let mut torn = sample::row("p", "q", Some(4));
        torn.speedup = None;
        let text = String::from_utf8(whole(&[torn])).expect("text");
        let min = parsed(text.replacen(",,,,160,", ",,1.5,,160,", 1).as_bytes()).expect_err("one of three");
        assert!(min.contains("speedup_median"), "{min}");
    }
}
