//! The multi-token-prediction head of Qwen 3.5 (qwen3_5.md §4): one attending layer that reads the target's hidden states.
//!
//! A pair of a position's hidden state and the token after it predicts the token after that. The head keeps K and V of the pairs;
//! those of its own drafts are written over by the true ones of the next round, the "exact" policy of §4.3. A sequence whose
//! beginning was not seen has its pairs counted from where it was: only distances matter to the rotation.

mod head;
mod layout;
mod slot;

use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_checkpoint::qwen3_5::{Qwen3_5Config, Qwen3_5MtpConfig};
use mlxcel_compute::{Backend, Batch, Wanted, order};

use self::head::{Cache, Head};
use self::layout::Layout;
use self::slot::{Repair, Slot};
use super::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept, best, offer};
use crate::error::intact;
use crate::loaded::lock;
use crate::qwen3_5::Qwen3_5;
use crate::{Hidden, LoadedModel, Logits, ModelError, Shared};

/// Most pairs that wait until somebody asks for drafts, and rows of one pass that catches up.
const CHUNK: usize = 512;

/// The drafter.
struct Mtp<B: Backend> {
    backend: Arc<B>,
    network: Arc<Qwen3_5<B>>,
    target: Shared<B>,
    head: Head<B>,
    info: DrafterInfo,
    cache: Option<Cache<B>>,
    slots: Vec<Slot>,
    context: usize,
    pages: usize, // of one slot
}

/// Whether a target's checkpoint holds its head.
pub fn is_inside(target: &Checkpoint) -> bool {
    Layout::detect(target).is_inside()
}

/// Checks that a head (a checkpoint of its own, or the target's) is one for this target, before any weight is read.
///
/// # Errors
/// [`ModelError::Mismatch`] with the first field in which the head's copy of the target's configuration differs; configurations
/// that are no head's.
pub fn check(target: &Checkpoint, head: &Checkpoint) -> Result<(), ModelError> {
    let (own, model) = (Qwen3_5MtpConfig::from_checkpoint(head)?.text, Qwen3_5Config::from_checkpoint(target)?.text);
    let experts = |text: &mlxcel_checkpoint::Qwen3_5TextConfig| text.moe.map_or(0, |moe| moe.num_experts).to_string();
    let fields = [
        ("hidden_size", model.hidden_size.to_string(), own.hidden_size.to_string()),
        ("vocab_size", model.vocab_size.to_string(), own.vocab_size.to_string()),
        ("num_attention_heads", model.num_attention_heads.to_string(), own.num_attention_heads.to_string()),
        ("num_key_value_heads", model.num_key_value_heads.to_string(), own.num_key_value_heads.to_string()),
        ("head_dim", model.head_dim.to_string(), own.head_dim.to_string()),
        ("rope_theta", model.rope.rope_theta.to_string(), own.rope.rope_theta.to_string()),
        (
            "partial_rotary_factor",
            model.rope.partial_rotary_factor.to_string(),
            own.rope.partial_rotary_factor.to_string(),
        ),
        ("num_experts", experts(&model), experts(&own)),
    ];
    match fields.into_iter().find(|(_, expected, found)| expected != found) {
        None => Ok(()),
        Some((field, expected, found)) => Err(ModelError::Mismatch {
            target: target.dir().display().to_string(),
            drafter: head.dir().display().to_string(),
            field: field.into(),
            expected,
            found,
        }),
    }
}

/// Loads a head for a model, which it reads from then on. That the two fit was checked before ([`check`]).
///
/// # Errors
/// Missing, left-over and ill-shaped tensors, and configurations that are no head's.
pub fn load<B: Backend>(head: &Checkpoint, model: &LoadedModel<B, Qwen3_5<B>>) -> Result<Box<dyn Drafter>, ModelError> {
    let config = Qwen3_5MtpConfig::from_checkpoint(head)?;
    let (backend, network, target) = model.parts();
    let weights = Head::load(head, &config, &*backend)?;
    let path = head.dir().to_path_buf();
    let name = path.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
    let info = DrafterInfo {
        kind: DraftKind::Mtp,
        name: name.unwrap_or_else(|| path.display().to_string()),
        path: Some(path),
        block_size: config.block_size,
        weight_bytes: weights.bytes(),
    };
    let slots = Vec::new();
    Ok(Box::new(Mtp { backend, network, target, head: weights, info, cache: None, slots, context: 0, pages: 0 }))
}

/// Pairs of several sequences, for one pass.
#[derive(Default)]
struct Rows {
    batch: Batch,
    hidden: Vec<f32>,
}

impl<B: Backend> Mtp<B> {
    /// Adds pairs of a slot from a place of its cache on. `number` tells apart two spans of one slot.
    fn push(&self, rows: &mut Rows, (slot, number): (usize, usize), place: usize, tokens: &[u32], wanted: Wanted) {
        let first = (slot * self.pages) as u32;
        let table: Vec<u32> = (first..first + self.pages as u32).collect();
        rows.batch.push(number, place, tokens, &[&table], wanted);
    }

    /// Runs pairs, of the batch's tokens or of those in rows `at..` of `ids`; the logits of the wanted rows, whose own hidden states stay in
    /// the cache.
    fn run(
        &mut self,
        batch: &Batch,
        ids: Option<(&B::Buffer, usize)>,
        hidden: &B::Buffer,
        step: usize,
    ) -> Result<B::Buffer, ModelError> {
        let cache = self.cache.as_mut().ok_or(ModelError::NoPages)?;
        Ok(self.head.forward(&self.backend, &self.network, cache, batch, (ids, hidden), step))
    }

    /// [`Mtp::run`] on hidden states that came from the target.
    fn run_rows(&mut self, rows: &Rows) -> Result<B::Buffer, ModelError> {
        let mut hidden = self.backend.buffer(rows.batch.rows(), self.head.hidden());
        self.backend.write(&mut hidden, &rows.hidden);
        self.run(&rows.batch, None, &hidden, 0)
    }

    /// The hidden states of some rows of the last pass.
    fn own_states(&self, rows: &[u32]) -> Result<B::Buffer, ModelError> {
        let mut hidden = self.backend.buffer(rows.len(), self.head.hidden());
        let last = self.cache.as_ref().and_then(|cache| cache.hidden.rows.as_ref()).ok_or(ModelError::NoPages)?;
        self.backend.gather(last, rows, &mut hidden);
        Ok(hidden)
    }

    /// All drafts of a round, `[depth][active]`, each step going on with the best token of the one before without a word from here. `None`
    /// when a score was not finite.
    fn in_one_go(
        &mut self,
        asks: &[Ask<'_>],
        active: &[usize],
        mut logits: B::Buffer,
        depths: usize,
    ) -> Result<Option<Vec<Vec<u32>>>, ModelError> {
        let n = active.len();
        let all: Vec<u32> = (0..n as u32).collect();
        let mut ids = self.backend.buffer(depths * n, 1);
        for depth in 0..depths {
            self.backend.argmax_into(&logits, &mut ids, depth * n);
            if depth + 1 < depths {
                let mut rows = Rows::default();
                for ask in active.iter().map(|i| &asks[*i]) {
                    // The token is the one that was just found.
                    let place = self.slots[ask.slot].len() + depth;
                    self.push(&mut rows, (ask.slot, ask.slot), place, &[0], Wanted::Last);
                }
                let hidden = self.own_states(&all)?;
                logits = self.run(&rows.batch, Some((&ids, depth * n)), &hidden, depth + 1)?;
            }
        }
        let found: Option<Vec<u32>> = self.backend.read(&ids).into_iter().map(order::token).collect();
        intact(&*self.backend)?;
        Ok(found.map(|tokens| tokens.chunks_exact(n).map(<[u32]>::to_vec).collect()))
    }

    /// Runs what waits in a slot beyond what a proposal may bring along.
    fn catch_up(&mut self, slot: usize) -> Result<(), ModelError> {
        while self.slots[slot].waits() > CHUNK {
            let mut rows = Rows::default();
            let (place, tokens, hidden) = self.slots[slot].waiting(CHUNK, self.head.hidden());
            self.push(&mut rows, (slot, slot), place, tokens, Wanted::None);
            rows.hidden.extend_from_slice(hidden);
            let logits = self.run_rows(&rows)?;
            Logits::new(&self.backend, logits)?; // waits for it
            self.slots[slot].ran(CHUNK, self.head.hidden());
        }
        Ok(())
    }

    /// Most drafts for an ask: none unless all pairs are known, and no more than the cache has room for. Beside them, pairs to run
    /// again.
    fn room(&mut self, ask: &Ask<'_>) -> (usize, Vec<Repair>) {
        let Some(slot) = self.slots.get_mut(ask.slot) else { return (0, Vec::new()) };
        if slot.len() == 0 || slot.end() + 1 != ask.tokens.len() {
            return (0, Vec::new());
        }
        // A pair that waits is corrected as it waits, so this comes first.
        let ready = slot.wait_for_last();
        let Some(repairs) = slot.settle(ask.tokens) else { return (0, Vec::new()) };
        // The first draft needs no place: the second stores the pair with it.
        let room = (self.context + 1).saturating_sub(slot.len());
        (if ready { ask.count.min(room) } else { 0 }, repairs)
    }

    fn draft(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut out: Vec<Vec<u32>> = vec![Vec::new(); asks.len()];
        let (width, slots) = (self.head.hidden(), self.slots.len());
        let mut rows = Rows::default();
        let (mut room, mut active) = (vec![0; asks.len()], Vec::new());
        for (i, ask) in asks.iter().enumerate() {
            let repairs;
            (room[i], repairs) = self.room(ask);
            for repair in &repairs {
                let number = slots + rows.batch.spans().len();
                self.push(&mut rows, (ask.slot, number), repair.place, &[repair.token], Wanted::None);
                rows.hidden.extend_from_slice(&repair.hidden);
            }
            if room[i] > 0 {
                let slot = &self.slots[ask.slot];
                let (place, tokens, hidden) = slot.waiting(slot.waits(), width);
                self.push(&mut rows, (ask.slot, ask.slot), place, tokens, Wanted::Last);
                rows.hidden.extend_from_slice(hidden);
                active.push(i);
            }
        }
        if rows.batch.is_empty() {
            return Ok(out);
        }
        let first = self.run_rows(&rows)?;
        for i in &active {
            let slot = &mut self.slots[asks[*i].slot];
            slot.ran(slot.waits(), width);
        }
        let depths = active.first().map_or(0, |i| room[*i]);
        let alike = active.iter().all(|i| room[*i] == depths && asks[*i].candidates == 1);
        if alike && depths > 1 && choose.takes_the_first() {
            let Some(found) = self.in_one_go(asks, &active, first, depths)? else {
                return Err(self.non_finite(&asks[active[0]]));
            };
            let wants: Vec<(usize, usize)> = active.iter().map(|i| (*i, depths)).collect();
            offer(&found, &wants, choose, &mut out);
            return Ok(out);
        }
        let mut logits = Logits::new(&self.backend, first)?;
        for depth in 0.. {
            let mut going: Vec<(usize, u32)> = Vec::new(); // among the active, which, and its draft
            for (row, i) in active.iter().enumerate() {
                let candidates = self.candidates(&logits, row, &asks[*i])?;
                let Some(token) = choose.choose(*i, depth, &candidates) else { continue };
                out[*i].push(token);
                if out[*i].len() < room[*i] {
                    going.push((row, token));
                }
            }
            if going.is_empty() {
                return Ok(out);
            }
            let mut rows = Rows::default();
            for (row, token) in &going {
                let slot = asks[active[*row]].slot;
                self.push(&mut rows, (slot, slot), self.slots[slot].len() + depth, &[*token], Wanted::Last);
            }
            let chosen: Vec<u32> = going.iter().map(|(row, _)| *row as u32).collect();
            let hidden = self.own_states(&chosen)?;
            let next = self.run(&rows.batch, None, &hidden, depth + 1)?;
            logits = Logits::new(&self.backend, next)?;
            active = going.iter().map(|(row, _)| active[*row]).collect();
        }
        unreachable!("a proposal ends at its count")
    }

    fn candidates(&self, logits: &Logits, row: usize, ask: &Ask<'_>) -> Result<Vec<Candidate>, ModelError> {
        best(logits, row, ask.candidates)?.ok_or_else(|| self.non_finite(ask))
    }

    fn non_finite(&self, ask: &Ask<'_>) -> ModelError {
        ModelError::NonFinite {
            model: self.info.path.as_ref().map_or_else(|| self.info.name.clone(), |path| path.display().to_string()),
            position: ask.tokens.len() as u32,
            site: "the drafting head".into(),
        }
    }
}

impl<B: Backend> Drafter for Mtp<B> {
    fn info(&self) -> &DrafterInfo {
        &self.info
    }

    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::All
    }

    fn reserve(&mut self, slots: usize, context: usize) -> Result<(), ModelError> {
        self.cache = None; // give the old memory back first
        self.pages = context.div_ceil(self.backend.page_len());
        let kv = self.backend.kv_new(std::slice::from_ref(self.head.kv()), &[self.pages * slots])?;
        self.cache = Some(Cache { kv, hidden: Hidden { keep: HiddenRows::Wanted, rows: None } });
        self.context = context;
        self.slots = (0..slots).map(|_| Slot::default()).collect();
        Ok(())
    }

    fn observe(&mut self, kept: &[Kept<'_>]) -> Result<(), ModelError> {
        let values = match lock(&self.target).as_ref().and_then(|memory| memory.hidden.rows.as_ref()) {
            Some(rows) => self.backend.read(rows),
            None => return Ok(()), // nothing was left to read: a step that was missed
        };
        intact(&*self.backend)?;
        let (width, page_len) = (self.head.hidden(), self.backend.page_len());
        for one in kept {
            debug_assert_eq!(one.rows.len(), one.next.len(), "a token after each row");
            let slot = self.slots.get_mut(one.slot).ok_or(ModelError::NoPages)?;
            slot.observe(one.start, one.next, &values[one.rows.start * width..one.rows.end * width], page_len);
            if slot.len() > self.context {
                *slot = Slot::default(); // longer than was reserved: what comes next begins afresh
            }
            self.catch_up(one.slot)?;
        }
        Ok(())
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.take_back(len);
        }
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let drafts = self.draft(asks, choose);
        if drafts.is_err() {
            asks.iter().for_each(|ask| self.take_back(ask.slot, 0));
        }
        drafts
    }

    fn cache_bytes(&self) -> usize {
        self.backend.kv_page_bytes(self.head.kv()) * self.pages * self.slots.len()
    }

    fn cached(&self, slot: usize) -> usize {
        self.slots[slot].len()
    }
}
