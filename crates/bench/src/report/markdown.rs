//! Rows as tables for people: a Markdown document, or aligned text for a terminal.

use std::path::Path;

use super::table::{Align, Table, escaped, one_line};
use super::words::{self, Group, NONE};
use super::{ReportError, write_whole};
use crate::row::{Row, Status};

/// How a report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A Markdown document.
    Markdown,
    /// Text for a terminal.
    Plain,
}

/// Writes [`render`]'s Markdown, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, rows: &[Row]) -> Result<(), ReportError> {
    write_whole(file, render(rows, Style::Markdown).as_bytes())
}

/// All rows, a table a pairing with the best width below it, and how they were measured.
pub fn render(rows: &[Row], style: Style) -> String {
    let heading = |level: usize, text: &str| match style {
        Style::Markdown => format!("{} {}\n\n", "#".repeat(level), escaped(text)),
        Style::Plain => format!("{}\n", one_line(text)),
    };
    let mut out = String::new();
    if style == Style::Markdown {
        out += &heading(1, "Speculative decoding, measured");
        out += &format!("{}\n\n", paragraph(&how(rows), style));
        out += "Columns are explained in docs/benchmarks.md. K is the block width: one certain token and K-1 drafts; K = 1 is plain \
                decoding. `mean_accepted_len` leaves the bonus token out, `tokens_per_round` counts it.\n\n";
    }
    let with_batch = words::distinct(rows.iter().map(|row| row.batch)).len() > 1;
    let (measured, absent): (Vec<_>, Vec<_>) =
        words::groups(rows).into_iter().partition(|group| group.rows.iter().any(|row| row.tokens_per_second.is_some()));
    for group in &measured {
        out += &heading(2, &group.title());
        let table = table(group, with_batch);
        out += &match style {
            Style::Markdown => table.markdown(),
            Style::Plain => table.plain(),
        };
        out += if style == Style::Markdown { "\n" } else { "" };
        for line in summary(group, with_batch) {
            out += &format!("{}\n", paragraph(&line, style));
            out += if style == Style::Markdown { "\n" } else { "" };
        }
        out += if style == Style::Plain { "\n" } else { "" };
    }
    if !absent.is_empty() {
        out += &heading(2, "Not measured");
        let mut table = Table::new(&[("pairing", Align::Left), ("K", Align::Left), ("status", Align::Left)]);
        for group in &absent {
            for status in words::distinct(group.rows.iter().map(|row| words::status(row))) {
                let same = group.rows.iter().filter(|row| words::status(row) == status);
                let widths = words::distinct(same.map(|row| words::width(row.k)));
                table.push([group.title(), widths.join(", "), status]);
            }
        }
        out += &match style {
            Style::Markdown => table.markdown(),
            Style::Plain => format!("{}\n", table.plain()),
        };
    }
    if rows.is_empty() {
        out += "Nothing was measured.\n";
    }
    if style == Style::Plain && !rows.is_empty() {
        out += &format!("{}\n", paragraph(&how(rows), style));
    }
    // One newline at the end, whatever came last.
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn paragraph(text: &str, style: Style) -> String {
    match style {
        Style::Markdown => escaped(text),
        Style::Plain => one_line(text),
    }
}

fn table(group: &Group<'_>, with_batch: bool) -> Table {
    let mut columns = vec![("K", Align::Left), ("prompt", Align::Left)];
    if with_batch {
        columns.insert(1, ("batch", Align::Right));
    }
    columns.extend([
        ("tok/s", Align::Right),
        ("speedup", Align::Right),
        ("acceptance_rate", Align::Right),
        ("mean_accepted_len", Align::Right),
        ("tokens_per_round", Align::Right),
        ("round cost", Align::Right),
        ("identical", Align::Left),
        ("status", Align::Left),
    ]);
    let mut table = Table::new(&columns);
    for row in &group.rows {
        let mut cells = vec![words::widths(row), row.prompt.clone()];
        if with_batch {
            cells.insert(1, row.batch.to_string());
        }
        cells.extend([
            words::spread(row.tokens_per_second, 1),
            words::spread(row.speedup, 2),
            words::number(row.acceptance_rate, 3),
            words::number(row.mean_accepted_len, 2),
            words::number(row.tokens_per_round, 2),
            words::number(row.round_cost, 2),
            words::identical(row.output_identical).into(),
            words::status(row),
        ]);
        table.push(cells);
    }
    table
}

/// Lines below a table: the best width of each batch size, and whether output was identical.
fn summary(group: &Group<'_>, with_batch: bool) -> Vec<String> {
    let drafting: Vec<&Row> =
        group.rows.iter().copied().filter(|row| !words::is_plain(row) && row.speedup.is_some()).collect();
    let mut lines = Vec::new();
    for batch in words::distinct(drafting.iter().map(|row| row.batch)) {
        let of = |k: Option<usize>| {
            let rows = drafting.iter().filter(|row| row.batch == batch && row.k == k);
            let speedups: Vec<f64> = rows.filter_map(|row| row.speedup).map(|spread| spread.median).collect();
            (words::median(&speedups).unwrap_or_default(), speedups.len())
        };
        let widths = words::distinct(drafting.iter().filter(|row| row.batch == batch).map(|row| row.k));
        let best = widths.into_iter().max_by(|a, b| of(*a).0.total_cmp(&of(*b).0));
        let Some(best) = best else { continue };
        let (speedup, prompts) = of(best);
        let at = if with_batch { format!(", batch {batch}") } else { String::new() };
        let name = if best.is_none() { "adaptive K".into() } else { format!("K = {}", words::width(best)) };
        let over = if prompts == 1 { "1 prompt".into() } else { format!("the median of {prompts} prompts") };
        let verdict = if speedup > 1.0 { "" } else { "; plain decoding is as fast or faster" };
        lines.push(format!("Best{at}: {name}, {speedup:.2} times plain decoding ({over}){verdict}."));
    }
    let asked: Vec<&Row> = drafting.iter().copied().filter(|row| row.output_identical.is_some()).collect();
    let differing: Vec<String> = asked
        .iter()
        .filter(|row| row.output_identical == Some(false))
        .map(|row| format!("K = {} {}", words::width(row.k), row.prompt))
        .collect();
    if !differing.is_empty() {
        lines.push(format!("OUTPUT DIFFERED from plain decoding: {}.", differing.join(", ")));
    } else if !asked.is_empty() {
        lines.push(format!("Output identical to plain decoding in all {} rows.", asked.len()));
    }
    if group.simulated {
        let named = words::distinct(drafting.iter().map(|row| words::simulated(row))).join("; ");
        let cost = match drafting.iter().all(|row| row.drafter.is_some()) {
            true => "the drafter ran and its cost is real",
            false => "no drafter ran: proposing cost nothing",
        };
        lines.push(format!(
            "Simulated: drafts came from a script that is right with a set probability ({named}), so acceptance and speedup are \
             assumptions; {cost}."
        ));
    }
    lines
}

/// How rows were measured: what they have in common, and every value where they differ.
fn how(rows: &[Row]) -> String {
    let measured: Vec<&Row> = rows.iter().filter(|row| row.status == Status::Ok).collect();
    let rows = if measured.is_empty() { rows.iter().collect() } else { measured };
    let all = |value: &dyn Fn(&Row) -> String| {
        let values = words::distinct(rows.iter().map(|row| value(row)));
        let values: Vec<String> = values.into_iter().filter(|value| !value.is_empty()).collect();
        if values.is_empty() { NONE.into() } else { values.join(", ") }
    };
    let build = |row: &Row| match &row.commit {
        Some(commit) => format!("{} ({})", row.version, commit.get(..12).unwrap_or(commit)),
        None => row.version.clone(),
    };
    let sampling = |row: &Row| {
        if row.temperature == 0.0 {
            "greedy".into()
        } else {
            format!("temperature {}, seed {}", row.temperature, row.seed)
        }
    };
    let simulated = if rows.iter().any(|row| row.simulated) { "; SIMULATED rows are marked" } else { "" };
    format!(
        "Written by speculative_bench {}. Machine: {}; backend: {}; threads: {}; date: {}. Median (lowest-highest) of {} runs, \
         plain and speculative runs in turns, prefill excluded; batch {}; {}{simulated}.",
        all(&build),
        all(&|row| row.device.clone()),
        all(&|row| row.backend.clone()),
        all(&|row| if row.threads == 0 { String::new() } else { row.threads.to_string() }),
        all(&|row| row.date.clone()),
        all(&|row| row.repeat.to_string()),
        all(&|row| row.batch.to_string()),
        all(&sampling),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn every_measured_row_has_its_figures() {
        let rows = sample::sweep();
        let text = render(&rows, Style::Markdown);
        let row = &rows[2];
        let line = text.lines().find(|line| line.starts_with("| 4 | instruction |")).expect("a line");
        for part in [
            words::spread(row.tokens_per_second, 1),
            words::spread(row.speedup, 2),
            words::number(row.acceptance_rate, 3),
            words::number(row.mean_accepted_len, 2),
            words::number(row.tokens_per_round, 2),
            words::number(row.round_cost, 2),
            "yes".into(),
            "ok".into(),
        ] {
            assert!(line.contains(&format!("| {part} |")), "{line} lacks {part}");
        }
        assert!(line.contains('('), "lowest and highest");
        assert!(text.contains("## gemma-4-tiny-4bit (mtp)") && text.contains("## qwen3.5-tiny-4bit (mtp)"));
        let columns = text.lines().filter(|line| line.starts_with("| K | prompt")).map(|l| l.matches(" | ").count());
        assert_eq!(columns.collect::<Vec<_>>(), [9, 9]);
    }

    #[test]
    fn the_best_width_is_found_and_losing_is_said() {
        let rows = sample::sweep();
        let text = render(&rows, Style::Plain);
        let best: Vec<&str> = text.lines().filter(|line| line.starts_with("Best")).collect();
        assert_eq!(best.len(), 2, "{text}");
        let of = |k| rows.iter().filter(move |row| row.pairing == "gemma-4-tiny-4bit" && row.k == k);
        let medians = |k| words::median(&of(k).filter_map(|row| row.speedup.map(|s| s.median)).collect::<Vec<_>>());
        assert!([Some(2), Some(4), None].into_iter().all(|k| medians(k) < medians(Some(8))), "the sample");
        let expected = format!(
            "Best: K = 8, {} times plain decoding (the median of 3 prompts).",
            words::number(medians(Some(8)), 2)
        );
        assert_eq!(best[0], expected);
        let mut slow = sample::row("p", "code", Some(4));
        slow.speedup = slow.speedup.map(|mut s| {
            s.median = 0.9;
            s
        });
        assert!(
            render(&[slow], Style::Plain)
                .contains("K = 4, 0.90 times plain decoding (1 prompt); plain decoding is as fast")
        );
    }

    #[test]
    fn differing_output_is_loud() {
        let mut rows = sample::sweep();
        let good = render(&rows, Style::Plain);
        assert!(good.contains("identical to plain decoding in all 12 rows") && !good.contains("DIFFERED"));
        rows[2].output_identical = Some(false);
        let bad = render(&rows, Style::Plain);
        assert!(bad.contains("OUTPUT DIFFERED from plain decoding: K = 4 instruction."), "{bad}");
        assert!(bad.contains(" NO "));
    }

    #[test]
    fn simulated_and_inexact_rows_are_marked() {
        let mut rows = sample::sweep();
        assert!(!render(&rows, Style::Markdown).to_lowercase().contains("simulated"));
        for row in &mut rows {
            row.simulated = row.kind != "none";
        }
        rows[1].probe = Some("inexact: K = 2 differs".into());
        let text = render(&rows, Style::Markdown);
        assert!(
            text.contains("ok, simulated")
                && text.contains("SIMULATED rows are marked")
                && text.contains("assumptions")
        );
        assert!(text.contains("probe inexact: K = 2 differs"));
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let text = render(&sample::sweep(), Style::Markdown);
        let line = text.lines().find(|line| line.starts_with("| gemma-4-31b-bf16")).expect("a line");
        assert!(line.contains("absent: mlx-community/gemma-4-31b-it-4bit is not on disk"), "{line}");
        assert_eq!(render(&[], Style::Plain), "Nothing was measured.\n");
        assert!(!text.contains("Nothing was measured"));
    }

    #[test]
    fn it_says_how_it_was_measured() {
        for style in [Style::Markdown, Style::Plain] {
            let text = render(&sample::sweep(), style);
            for part in
                ["2,5 GHz", "cpu int8 avx512-vnni", "threads: 2", "2026-11-30", "0123456789ab", "of 5 runs", "greedy"]
            {
                assert!(text.contains(part), "{part}");
            }
        }
        let mut rows = sample::sweep();
        rows[0].batch = 4;
        assert!(render(&rows, Style::Plain).contains("batch"), "a column of its own");
    }

    #[test]
    fn text_cannot_break_the_table() {
        let mut rows = vec![sample::row("a|b", "x | y\nz", Some(4))];
        rows[0].status = Status::Failed("| oops |\n# heading".into());
        let text = render(&rows, Style::Markdown);
        let line = text.lines().find(|line| line.contains("oops")).expect("one line");
        assert_eq!(line.replace("\\|", "").matches('|').count(), 11);
        assert!(!text.lines().any(|line| line.starts_with("# heading")));
    }
}
