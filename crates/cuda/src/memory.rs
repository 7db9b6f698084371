//! Memory of the device, handed out again in the order it came back.
//!
//! A forward pass asks for the same sizes in the same order as the one before, so it gets the same addresses: that is what
//! lets a recorded graph run again ([`crate::queue`]). Work is done in the order it was queued, so memory may be handed out
//! again while what used it has not run yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;

use crate::device::Device;
use crate::error::CudaError;

/// Everything is aligned to this, and rounded up to it.
const GRAIN: usize = 512;
/// Small blocks are cut from chunks of this size.
const CHUNK: usize = 8 << 20;
/// Blocks given back that are not handed out again yet: operations add outputs to kernels queued before
/// ([`crate::ops::fuse`]), and those outputs must not lie where such a kernel's operands lay.
const WAITING: usize = 8;

/// A piece and its age: how many there were before it.
type Place = (u32, u64);

#[derive(Default)]
struct Free {
    blocks: BTreeMap<usize, Vec<Place>>, // by size; `Arena::settle` puts the oldest last, which is taken first
    back: VecDeque<(usize, Place)>,      // just given back
    made: u32,
    chunk: (u64, usize), // address and bytes left of the chunk small blocks are cut from
    chunks: Vec<u64>,
    whole: Vec<(u64, usize)>, // every block that is an allocation of its own
    dead: Vec<(u64, usize)>,  // held for long once; launches that wait may still name them
    held: usize,
}

/// The memory of one device.
pub struct Arena {
    device: Arc<Device>,
    free: Mutex<Free>,
}

/// A piece of device memory; goes back when dropped.
pub struct Block {
    arena: Arc<Arena>,
    age: u32,
    address: u64,
    bytes: usize,
}

impl Block {
    /// Device address; 0 after the device failed.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Usable bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.address != 0 {
            let mut free = self.arena.lock();
            free.back.push_back((self.bytes, (self.age, self.address)));
            if free.back.len() > WAITING
                && let Some((bytes, place)) = free.back.pop_front()
            {
                free.blocks.entry(bytes).or_default().push(place);
            }
        }
    }
}

/// Rounds up so that blocks of about the same size can stand in for each other: an eighth is the most that is wasted.
fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(1).next_multiple_of(GRAIN);
    let step = (bytes.next_power_of_two() / 16).max(GRAIN);
    bytes.next_multiple_of(step)
}

impl Arena {
    /// The memory of a device, none of it taken yet.
    pub fn new(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Arena { device, free: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes taken from the device.
    pub fn held(&self) -> usize {
        self.lock().held
    }

    /// A block of at least `bytes`; contents are arbitrary.
    ///
    /// # Errors
    /// When the device has no such room left.
    pub fn take(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Block, CudaError> {
        let bytes = rounded(bytes);
        let mut free = self.lock();
        if let Some((age, address)) = free.blocks.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(Block { arena: Arc::clone(self), age, address, bytes });
        }
        let address = if bytes <= CHUNK / 8 {
            if free.chunk.1 < bytes {
                let chunk = self.allocate(&mut free, CHUNK, what)?;
                free.chunks.push(chunk);
                free.chunk = (chunk, CHUNK);
            }
            let address = free.chunk.0;
            free.chunk = (address + bytes as u64, free.chunk.1 - bytes);
            address
        } else {
            let address = self.allocate(&mut free, bytes, what)?;
            free.whole.push((address, bytes));
            address
        };
        let age = free.made;
        free.made += 1;
        Ok(Block { arena: Arc::clone(self), age, address, bytes })
    }

    /// Puts what is free in order, so that the same requests get the same addresses in each forward pass. Called when a result
    /// was read. The order is that of age: what other passes took meanwhile changes nothing, wherever it lies.
    pub fn settle(&self) {
        let mut free = self.lock();
        let Free { blocks, back, .. } = &mut *free;
        back.drain(..).for_each(|(bytes, place)| blocks.entry(bytes).or_default().push(place));
        blocks.values_mut().for_each(|list| list.sort_unstable_by(|a, b| b.cmp(a)));
    }

    /// No memory: what a failed device has to give.
    pub fn none(self: &Arc<Self>) -> Block {
        Block { arena: Arc::clone(self), age: 0, address: 0, bytes: 0 }
    }

    /// Gives memory that was held for long, and is not any more, back to the device. Nothing may be queued that is not launched yet: it
    /// might name it.
    pub fn bury(&self) {
        let mut free = self.lock();
        let dead = std::mem::take(&mut free.dead);
        if dead.is_empty() || self.device.bind().is_err() {
            return;
        }
        for (address, bytes) in dead {
            // SAFETY: its owner is gone; freeing waits for what was launched.
            let _ = unsafe { result::free_sync(address) };
            free.held -= bytes;
        }
    }

    /// Whether there is anything to [`Arena::bury`].
    pub fn has_dead(&self) -> bool {
        !self.lock().dead.is_empty()
    }

    /// Memory for weights and pages: exactly as much, and given back to the device some time after it is dropped ([`Arena::bury`]).
    ///
    /// # Errors
    /// When the device has no such room left.
    pub fn take_for_long(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Held, CudaError> {
        let bytes = bytes.max(1).next_multiple_of(GRAIN);
        let mut free = self.lock();
        let address = self.allocate(&mut free, bytes, what)?;
        Ok(Held { arena: Arc::clone(self), address, bytes })
    }

    fn allocate(&self, free: &mut Free, bytes: usize, what: &str) -> Result<u64, CudaError> {
        let address = self.device.allocate(bytes, what)?;
        free.held += bytes;
        Ok(address)
    }

    /// Gives unused blocks that are allocations of their own back to the device. Nothing may be queued that is not launched yet: it
    /// might name them.
    pub fn trim(&self) {
        self.settle();
        let mut free = self.lock();
        let Free { blocks, whole, held, .. } = &mut *free;
        whole.retain(|(address, bytes)| {
            let Some(unused) = blocks.get_mut(bytes) else { return true };
            let Some(at) = unused.iter().position(|(_, a)| a == address) else { return true };
            unused.swap_remove(at);
            // SAFETY: nobody holds the block, and freeing waits for what was launched.
            let _ = unsafe { result::free_sync(*address) };
            *held -= bytes;
            false
        });
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.device.bind().is_ok() {
            let own = free.whole.iter().chain(&free.dead).map(|w| w.0);
            for address in own.chain(free.chunks.iter().copied()) {
                // SAFETY: what is handed out keeps the arena alive, so nobody holds any.
                let _ = unsafe { result::free_sync(address) };
            }
        }
    }
}

/// Memory held for long: a weight, pages. Launches that were queued before it is dropped may use it.
pub struct Held {
    arena: Arc<Arena>,
    address: u64,
    bytes: usize,
}

impl Held {
    /// Device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.arena.lock().dead.push((self.address, self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_by_little_and_to_few() {
        assert_eq!(rounded(1), GRAIN);
        assert_eq!(rounded(513), 1024);
        let mut sizes = std::collections::BTreeSet::new();
        for bytes in (1..4_000_000).step_by(777) {
            let r = rounded(bytes);
            assert!(r >= bytes && r <= (bytes + GRAIN) * 9 / 8 && r.is_multiple_of(GRAIN), "{bytes}: {r}");
            assert_eq!(rounded(r), r, "a block fits its own size");
            sizes.insert(r);
        }
        assert!(sizes.len() < 120, "{} sizes", sizes.len());
    }
}
