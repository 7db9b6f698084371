//! Layers that families share: each loads its own tensors and runs over a batch.

pub mod attention;
pub mod mlp;
pub mod moe;
pub mod rope;

use mlxcel_checkpoint::Weights;
use mlxcel_compute::Backend;

use crate::ModelError;
use crate::summary::Ledger;

/// Reads tensors under a prefix and hands them to the backend.
pub struct Loader<'a, B: Backend> {
    /// Where they go.
    pub backend: &'a B,
    /// Where they come from.
    pub weights: Weights<'a>,
    /// What was read so far, for the summary.
    pub ledger: &'a Ledger,
}

impl<B: Backend> Loader<'_, B> {
    /// A loader one level down.
    pub fn sub(&self, prefix: &str) -> Loader<'_, B> {
        Loader { weights: self.weights.sub(prefix), ..*self }
    }

    fn take(&self, weight: mlxcel_compute::HostWeight) -> Result<B::Weight, ModelError> {
        self.ledger.weight(&weight);
        Ok(self.backend.load_weight(weight)?)
    }

    /// The linear `name`, `[outputs, inputs]`.
    pub fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<B::Weight, ModelError> {
        self.take(self.weights.linear(name, outputs, inputs)?)
    }

    /// The output matrix of an untied model.
    pub fn lm_head(&self, outputs: usize, inputs: usize) -> Result<B::Weight, ModelError> {
        self.take(self.weights.lm_head(outputs, inputs)?)
    }

    /// The stack `name`, `[experts, outputs, inputs]`.
    pub fn experts(&self, name: &str, experts: usize, outputs: usize, inputs: usize) -> Result<B::Weight, ModelError> {
        self.take(self.weights.experts(name, experts, outputs, inputs)?)
    }

    /// Gate and up out of the fused stack `name`, `[experts, 2 * outputs, inputs]`.
    pub fn fused_experts(
        &self,
        name: &str,
        experts: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<(B::Weight, B::Weight), ModelError> {
        let (gate, up) = self.weights.fused_experts(name, experts, outputs, inputs)?;
        Ok((self.take(gate)?, self.take(up)?))
    }

    /// The vector `name`, `[len]`.
    pub fn vector(&self, name: &str, len: usize) -> Result<B::Vector, ModelError> {
        self.ledger.vector(&format!("{}{name}", self.weights.prefix()), len);
        Ok(self.backend.load_vector(&self.weights.vector(name, len)?))
    }

    /// The single float `name`.
    pub fn scalar(&self, name: &str) -> Result<f32, ModelError> {
        self.ledger.vector(&format!("{}{name}", self.weights.prefix()), 1);
        Ok(self.weights.scalar(name)?)
    }
}
