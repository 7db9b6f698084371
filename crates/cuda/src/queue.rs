//! The queue: launches are noted down, and go to the device when a result is asked for.
//!
//! A decode step is hundreds of short kernels, and the same ones as in the step before: same functions, grids and addresses
//! ([`crate::memory`] hands memory out in the same order). So a sequence of launches that comes again is recorded as a CUDA
//! graph and from then on launched with one call. Nothing above knows of it. What differs from step to step, token ids and
//! positions, goes through the feed: host data copied to the same place of the device before the launches.

use std::collections::HashMap;

use cudarc::driver::{result, sys};

use crate::device::Device;
use crate::error::CudaError;
use crate::module::Function;

/// Most arguments of a kernel.
pub const ARGS: usize = 24;
/// Bytes of host data that launches can bring before they must go off; grows when one operation brings more.
const FEED: usize = 4 << 20;
/// Launches after which the queue is sent off although nobody asked.
const LONGEST: usize = 4096;
/// Launches of a pass after which the device begins with it. They keep it busy while the host notes down the rest.
const FIRST: usize = 32;
/// Recorded graphs kept; beyond that the half unused for longest goes.
const GRAPHS: usize = 96;
/// Shortest sequence worth a graph.
const SHORTEST: usize = 4;

/// An argument of a kernel: every kind fits eight bytes, of which the kernel reads as many as it declared.
pub trait Arg {
    /// The bytes.
    fn word(self) -> u64;
}

impl Arg for u64 {
    fn word(self) -> u64 {
        self
    }
}

impl Arg for u32 {
    fn word(self) -> u64 {
        u64::from(self)
    }
}

impl Arg for usize {
    /// For kernels that take `unsigned`: what does not fit is a bug that tests of bounds would not see.
    fn word(self) -> u64 {
        u64::from(u32::try_from(self).expect("a size a kernel can count"))
    }
}

impl Arg for f32 {
    fn word(self) -> u64 {
        u64::from(self.to_bits())
    }
}

/// The arguments of a launch.
#[macro_export]
macro_rules! args {
    ($($value:expr),* $(,)?) => { [$($crate::queue::Arg::word($value)),*] };
}

/// One launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    function: Function,
    grid: [u32; 3],
    block: u32,
    shared: u32,
    count: u32,
    args: [u64; ARGS],
    tag: u32,
}

impl Launch {
    /// Notes a launch; `tag` is for whoever wants to recognise it ([`crate::ops::fuse`]).
    pub fn new(tag: u32, function: Function, grid: [usize; 3], block: usize, shared: usize, args: &[u64]) -> Self {
        let mut all = [0; ARGS];
        all[..args.len()].copy_from_slice(args);
        let grid = grid.map(|g| g as u32);
        let (block, shared, count) = (block as u32, shared as u32, args.len() as u32);
        Launch { function, grid, block, shared, count, args: all, tag }
    }

    /// Its tag.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Its grid.
    pub fn grid(&self) -> [usize; 3] {
        self.grid.map(|g| g as usize)
    }

    /// Its arguments, to change before it goes off.
    pub fn args(&mut self) -> &mut [u64] {
        &mut self.args[..self.count as usize]
    }

    /// Sets the blocks of its second dimension.
    pub fn set_grid_y(&mut self, y: usize) {
        self.grid[1] = y as u32;
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        let shape = [self.function.0 as u64, u64::from(self.grid[0]) << 32 | u64::from(self.grid[1])];
        let rest = u64::from(self.grid[2]) << 32 | u64::from(self.shared);
        shape.into_iter().chain([rest]).chain(self.args).take(3 + self.count as usize)
    }
}

struct Graph {
    launches: Vec<Launch>,
    graph: Option<sys::CUgraphExec>,
    used: u64,
}

/// What was sent off, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Batches launched kernel by kernel.
    pub single: u64,
    /// Batches launched as a graph.
    pub graphs: u64,
    /// Kernels in all of them.
    pub kernels: u64,
}

/// Host memory that the device copies from without a detour.
struct Pinned {
    address: *mut u8,
    bytes: usize,
}

impl Pinned {
    fn new(bytes: usize) -> Result<Self, CudaError> {
        // SAFETY: the context is current; freed on drop.
        let address = unsafe { result::malloc_host(bytes, 0) }.map_err(|e| CudaError::call("cuMemHostAlloc", e))?;
        Ok(Pinned { address: address.cast(), bytes })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: owned, and as long; the device reads or writes it only between a launch and the wait for it, when nobody
        // calls this.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: from `malloc_host`.
        let _ = unsafe { result::free_host(self.address.cast()) };
    }
}

/// Launches waiting, and what was recorded of earlier ones.
pub struct Queue {
    launches: Vec<Launch>,
    feed: Pinned,
    feed_device: u64,
    fed: usize,
    copied: usize,                       // of it, what was sent off already
    begun: bool, // whether launches went off since host data was put at the beginning of the feed
    parts: HashMap<u64, (usize, usize)>, // what was fed already: hash -> place, length
    in_flight: bool,
    back: Option<Pinned>,
    graphs: HashMap<u64, Vec<Graph>>,
    kept: usize,
    clock: u64,
    /// Whether sequences that come again become graphs.
    pub use_graphs: bool,

    /// Counts.
    pub sent: Sent,
}

// SAFETY: the handles may be used from any thread that makes the context current, which every call here does first.
unsafe impl Send for Queue {}

fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    /// When its memory cannot be had.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let feed_device = device.allocate(FEED, "a forward's inputs")?;
        Ok(Queue {
            launches: Vec::new(),
            feed: Pinned::new(FEED)?,
            feed_device,
            fed: 0,
            copied: 0,
            begun: false,
            parts: HashMap::new(),
            in_flight: false,
            back: None,
            graphs: HashMap::new(),
            kept: 0,
            clock: 0,
            use_graphs: true,
            sent: Sent::default(),
        })
    }

    /// Notes a launch down. It goes off later, however many there are: see [`Queue::room`].
    pub fn push(&mut self, launch: Launch) {
        if !launch.grid.contains(&0) {
            self.launches.push(launch);
        }
    }

    /// The launch noted last, if it has not gone off.
    pub fn last(&mut self) -> Option<&mut Launch> {
        self.launches.last_mut()
    }

    /// Makes room for an operation that brings host data of `bytes` in all: sends off what waits when that is too much. Between
    /// this and the operation's last launch nothing goes off, so that what it brought is still there.
    ///
    /// # Errors
    /// The device's.
    pub fn room(&mut self, device: &Device, bytes: usize) -> Result<(), CudaError> {
        let bytes = bytes + 16 * ARGS; // each part is padded
        if self.launches.len() >= LONGEST || self.fed + bytes > self.feed.bytes {
            self.flush(device)?;
        } else if !self.begun && self.launches.len() >= FIRST {
            self.begin(device)?;
        }
        if bytes > self.feed.bytes {
            device.bind()?;
            device.synchronize()?;
            let size = bytes.next_power_of_two();
            self.feed = Pinned::new(size)?;
            // SAFETY: from `malloc_sync`, and nothing that reads it is under way.
            let freed = unsafe { result::free_sync(self.feed_device) };
            freed.map_err(|e| CudaError::call("cuMemFree", e))?;
            self.feed_device = 0;
            self.feed_device = device.allocate(size, "a forward's inputs")?;
        }
        if self.in_flight {
            // The copy of what was fed last may not have happened yet.
            device.bind()?;
            device.synchronize()?;
            self.in_flight = false;
        }
        Ok(())
    }

    /// Puts host data where the launches after this can read it; returns its device address. Data that was fed since the
    /// queue last went off is not fed twice. [`Queue::room`] was made for it.
    pub fn feed(&mut self, data: &[u8]) -> u64 {
        let hash = data.chunks(8).fold(data.len() as u64, |h, c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            mix(h, u64::from_le_bytes(word))
        });
        if let Some((at, len)) = self.parts.get(&hash)
            && *len == data.len()
            && self.feed.bytes()[*at..at + len] == *data
        {
            return self.feed_device + *at as u64;
        }
        let at = self.fed;
        if at + data.len() > self.feed.bytes {
            // Only after a fault, when nobody makes room: nothing that would read it is launched any more.
            return self.feed_device;
        }
        self.feed.bytes()[at..at + data.len()].copy_from_slice(data);
        self.fed = (at + data.len()).next_multiple_of(16);
        self.parts.insert(hash, (at, data.len()));
        self.feed_device + at as u64
    }

    /// Sends off what there is while more comes: the device begins, and need not wait until the host has noted down a whole pass. What was fed
    /// stays where it is, for launches to come.
    fn begin(&mut self, device: &Device) -> Result<(), CudaError> {
        let sent = self.copy_and_send(device);
        // What could not be sent never will be: its host data may be gone by then.
        self.launches.clear();
        sent
    }

    fn copy_and_send(&mut self, device: &Device) -> Result<(), CudaError> {
        if let Some(failure) = device.failure() {
            return Err(failure.clone());
        }
        device.bind()?;
        let (from, to) = (self.copied, self.fed.min(self.feed.bytes));
        if from < to {
            // SAFETY: both sides are as long; this part of the host side is not written before the stream was waited for.
            unsafe {
                result::memcpy_htod_async(self.feed_device + from as u64, &self.feed.bytes()[from..to], device.stream)
            }
            .map_err(|e| CudaError::call("cuMemcpyHtoDAsync", e))?;
            self.copied = to;
        }
        self.begun = true;
        self.sent.kernels += self.launches.len() as u64;
        self.send(device)
    }

    /// Sends everything off.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&mut self, device: &Device) -> Result<(), CudaError> {
        let sent = if self.launches.is_empty() { Ok(()) } else { self.begin(device) };
        if self.begun {
            // Host data goes to the beginning again, once what was copied from there has gone.
            self.in_flight |= self.copied > 0;
            self.parts.clear();
            (self.fed, self.copied, self.begun) = (0, 0, false);
        }
        sent
    }

    fn send(&mut self, device: &Device) -> Result<(), CudaError> {
        if !self.use_graphs || self.launches.len() < SHORTEST {
            self.sent.single += 1;
            return launch_all(device, &self.launches);
        }
        self.clock += 1;
        let hash = self.launches.iter().flat_map(Launch::words).fold(0, mix);
        let same = self.graphs.entry(hash).or_default();
        match same.iter_mut().find(|g| g.launches == self.launches) {
            None => {
                // Once is no pattern.
                same.push(Graph { launches: self.launches.clone(), graph: None, used: self.clock });
                self.kept += 1;
                self.sent.single += 1;
                launch_all(device, &self.launches)?;
                if self.kept > GRAPHS { self.forget() } else { Ok(()) }
            }
            Some(known) => {
                known.used = self.clock;
                let graph = match known.graph {
                    Some(graph) => graph,
                    None => *known.graph.insert(record(device, &known.launches)?),
                };
                self.sent.graphs += 1;
                // SAFETY: a graph made of this device's functions; the stream lives.
                unsafe { result::graph::launch(graph, device.stream) }.map_err(|e| CudaError::call("cuGraphLaunch", e))
            }
        }
    }

    /// Drops the older half of what was recorded.
    fn forget(&mut self) -> Result<(), CudaError> {
        let mut times: Vec<u64> = self.graphs.values().flatten().map(|g| g.used).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        let mut kept = 0;
        self.graphs.retain(|_, same| {
            same.retain(|g| {
                if g.used < middle
                    && let Some(graph) = g.graph
                {
                    // SAFETY: made by `record`, and not used again; one that still runs is kept alive by the driver.
                    let _ = unsafe { result::graph::exec_destroy(graph) };
                }
                g.used >= middle
            });
            kept += same.len();
            !same.is_empty()
        });
        self.kept = kept;
        Ok(())
    }

    /// Sends everything off, waits, and brings `out.len()` bytes back from a device address.
    ///
    /// # Errors
    /// The device's: faults of kernels show here.
    pub fn read(&mut self, device: &Device, from: u64, out: &mut [u8]) -> Result<(), CudaError> {
        self.flush(device)?;
        device.bind()?;
        if self.back.as_ref().is_none_or(|b| b.bytes < out.len()) {
            self.back = None;
            self.back = Some(Pinned::new(out.len().next_power_of_two().max(1 << 16))?);
        }
        let Some(back) = self.back.as_mut() else { return Ok(()) };
        let staged = &mut back.bytes()[..out.len()];
        // SAFETY: both sides are as long, and the host side is read only after the wait below.
        unsafe { result::memcpy_dtoh_async(staged, from, device.stream) }
            .map_err(|e| CudaError::call("cuMemcpyDtoHAsync", e))?;
        device.synchronize()?;
        self.in_flight = false;
        out.copy_from_slice(staged);
        Ok(())
    }

    /// Sends everything off and fills memory with a byte.
    ///
    /// # Errors
    /// The device's.
    pub fn fill(&mut self, device: &Device, address: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.flush(device)?;
        device.bind()?;
        // SAFETY: the caller owns that much there.
        unsafe { result::memset_d8_async(address, byte, bytes, device.stream) }
            .map_err(|e| CudaError::call("cuMemsetD8Async", e))
    }

    /// Sends everything off and copies host data of any size to a device address.
    ///
    /// # Errors
    /// The device's.
    pub fn write(&mut self, device: &Device, to: u64, data: &[u8]) -> Result<(), CudaError> {
        self.flush(device)?;
        device.bind()?;
        // SAFETY: the caller owns that much there. The source is not pinned, so the driver has taken it when this returns.
        unsafe { result::memcpy_htod_async(to, data, device.stream) }
            .map_err(|e| CudaError::call("cuMemcpyHtoDAsync", e))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for graph in self.graphs.values().flatten().filter_map(|g| g.graph) {
            // SAFETY: made by `record`.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
        // SAFETY: from `malloc_sync`.
        let _ = unsafe { result::free_sync(self.feed_device) };
    }
}

fn launch_all(device: &Device, launches: &[Launch]) -> Result<(), CudaError> {
    // Every kernel waits for the one before itself (`after_others`), where the device can do that.
    // SAFETY: plain data, for which zero is a value.
    let mut overlap: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    overlap.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
    for l in launches {
        let mut args = l.args;
        let mut pointers = [std::ptr::null_mut(); ARGS];
        pointers.iter_mut().zip(&mut args).for_each(|(p, a)| *p = std::ptr::from_mut(a).cast());
        let config = sys::CUlaunchConfig {
            gridDimX: l.grid[0],
            gridDimY: l.grid[1],
            gridDimZ: l.grid[2],
            blockDimX: l.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: l.shared,
            hStream: device.stream,
            attrs: &raw mut overlap,
            numAttrs: u32::from(device.capability >= 90),
        };
        // SAFETY: the function is loaded; its arguments are as many as it declares and each at least as wide (tests launch
        // every kernel); what they point to is held by buffers or weights until after this stream got here; configuration
        // and attribute outlive the call.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, l.function.raw(), pointers.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(|e| CudaError::call("cuLaunchKernelEx", e))?;
    }
    Ok(())
}

/// Records launches as a graph, launching nothing.
fn record(device: &Device, launches: &[Launch]) -> Result<sys::CUgraphExec, CudaError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream lives and is not recording.
    unsafe { result::stream::begin_capture(device.stream, mode) }
        .map_err(|e| CudaError::call("cuStreamBeginCapture", e))?;
    let launched = launch_all(device, launches);
    // SAFETY: recording began above, and ends here whatever happened between.
    let graph = unsafe { result::stream::end_capture(device.stream) };
    launched?;
    let graph = graph.map_err(|e| CudaError::call("cuStreamEndCapture", e))?;
    // SAFETY: the graph was just made; the executable form does not need it any more.
    let made = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
    // SAFETY: as above.
    let _ = unsafe { result::graph::destroy(graph) };
    made.map_err(|e| CudaError::call("cuGraphInstantiate", e))
}
