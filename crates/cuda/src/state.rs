#![allow(missing_docs)]
use crate::context::Context;
use mlxcel_compute::{Batch, ComputeError, StateLayout, recurrent::Slots};
pub struct CudaState {
    pub slots: Slots,
}
pub struct CudaSnapshot;
pub fn snapshot_bytes(_: &StateLayout) -> usize {
    0
}
pub fn slot_bytes(_: &StateLayout, _: usize) -> usize {
    0
}
impl CudaState {
    pub fn new(_: &Context, _: &StateLayout, n: usize, r: usize) -> Result<Self, ComputeError> {
        Ok(CudaState { slots: Slots::new(n, r) })
    }
    pub fn begin(&mut self, b: &Batch) {
        self.slots.begin(b);
    }
}
