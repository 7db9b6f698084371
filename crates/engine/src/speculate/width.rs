//! How wide the next block of a sequence should be: measured, never assumed (DESIGN §5, width controller).
//!
//! The width K of the highest expected tokens a second follows from two measurements: how often drafts are right
//! ([`Acceptance`]) and what steps and proposals take ([`Costs`]). A sequence changes its width only for a gain worth the
//! change; it tries a neighbouring width now and then whose cost it does not know; and one that gave drafting up tries it again
//! after pauses that grow. What such trials may cost in all is a small share of the time.
//!
//! There is no clock and no chance in here: the same measurements lead to the same widths.

mod costs;
mod scene;
#[cfg(test)]
mod tests;

pub use costs::Costs;

use super::{Acceptance, MAX_BLOCK};
use scene::Scene;

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

/// The other sequences of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Their rows: as planned for this step where that is known, of the last step otherwise.
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

/// Each recent change of width makes the next wait so many steps longer.
const DWELL_MORE: f64 = 4.0;

/// What a change weighs a step later.
const DWELL_KEEP: f64 = 0.99;

/// Steps between trials of neighbouring widths.
const TRIAL_PAUSE: u64 = 6;

/// Plain steps before drafting is tried again, at first and at most: they double with each trial that fails.
const WAIT: (u64, u64) = (12, 96);

/// Rounds of such a trial, if the first draft of its first round is right.
const RETRY: u64 = 4;

/// Steps for which a width is kept that pays only if the others take it too.
const TOGETHER: u64 = 8;

/// Steps before the next such attempt, at first; they double each time.
const TOGETHER_WAIT: u64 = 32;

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
    /// Steps for which the settled width is kept whatever it is worth.
    hold: u64,
    /// The step from which on widths are tried that pay only if all take them, and the pause after that.
    together_from: u64,
    together_wait: u64,
    counters: WidthCounters,
}

/// Steps at another width than the settled one.
#[derive(Clone, Debug)]
enum Trial {
    /// One step, for its cost.
    Neighbour(usize),
    /// Rounds at a width, for their acceptance.
    Retry { k: usize, rounds: u64, seen: Acceptance },
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
            hold: 0,
            together_from: 0,
            together_wait: TOGETHER_WAIT,
            counters: WidthCounters::default(),
        }
    }

    /// The width of the next step: rows to verify, of which all but the first are drafts. 1 = a plain step. Never above `most`,
    /// which may be small near the end of an answer.
    ///
    /// `prior` is the acceptance of the engine's earlier rounds.
    pub fn next(&mut self, costs: &Costs, prior: &Acceptance, others: Others, most: usize) -> usize {
        self.planned = None;
        match self.policy {
            Policy::Pinned(k) => k.clamp(1, most.clamp(1, MAX_BLOCK)),
            Policy::Adaptive { start, most: widest } => {
                let most = most.min(widest).clamp(1, MAX_BLOCK);
                if most == 1 {
                    1
                } else {
                    self.adapt(costs, prior, others, start.clamp(1, widest.clamp(1, MAX_BLOCK)), most)
                }
            }
        }
    }

    /// Notes what became of the step that [`Width::next`] planned: `k` rows were verified, of which `proposed` were drafts and
    /// the first `accepted` of these right. A drafter may have proposed fewer than were asked for, or none.
    pub fn round(&mut self, k: usize, proposed: usize, accepted: usize) {
        debug_assert!(accepted <= proposed && proposed < k.max(1));
        self.counters.steps += 1;
        self.since += 1;
        self.churn *= DWELL_KEEP;
        self.hold = self.hold.saturating_sub(1);
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

    /// How often this sequence's drafts were right.
    pub fn acceptance(&self) -> &Acceptance {
        &self.own
    }

    /// What it did.
    pub fn counters(&self) -> WidthCounters {
        self.counters
    }

    fn adapt(&mut self, costs: &Costs, prior: &Acceptance, others: Others, start: usize, most: usize) -> usize {
        // What drafting is measured against comes first.
        let is_first = others.sequences == 0 && self.counters.steps < 2;
        if costs.step_cost(1).is_none() || is_first && !costs.is_known(1) {
            return 1;
        }
        let scene = Scene::new(costs, others, &self.own, prior, self.tuning.counts_drafts);
        let settled = match self.settled {
            Some(k) => k,
            None if prior.is_known() => scene.best(most, Scene::value).0,
            None => start,
        };
        self.settled = Some(settled);
        if self.trial.is_none() {
            self.settle(&scene, most);
            self.trial = self.experiment(&scene, start, most);
        }
        let settled = self.settled.unwrap_or(1).min(most);
        let k = match &self.trial {
            Some(Trial::Neighbour(k) | Trial::Retry { k, .. }) => (*k).min(most),
            None => settled,
        };
        let loss = match &self.trial {
            Some(Trial::Neighbour(_)) => scene.time(k) * (1.0 - scene.value(k) / scene.value(settled)),
            Some(Trial::Retry { .. }) => scene.time(k) - scene.time(1),
            None => 0.0,
        };
        let worth = if matches!(self.trial, Some(Trial::Retry { .. })) { scene.worth(1) } else { 0.0 };
        self.planned = Some(Planned { share: scene.time(k) / scene.sequences() as f64, loss, worth });
        k
    }

    /// Goes over to a width that is better by enough.
    fn settle(&mut self, scene: &Scene<'_>, most: usize) {
        if self.hold > 0 {
            return;
        }
        let now = self.settled.unwrap_or(1).min(most);
        let value = scene.value(now);
        let (best, highest) = scene.best(most, Scene::value);
        let dwelt = self.since as f64 >= self.tuning.dwell * (1.0 + DWELL_MORE * self.churn);
        if highest > value * self.tuning.margin && (dwelt || highest > value * URGENT && self.since > 0) {
            self.change(best);
        } else if scene.sequences() > 1 && dwelt && self.counters.steps >= self.together_from {
            let (best, rate) = scene.best(most, Scene::together);
            if best != now && rate > highest * self.tuning.margin {
                self.change(best);
                self.hold = TOGETHER;
                self.together_from = self.counters.steps + self.together_wait;
                self.together_wait *= 2;
            }
        }
    }

    fn change(&mut self, k: usize) {
        if k == 1 {
            // A width that did not last was not worth finding.
            self.wait = if self.since < WAIT.0 * 2 { (self.wait * 2).min(WAIT.1) } else { WAIT.0 };
        }
        self.settled = Some(k);
        self.since = 0;
        self.idle = 0;
        self.churn += 1.0;
        self.counters.changes += 1;
    }

    /// The next trial, if one is due, can show something, and may cost what it costs.
    fn experiment(&self, scene: &Scene<'_>, start: usize, most: usize) -> Option<Trial> {
        let settled = self.settled.unwrap_or(1).min(most);
        let value = scene.value(settled) * self.tuning.margin;
        let (trial, loss) = if settled == 1 {
            if self.idle < self.wait {
                return None;
            }
            let pays = |k: &usize| scene.best_case(*k) > value;
            // The cheapest width finds drafts that are right at once; one with more drafts finds those that are if the first is.
            let cheapest = (2..=most).filter(pays).min_by(|a, b| scene.time(*a).total_cmp(&scene.time(*b)))?;
            let k = if self.retries % 2 == 1 && start > 1 && start <= most && pays(&start) { start } else { cheapest };
            (Trial::Retry { k, rounds: 0, seen: Acceptance::new() }, scene.time(k) - scene.time(1))
        } else {
            if self.hold > 0 || self.counters.steps < self.last_trial + TRIAL_PAUSE {
                return None;
            }
            let near = (settled.saturating_sub(2).max(2)..=(settled + 2).min(most))
                .filter(|k| *k != settled && scene.is_strange(*k) && scene.hoped(*k) > value);
            let k = near.max_by(|a, b| scene.value(*a).total_cmp(&scene.value(*b)))?;
            (Trial::Neighbour(k), scene.time(k) * (1.0 - scene.value(k) / scene.value(settled)))
        };
        let (first, share) = self.tuning.trials;
        let allowed = first * scene.time(1) / scene.sequences() as f64 + share * self.elapsed;
        (self.spent + loss.max(0.0) <= allowed).then_some(trial)
    }

    /// Notes what came of a step of a trial.
    fn tried(&mut self, trial: Trial, proposed: usize, accepted: usize) {
        match trial {
            Trial::Neighbour(_) => {
                self.own.record(proposed, accepted);
                self.last_trial = self.counters.steps;
            }
            // Nothing was proposed, so nothing was seen, and it cost a plain step.
            trial @ Trial::Retry { .. } if proposed == 0 => self.trial = Some(trial),
            Trial::Retry { k, rounds, mut seen } => {
                seen.record(proposed, accepted);
                let fails = rounds == 0 && accepted == 0;
                if !fails && rounds + 1 < RETRY {
                    self.trial = Some(Trial::Retry { k, rounds: rounds + 1, seen });
                    return;
                }
                if !fails {
                    self.own = seen; // of the text as it is now
                }
                self.idle = 0;
                self.retries += 1;
                self.wait = (self.wait * 2).min(WAIT.1);
            }
        }
    }
}
