//! The machine's read bandwidth, measured: what packed weights can at best stream at.

use std::time::Instant;

use crate::arch::{Isa, Kernel};
use crate::lanes::Lanes;
use crate::memory::prefer_huge;
use crate::pool::Pool;

/// As far ahead as the linear asks for cache lines.
const AHEAD: usize = 8192;

/// Adds up a stretch of memory.
struct Read<'a>(&'a [u64]);

impl Kernel for Read<'_> {
    type Out = [u64; 16];

    #[inline(always)]
    fn run<L: Lanes>(self) -> [u64; 16] {
        let mut sums = [0u64; 16];
        for lines in self.0.as_chunks::<16>().0 {
            // Addresses are only asked for: beyond the end is no harm.
            let start = lines.as_ptr().cast::<u8>();
            L::prefetch(start.wrapping_add(AHEAD));
            L::prefetch(start.wrapping_add(AHEAD + 64));
            for i in 0..16 {
                sums[i] = sums[i].wrapping_add(lines[i]);
            }
        }
        sums
    }
}

/// Reads `bytes` of memory with all threads of the pool, `repeats` times, and returns the best GB/s.
pub fn read_bandwidth(pool: &Pool, bytes: usize, repeats: usize) -> f64 {
    let mut memory = vec![0u64; bytes / 8];
    // As packed weights lie.
    prefer_huge(&mut memory);
    memory.fill(1);
    let chunk = 32 * 1024;
    let chunks = memory.len().div_ceil(chunk);
    let isa = Isa::best();
    let mut best = 0.0f64;
    for _ in 0..repeats {
        let start = Instant::now();
        pool.run(chunks, &|c| {
            let part = &memory[c * chunk..((c + 1) * chunk).min(memory.len())];
            std::hint::black_box(isa.run(Read(part)));
        });
        best = best.max((memory.len() * 8) as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}
