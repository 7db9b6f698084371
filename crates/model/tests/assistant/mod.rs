//! Drives a target and its drafter without the engine.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::Path;
use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::{Backend, Batch, NO_PAGE, Wanted};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::drafters::{Ask, Candidate, Choose, Drafter, Kept};
use mlxcel_model::registry::{self, Pair};
use mlxcel_model::{Logits, Model, ModelError};

use crate::common::{demo, root};

/// Loads a pair.
pub fn pair_of<B: Backend>(target: &Path, head: &Path, backend: B) -> Result<Pair, ModelError> {
    registry::load_pair(&Checkpoint::open(target)?, &Checkpoint::open(head)?, Arc::new(backend))
}

/// Loads a tiny random pair.
pub fn golden_pair<B: Backend>(target: &str, head: &str, backend: B) -> Pair {
    let base = root().join("tests/golden/gemma4");
    pair_of(&base.join(target), &base.join(head), backend).unwrap_or_else(|e| panic!("{e}"))
}

/// What was proposed, and out of which candidates.
#[derive(Clone, Debug, Default)]
pub struct Proposal {
    pub tokens: Vec<u32>,
    pub candidates: Vec<Vec<Candidate>>,
}

impl Proposal {
    /// Whether two proposals agree in every bit.
    pub fn same(&self, other: &Proposal) -> bool {
        let bits = |p: &Proposal| -> Vec<Vec<(u32, u32)>> {
            p.candidates.iter().map(|step| step.iter().map(|c| (c.token, c.logit.to_bits())).collect()).collect()
        };
        self.tokens == other.tokens && bits(self) == bits(other)
    }
}

/// Takes the best candidate (or that of a rank), and writes all down.
#[derive(Default)]
pub struct Greedy {
    /// Which candidate to take.
    pub rank: usize,
    /// Ask and depth at which to end.
    pub end: Option<(usize, usize)>,
    /// Whether the drafter is told that its first candidates are taken.
    pub ahead: bool,
    /// Candidates by ask and depth.
    pub seen: Vec<Vec<Vec<Candidate>>>,
}

impl Choose for Greedy {
    fn choose(&mut self, ask: usize, depth: usize, candidates: &[Candidate]) -> Option<u32> {
        self.seen.resize(self.seen.len().max(ask + 1), Vec::new());
        assert_eq!(self.seen[ask].len(), depth, "ask {ask}: depths in order");
        self.seen[ask].push(candidates.to_vec());
        if self.end == Some((ask, depth)) { None } else { Some(candidates[self.rank].token) }
    }

    fn takes_the_first(&self) -> bool {
        self.ahead
    }
}

/// A pair with sequences over scrambled pages.
pub struct Duo {
    pub model: Box<dyn Model>,
    pub drafter: Box<dyn Drafter>,
    tables: Vec<Vec<Vec<u32>>>, // [sequence][group][page]
    kept: Vec<usize>,           // positions of each sequence
    last: Vec<Vec<u32>>,        // tokens last fed
}

impl Duo {
    /// Room for `sequences` of up to `positions` each.
    pub fn new(pair: Pair, sequences: usize, positions: usize) -> Self {
        let (mut model, mut drafter) = (pair.model, pair.drafter.expect("a drafter"));
        let groups = model.kv_layout().len();
        let pages = positions.div_ceil(model.page_len());
        model.keep_hidden(drafter.hidden_rows());
        model.reserve(&vec![pages * sequences; groups], sequences).expect("pages");
        drafter.reserve(sequences, positions).expect("memory");
        let table = |s: usize| (0..pages).map(|p| ((pages - 1 - p) * sequences + s) as u32).collect::<Vec<u32>>();
        let tables = (0..sequences).map(|s| vec![table(s); groups]).collect();
        Duo { model, drafter, tables, kept: vec![0; sequences], last: vec![Vec::new(); sequences] }
    }

    /// A tiny random pair with one sequence.
    pub fn golden(target: &str, head: &str, precision: Precision) -> Self {
        Self::new(golden_pair(target, head, CpuBackend::new(precision, 2)), 1, 64)
    }

    /// The trained pair with one sequence.
    pub fn demo(head: &str, precision: Precision, threads: usize) -> Self {
        Self::demo_on(head, CpuBackend::new(precision, threads), 1, 256)
    }

    /// The trained pair on any backend.
    pub fn demo_on<B: Backend>(head: &str, backend: B, sequences: usize, positions: usize) -> Self {
        let head = root().join(format!("models/gemma-4-tiny-it-assistant-{head}"));
        Self::new(pair_of(&demo(), &head, backend).unwrap_or_else(|e| panic!("{e}")), sequences, positions)
    }

    pub fn vocab(&self) -> usize {
        self.model.info().vocab_size
    }

    /// A batch of one span, all rows wanted.
    pub fn batch(&self, sequence: usize, start: usize, tokens: &[u32]) -> Batch {
        let mut batch = Batch::new();
        let tables: Vec<&[u32]> = self.tables[sequence].iter().map(Vec::as_slice).collect();
        batch.push(sequence, start, tokens, &tables, Wanted::All);
        batch
    }

    /// Runs tokens after what a sequence kept; logits of all rows.
    pub fn feed(&mut self, sequence: usize, tokens: &[u32]) -> Vec<f32> {
        let batch = self.batch(sequence, self.kept[sequence], tokens);
        self.last[sequence] = tokens.to_vec();
        self.model.forward(&batch).and_then(Logits::into_values).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Keeps the first `count` rows of what was fed just now.
    pub fn keep(&mut self, sequence: usize, count: usize) {
        let mut next = self.last[sequence].clone();
        next.push(0);
        let kept = Kept { slot: sequence, start: self.kept[sequence], rows: 0..count, next: &next[1..=count] };
        self.drafter.observe(&[kept]).unwrap_or_else(|e| panic!("{e}"));
        self.kept[sequence] += count;
    }

    /// Takes a sequence back.
    pub fn take_back(&mut self, sequence: usize, len: usize) {
        self.drafter.take_back(sequence, len);
        self.kept[sequence] = self.kept[sequence].min(len);
    }

    /// Marks a page of a sequence as given back, in all groups.
    pub fn drop_page(&mut self, sequence: usize, page: usize) {
        self.tables[sequence].iter_mut().for_each(|table| table[page] = NO_PAGE);
    }

    /// Greedy proposals for `(sequence, tokens, count, candidates)`.
    pub fn propose(&mut self, asks: &[(usize, &[u32], usize, usize)]) -> Vec<Proposal> {
        self.propose_with(asks, Greedy::default())
    }

    /// Proposals by a choice.
    pub fn propose_with(&mut self, asks: &[(usize, &[u32], usize, usize)], choice: Greedy) -> Vec<Proposal> {
        self.try_propose(asks, choice).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Proposals, or what went wrong.
    pub fn try_propose(
        &mut self,
        asks: &[(usize, &[u32], usize, usize)],
        mut choice: Greedy,
    ) -> Result<Vec<Proposal>, ModelError> {
        let tables = &self.tables;
        let asks: Vec<Ask<'_>> = asks
            .iter()
            .map(|(slot, tokens, count, candidates)| Ask {
                slot: *slot,
                tokens,
                tables: tables[*slot].iter().map(Vec::as_slice).collect(),
                count: *count,
                candidates: *candidates,
            })
            .collect();
        let tokens = self.drafter.propose(&asks, &mut choice)?;
        choice.seen.resize(asks.len(), Vec::new());
        Ok(tokens.into_iter().zip(choice.seen).map(|(tokens, candidates)| Proposal { tokens, candidates }).collect())
    }
}
