//! Whole-model walks of the recurrent family: the row law and the state law in the logit bytes of complete networks.
//!
//! The trained demo over 600 positions, in both precisions, on one thread and two: every width 1..=16, random widths, one
//! prefill chunk, 1, 2, 4 and 8 sequences of mixed lengths in shared batches, speculation that takes wrong blocks back, and
//! prefixes taken over from a warm cache. The tiny checkpoints (dense, tied, experts; both layouts, plain and 4 bits) likewise
//! over 200. Twins on a backend with a fault must fail.

mod common;

use std::path::{Path, PathBuf};
use std::time::Instant;

use common::walk::{Tape, mixed, resumed, spans, taking_back, together, width};
use common::{Golden, Rng, Walker, load, load_on, recurrent_demo, root};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};

const WIDTHS: std::ops::RangeInclusive<usize> = 1..=16;
/// Positions that a block of wrong tokens may lie beyond the end.
const SLACK: usize = 16;
/// Lengths of the demo's sequences: before, at and past page borders.
const LENGTHS: [usize; 8] = [600, 300, 257, 130, 64, 33, 17, 7];

/// The reference walks: width 1, one thread, alone.
fn tapes(dir: &Path, precision: Precision, lengths: &[usize], start: &[u32]) -> Vec<Tape> {
    let mut solo = Walker::new(load(dir, precision, 1), 1, lengths[0]);
    let vocab = solo.model.info().vocab_size;
    let tape = |(s, len): (usize, &usize)| {
        let mut rng = Rng(s as u64);
        let random = std::iter::repeat_with(|| rng.below(vocab) as u32);
        let tokens = start.iter().copied().skip(3 * s).chain(random).take(*len).collect();
        Tape::record(&mut solo, 0, tokens)
    };
    lengths.iter().enumerate().map(tape).collect()
}

/// All the walks of a checkpoint.
fn walks(walker: &mut Walker, tapes: &[Tape], widths: impl Iterator<Item = usize>, seed: u64) -> Result<(), String> {
    let tapes: Vec<&Tape> = tapes.iter().collect();
    for w in widths {
        width(walker, tapes[0], w)?;
    }
    let whole = tapes[0].len();
    spans(walker, tapes[0], "one chunk", || whole)?;
    mixed(walker, tapes[0], seed)?;
    for sequences in [1, 2, 4, 8] {
        together(walker, &tapes[..sequences], seed + sequences as u64)?;
    }
    taking_back(walker, &tapes[..1], seed)?;
    taking_back(walker, &tapes, seed + 1)?;
    resumed(walker, tapes[0], seed)
}

/// Golden prompts with their answers.
fn said() -> Vec<u32> {
    let golden = Golden::open(&recurrent_demo());
    let mut tokens = Vec::new();
    for prompt in ["prose", "code", "enumeration"] {
        tokens.extend(golden.ids(&format!("{prompt}.prompt_ids")));
        tokens.extend(golden.ids(&format!("{prompt}.continuation_ids")));
    }
    tokens
}

#[test]
fn the_demo_keeps_its_bytes() {
    for precision in [Precision::F32, Precision::Int8] {
        let tapes = tapes(&recurrent_demo(), precision, &LENGTHS, &said());
        for threads in [1, 2] {
            let started = Instant::now();
            let mut walker = Walker::new(load(&recurrent_demo(), precision, threads), 8, LENGTHS[0] + SLACK);
            // Two threads: every width again would only cost time; the widest tiles and odd ones do.
            let widths = WIDTHS.filter(|w| threads == 1 || [1, 2, 5, 8, 16].contains(w));
            walks(&mut walker, &tapes, widths, threads as u64)
                .unwrap_or_else(|e| panic!("{}: {e}", walker.model.backend()));
            println!("{}: {:.1} s", walker.model.backend(), started.elapsed().as_secs_f32());
        }
    }
}

fn tiny() -> Vec<PathBuf> {
    let base = root().join("tests/golden/qwen3_5");
    ["dense-mlx/f32", "dense-mlx/4bit", "dense-tied", "dense-tied-mlx/4bit", "moe", "moe-mlx/4bit"]
        .map(|n| base.join(n))
        .to_vec()
}

#[test]
fn the_tiny_checkpoints_keep_their_bytes() {
    const LENGTHS: [usize; 8] = [200, 150, 131, 65, 64, 40, 9, 3];
    for dir in tiny() {
        let started = Instant::now();
        for (precision, threads) in [(Precision::F32, 1), (Precision::Int8, 2)] {
            let tapes = tapes(&dir, precision, &LENGTHS, &[]);
            let mut walker = Walker::new(load(&dir, precision, threads), 8, LENGTHS[0] + SLACK);
            walks(&mut walker, &tapes, WIDTHS, 3)
                .unwrap_or_else(|e| panic!("{}, {}: {e}", dir.display(), walker.model.backend()));
        }
        println!("{}: {:.1} s", dir.display(), started.elapsed().as_secs_f32());
    }
}

#[test]
fn faults_are_caught() {
    let dir = root().join("tests/golden/qwen3_5/dense-mlx/4bit");
    let tapes = tapes(&dir, Precision::F32, &[150, 90], &[]);
    let walker = |fault| {
        let backend = Faulty::new(CpuBackend::new(Precision::F32, 1), fault);
        Walker::new(load_on(&dir, backend), 2, 150 + SLACK)
    };
    let seen = |fault, walk: &dyn Fn(&mut Walker) -> Result<(), String>| {
        let caught = walk(&mut walker(fault)).expect_err(&format!("{fault:?} must be seen"));
        println!("{fault:?}: {caught}");
    };
    for fault in [Fault::WideLinear, Fault::StaleKeys] {
        for w in 2..=16 {
            width(&mut walker(fault), &tapes[0], w).expect_err("the fault must be seen");
        }
        seen(fault, &|walker| taking_back(walker, &[&tapes[0]], 1));
    }
    seen(Fault::ChunkedDelta, &|walker| spans(walker, &tapes[0], "one chunk", || 150));
    for fault in [Fault::TakeBackShort, Fault::TakeBackWindow] {
        seen(fault, &|walker| taking_back(walker, &[&tapes[0]], 1));
    }
    seen(Fault::RestoreWindow, &|walker| resumed(walker, &tapes[0], 1));
    // What the sequence before left in the slot.
    for fault in [Fault::WindowResidue, Fault::MatrixResidue] {
        seen(fault, &|walker| {
            width(walker, &tapes[0], 16)?;
            width(walker, &tapes[1], 16)
        });
    }
}
