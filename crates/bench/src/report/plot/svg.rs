//! The few shapes a plot is made of, as SVG text.

use std::fmt::Write as _;

/// An SVG document in the making. Coordinates are pixels from the top left corner.
#[derive(Debug, Default)]
pub struct Svg {
    body: String,
}

/// Where a text is held.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

impl Svg {
    /// A line from one point to another.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {style}/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through points.
    pub fn path(&mut self, points: &[(f64, f64)], style: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, r#"<polyline points="{}" fill="none" {style}/>"#, points.join(" "));
    }

    /// A circle, with a text that shows when pointed at.
    pub fn circle(&mut self, at: (f64, f64), radius: f64, style: &str, hint: &str) {
        let (x, y) = at;
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" {style}>{}</circle>"#, title(hint));
    }

    /// A square by its middle, with a text that shows when pointed at.
    pub fn square(&mut self, at: (f64, f64), side: f64, style: &str, hint: &str) {
        let (x, y) = (at.0 - side / 2.0, at.1 - side / 2.0);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{side}" height="{side}" {style}>{}</rect>"#,
            title(hint)
        );
    }

    /// A rectangle by its top left corner and size.
    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), style: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" {style}/>"#,
            at.0, at.1, size.0, size.1
        );
    }

    /// A text whose base line is at a height.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}" {style}>{}</text>"#,
            at.0,
            at.1,
            escaped(text)
        );
    }

    /// A text that runs upwards, by its middle.
    pub fn upright(&mut self, at: (f64, f64), style: &str, text: &str) {
        let (x, y) = at;
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" transform="rotate(-90 {x:.1} {y:.1})" {style}>{}</text>"#,
            escaped(text)
        );
    }

    /// The document, on white.
    pub fn finish(self, size: (f64, f64), title: &str, description: &str) -> String {
        let (w, h) = size;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\" \
             font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\">\n\
             <title>{}</title>\n<desc>{}</desc>\n\
             <rect width=\"{w:.0}\" height=\"{h:.0}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            escaped(title),
            escaped(description),
            self.body
        )
    }
}

fn title(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(hint)) }
}

/// Text as XML has it. What no XML document may hold becomes a space.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&apos;",
            '\u{fffe}' | '\u{ffff}' => out.push(' '),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_xml() {
        let nasty = "a < b && \"c\" > 'd' \u{0}\u{1b}\u{ffff}\n é 日本";
        let mut svg = Svg::default();
        svg.text((0.0, 0.0), Anchor::Start, "", nasty);
        svg.circle((1.0, 1.0), 2.0, "", nasty);
        let text = svg.finish((10.0, 10.0), nasty, nasty);
        let document = roxmltree::Document::parse(&text).expect("XML");
        let found = document.descendants().find(|node| node.has_tag_name("text")).and_then(|node| node.text());
        assert_eq!(found, Some("a < b && \"c\" > 'd'      é 日本"));
        // The twin: as it is, it would be none.
        assert!(roxmltree::Document::parse(&format!("<a>{nasty}</a>")).is_err());
    }
}
