//! The thread pool: fork and join in under a microsecond while a model runs, asleep otherwise.
//!
//! [`Pool::run`] shares out numbered chunks: each thread, the caller included, begins with a span of its own and goes through it
//! in order, so that what it prefetches beyond a chunk is its own next one; who has finished takes chunks from the end of
//! another's span, so that a thread that lost its core holds up nobody. Which thread computes a chunk never matters to the
//! bits. Workers spin for a while after a job, because the next operation of a forward pass comes within microseconds, then
//! park.

use std::cell::{Cell, UnsafeCell};
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

/// A value on cache lines of its own (processors fetch them in pairs), so that who waits for one does not slow down who
/// writes another.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// What is left of a thread's span: generation 24 bits, end 20, next 20. One compare-exchange both proves that the job still
/// runs and takes a chunk of it, so a worker that overslept can never touch a finished job.
type Span = Apart<AtomicU64>;

/// The job and its progress.
struct Shared {
    /// Counts jobs; what waiting workers look at.
    generation: Apart<AtomicU64>,
    /// One for each thread, the caller's first.
    spans: Box<[Span]>,
    /// Chunks that workers ran.
    done: Apart<AtomicUsize>,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Written when no chunk is claimed, read by who holds one.
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is written by `Pool::run` alone, under its turn lock and when every chunk that was claimed is done, and read
// only between a claim and the matching `done`.
unsafe impl Sync for Shared {}

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

const FIELD: u64 = MAX_CHUNKS as u64;

fn pack(generation: u64, next: usize, end: usize) -> u64 {
    (generation & 0xff_ffff) << 40 | (end as u64) << 20 | next as u64
}

/// Takes a chunk of a span: its first for the owner, its last for another.
fn take_from(span: &Span, owner: bool) -> Option<usize> {
    let mut claim = span.0.load(Ordering::Acquire);
    loop {
        let (end, next) = (claim >> 20 & FIELD, claim & FIELD);
        if next >= end {
            return None;
        }
        let (chunk, rest) = if owner { (next, claim + 1) } else { (end - 1, claim - (1 << 20)) };
        match span.0.compare_exchange_weak(claim, rest, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(chunk as usize),
            Err(now) => claim = now,
        }
    }
}

impl Shared {
    /// Takes a chunk of the current job for thread `me`, if there is one.
    fn take(&self, me: usize) -> Option<usize> {
        let (others, own) = self.spans.split_at(me);
        let (own, more) = own.split_first()?;
        take_from(own, true).or_else(|| more.iter().chain(others).find_map(|span| take_from(span, false)))
    }
}

/// Marks this thread as being inside a chunk.
struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Runs chunks for thread `me` until none is left to take.
fn work_off(shared: &Shared, me: usize) {
    let mut ran = 0;
    while let Some(chunk) = shared.take(me) {
        ran += 1;
        // SAFETY: a chunk is claimed and not counted as done, so `run` has not returned: the job is this chunk's, nobody
        // writes it, and its closure lives. That holds for all chunks of this loop, since none is counted before its end.
        if let Some(Job(work)) = unsafe { *shared.job.get() } {
            let _inside = Inside::enter();
            // SAFETY: as above.
            let run = || unsafe { (*work)(chunk) };
            // The thread outlives a panic; the caller hears of it.
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
    }
    if ran > 0 {
        shared.done.0.fetch_add(ran, Ordering::Release);
    }
}

fn worker(shared: &Shared, me: usize, parked: &AtomicBool) {
    let (mut spins, mut seen) = (0, 0);
    loop {
        let now = shared.generation.0.load(Ordering::Acquire);
        if now != seen {
            (seen, spins) = (now, 0);
            work_off(shared, me);
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
            if shared.generation.0.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
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
    /// Chunks that the caller took.
    own: usize,
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        // After a panic of the caller: take what is left without running it.
        while self.shared.take(0).is_some() {
            self.own += 1;
        }
        let mut spins = 0;
        while self.shared.done.0.load(Ordering::Acquire) + self.own < self.chunks {
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
            generation: Apart::default(),
            spans: (0..threads.max(1)).map(|_| Span::default()).collect(),
            done: Apart::default(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let mut sleepers = Vec::new();
        let mut handles = Vec::new();
        for i in 1..threads.max(1) {
            let parked = Arc::new(AtomicBool::new(false));
            let (theirs, flag) = (Arc::clone(&shared), Arc::clone(&parked));
            // When the system refuses another thread, fewer do the same work.
            let Ok(handle) =
                std::thread::Builder::new().name(format!("mlxcel-cpu-{i}")).spawn(move || worker(&theirs, i, &flag))
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
        // SAFETY: the turn is this thread's, and all chunks of the job before are done, so nobody reads.
        unsafe { *shared.job.get() = Some(erased) };
        shared.done.0.store(0, Ordering::Relaxed);
        // From here on, whatever happens, this frame waits for the chunks that were claimed.
        let mut join = Join { shared, chunks, own: 0 };
        let (generation, threads) = (shared.generation.0.load(Ordering::Relaxed) + 1, self.threads());
        for (t, span) in shared.spans.iter().take(threads).enumerate() {
            span.0.store(pack(generation, chunks * t / threads, chunks * (t + 1) / threads), Ordering::Release);
        }
        shared.generation.0.store(generation, Ordering::SeqCst);
        for sleeper in &self.sleepers {
            if sleeper.parked.load(Ordering::SeqCst) {
                sleeper.thread.unpark();
            }
        }
        while let Some(chunk) = shared.take(0) {
            join.own += 1;
            let _inside = Inside::enter();
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
    fn a_thread_that_is_held_up_holds_up_only_its_chunk() {
        let pool = Pool::new(2);
        let (others, late) = (AtomicUsize::new(0), Instant::now() + LONG);
        let order = Mutex::new(Vec::new());
        pool.run(16, &|c| {
            if c == 0 {
                // The caller's first chunk waits for the fifteen others, seven of which are of its own span.
                while others.load(Ordering::Acquire) < 15 {
                    assert!(Instant::now() < late, "nobody takes the chunks of a thread that is held up");
                    std::thread::yield_now();
                }
            } else {
                order.lock().expect("no panic inside").push(c);
                others.fetch_add(1, Ordering::Release);
            }
        });
        let order = order.into_inner().expect("no panic inside");
        assert_eq!(
            order,
            [8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1],
            "its own in order, then from the other end"
        );
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
