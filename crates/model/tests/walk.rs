//! Whole-model walks: the row law and the state law where they count, in the logit bytes of complete networks.
//!
//! On the demo checkpoint (window 256) one reference walk a precision feeds 600 positions one at a time on one thread.
//! Against it stand, in both precisions and on one thread and two: every width 2..=16 (width 1 again on two threads),
//! random widths, the whole sequence as one prefill chunk, 1, 2, 4 and 8 sequences of mixed lengths in shared batches,
//! speculation that takes wrong blocks back, and prefixes taken over from a warm cache. The tiny checkpoints (window 8,
//! shared K/V, per-layer embeddings, experts, every quantisation they come in) are walked likewise over 200 positions, in
//! f32 precision on one thread and in int8 on two. Twins of the walks on a backend with a fault must fail.

mod common;

use std::path::Path;
use std::sync::{OnceLock, RwLock};
use std::time::Instant;

use common::walk::{Tape, mixed, resumed, spans, taking_back, together, width};
use common::{Golden, Rng, Walker, demo, goldens, load, load_on};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};

const WIDTHS: std::ops::RangeInclusive<usize> = 1..=16;
/// Lengths of the demo's sequences: before, at and past page borders and the window.
const LENGTHS: [usize; 8] = [600, 300, 257, 130, 64, 33, 17, 7];
/// Positions that a block of wrong tokens may lie beyond the end.
const SLACK: usize = 16;
/// Walks on one thread run beside each other, a walk on two alone: workers that wait for a core measure nothing.
static CORES: RwLock<()> = RwLock::new(());

/// Golden prompts with their answers, then random ids.
fn demo_tokens(sequence: usize) -> Vec<u32> {
    let golden = Golden::open(&demo());
    let mut rng = Rng(sequence as u64);
    let mut tokens = Vec::new();
    for turn in 0..3 {
        let prompt = ["prose", "code", "enumeration"][(sequence + turn) % 3];
        tokens.extend(golden.ids(&format!("{prompt}.prompt_ids")));
        tokens.extend(golden.ids(&format!("{prompt}.continuation_ids")));
    }
    tokens.extend((0..LENGTHS[0]).map(|_| rng.below(16_384) as u32));
    tokens.truncate(LENGTHS[sequence]);
    tokens
}

/// The reference walks of a precision: width 1, one thread, alone.
fn demo_tapes(precision: Precision, sequences: usize) -> Vec<&'static Tape> {
    static TAPES: [[OnceLock<Tape>; 8]; 2] = [const { [const { OnceLock::new() }; 8] }; 2];
    let tapes = &TAPES[usize::from(precision == Precision::Int8)];
    let tape = |s: usize| {
        tapes[s].get_or_init(|| {
            Tape::record(&mut Walker::new(load(&demo(), precision, 1), 1, LENGTHS[s]), 0, demo_tokens(s))
        })
    };
    (0..sequences).map(tape).collect()
}

/// Runs a walk of the demo in both precisions, on one thread and two.
fn everywhere(name: &str, sequences: usize, walk: impl Fn(&mut Walker, &[&Tape], usize)) {
    for precision in [Precision::F32, Precision::Int8] {
        let tapes = {
            let _shared = CORES.read().unwrap_or_else(|e| e.into_inner());
            demo_tapes(precision, sequences)
        };
        for threads in [1, 2] {
            let _shared = (threads == 1).then(|| CORES.read().unwrap_or_else(|e| e.into_inner()));
            let _alone = (threads == 2).then(|| CORES.write().unwrap_or_else(|e| e.into_inner()));
            let started = Instant::now();
            let mut walker = Walker::new(load(&demo(), precision, threads), sequences, LENGTHS[0] + SLACK);
            walk(&mut walker, &tapes, threads);
            println!("{name}, {}: {:.1} s", walker.model.backend(), started.elapsed().as_secs_f32());
        }
    }
}

#[test]
fn every_width_gives_the_bytes_of_width_1() {
    everywhere("widths 1..=16", 1, |walker, tapes, _| {
        for w in WIDTHS {
            width(walker, tapes[0], w).unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
        }
    });
}

#[test]
fn one_prefill_chunk_and_random_widths_give_the_bytes_of_width_1() {
    everywhere("chunk and random widths", 1, |walker, tapes, threads| {
        spans(walker, tapes[0], "one chunk", || LENGTHS[0])
            .unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
        for seed in 0..2 {
            let seed = 10 * threads as u64 + seed;
            mixed(walker, tapes[0], seed).unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
        }
    });
}

#[test]
fn sequences_in_one_batch_give_the_bytes_of_each_alone() {
    everywhere("1, 2, 4, 8 sequences", 8, |walker, tapes, threads| {
        for sequences in [1, 2, 4, 8] {
            // Those with few sequences leave out the short ones.
            together(walker, &tapes[..sequences], threads as u64)
                .unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
        }
    });
}

#[test]
fn wrong_blocks_taken_back_leave_no_trace() {
    everywhere("taking back", 2, |walker, tapes, threads| {
        taking_back(walker, tapes, threads as u64).unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
    });
}

#[test]
fn a_warm_cache_gives_the_bytes_of_a_cold_one() {
    everywhere("from a warm cache", 2, |walker, tapes, threads| {
        resumed(walker, tapes[0], threads as u64).unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
    });
}

/// All the walks of a tiny checkpoint.
fn tiny(dir: &Path, precision: Precision, threads: usize) {
    const POSITIONS: usize = 200;
    let name = dir.file_name().expect("name").to_string_lossy();
    let mut solo = Walker::new(load(dir, precision, 1), 1, POSITIONS);
    let vocab = solo.model.info().vocab_size;
    let golden = Golden::open(dir).ids("input_ids");
    let tapes: Vec<Tape> = [POSITIONS, 150, 131, 65, 64, 40, 9, 3]
        .iter()
        .enumerate()
        .map(|(s, len)| {
            let mut rng = Rng(s as u64);
            let random = std::iter::repeat_with(|| rng.below(vocab) as u32);
            let tokens = golden.iter().copied().skip(s).chain(random).take(*len).collect();
            Tape::record(&mut solo, 0, tokens)
        })
        .collect();
    let tapes: Vec<&Tape> = tapes.iter().collect();
    let mut walker = Walker::new(load(dir, precision, threads), 8, POSITIONS + SLACK);
    let walks = |walker: &mut Walker| {
        for w in WIDTHS {
            width(walker, tapes[0], w)?;
        }
        spans(walker, tapes[0], "one chunk", || POSITIONS)?;
        mixed(walker, tapes[0], 3)?;
        for sequences in [1, 2, 4, 8] {
            together(walker, &tapes[..sequences], sequences as u64)?;
        }
        taking_back(walker, &tapes[..1], 5)?;
        taking_back(walker, &tapes, 6)?;
        resumed(walker, tapes[0], 7)?;
        // As models of long rows are compared.
        width(walker, &tapes[0].hashed(), 4)
    };
    walks(&mut walker).unwrap_or_else(|e| panic!("{name}, {}: {e}", walker.model.backend()));
}

#[test]
fn the_tiny_checkpoints_keep_their_bytes() {
    let dirs = goldens(&["e2b", "e4b", "moe", "unified"]);
    assert_eq!(dirs.len(), 12, "golden directories");
    for dir in &dirs {
        let started = Instant::now();
        tiny(dir, Precision::F32, 1);
        tiny(dir, Precision::Int8, 2);
        println!("{}: {:.1} s", dir.file_name().expect("name").display(), started.elapsed().as_secs_f32());
    }
}

/// The demo on a CPU with a fault.
fn faulty(fault: Fault, precision: Precision, sequences: usize) -> Walker {
    let backend = Faulty::new(CpuBackend::new(precision, 1), fault);
    Walker::new(load_on(&demo(), backend), sequences, LENGTHS[0] + SLACK)
}

#[test]
fn faults_are_caught_at_every_width_where_they_act() {
    for precision in [Precision::F32, Precision::Int8] {
        let tape = demo_tapes(precision, 1)[0];
        let _shared = CORES.read().unwrap_or_else(|e| e.into_inner());
        for (fault, from) in [(Fault::WideLinear, 2), (Fault::StaleKeys, 2), (Fault::ChunkAttention, 9)] {
            let mut walker = faulty(fault, precision, 1);
            for w in WIDTHS.filter(|w| *w >= from) {
                let caught = width(&mut walker, tape, w).expect_err("the fault must be seen");
                if w == from {
                    println!("{fault:?}: {caught}");
                }
            }
            spans(&mut walker, tape, "two chunks", || LENGTHS[0] / 2).expect_err("the fault must be seen");
            mixed(&mut walker, tape, 1).expect_err("the fault must be seen");
            let caught = width(&mut walker, &tape.hashed(), 16).expect_err("the fault must be seen");
            println!("{fault:?}: {caught}");
        }
    }
}

#[test]
fn faults_are_caught_in_batches_and_when_blocks_are_taken_back() {
    for precision in [Precision::F32, Precision::Int8] {
        let tapes = demo_tapes(precision, 4);
        let _shared = CORES.read().unwrap_or_else(|e| e.into_inner());
        for fault in [Fault::WideLinear, Fault::StaleKeys, Fault::ChunkAttention] {
            let mut walker = faulty(fault, precision, 4);
            for sequences in [1, 2, 4] {
                together(&mut walker, &tapes[..sequences], 1).expect_err("the fault must be seen");
            }
            taking_back(&mut walker, &tapes[..2], 1).expect_err("the fault must be seen");
            resumed(&mut walker, tapes[0], 1).expect_err("the fault must be seen");
        }
        // Traces of former rows show only where positions are written twice.
        let mut walker = faulty(Fault::Residue, precision, 1);
        width(&mut walker, tapes[1], 16).expect("no position is written twice");
        let mut walker = faulty(Fault::Residue, precision, 1);
        let caught = taking_back(&mut walker, &tapes[..1], 1).expect_err("the fault must be seen");
        println!("Residue: {caught}");
    }
}
