//! Walking a model from one prefilled state: by single steps for reference, in blocks to compare.

use mlxcel_compute::{Batch, Wanted};
use mlxcel_model::tap::Tap;
use mlxcel_model::{Model, ModelError, Snapshot};

use super::draw::{Draw, Sequence};
use super::report::{Difference, Outcome, What};

/// Rows of each sequence in a step of the prefill.
const CHUNK: usize = 128;

/// The sequences of a draw in a model's memory; a sequence's number is its slot.
pub(super) struct Walk<'a> {
    pub(super) model: &'a mut dyn Model,
    pub(super) lines: Vec<Line<'a>>,
    vocab: usize,
}

/// One sequence.
pub(super) struct Line<'a> {
    sequence: &'a Sequence,
    pages: Vec<u32>, // the page table of every group
    prefilled: Option<Snapshot>,
    logits: Vec<f32>, // [steps, vocab], by single steps
    states: Vec<u64>, // [steps], digests of the state after each step; empty without recurrent layers
}

/// Rows of a forward pass, of each sequence in the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Index of the first row's step.
    pub at: usize,
    /// Rows.
    pub len: usize,
    /// How many of them are right; the others are wrong drafts, to be taken back.
    pub right: usize,
}

impl<'a> Walk<'a> {
    /// Gives the model memory and fills it with the sequences' prefixes.
    pub(super) fn prefill(model: &'a mut dyn Model, draw: &'a Draw) -> Result<Self, ModelError> {
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
        let mut walk = Walk { model, lines, vocab };
        walk.fill()?;
        Ok(walk)
    }

    /// Replaces the model's memory by one that holds the prefixes and nothing else.
    pub(super) fn fill(&mut self) -> Result<(), ModelError> {
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
            self.model.forward(&batch)?;
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

    /// The reference: single steps, each sequence alone.
    pub(super) fn record(&mut self) -> Result<(), ModelError> {
        for s in 0..self.lines.len() {
            self.restart(&[s]);
            for at in 0..self.lines[s].sequence.right.len() {
                let logits = self.play(&[s], Block { at, len: 1, right: 1 }, None)?;
                self.lines[s].logits.extend(logits);
                let state = self.state(s);
                self.lines[s].states.extend(state);
            }
        }
        Ok(())
    }

    /// Compares an outcome's blocks with the reference.
    pub(super) fn compare(&mut self, outcome: &mut Outcome, draw: usize) -> Result<(), ModelError> {
        // Another sequence comes first each time.
        let order: Vec<usize> = (0..outcome.batch).map(|i| (i + outcome.width + draw) % outcome.batch).collect();
        let blocks = self.blocks(outcome, draw);
        let mut first = None;
        self.restart(&order);
        for (b, block) in blocks.iter().enumerate() {
            let logits = self.play(&order, *block, None)?;
            for (i, s) in order.iter().enumerate() {
                let rows = &logits[i * block.len * self.vocab..][..block.right * self.vocab];
                let found = self.compare_rows(outcome, *s, block.at, rows).or(self.settle(outcome, *s, *block));
                first = first.or(found.map(|(step, what)| (b, *s, step, what)));
            }
        }
        let (Some((b, sequence, step, what)), None) = (first, &outcome.first) else { return Ok(()) };
        let site = self.locate(&order, &blocks[..=b], sequence, step, what)?;
        let position = self.position(sequence, step);
        outcome.first = Some(Difference { draw, sequence, position, what, site });
        Ok(())
    }

    /// A block whose last drafts are wrong, and the block that follows what of it was right; or, of width 1, all steps. In batches
    /// the first block is short, for the sake of time: rows do not know how many others will be taken back.
    fn blocks(&self, outcome: &Outcome, draw: usize) -> Vec<Block> {
        let width = outcome.width;
        let steps = self.lines[0].sequence.right.len();
        if width == 1 {
            return (0..steps).map(|at| Block { at, len: 1, right: 1 }).collect();
        }
        let len = if outcome.batch == 1 { width } else { 2 };
        // 1 to len - 1 right rows, as far as the reference reaches.
        let right = 1 + (width / 2 + draw) % (len - 1).min(steps - width);
        vec![Block { at: 0, len, right }, Block { at: right, len: width, right: width }]
    }

    /// Rows `[rows, vocab]` from a step on against the reference; the first step that differs.
    fn compare_rows(&self, outcome: &mut Outcome, s: usize, at: usize, found: &[f32]) -> Option<(usize, What)> {
        let expected = &self.lines[s].logits[at * self.vocab..][..found.len()];
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
    fn settle(&mut self, outcome: &mut Outcome, s: usize, block: Block) -> Option<(usize, What)> {
        let last = block.at + block.right - 1;
        if !self.take_back(s, block) {
            return Some((last, What::Refused));
        }
        let state = self.state(s)?;
        outcome.states += 1;
        (state != self.lines[s].states[last]).then_some((last, What::State))
    }

    /// Takes the wrong drafts of a block back.
    pub(super) fn take_back(&mut self, s: usize, block: Block) -> bool {
        let len = self.position(s, block.at + block.right);
        self.model.take_back(s, len)
    }

    /// Takes sequences back to where their prefixes end.
    pub(super) fn restart(&mut self, sequences: &[usize]) {
        for s in sequences {
            if let Some(snapshot) = &self.lines[*s].prefilled {
                self.model.restore_state(*s, snapshot);
            }
        }
    }

    /// Runs a block of each sequence in one batch: logits of all rows.
    pub(super) fn play(
        &mut self,
        order: &[usize],
        block: Block,
        tap: Option<&mut dyn Tap>,
    ) -> Result<Vec<f32>, ModelError> {
        let Block { at, len, right } = block;
        let mut batch = Batch::new();
        for s in order {
            let Sequence { right: tokens, wrong, .. } = self.lines[*s].sequence;
            let rows = [&tokens[at..at + right], &wrong[at + right..at + len]].concat();
            self.push(&mut batch, *s, self.position(*s, at), &rows, Wanted::All);
        }
        match tap {
            None => self.model.forward(&batch),
            Some(tap) => self.model.forward_tapped(&batch, tap),
        }
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

/// 64 bits that differ wherever one value's bits differ, and wherever more do but for one time in 2^64: states can be too large
/// to keep one for each step.
pub(super) fn digest(values: &[f32]) -> u64 {
    values.iter().fold(values.len() as u64, |hash, value| {
        // Each step is one-to-one in the hash: exclusive or, an odd factor, a shift.
        let hash = (hash ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn digests_see_bits() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.37 - 50.0).collect();
        let whole = digest(&values);
        for i in 0..values.len() {
            let mut other = values.clone();
            other[i] = f32::from_bits(other[i].to_bits() ^ 1 << (i % 32));
            assert_ne!(digest(&other), whole, "value {i}");
        }
        let mut swapped = values.clone();
        swapped.swap(3, 4);
        assert_ne!(digest(&swapped), whole);
        assert_ne!(digest(&[0.0]), digest(&[-0.0]));
        assert_ne!(digest(&[0.0]), digest(&[0.0, 0.0]));
    }
}
