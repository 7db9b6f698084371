//! Numbers and rows in words, the same in every report.

use std::path::Path;

use crate::row::{Row, Spread, Status};
use crate::simulate;

/// What stands where nothing was measured.
pub const NONE: &str = "-";

/// A number with so many decimals.
pub fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or(NONE.into(), |value| format!("{value:.decimals$}"))
}

/// `median (lowest-highest)`; the median alone where all are the same.
pub fn spread(value: Option<Spread>, decimals: usize) -> String {
    let Some(Spread { median, min, max }) = value else { return NONE.into() };
    let show = |value: f64| format!("{value:.decimals$}");
    if show(min) == show(max) { show(median) } else { format!("{} ({}-{})", show(median), show(min), show(max)) }
}

/// The block width asked for.
pub fn width(k: Option<usize>) -> String {
    k.map_or("adaptive".into(), |k| k.to_string())
}

/// The block width of a row, with those that were verified where it was adaptive, or where no block was as wide as asked. (The
/// last block of an answer is often narrower; that says nothing.)
pub fn widths(row: &Row) -> String {
    match (row.k, row.k_effective) {
        (k, Some((low, high))) if k != Some(high) => {
            let range = if low == high { low.to_string() } else { format!("{low}-{high}") };
            format!("{} ({range})", width(k))
        }
        (k, _) => width(k),
    }
}

/// `yes`, `NO` or nothing.
pub fn identical(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "yes",
        Some(false) => "NO",
        None => NONE,
    }
}

/// Of a row with scripted drafts: how often they are right, and whose forward ran.
pub fn simulated(row: &Row) -> String {
    let name =
        row.drafter.as_deref().map(|path| Path::new(path).file_name().map_or(path.into(), |n| n.to_string_lossy()));
    match row.simulated_acceptance {
        Some(probability) => simulate::words(probability, name.as_deref()),
        None => "simulated".into(),
    }
}

/// What became of a row, and whether its drafts came from a script or its blocks were not exact.
pub fn status(row: &Row) -> String {
    let mut text = row.status.text();
    if row.simulated {
        text += &format!(", {}", simulated(row));
    }
    // A row that was not measured says why by itself.
    let measured = row.status == Status::Ok;
    if let Some(probe) = row.probe.as_deref().filter(|probe| measured && *probe != "exact") {
        text += &format!(", probe {probe}");
    }
    text
}

/// The median; NaN never occurs in rows.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The different values, in order of appearance.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Rows of one pairing that stand beside each other.
pub struct Group<'a> {
    /// Name of the pairing.
    pub pairing: &'a str,
    /// How it drafts, the plain rows left aside.
    pub kind: &'a str,
    /// Whether drafts came from a script.
    pub simulated: bool,
    /// The rows, in order.
    pub rows: Vec<&'a Row>,
}

impl Group<'_> {
    /// Name for a heading.
    pub fn title(&self) -> String {
        let kind =
            if self.kind.is_empty() || self.kind == "simulated" { "".into() } else { format!(" ({})", self.kind) };
        let simulated = if self.simulated { " [simulated]" } else { "" };
        format!("{}{kind}{simulated}", self.pairing)
    }
}

/// A row of plain decoding: width 1, or nothing drafts.
pub fn is_plain(row: &Row) -> bool {
    row.k == Some(1) || row.kind == "none"
}

/// Rows by pairing and kind, in order of appearance. Plain rows go with the first kind of their pairing.
pub fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let drafting = |row: &&Row| row.kind != "none";
    for row in rows.iter().filter(drafting) {
        let same = |g: &Group<'_>| (g.pairing, g.kind, g.simulated) == (&*row.pairing, &*row.kind, row.simulated);
        if !groups.iter().any(same) {
            let (pairing, kind, simulated) = (&*row.pairing, &*row.kind, row.simulated);
            groups.push(Group { pairing, kind, simulated, rows: Vec::new() });
        }
    }
    for row in rows {
        let own = groups.iter().position(|g| {
            g.pairing == row.pairing && (row.kind == "none" || (g.kind, g.simulated) == (&*row.kind, row.simulated))
        });
        match own {
            Some(own) => groups[own].rows.push(row),
            None => {
                groups.push(Group { pairing: &row.pairing, kind: &row.kind, simulated: row.simulated, rows: vec![row] })
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(None, 2), "-");
        assert_eq!(number(Some(1.0 / 3.0), 3), "0.333");
        let value = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(spread(value(2.0, 1.0, 3.5), 1), "2.0 (1.0-3.5)");
        assert_eq!(spread(value(2.0, 2.01, 2.04), 1), "2.0");
        assert_eq!(spread(None, 1), "-");
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn widths_say_what_was_asked_and_done() {
        let mut row = sample::row("p", "code", Some(4));
        assert_eq!(widths(&row), "4");
        row.k_effective = Some((2, 4));
        assert_eq!(widths(&row), "4", "the last block was narrower");
        row.k_effective = Some((2, 3));
        assert_eq!(widths(&row), "4 (2-3)");
        row.k_effective = Some((2, 4));
        row.k = None;
        assert_eq!(widths(&row), "adaptive (2-4)");
        row.k_effective = None;
        assert_eq!(widths(&row), "adaptive");
    }

    #[test]
    fn plain_rows_stand_beside_those_they_are_compared_with() {
        let mut plain = sample::row("a", "code", Some(1));
        plain.kind = "none".into();
        let mut simulated = sample::row("a", "code", Some(2));
        (simulated.simulated, simulated.kind) = (true, "simulated".into());
        let rows = [plain, sample::row("a", "code", Some(2)), simulated, sample::row("b", "code", Some(2))];
        let groups = groups(&rows);
        let shape: Vec<(String, usize)> = groups.iter().map(|g| (g.title(), g.rows.len())).collect();
        assert_eq!(shape, [("a (mtp)".into(), 2), ("a [simulated]".into(), 1), ("b (mtp)".into(), 1)]);
    }
}
