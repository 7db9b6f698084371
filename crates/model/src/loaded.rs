//! [`LoadedModel`]: a network, its backend and its KV pages behind the [`Model`] trait.

use std::sync::Arc;

use mlxcel_compute::{Backend, Batch, KvGroup};

use crate::tap::{FirstNonFinite, Tap};
use crate::{Model, ModelError, ModelInfo, Network};

/// A network with the memory it runs in.
pub struct LoadedModel<B: Backend, N: Network<B>> {
    backend: Arc<B>,
    network: N,
    kv: Option<B::Kv>,
}

impl<B: Backend, N: Network<B>> LoadedModel<B, N> {
    /// Puts a network on its backend.
    pub fn new(backend: Arc<B>, network: N) -> Self {
        LoadedModel { backend, network, kv: None }
    }

    fn run(&mut self, batch: &Batch, mut tap: Option<&mut dyn Tap>) -> Result<Vec<f32>, ModelError> {
        let kv = self.kv.as_mut().ok_or(ModelError::NoPages)?;
        let logits = self.network.forward(&self.backend, kv, batch, &mut tap);
        let logits = self.backend.read(&logits);
        let vocab = self.network.info().vocab_size;
        let Some(bad) = logits.iter().position(|v| !v.is_finite()) else {
            return Ok(logits);
        };
        // Run again to find the culprit: positions are rewritten with the same values, so nothing changes.
        let mut finder = FirstNonFinite::default();
        self.network.forward(&self.backend, kv, batch, &mut Some(&mut finder));
        let row = batch.wanted()[bad / vocab];
        Err(ModelError::NonFinite {
            model: self.network.info().path.display().to_string(),
            position: batch.positions()[row as usize],
            site: finder.site.map_or_else(|| "nowhere on a second run".into(), |s| s.to_string()),
        })
    }
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

    fn kv_page_bytes(&self, group: usize) -> usize {
        self.backend.kv_page_bytes(&self.network.kv_layout()[group])
    }

    fn reserve(&mut self, pages: &[usize]) -> Result<(), ModelError> {
        self.kv = None; // give the old memory back first
        self.kv = Some(self.backend.kv_new(self.network.kv_layout(), pages)?);
        Ok(())
    }

    fn forward(&mut self, batch: &Batch) -> Result<Vec<f32>, ModelError> {
        self.run(batch, None)
    }

    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Vec<f32>, ModelError> {
        self.run(batch, Some(tap))
    }
}
