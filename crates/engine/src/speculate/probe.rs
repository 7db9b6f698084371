//! The exactness probe: does this model, on this backend, give a verified block the bytes of single steps?
//!
//! Every kernel is made to keep the row law (DESIGN §1), and tests hold it to that on the machines they ran on. The probe looks
//! on the machine at hand, before the first answer: from one prefilled state it decodes token by token, one sequence at a
//! time, and then the same positions in blocks of every width to be used, alone and in batches, with wrong drafts taken back
//! in between. Whole logit rows and recurrent states are compared as bits. Where they differ, both walks are run again with
//! every intermediate looked at, and the first operation that differs is named.

mod draw;
mod locate;
mod report;
mod walk;

use std::time::{Duration, Instant};

use mlxcel_model::{Model, TAKE_BACK};

pub use report::{Difference, Outcome, Report, Verdict, What};

use crate::request::EngineError;
use draw::{Draw, Facts};
use walk::Walk;

/// Positions that the reference goes beyond the widest block, so that a block can start after a few accepted rows.
const SPARE: usize = 3;
/// Most sequences at once.
const MOST_SEQUENCES: usize = 64;
/// Most sequences at once of [`Probe::startup`]: with the widest block that is more rows than any register tile or chunk of
/// the kernels has, so that more of them repeat what was seen.
const STARTUP_SEQUENCES: usize = 8;
/// Time for [`Probe::startup`].
const STARTUP_BUDGET: Duration = Duration::from_secs(2);

/// What to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Block widths, 2 to [`TAKE_BACK`].
    pub widths: Vec<usize>,
    /// Sequences in a batch, 1 to 64. For more than one, single steps together (width 1) are compared too.
    pub batches: Vec<usize>,
    /// How often, with other tokens and lengths: by turns short contexts and, where there is a sliding window of at most 2,048
    /// positions, one that fills it during the walk.
    pub draws: usize,
    /// Seed of tokens and lengths.
    pub seed: u64,
    /// No further draw is started that would probably end later than this; the first is always made.
    pub budget: Option<Duration>,
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
    /// What is worth the time before the first request: every width up to `max_width`, alone and with up to `max_batch` sequences
    /// (8 at most), one short draw and one past the sliding window if about two seconds allow it.
    pub fn startup(max_width: usize, max_batch: usize) -> Self {
        let mut batches = vec![1, max_batch.clamp(1, STARTUP_SEQUENCES)];
        batches.dedup();
        Probe {
            widths: (2..=max_width.clamp(2, TAKE_BACK)).collect(),
            batches,
            draws: 2,
            seed: 0,
            budget: Some(STARTUP_BUDGET),
        }
    }

    /// Compares. The model's memory is replaced: [`Model::reserve`] must be called again before other use.
    ///
    /// # Errors
    /// [`EngineError::Option`] for widths, batches or draws out of range, or a model whose context is too short for them; what
    /// [`Model::reserve`] and [`Model::forward`] refuse. An inexact model is no error.
    pub fn run(&self, model: &mut dyn Model, progress: &mut dyn FnMut(Progress)) -> Result<Report, EngineError> {
        let started = Instant::now();
        let (widths, batches) = self.check(model)?;
        let (widest, sequences) = (widths[widths.len() - 1], batches[batches.len() - 1]);
        let facts = Facts::of(model, widest + SPARE);
        let mut outcomes: Vec<Outcome> = Vec::new();
        for batch in &batches {
            let alone = (*batch > 1).then_some(1);
            outcomes.extend(alone.iter().chain(&widths).map(|width| Outcome::new(*width, *batch)));
        }
        let mut report = Report {
            model: model.info().path.clone(),
            backend: model.backend(),
            seed: self.seed,
            draws: 0,
            outcomes,
            elapsed: Duration::ZERO,
        };
        let mut steps = Progress { done: 0, total: self.draws * report.outcomes.len() };
        let mut pace: Option<Pace> = None;
        for number in 0..self.draws {
            let draw = Draw::new(&facts, self.seed, number, sequences);
            let expected = pace.map_or(Duration::ZERO, |pace| pace.expected(&draw));
            if number > 0 && self.budget.is_some_and(|budget| started.elapsed() + expected > budget) {
                break;
            }
            let begun = Instant::now();
            let mut walk = Walk::prefill(model, &draw)?;
            let prefilled = begun.elapsed();
            walk.record()?;
            for outcome in &mut report.outcomes {
                walk.compare(outcome, number)?;
                steps.done += 1;
                progress(steps);
            }
            report.draws += 1;
            pace = Some(Pace { row: prefilled / draw.rows() as u32, rest: begun.elapsed() - prefilled });
        }
        report.elapsed = started.elapsed();
        Ok(report)
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

/// What the last draw took.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Prefilling one row.
    row: Duration,
    /// All that is the same for every draw.
    rest: Duration,
}

impl Pace {
    fn expected(&self, draw: &Draw) -> Duration {
        self.row.saturating_mul(draw.rows() as u32) + self.rest
    }
}
