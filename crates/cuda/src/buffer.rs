//! Activations and small vectors on the device.

use crate::memory::Block;

/// f32 activations `[rows, width]`, row-major.
pub struct CudaBuffer {
    pub(crate) block: Block,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

impl CudaBuffer {
    /// Device address.
    pub fn address(&self) -> u64 {
        self.block.address()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.rows * self.width
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A small f32 vector: norm weights, scales.
pub struct CudaVector {
    pub(crate) block: Block,
    pub(crate) len: usize,
}

impl CudaVector {
    /// Device address.
    pub fn address(&self) -> u64 {
        self.block.address()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
