//! What forward passes cost: a prompt, single steps behind a context (of one sequence, or of several at once), and blocks that are
//! verified whole.
//!
//! The passes are those of the engine ([`Model::forward`]), without its sampling, so that they can be put beside what other runtimes
//! measure of theirs. A pass gives the index of the largest logit of each row it is asked for, which is a greedy choice for every
//! sequence of a batch; values stay where they are.

use std::ops::Range;

use mlxcel_compute::{Batch, Wanted};
use mlxcel_model::{Model, ModelError, Snapshot, TAKE_BACK};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Timed passes of a width in a row, after one that is not: other runtimes keep what a shape of batch needed for the next one.
const IN_A_ROW: usize = 3;

/// Most sequences of a step, as of a sweep.
pub const MOST_SEQUENCES: usize = 256;

/// Something that cannot be measured.
#[derive(Debug, Error)]
pub enum CostError {
    /// A number that the plan cannot have.
    #[error("{option}: {expected} expected, found {found}")]
    Plan {
        /// The flag.
        option: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: usize,
    },
    /// A forward pass that failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens of the prompt; 0 = no prompt is measured.
    pub prompt: usize,
    /// Positions before the single steps; none = no steps are measured.
    pub contexts: Vec<usize>,
    /// Sequences of the single steps, each with positions of its own before them.
    pub batches: Vec<usize>,
    /// Single steps of a run, of each sequence.
    pub tokens: usize,
    /// Rows of the blocks; none = no blocks are measured.
    pub widths: Vec<usize>,
    /// Positions before a block.
    pub block_context: usize,
    /// Runs of each measurement.
    pub repeat: usize,
    /// Most rows of a pass over a prompt.
    pub step_rows: usize,
}

/// Seconds of the runs, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Positions before the rows.
    pub context: usize,
    /// Sequences at once.
    pub batch: usize,
    /// Rows of a run: tokens of the prompt, single steps of all sequences, rows of the block.
    pub rows: usize,
    /// One a run.
    pub seconds: Vec<f64>,
}

impl Timed {
    /// The median.
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
        sorted.get(low).zip(sorted.get(high)).map_or(f64::NAN, |(a, b)| f64::midpoint(*a, *b))
    }

    /// Rows a second, by the median.
    pub fn rate(&self) -> f64 {
        self.rows as f64 / self.median()
    }
}

/// What the passes took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The prompt, with the logits of its last row.
    pub prefill: Option<Timed>,
    /// Single steps, by context and then by batch.
    pub decode: Vec<Timed>,
    /// Blocks with the logits of every row, by width.
    pub verify: Vec<Timed>,
    /// Bytes of KV pages that were reserved.
    pub kv_bytes: usize,
}

impl Plan {
    /// Positions of the longest run.
    pub fn positions(&self) -> usize {
        let steps = self.contexts.iter().map(|context| context + self.tokens);
        let blocks = self.widths.iter().map(|width| self.block_context + width);
        steps.chain(blocks).chain([self.prompt]).max().unwrap_or(0)
    }

    /// Sequences that have memory.
    fn sequences(&self) -> usize {
        if self.contexts.is_empty() { 1 } else { self.batches.iter().copied().max().unwrap_or(1) }
    }

    /// The pages of each sequence. The first serves every measurement; the others hold single steps and what is before them.
    fn tables(&self, page_len: usize) -> Vec<Vec<u32>> {
        let first = self.positions().div_ceil(page_len) as u32;
        let steps = self.contexts.iter().map(|context| context + self.tokens).max().unwrap_or(0);
        let other = steps.div_ceil(page_len) as u32;
        let others = (1..self.sequences() as u32).map(|s| first + (s - 1) * other..first + s * other);
        std::iter::once(0..first).chain(others).map(Iterator::collect).collect()
    }

    fn check(&self, limit: usize) -> Result<(), CostError> {
        let fault =
            |option, expected: &str, found| Err(CostError::Plan { option, expected: expected.to_string(), found });
        if let Some(width) = self.widths.iter().find(|width| !(1..=TAKE_BACK).contains(*width)) {
            return fault("--widths", &format!("1 to {TAKE_BACK} rows"), *width);
        }
        if let Some(batch) = self.batches.iter().find(|batch| !(1..=MOST_SEQUENCES).contains(*batch)) {
            return fault("--batches", &format!("1 to {MOST_SEQUENCES} sequences"), *batch);
        }
        if self.repeat == 0 {
            return fault("--repeat", "1 run or more", 0);
        }
        if self.tokens == 0 && !self.contexts.is_empty() {
            return fault("--tokens", "1 step or more", 0);
        }
        if self.step_rows == 0 {
            return fault("rows of a step", "1 or more", 0);
        }
        let positions = self.positions();
        if positions == 0 || positions > limit {
            let expected = format!("1 to {limit} positions in all (the model's context)");
            return fault("--prompt, --contexts, --tokens, --block-context", &expected, positions);
        }
        Ok(())
    }
}

/// Measures a plan; `clock` tells the seconds since any moment. Replaces the model's memory.
///
/// # Errors
/// A plan that the model's context does not hold, and whatever its forward pass refuses.
pub fn measure(model: &mut dyn Model, plan: &Plan, clock: &mut dyn FnMut() -> f64) -> Result<Cost, CostError> {
    plan.check(model.info().context_length)?;
    let tables = plan.tables(model.page_len());
    let pages = tables.iter().map(Vec::len).sum();
    let groups = model.kv_layout().len();
    model.reserve(&vec![pages; groups], tables.len())?;
    let kv_bytes = (0..groups).map(|group| model.kv_page_bytes(group) * pages).sum();
    // Each sequence has the tokens of the one before from the second on, so that no two are alike at a position.
    let tokens = tokens(plan.positions() + tables.len() - 1, model.info().vocab_size, &model.info().media_tokens);
    let mut walk = Walk { model, tables, tokens, step_rows: plan.step_rows, clock };
    let mut cost = Cost { kv_bytes, ..Cost::default() };
    // Weights are read from disk and laid out at their first use.
    walk.pass(0..1, 0, plan.positions().min(plan.step_rows), Wanted::Last)?;
    walk.pass(0..1, 0, 1, Wanted::All)?;
    if plan.prompt > 0 {
        cost.prefill = Some(walk.prefill(plan)?);
    }
    for context in &plan.contexts {
        cost.decode.extend(walk.decode(plan, *context)?);
    }
    if !plan.widths.is_empty() {
        cost.verify = walk.verify(plan)?;
    }
    Ok(cost)
}

/// Tokens of no meaning, none of which stands for an image.
fn tokens(count: usize, vocab: usize, media: &[u32]) -> Vec<u32> {
    let mut state = 1u32;
    let drawn = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(state) * vocab as u64) >> 32) as u32
    });
    drawn.filter(|token| !media.contains(token)).take(count).collect()
}

struct Walk<'a> {
    model: &'a mut dyn Model,
    tables: Vec<Vec<u32>>, // [sequence][page index], the same in every group
    tokens: Vec<u32>,
    step_rows: usize,
    clock: &'a mut dyn FnMut() -> f64,
}

impl Walk<'_> {
    /// One forward pass with as many rows of each sequence; its seconds.
    fn pass(&mut self, sequences: Range<usize>, start: usize, rows: usize, wanted: Wanted) -> Result<f64, CostError> {
        let groups = self.model.kv_layout().len();
        let began = (self.clock)();
        let mut batch = Batch::new();
        for sequence in sequences {
            let tables = vec![self.tables[sequence].as_slice(); groups];
            let tokens = &self.tokens[sequence + start..sequence + start + rows];
            batch.push(sequence, start, tokens, &tables, wanted);
        }
        self.model.forward(&batch)?;
        Ok((self.clock)() - began)
    }

    /// Positions `0..end` of some sequences in steps, as prompts; the last rows' logits are wanted.
    fn prompt(&mut self, sequences: Range<usize>, end: usize) -> Result<f64, CostError> {
        let mut seconds = 0.0;
        for start in (0..end).step_by(self.step_rows) {
            let rows = self.step_rows.min(end - start);
            let wanted = if start + rows == end { Wanted::Last } else { Wanted::None };
            seconds += self.pass(sequences.clone(), start, rows, wanted)?;
        }
        Ok(seconds)
    }

    /// Positions `0..end` of the first `count` sequences, as many in a pass as its rows allow; their states there.
    fn fill(&mut self, count: usize, end: usize) -> Result<Vec<Option<Snapshot>>, CostError> {
        let together = (self.step_rows / end.max(1)).max(1);
        for first in (0..count).step_by(together) {
            self.prompt(first..count.min(first + together), end)?;
        }
        Ok((0..count).map(|sequence| self.model.save_state(sequence)).collect())
    }

    fn restart(&mut self, states: &[Option<Snapshot>]) {
        for (sequence, state) in states.iter().enumerate() {
            if let Some(state) = state {
                self.model.restore_state(sequence, state);
            }
        }
    }

    fn prefill(&mut self, plan: &Plan) -> Result<Timed, CostError> {
        let seconds = (0..plan.repeat).map(|_| self.prompt(0..1, plan.prompt)).collect::<Result<_, _>>()?;
        Ok(Timed { context: 0, batch: 1, rows: plan.prompt, seconds })
    }

    /// All batches take turns, as the widths of blocks do.
    fn decode(&mut self, plan: &Plan, context: usize) -> Result<Vec<Timed>, CostError> {
        let states = self.fill(plan.sequences(), context)?;
        let empty = |batch: &usize| Timed { context, batch: *batch, rows: batch * plan.tokens, seconds: Vec::new() };
        let mut out: Vec<Timed> = plan.batches.iter().map(empty).collect();
        // A step of so many rows may need memory that none before it did.
        for batch in &plan.batches {
            self.restart(&states[..*batch]);
            self.pass(0..*batch, context, 1, Wanted::Last)?;
        }
        for _ in 0..plan.repeat {
            for timed in &mut out {
                self.restart(&states[..timed.batch]);
                let mut run = 0.0;
                for step in 0..plan.tokens {
                    run += self.pass(0..timed.batch, context + step, 1, Wanted::Last)?;
                }
                timed.seconds.push(run);
            }
        }
        Ok(out)
    }

    /// All widths take turns, so that a slow moment of the machine hits them alike.
    fn verify(&mut self, plan: &Plan) -> Result<Vec<Timed>, CostError> {
        let context = plan.block_context;
        let states = self.fill(1, context)?;
        let empty = |width: &usize| Timed { context, batch: 1, rows: *width, seconds: Vec::new() };
        let mut out: Vec<Timed> = plan.widths.iter().map(empty).collect();
        // A block of so many rows may need memory that none before it did.
        for width in &plan.widths {
            self.restart(&states);
            self.pass(0..1, context, *width, Wanted::All)?;
        }
        for _ in 0..plan.repeat {
            for timed in &mut out {
                for turn in 0..=IN_A_ROW {
                    self.restart(&states);
                    let seconds = self.pass(0..1, context, timed.rows, Wanted::All)?;
                    if turn > 0 {
                        timed.seconds.push(seconds);
                    }
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
