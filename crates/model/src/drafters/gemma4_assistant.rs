//! Gemma 4's drafter, the "assistant" (gemma4.md §5): four small layers that attend to the target's own K/V.
//!
//! It has no cache. A round begins with the pending token and the target's hidden state at the position before it; each next step
//! is fed the token just drafted and the drafter's own state. All steps of a round ask from the same position, the last one whose
//! K/V the target has, and see the same keys.

mod head;
mod network;

use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_checkpoint::gemma4::{Gemma4AssistantConfig, Gemma4Config, LayerType};
use mlxcel_compute::{Backend, Batch, NO_PAGE, Wanted};

use self::network::Assistant;
use super::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept};
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
    Ok(Box::new(Gemma4Assistant { backend, target, memory, network, info, slots: Vec::new() }))
}

/// The drafter.
struct Gemma4Assistant<B: Backend> {
    backend: Arc<B>,
    target: Arc<Gemma4<B>>,
    memory: Shared<B>,
    network: Assistant<B>,
    info: DrafterInfo,
    slots: Vec<Option<LastRow>>,
}

/// The target's hidden state at the last position it kept.
#[derive(Clone)]
struct LastRow {
    position: usize,
    hidden: Vec<f32>, // [backbone]
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

    /// One step of all that are asking: their candidates, and the stack's output `[asking, hidden]`.
    fn step(
        &self,
        memory: &mut Memory<B>,
        asking: &[Asking<'_>],
        states: &[f32],
        counts: &[usize],
    ) -> Result<(Vec<Vec<Candidate>>, B::Buffer), ModelError> {
        let backend = &*self.backend;
        let mut batch = Batch::new();
        for (slot, one) in asking.iter().enumerate() {
            batch.push(slot, one.position, &[one.token], one.tables, Wanted::All);
        }
        let mut run = |tap: &mut Option<&mut dyn Tap>| {
            let y = self.network.step(backend, &self.target, &mut memory.kv, &batch, states, tap);
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
        let mut states = Vec::new(); // [asking, backbone]
        for (i, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.count > 0) {
            if let (Some(last), Some(token)) = (self.state(ask), ask.tokens.last()) {
                asking.push(Asking { ask: i, token: *token, position: last.position, tables: &ask.tables });
                states.extend_from_slice(&last.hidden);
            }
        }
        for depth in 0.. {
            if asking.is_empty() {
                break;
            }
            let counts: Vec<usize> = asking.iter().map(|one| asks[one.ask].candidates).collect();
            let (candidates, y) = self.step(memory, &asking, &states, &counts)?;
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
            states = self.network.states(&self.backend, &y, &rows);
            intact(&*self.backend)?;
            let width = states.len() / asking.len();
            if let Some(bad) = states.iter().position(|s| !s.is_finite()) {
                return Err(self.non_finite(asking[bad / width].position, "post_projection".into()));
            }
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
        self.slots = vec![None; slots];
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
        let values = self.backend.read(&own);
        intact(&*self.backend)?;
        for (k, hidden) in kept.iter().zip(values.chunks_exact(width)) {
            self.slots[k.slot] = Some(LastRow { position: k.start + k.rows.len() - 1, hidden: hidden.to_vec() });
        }
        Ok(())
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
