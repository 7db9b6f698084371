//! Walking a model from one prefilled state: by single steps for reference, in blocks to compare.

use std::time::Instant;

use mlxcel_compute::{Batch, Wanted};
use mlxcel_model::drafters::HiddenRows;
use mlxcel_model::tap::Tap;
use mlxcel_model::{Logits, Model, ModelError, Snapshot};

use super::draw::{Draw, KINDS, Sequence};
use super::is_key;
use super::report::{Difference, Outcome, What};
use crate::digest::digest;

/// Rows of each sequence in a step of the prefill.
const CHUNK: usize = 128;

/// The sequences of a draw in a model's memory; a sequence's number is its slot.
pub(super) struct Walk<'a> {
    pub(super) model: &'a mut dyn Model,
    pub(super) lines: Vec<Line<'a>>,
    vocab: usize,
    hidden: HiddenRows, // what blocks leave for a drafter
    pace: Pace,
}

/// What forward passes took so far, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    prefill: f64,
    prefilled: usize, // rows
    steps: f64,
    stepped: usize,
}

/// One sequence.
pub(super) struct Line<'a> {
    sequence: &'a Sequence,
    pages: Vec<u32>, // the page table of every group
    prefilled: Option<Snapshot>,
    logits: Vec<f32>, // [steps, vocab], by single steps
    states: Vec<u64>, // [steps], digests of the state after each step; empty without recurrent layers
}

/// Rows of one sequence in a forward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Whose.
    pub sequence: usize,
    /// Index of the first row's step.
    pub at: usize,
    /// Rows.
    pub len: usize,
    /// How many of them are right; the others are wrong drafts, to be taken back.
    pub right: usize,
    /// Whether only the last row's logits are wanted, as of a prompt.
    pub last: bool,
}

impl Block {
    /// A step of plain decoding.
    pub(super) const fn single(sequence: usize, at: usize) -> Self {
        Block { sequence, at, len: 1, right: 1, last: false }
    }

    /// The step of the first row whose logits are compared.
    fn seen(&self) -> usize {
        if self.last { self.at + self.len - 1 } else { self.at }
    }

    /// Rows whose logits are returned.
    fn wanted(&self) -> usize {
        if self.last { 1 } else { self.len }
    }
}

/// The sequences of a plan.
pub(super) fn sequences(plan: &[Vec<Block>]) -> Vec<usize> {
    plan.first().into_iter().flatten().map(|block| block.sequence).collect()
}

impl<'a> Walk<'a> {
    /// Plans where the sequences of a draw lie.
    pub(super) fn new(model: &'a mut dyn Model, draw: &'a Draw, hidden: HiddenRows) -> Self {
        let page_len = model.page_len();
        let pages = |s: &Sequence| (s.prefix.len() + s.right.len()).div_ceil(page_len);
        let counts: Vec<usize> = draw.sequences.iter().map(pages).collect();
        let total: usize = counts.iter().sum();
        // Interleaved and backwards: nothing may depend on pages lying in order.
        let mut tables: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
        let mut free = (0..total as u32).rev();
        for page in 0..counts.iter().copied().max().unwrap_or(0) {
            for (table, count) in tables.iter_mut().zip(&counts) {
                table.extend((page < *count).then(|| free.next()).flatten());
            }
        }
        let line =
            |(sequence, pages)| Line { sequence, pages, prefilled: None, logits: Vec::new(), states: Vec::new() };
        let lines: Vec<Line<'a>> = draw.sequences.iter().zip(tables).map(line).collect();
        let vocab = model.info().vocab_size;
        Walk { model, lines, vocab, hidden, pace: Pace::default() }
    }

    /// Replaces the model's memory by one that holds the prefixes and nothing else. `tick` is called now and then.
    pub(super) fn fill(&mut self, tick: &mut dyn FnMut()) -> Result<(), ModelError> {
        let pages = self.lines.iter().map(|line| line.pages.len()).sum();
        self.model.reserve(&vec![pages; self.model.kv_layout().len()], self.lines.len())?;
        let longest = self.lines.iter().map(|line| line.sequence.prefix.len()).max().unwrap_or(0);
        for start in (0..longest).step_by(CHUNK) {
            let mut batch = Batch::new();
            for (s, line) in self.lines.iter().enumerate() {
                let prefix = &line.sequence.prefix;
                if let Some(rows) = prefix.get(start..prefix.len().min(start + CHUNK)).filter(|rows| !rows.is_empty()) {
                    self.push(&mut batch, s, start, rows, Wanted::None);
                }
            }
            let started = Instant::now();
            self.model.forward(&batch)?;
            self.pace.prefill += started.elapsed().as_secs_f64();
            self.pace.prefilled += batch.rows();
            tick();
        }
        for s in 0..self.lines.len() {
            self.lines[s].prefilled = self.model.save_state(s);
        }
        Ok(())
    }

    fn push(&self, batch: &mut Batch, sequence: usize, start: usize, tokens: &[u32], wanted: Wanted) {
        let tables = vec![self.lines[sequence].pages.as_slice(); self.model.kv_layout().len()];
        batch.push(sequence, start, tokens, &tables, wanted);
    }

    /// The reference: single steps, each sequence alone, as plain decoding has them.
    pub(super) fn record(&mut self, tick: &mut dyn FnMut()) -> Result<(), ModelError> {
        for s in 0..self.lines.len() {
            let steps = self.lines[s].sequence.right.len();
            self.record_some(s, steps, tick)?;
        }
        Ok(())
    }

    /// The reference of one sequence up to a step, from where it was left.
    pub(super) fn record_some(&mut self, s: usize, steps: usize, tick: &mut dyn FnMut()) -> Result<(), ModelError> {
        self.model.keep_hidden(HiddenRows::None);
        let from = self.lines[s].logits.len() / self.vocab;
        if from == 0 {
            self.restart(&[s]);
        }
        for at in from..steps {
            let started = Instant::now();
            let logits = self.play(&[Block::single(s, at)], None)?;
            self.pace.steps += started.elapsed().as_secs_f64();
            self.pace.stepped += 1;
            self.lines[s].logits.extend(logits);
            let state = self.state(s);
            self.lines[s].states.extend(state);
            tick();
        }
        Ok(())
    }

    /// Seconds that the rest of the reference and some outcomes will probably take: of each forward pass what a single step
    /// takes, and for each row what a row of the prefill took.
    pub(super) fn expected(&self, outcomes: &[Outcome], draw: usize, thorough: bool) -> f64 {
        let step = self.pace.steps / self.pace.stepped.max(1) as f64;
        let row = self.pace.prefill / self.pace.prefilled.max(1) as f64;
        let singles: usize = self.lines.iter().map(|line| line.sequence.right.len()).sum();
        let plans = outcomes.iter().flat_map(|outcome| self.plans(outcome, draw, thorough));
        let pass = |blocks: Vec<Block>| step + row * blocks.iter().map(|block| block.len).sum::<usize>() as f64;
        plans.flatten().map(pass).sum::<f64>() + step * singles as f64
    }

    /// Compares an outcome's blocks with the reference.
    pub(super) fn compare(&mut self, outcome: &mut Outcome, draw: usize, thorough: bool) -> Result<(), ModelError> {
        for plan in self.plans(outcome, draw, thorough) {
            self.model.keep_hidden(self.hidden);
            let mut first = None;
            self.restart(&sequences(&plan));
            for (b, blocks) in plan.iter().enumerate() {
                let logits = self.play(blocks, None)?;
                let mut rows = logits.as_slice();
                for block in blocks {
                    let (own, rest) = rows.split_at(block.wanted() * self.vocab);
                    rows = rest;
                    let right = &own[..block.wanted().min(block.right) * self.vocab];
                    let found = self.compare_rows(outcome, *block, right).or(self.settle(outcome, *block));
                    first = first.or(found.map(|(step, what)| (b, block.sequence, step, what)));
                }
            }
            let (Some((b, sequence, step, what)), None) = (first, &outcome.first) else { continue };
            let site = self.locate(&plan[..=b], sequence, step, what)?;
            let position = self.position(sequence, step);
            outcome.first = Some(Difference { draw, sequence, position, what, site });
        }
        Ok(())
    }

    /// The walks that an outcome takes from the prefilled state, each by forward passes.
    fn plans(&self, outcome: &Outcome, draw: usize, thorough: bool) -> Vec<Vec<Vec<Block>>> {
        let (width, batch) = (outcome.width, outcome.batch);
        if outcome.mixed {
            return vec![vec![self.mixed(width, batch)]];
        }
        if batch > 1 {
            // Another sequence comes first each time.
            let order: Vec<usize> = (0..batch).map(|i| (i + width + draw) % batch).collect();
            return vec![self.plan(&order, width, draw, false)];
        }
        if thorough || is_key(width) {
            // Alone, in the long context and in the short one.
            return (0..KINDS).map(|kind| self.plan(&[kind], width, draw, true)).collect();
        }
        // One of the two in a draw, and nothing to take back: that is seen with the other widths.
        let block = Block { len: width, right: width, ..Block::single(draw % KINDS, 0) };
        vec![vec![vec![block]]]
    }

    /// A block whose last drafts are wrong, and the block that follows what of it was right; or, of width 1, all steps. The first
    /// block is short unless it is to be `whole`, for the sake of time: rows do not know how many others will be taken back.
    fn plan(&self, order: &[usize], width: usize, draw: usize, whole: bool) -> Vec<Vec<Block>> {
        let steps = self.steps();
        let each = |block: Block| order.iter().map(|s| Block { sequence: *s, ..block }).collect();
        if width == 1 {
            return (0..steps).map(|at| each(Block::single(0, at))).collect();
        }
        let len = if whole { width } else { 2 };
        // 1 to len - 1 right rows, as far as the reference reaches.
        let right = 1 + (width / 2 + draw) % (len - 1).min(steps - width);
        let first = Block { len, right, ..Block::single(0, 0) };
        let second = Block { at: right, len: width, right: width, ..first };
        vec![each(first), each(second)]
    }

    /// One batch of all that a server's step may hold: the widest block, the rest of a prompt, a block of three with a wrong draft, a
    /// single step; as many of them as there are sequences.
    fn mixed(&self, widest: usize, batch: usize) -> Vec<Block> {
        let single = Block::single(0, 0);
        let prompt = self.steps();
        let three = widest.min(3);
        let blocks = [
            Block { len: widest, right: widest, ..single },
            Block { len: prompt, right: prompt, last: true, ..single },
            Block { len: three, right: three - 1, ..single },
            single,
        ];
        let mut blocks: Vec<Block> =
            (0..batch).zip(blocks).map(|(sequence, block)| Block { sequence, ..block }).collect();
        // The last row of the batch is one that is compared.
        blocks.reverse();
        blocks
    }

    /// Steps of the reference.
    fn steps(&self) -> usize {
        self.lines[0].sequence.right.len()
    }

    /// Rows `[rows, vocab]` of a block against the reference; the first step that differs.
    fn compare_rows(&self, outcome: &mut Outcome, block: Block, found: &[f32]) -> Option<(usize, What)> {
        let at = block.seen();
        let expected = &self.lines[block.sequence].logits[at * self.vocab..][..found.len()];
        outcome.rows += found.len() / self.vocab;
        outcome.bytes += 4 * found.len() as u64;
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        let first = expected.iter().zip(found).position(differs)?;
        let bytes =
            |(a, b): (&f32, &f32)| (a.to_bits() ^ b.to_bits()).to_ne_bytes().iter().filter(|byte| **byte != 0).count();
        outcome.differing += expected.iter().zip(found).map(bytes).sum::<usize>() as u64;
        let token = (first % self.vocab) as u32;
        Some((at + first / self.vocab, What::Logits { token, expected: expected[first], found: found[first] }))
    }

    /// Takes the wrong drafts of a block back and compares the recurrent state.
    fn settle(&mut self, outcome: &mut Outcome, block: Block) -> Option<(usize, What)> {
        let last = block.at + block.right - 1;
        if !self.take_back(block) {
            return Some((last, What::Refused));
        }
        let state = self.state(block.sequence)?;
        outcome.states += 1;
        (state != self.lines[block.sequence].states[last]).then_some((last, What::State))
    }

    /// Takes the wrong drafts of a block back.
    pub(super) fn take_back(&mut self, block: Block) -> bool {
        let len = self.position(block.sequence, block.at + block.right);
        self.model.take_back(block.sequence, len)
    }

    /// Takes sequences back to where their prefixes end.
    pub(super) fn restart(&mut self, sequences: &[usize]) {
        for s in sequences {
            if let Some(snapshot) = &self.lines[*s].prefilled {
                self.model.restore_state(*s, snapshot);
            }
        }
    }

    /// Runs blocks of different sequences in one batch: logits of the rows that they want, or, for a tap, of all.
    pub(super) fn play(&mut self, blocks: &[Block], tap: Option<&mut dyn Tap>) -> Result<Vec<f32>, ModelError> {
        let mut batch = Batch::new();
        for block in blocks {
            let Block { sequence, at, len, right, last } = *block;
            let Sequence { right: tokens, wrong, .. } = self.lines[sequence].sequence;
            let rows = [&tokens[at..at + right], &wrong[at + right..at + len]].concat();
            let wanted = if last && tap.is_none() { Wanted::Last } else { Wanted::All };
            self.push(&mut batch, sequence, self.position(sequence, at), &rows, wanted);
        }
        let logits = match tap {
            None => self.model.forward(&batch),
            Some(tap) => self.model.forward_tapped(&batch, tap),
        };
        logits.and_then(Logits::into_values)
    }

    /// Digest of a sequence's recurrent state; `None` without one.
    fn state(&self, s: usize) -> Option<u64> {
        let snapshot = self.model.is_recurrent().then(|| self.model.save_state(s))??;
        Some(digest(&self.model.read_state(&snapshot)))
    }

    /// Absolute position of a step.
    fn position(&self, s: usize, step: usize) -> usize {
        self.lines[s].sequence.prefix.len() + step
    }
}
