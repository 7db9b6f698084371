//! The thread pool: fork and join in under a microsecond while a model runs, asleep otherwise.
//!
//! [`Pool::run`] hands numbered chunks to whoever is free, the caller included. Which thread computes a chunk never
//! matters to the bits. Workers spin for a while after a job, because the next operation of a forward pass comes within
//! microseconds, then park.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Spins before a worker parks: some hundred microseconds.
const SPINS: usize = 20_000;
/// After this many spins each turn also offers the core to other processes.
const POLITE: usize = 2_000;
/// Most chunks of one job (a field of the claim word).
pub const MAX_CHUNKS: usize = (1 << 20) - 1;

type Work = dyn Fn(usize) + Sync;

thread_local! {
    /// True while this thread runs a chunk: a job started from inside one runs where it is, since the others may all be
    /// waiting for it.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The job and its progress. `claim` packs (generation 24 bits, chunks 20, next 20): one compare-exchange both proves
/// that the job still runs and takes a chunk of it, so a worker that overslept can never touch a finished job.
struct Shared {
    claim: AtomicU64,
    done: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    job: Mutex<Option<Job>>,
}

#[derive(Clone, Copy)]
struct Job(*const Work);

// SAFETY: the pointer is used only between a successful claim and the matching `done`, while `Pool::run` keeps the
// closure alive; the closure is Sync.
unsafe impl Send for Job {}

struct Sleeper {
    thread: Thread,
    parked: Arc<AtomicBool>,
}

/// A fixed set of threads that run chunks of work together with the caller.
pub struct Pool {
    shared: Arc<Shared>,
    sleepers: Vec<Sleeper>,
    handles: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

fn pack(generation: u64, chunks: usize, next: usize) -> u64 {
    generation << 40 | (chunks as u64) << 20 | next as u64
}

impl Shared {
    /// Takes the next chunk of the current job, if there is one.
    fn take(&self) -> Option<usize> {
        let mut claim = self.claim.load(Ordering::Acquire);
        loop {
            let (chunks, next) = ((claim >> 20 & 0xf_ffff) as usize, (claim & 0xf_ffff) as usize);
            if next >= chunks {
                return None;
            }
            match self.claim.compare_exchange_weak(claim, claim + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(next),
                Err(now) => claim = now,
            }
        }
    }

    fn has_work(&self) -> bool {
        let claim = self.claim.load(Ordering::SeqCst);
        (claim & 0xf_ffff) < (claim >> 20 & 0xf_ffff)
    }
}

/// Counts a chunk as done even when the work panics, so that nobody waits for ever.
struct Done<'a>(&'a Shared);

impl<'a> Done<'a> {
    fn when_dropped(shared: &'a Shared) -> Self {
        INSIDE.set(true);
        Done(shared)
    }
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        INSIDE.set(false);
        self.0.done.fetch_add(1, Ordering::Release);
    }
}

fn worker(shared: &Shared, parked: &AtomicBool) {
    let mut spins = 0;
    // The job's closure is looked up once per claim burst; the lock is uncontended (the caller holds it only to publish).
    loop {
        if let Some(chunk) = shared.take() {
            let job = shared.job.lock().map(|j| *j).unwrap_or_else(|e| *e.into_inner());
            let mut chunk = Some(chunk);
            while let Some(c) = chunk {
                let _done = Done::when_dropped(shared);
                if let Some(Job(work)) = job {
                    // SAFETY: chunk `c` of the live job is claimed and not done, so `run` has not returned and the
                    // closure lives. A later chunk of the same burst belongs to the same job: `run` cannot return and
                    // start another while this chunk is not done, and `take` is called before `_done` drops.
                    let run = || unsafe { (*work)(c) };
                    // The thread outlives a panic; the caller hears of it.
                    if catch_unwind(AssertUnwindSafe(run)).is_err() {
                        shared.panicked.store(true, Ordering::Relaxed);
                    }
                }
                chunk = shared.take();
            }
            spins = 0;
            continue;
        }
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        spins += 1;
        if spins < POLITE {
            std::hint::spin_loop();
        } else if spins < SPINS {
            std::thread::yield_now();
        } else {
            parked.store(true, Ordering::SeqCst);
            if !shared.has_work() && !shared.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
            spins = 0;
        }
    }
}

/// Finishes a job whatever happens in the caller's own chunk: no worker may outlive the closure.
struct Join<'a> {
    shared: &'a Shared,
    chunks: usize,
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        // After a panic of the caller: take what is left without running it.
        while self.shared.take().is_some() {
            self.shared.done.fetch_add(1, Ordering::Release);
        }
        let mut spins = 0;
        while self.shared.done.load(Ordering::Acquire) < self.chunks {
            spins += 1;
            if spins < POLITE { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if std::thread::panicking() {
            // The caller's own panic already carries the news.
            self.shared.panicked.store(false, Ordering::Relaxed);
        }
    }
}

impl Pool {
    /// A pool of `threads` in all, the caller included (at least 1).
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            claim: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            job: Mutex::new(None),
        });
        let mut sleepers = Vec::new();
        let mut handles = Vec::new();
        for i in 1..threads.max(1) {
            let parked = Arc::new(AtomicBool::new(false));
            let (theirs, flag) = (Arc::clone(&shared), Arc::clone(&parked));
            // When the system refuses another thread, fewer do the same work.
            let Ok(handle) =
                std::thread::Builder::new().name(format!("mlxcel-cpu-{i}")).spawn(move || worker(&theirs, &flag))
            else {
                break;
            };
            sleepers.push(Sleeper { thread: handle.thread().clone(), parked });
            handles.push(handle);
        }
        Pool { shared, sleepers, handles, turn: Mutex::new(()) }
    }

    /// Threads that work, the caller included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `work(0..chunks)`, each chunk once, and returns when all are done. Inside a chunk it runs on that thread alone.
    ///
    /// # Panics
    /// When a chunk panicked, or `chunks` exceeds [`MAX_CHUNKS`].
    pub fn run(&self, chunks: usize, work: &(dyn Fn(usize) + Sync)) {
        if chunks <= 1 || self.handles.is_empty() || INSIDE.get() {
            (0..chunks).for_each(work);
            return;
        }
        assert!(chunks <= MAX_CHUNKS, "{chunks} chunks in one job");
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. `Join` waits for every claimed chunk before this frame ends.
        let erased = Job(unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Work>(work) });
        *shared.job.lock().unwrap_or_else(|e| e.into_inner()) = Some(erased);
        shared.done.store(0, Ordering::Relaxed);
        // From here on, whatever happens, this frame waits for the chunks that were claimed.
        let join = Join { shared, chunks };
        let generation = (shared.claim.load(Ordering::Relaxed) >> 40) + 1;
        shared.claim.store(pack(generation & 0xff_ffff, chunks, 0), Ordering::SeqCst);
        for sleeper in &self.sleepers {
            if sleeper.parked.load(Ordering::SeqCst) {
                sleeper.thread.unpark();
            }
        }
        while let Some(chunk) = shared.take() {
            let _done = Done::when_dropped(shared);
            work(chunk);
        }
        drop(join);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a worker thread panicked; its message is above");
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for sleeper in &self.sleepers {
            sleeper.thread.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker that panicked has been reported by `run`.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    /// Far longer than any job here takes.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn every_chunk_runs_once_in_every_job() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for round in 0..2_000usize {
                let chunks = 1 + round % 23;
                let counts: Vec<AtomicU32> = (0..chunks).map(|_| AtomicU32::new(0)).collect();
                pool.run(chunks, &|c| {
                    counts[c].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "threads {threads}, chunks {chunks}");
            }
        }
    }

    #[test]
    fn a_job_inside_a_job_runs_in_place() {
        // On a thread of its own: a deadlock must fail, not hang.
        let (done, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let pool = Pool::new(2);
            let sum = AtomicUsize::new(0);
            pool.run(4, &|_| {
                pool.run(4, &|c| {
                    sum.fetch_add(c, Ordering::Relaxed);
                });
            });
            done.send(sum.into_inner())
        });
        assert_eq!(result.recv_timeout(LONG), Ok(4 * 6), "a sum, not a deadlock");
    }

    #[test]
    fn wakes_after_parking() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(60));
            let sum = AtomicUsize::new(0);
            pool.run(64, &|c| {
                sum.fetch_add(c, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 63 * 64 / 2);
        }
    }

    /// A job whose two chunks run on two threads: each waits for the other, or long enough to be sure that it is gone.
    fn on_both(pool: &Pool, work: &(dyn Fn(bool) + Sync)) {
        let (here, late) = (AtomicUsize::new(0), Instant::now() + LONG);
        let caller = std::thread::current().id();
        pool.run(2, &|_| {
            here.fetch_add(1, Ordering::AcqRel);
            while here.load(Ordering::Acquire) < 2 {
                assert!(Instant::now() < late, "the other thread is gone");
                std::thread::yield_now();
            }
            work(std::thread::current().id() == caller);
        });
    }

    #[test]
    fn a_panic_on_either_thread_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for on_caller in [false, true] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                on_both(&pool, &|caller| assert!(caller != on_caller, "planted"));
            }));
            assert!(result.is_err());
            on_both(&pool, &|_| {});
            let ran = AtomicUsize::new(0);
            pool.run(16, &|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 16);
        }
    }
}
