//! Drafters: what proposes tokens ahead of the target (DESIGN §5). They change the speed of an answer and nothing else.

mod candidates;
mod classic;
pub mod gemma4_assistant;
mod ngram;
pub mod qwen3_5_mtp;

pub(crate) use candidates::best;
pub use candidates::top_candidates;
pub use classic::Classic;
pub use ngram::Ngram;

use std::ops::Range;
use std::path::PathBuf;

use crate::ModelError;

/// How a drafter finds its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftKind {
    /// Multi-token prediction: a head trained on the target's hidden states.
    Mtp,
    /// A small model with the target's vocabulary.
    Classic,
    /// Prompt lookup: what followed the last tokens where they stood before.
    Ngram,
}

impl DraftKind {
    /// The name in flags and reports: `mtp`, `classic` or `ngram`.
    pub const fn name(self) -> &'static str {
        match self {
            DraftKind::Mtp => "mtp",
            DraftKind::Classic => "classic",
            DraftKind::Ngram => "ngram",
        }
    }
}

/// What a drafter is.
#[derive(Clone, Debug)]
pub struct DrafterInfo {
    /// How it drafts.
    pub kind: DraftKind,
    /// Name for reports: the checkpoint's directory, or the kind where there is none.
    pub name: String,
    /// Directory of its checkpoint.
    pub path: Option<PathBuf>,
    /// Positions verified in a round (DESIGN §5: K) that it was made for.
    pub block_size: usize,
    /// Bytes of its own weights.
    pub weight_bytes: u64,
}

/// Which rows of the target's last forward pass a drafter reads the hidden states of (after the final norm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HiddenRows {
    /// None.
    #[default]
    None,
    /// The rows whose logits are wanted.
    Wanted,
    /// All of the batch.
    All,
}

/// Rows of the target's last forward pass that one sequence kept.
#[derive(Clone, Debug)]
pub struct Kept<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Position of the first of them.
    pub start: usize,
    /// Their rows: of the wanted ones or of the whole batch, as [`Drafter::hidden_rows`] says.
    pub rows: Range<usize>,
    /// The token that follows each of them.
    pub next: &'a [u32],
}

/// A sequence that wants drafts.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Its slot.
    pub slot: usize,
    /// All its tokens; the last one has not been through the target yet.
    pub tokens: &'a [u32],
    /// The target's page tables, one a KV group, which hold all positions but the last.
    pub tables: Vec<&'a [u32]>,
    /// Most drafts, at least 1.
    pub count: usize,
    /// Candidates to choose each from, at least 1.
    pub candidates: usize,
}

/// A token a drafter thinks likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub token: u32,
    /// The drafter's logit; 0 where it was asked for one candidate only and did not look.
    pub logit: f32,
}

/// Chooses drafts out of candidates: the engine does so with the request's own sampler and noise, because a draft is kept when
/// the target's row makes the same choice.
pub trait Choose {
    /// Draft `depth` (from 0) of ask number `ask`, out of at least one candidate, best first, lower ids before higher ones among
    /// equals. `None` ends that ask's proposal.
    fn choose(&mut self, ask: usize, depth: usize, candidates: &[Candidate]) -> Option<u32>;

    /// Whether the first candidate is taken wherever one is: a drafter may then go on with it before it was chosen. Where another one is
    /// taken all the same, what was drafted behind it is worse, never wrong.
    fn takes_the_first(&self) -> bool {
        false
    }
}

/// Offers what was drafted in one go, `found[depth][row]`, to those who asked for it: `asks[row]` is an ask's number and how many tokens it
/// may have. Tokens behind one that was refused are dropped.
fn offer(found: &[Vec<u32>], asks: &[(usize, usize)], choose: &mut dyn Choose, out: &mut [Vec<u32>]) {
    let mut going = vec![true; asks.len()];
    for (depth, tokens) in found.iter().enumerate() {
        for (row, (ask, count)) in asks.iter().enumerate() {
            if !going[row] || depth >= *count {
                continue;
            }
            match choose.choose(*ask, depth, &[Candidate { token: tokens[row], logit: 0.0 }]) {
                Some(token) => out[*ask].push(token),
                None => going[row] = false,
            }
        }
    }
}

/// Proposes tokens. Its cache, if it has one, is kept by the target's slots.
pub trait Drafter: Send {
    /// What it is.
    fn info(&self) -> &DrafterInfo;

    /// Which hidden states [`Drafter::observe`] reads; the target must be told ([`Model::keep_hidden`](crate::Model::keep_hidden)).
    fn hidden_rows(&self) -> HiddenRows;

    /// Makes room for `slots` sequences of up to `context` positions. Contents are lost.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn reserve(&mut self, slots: usize, context: usize) -> Result<(), ModelError>;

    /// Takes note of rows that the target computed in its last forward pass and kept. A sequence may be left out for a while: what
    /// it misses makes its later drafts worse, never wrong.
    ///
    /// # Errors
    /// As [`Drafter::propose`].
    fn observe(&mut self, kept: &[Kept<'_>]) -> Result<(), ModelError>;

    /// Takes a slot back to its first `len` positions, whatever it has seen: 0 for a new sequence. Exactly what never having seen
    /// the others would have left.
    fn take_back(&mut self, slot: usize, len: usize);

    /// Proposes up to `count` tokens for each sequence, in one batched forward a depth.
    ///
    /// # Errors
    /// [`ModelError::Device`] when the device failed; [`ModelError::NonFinite`] for damaged weights. What it knows of the asking slots is then lost, as after
    /// [`Drafter::take_back`] to 0.
    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError>;

    /// Bytes of its cache.
    fn cache_bytes(&self) -> usize;

    /// Positions of a slot that its cache holds, for tests: 0 after [`Drafter::take_back`] to 0.
    fn cached(&self, slot: usize) -> usize;
}
