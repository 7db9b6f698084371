//! JSON: an object with the schema's number, the machine and the rows.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ReportError, write_whole};
use crate::machine::Machine;
use crate::row::Row;
use crate::trace::Trace;

/// The schema that is written, and the only one that is read. A change of meaning or of a required field is a new number.
pub const SCHEMA: u64 = 1;

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u64,
    /// Where it was measured.
    pub machine: Machine,
    /// Whether any row's drafts came from a script.
    pub simulated: bool,
    /// The rows.
    pub rows: Vec<Row>,
    /// The rounds of the rows' sequences; only in a trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traces: Vec<Trace>,
}

impl Report {
    /// Rows measured on a machine.
    pub fn new(machine: Machine, rows: Vec<Row>) -> Self {
        Self { schema: SCHEMA, machine, simulated: rows.iter().any(|row| row.simulated), rows, traces: Vec::new() }
    }

    /// The same as a trace.
    pub fn with_traces(self, traces: Vec<Trace>) -> Self {
        Self { traces, ..self }
    }
}

/// Writes a report, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, report: &Report) -> Result<(), ReportError> {
    // Traces are long, and nobody reads them as they are.
    let text = if report.traces.is_empty() { serde_json::to_vec_pretty(report) } else { serde_json::to_vec(report) };
    let mut text = text.map_err(|error| ReportError::format(file, error.to_string()))?;
    text.push(b'\n');
    write_whole(file, &text)
}

/// Reads what [`write()`] wrote; figures of more than 15 digits to within a unit of their last place.
///
/// # Errors
/// It cannot be read, is no JSON, has another schema, or a field is absent or of another type; the message has file and field.
pub fn read(file: &Path) -> Result<Report, ReportError> {
    let bytes = std::fs::read(file).map_err(|source| ReportError::io(file, source))?;
    parse(file, &bytes)
}

/// [`read`], of bytes that stand for the file.
fn parse(file: &Path, bytes: &[u8]) -> Result<Report, ReportError> {
    let bad = |problem: String| ReportError::format(file, problem);
    // The number first: another schema may differ anywhere.
    let value: Value = serde_json::from_slice(bytes).map_err(|error| bad(format!("invalid JSON: {error}")))?;
    match value.get("schema") {
        Some(schema) if schema.as_u64() == Some(SCHEMA) => {}
        Some(other) => {
            return Err(bad(format!("schema: expected {SCHEMA}, found {other}; measure again with this version")));
        }
        None => return Err(bad("schema: absent; expected a file that speculative_bench --json wrote".into())),
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let field = error.path().to_string();
        bad(format!("{field}: {}", error.into_inner()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use serde_json::json;

    fn machine() -> Machine {
        Machine {
            device: "Some CPU".into(),
            cores: Some(2),
            memory_bytes: Some(8 << 30),
            os: "Linux".into(),
            arch: "x86_64".into(),
        }
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("r.json");
        let rows = sample::sweep();
        write(&file, &Report::new(machine(), rows.clone())).expect("written");
        let report = read(&file).expect("read");
        assert_eq!(report.rows, rows);
        assert_eq!(report.machine, machine());
        assert!(!report.simulated);
        let text = std::fs::read_to_string(&file).expect("text");
        assert!(text.starts_with("{\n  \"schema\": 1,") && text.ends_with("}\n"));
        let names: Vec<_> =
            std::fs::read_dir(dir.path()).expect("directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["r.json"], "nothing is left over");
    }

    #[test]
    fn simulated_rows_mark_the_report() {
        let mut rows = sample::sweep();
        rows[3].simulated = true;
        let value = serde_json::to_value(Report::new(machine(), rows)).expect("JSON");
        assert_eq!(value["simulated"], json!(true));
        assert_eq!(value["rows"][3]["simulated"], json!(true));
    }

    #[test]
    fn what_is_wrong_is_named_with_file_and_field() {
        let good = serde_json::to_value(Report::new(machine(), sample::sweep())).expect("JSON");
        assert!(parse(Path::new("r.json"), good.to_string().as_bytes()).is_ok());
        let broken = |pointer: &str, with: Value| {
            let mut value = good.clone();
            let (parent, key) = pointer.rsplit_once('/').expect("a path");
            let object = value.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
            if with == json!("absent") {
                object.remove(key)
            } else {
                object.insert(key.into(), with)
            };
            parse(Path::new("r.json"), value.to_string().as_bytes()).expect_err(pointer).to_string()
        };
        for (pointer, with, parts) in [
            ("/schema", json!(2), &["schema: expected 1, found 2"][..]),
            ("/schema", json!("absent"), &["schema: absent"]),
            ("/rows/3/batch", json!("two"), &["rows[3].batch", "string"]),
            ("/rows/3/batch", json!("absent"), &["rows[3]", "missing field `batch`"]),
            ("/rows/1/speedup/min", json!(null), &["rows[1].speedup.min", "null"]),
            ("/rows/1/status", json!({"state": "fine"}), &["rows[1].status", "fine"]),
            ("/machine/device", json!(7), &["machine.device"]),
        ] {
            let error = broken(pointer, with);
            for part in parts.iter().chain(&["r.json"]) {
                assert!(error.contains(part), "{error:?} lacks {part:?}");
            }
        }
        let error = parse(Path::new("r.json"), b"{\"schema\": 1").expect_err("cut off").to_string();
        assert!(error.contains("r.json: invalid JSON"), "{error}");
    }
}
