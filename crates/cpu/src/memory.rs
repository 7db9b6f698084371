//! Memory for what is read front to back at every step: slabs in huge pages, handed out in the order in which weights are first
//! used, so that the end of one matrix is followed by the beginning of the next, and an address is looked up once in two megabytes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Bytes of a slab. What is not handed out is never touched, and takes no memory.
const SLAB: usize = 32 << 20;

/// Pieces start at a multiple of a cache line.
pub const LINE: usize = 64;

/// Asks for huge pages where the system has them. Memory stays what it is.
pub fn prefer_huge<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        let (start, len) = (memory.as_mut_ptr() as usize, size_of_val(memory));
        let (from, to) = (start.next_multiple_of(HUGE), (start + len) / HUGE * HUGE);
        if from < to {
            // SAFETY: whole pages inside memory that is borrowed here.
            unsafe { advise(from as *mut u8, to - from) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Asks for huge pages; a system that has none says so, which changes nothing.
///
/// # Safety
/// The pages are this process' own memory.
#[cfg(target_os = "linux")]
unsafe fn advise(start: *mut u8, len: usize) {
    // SAFETY: this advice changes nothing that memory holds.
    let _ = unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxHugepage) };
}

/// One allocation, aligned to huge pages. Zeroed piece by piece.
struct Slab {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; pieces of it are disjoint, and each has one owner.
unsafe impl Send for Slab {}
// SAFETY: as above: shared access only reads.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(len: usize) -> Self {
        let size = len.next_multiple_of(HUGE);
        let layout = Layout::from_size_align(size, HUGE).expect("weights fit the address space");
        // SAFETY: the size is not zero: `len` is not (see `Slabs::take`).
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        // SAFETY: the pages of this allocation.
        unsafe {
            advise(start.as_ptr(), size);
        }
        Slab { start, layout }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no piece is left that refers to it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A piece of a slab, its own alone.
pub struct Memory {
    slab: Arc<Slab>,
    at: usize,
    len: usize,
}

impl Memory {
    /// The bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the slab, initialised by `Slabs::take`, and written to only through `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.slab.start.as_ptr().add(self.at), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; no other piece has these bytes, and this one is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.slab.start.as_ptr().add(self.at), self.len) }
    }
}

/// Hands out pieces.
#[derive(Default)]
pub struct Slabs(Mutex<Option<(Arc<Slab>, usize)>>);

impl Slabs {
    /// `len` zeros, behind those handed out before where a slab has room for them.
    pub fn take(&self, len: usize) -> Memory {
        let size = len.max(1).next_multiple_of(LINE);
        let (slab, at) = if size > SLAB / 2 {
            (Arc::new(Slab::new(size)), 0)
        } else {
            let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (slab, used) = match open.take() {
                Some((slab, used)) if used + size <= SLAB => (slab, used),
                _ => (Arc::new(Slab::new(SLAB)), 0),
            };
            *open = Some((Arc::clone(&slab), used + size));
            (slab, used)
        };
        // SAFETY: inside the slab, and handed out to nobody else.
        unsafe { slab.start.as_ptr().add(at).write_bytes(0, len) };
        Memory { slab, at, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeros_aligned_and_disjoint() {
        let slabs = Slabs::default();
        let lens = [1, 64, 65, 100_000, 0, SLAB / 2, SLAB / 2 + 1, 40 << 20, 7, SLAB / 2, SLAB / 2];
        let mut pieces: Vec<Memory> = lens.iter().map(|len| slabs.take(*len)).collect();
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert_eq!(piece.bytes().len(), lens[i]);
            assert!(piece.bytes().iter().all(|b| *b == 0), "piece {i} is not zeros");
            assert_eq!(piece.bytes().as_ptr().align_offset(LINE), 0);
            piece.bytes_mut().fill(i as u8 + 1);
        }
        // A slab outlives who handed it out.
        drop(slabs);
        for (i, piece) in pieces.iter().enumerate() {
            assert!(piece.bytes().iter().all(|b| *b == i as u8 + 1), "piece {i} was overwritten");
        }
        let follows = |a: usize, b: usize| pieces[a].bytes().as_ptr_range().end <= pieces[b].bytes().as_ptr();
        assert!(follows(0, 1) && follows(1, 2) && follows(2, 3), "small pieces lie behind each other");
    }

    #[test]
    fn advice_leaves_memory_as_it_is() {
        let mut memory: Vec<u32> = (0..3 << 20).collect();
        prefer_huge(&mut memory);
        prefer_huge(&mut memory[..5]);
        assert!(memory.iter().enumerate().all(|(i, v)| i as u32 == *v));
    }
}
