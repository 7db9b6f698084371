//! What forward passes cost: a prompt, single steps behind a context, and blocks that are verified whole.
//!
//! The passes are those of the engine ([`Model::forward`] over a batch of one sequence), without its sampling, so that they can be
//! put beside what other runtimes measure of theirs.

use mlxcel_compute::{Batch, Wanted};
use mlxcel_model::{Model, ModelError, Snapshot, TAKE_BACK};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Timed passes of a width in a row, after one that is not: other runtimes keep what a shape of batch needed for the next one.
const IN_A_ROW: usize = 3;

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
    /// Single steps of a run.
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
    /// Rows of a run: tokens of the prompt, single steps, rows of the block.
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
    /// Single steps, by context.
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

    fn check(&self, limit: usize) -> Result<(), CostError> {
        let fault =
            |option, expected: &str, found| Err(CostError::Plan { option, expected: expected.to_string(), found });
        if let Some(width) = self.widths.iter().find(|width| !(1..=TAKE_BACK).contains(*width)) {
            return fault("--widths", &format!("1 to {TAKE_BACK} rows"), *width);
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
    let pages = plan.positions().div_ceil(model.page_len());
    let groups = model.kv_layout().len();
    model.reserve(&vec![pages; groups], 1)?;
    let kv_bytes = (0..groups).map(|group| model.kv_page_bytes(group) * pages).sum();
    let tokens = tokens(plan.positions(), model.info().vocab_size, &model.info().media_tokens);
    let mut walk = Walk { model, table: (0..pages as u32).collect(), tokens, step_rows: plan.step_rows, clock };
    let mut cost = Cost { kv_bytes, ..Cost::default() };
    // Weights are read from disk and laid out at their first use.
    walk.pass(0, plan.positions().min(plan.step_rows), Wanted::Last)?;
    walk.pass(0, 1, Wanted::All)?;
    if plan.prompt > 0 {
        cost.prefill = Some(walk.prefill(plan)?);
    }
    for context in &plan.contexts {
        cost.decode.push(walk.decode(plan, *context)?);
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
    table: Vec<u32>,
    tokens: Vec<u32>,
    step_rows: usize,
    clock: &'a mut dyn FnMut() -> f64,
}

impl Walk<'_> {
    /// One forward pass; its seconds.
    fn pass(&mut self, start: usize, rows: usize, wanted: Wanted) -> Result<f64, CostError> {
        let tables = vec![self.table.as_slice(); self.model.kv_layout().len()];
        let began = (self.clock)();
        let mut batch = Batch::new();
        batch.push(0, start, &self.tokens[start..start + rows], &tables, wanted);
        self.model.forward(&batch)?;
        Ok((self.clock)() - began)
    }

    /// Positions `0..end` in steps, as a prompt; the last row's logits are wanted.
    fn prompt(&mut self, end: usize) -> Result<f64, CostError> {
        let mut seconds = 0.0;
        for start in (0..end).step_by(self.step_rows) {
            let rows = self.step_rows.min(end - start);
            let wanted = if start + rows == end { Wanted::Last } else { Wanted::None };
            seconds += self.pass(start, rows, wanted)?;
        }
        Ok(seconds)
    }

    fn restart(&mut self, state: Option<&Snapshot>) {
        if let Some(state) = state {
            self.model.restore_state(0, state);
        }
    }

    fn prefill(&mut self, plan: &Plan) -> Result<Timed, CostError> {
        let seconds = (0..plan.repeat).map(|_| self.prompt(plan.prompt)).collect::<Result<_, _>>()?;
        Ok(Timed { context: 0, rows: plan.prompt, seconds })
    }

    fn decode(&mut self, plan: &Plan, context: usize) -> Result<Timed, CostError> {
        self.prompt(context)?;
        let state = self.model.save_state(0);
        let mut seconds = Vec::with_capacity(plan.repeat);
        for _ in 0..plan.repeat {
            self.restart(state.as_ref());
            let mut run = 0.0;
            for step in 0..plan.tokens {
                run += self.pass(context + step, 1, Wanted::Last)?;
            }
            seconds.push(run);
        }
        Ok(Timed { context, rows: plan.tokens, seconds })
    }

    /// All widths take turns, so that a slow moment of the machine hits them alike.
    fn verify(&mut self, plan: &Plan) -> Result<Vec<Timed>, CostError> {
        let context = plan.block_context;
        self.prompt(context)?;
        let state = self.model.save_state(0);
        let empty = |width: &usize| Timed { context, rows: *width, seconds: Vec::new() };
        let mut out: Vec<Timed> = plan.widths.iter().map(empty).collect();
        for _ in 0..plan.repeat {
            for timed in &mut out {
                for turn in 0..=IN_A_ROW {
                    self.restart(state.as_ref());
                    let seconds = self.pass(context, timed.rows, Wanted::All)?;
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
