//! What steps and proposals take, as measured.

use std::collections::BTreeMap;

/// Latest measurements of one width whose median counts.
const WINDOW: usize = 9;

/// Measurements of the same curve after which a width that was not measured again keeps only its last few.
const STALE: u64 = 200;

/// Measurements that are left then.
const LEFT: usize = 2;

/// A further row's share of the first one's cost, where only one width was measured.
const SLOPE: f64 = 0.25;

/// Factor from what the other widths let expect that a width's first measurement may differ by; what is beyond may be a hiccup.
const BELIEVED: f64 = 3.0;

/// Measured costs of steps that only decode, in seconds.
///
/// Each width keeps the median of its last few measurements, so that a hiccup changes nothing. They are kept in units of the width
/// that is measured most: when everything gets slower together, because contexts grow or the machine is busy, the widths not
/// measured for long get slower with it.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    steps: Curve,
    /// By number of sequences: cost over depth.
    drafts: BTreeMap<usize, Curve>,
}

impl Costs {
    /// Nothing measured.
    pub fn new() -> Self {
        Self::default()
    }

    /// A step of the target with `rows` rows in all took `seconds`, accepting included. Times that are no times are passed over.
    pub fn step(&mut self, rows: usize, seconds: f64) {
        if rows > 0 {
            self.steps.add(rows, seconds);
        }
    }

    /// A proposal for `sequences` sequences, of at most `depth` tokens each, took `seconds`.
    pub fn draft(&mut self, sequences: usize, depth: usize, seconds: f64) {
        if sequences > 0 && depth > 0 {
            self.drafts.entry(sequences).or_default().add(depth, seconds);
        }
    }

    /// Seconds of a step of `rows` rows: measured, or between those measured. `None` before the first measurement.
    pub fn step_cost(&self, rows: usize) -> Option<f64> {
        self.steps.estimate(rows)
    }

    /// Seconds of a proposal of `depth` tokens for each of `sequences` sequences; nothing for none of either. `None` before the
    /// first measurement.
    pub fn draft_cost(&self, sequences: usize, depth: usize) -> Option<f64> {
        if sequences == 0 || depth == 0 {
            return Some(0.0);
        }
        let below = self.drafts.range(..=sequences).next_back();
        let above = self.drafts.range(sequences..).next();
        let cost = |(n, curve): (&usize, &Curve)| curve.estimate(depth).map(|c| (*n as f64, c));
        match (below.and_then(cost), above.and_then(cost)) {
            (Some(low), Some(high)) => Some(between(low, high, sequences as f64)),
            // A draft step of one row reads all of the drafter's weights: more rows cost little more.
            (one, other) => one.or(other).map(|(_, cost)| cost),
        }
    }

    /// Whether steps of `rows` rows were measured more than once.
    pub(super) fn is_known(&self, rows: usize) -> bool {
        self.steps.points.get(&rows).is_some_and(|p| p.recent.len() >= LEFT)
    }

    /// Whether they were, and not long ago.
    pub(super) fn is_fresh(&self, rows: usize) -> bool {
        self.is_known(rows) && self.steps.age(rows) <= STALE
    }

    /// The least that a step of `rows` rows can be hoped to cost: what a narrower one was measured to.
    pub(super) fn hoped(&self, rows: usize) -> Option<f64> {
        let estimate = self.steps.estimate(rows)?;
        Some(self.steps.below(rows).map_or(estimate, |low| low.min(estimate)))
    }
}

/// Cost over a width.
#[derive(Clone, Debug)]
struct Curve {
    points: BTreeMap<usize, Point>,
    /// Seconds of a unit.
    level: f64,
    /// Measurements in all.
    count: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Curve { points: BTreeMap::new(), level: 1.0, count: 0 }
    }
}

/// Measurements of one width.
#[derive(Clone, Debug, Default)]
struct Point {
    /// The last [`WINDOW`] of them in units, oldest first.
    recent: Vec<f64>,
    /// Their lower median: of two, the smaller.
    median: f64,
    /// All that count for how well it is known.
    weight: f64,
    /// How often it is measured of late.
    activity: f64,
    /// The curve's count when it last was.
    last: u64,
}

impl Point {
    fn sort(&mut self) {
        let mut sorted = self.recent.clone();
        sorted.sort_by(f64::total_cmp);
        self.median = sorted[(sorted.len() - 1) / 2];
    }

    /// How often it has been measured of late, at measurement `now` of the curve.
    fn activity(&self, now: u64) -> f64 {
        self.activity * 0.98_f64.powf((now - self.last) as f64)
    }
}

impl Curve {
    fn add(&mut self, width: usize, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        self.count += 1;
        let mut units = seconds / self.level;
        if !self.points.contains_key(&width)
            && let Some(expected) = self.units(width, false)
        {
            units = units.clamp(expected / BELIEVED, expected * BELIEVED);
        }
        let now = self.count;
        let busiest = self.points.values().map(|p| p.activity(now)).fold(0.0, f64::max);
        let point = self.points.entry(width).or_default();
        let full = point.recent.len() == WINDOW;
        let before = point.median;
        if point.last + STALE < now && point.recent.len() > LEFT {
            point.recent.drain(..point.recent.len() - LEFT);
            point.weight = LEFT as f64;
        } else if full {
            point.recent.remove(0);
        }
        point.recent.push(units);
        point.sort();
        point.activity = point.activity(now) + 1.0;
        point.weight += 1.0;
        point.last = now;
        if full {
            // What changes at the busiest width changes everywhere, and its own figure in units stays; a width that is seldom
            // measured has rather changed by itself.
            let change = (point.median / before).powf((point.activity / busiest).min(1.0));
            point.recent.iter_mut().for_each(|u| *u /= change);
            point.median /= change;
            self.level *= change;
        }
    }

    fn estimate(&self, width: usize) -> Option<f64> {
        self.units(width, true).map(|u| u * self.level)
    }

    /// The cost of a width in units: its own median, leaning on its neighbours while it is little known, or theirs alone.
    fn units(&self, width: usize, own: bool) -> Option<f64> {
        let own = self.points.get(&width).filter(|_| own);
        let point = |(w, p): (&usize, &Point)| (*w as f64, p.median);
        let below = self.points.range(..width).next_back().map(point);
        let above = self.points.range(width + 1..).next().map(point);
        let w = width as f64;
        let others = match (below, above) {
            (Some(low), Some(high)) => Some(between(low, high, w)),
            (Some(low), None) => Some(low.1 + self.slope(low) * (w - low.0)),
            // One row costs no more than two, and half of them at least half.
            (None, Some(high)) => Some((high.1 - self.slope(high) * (high.0 - w)).clamp(high.1 * w / high.0, high.1)),
            (None, None) => None,
        };
        match (own, others) {
            (Some(point), Some(others)) => Some((point.median * point.weight + others) / (point.weight + 1.0)),
            (Some(point), None) => Some(point.median),
            (None, others) => others,
        }
    }

    /// Cost of a further row beyond the widths measured, of which `end` is the first or the last.
    fn slope(&self, end: (f64, f64)) -> f64 {
        let point = |(w, p): (&usize, &Point)| (*w as f64, p.median);
        match (self.points.iter().next().map(point), self.points.iter().next_back().map(point)) {
            (Some(first), Some(last)) if last.0 > first.0 => ((last.1 - first.1) / (last.0 - first.0)).max(0.0),
            _ => end.1 * SLOPE / (1.0 + SLOPE * (end.0 - 1.0)),
        }
    }

    /// Seconds of the nearest narrower width measured.
    fn below(&self, width: usize) -> Option<f64> {
        self.points.range(..width).next_back().map(|(_, p)| p.median * self.level)
    }

    /// Measurements since the last of a width.
    fn age(&self, width: usize) -> u64 {
        self.points.get(&width).map_or(self.count, |p| self.count - p.last)
    }
}

/// The line through two points.
fn between(low: (f64, f64), high: (f64, f64), at: f64) -> f64 {
    if high.0 <= low.0 { low.1 } else { low.1 + (high.1 - low.1) * (at - low.0) / (high.0 - low.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<f64>, expected: f64, tolerance: f64) {
        let found = found.expect("measured");
        assert!((found / expected - 1.0).abs() <= tolerance, "{found}, expected {expected}");
    }

    fn filled(points: &[(usize, f64)]) -> Costs {
        let mut costs = Costs::new();
        (0..20).for_each(|_| points.iter().for_each(|(rows, seconds)| costs.step(*rows, *seconds)));
        costs
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        let mut costs = Costs::new();
        assert_eq!((costs.step_cost(1), costs.draft_cost(1, 1), costs.hoped(3)), (None, None, None));
        assert_eq!((costs.draft_cost(0, 3), costs.draft_cost(3, 0)), (Some(0.0), Some(0.0)));
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            costs.step(1, seconds);
            costs.draft(1, 1, seconds);
        }
        costs.step(0, 1.0);
        costs.draft(0, 1, 1.0);
        costs.draft(1, 0, 1.0);
        assert_eq!((costs.step_cost(1), costs.draft_cost(1, 1)), (None, None));
    }

    #[test]
    fn bumps_stay_and_gaps_are_bridged_monotonely() {
        let curve = [(1, 1.0), (2, 1.2), (3, 2.12), (4, 2.0), (8, 3.71), (16, 7.02)];
        let costs = filled(&curve);
        curve.iter().for_each(|(rows, seconds)| near(costs.step_cost(*rows), *seconds, 0.03));
        assert!(costs.step_cost(4) < costs.step_cost(3), "the bump at 3");
        for rows in (4..16).chain(16..40) {
            assert!(costs.step_cost(rows + 1) >= costs.step_cost(rows), "{rows}");
        }
        near(costs.step_cost(6), 2.855, 0.03);
        near(costs.step_cost(24), 10.2, 0.1);
        // Below the narrowest: no more than it, and at least in proportion.
        let wide = filled(&[(8, 4.0), (16, 6.0)]);
        near(wide.step_cost(1), 2.25, 0.05);
        let steep = filled(&[(8, 4.0), (16, 12.0)]);
        near(steep.step_cost(1), 0.5, 0.01);
        // One point alone.
        near(filled(&[(1, 2.0)]).step_cost(5), 4.0, 1e-9);
    }

    #[test]
    fn hiccups_change_nothing() {
        let mut costs = filled(&[(1, 1.0), (4, 2.0)]);
        for _ in 0..3 {
            costs.step(1, 100.0);
            costs.step(4, 200.0);
        }
        near(costs.step_cost(1), 1.0, 0.05);
        near(costs.step_cost(4), 2.0, 0.05);
        // The first measurement of a width is believed within bounds only, and the second corrects it.
        costs.step(6, 300.0);
        assert!(costs.step_cost(6) < Some(9.0), "{:?}", costs.step_cost(6));
        costs.step(6, 3.0);
        near(costs.step_cost(6), 3.0, 0.1);
        // The very first of all: a cold start.
        let mut cold = Costs::new();
        cold.step(1, 100.0);
        cold.step(1, 1.0);
        near(cold.step_cost(1), 1.0, 1e-9);
    }

    #[test]
    fn widths_not_measured_follow_those_that_are() {
        let mut costs = filled(&[(1, 1.0), (4, 2.0), (8, 4.0)]);
        for i in 0..2000 {
            costs.step(4, 2.0 * (1.0 + f64::from(i) / 1000.0));
        }
        for (rows, seconds) in [(1, 3.0), (4, 6.0), (8, 12.0)] {
            near(costs.step_cost(rows), seconds, 0.05);
        }
        assert!(costs.is_known(8) && !costs.is_fresh(8) && costs.is_fresh(4));
        // The shape may change as well: two measurements outweigh what was long ago.
        costs.step(8, 9.0);
        costs.step(8, 9.0);
        near(costs.step_cost(8), 9.0, 0.15);
        near(costs.step_cost(4), 6.0, 0.05);
    }

    #[test]
    fn noise_does_not_carry_others_away() {
        let mut costs = filled(&[(1, 1.0), (4, 2.0), (8, 4.0)]);
        for i in 0..20_000_u32 {
            let noise = 0.9 + f64::from(i.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 * 0.2;
            costs.step(4, 2.0 * noise);
        }
        near(costs.step_cost(1), 1.0, 0.08);
        near(costs.step_cost(8), 4.0, 0.08);
    }

    #[test]
    fn drafts_by_depth_and_sequences() {
        let mut costs = Costs::new();
        for _ in 0..9 {
            costs.draft(1, 3, 0.3);
            costs.draft(1, 7, 0.7);
            costs.draft(4, 3, 0.6);
        }
        near(costs.draft_cost(1, 5), 0.5, 0.02);
        near(costs.draft_cost(1, 1), 0.1, 0.02);
        near(costs.draft_cost(2, 3), 0.4, 0.02);
        near(costs.draft_cost(9, 3), 0.6, 0.02);
    }
}
