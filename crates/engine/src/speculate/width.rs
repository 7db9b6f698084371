//! How wide the next block of a sequence should be: measured, never assumed (DESIGN §5, width controller).
//!
//! The width K of the highest expected tokens a second follows from two measurements: how often drafts are right
//! ([`Acceptance`]) and what steps and proposals take ([`Costs`]). A sequence changes its width only for a gain worth the
//! change; it tries a neighbouring width now and then whose cost it does not know; and one that gave drafting up tries it again
//! after pauses that grow. What such trials may cost in all is a small share of the time.
//!
//! There is no clock and no chance in here: the same measurements lead to the same widths.

mod costs;
mod plan;
mod scene;
#[cfg(test)]
mod tests;

pub use costs::Costs;
pub use plan::{Seat, plan};

use super::{Acceptance, MAX_BLOCK};

/// Who chooses the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The controller, from `start` on while nothing is known, up to `most`.
    Adaptive {
        /// First width of an engine's first sequence.
        start: usize,
        /// Widest block.
        most: usize,
    },
    /// Always the same.
    Pinned(usize),
}

/// Sequences of a step whose widths are not being chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Their rows.
    pub rows: usize,
    /// How many they are.
    pub sequences: usize,
}

/// What a controller did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WidthCounters {
    /// Steps.
    pub steps: u64,
    /// Changes of the width that it settled at.
    pub changes: u64,
    /// Steps at other widths, to learn something.
    pub trials: u64,
}

/// What is weighed how. Tests take parts away to see what they are for.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    /// Factor by which another width must be better.
    margin: f64,
    /// Steps a width is kept at least.
    dwell: f64,
    /// What trials may cost at the beginning, in plain steps, and as a share of the time.
    trials: (f64, f64),
    /// Whether proposals are counted as time.
    counts_drafts: bool,
}

const TUNING: Tuning = Tuning { margin: 1.03, dwell: 6.0, trials: (3.0, 0.008), counts_drafts: true };

/// Factor by which another width is so much better that nothing is waited for.
const URGENT: f64 = 1.25;

/// Each recent change of width makes the next wait so many times as long again.
const DWELL_MORE: f64 = 2.0;

/// What a change still weighs a step later.
const DWELL_KEEP: f64 = 0.99;

/// Steps between trials of neighbouring widths.
const TRIAL_PAUSE: u64 = 6;

/// Plain steps before drafting is tried again, at first and at most: they double with each trial that fails.
const WAIT: (u64, u64) = (8, 40);

/// Rounds of such a trial, if the first draft of its first round is right.
const RETRY: u64 = 4;

/// Steps after which one is given up for which the drafter proposed nothing.
const RETRY_STEPS: u64 = 16;

/// Chooses the block width of one sequence, step by step.
#[derive(Clone, Debug)]
pub struct Width {
    policy: Policy,
    tuning: Tuning,
    own: Acceptance,
    /// The width it settled at; `None` before the first step.
    settled: Option<usize>,
    /// Steps since it did.
    since: u64,
    /// Changes of late.
    churn: f64,
    trial: Option<Trial>,
    planned: Option<Planned>,
    /// Seconds of this sequence's steps, its share of each, and those that trials cost.
    elapsed: f64,
    spent: f64,
    last_trial: u64,
    /// Plain steps before drafting is tried again, and those done.
    wait: u64,
    idle: u64,
    retries: u64,
    counters: WidthCounters,
}

/// Steps at another width than the settled one.
#[derive(Clone, Debug)]
enum Trial {
    /// One step, for its cost.
    Neighbour(usize),
    /// Rounds at a width, for their acceptance.
    Retry { k: usize, steps: u64, rounds: u64, seen: Box<Acceptance> },
}

/// What a planned step should take.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// This sequence's share.
    share: f64,
    /// What a trial of it costs beyond a step at the settled width if no draft is right, and what each that is saves.
    loss: f64,
    worth: f64,
}

impl Width {
    /// A controller for a new sequence.
    pub fn new(policy: Policy) -> Self {
        Self::tuned(policy, TUNING)
    }

    fn tuned(policy: Policy, tuning: Tuning) -> Self {
        Width {
            policy,
            tuning,
            own: Acceptance::new(),
            settled: None,
            since: 0,
            churn: 0.0,
            trial: None,
            planned: None,
            elapsed: 0.0,
            spent: 0.0,
            last_trial: 0,
            wait: WAIT.0,
            idle: 0,
            retries: 0,
            counters: WidthCounters::default(),
        }
    }

    /// The width of the next step: rows to verify, of which all but the first are drafts. 1 = a plain step. Never above `most`.
    /// [`plan`] for one sequence.
    pub fn next(&mut self, costs: &Costs, prior: &Acceptance, others: Others, most: usize) -> usize {
        plan(&mut [Seat { width: self, most }], costs, prior, others)[0]
    }

    /// The widths it may have.
    fn bounds(&self, most: usize) -> (usize, usize) {
        let most = most.clamp(1, MAX_BLOCK);
        match self.policy {
            Policy::Pinned(k) => (k.clamp(1, most), k.clamp(1, most)),
            Policy::Adaptive { most: widest, .. } => (1, most.min(widest.max(1))),
        }
    }

    /// Notes what became of the step that [`Width::next`] planned: `k` rows were verified, of which `proposed` were drafts and
    /// the first `accepted` of these right. A drafter may have proposed fewer than were asked for, or none.
    pub fn round(&mut self, k: usize, proposed: usize, accepted: usize) {
        let proposed = proposed.min(k.saturating_sub(1));
        let accepted = accepted.min(proposed);
        self.counters.steps += 1;
        self.since += 1;
        self.churn *= DWELL_KEEP;
        let planned = self.planned.take();
        if let Some(planned) = planned {
            self.elapsed += planned.share;
        }
        match self.trial.take() {
            None => {
                self.own.record(proposed, accepted);
                self.idle += u64::from(self.settled == Some(1));
            }
            Some(trial) => {
                if proposed > 0 {
                    let loss = planned.map_or(0.0, |p| p.loss - p.worth * accepted as f64);
                    self.spent += loss.max(0.0);
                    self.counters.trials += 1;
                }
                self.tried(trial, proposed, accepted);
            }
        }
    }

    /// The width that it settled at, trials aside; 1 while it does not draft.
    pub fn settled(&self) -> usize {
        match self.policy {
            Policy::Pinned(k) => k.clamp(1, MAX_BLOCK),
            Policy::Adaptive { start, .. } => self.settled.unwrap_or(start),
        }
    }

    /// True when its width is always the same.
    pub fn is_pinned(&self) -> bool {
        matches!(self.policy, Policy::Pinned(_))
    }

    /// Notes seconds that a proposal took beyond what proposals take: a drafter caught up on what it had missed. It counts among what
    /// trials cost.
    pub fn charge(&mut self, seconds: f64) {
        if self.settled == Some(1) {
            self.spent += seconds;
        }
    }

    /// How often this sequence's drafts were right.
    pub fn acceptance(&self) -> &Acceptance {
        &self.own
    }

    /// What it did.
    pub fn counters(&self) -> WidthCounters {
        self.counters
    }

    /// Whether it has kept its width long enough to change it.
    fn has_dwelt(&self) -> bool {
        self.since as f64 >= self.tuning.dwell * (1.0 + DWELL_MORE * self.churn)
    }

    /// Whether a neighbouring width may be tried.
    fn has_paused(&self) -> bool {
        self.counters.steps >= self.last_trial + TRIAL_PAUSE
    }

    /// Whether drafting may be tried again.
    fn has_waited(&self) -> bool {
        self.settled == Some(1) && self.idle >= self.wait
    }

    fn change(&mut self, k: usize) {
        if k == 1 {
            // Drafts that did not last were not worth finding.
            self.wait = if self.since < WAIT.0 * 2 { (self.wait * 2).min(WAIT.1) } else { WAIT.0 };
        }
        self.settled = Some(k);
        self.since = 0;
        self.idle = 0;
        self.churn += 1.0;
        self.counters.changes += 1;
    }

    /// The width of the next retry, if it is not the cheapest one's turn.
    fn retry_width(&self) -> Option<usize> {
        match self.policy {
            Policy::Adaptive { start, .. } if self.retries % 4 == 3 && start > 1 => Some(start),
            _ => None,
        }
    }

    fn retry(&mut self, k: usize) {
        self.trial = Some(Trial::Retry { k, steps: 0, rounds: 0, seen: Box::default() });
    }

    /// Whether trials may cost `loss` seconds more, where a plain step takes `plain` for each sequence.
    fn affords(&self, loss: f64, plain: f64) -> bool {
        let (first, share) = self.tuning.trials;
        self.spent + loss <= first * plain + share * self.elapsed
    }

    /// Notes what came of a step of a trial.
    fn tried(&mut self, trial: Trial, proposed: usize, accepted: usize) {
        match trial {
            Trial::Neighbour(_) => {
                self.own.record(proposed, accepted);
                self.last_trial = self.counters.steps;
            }
            // Nothing was proposed, so nothing was seen, and it cost a plain step.
            Trial::Retry { k, steps, rounds, seen } if proposed == 0 && steps < RETRY_STEPS => {
                self.trial = Some(Trial::Retry { k, steps: steps + 1, rounds, seen });
            }
            Trial::Retry { k, steps, rounds, mut seen } => {
                seen.record(proposed, accepted);
                let fails = rounds == 0 && accepted == 0;
                if !fails && rounds + 1 < RETRY && proposed > 0 {
                    self.trial = Some(Trial::Retry { k, steps: steps + 1, rounds: rounds + 1, seen });
                    return;
                }
                if fails {
                    self.own.record(proposed, accepted);
                } else {
                    self.own = *seen; // of the text as it is now
                }
                self.idle = 0;
                self.retries += 1;
                self.wait = (self.wait * 2).min(WAIT.1);
            }
        }
    }
}
