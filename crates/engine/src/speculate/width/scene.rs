//! What widths are worth to a batch.

use super::{Costs, Others};
use crate::speculate::{Acceptance, MAX_BLOCK};

/// One sequence's part in a [`Scene`].
pub(super) struct Part {
    /// Expected tokens by width.
    pub tokens: [f64; MAX_BLOCK],
    /// Widths it may have.
    pub low: usize,
    pub high: usize,
}

/// A batch whose widths are to be chosen.
pub(super) struct Scene<'a> {
    costs: &'a Costs,
    others: Others,
    pub parts: Vec<Part>,
    /// Tokens the others are expected to emit this step.
    beside: f64,
    /// Drafts of the others, in the mean.
    depth: usize,
    /// Seconds of a step by its rows, from `fewest` on.
    steps: Vec<f64>,
    fewest: usize,
    /// Seconds of a proposal, by sequences and depth.
    drafts: Vec<[f64; MAX_BLOCK]>,
}

/// What is assumed of rows that were not measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmeasured {
    /// They cost what lies between those that were.
    Between,
    /// They may cost as little as fewer that were.
    Hopeful,
}

impl<'a> Scene<'a> {
    pub fn new(costs: &'a Costs, others: Others, prior: &Acceptance, parts: Vec<Part>, counts_drafts: bool) -> Self {
        let drafts = others.rows.saturating_sub(others.sequences);
        let crowd = prior.table(None);
        let (mut beside, mut depth) = (0.0, 0);
        if let (Some(whole), Some(rest)) = (drafts.checked_div(others.sequences), drafts.checked_rem(others.sequences))
        {
            let tokens = |drafts: usize| crowd[drafts.min(MAX_BLOCK - 1)];
            beside = (others.sequences - rest) as f64 * tokens(whole) + rest as f64 * tokens(whole + 1);
            depth = drafts.div_ceil(others.sequences).min(MAX_BLOCK - 1);
        }
        // Each is asked for many times.
        let fewest = others.rows + parts.iter().map(|p| p.low).sum::<usize>();
        let most = others.rows + parts.iter().map(|p| p.high).sum::<usize>();
        let steps = (fewest..=most).map(|rows| costs.step_cost(rows).unwrap_or(f64::INFINITY)).collect();
        let drafting = if depth > 0 { others.sequences } else { 0 };
        // What was never tried is taken to cost nothing: then it is tried.
        let draft =
            |n: usize, depth: usize| if counts_drafts { costs.draft_cost(n, depth).unwrap_or(0.0) } else { 0.0 };
        let drafts = (0..=parts.len()).map(|n| std::array::from_fn(|depth| draft(drafting + n, depth))).collect();
        Scene { costs, others, parts, beside, depth, steps, fewest, drafts }
    }

    /// Sequences in all.
    pub fn sequences(&self) -> usize {
        self.parts.len() + self.others.sequences
    }

    /// Rows of a step at these widths.
    pub fn rows(&self, ks: &[usize]) -> usize {
        self.others.rows + ks.iter().sum::<usize>()
    }

    /// Whether steps at these widths should be measured (again).
    pub fn is_strange(&self, ks: &[usize]) -> bool {
        !self.costs.is_fresh(self.rows(ks))
    }

    /// Expected tokens of a step.
    pub fn tokens(&self, ks: &[usize]) -> f64 {
        self.beside + self.parts.iter().zip(ks).map(|(p, k)| p.tokens[k - 1]).sum::<f64>()
    }

    /// Seconds of a step and its proposal.
    pub fn time(&self, ks: &[usize], unmeasured: Unmeasured) -> f64 {
        let rows = self.rows(ks);
        let hopes = unmeasured == Unmeasured::Hopeful && !self.costs.is_fresh(rows);
        let hoped = if hopes { self.costs.hoped(rows) } else { None };
        let drafting = ks.iter().filter(|k| **k > 1).count();
        let depth = ks.iter().fold(self.depth, |depth, k| depth.max(k - 1));
        hoped.unwrap_or(self.steps[rows - self.fewest]) + self.drafts[drafting][depth]
    }

    /// Tokens a second of the whole batch. The batch's and not each sequence's own: a row that makes everybody's step longer has
    /// to pay for that.
    pub fn value(&self, ks: &[usize]) -> f64 {
        self.tokens(ks) / self.time(ks, Unmeasured::Between)
    }

    /// The same if nearly all drafts of those that draft were right.
    pub fn best_case(&self, ks: &[usize]) -> f64 {
        const RATE: f64 = 0.95;
        let ideal = |k: &usize| (1.0 - RATE.powi(*k as i32)) / (1.0 - RATE);
        (self.beside + ks.iter().map(ideal).sum::<f64>()) / self.time(ks, Unmeasured::Between)
    }

    /// The widths of the highest value, of sequences that may change theirs from `now`.
    ///
    /// Sequence by sequence, from what is now and from the best width for all: where a step costs the same for several numbers of
    /// rows, no sequence alone gains by the first step that all of them would gain by.
    pub fn best(&self, now: &[usize], may: &[bool]) -> (Vec<usize>, f64) {
        let mut best = self.climb(now.to_vec(), may);
        if now.len() == 1 {
            return best;
        }
        let mut alike = (now.to_vec(), self.value(now));
        for k in 1..=MAX_BLOCK {
            let ks: Vec<usize> =
                now.iter().enumerate().map(|(i, n)| if may[i] { self.clip(i, k) } else { *n }).collect();
            let value = self.value(&ks);
            if value > alike.1 {
                alike = (ks, value);
            }
        }
        alike = self.climb(alike.0, may);
        if alike.1 > best.1 {
            best = alike;
        }
        best
    }

    /// A width as a sequence may have it.
    pub fn clip(&self, part: usize, k: usize) -> usize {
        k.clamp(self.parts[part].low, self.parts[part].high)
    }

    fn climb(&self, mut ks: Vec<usize>, may: &[bool]) -> (Vec<usize>, f64) {
        const SWEEPS: usize = 3;
        let mut value = self.value(&ks);
        for _ in 0..if ks.len() > 1 { SWEEPS } else { 1 } {
            let before = value;
            for i in (0..ks.len()).filter(|i| may[*i]) {
                let (mut best, part) = (ks[i], &self.parts[i]);
                for k in part.low..=part.high {
                    ks[i] = k;
                    let v = self.value(&ks);
                    if v > value {
                        (best, value) = (k, v);
                    }
                }
                ks[i] = best;
            }
            if value <= before {
                break;
            }
        }
        (ks, value)
    }
}
