//! Layers that families share: each loads its own tensors and runs over a batch.

pub mod attention;
pub mod delta_net;
pub mod mlp;
pub mod moe;
pub mod output;
pub mod rope;
pub mod shared_moe;

use mlxcel_checkpoint::{ConvLayout, Weights};
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
    /// Added to zero-centred norm weights ([`Loader::norm`]): 1 where the file stores them without it.
    pub norm_shift: f32,
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

    /// The norm weight `name`, `[len]`, with [`Loader::norm_shift`] added.
    pub fn norm(&self, name: &str, len: usize) -> Result<B::Vector, ModelError> {
        self.ledger.vector(&format!("{}{name}", self.weights.prefix()), len);
        let mut values = self.weights.vector(name, len)?;
        values.iter_mut().for_each(|w| *w += self.norm_shift);
        Ok(self.backend.load_vector(&values))
    }

    /// `e^v` of the vector `name`, `[len]`, rounded once; NaN where `v` is not finite, so that the exponential hides no damage.
    pub fn exponential(&self, name: &str, len: usize) -> Result<B::Vector, ModelError> {
        self.ledger.vector(&format!("{}{name}", self.weights.prefix()), len);
        let values = self.weights.vector(name, len)?;
        let values: Vec<f32> = values.iter().map(|v| f64::from(*v).exp() as f32 + v * 0.0).collect();
        Ok(self.backend.load_vector(&values))
    }

    /// The depthwise convolution `name`, `[taps, channels]`.
    pub fn taps(&self, name: &str, channels: usize, taps: usize, layout: ConvLayout) -> Result<B::Vector, ModelError> {
        self.ledger.vector(&format!("{}{name}", self.weights.prefix()), taps * channels);
        Ok(self.backend.load_vector(&self.weights.taps(name, channels, taps, layout)?))
    }

    /// The single float `name`.
    pub fn scalar(&self, name: &str) -> Result<f32, ModelError> {
        self.ledger.vector(&format!("{}{name}", self.weights.prefix()), 1);
        Ok(self.weights.scalar(name)?)
    }
}
