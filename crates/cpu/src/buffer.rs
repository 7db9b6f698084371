//! Activation buffers from an arena: after the first step of a shape nothing is allocated.

use std::sync::{Arc, Mutex};

/// Memory that returns to its arena when a buffer is dropped.
#[derive(Default)]
pub struct Arena {
    free: Mutex<Vec<Vec<f32>>>,
}

impl Arena {
    fn take(&self, len: usize) -> Vec<f32> {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        let fit = (0..free.len()).filter(|i| free[*i].len() >= len).min_by_key(|i| free[*i].len());
        match fit.or_else(|| (0..free.len()).max_by_key(|i| free[*i].len())) {
            Some(i) => {
                let mut memory = free.swap_remove(i);
                if memory.len() < len {
                    memory.resize(len, 0.0);
                }
                memory
            }
            None => vec![0.0; len],
        }
    }
}

/// f32 activations `[rows, width]`, row-major.
pub struct CpuBuffer {
    memory: Vec<f32>,
    rows: usize,
    width: usize,
    arena: Arc<Arena>,
}

impl CpuBuffer {
    /// A buffer with arbitrary contents.
    pub fn new(arena: &Arc<Arena>, rows: usize, width: usize) -> Self {
        CpuBuffer { memory: arena.take(rows * width), rows, width, arena: Arc::clone(arena) }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// All values.
    pub fn data(&self) -> &[f32] {
        &self.memory[..self.rows * self.width]
    }

    /// All values, to write.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.rows * self.width]
    }

    /// One row.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.memory[r * self.width..][..self.width]
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.arena.free.lock().unwrap_or_else(|e| e.into_inner()).push(memory);
    }
}

/// A slice that threads write disjoint parts of.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: handed to threads only for disjoint writes (see `part`), which is what a `&mut [T]` split up would allow.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes the slice for the lifetime of the parallel section.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), lifetime: std::marker::PhantomData }
    }

    /// `len` elements from `start`.
    ///
    /// # Safety
    /// Parts alive at the same time must not overlap.
    ///
    /// # Panics
    /// When the part lies outside the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the caller promises disjoint parts")]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: inside the slice, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
