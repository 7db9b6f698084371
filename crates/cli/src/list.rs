//! `mlxcel list`: what is in the model store and in the Hugging Face cache.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use mlxcel_checkpoint::store::{HubCache, quantization_label, rfc3339};
use serde_json::{Value, json};

use crate::args::ListArgs;
use crate::locate::Environment;
use crate::units::bytes;

/// A line.
struct Row {
    name: String,
    bytes: u64,
    format: Option<String>,
    date: Option<String>,
    commit: Option<String>,
    place: &'static str,
    path: String,
    /// What is wrong with it; empty when nothing is.
    note: String,
}

/// Runs the verb.
///
/// # Errors
/// A directory that cannot be read.
pub fn run(args: &ListArgs, environment: &Environment) -> Result<ExitCode> {
    let rows = rows(environment)?;
    let store = environment.store.as_ref().map(|store| store.display().to_string());
    // A reader that went away (head, a pager) is no error.
    let mut out = std::io::stdout();
    if args.json {
        let cache = environment.hub_cache.as_ref().map(|cache| cache.display().to_string());
        let models: Vec<Value> = rows.iter().map(to_json).collect();
        let _ = writeln!(out, "{:#}", json!({"store": store, "cache": cache, "models": models}));
    } else if rows.is_empty() {
        let store = store.unwrap_or("MLXCEL_MODELS_DIR, which is not set".into());
        let _ = writeln!(out, "no models yet in {store}; fetch one: mlxcel pull OWNER/NAME");
    } else {
        let _ = write!(out, "{}", to_text(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(environment: &Environment) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if let Ok(store) = environment.model_store() {
        for model in store.models()? {
            let damaged = model.damaged();
            let note = match damaged[..] {
                [] => String::new(),
                [first, ..] => format!(
                    "{} file(s) absent or of another size, as {first}; `mlxcel pull --verify {}` repairs",
                    damaged.len(),
                    model.name
                ),
            };
            rows.push(Row {
                bytes: model.bytes,
                format: quantization_label(&model.dir),
                date: model.manifest.as_ref().map(|manifest| manifest.pulled.clone()),
                commit: model.manifest.as_ref().map(|manifest| manifest.commit.clone()),
                place: "store",
                path: model.dir.display().to_string(),
                note,
                name: model.name,
            });
        }
        for partial in store.partials()? {
            let share = match partial.total {
                Some(total) if total > 0 => {
                    let percent = (partial.present as f64 / total as f64 * 100.0).floor().min(100.0);
                    format!("{} of {} ({percent:.0} %)", bytes(partial.present), bytes(total))
                }
                _ => bytes(partial.present),
            };
            rows.push(Row {
                bytes: partial.present,
                format: None,
                date: None,
                commit: Some(partial.commit),
                place: "partial",
                path: partial.dir.display().to_string(),
                note: format!("unfinished: {share}; `mlxcel pull {}` goes on", partial.name),
                name: partial.name,
            });
        }
    }
    if let Some(root) = &environment.hub_cache {
        for model in HubCache::new(root).models()? {
            let note = match &model.missing[..] {
                [] => String::new(),
                [first, ..] => format!("incomplete: {} file(s) absent, as {first}", model.missing.len()),
            };
            rows.push(Row {
                bytes: model.bytes,
                format: quantization_label(&model.dir),
                date: model.made.map(rfc3339),
                commit: Some(model.commit),
                place: "cache",
                path: model.dir.display().to_string(),
                note,
                name: model.name,
            });
        }
    }
    // Stable: of one name, the store comes before the cache.
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

fn to_text(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        [
            row.name.clone(),
            bytes(row.bytes),
            row.format.clone().unwrap_or("-".into()),
            row.date.as_deref().map_or("-", |date| date.get(..10).unwrap_or(date)).to_string(),
            row.place.to_string(),
        ]
    };
    let mut table = vec![["name", "size", "weights", "date", "where"].map(String::from)];
    table.extend(rows.iter().map(cells));
    let mut widths = [0; 5];
    for line in &table {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for (line, row) in table.iter().zip(std::iter::once(None).chain(rows.iter().map(Some))) {
        let [name, size, format, date, place] = line;
        let [n, s, f, d, p] = widths;
        let note = row.map_or("", |row| row.note.as_str());
        let text = format!("{name:<n$}  {size:>s$}  {format:<f$}  {date:<d$}  {place:<p$}  {note}");
        let _ = writeln!(out, "{}", text.trim_end());
    }
    out
}

fn to_json(row: &Row) -> Value {
    json!({
        "name": row.name,
        "bytes": row.bytes,
        "weights": row.format,
        "date": row.date,
        "commit": row.commit,
        "source": row.place,
        "path": row.path,
        "problem": (!row.note.is_empty()).then_some(&row.note),
    })
}
