//! A table for people, in two styles: Markdown, and aligned columns for a terminal.

use unicode_width::UnicodeWidthStr;

/// Which side a column keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Titles and lines of cells.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self { columns: columns.iter().map(|(title, align)| (title.to_string(), *align)).collect(), rows: Vec::new() }
    }

    /// Adds a line of as many cells as there are columns.
    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// As Markdown, with a newline at the end.
    pub fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            let cells: Vec<String> = cells.collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out = line(&mut self.columns.iter().map(|(title, _)| escaped(title)));
        let rule = |align: &Align| if *align == Align::Right { "---:" } else { "---" }.to_string();
        out += &line(&mut self.columns.iter().map(|(_, align)| rule(align)));
        for row in &self.rows {
            out += &line(&mut row.iter().map(|cell| escaped(cell)));
        }
        out
    }

    /// As columns two spaces apart, with a newline at the end.
    pub fn plain(&self) -> String {
        let clean: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| clean.iter().map(|row| row[i].width()).chain([self.columns[i].0.width()]).max().unwrap_or(0))
            .collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                let gap = " ".repeat(width - cell.width());
                match align {
                    Align::Left => line += &format!("{cell}{gap}"),
                    Align::Right => line += &format!("{gap}{cell}"),
                }
                line += "  ";
            }
            format!("{}\n", line.trim_end())
        };
        let mut out = line(&mut self.columns.iter().map(|(title, _)| title.as_str()));
        for row in &clean {
            out += &line(&mut row.iter().map(String::as_str));
        }
        out
    }
}

/// Text without what would end a line.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Text that Markdown takes as such, in a cell or a paragraph.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        if matches!(c, '|' | '\\' | '`' | '*' | '<' | '>' | '[' | ']') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        table.push(["a|b\nc".into(), "1".into()]);
        table.push(["日本".into(), "1000".into()]);
        table
    }

    #[test]
    fn markdown_cells_stay_cells() {
        assert_eq!(table().markdown(), "| name | n |\n| --- | ---: |\n| a\\|b c | 1 |\n| 日本 | 1000 |\n");
        assert_eq!(escaped("a_b <i> *x* [y](z)"), "a_b \\<i\\> \\*x\\* \\[y\\](z)");
    }

    #[test]
    fn columns_line_up() {
        let text = table().plain();
        assert_eq!(text, "name      n\na|b c     1\n日本   1000\n");
        let ends: Vec<usize> = text.lines().map(UnicodeWidthStr::width).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}
