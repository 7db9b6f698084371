//! [`LoadedModel`]: a network, its backend and its KV pages behind the [`Model`] trait.

use std::sync::{Arc, MutexGuard, PoisonError};

use mlxcel_compute::{Backend, Batch, KvGroup};

use crate::drafters::HiddenRows;
use crate::error::intact;
use crate::tap::{FirstNonFinite, Tap};
use crate::{Hidden, Logits, Memory, Model, ModelError, ModelInfo, Network, Shared, Snapshot, TAKE_BACK};

/// A network with the memory it runs in.
pub struct LoadedModel<B: Backend, N: Network<B>> {
    backend: Arc<B>,
    network: Arc<N>,
    memory: Shared<B>,
    keep: HiddenRows,
}

/// The memory behind its lock, which model and drafter take in turn, on one thread.
pub(crate) fn lock<B: Backend>(memory: &Shared<B>) -> MutexGuard<'_, Option<Memory<B>>> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: Backend, N: Network<B>> LoadedModel<B, N> {
    /// Puts a network on its backend.
    pub fn new(backend: Arc<B>, network: N) -> Self {
        LoadedModel { backend, network: Arc::new(network), memory: Arc::default(), keep: HiddenRows::None }
    }

    /// What a drafter that reads this model needs: backend, network, memory.
    pub fn parts(&self) -> (Arc<B>, Arc<N>, Shared<B>) {
        (Arc::clone(&self.backend), Arc::clone(&self.network), Arc::clone(&self.memory))
    }

    fn run(&mut self, batch: &Batch, mut tap: Option<&mut dyn Tap>) -> Result<Logits, ModelError> {
        let mut guard = lock(&self.memory);
        let memory = guard.as_mut().ok_or(ModelError::NoPages)?;
        let recurrent = !self.network.state_layout().is_empty();
        if recurrent {
            self.backend.state_begin(&mut memory.state, batch);
        }
        let logits = self.network.forward(&self.backend, memory, batch, &mut tap);
        let logits = Logits::new(&self.backend, logits)?;
        let Some(bad) = logits.damaged() else { return Ok(logits) };
        drop(logits); // its buffer serves the second run
        // Run again to find the culprit. K/V are rewritten with the same values. Recurrent states that cannot be taken back are
        // wrong in the second run, but no less damaged, and forgotten after it; the K/V above them are rewritten when those
        // positions are computed again.
        let mut finder = FirstNonFinite::default();
        if recurrent {
            let lost = rewind(&*self.backend, memory, batch);
            lost.iter().for_each(|(slot, start)| self.backend.state_declare(&mut memory.state, *slot, Some(*start)));
            self.backend.state_begin(&mut memory.state, batch);
            self.network.forward(&self.backend, memory, batch, &mut Some(&mut finder));
            rewind(&*self.backend, memory, batch);
            lost.iter().for_each(|(slot, _)| self.backend.state_declare(&mut memory.state, *slot, None));
        } else {
            self.network.forward(&self.backend, memory, batch, &mut Some(&mut finder));
        }
        let row = batch.wanted()[bad];
        Err(ModelError::NonFinite {
            model: self.network.info().path.display().to_string(),
            position: batch.positions()[row as usize],
            site: finder.site.map_or_else(|| "nowhere on a second run".into(), |s| s.to_string()),
        })
    }
}

/// Takes recurrent states back to where their spans start; returns slot and start of those that could not be.
fn rewind<B: Backend>(backend: &B, memory: &mut Memory<B>, batch: &Batch) -> Vec<(usize, usize)> {
    let spans = batch.spans().iter().filter(|s| s.len > 0).map(|s| (s.sequence, s.start));
    spans.filter(|(slot, start)| !backend.state_take_back(&mut memory.state, *slot, *start)).collect()
}

impl<B: Backend, N: Network<B>> Model for LoadedModel<B, N> {
    fn info(&self) -> &ModelInfo {
        self.network.info()
    }

    fn backend(&self) -> String {
        self.backend.describe()
    }

    fn kv_layout(&self) -> &[KvGroup] {
        self.network.kv_layout()
    }

    fn page_len(&self) -> usize {
        self.backend.page_len()
    }

    fn step_rows(&self) -> usize {
        self.backend.step_rows()
    }

    fn kv_page_bytes(&self, group: usize) -> usize {
        self.backend.kv_page_bytes(&self.network.kv_layout()[group])
    }

    fn is_recurrent(&self) -> bool {
        !self.network.state_layout().is_empty()
    }

    fn state_bytes(&self) -> (usize, usize) {
        let layout = self.network.state_layout();
        (self.backend.state_bytes(layout, TAKE_BACK), self.backend.snapshot_bytes(layout))
    }

    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError> {
        let mut memory = lock(&self.memory);
        *memory = None; // give the old memory back first
        *memory = Some(Memory {
            kv: self.backend.kv_new(self.network.kv_layout(), pages)?,
            state: self.backend.state_new(self.network.state_layout(), slots, TAKE_BACK)?,
            hidden: Hidden { keep: self.keep, rows: None },
        });
        intact(&*self.backend)
    }

    fn keep_hidden(&mut self, rows: HiddenRows) {
        self.keep = rows;
        if let Some(memory) = lock(&self.memory).as_mut() {
            memory.hidden = Hidden { keep: rows, rows: None };
        }
    }

    fn hidden(&self) -> Option<Vec<f32>> {
        let memory = lock(&self.memory);
        Some(self.backend.read(memory.as_ref()?.hidden.rows.as_ref()?))
    }

    fn take_back(&mut self, slot: usize, len: usize) -> bool {
        if !self.is_recurrent() {
            return true;
        }
        lock(&self.memory).as_mut().is_some_and(|m| self.backend.state_take_back(&mut m.state, slot, len))
    }

    fn save_state(&self, slot: usize) -> Option<Snapshot> {
        let memory = lock(&self.memory);
        let state = &memory.as_ref()?.state;
        let position = self.is_recurrent().then(|| self.backend.state_position(state, slot))??;
        Some(Snapshot::new(position, self.backend.state_save(state, slot)))
    }

    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot) {
        let inner: &B::Snapshot = snapshot.inner().expect("a snapshot of this backend");
        if let Some(memory) = lock(&self.memory).as_mut() {
            self.backend.state_restore(&mut memory.state, slot, inner);
        }
    }

    fn read_state(&self, snapshot: &Snapshot) -> Vec<f32> {
        snapshot.inner().map_or_else(Vec::new, |inner| self.backend.state_read(inner))
    }

    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        self.run(batch, None)
    }

    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Logits, ModelError> {
        self.run(batch, Some(tap))
    }
}
