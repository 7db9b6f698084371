//! Drafters that propose what a test wants, from answers that are known beforehand.

use mlxcel_compute::{Batch, KvGroup};
use mlxcel_model::drafters::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept};
use mlxcel_model::tap::Tap;
use mlxcel_model::{Logits, Model, ModelError, ModelInfo, Snapshot};

use super::scripted::mix;

/// What is proposed where the truth is known.
#[derive(Clone, Debug)]
pub enum Plan {
    /// The truth.
    Oracle,
    /// Never the truth.
    Wrong,
    /// The truth before this depth, then something else.
    RightThenWrong(usize),
    /// The truth, but this token at this depth.
    Inject(usize, u32),
    /// The truth with some tokens replaced, more or fewer tokens than asked for, ids that are none.
    Wild(u64),
    /// The truth `n` times, then an error.
    FailAfter(usize),
    /// The same, with a panic.
    PanicAfter(usize),
}

/// Proposes from whole sequences (prompt and answer) that a plain engine gave.
pub struct Known {
    info: DrafterInfo,
    truths: Vec<Vec<u32>>,
    plan: Plan,
    vocab: u32,
    calls: usize,
    /// What each slot was last asked about: a new owner must have been announced.
    seen: Vec<Vec<u32>>,
}

impl Known {
    pub fn boxed(truths: Vec<Vec<u32>>, plan: Plan, vocab: usize) -> Box<dyn Drafter> {
        let info = DrafterInfo {
            kind: DraftKind::Classic,
            name: format!("{plan:?}"),
            path: None,
            block_size: 4,
            weight_bytes: 0,
        };
        Box::new(Known { info, truths, plan, vocab: vocab as u32, calls: 0, seen: Vec::new() })
    }

    fn truth(&self, tokens: &[u32], depth: usize) -> Option<u32> {
        let of = |t: &&Vec<u32>| t.len() > tokens.len() && t.starts_with(tokens);
        self.truths.iter().find(of)?.get(tokens.len() + depth).copied()
    }

    fn token(&self, tokens: &[u32], depth: usize) -> u32 {
        let truth = self.truth(tokens, depth).unwrap_or(7);
        let other = (truth + 1) % self.vocab;
        match self.plan {
            Plan::Oracle | Plan::FailAfter(_) | Plan::PanicAfter(_) => truth,
            Plan::Wrong => other,
            Plan::RightThenWrong(at) => {
                if depth < at {
                    truth
                } else {
                    other
                }
            }
            Plan::Inject(at, token) => {
                if depth == at {
                    token
                } else {
                    truth
                }
            }
            Plan::Wild(seed) => match mix(seed ^ ((tokens.len() * 31 + depth) as u64)) % 8 {
                0 => other,
                1 => (mix(depth as u64 + seed) % u64::from(self.vocab)) as u32,
                2 => u32::MAX - 1,
                _ => truth,
            },
        }
    }
}

impl Drafter for Known {
    fn info(&self) -> &DrafterInfo {
        &self.info
    }

    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::None
    }

    fn reserve(&mut self, slots: usize, _: usize) -> Result<(), ModelError> {
        self.seen = vec![Vec::new(); slots];
        Ok(())
    }

    fn observe(&mut self, _: &[Kept<'_>]) -> Result<(), ModelError> {
        Ok(())
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        self.seen[slot].truncate(len);
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        self.calls += 1;
        if let Plan::FailAfter(calls) = self.plan
            && self.calls > calls
        {
            return Err(ModelError::NoPages);
        }
        if let Plan::PanicAfter(calls) = self.plan {
            assert!(self.calls <= calls, "planted");
        }
        let mut out = Vec::new();
        for (i, ask) in asks.iter().enumerate() {
            assert!(ask.count > 0 && ask.candidates > 0 && !ask.tokens.is_empty());
            let seen = &mut self.seen[ask.slot];
            assert!(ask.tokens.starts_with(seen), "slot {} has a new owner that nobody announced", ask.slot);
            seen.clear();
            seen.extend_from_slice(ask.tokens);
            let extra = match self.plan {
                Plan::Wild(seed) => (mix(seed ^ ask.tokens.len() as u64) % 5) as usize,
                _ => 0,
            };
            let count = (ask.count + extra).saturating_sub(2 * usize::from(extra > 2));
            let mut tokens: Vec<u32> = (0..count).map(|depth| self.token(ask.tokens, depth)).collect();
            if !matches!(self.plan, Plan::Wild(_)) {
                // As a drafter does that lets the request choose.
                let chosen = tokens
                    .iter()
                    .enumerate()
                    .map_while(|(depth, t)| choose.choose(i, depth, &[Candidate { token: *t, logit: 0.0 }]));
                tokens = chosen.collect();
            }
            out.push(tokens);
        }
        Ok(out)
    }

    fn cache_bytes(&self) -> usize {
        0
    }

    fn cached(&self, slot: usize) -> usize {
        self.seen[slot].len()
    }
}

/// A model whose rows come out otherwise when several of a sequence are wanted: what a verify kernel of its own does.
pub struct WideBlocks(pub Box<dyn Model>);

impl Model for WideBlocks {
    fn info(&self) -> &ModelInfo {
        self.0.info()
    }
    fn backend(&self) -> String {
        self.0.backend()
    }
    fn kv_layout(&self) -> &[KvGroup] {
        self.0.kv_layout()
    }
    fn page_len(&self) -> usize {
        self.0.page_len()
    }
    fn kv_page_bytes(&self, group: usize) -> usize {
        self.0.kv_page_bytes(group)
    }
    fn is_recurrent(&self) -> bool {
        self.0.is_recurrent()
    }
    fn state_bytes(&self) -> (usize, usize) {
        self.0.state_bytes()
    }
    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError> {
        self.0.reserve(pages, slots)
    }
    fn keep_hidden(&mut self, rows: HiddenRows) {
        self.0.keep_hidden(rows);
    }
    fn take_back(&mut self, slot: usize, len: usize) -> bool {
        self.0.take_back(slot, len)
    }
    fn save_state(&self, slot: usize) -> Option<Snapshot> {
        self.0.save_state(slot)
    }
    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot) {
        self.0.restore_state(slot, snapshot);
    }
    fn read_state(&self, snapshot: &Snapshot) -> Vec<f32> {
        self.0.read_state(snapshot)
    }
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        let mut logits = self.0.forward(batch)?.into_values()?;
        let vocab = self.info().vocab_size;
        for (row, values) in batch.wanted().iter().zip(logits.chunks_exact_mut(vocab)) {
            let span = batch.spans()[batch.span_of(*row as usize)];
            let several =
                batch.wanted().iter().filter(|r| batch.span_of(**r as usize) == batch.span_of(*row as usize)).count();
            if several > 1 {
                values[(430 + span.start) % vocab] += 2.0;
            }
        }
        Ok(Logits::from_values(logits, vocab))
    }
    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Logits, ModelError> {
        self.0.forward_tapped(batch, tap)
    }
}
