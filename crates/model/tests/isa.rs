//! Whole models on every instruction set and on one, two and three threads: the same logit bytes.

mod common;

use std::path::Path;

use common::{Golden, Rng, Walker, bits, demo, goldens, load_on};
use mlxcel_cpu::{CpuBackend, Isa, Precision};

/// Logits of a few positions: a prompt in two chunks, then single tokens.
fn logits(dir: &Path, backend: CpuBackend, tokens: &[u32]) -> Vec<u32> {
    let chunk = tokens.len() / 3;
    bits(&Walker::new(load_on(dir, backend), 1, tokens.len()).chunks(tokens, &[chunk, chunk, 1]))
}

fn check(dir: &Path, tokens: &[u32]) {
    for precision in [Precision::F32, Precision::Int8] {
        let want = logits(dir, CpuBackend::with_isa(precision, 1, Isa::best()), tokens);
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let backend = CpuBackend::with_isa(precision, threads, isa);
                let name = mlxcel_compute::Backend::describe(&backend);
                let got = logits(dir, backend, tokens);
                let different = got.iter().zip(&want).position(|(a, b)| a != b);
                assert!(different.is_none(), "{}, {name}: value {different:?}", dir.display());
            }
        }
    }
}

#[test]
fn the_demo_says_the_same_on_every_instruction_set_and_thread_count() {
    check(&demo(), &Golden::open(&demo()).ids("code.prompt_ids")[..9]);
}

#[test]
fn the_tiny_checkpoints_say_the_same_on_every_instruction_set_and_thread_count() {
    let dirs = goldens(&[""]);
    assert!(dirs.len() >= 19, "golden directories");
    for dir in dirs {
        let mut rng = Rng(1);
        let mut tokens = Golden::open(&dir).ids("input_ids");
        tokens.extend((0..12).map(|_| rng.below(160) as u32));
        check(&dir, &tokens);
    }
}
