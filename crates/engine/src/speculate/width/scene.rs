//! What a width is worth beside the sequences that run.

use super::{Costs, Others};
use crate::speculate::{Acceptance, MAX_BLOCK};

/// The batch as one sequence sees it when it chooses its width.
pub(super) struct Scene<'a> {
    costs: &'a Costs,
    others: Others,
    /// Expected tokens by width, of this sequence and of any other.
    own: [f64; MAX_BLOCK],
    crowd: [f64; MAX_BLOCK],
    /// Tokens the others are expected to emit this step.
    beside: f64,
    /// Drafts of the others, in the mean.
    depth: usize,
    /// Whether proposals cost anything.
    counts_drafts: bool,
}

impl<'a> Scene<'a> {
    pub fn new(costs: &'a Costs, others: Others, own: &Acceptance, prior: &Acceptance, counts_drafts: bool) -> Self {
        let own = own.table(Some(prior));
        let crowd = if prior.is_known() { prior.table(None) } else { own };
        let (mut beside, mut depth) = (0.0, 0);
        if others.sequences > 0 {
            let drafts = others.rows.saturating_sub(others.sequences);
            let (whole, rest) = (drafts / others.sequences, drafts % others.sequences);
            let low = whole.min(MAX_BLOCK - 1);
            let high = (whole + 1).min(MAX_BLOCK - 1);
            beside = (others.sequences - rest) as f64 * crowd[low] + rest as f64 * crowd[high];
            depth = drafts.div_ceil(others.sequences);
        }
        Scene { costs, others, own, crowd, beside, depth, counts_drafts }
    }

    /// Sequences in the batch, this one included.
    pub fn sequences(&self) -> usize {
        self.others.sequences + 1
    }

    /// Seconds of a step in which this sequence has `k` rows.
    pub fn time(&self, k: usize) -> f64 {
        self.costs.step_cost(self.others.rows + k).unwrap_or(f64::INFINITY) + self.proposal(k)
    }

    fn proposal(&self, k: usize) -> f64 {
        let drafting = if self.depth > 0 { self.others.sequences } else { 0 };
        self.drafts(drafting + usize::from(k > 1), self.depth.max(k - 1))
    }

    fn drafts(&self, sequences: usize, depth: usize) -> f64 {
        // What was never tried is taken to cost nothing: then it is tried.
        if self.counts_drafts { self.costs.draft_cost(sequences, depth).unwrap_or(0.0) } else { 0.0 }
    }

    /// Tokens a second of the whole batch at width `k`, the others as they are. The batch's and not the sequence's own: a row that
    /// makes everybody's step longer has to pay for that.
    pub fn value(&self, k: usize) -> f64 {
        (self.beside + self.own[k - 1]) / self.time(k)
    }

    /// The same if each of the next few drafts were right.
    pub fn best_case(&self, k: usize) -> f64 {
        const RATE: f64 = 0.95;
        let expected = (1.0 - RATE.powi(k as i32)) / (1.0 - RATE);
        (self.beside + expected) / self.time(k)
    }

    /// The same if a step of this width cost no more than a narrower one that was measured.
    pub fn hoped(&self, k: usize) -> f64 {
        let step = self.costs.hoped(self.others.rows + k).unwrap_or(f64::INFINITY);
        (self.beside + self.own[k - 1]) / (step + self.proposal(k))
    }

    /// Tokens a second if every sequence took width `k`. Where a step costs the same for several numbers of rows, no sequence alone
    /// gains by the first step that all of them would gain by.
    pub fn together(&self, k: usize) -> f64 {
        let others = self.others.sequences;
        let time = self.costs.step_cost((others + 1) * k).unwrap_or(f64::INFINITY)
            + self.drafts(if k > 1 { others + 1 } else { 0 }, k - 1);
        (self.own[k - 1] + others as f64 * self.crowd[k - 1]) / time
    }

    /// The width up to `most` of the highest value, the narrowest among equals.
    pub fn best(&self, most: usize, value: impl Fn(&Self, usize) -> f64) -> (usize, f64) {
        let mut best = (1, value(self, 1));
        for k in 2..=most {
            let value = value(self, k);
            if value > best.1 {
                best = (k, value);
            }
        }
        best
    }

    /// What `accepted` drafts were worth in seconds, at the pace of width 1.
    pub fn worth(&self, accepted: usize) -> f64 {
        accepted as f64 * self.time(1) / (self.beside + 1.0)
    }

    /// Whether steps of width `k` should be measured (again).
    pub fn is_strange(&self, k: usize) -> bool {
        !self.costs.is_fresh(self.others.rows + k)
    }
}
