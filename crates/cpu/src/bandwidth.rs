//! The machine's read bandwidth, measured: what packed weights can at best stream at.

use std::time::Instant;

use crate::memory::prefer_huge;
use crate::pool::Pool;

/// Reads `bytes` of memory with all threads of the pool, `repeats` times, and returns the best GB/s.
pub fn read_bandwidth(pool: &Pool, bytes: usize, repeats: usize) -> f64 {
    let mut memory = vec![0u64; bytes / 8];
    // As packed weights lie.
    prefer_huge(&mut memory);
    memory.fill(1);
    let chunk = 32 * 1024;
    let chunks = memory.len().div_ceil(chunk);
    let mut best = 0.0f64;
    for _ in 0..repeats {
        let start = Instant::now();
        pool.run(chunks, &|c| {
            let part = &memory[c * chunk..((c + 1) * chunk).min(memory.len())];
            let mut sums = [0u64; 16];
            for line in part.as_chunks::<16>().0 {
                sums.iter_mut().zip(line).for_each(|(s, v)| *s = s.wrapping_add(*v));
            }
            std::hint::black_box(sums);
        });
        best = best.max((memory.len() * 8) as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}
