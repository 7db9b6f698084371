//! Fork and join of the thread pool: what an operation pays for using more than one thread.
//!
//! `cargo bench -p mlxcel-cpu --bench pool`: `empty` is a job too small for another thread to be in time, `meet` one whose chunks
//! wait for each other (what a job between the operations of a forward pass pays at most), `parked` the same after the workers
//! went to sleep.

use std::sync::atomic::{AtomicUsize, Ordering};

use divan::Bencher;
use mlxcel_cpu::pool::Pool;

/// Runs a job in which every thread takes one chunk and waits for the others.
fn rendezvous(pool: &Pool) {
    let here = AtomicUsize::new(0);
    pool.run(pool.threads(), &|_| {
        here.fetch_add(1, Ordering::AcqRel);
        while here.load(Ordering::Acquire) < pool.threads() {
            std::hint::spin_loop();
        }
    });
}

#[divan::bench(args = [1, 2], sample_count = 1000)]
fn empty(bencher: Bencher<'_, '_>, threads: usize) {
    let pool = Pool::new(threads);
    bencher.bench_local(|| {
        pool.run(threads, &|chunk| {
            divan::black_box(chunk);
        });
    });
}

#[divan::bench(args = [1, 2], sample_count = 1000)]
fn meet(bencher: Bencher<'_, '_>, threads: usize) {
    let pool = Pool::new(threads);
    bencher.bench_local(|| rendezvous(&pool));
}

#[divan::bench(args = [2], sample_count = 50, sample_size = 1)]
fn parked(bencher: Bencher<'_, '_>, threads: usize) {
    let pool = Pool::new(threads);
    bencher
        .with_inputs(|| std::thread::sleep(std::time::Duration::from_millis(30)))
        .bench_local_values(|()| rendezvous(&pool));
}

fn main() {
    divan::main();
}
