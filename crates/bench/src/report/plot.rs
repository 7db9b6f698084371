//! The plot: SVG, one panel a pairing; speedup and acceptance over the block width.

mod panel;
mod scale;
mod svg;

use std::path::Path;

use panel::{Panel, Series};
use svg::{Anchor, Svg};

use super::words;
use super::{ReportError, write_whole};
use crate::row::{Row, Status};

/// Colours that differ in lightness too, so that they are told apart in print.
const SPEEDUP: &str = "#1a5fb4";
const ACCEPTANCE: &str = "#d9730d";
const INK: &str = "#24292f";
const FAINT: &str = "#6b7280";
const DIFFERED: &str = "#c01c28";

/// Pixels of a panel, and around all of them.
const PANEL: (f64, f64) = (560.0, 330.0);
const EDGE: f64 = 24.0;
const HEAD: f64 = 86.0;
/// Pixels of a character of a note, at most.
const NOTE_CHAR: f64 = 6.6;
/// Most lines of notes.
const NOTES: usize = 14;

/// Writes [`render`]'s SVG, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, rows: &[Row]) -> Result<(), ReportError> {
    write_whole(file, render(rows).as_bytes())
}

/// The plot of all rows that drafted: a panel a pairing, kind and batch size. K on the x axis, speedup on the left (thin lines: single
/// prompts; bold: their median, with whiskers from the lowest to the highest run), acceptance_rate on the right. Pairings
/// that were not measured are listed below.
pub fn render(rows: &[Row]) -> String {
    let groups = words::groups(rows);
    let mut panels = Vec::new();
    let mut missing = Vec::new();
    for group in &groups {
        let batches = words::distinct(group.rows.iter().map(|row| row.batch));
        for batch in &batches {
            let of_batch: Vec<&Row> = group.rows.iter().copied().filter(|row| row.batch == *batch).collect();
            let title = if batches.len() > 1 || *batch > 1 {
                format!("{}, batch {batch}", group.title())
            } else {
                group.title()
            };
            match Panel::new(title, &of_batch) {
                Some(panel) => panels.push(panel),
                None => missing.push((group.title(), of_batch)),
            }
        }
    }
    let columns = if panels.len() > 1 { 2 } else { 1 };
    let lines = panels.len().div_ceil(columns);
    let width = (columns as f64 * PANEL.0 + 2.0 * EDGE).max(780.0);
    let notes = notes(rows, &missing, ((width - 2.0 * EDGE) / NOTE_CHAR) as usize);
    let below = HEAD + lines as f64 * PANEL.1;
    let height = below + notes.len() as f64 * 16.0 + EDGE;
    // One scale for all panels: they are there to be compared.
    let (low, high) =
        panels.iter().map(|panel| panel.range()).fold((1.0f64, 1.0f64), |a, b| (a.0.min(b.0), a.1.max(b.1)));
    // At least half a unit, so that noise does not look like a result.
    let pad = ((0.5 - (high - low)) / 2.0).max(0.0);
    // And some room below the line of plain decoding.
    let ticks = scale::ticks((low - pad).clamp(0.0, 0.95), high + pad);

    let mut svg = Svg::default();
    let simulated = if rows.iter().any(|row| row.simulated) { " (simulated acceptance)" } else { "" };
    let title = format!("Speculative decoding: speedup and acceptance over block width K{simulated}");
    let style = format!(r#"font-size="18" font-weight="600" fill="{INK}""#);
    svg.text((EDGE + 8.0, 34.0), Anchor::Start, &style, &title);
    if !panels.is_empty() {
        let prompts = panels.iter().map(|panel| panel.prompts()).max().unwrap_or_default();
        legend(&mut svg, prompts > 1, panels.iter().any(Panel::differs));
    }
    for (i, panel) in panels.iter().enumerate() {
        let (column, line) = (i % columns, i / columns);
        panel.draw(&mut svg, (EDGE + column as f64 * PANEL.0, HEAD + line as f64 * PANEL.1), &ticks);
    }
    for (i, note) in notes.iter().enumerate() {
        let style = format!(r#"font-size="11" fill="{FAINT}""#);
        svg.text((EDGE + 8.0, below + 12.0 + i as f64 * 16.0), Anchor::Start, &style, note);
    }
    let measured: Vec<&str> = panels.iter().map(|panel| panel.title()).collect();
    svg.finish((width, height.max(160.0)), &title, &format!("Panels: {}.", measured.join("; ")))
}

/// The key of lines and marks, in a row below the title. Without several prompts there is nothing to tell apart.
fn legend(svg: &mut Svg, several: bool, differs: bool) {
    let (mut x, y) = (EDGE + 8.0, 58.0);
    let label = |svg: &mut Svg, x: &mut f64, text: &str| {
        svg.text((*x + 34.0, y + 4.0), Anchor::Start, &format!(r#"font-size="12" fill="{INK}""#), text);
        *x += 34.0 + text.chars().count() as f64 * 6.2 + 20.0;
    };
    let middle = |x: f64| (x + 14.0, y);
    Series::Speedup.bold(svg, &[(x, y), (x + 28.0, y)]);
    Series::Speedup.mark(svg, middle(x), "");
    label(svg, &mut x, "speedup (left), whiskers: all runs");
    Series::Acceptance.bold(svg, &[(x, y), (x + 28.0, y)]);
    Series::Acceptance.mark(svg, middle(x), "");
    label(svg, &mut x, "acceptance_rate (right)");
    if several {
        Series::Speedup.thin(svg, &[(x, y - 3.0), (x + 28.0, y - 3.0)]);
        Series::Acceptance.thin(svg, &[(x, y + 3.0), (x + 28.0, y + 3.0)]);
        label(svg, &mut x, "single prompts");
    }
    svg.line((x, y), (x + 28.0, y), panel::PLAIN);
    label(svg, &mut x, "plain decoding");
    if differs {
        svg.circle(middle(x), 7.0, &format!(r#"fill="none" stroke="{DIFFERED}" stroke-width="2.5""#), "");
        label(svg, &mut x, "output differed");
    }
}

/// What was not measured, and how the rest was, in lines of so many characters.
fn notes(rows: &[Row], missing: &[(String, Vec<&Row>)], chars: usize) -> Vec<String> {
    let mut notes = Vec::new();
    for (title, rows) in missing {
        let why =
            rows.iter().find(|row| row.status != Status::Ok).map_or("nothing drafted".into(), |row| row.status.text());
        notes.push(format!("not measured: {title}: {why}"));
    }
    let more = missing.len().saturating_sub(NOTES);
    notes.truncate(NOTES);
    if more > 0 {
        notes.push(format!("... and {more} more"));
    }
    let measured: Vec<&Row> = rows.iter().filter(|row| row.status == Status::Ok).collect();
    if let Some(first) = measured.first() {
        let devices = words::distinct(measured.iter().map(|row| row.device.as_str()));
        let threads = if first.threads > 0 { format!(", {} threads", first.threads) } else { String::new() };
        let commit = first.commit.as_deref().map_or(String::new(), |c| format!(" ({})", c.get(..12).unwrap_or(c)));
        let (backend, version, date) = (&first.backend, &first.version, &first.date);
        notes.push(format!("{}: {backend}{threads}; version {version}{commit}, {date}", devices.join(", ")));
    }
    notes.into_iter().map(|note| shortened(&note, chars)).collect()
}

/// A note that fits its line.
fn shortened(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests;
