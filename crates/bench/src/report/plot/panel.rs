//! One panel.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{ACCEPTANCE, DIFFERED, FAINT, INK, PANEL, SPEEDUP};
use crate::report::words;
use crate::row::{Row, Spread};

/// Pixels between a panel's edges and its axes: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 66.0, 34.0, 50.0);
/// Style of the line at a speedup of 1.
pub(super) const PLAIN: &str = r##"stroke="#24292f" stroke-width="1.3" stroke-dasharray="7 4""##;

/// What is drawn over K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Series {
    Speedup,
    Acceptance,
}

impl Series {
    fn colour(self) -> &'static str {
        if self == Self::Speedup { SPEEDUP } else { ACCEPTANCE }
    }

    fn dash(self) -> &'static str {
        if self == Self::Speedup { "" } else { r#" stroke-dasharray="5 3""# }
    }

    /// The line of a single prompt.
    pub(super) fn thin(self, svg: &mut Svg, points: &[(f64, f64)]) {
        let (colour, dash) = (self.colour(), self.dash());
        svg.path(points, &format!(r#"stroke="{colour}" stroke-width="1" stroke-opacity="0.38"{dash}"#));
    }

    /// The line of the median.
    pub(super) fn bold(self, svg: &mut Svg, points: &[(f64, f64)]) {
        let (colour, dash) = (self.colour(), self.dash());
        svg.path(points, &format!(r#"stroke="{colour}" stroke-width="2.4" stroke-linejoin="round"{dash}"#));
    }

    /// A value of the median: a full circle, or a hollow square.
    pub(super) fn mark(self, svg: &mut Svg, at: (f64, f64), hint: &str) {
        let colour = self.colour();
        match self {
            Self::Speedup => {
                svg.circle(at, 4.2, &format!(r##"fill="{colour}" stroke="#ffffff" stroke-width="1""##), hint)
            }
            Self::Acceptance => {
                svg.square(at, 7.5, &format!(r##"fill="#ffffff" stroke="{colour}" stroke-width="2""##), hint)
            }
        }
    }
}

/// The figures of a prompt at a width.
struct Point {
    k: Option<usize>,
    prompt: usize,
    speedup: Option<Spread>,
    acceptance: Option<f64>,
    differs: bool,
}

/// Rows of one pairing, kind and batch size.
pub(super) struct Panel {
    title: String,
    prompts: usize,
    /// Fixed widths, sorted; then `None` if any row was adaptive.
    widths: Vec<Option<usize>>,
    points: Vec<Point>,
}

impl Panel {
    /// `None` where no row has a figure to draw.
    pub(super) fn new(title: String, rows: &[&Row]) -> Option<Self> {
        let rows =
            rows.iter().filter(|row| !words::is_plain(row) && (row.speedup.is_some() || row.acceptance_rate.is_some()));
        let rows: Vec<&&Row> = rows.collect();
        let names = words::distinct(rows.iter().map(|row| row.prompt.as_str()));
        let mut widths = words::distinct(rows.iter().map(|row| row.k));
        widths.sort_by_key(|k| k.unwrap_or(usize::MAX));
        let point = |row: &&&Row| Point {
            k: row.k,
            prompt: names.iter().position(|name| *name == row.prompt).unwrap_or_default(),
            speedup: row.speedup.filter(|s| s.median.is_finite() && s.min.is_finite() && s.max.is_finite()),
            acceptance: row.acceptance_rate.filter(|rate| rate.is_finite()),
            differs: row.output_identical == Some(false),
        };
        (!rows.is_empty()).then(|| Self {
            title,
            prompts: names.len(),
            widths,
            points: rows.iter().map(point).collect(),
        })
    }

    /// Its title.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// How many prompts it has.
    pub(super) fn prompts(&self) -> usize {
        self.prompts
    }

    /// Whether any output differed from plain decoding.
    pub(super) fn differs(&self) -> bool {
        self.points.iter().any(|point| point.differs)
    }

    /// The lowest and the highest speedup of any run.
    pub(super) fn range(&self) -> (f64, f64) {
        let spreads = self.points.iter().filter_map(|point| point.speedup);
        spreads.fold((1.0, 1.0), |(low, high), s| (low.min(s.min), high.max(s.max)))
    }

    /// All values of a series at a width.
    fn values(&self, series: Series, k: Option<usize>) -> Vec<f64> {
        let at = self.points.iter().filter(|point| point.k == k);
        let value = |point: &Point| match series {
            Series::Speedup => point.speedup.map(|s| s.median),
            Series::Acceptance => point.acceptance,
        };
        at.filter_map(value).collect()
    }

    /// Draws it with its top left corner at a place; `ticks` are the values of the left axis.
    pub(super) fn draw(&self, svg: &mut Svg, at: (f64, f64), ticks: &[f64]) {
        let (left, right) = (at.0 + MARGIN.0, at.0 + PANEL.0 - MARGIN.1);
        let (top, bottom) = (at.1 + MARGIN.2, at.1 + PANEL.1 - MARGIN.3);
        let (low, high) = (ticks.first().copied().unwrap_or(0.0), ticks.last().copied().unwrap_or(2.0));
        let speedup = Scale::new((low, high), (bottom, top));
        let acceptance = Scale::new((0.0, 1.0), (bottom, top));
        self.frame(svg, (left, right, top, bottom), ticks, (&speedup, &acceptance));
        let x = self.columns(left, right);
        for (series, y) in [(Series::Acceptance, &acceptance), (Series::Speedup, &speedup)] {
            self.series(svg, series, &x, y);
        }
        for point in self.points.iter().filter(|point| point.differs) {
            if let Some(spread) = point.speedup {
                let style = format!(r#"fill="none" stroke="{DIFFERED}" stroke-width="2.5""#);
                let hint = format!("K = {}: output differed from plain decoding", words::width(point.k));
                svg.circle((x(point.k), speedup.at(spread.median)), 7.0, &style, &hint);
            }
        }
    }

    /// The pixel of a width: fixed ones by their value, adaptive rows in a column of their own on the right.
    fn columns(&self, left: f64, right: f64) -> impl Fn(Option<usize>) -> f64 + use<> {
        let fixed: Vec<usize> = self.widths.iter().copied().flatten().collect();
        let adaptive = self.widths.contains(&None);
        let room = if adaptive && !fixed.is_empty() { 84.0 } else { 0.0 };
        let range = (fixed.first().copied().unwrap_or(0) as f64, fixed.last().copied().unwrap_or(0) as f64);
        let scale = Scale::new(range, (left + 30.0, right - 30.0 - room));
        let alone = (left + right) / 2.0;
        move |k| match k {
            Some(k) => scale.at(k as f64),
            None if fixed.is_empty() => alone,
            None => right - 42.0,
        }
    }

    /// Axes, grid and titles.
    fn frame(&self, svg: &mut Svg, area: (f64, f64, f64, f64), ticks: &[f64], scales: (&Scale, &Scale)) {
        let (left, right, top, bottom) = area;
        let bold = format!(r#"font-size="14" font-weight="600" fill="{INK}""#);
        svg.text((left, top - 12.0), Anchor::Start, &bold, &self.title);
        let small = |colour: &str| format!(r#"font-size="11" fill="{colour}""#);
        let is_short = |tick: &f64| (tick * 10.0 - (tick * 10.0).round()).abs() < 1e-6;
        let decimals = if ticks.iter().all(is_short) { 1 } else { 2 };
        for tick in ticks {
            let y = scales.0.at(*tick);
            svg.line((left, y), (right, y), r##"stroke="#e5e7eb" stroke-width="1""##);
            svg.text((left - 8.0, y + 4.0), Anchor::End, &small(SPEEDUP), &format!("{tick:.decimals$}"));
        }
        for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let y = scales.1.at(tick);
            svg.line((right, y), (right + 4.0, y), &format!(r#"stroke="{ACCEPTANCE}" stroke-width="1""#));
            svg.text((right + 8.0, y + 4.0), Anchor::Start, &small(ACCEPTANCE), &format!("{tick:.2}"));
        }
        svg.rect((left, top), (right - left, bottom - top), r##"fill="none" stroke="#9ca3af" stroke-width="1""##);
        svg.line((left, scales.0.at(1.0)), (right, scales.0.at(1.0)), PLAIN);
        let x = self.columns(left, right);
        for k in &self.widths {
            svg.line((x(*k), bottom), (x(*k), bottom + 4.0), r##"stroke="#9ca3af" stroke-width="1""##);
            svg.text((x(*k), bottom + 17.0), Anchor::Middle, &small(INK), &words::width(*k));
        }
        let title = |colour: &str| format!(r#"font-size="12" fill="{colour}""#);
        let middle = (top + bottom) / 2.0;
        svg.text(((left + right) / 2.0, bottom + 36.0), Anchor::Middle, &title(FAINT), "K (block width)");
        svg.upright((left - 44.0, middle), &title(SPEEDUP), "speedup");
        svg.upright((right + 52.0, middle), &title(ACCEPTANCE), "acceptance_rate");
    }

    /// Thin lines of single prompts, and the bold one of their median with whiskers.
    fn series(&self, svg: &mut Svg, series: Series, x: &impl Fn(Option<usize>) -> f64, y: &Scale) {
        let value = |point: &Point| match series {
            Series::Speedup => point.speedup.map(|s| s.median),
            Series::Acceptance => point.acceptance,
        };
        let colour = series.colour();
        for prompt in (0..self.prompts).filter(|_| self.prompts > 1) {
            let of_prompt = |k: &Option<usize>| {
                let point = self.points.iter().find(|point| point.prompt == prompt && point.k == *k)?;
                Some((x(*k), y.at(value(point)?)))
            };
            let fixed: Vec<(f64, f64)> = self.widths.iter().filter(|k| k.is_some()).filter_map(of_prompt).collect();
            if fixed.len() > 1 {
                series.thin(svg, &fixed);
            }
            // Where there is nothing to join, a dot.
            let lone = self.widths.iter().filter(|k| k.is_none() || fixed.len() == 1);
            for at in lone.filter_map(of_prompt) {
                svg.circle(at, 1.8, &format!(r#"fill="{colour}" fill-opacity="0.45""#), "");
            }
        }
        let mut line = Vec::new();
        for k in &self.widths {
            let Some(median) = words::median(&self.values(series, *k)) else { continue };
            let at = (x(*k), y.at(median));
            if k.is_some() {
                line.push(at);
            }
            if series == Series::Speedup {
                let spreads = self.points.iter().filter(|point| point.k == *k).filter_map(|point| point.speedup);
                let (low, high) = spreads.fold((median, median), |(l, h), s| (l.min(s.min), h.max(s.max)));
                let style = format!(r#"stroke="{colour}" stroke-width="1.3""#);
                svg.line((at.0, y.at(low)), (at.0, y.at(high)), &style);
                for end in [low, high] {
                    svg.line((at.0 - 4.0, y.at(end)), (at.0 + 4.0, y.at(end)), &style);
                }
            }
        }
        if line.len() > 1 {
            series.bold(svg, &line);
        }
        for k in &self.widths {
            let Some(median) = words::median(&self.values(series, *k)) else { continue };
            let what = if series == Series::Speedup { "speedup" } else { "acceptance_rate" };
            series.mark(svg, (x(*k), y.at(median)), &format!("K = {}: {what} {median:.3}", words::width(*k)));
        }
    }
}
