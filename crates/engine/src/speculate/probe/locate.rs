//! Finding the operation at which a block parts from single steps: both run again, every intermediate looked at row by row.

use mlxcel_model::ModelError;
use mlxcel_model::drafters::HiddenRows;
use mlxcel_model::tap::{Site, Tap};

use super::report::What;
use super::walk::{Block, Walk, sequences};
use crate::digest::digest;

/// Taking rows back from recurrent states.
const TAKE_BACK: Site = Site { layer: None, op: "take_back" };
/// Recurrent states after the last row, where no operation shows them.
const STATE: Site = Site { layer: None, op: "state" };

/// Digests of every row at every site: a whole forward pass of intermediates need not be kept.
struct Rows {
    rows: usize,
    seen: Vec<(Site, Vec<u64>)>,
}

impl Rows {
    fn new(rows: usize) -> Self {
        Rows { rows, seen: Vec::new() }
    }
}

impl Tap for Rows {
    fn see(&mut self, site: Site, values: &[f32]) {
        let width = values.len() / self.rows;
        let rows = (0..self.rows).map(|r| digest(&values[r * width..][..width])).collect();
        self.seen.push((site, rows));
    }
}

impl Walk<'_> {
    /// The first site, in the order of computation, at which a row of `sequence` up to `step` differs from single steps when
    /// a plan is followed, with every row's logits wanted so that none is left out on the way.
    pub(super) fn locate(
        &mut self,
        plan: &[Vec<Block>],
        sequence: usize,
        step: usize,
        what: What,
    ) -> Result<Option<Site>, ModelError> {
        if what == What::Refused {
            return Ok(Some(TAKE_BACK));
        }
        self.model.keep_hidden(HiddenRows::None);
        let site = self.site(plan, sequence, step, what)?;
        if site.is_some() {
            return Ok(site);
        }
        // A row may find what was in its place before: again, in memory as fresh as the reference had it.
        self.fill(&mut || ())?;
        self.site(plan, sequence, step, what)
    }

    fn site(
        &mut self,
        plan: &[Vec<Block>],
        sequence: usize,
        step: usize,
        what: What,
    ) -> Result<Option<Site>, ModelError> {
        let mut reference = Vec::with_capacity(step + 1); // [step]
        self.restart(&[sequence]);
        for at in 0..=step {
            let mut rows = Rows::new(1);
            self.play(&[Block::single(sequence, at)], Some(&mut rows))?;
            reference.push(rows);
        }
        let mut taken = false;
        self.restart(&sequences(plan));
        for blocks in plan {
            let total = blocks.iter().map(|block| block.len).sum();
            let mut rows = Rows::new(total);
            self.play(blocks, Some(&mut rows))?;
            let place = blocks.iter().position(|block| block.sequence == sequence).unwrap_or_default();
            let before: usize = blocks[..place].iter().map(|block| block.len).sum();
            let block = blocks[place];
            let compared = block.right.min(step + 1 - block.at);
            for (n, (site, digests)) in rows.seen.iter().enumerate() {
                let own = &digests[before..][..compared];
                let single =
                    |row: usize| reference[block.at + row].seen.get(n).map(|(site, digests)| (*site, digests[0]));
                if own.iter().enumerate().any(|(row, found)| single(row) != Some((*site, *found))) {
                    return Ok(Some(*site));
                }
            }
            taken = block.right < block.len;
            for block in blocks {
                self.take_back(*block);
            }
        }
        // Every row agrees, and yet a state does not: it was moved wrongly after its last row was right.
        Ok((what == What::State).then_some(if taken { TAKE_BACK } else { STATE }))
    }
}
