//! Whole-model walks on a GPU: the row law and the state law in the logit bytes of complete networks.
//!
//! Both embedded targets, 600 positions: one token at a time, and against that every width 1..=16, random widths, one prefill chunk,
//! 1, 4 and 8 sequences of mixed lengths in shared batches, wrong blocks taken back, prefixes taken over from a warm cache; and
//! without graphs, joined launches and the wide kernel, which may change nothing. Twins on a device with a fault must fail.
//!
//! `MLXCEL_WALK_MODEL=DIR` walks another checkpoint in the same way. Where there is no GPU all of this says so and checks nothing,
//! unless MLXCEL_NEED_GPU is set; `common/place.rs` has the other switches.

mod common;
#[path = "../../model/tests/common/mod.rs"]
mod model;
#[path = "common/place.rs"]
mod place;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mlxcel_compute::Backend;
use mlxcel_compute::fault::Fault;
use mlxcel_cuda::CudaBackend;
use mlxcel_model::Model;
use model::walk::{Outcome, Tape, mixed, resumed, spans, taking_back, together, width};
use model::{Golden, Rng, Walker, demo, load_shared, recurrent_demo};
use place::{Load, Place, is_quick, timed, turn};

/// Positions that a block of wrong tokens may lie beyond the end.
const SLACK: usize = 16;

/// How much is walked.
struct Size {
    /// Lengths of the sequences: before, at and past page borders and the window.
    lengths: &'static [usize],
    widths: &'static [usize],
    /// Numbers of sequences in shared batches.
    batches: &'static [usize],
    /// Random walks of a kind.
    seeds: u64,
}

fn size() -> Size {
    match is_quick() {
        false => Size {
            lengths: &[600, 300, 257, 130, 64, 33, 17, 7],
            widths: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
            batches: &[1, 4, 8],
            seeds: 2,
        },
        // Two pages, and a forward pass that takes half a second.
        true => Size { lengths: &[80, 17, 9, 7], widths: &[3, 16], batches: &[4], seeds: 1 },
    }
}

/// A checkpoint's directory.
impl Load for &Path {
    type Loaded = Box<dyn Model>;
    fn on<B: Backend>(self, backend: Arc<B>) -> Box<dyn Model> {
        load_shared(self, backend)
    }
}

/// Token by token, each sequence alone: `start`, from another place in it for each, then random ids.
fn record(place: &Place, dir: &Path, start: &[u32]) -> Vec<Tape> {
    let lengths = size().lengths;
    let mut solo = Walker::new(place.load(dir), 1, lengths[0]);
    let vocab = solo.model.info().vocab_size;
    let tape = |(s, len): (usize, &usize)| {
        let mut rng = Rng(s as u64);
        let random = std::iter::repeat_with(|| rng.below(vocab) as u32);
        let tokens = start.iter().copied().skip(3 * s).chain(random).take(*len).collect();
        Tape::record(&mut solo, 0, tokens)
    };
    lengths.iter().enumerate().map(tape).collect()
}

/// Golden prompts with their answers.
fn said(dir: &Path) -> Vec<u32> {
    let golden = Golden::open(dir);
    let ids = |prompt| ["prompt_ids", "continuation_ids"].map(|part| golden.ids(&format!("{prompt}.{part}"))).concat();
    ["prose", "code", "enumeration"].map(ids).concat()
}

/// Tapes of an embedded target, recorded once.
fn tapes(place: &Place, dir: &Path) -> &'static [Tape] {
    static TAPES: [OnceLock<Vec<Tape>>; 2] = [const { OnceLock::new() }; 2];
    let tapes = &TAPES[usize::from(dir == recurrent_demo())];
    tapes.get_or_init(|| timed("token by token", || record(place, dir, &said(dir))))
}

/// All the walks, on a whole device.
fn walks(place: &Place, dir: &Path, tapes: &[Tape]) -> Outcome {
    let size = size();
    let tapes: Vec<&Tape> = tapes.iter().collect();
    let whole = tapes[0].len();
    let mut walker = Walker::new(place.load(dir), tapes.len(), whole + SLACK);
    let name = dir.file_name().unwrap_or_default().display();
    println!("{name}, {whole} positions, on {}", walker.model.backend());
    timed("widths", || size.widths.iter().try_for_each(|w| width(&mut walker, tapes[0], *w)))?;
    timed("one chunk", || spans(&mut walker, tapes[0], "one chunk", || whole))?;
    timed("random widths", || (0..size.seeds).try_for_each(|seed| mixed(&mut walker, tapes[0], seed)))?;
    timed("shared batches", || {
        let runs = size.batches.iter().flat_map(|n| (0..size.seeds).map(move |seed| (*n, seed)));
        runs.into_iter().try_for_each(|(n, seed)| together(&mut walker, &tapes[..n], seed))
    })?;
    timed("taking back", || {
        taking_back(&mut walker, &tapes[..1], 1)?;
        taking_back(&mut walker, &tapes, 2)
    })?;
    timed("from a warm cache", || (0..size.seeds).try_for_each(|seed| resumed(&mut walker, tapes[0], seed)))?;
    without(place, &mut walker, tapes[0])
}

/// What a GPU does to be fast, switched off one by one.
fn without(place: &Place, walker: &mut Walker, tape: &Tape) -> Outcome {
    let Place::Gpu(backend) = place else { return Ok(()) };
    type Switch = fn(&CudaBackend, bool);
    let switches: [(&str, Switch); 3] = [
        ("graphs", |b, on| b.context().use_graphs(on)),
        ("joined launches", |b, on| b.context().use_fusion(on)),
        ("the wide kernel", |b, on| b.context().use_wide(on)),
    ];
    // The last is there on Hopper alone.
    let there = if backend.context().device.capability == 90 { 3 } else { 2 };
    for (name, switch) in switches.into_iter().take(there) {
        switch(backend, false);
        let outcome = timed(&format!("without {name}"), || {
            width(walker, tape, 16)?;
            spans(walker, tape, "one chunk", || tape.len())
        });
        switch(backend, true);
        outcome.map_err(|e| format!("without {name}: {e}"))?;
    }
    Ok(())
}

/// The walks must fail on a device with a fault.
fn twins(place: &Place, dir: &Path, tapes: &[Tape]) {
    let whole = tapes[0].len();
    let seen = |fault, walk: &mut dyn FnMut(&mut Walker) -> Outcome| {
        let mut walker = Walker::new(place.load_faulty(dir, fault), 2, whole + SLACK);
        let caught = walk(&mut walker).expect_err(&format!("{fault:?} must be seen"));
        println!("{fault:?}: {caught}");
    };
    let all = |walker: &mut Walker, from: usize| {
        for w in size().widths.iter().filter(|w| **w >= from) {
            width(walker, &tapes[0], *w).expect_err("the fault must be seen");
        }
        if is_quick() {
            return width(walker, &tapes[0], 16);
        }
        spans(walker, &tapes[0], "two chunks", || whole / 2).expect_err("the fault must be seen");
        mixed(walker, &tapes[0], 1).expect_err("the fault must be seen");
        together(walker, &[&tapes[0], &tapes[1]], 1).expect_err("the fault must be seen");
        resumed(walker, &tapes[0], 1).expect_err("the fault must be seen");
        taking_back(walker, &[&tapes[0]], 1)
    };
    seen(Fault::WideLinear, &mut |walker| all(walker, 2));
    seen(Fault::StaleKeys, &mut |walker| all(walker, 2));
    seen(Fault::ChunkAttention, &mut |walker| all(walker, 9));
    // A former row shows only where positions are written twice.
    seen(Fault::Residue, &mut |walker| {
        width(walker, &tapes[1], 16).expect("no position is written twice");
        taking_back(walker, &[&tapes[0]], 1)
    });
    if dir == recurrent_demo() {
        seen(Fault::ChunkedDelta, &mut |walker| spans(walker, &tapes[0], "one chunk", || whole));
        for fault in [Fault::TakeBackShort, Fault::TakeBackWindow] {
            seen(fault, &mut |walker| taking_back(walker, &[&tapes[0]], 1));
        }
        seen(Fault::RestoreWindow, &mut |walker| resumed(walker, &tapes[0], 1));
        // What the sequence before left in the slot.
        for fault in [Fault::WindowResidue, Fault::MatrixResidue] {
            seen(fault, &mut |walker| {
                width(walker, &tapes[0], 16)?;
                width(walker, &tapes[1], 16)
            });
        }
    }
}

fn embedded(dir: &Path, walk: fn(&Place, &Path, &[Tape])) {
    let _turn = turn();
    let Some(place) = Place::find() else { return };
    walk(place, dir, tapes(place, dir));
    place.is_well();
}

fn must_pass(place: &Place, dir: &Path, tapes: &[Tape]) {
    timed("all walks", || walks(place, dir, tapes)).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
}

fn must_fail(place: &Place, dir: &Path, tapes: &[Tape]) {
    timed("twins", || twins(place, dir, tapes));
}

#[test]
fn gemma_keeps_its_bytes() {
    embedded(&demo(), must_pass);
}

#[test]
fn qwen_keeps_its_bytes() {
    embedded(&recurrent_demo(), must_pass);
}

#[test]
fn faults_are_caught_in_gemma() {
    embedded(&demo(), must_fail);
}

#[test]
fn faults_are_caught_in_qwen() {
    embedded(&recurrent_demo(), must_fail);
}

/// Any other checkpoint: the shapes of a large model, of random weights if need be.
#[test]
fn a_checkpoint_that_is_named_keeps_its_bytes() {
    let Some(dir) = std::env::var_os("MLXCEL_WALK_MODEL").map(PathBuf::from) else {
        println!("skipped: MLXCEL_WALK_MODEL names no checkpoint (mlxcel synth makes one of a large model's shape)");
        return;
    };
    let _turn = turn();
    let Some(place) = Place::find() else { return };
    let tapes = timed("token by token", || record(place, &dir, &[]));
    must_pass(place, &dir, &tapes);
    for fault in [Fault::WideLinear, Fault::StaleKeys] {
        let mut walker = Walker::new(place.load_faulty(dir.as_path(), fault), 1, tapes[0].len());
        let caught = width(&mut walker, &tapes[0], 4).expect_err("the fault must be seen");
        println!("{fault:?}: {caught}");
    }
    place.is_well();
}
