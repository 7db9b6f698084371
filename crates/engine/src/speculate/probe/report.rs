//! What a probe found, in numbers and in lines.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use mlxcel_model::drafters::HiddenRows;
use mlxcel_model::tap::Site;

use super::cover::Cover;

/// Everything a probe found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Directory of the checkpoint.
    pub model: PathBuf,
    /// Backend, precision, instruction set, threads.
    pub backend: String,
    /// Seed of tokens and lengths.
    pub seed: u64,
    /// Draws that were made.
    pub draws: usize,
    /// Hidden rows that blocks left for a drafter.
    pub hidden: HiddenRows,
    /// By batch, then by width; the mixed batch last.
    pub outcomes: Vec<Outcome>,
    /// Time it took.
    pub elapsed: Duration,
}

/// What became of one block width in one batch size, or of the mixed batch, over all draws.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Block width K; 1 for single steps together. Of the mixed batch the widest.
    pub width: usize,
    /// Sequences in the batch.
    pub batch: usize,
    /// Whether it is a batch of a prompt chunk, a single step and blocks of different widths.
    pub mixed: bool,
    /// Logit rows compared.
    pub rows: usize,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Of these, bytes that differ from single steps.
    pub differing: u64,
    /// Recurrent states compared.
    pub states: usize,
    /// The first difference.
    pub first: Option<Difference>,
}

/// Where a block first differed from single steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Which draw, from 0.
    pub draw: usize,
    /// Which sequence of it, from 0.
    pub sequence: usize,
    /// Absolute position of the row.
    pub position: usize,
    /// What differed.
    pub what: What,
    /// Layer and operation that first gave another result; `None` when a second run, with every row's logits wanted, gave none.
    pub site: Option<Site>,
}

/// What differs at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A row of logits.
    Logits {
        /// The first token whose logit differs.
        token: u32,
        /// Its logit by single steps.
        expected: f32,
        /// Its logit in the block.
        found: f32,
    },
    /// The recurrent state after the row, though the logits agree.
    State,
    /// [`Model::take_back`](mlxcel_model::Model::take_back) refused to go back to the row.
    Refused,
}

/// Whether blocks may be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every byte is that of single steps.
    Exact,
    /// Some byte is not.
    Inexact {
        /// The line of the first outcome that is not exact.
        line: String,
    },
}

impl Report {
    /// Exact when every outcome is.
    pub fn verdict(&self) -> Verdict {
        match self.outcomes.iter().find(|outcome| !outcome.is_exact()) {
            None => Verdict::Exact,
            Some(outcome) => Verdict::Inexact { line: outcome.to_string() },
        }
    }

    /// What was compared.
    pub fn cover(&self) -> Cover {
        let blocks = || self.outcomes.iter().filter(|outcome| !outcome.mixed && outcome.width > 1);
        let batches: Vec<usize> = blocks().map(|outcome| outcome.batch).collect();
        let smallest = batches.iter().min().copied();
        let widths = blocks().filter(|outcome| Some(outcome.batch) == smallest).map(|outcome| outcome.width).collect();
        Cover::new(widths, batches, self.draws, self.hidden)
    }
}

impl Outcome {
    pub(super) fn new(width: usize, batch: usize) -> Self {
        Outcome { width, batch, mixed: false, rows: 0, bytes: 0, differing: 0, states: 0, first: None }
    }

    /// Whether nothing differed.
    pub fn is_exact(&self) -> bool {
        self.first.is_none()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mixed {
            false => write!(f, "K={} B={}  ", self.width, self.batch)?,
            true => write!(f, "K=1..{} mixed with a prompt, B={}  ", self.width, self.batch)?,
        }
        let Some(first) = &self.first else {
            write!(f, "exact  {} rows, {:.1} MB compared", thousands(self.rows as u64), self.bytes as f64 / 1e6)?;
            return match self.states {
                0 => Ok(()),
                states => write!(f, ", {} states", thousands(states as u64)),
            };
        };
        let place = format!("position {} (sequence {})", first.position, first.sequence);
        let bytes = format!("{} of {} bytes differ", thousands(self.differing), thousands(self.bytes));
        match first.what {
            What::Logits { .. } => write!(f, "INEXACT  first at {place}, {bytes}")?,
            What::State => write!(f, "INEXACT  first in the recurrent state after {place}, {bytes}")?,
            What::Refused => write!(f, "INEXACT  could not be taken back to {place}, {bytes}")?,
        }
        match first.site {
            Some(site) => write!(f, "; first op: {site}"),
            None => write!(f, "; first op: none when run again with every row wanted"),
        }
    }
}

/// `1234567` as `1,234,567`.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| str::from_utf8(g).unwrap_or_default()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(what: What, site: Option<Site>) -> Outcome {
        let first = Some(Difference { draw: 0, sequence: 0, position: 37, what, site });
        Outcome { width: 4, batch: 1, mixed: false, rows: 8, bytes: 2_097_152, differing: 5123, states: 0, first }
    }

    #[test]
    fn lines_say_what_was_seen() {
        let exact = Outcome { first: None, differing: 0, rows: 32, ..outcome(What::State, None) };
        assert_eq!(exact.to_string(), "K=4 B=1  exact  32 rows, 2.1 MB compared");
        let recurrent = Outcome { states: 1200, ..exact };
        assert_eq!(recurrent.to_string(), "K=4 B=1  exact  32 rows, 2.1 MB compared, 1,200 states");
        let what = What::Logits { token: 3, expected: 1.0, found: 1.5 };
        let site = Some(Site { layer: Some(0), op: "q_proj" });
        assert_eq!(
            outcome(what, site).to_string(),
            "K=4 B=1  INEXACT  first at position 37 (sequence 0), 5,123 of 2,097,152 bytes differ; first op: layer 0, q_proj"
        );
        let site = Some(Site { layer: None, op: "take_back" });
        let line = outcome(What::State, site).to_string();
        assert!(
            line.contains("first in the recurrent state after position 37") && line.ends_with("first op: take_back"),
            "{line}"
        );
        let line = outcome(what, None).to_string();
        assert!(line.ends_with("every row wanted"), "{line}");
        let mixed = Outcome { mixed: true, width: 16, batch: 4, ..outcome(what, None) };
        assert!(mixed.to_string().starts_with("K=1..16 mixed with a prompt, B=4  INEXACT"), "{mixed}");
    }

    #[test]
    fn digits_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(n), text);
        }
    }
}
