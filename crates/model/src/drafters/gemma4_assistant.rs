//! Gemma 4's drafter, the "assistant" (gemma4.md §5): four small layers that attend to the target's own K/V.
//!
//! It has no cache. A round begins with the pending token and the target's hidden state at the position before it; each next step
//! is fed the token just drafted and the drafter's own state. All steps of a round ask from the same position, the last one whose
//! K/V the target has, and see the same keys. Where each step goes on with its best token, a round is queued as a whole, and only its
//! tokens come back ([`Choose::takes_the_first`]).

mod head;
mod network;

use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_checkpoint::gemma4::{Gemma4AssistantConfig, Gemma4Config, LayerType};
use mlxcel_compute::{Backend, Batch, NO_PAGE, Wanted, order};

use self::network::Assistant;
use super::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept, offer};
use crate::error::intact;
use crate::gemma4::Gemma4;
use crate::loaded::lock;
use crate::tap::{FirstNonFinite, Tap};
use crate::{LoadedModel, Memory, ModelError, Network, Shared};

/// Checks that a drafter's configuration fits its target's, before any weight is read.
///
/// # Errors
/// [`ModelError::Mismatch`], and what is wrong with either configuration.
pub fn check(target: &Checkpoint, head: &Checkpoint) -> Result<(), ModelError> {
    let model = Gemma4Config::from_checkpoint(target)?.text;
    let config = Gemma4AssistantConfig::from_checkpoint(head)?;
    let own = &config.text;
    let mismatch = |field: &str, expected: String, found: String| {
        Err(ModelError::Mismatch {
            target: target.dir().display().to_string(),
            drafter: head.dir().display().to_string(),
            field: field.into(),
            expected,
            found,
        })
    };
    let same = |field: &str, expected: usize, found: usize| {
        if expected == found { Ok(()) } else { mismatch(field, expected.to_string(), found.to_string()) }
    };
    same("backbone_hidden_size", model.hidden_size, config.backbone_hidden_size)?;
    same("text_config.vocab_size", model.vocab_size, own.vocab_size)?;
    for (layer, kind) in own.layer_types.iter().enumerate() {
        let Some(source) = model.last_caching(*kind) else {
            let types =
                [LayerType::Sliding, LayerType::Full].into_iter().filter(|kind| model.last_caching(*kind).is_some());
            let expected = format!("layers of type {}", types.map(LayerType::name).collect::<Vec<_>>().join(", "));
            return mismatch("text_config.layer_types", expected, kind.name().into());
        };
        let field = if own.is_sliding(layer) { "text_config.head_dim" } else { "text_config.global_head_dim" };
        same(field, model.head_dim(source), own.head_dim(layer))?;
        let kv_heads = model.kv_heads(source);
        if !own.num_attention_heads.is_multiple_of(kv_heads) {
            let expected = format!("a multiple of {kv_heads} (the K/V heads of layer {source})");
            return mismatch("text_config.num_attention_heads", expected, own.num_attention_heads.to_string());
        }
        if own.is_sliding(layer) {
            // Pages that left the target's window are gone.
            same("text_config.sliding_window", model.sliding_window, own.sliding_window)?;
        }
    }
    Ok(())
}

/// Reads a drafter that [`check`] found to fit the model.
///
/// # Errors
/// Any missing, left-over or ill-shaped tensor, and configurations outside the family.
pub fn load<B: Backend>(head: &Checkpoint, model: &LoadedModel<B, Gemma4<B>>) -> Result<Box<dyn Drafter>, ModelError> {
    let (backend, target, memory) = model.parts();
    let config = Gemma4AssistantConfig::from_checkpoint(head)?;
    let (network, weight_bytes) = Assistant::load(head, &config, &target, &*backend)?;
    let path = head.dir().to_path_buf();
    let name = path.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
    let info = DrafterInfo {
        kind: DraftKind::Mtp,
        name: name.unwrap_or_else(|| path.display().to_string()),
        path: Some(path),
        block_size: config.block_size,
        weight_bytes,
    };
    Ok(Box::new(Gemma4Assistant { backend, target, memory, network, info, rows: None, slots: Vec::new() }))
}

/// The drafter.
struct Gemma4Assistant<B: Backend> {
    backend: Arc<B>,
    target: Arc<Gemma4<B>>,
    memory: Shared<B>,
    network: Assistant<B>,
    info: DrafterInfo,
    /// Hidden states that were observed last, `[_, backbone]`.
    rows: Option<B::Buffer>,
    slots: Vec<Option<LastRow>>,
}

/// Where the states of a round's first step come from, and of those after it.
const SOURCES: [&str; 2] = ["the target's hidden states", "post_projection"];

/// The target's hidden state at the last position it kept.
struct LastRow {
    position: usize,
    hidden: Place,
}

/// Where a hidden state is.
enum Place {
    /// A row of the states that were observed last, which need not leave the device.
    Row(u32),
    /// Here, `[backbone]`: others were observed since.
    Values(Vec<f32>),
}

/// A sequence in a round.
struct Asking<'a> {
    /// Its number among the asks.
    ask: usize,
    /// The token to go on from.
    token: u32,
    /// Position of all its queries.
    position: usize,
    tables: &'a [&'a [u32]],
}

impl<B: Backend> Gemma4Assistant<B> {
    /// The hidden state that a proposal begins with; `None` when the target's last kept row was not seen, or its keys are not there.
    fn state(&self, ask: &Ask<'_>) -> Option<&LastRow> {
        let last = self.slots[ask.slot].as_ref().filter(|last| last.position + 2 == ask.tokens.len())?;
        let page_len = self.backend.page_len();
        let there = self.target.kv_layout().iter().zip(&ask.tables).all(|(group, table)| {
            let first = group.window.map_or(0, |w| (last.position + 1).saturating_sub(w)) / page_len;
            table.get(first..=last.position / page_len).is_some_and(|pages| !pages.contains(&NO_PAGE))
        });
        there.then_some(last)
    }

    /// The states that a round begins with, `[asking, backbone]`.
    fn first_states(&self, asks: &[Ask<'_>], asking: &[Asking<'_>]) -> B::Buffer {
        let (backend, width) = (&*self.backend, self.target.config().hidden_size);
        let mut states = backend.buffer(asking.len(), width);
        let places = asking.iter().filter_map(|one| self.slots[asks[one.ask].slot].as_ref()).map(|last| &last.hidden);
        let rows: Option<Vec<u32>> =
            places.clone().map(|place| if let Place::Row(row) = place { Some(*row) } else { None }).collect();
        match (&self.rows, rows) {
            (Some(observed), Some(rows)) => backend.gather(observed, &rows, &mut states),
            (observed, _) => {
                let values = places.flat_map(|place| match (place, observed) {
                    (Place::Values(values), _) => values.clone(),
                    (Place::Row(row), Some(observed)) => backend.read_rows(observed, *row as usize..*row as usize + 1),
                    (Place::Row(_), None) => vec![f32::NAN; width],
                });
                backend.write(&mut states, &values.collect::<Vec<_>>());
            }
        }
        states
    }

    fn batch<'a>(asking: &[Asking<'a>]) -> Batch {
        let mut batch = Batch::new();
        for (slot, one) in asking.iter().enumerate() {
            batch.push(slot, one.position, &[one.token], one.tables, Wanted::All);
        }
        batch
    }

    /// All drafts of a round, `[depth][asking]`, each step going on with the best token of the one before without a word from here; `None`
    /// when a score was not finite.
    fn in_one_go(
        &self,
        memory: &mut Memory<B>,
        asking: &[Asking<'_>],
        mut states: B::Buffer,
        depths: usize,
    ) -> Result<Option<Vec<Vec<u32>>>, ModelError> {
        let (backend, n) = (&*self.backend, asking.len());
        // All steps ask from the same places; only the first one's tokens are known here.
        let batch = Self::batch(asking);
        let mut ids = backend.buffer(depths * n, 1);
        let mut embedding = self.target.embed(backend, batch.tokens());
        for depth in 0..depths {
            let y = self.network.step(backend, &mut memory.kv, &batch, (&embedding, &states, SOURCES[1]), &mut None);
            let Some(logits) = self.network.head().logits(backend, &y, &mut None) else { return Ok(None) };
            backend.argmax_into(&logits, &mut ids, depth * n);
            if depth + 1 < depths {
                embedding = self.target.embed_at(backend, &ids, depth * n, n);
                states = self.network.states(backend, &y);
            }
        }
        let found: Option<Vec<u32>> = backend.read(&ids).into_iter().map(order::token).collect();
        intact(backend)?;
        Ok(found.map(|tokens| tokens.chunks_exact(n).map(<[u32]>::to_vec).collect()))
    }

    /// One step of all that are asking: their candidates, and the stack's output `[asking, hidden]`.
    fn step(
        &self,
        memory: &mut Memory<B>,
        asking: &[Asking<'_>],
        (states, source): (&B::Buffer, &'static str),
        counts: &[usize],
    ) -> Result<(Vec<Vec<Candidate>>, B::Buffer), ModelError> {
        let backend = &*self.backend;
        let batch = Self::batch(asking);
        let mut run = |tap: &mut Option<&mut dyn Tap>| {
            let embedding = self.target.embed(backend, batch.tokens());
            let y = self.network.step(backend, &mut memory.kv, &batch, (&embedding, states, source), tap);
            (self.network.head().candidates(backend, &y, counts, tap), y)
        };
        let (candidates, y) = run(&mut None);
        intact(&*self.backend)?;
        if let Some(bad) = candidates.iter().position(Option::is_none) {
            let mut finder = FirstNonFinite::default();
            run(&mut Some(&mut finder));
            let site = finder.site.map_or_else(|| "nowhere on a second run".into(), |s| s.to_string());
            return Err(self.non_finite(asking[bad].position, site));
        }
        Ok((candidates.into_iter().flatten().collect(), y))
    }

    fn non_finite(&self, position: usize, site: String) -> ModelError {
        let path = self.info.path.as_ref().map_or_else(|| self.info.name.clone(), |p| p.display().to_string());
        ModelError::NonFinite { model: path, position: position as u32, site }
    }

    fn round(&self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut guard = lock(&self.memory);
        let memory = guard.as_mut().ok_or(ModelError::NoPages)?;
        let mut out: Vec<Vec<u32>> = vec![Vec::new(); asks.len()];
        let mut asking = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.count > 0) {
            if let (Some(last), Some(token)) = (self.state(ask), ask.tokens.last()) {
                asking.push(Asking { ask: i, token: *token, position: last.position, tables: &ask.tables });
            }
        }
        if asking.is_empty() {
            return Ok(out);
        }
        let mut states = self.first_states(asks, &asking);
        let wants: Vec<(usize, usize)> = asking.iter().map(|one| (one.ask, asks[one.ask].count)).collect();
        let one_each = asking.iter().all(|one| asks[one.ask].candidates == 1);
        if one_each && choose.takes_the_first() && self.network.head().scores_all() {
            let depths = wants.iter().map(|(_, count)| *count).max().unwrap_or(0);
            // What is not finite is looked for step by step.
            if let Some(found) = self.in_one_go(memory, &asking, states, depths)? {
                offer(&found, &wants, choose, &mut out);
                return Ok(out);
            }
            states = self.first_states(asks, &asking);
        }
        for depth in 0.. {
            let counts: Vec<usize> = asking.iter().map(|one| asks[one.ask].candidates).collect();
            let (candidates, y) = self.step(memory, &asking, (&states, SOURCES[depth.min(1)]), &counts)?;
            let (mut going, mut rows) = (Vec::new(), Vec::new()); // who goes on, and its row of y
            for (row, (mut one, candidates)) in asking.into_iter().zip(&candidates).enumerate() {
                let Some(token) = choose.choose(one.ask, depth, candidates) else { continue };
                out[one.ask].push(token);
                if out[one.ask].len() < asks[one.ask].count {
                    one.token = token;
                    rows.push(row as u32);
                    going.push(one);
                }
            }
            asking = going;
            if asking.is_empty() {
                break;
            }
            let mut own = self.backend.buffer(rows.len(), self.backend.shape(&y).1);
            self.backend.gather(&y, &rows, &mut own);
            states = self.network.states(&self.backend, &own);
        }
        Ok(out)
    }
}

impl<B: Backend> Drafter for Gemma4Assistant<B> {
    fn info(&self) -> &DrafterInfo {
        &self.info
    }

    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::Wanted
    }

    fn reserve(&mut self, slots: usize, _: usize) -> Result<(), ModelError> {
        self.slots = (0..slots).map(|_| None).collect();
        self.rows = None;
        Ok(())
    }

    fn observe(&mut self, kept: &[Kept<'_>]) -> Result<(), ModelError> {
        let kept: Vec<&Kept<'_>> = kept.iter().filter(|k| !k.rows.is_empty()).collect();
        if kept.is_empty() {
            return Ok(());
        }
        let guard = lock(&self.memory);
        let memory = guard.as_ref().ok_or(ModelError::NoPages)?;
        let Some(rows) = &memory.hidden.rows else {
            kept.iter().for_each(|k| self.slots[k.slot] = None);
            return Ok(());
        };
        let width = self.target.config().hidden_size;
        let last: Vec<u32> = kept.iter().map(|k| k.rows.end as u32 - 1).collect();
        let mut own = self.backend.buffer(last.len(), width);
        self.backend.gather(rows, &last, &mut own);
        for (row, k) in (0..).zip(&kept) {
            self.slots[k.slot] = Some(LastRow { position: k.start + k.rows.len() - 1, hidden: Place::Row(row) });
        }
        let observed = self.rows.replace(own);
        // Those who were not among them this time take theirs along.
        for (slot, last) in self.slots.iter_mut().enumerate() {
            let new = kept.iter().any(|k| k.slot == slot);
            if let (Some(LastRow { hidden, .. }), Some(observed), false) = (last, &observed, new)
                && let Place::Row(row) = hidden
            {
                let row = *row as usize;
                *hidden = Place::Values(self.backend.read_rows(observed, row..row + 1));
            }
        }
        intact(&*self.backend)
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        self.slots[slot].take_if(|last| last.position >= len);
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let out = self.round(asks, choose);
        if out.is_err() {
            asks.iter().for_each(|ask| self.slots[ask.slot] = None);
        }
        out
    }

    fn cache_bytes(&self) -> usize {
        self.slots.len() * self.target.config().hidden_size * size_of::<f32>()
    }

    fn cached(&self, slot: usize) -> usize {
        usize::from(self.slots[slot].is_some())
    }
}
