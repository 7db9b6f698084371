//! Reference logits of tiny random checkpoints (all five shapes, the text-only class, every quantisation mode) and the
//! greedy tokens of the trained demo checkpoint. tests/golden/README.md says how they were made.

mod common;

use common::{Golden, Rng, Walker, bits, load, root, worst};
use mlxcel_compute::Wanted;
use mlxcel_cpu::Precision;
use mlxcel_model::tap::Recorder;

/// Agreement asked of f32 precision with float32 references, absolute, logits of magnitude about 10.
const TOLERANCE: f32 = 2e-4;

#[test]
fn logits_match_the_references_and_chunking_changes_no_bit() {
    let base = root().join("tests/golden/gemma4");
    let mut seen = 0;
    let mut entries: Vec<_> = std::fs::read_dir(&base).expect("goldens").map(|e| e.expect("entry").path()).collect();
    entries.sort();
    for dir in entries.iter().filter(|d| d.is_dir()) {
        let name = dir.file_name().expect("name").to_string_lossy().into_owned();
        if name.contains("-assistant") {
            continue; // a drafter: gemma4_assistant.rs
        }
        let golden = Golden::open(dir);
        let ids = golden.ids("input_ids");
        let want = golden.floats("logits").expect("logits");
        let mut walker = Walker::new(load(dir, Precision::F32, 2), 1, ids.len());
        let whole = walker.chunks(&ids, &[ids.len()]);
        let error = worst(&whole, &want);
        println!("{name}: logits within {error:.1e}");
        assert!(error <= TOLERANCE, "{name}: logits differ by {error:e}, {TOLERANCE:e} allowed");

        let stepped = walker.chunks(&ids, &[1]);
        assert_eq!(bits(&stepped), bits(&whole), "{name}: step by step");
        let mut rng = Rng(7);
        for round in 0..8 {
            let lengths: Vec<usize> = (0..ids.len()).map(|_| 1 + rng.below(9)).collect();
            assert_eq!(bits(&walker.chunks(&ids, &lengths)), bits(&whole), "{name}: random chunks {round}");
        }

        // Only the last row wanted: what sharing layers skip must not matter.
        let vocab = walker.model.info().vocab_size;
        let batch = walker.batch(0, 0, &ids, Wanted::Last);
        let last = walker.forward(&batch);
        assert_eq!(bits(&last), bits(&whole[whole.len() - vocab..]), "{name}: last row alone");
        seen += 1;
    }
    assert_eq!(seen, 19, "golden directories");
}

#[test]
fn hidden_states_match_layer_by_layer() {
    for name in ["e2b", "e4b", "moe", "dense", "unified", "text_only"] {
        let dir = root().join("tests/golden/gemma4").join(name);
        let golden = Golden::open(&dir);
        let ids = golden.ids("input_ids");
        let mut walker = Walker::new(load(&dir, Precision::F32, 1), 1, ids.len());
        let batch = walker.batch(0, 0, &ids, Wanted::All);
        let mut seen = Recorder::default();
        walker.model.forward_tapped(&batch, &mut seen).expect("forward");
        let check = |what: &str, got: &[f32], want: &[f32]| {
            let error = worst(got, want);
            assert!(error <= TOLERANCE, "{name}: {what} differs by {error:e}");
        };
        check("embeddings", seen.at(None, "embed").expect("embed"), &golden.floats("hidden.0").expect("hidden.0"));
        let mut layer = 0;
        while let Some(want) = golden.floats(&format!("hidden.{}", layer + 1)) {
            check(&format!("layer {layer}"), seen.at(Some(layer), "output").expect("output"), &want);
            layer += 1;
        }
        assert_eq!(layer, walker.model.info().layers - 1, "{name}: layers compared");
        let want = golden.floats("hidden_final_normed").expect("normed");
        check("final norm", seen.at(None, "norm").expect("norm"), &want);
    }
}

#[test]
fn a_damaged_reference_is_noticed() {
    // The fault-injected twin: one logit off by a little more than the tolerance must fail the comparison.
    let dir = root().join("tests/golden/gemma4/dense");
    let golden = Golden::open(&dir);
    let ids = golden.ids("input_ids");
    let mut want = golden.floats("logits").expect("logits");
    want[777] += 2.0 * TOLERANCE;
    let whole = Walker::new(load(&dir, Precision::F32, 1), 1, ids.len()).chunks(&ids, &[ids.len()]);
    assert!(worst(&whole, &want) > TOLERANCE);
}

#[test]
fn the_demo_checkpoint_says_its_golden_tokens() {
    common::says_its_golden_tokens(&common::demo(), TOLERANCE);
}
