//! A device with its memory, its kernels and its queue: what operations are written against.
//!
//! Operations cannot fail on valid buffers, and a device can. The first fault is kept ([`Context::failure`]); after it
//! nothing is launched any more and everything read is NaN, which no answer is made of.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::error::CudaError;
use crate::memory::{Arena, Block, Held};
use crate::module::{Function, Modules, Unit};
use crate::queue::{Launch, Queue, Sent};

/// Everything operations need of a device.
pub struct Context {
    // Dropped first: what it frees needs the device's context.
    queue: Mutex<Queue>,
    /// The device.
    pub device: Arc<Device>,
    /// Its memory.
    pub arena: Arc<Arena>,
    modules: Modules,
    fuse: AtomicBool,
    wide: AtomicBool,
    split: AtomicBool,
}

/// A grid, the threads of a block, and the bytes of shared memory it is given at launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub block: usize,
    /// Bytes of shared memory.
    pub shared: usize,
}

impl Shape {
    /// A grid of up to three dimensions without extra shared memory.
    pub fn new(x: usize, y: usize, block: usize) -> Self {
        Shape { grid: [x, y, 1], block, shared: 0 }
    }

    /// One thread a value, 256 a block.
    pub fn each(values: usize) -> Self {
        Shape::new(values.div_ceil(256), 1, 256)
    }
}

impl Context {
    /// Opens a device; compiled kernels are kept in the folder `cache`.
    ///
    /// # Errors
    /// What is missing.
    pub fn open(ordinal: usize, cache: Option<PathBuf>) -> Result<Arc<Self>, CudaError> {
        let device = Device::open(ordinal)?;
        let arena = Arena::new(Arc::clone(&device));
        let modules = Modules::new(Arc::clone(&device), cache);
        let queue = Mutex::new(Queue::new(&device)?);
        let [fuse, wide, split] = [(); 3].map(|()| AtomicBool::new(true));
        Ok(Arc::new(Context { device, arena, modules, queue, fuse, wide, split }))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the device cannot be trusted any more.
    pub fn failure(&self) -> Option<&CudaError> {
        self.device.failure()
    }

    /// A kernel, compiled now if it never was; `shared` is the most shared memory it will be given.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn function(&self, unit: &Unit, name: &str, shared: usize) -> Result<Function, CudaError> {
        self.modules.function(unit, name, shared)
    }

    /// Clusters of blocks of a kernel that have room on the device at the same time; one if it does not say.
    pub fn clusters_at_once(&self, function: Function, blocks: usize, threads: usize, shared: usize) -> usize {
        self.modules.clusters_at_once(function, blocks, threads, shared)
    }

    /// Memory for a while.
    pub fn block(&self, bytes: usize) -> Block {
        let mut taken = self.arena.take(bytes, "activations");
        if matches!(taken, Err(CudaError::Memory { .. })) && self.synchronize().is_ok() {
            self.arena.trim();
            taken = self.arena.take(bytes, "activations");
        }
        taken.unwrap_or_else(|error| {
            self.device.fail(error);
            self.arena.none()
        })
    }

    /// Memory for long.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn held(&self, bytes: usize, what: &str) -> Result<Held, CudaError> {
        if self.arena.has_dead() {
            self.synchronize()?;
        }
        let taken = self.arena.take_for_long(bytes, what);
        if !matches!(taken, Err(CudaError::Memory { .. })) {
            return taken;
        }
        self.synchronize()?;
        self.arena.trim();
        self.arena.take_for_long(bytes, what)
    }

    /// Sets memory to zero, in the order of launches.
    ///
    /// # Errors
    /// The device's.
    pub fn zero(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        self.queue().fill(&self.device, address, 0, bytes)
    }

    /// Sends off what is queued and waits for it.
    ///
    /// # Errors
    /// The first fault of the device.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let mut queue = self.queue();
        queue.flush(&self.device)?;
        self.device.synchronize()?;
        self.arena.bury();
        Ok(())
    }

    /// Sends off what is queued.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&self) -> Result<(), CudaError> {
        self.queue().flush(&self.device)
    }

    /// Memory for a while that none of `used` lies in: for an output that is added to a kernel queued before, whose own operands
    /// may have been given back since.
    pub fn block_apart(&self, bytes: usize, used: &[u64]) -> Block {
        let mut unfit = Vec::new();
        loop {
            let block = self.block(bytes);
            let inside = |a: &u64| (block.address()..block.address() + block.bytes() as u64).contains(a);
            if block.address() == 0 || !used.iter().any(inside) {
                return block;
            }
            unfit.push(block);
        }
    }

    /// Begins an operation that brings host data of `bytes` in all.
    pub fn operation(&self, bytes: usize) -> Operation<'_> {
        let mut queue = self.queue();
        if self.failure().is_none()
            && let Err(error) = queue.room(&self.device, bytes)
        {
            self.device.fail(error);
        }
        Operation { queue, fuse: self.fuse.load(Ordering::Relaxed) }
    }

    /// One launch that brings no host data.
    pub fn launch(&self, function: Function, shape: Shape, args: &[u64]) {
        self.operation(0).launch(function, shape, args);
    }

    /// Brings values back; NaN from a device that failed.
    pub fn read(&self, address: u64, out: &mut [f32]) {
        if self.failure().is_none() {
            let mut queue = self.queue();
            let came = queue.read(&self.device, address, bytemuck::cast_slice_mut(out));
            self.arena.settle();
            match came {
                Ok(()) => return self.arena.bury(),
                Err(error) => self.device.fail(error),
            }
        }
        out.fill(f32::NAN);
    }

    /// Copies host data of any size to the device, in the order of launches.
    ///
    /// # Errors
    /// The device's.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), CudaError> {
        self.queue().write(&self.device, address, data)
    }

    /// Whether sequences of launches that come again are recorded as graphs. They are unless switched off, to look for faults.
    pub fn use_graphs(&self, on: bool) {
        self.queue().use_graphs = on;
    }

    /// Whether operations that follow each other share launches where they can. They do unless switched off, to compare.
    pub fn use_fusion(&self, on: bool) {
        self.fuse.store(on, Ordering::Relaxed);
    }

    /// Whether matrices times many rows take the wide kernel, where the device has one. They do unless switched off, to compare.
    pub fn use_wide(&self, on: bool) {
        self.wide.store(on, Ordering::Relaxed);
    }

    /// Whether matrices times few rows take the kernels that spread over clusters, where the device has it. They do unless switched off, to
    /// compare.
    pub fn use_split(&self, on: bool) {
        self.split.store(on, Ordering::Relaxed);
    }

    /// As [`Context::use_split`] set it.
    pub fn split(&self) -> bool {
        self.split.load(Ordering::Relaxed)
    }

    /// As [`Context::use_wide`] set it.
    pub fn wide(&self) -> bool {
        self.wide.load(Ordering::Relaxed)
    }

    /// What was sent off so far.
    pub fn sent(&self) -> Sent {
        self.queue().sent
    }
}

/// An operation under way: until it is dropped nothing is sent off, so that the host data it brought stays in place.
pub struct Operation<'a> {
    queue: MutexGuard<'a, Queue>,
    fuse: bool,
}

impl Operation<'_> {
    /// Host data for this operation's kernels: its device address.
    pub fn feed<T: bytemuck::NoUninit>(&mut self, data: &[T]) -> u64 {
        self.queue.feed(bytemuck::cast_slice(data))
    }

    /// Queues a kernel.
    pub fn launch(&mut self, function: Function, shape: Shape, args: &[u64]) {
        self.launch_as(0, function, shape, args);
    }

    /// Queues a kernel that later operations may recognise by its tag, and take further.
    pub fn launch_as(&mut self, tag: u32, function: Function, shape: Shape, args: &[u64]) {
        self.queue.push(Launch::new(tag, function, shape.grid, shape.block, shape.shared, args));
    }

    /// Whether work may be added to launches that others would do on their own.
    pub fn joins(&self) -> bool {
        self.fuse
    }

    /// The kernel queued last, unless it went off: an operation may add its own work to it.
    pub fn last(&mut self) -> Option<&mut Launch> {
        if self.fuse { self.queue.last() } else { None }
    }

    /// Puts a kernel in place of the one queued last.
    pub fn replace_last(&mut self, tag: u32, function: Function, shape: Shape, args: &[u64]) {
        if let Some(last) = self.queue.last() {
            *last = Launch::new(tag, function, shape.grid, shape.block, shape.shared, args);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The queue frees its memory, which needs the context; what was launched ends first.
        let _ = self.device.bind();
        let _ = self.device.synchronize();
    }
}
