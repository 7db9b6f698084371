//! The exactness probe: does this model, on this backend, give a verified block the bytes of single steps?
//!
//! Every kernel is made to keep the row law (DESIGN §1), and tests hold it to that on the machines they ran on. The probe looks
//! on the machine at hand, before the first answer: from one prefilled state it decodes token by token, one sequence at a
//! time, and then the same positions in blocks of every width to be used, alone and in batches, with wrong drafts taken back
//! in between. Whole logit rows and recurrent states are compared as bits. Where they differ, both walks are run again with
//! every intermediate looked at, and the first operation that differs is named.

mod cover;
mod draw;
mod locate;
mod report;
mod walk;

use std::time::{Duration, Instant};

use mlxcel_model::drafters::HiddenRows;
use mlxcel_model::{Model, TAKE_BACK};

pub use cover::Cover;
pub use report::{Difference, Outcome, Report, Verdict, What};

use crate::request::EngineError;
use draw::{Draw, Facts, KINDS};
use walk::Walk;

/// Positions that the reference goes beyond the widest block, so that a block can start after a few accepted rows.
const SPARE: usize = 3;
/// Most sequences at once.
const MOST_SEQUENCES: usize = 64;
/// Most sequences at once of [`Probe::startup`]: with the widest block that is more rows than any register tile or chunk of
/// the kernels has, so that more of them repeat what was seen.
const STARTUP_SEQUENCES: usize = 8;
/// [`Probe::startup`] compares less rather than take longer.
const STARTUP_PATIENCE: Duration = Duration::from_secs(20);
/// Single steps before the time of the others is estimated.
const FIRST_STEPS: usize = 3;

/// Widths that are compared in batches, and of a sequence alone in long and short contexts: one to each kind of register tile.
fn is_key(width: usize) -> bool {
    [2, 4, TAKE_BACK].contains(&width)
}

/// Widths that stand for the others where time is short.
fn is_one_of_few(width: usize) -> bool {
    is_key(width) || width == 8
}

/// What to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Block widths, 2 to [`TAKE_BACK`].
    pub widths: Vec<usize>,
    /// Sequences in a batch, 1 to 64. For more than one, single steps together (width 1) are compared too, and for the largest
    /// a batch of a prompt, a single step and blocks of different widths.
    pub batches: Vec<usize>,
    /// How often, with other tokens and lengths. In each draw some contexts are short, and some fill the smallest sliding window
    /// where that is at most 2,048 positions.
    pub draws: usize,
    /// Seed of tokens and lengths.
    pub seed: u64,
    /// Which hidden rows blocks leave for a drafter, as they will when it drafts.
    pub hidden: HiddenRows,
    /// Ids from here on are nobody's; `None` = the model's own vocabulary is all there is.
    pub vocab: Option<usize>,
    /// Every width in every batch, and each in a long and in a short context; else only 2, 4, 16 and the widest.
    pub thorough: bool,
    /// When the first steps show that it would take longer than this, only the widths 2, 4, 8, 16 and the widest are compared, and in
    /// batches the widest; [`Report::cover`] still reaches over what lies between.
    pub patience: Option<Duration>,
}

/// How far a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Comparisons made.
    pub done: usize,
    /// Comparisons in all, unless the budget ends earlier.
    pub total: usize,
}

impl Probe {
    /// What is worth the time before the first request: one draw, every width up to `max_width`, alone and with up to `max_batch`
    /// sequences (8 at most).
    pub fn startup(max_width: usize, max_batch: usize) -> Self {
        let mut batches = vec![1, max_batch.clamp(1, STARTUP_SEQUENCES)];
        batches.dedup();
        Probe {
            widths: (2..=max_width.clamp(2, TAKE_BACK)).collect(),
            batches,
            draws: 1,
            seed: 0,
            hidden: HiddenRows::None,
            vocab: None,
            thorough: false,
            patience: Some(STARTUP_PATIENCE),
        }
    }

    /// Compares. `progress` is called often. The model's memory is replaced: [`Model::reserve`] must be called again before other
    /// use, and [`Model::keep_hidden`] if a drafter reads it.
    ///
    /// # Errors
    /// [`EngineError::Option`] for widths, batches or draws out of range, or a model whose context is too short for them; what
    /// [`Model::reserve`] and [`Model::forward`] refuse. An inexact model is no error.
    pub fn run(&self, model: &mut dyn Model, progress: &mut dyn FnMut(Progress)) -> Result<Report, EngineError> {
        let report = self.look(model, progress);
        model.keep_hidden(HiddenRows::None);
        report
    }

    fn look(&self, model: &mut dyn Model, progress: &mut dyn FnMut(Progress)) -> Result<Report, EngineError> {
        let started = Instant::now();
        let (widths, batches) = self.check(model)?;
        let (widest, most) = (widths[widths.len() - 1], batches[batches.len() - 1]);
        let facts = Facts::of(model, widest + SPARE, self.vocab);
        let mut report = Report {
            model: model.info().path.clone(),
            backend: model.backend(),
            seed: self.seed,
            draws: 0,
            hidden: self.hidden,
            outcomes: self.outcomes(&widths, &batches),
            elapsed: Duration::ZERO,
        };
        let mut steps = Progress { done: 0, total: self.draws * report.outcomes.len() };
        for number in 0..self.draws {
            let draw = Draw::new(&facts, self.seed, number, most.max(KINDS));
            let mut walk = Walk::new(model, &draw, self.hidden);
            walk.fill(&mut || progress(steps))?;
            if let (0, Some(patience)) = (number, self.patience) {
                walk.record_some(0, FIRST_STEPS, &mut || progress(steps))?;
                let expected = walk.expected(&report.outcomes, number, self.thorough) * self.draws as f64;
                if started.elapsed().as_secs_f64() + expected > patience.as_secs_f64() {
                    let few = |o: &Outcome| {
                        o.width == widest || if o.batch == 1 { is_one_of_few(o.width) } else { o.width == 1 }
                    };
                    report.outcomes.retain(few);
                    steps.total = self.draws * report.outcomes.len();
                }
            }
            walk.record(&mut || progress(steps))?;
            for outcome in &mut report.outcomes {
                walk.compare(outcome, number, self.thorough)?;
                steps.done += 1;
                progress(steps);
            }
            report.draws += 1;
        }
        report.elapsed = started.elapsed();
        Ok(report)
    }

    /// What is to be compared, of sorted widths and batches.
    fn outcomes(&self, widths: &[usize], batches: &[usize]) -> Vec<Outcome> {
        let widest = widths[widths.len() - 1];
        let mut outcomes = Vec::new();
        for batch in batches {
            let alone = *batch == 1;
            outcomes.extend((!alone).then(|| Outcome::new(1, *batch)));
            let chosen = widths.iter().filter(|w| alone || self.thorough || is_key(**w) || **w == widest);
            outcomes.extend(chosen.map(|width| Outcome::new(*width, *batch)));
        }
        let most = batches[batches.len() - 1];
        outcomes.extend((most > 1).then(|| Outcome { mixed: true, ..Outcome::new(widest, most) }));
        outcomes
    }

    /// Widths and batches, ascending and once each.
    fn check(&self, model: &dyn Model) -> Result<(Vec<usize>, Vec<usize>), EngineError> {
        let refused = |option, expected: String, found: String| Err(EngineError::Option { option, expected, found });
        let sorted = |list: &[usize]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list.dedup();
            list
        };
        let (widths, batches) = (sorted(&self.widths), sorted(&self.batches));
        if widths.is_empty() || widths.iter().any(|w| !(2..=TAKE_BACK).contains(w)) {
            return refused("widths", format!("one or more of 2 to {TAKE_BACK}"), format!("{:?}", self.widths));
        }
        if batches.is_empty() || batches.iter().any(|b| !(1..=MOST_SEQUENCES).contains(b)) {
            return refused("batches", format!("one or more of 1 to {MOST_SEQUENCES}"), format!("{:?}", self.batches));
        }
        if self.draws == 0 {
            return refused("draws", "at least 1".into(), "0".into());
        }
        let (context, widest) = (model.info().context_length, widths[widths.len() - 1]);
        if context <= widest + SPARE {
            let expected = format!("blocks of at most {} in a context of {context}", context.saturating_sub(SPARE + 1));
            return refused("widths", expected, widest.to_string());
        }
        Ok((widths, batches))
    }
}
