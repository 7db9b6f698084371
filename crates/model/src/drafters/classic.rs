//! A small model with the target's vocabulary as a drafter.
//!
//! It keeps no notes of what the target did: each proposal begins by feeding whatever the sequence's tokens have beyond (or instead
//! of) what it was fed before, so that missed steps, rejected drafts and conversations that went another way are one case.

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::{Batch, Wanted};

use super::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept, best};
use crate::{Logits, Model, ModelError, Snapshot};

/// Tokens proposed a round when nobody says otherwise.
const BLOCK_SIZE: usize = 5;

/// Rows of one forward pass while it catches up.
const CHUNK: usize = 512;

/// The drafter.
pub struct Classic {
    model: Box<dyn Model>,
    info: DrafterInfo,
    slots: Vec<Slot>,
    context: usize,
    pages: usize, // of one slot, in each group
}

#[derive(Default)]
struct Slot {
    /// Tokens its cache holds.
    fed: Vec<u32>,
    /// A recurrent model's state before the drafts, at which single steps cannot be taken back together.
    before: Option<Snapshot>,
}

impl Classic {
    /// Checks that two checkpoints have the same vocabulary, before any weight is read.
    ///
    /// # Errors
    /// [`ModelError::Mismatch`].
    pub fn check(target: &Checkpoint, draft: &Checkpoint) -> Result<(), ModelError> {
        let size = |checkpoint: &Checkpoint| {
            let config = checkpoint.config();
            let text = config.get("text_config").and_then(|t| t.get("vocab_size"));
            text.or_else(|| config.get("vocab_size")).and_then(serde_json::Value::as_u64)
        };
        // Where both bring a tokenizer, tokens are compared one by one elsewhere; sizes of one vocabulary differ by padding.
        let named = |checkpoint: &Checkpoint| checkpoint.dir().join("tokenizer.json").is_file();
        if named(target) && named(draft) {
            return Ok(());
        }
        match (size(target), size(draft)) {
            (Some(expected), Some(found)) if expected != found => Err(ModelError::Mismatch {
                target: target.dir().display().to_string(),
                drafter: draft.dir().display().to_string(),
                field: "vocab_size".into(),
                expected: expected.to_string(),
                found: found.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// A drafter of a model.
    pub fn new(model: Box<dyn Model>) -> Self {
        let info = model.info();
        let info = DrafterInfo {
            kind: DraftKind::Classic,
            name: info.name.clone(),
            path: Some(info.path.clone()),
            block_size: BLOCK_SIZE,
            weight_bytes: info.weight_bytes(),
        };
        Classic { model, info, slots: Vec::new(), context: 0, pages: 0 }
    }

    /// Brings a slot to a common beginning with `tokens`, and returns its length.
    fn rewind(&mut self, slot: usize, tokens: &[u32]) -> usize {
        let same = self.slots[slot].fed.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token's row is always computed: its logits choose the first draft.
        self.back_to(slot, same.min(tokens.len() - 1))
    }

    /// Brings a slot back to `len` tokens, or to fewer where its state cannot be taken back that little; returns how many.
    fn back_to(&mut self, slot: usize, mut len: usize) -> usize {
        let own = &mut self.slots[slot];
        if len < own.fed.len() && !self.model.take_back(slot, len) {
            len = match &own.before {
                Some(before) if before.position() <= len => {
                    self.model.restore_state(slot, before);
                    before.position()
                }
                _ => 0,
            };
        }
        own.fed.truncate(len);
        if own.before.as_ref().is_some_and(|b| b.position() > len) {
            own.before = None;
        }
        len
    }

    /// Feeds each slot its next tokens and returns the logits of the last row of each.
    fn forward(&mut self, spans: &[(usize, &[u32])]) -> Result<Logits, ModelError> {
        let groups = self.model.kv_layout().len();
        let mut batch = Batch::new();
        for (slot, tokens) in spans {
            let first = (slot * self.pages) as u32;
            let table: Vec<u32> = (first..first + self.pages as u32).collect();
            batch.push(*slot, self.slots[*slot].fed.len(), tokens, &vec![table.as_slice(); groups], Wanted::Last);
        }
        let logits = self.model.forward(&batch);
        for (slot, tokens) in spans {
            match &logits {
                Ok(_) => self.slots[*slot].fed.extend_from_slice(tokens),
                Err(_) => self.slots[*slot] = Slot::default(),
            }
        }
        logits
    }

    /// Feeds all asks what they lack; the candidates after each one's last token.
    fn catch_up(&mut self, asks: &[Ask<'_>]) -> Result<Vec<Vec<Candidate>>, ModelError> {
        let mut found: Vec<Vec<Candidate>> = vec![Vec::new(); asks.len()];
        let mut at: Vec<usize> = asks.iter().map(|a| self.rewind(a.slot, a.tokens)).collect();
        loop {
            let open: Vec<usize> = (0..asks.len()).filter(|i| at[*i] < asks[*i].tokens.len()).collect();
            if open.is_empty() {
                return Ok(found);
            }
            let share = (CHUNK / open.len()).max(1);
            let spans: Vec<(usize, &[u32])> = open
                .iter()
                .map(|i| (asks[*i].slot, &asks[*i].tokens[at[*i]..asks[*i].tokens.len().min(at[*i] + share)]))
                .collect();
            let logits = self.forward(&spans)?;
            for (row, (i, span)) in open.iter().zip(&spans).enumerate() {
                at[*i] += span.1.len();
                if at[*i] == asks[*i].tokens.len() {
                    found[*i] = self.candidates(&logits, row, &asks[*i])?;
                }
            }
        }
    }

    fn candidates(&self, logits: &Logits, row: usize, ask: &Ask<'_>) -> Result<Vec<Candidate>, ModelError> {
        best(logits, row, ask.candidates)?.ok_or_else(|| ModelError::NonFinite {
            model: self.info.name.clone(),
            position: ask.tokens.len() as u32,
            site: "logits".into(),
        })
    }
}

impl Drafter for Classic {
    fn info(&self) -> &DrafterInfo {
        &self.info
    }

    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::None
    }

    fn reserve(&mut self, slots: usize, context: usize) -> Result<(), ModelError> {
        self.context = context.min(self.model.info().context_length);
        self.pages = self.context.div_ceil(self.model.page_len());
        self.model.reserve(&vec![self.pages * slots; self.model.kv_layout().len()], slots)?;
        self.slots = (0..slots).map(|_| Slot::default()).collect();
        Ok(())
    }

    fn observe(&mut self, _: &[Kept<'_>]) -> Result<(), ModelError> {
        Ok(())
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        if len < self.slots[slot].fed.len() {
            self.back_to(slot, len);
        }
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut out: Vec<Vec<u32>> = vec![Vec::new(); asks.len()];
        let vocab = self.model.info().vocab_size;
        // Its own context may be shorter than the target's, and its vocabulary less padded.
        let knows = |ask: &Ask<'_>| ask.tokens.iter().all(|t| (*t as usize) < vocab);
        let room = |ask: &Ask<'_>| match knows(ask) {
            true => self.context.saturating_sub(ask.tokens.len() - 1).min(ask.count),
            false => 0,
        };
        let room: Vec<usize> = asks.iter().map(room).collect();
        let mut active: Vec<usize> = (0..asks.len()).filter(|i| room[*i] > 0).collect();
        let fitting: Vec<Ask<'_>> = active.iter().map(|i| asks[*i].clone()).collect();
        let mut found = self.catch_up(&fitting)?;
        if self.model.is_recurrent() {
            for ask in &fitting {
                self.slots[ask.slot].before = self.model.save_state(ask.slot);
            }
        }
        for depth in 0.. {
            let mut going = Vec::new();
            for (i, candidates) in active.iter().zip(&found) {
                let Some(token) = choose.choose(*i, depth, candidates) else { continue };
                out[*i].push(token);
                if out[*i].len() < room[*i] && (token as usize) < vocab {
                    going.push(*i);
                }
            }
            if going.is_empty() {
                return Ok(out);
            }
            let last: Vec<[u32; 1]> = going.iter().map(|i| [out[*i][depth]]).collect();
            let spans: Vec<(usize, &[u32])> =
                going.iter().zip(&last).map(|(i, token)| (asks[*i].slot, token.as_slice())).collect();
            let logits = self.forward(&spans)?;
            let candidates = |(row, i): (usize, &usize)| self.candidates(&logits, row, &asks[*i]);
            found = going.iter().enumerate().map(candidates).collect::<Result<_, _>>()?;
            active = going;
        }
        unreachable!("a proposal ends at its count")
    }

    fn cache_bytes(&self) -> usize {
        let kv: usize = (0..self.model.kv_layout().len()).map(|g| self.model.kv_page_bytes(g) * self.pages).sum();
        let state = if self.model.is_recurrent() { self.model.state_bytes().0 } else { 0 };
        (kv + state) * self.slots.len()
    }

    fn cached(&self, slot: usize) -> usize {
        self.slots[slot].fed.len()
    }
}
