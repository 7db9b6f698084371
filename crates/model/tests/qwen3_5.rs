//! Qwen 3.5 against float32 references: tiny random checkpoints (dense, tied, experts) in the layouts of transformers and MLX,
//! plain and in 4 bits, and the greedy tokens of the trained demo. tests/golden/README.md says how they were made.

mod common;

use std::path::PathBuf;

use common::{Golden, Rng, Walker, argmax, bits, load, recurrent_demo, root, worst};
use mlxcel_compute::Wanted;
use mlxcel_cpu::Precision;
use mlxcel_model::tap::Recorder;

/// Agreement asked of f32 precision with float32 references, absolute, logits of magnitude about 10.
const TOLERANCE: f32 = 2e-4;

fn dir(name: &str) -> PathBuf {
    root().join("tests/golden/qwen3_5").join(name)
}

/// Checkpoints with the file and the tensor of their reference logits.
fn checkpoints() -> Vec<(String, PathBuf, Vec<u32>, Vec<f32>)> {
    let mut all = Vec::new();
    for variant in ["dense", "dense-tied", "moe"] {
        let golden = Golden::file(&dir(variant).join("goldens.safetensors"));
        let float = golden.floats("logits_full").expect("logits_full");
        let ids = golden.ids("input_ids");
        all.push((variant.to_string(), dir(variant), ids.clone(), float.clone()));
        let f32 = format!("{variant}-mlx/f32");
        all.push((f32.clone(), dir(&f32), ids, float));
        let quantised = format!("{variant}-mlx/4bit");
        let golden = Golden::file(&dir(&quantised).join("goldens.safetensors"));
        let (ids, logits) = (golden.ids("input_ids"), golden.floats("logits").expect("logits"));
        all.push((quantised.clone(), dir(&quantised), ids, logits));
    }
    all
}

#[test]
fn logits_match_the_references_and_chunking_changes_no_bit() {
    for (name, dir, ids, want) in checkpoints() {
        let mut walker = Walker::new(load(&dir, Precision::F32, 2), 1, ids.len());
        let whole = walker.chunks(&ids, &[ids.len()]);
        let error = worst(&whole, &want);
        println!("{name}: logits within {error:.1e}");
        assert!(error <= TOLERANCE, "{name}: logits differ by {error:e}, {TOLERANCE:e} allowed");
        let vocab = walker.model.info().vocab_size;
        for (row, want) in whole.chunks_exact(vocab).zip(want.chunks_exact(vocab)) {
            assert_eq!(argmax(row), argmax(want), "{name}");
        }
        let state = walker.state(0);

        let stepped = walker.chunks(&ids, &[1]);
        assert_eq!(bits(&stepped), bits(&whole), "{name}: step by step");
        assert_eq!(bits(&walker.state(0)), bits(&state), "{name}: state, step by step");
        let mut rng = Rng(7);
        for round in 0..8 {
            let lengths: Vec<usize> = (0..ids.len()).map(|_| 1 + rng.below(30)).collect();
            assert_eq!(bits(&walker.chunks(&ids, &lengths)), bits(&whole), "{name}: random chunks {round}");
            assert_eq!(bits(&walker.state(0)), bits(&state), "{name}: state, random chunks {round}");
        }
        let batch = walker.batch(0, 0, &ids, Wanted::Last);
        let last = walker.forward(&batch);
        assert_eq!(bits(&last), bits(&whole[whole.len() - vocab..]), "{name}: last row alone");
    }
}

#[test]
fn the_layouts_of_transformers_and_mlx_are_one_model() {
    for variant in ["dense", "dense-tied", "moe"] {
        let run = |dir: PathBuf| {
            let ids = Golden::file(&self::dir(variant).join("goldens.safetensors")).ids("input_ids");
            Walker::new(load(&dir, Precision::F32, 1), 1, ids.len()).chunks(&ids, &[ids.len()])
        };
        assert_eq!(bits(&run(dir(variant))), bits(&run(dir(&format!("{variant}-mlx/f32")))), "{variant}");
    }
}

#[test]
fn hidden_states_traces_and_states_match_layer_by_layer() {
    for name in ["dense", "dense-tied", "moe"] {
        let golden = Golden::file(&dir(name).join("goldens.safetensors"));
        let ids = golden.ids("input_ids");
        let mut walker = Walker::new(load(&dir(name), Precision::F32, 1), 1, ids.len());
        let batch = walker.batch(0, 0, &ids, Wanted::All);
        let mut seen = Recorder::default();
        walker.model.forward_tapped(&batch, &mut seen).expect("forward");
        let check = |what: &str, got: &[f32], want: &[f32]| {
            let error = worst(got, want);
            assert!(error <= TOLERANCE, "{name}: {what} differs by {error:e}");
        };
        let at = |layer: Option<usize>, op: &str| seen.at(layer, op).unwrap_or_else(|| panic!("{op} was not seen"));
        let floats = |key: &str| golden.floats(key).unwrap_or_else(|| panic!("no {key}"));
        let outputs = floats("layer_outputs");
        let each = outputs.len() / 5;
        check("embeddings", at(None, "embed"), &outputs[..each]);
        for l in 0..4 {
            check(&format!("layer {l}"), at(Some(l), "output"), &outputs[(l + 1) * each..][..each]);
        }
        check("final norm", at(None, "norm"), &floats("final_hidden"));
        for (key, op) in [("conv_out", "conv"), ("core", "delta"), ("gated", "gated")] {
            let want = floats(&format!("trace.layer0.{key}"));
            check(op, &at(Some(0), op)[..want.len()], &want);
        }
        check("states", &walker.state(0), &states(&golden, "state.layer", "conv", "recurrent"));

        // A block of four, of which two drafts are accepted: three rows stay.
        let (prompt, block) = (&ids[..16], golden.ids("verify.block"));
        walker.step(&[(0, 0, prompt)]);
        let logits = walker.step(&[(0, prompt.len(), &block)]).remove(0);
        check("verify logits", &logits, &floats("verify.logits"));
        assert!(walker.model.take_back(0, prompt.len() + 3), "one row back");
        check("kept states", &walker.state(0), &states(&golden, "verify.layer", "conv_kept", "recurrent_kept"));
        let kept = walker.state(0);
        walker.chunks(&[prompt, &block[..3]].concat(), &[19]);
        assert_eq!(
            bits(&kept),
            bits(&walker.state(0)),
            "{name}: taking back leaves what never having seen the row leaves"
        );
    }
}

/// Image features in place of embeddings, and positions on three axes: the text stack's part of a prompt with an image.
#[test]
fn rows_bring_vectors_and_positions_have_three_axes() {
    for name in ["dense", "moe"] {
        let golden = Golden::file(&dir(name).join("goldens.safetensors"));
        let (ids, want) = (golden.ids("image.input_ids"), golden.floats("image.logits").expect("logits"));
        let features = golden.floats("image.vision_merged").expect("features");
        let by_axis = golden.ids("image.mrope_positions"); // [3, rows]
        let rows = ids.len();
        let positions: Vec<u32> =
            (0..rows).flat_map(|r| (0..3).map(move |a| (r, a))).map(|(r, a)| by_axis[a * rows + r]).collect();
        let media: Vec<u32> = (0..rows as u32).filter(|r| ids[*r as usize] == 180).collect();
        let mut walker = Walker::new(load(&dir(name), Precision::F32, 1), 1, rows);
        let mut batch = walker.batch(0, 0, &ids, Wanted::All);
        batch.set_rope_positions(3, positions.clone());
        batch.set_vectors(media.clone(), features.clone());
        let got = walker.forward(&batch);
        let error = worst(&got, &want);
        println!("{name}, image: logits within {error:.1e}");
        assert!(error <= TOLERANCE, "{name}: logits differ by {error:e}");

        // The twin: without the other two axes the image lies elsewhere.
        let mut flat = walker.batch(0, 0, &ids, Wanted::All);
        flat.set_vectors(media, features);
        assert!(worst(&walker.forward(&flat), &want) > TOLERANCE);
    }
}

/// Windows and matrices of the three recurrent layers, in the order of a state in numbers.
fn states(golden: &Golden, prefix: &str, conv: &str, recurrent: &str) -> Vec<f32> {
    let tensor = |l: usize, part: &str| golden.floats(&format!("{prefix}{l}.{part}")).expect("a state");
    (0..3).flat_map(|l| [tensor(l, conv), tensor(l, recurrent)].concat()).collect()
}

#[test]
fn the_demo_checkpoint_says_its_golden_tokens() {
    common::says_its_golden_tokens(&recurrent_demo(), TOLERANCE);
}

/// Rounds of a walk that must end in the state of a fresh run.
const ROUNDS: usize = 2_000;

/// Accepts and rejects at random for [`ROUNDS`] rounds; returns what was accepted.
fn accept_and_reject(walker: &mut Walker, seed: u64, positions: usize) -> Vec<u32> {
    let mut rng = Rng(seed);
    let vocab = walker.model.info().vocab_size;
    let mut tokens: Vec<u32> = Vec::new();
    for round in 0..ROUNDS {
        let block: Vec<u32> = (0..1 + rng.below(16)).map(|_| rng.below(vocab) as u32).collect();
        // So that all rounds fit the context; now and then a whole block, or nothing.
        let room = (positions - tokens.len()).min(block.len());
        let accepted = match rng.below(12) {
            0 => room,
            1..=4 => room.min(1),
            5 => room.min(rng.below(3)),
            _ => 0,
        };
        let start = tokens.len();
        walker.step(&[(0, start, &block)]);
        assert!(walker.model.take_back(0, start + accepted), "round {round}: {accepted} of {}", block.len());
        tokens.extend(&block[..accepted]);
    }
    tokens
}

#[test]
fn two_thousand_rounds_end_in_the_state_of_a_fresh_run() {
    for (dir, precision) in
        [(dir("dense"), Precision::F32), (dir("moe-mlx/4bit"), Precision::Int8), (recurrent_demo(), Precision::Int8)]
    {
        let positions = 1900;
        let mut walker = Walker::new(load(&dir, precision, 1), 1, positions + 16);
        let tokens = accept_and_reject(&mut walker, 5, positions);
        assert!(tokens.len() > 900, "{} accepted", tokens.len());
        let next = [1u32, 2, 3];
        let state = walker.state(0);
        let logits = walker.step(&[(0, tokens.len(), &next)]).remove(0);

        let mut fresh = Walker::new(load(&dir, precision, 1), 1, positions + 16);
        fresh.chunks(&tokens, &[97]);
        assert_eq!(bits(&state), bits(&fresh.state(0)), "{}", dir.display());
        let want = fresh.step(&[(0, tokens.len(), &next)]).remove(0);
        assert_eq!(bits(&logits), bits(&want), "{}", dir.display());
    }
}

#[test]
fn a_snapshot_is_the_state_wherever_it_is_put() {
    let dir = dir("dense-mlx/4bit");
    let ids: Vec<u32> = (0..150).map(|i| (i * 7 % 190) as u32).collect();
    let mut walker = Walker::new(load(&dir, Precision::Int8, 1), 2, ids.len());
    let whole = walker.chunks(&ids, &[ids.len()]);
    let vocab = walker.model.info().vocab_size;
    walker.step(&[(0, 0, &ids[..64])]);
    let snapshot = walker.model.save_state(0).expect("a state");
    assert_eq!(snapshot.position(), 64);
    walker.step(&[(0, 64, &ids[64..])]);
    walker.model.restore_state(0, &snapshot);
    let rest = walker.step(&[(0, 64, &ids[64..])]).remove(0);
    assert_eq!(bits(&rest), bits(&whole[64 * vocab..]));
    walker.model.restore_state(0, &snapshot);
    let state = walker.state(0);
    assert!(!walker.model.take_back(0, 3), "what a snapshot replaced cannot be taken back");
    // In another slot, unused and used.
    for before in [&[][..], &ids[100..130]] {
        if !before.is_empty() {
            walker.step(&[(1, 0, before)]);
        }
        walker.model.restore_state(1, &snapshot);
        assert_eq!(bits(&walker.state(1)), bits(&state));
    }
}

/// The fault-injected twins: references off by a little more than the tolerance, and one row too many kept.
#[test]
fn damage_is_noticed() {
    let golden = Golden::file(&dir("dense").join("goldens.safetensors"));
    let ids = golden.ids("input_ids");
    let mut want = golden.floats("logits_full").expect("logits");
    let mut walker = Walker::new(load(&dir("dense"), Precision::F32, 1), 1, ids.len());
    let whole = walker.chunks(&ids, &[ids.len()]);
    assert!(worst(&whole, &want) <= TOLERANCE);
    want[777] += 2.0 * TOLERANCE;
    assert!(worst(&whole, &want) > TOLERANCE);

    let mut undefined = whole.clone();
    undefined[5] = f32::NAN;
    assert!(worst(&undefined, &whole).is_nan(), "a NaN is no agreement");

    walker.chunks(&ids[..40], &[40]);
    let state = walker.state(0);
    walker.chunks(&ids[..48], &[40, 8]);
    assert!(walker.model.take_back(0, 41));
    assert_ne!(bits(&walker.state(0)), bits(&state), "one row more is another state");
    assert!(walker.model.take_back(0, 40));
    assert_eq!(bits(&walker.state(0)), bits(&state));
}
