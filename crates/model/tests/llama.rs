//! The Llama family on tiny random checkpoints: reference logits, whole-model walks in bytes, and copies that are broken on
//! purpose. tests/golden/README.md says how the references were made.

mod common;

use std::path::{Path, PathBuf};

use common::damage::{self, Copy, accepted, damaged};
use common::walk::{Outcome, Tape, mixed, spans, taking_back, together, width};
use common::{Golden, Rng, Walker, bits, load, load_on, root, worst};
use mlxcel_checkpoint::llama::LlamaFamily;
use mlxcel_compute::Wanted;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::registry;
use mlxcel_model::tap::Recorder;
use serde_json::{Value, json};

/// Agreement asked of f32 precision with the references, absolute, logits of magnitude about 20.
const TOLERANCE: f32 = 2e-4;
const NAMES: [&str; 9] = [
    "llama-biases",
    "llama-gqa-untied",
    "llama-linear",
    "llama-tied-llama3",
    "llama-tied-llama3-mlx-mixed",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3-mlx-q4",
];

fn golden_dir(name: &str) -> PathBuf {
    root().join("tests/golden/llama").join(name)
}

/// A copy of a golden, to be broken.
fn copy_of(name: &str) -> Copy {
    Copy::of(&golden_dir(name))
}

/// Logits of a golden's prompt by the checkpoint in `dir`, in f32 precision and one chunk.
fn logits(dir: &Path, golden: &Golden) -> Vec<f32> {
    let ids = golden.ids("input_ids");
    Walker::new(load(dir, Precision::F32, 1), 1, ids.len()).chunks(&ids, &[ids.len()])
}

#[test]
fn logits_match_the_references_and_chunking_changes_no_bit() {
    for name in NAMES {
        let golden = Golden::open(&golden_dir(name));
        let ids = golden.ids("input_ids");
        let want = golden.floats("logits").expect("logits");
        for precision in [Precision::F32, Precision::Int8] {
            let mut walker = Walker::new(load(&golden_dir(name), precision, 2), 1, ids.len());
            let whole = walker.chunks(&ids, &[ids.len()]);
            if precision == Precision::F32 {
                let error = worst(&whole, &want);
                println!("{name}: logits within {error:.1e}");
                assert!(error <= TOLERANCE, "{name}: logits differ by {error:e}, {TOLERANCE:e} allowed");
            }

            assert_eq!(bits(&walker.chunks(&ids, &[1])), bits(&whole), "{name}: step by step");
            let mut rng = Rng(7);
            for round in 0..8 {
                let lengths: Vec<usize> = (0..ids.len()).map(|_| 1 + rng.below(9)).collect();
                assert_eq!(bits(&walker.chunks(&ids, &lengths)), bits(&whole), "{name}: random chunks {round}");
            }

            let vocab = walker.model.info().vocab_size;
            let batch = walker.batch(0, 0, &ids, Wanted::Last);
            let last = walker.forward(&batch);
            assert_eq!(bits(&last), bits(&whole[whole.len() - vocab..]), "{name}: last row alone");
            let batch = walker.batch(0, 0, &ids, Wanted::None);
            assert!(walker.forward(&batch).is_empty(), "{name}: no row");
        }
    }
}

#[test]
fn hidden_states_match_layer_by_layer() {
    for name in ["llama-gqa-untied", "qwen3"] {
        let golden = Golden::open(&golden_dir(name));
        let ids = golden.ids("input_ids");
        let mut walker = Walker::new(load(&golden_dir(name), Precision::F32, 1), 1, ids.len());
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

/// Copies that load though something is wrong with them: the comparison with the reference must notice each.
#[test]
fn what_is_wrong_with_a_copy_shows_in_its_logits() {
    type Edit = fn(&mut Copy);
    let faults: [(&str, &str, Edit); 15] = [
        ("llama-tied-llama3", "no scaling", |c| c.config["rope_scaling"] = Value::Null),
        ("llama-tied-llama3", "linear scaling", |c| c.config["rope_scaling"]["rope_type"] = json!("linear")),
        ("llama-tied-llama3", "another factor", |c| c.config["rope_scaling"]["factor"] = json!(7.5)),
        ("llama-tied-llama3", "other low frequencies", |c| c.config["rope_scaling"]["low_freq_factor"] = json!(1.1)),
        ("llama-tied-llama3", "other high frequencies", |c| c.config["rope_scaling"]["high_freq_factor"] = json!(3.9)),
        ("llama-tied-llama3", "another first length", |c| {
            c.config["rope_scaling"]["original_max_position_embeddings"] = json!(250);
        }),
        ("llama-linear", "no scaling", |c| c.config["rope_scaling"] = Value::Null),
        ("llama-gqa-untied", "another base", |c| c.config["rope_theta"] = json!(9900.0)),
        ("llama-gqa-untied", "another epsilon", |c| c.config["rms_norm_eps"] = json!(1e-2)),
        ("llama-gqa-untied", "one weight overwritten", |c| {
            // 1/4, in f16: an ordinary value of this matrix.
            c.find("model.layers.1.mlp.up_proj.weight").2[100..102].copy_from_slice(&0x3400u16.to_le_bytes());
        }),
        ("llama-gqa-untied", "gate for up", |c| {
            c.swap("model.layers.2.mlp.gate_proj.weight", "model.layers.2.mlp.up_proj.weight");
        }),
        ("llama-gqa-untied", "norms exchanged", |c| {
            c.swap("model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight");
        }),
        ("llama-biases", "biases of gate and up exchanged", |c| {
            c.swap("model.layers.0.mlp.gate_proj.bias", "model.layers.0.mlp.up_proj.bias");
        }),
        ("qwen2", "biases of k and v exchanged", |c| {
            c.swap("model.layers.1.self_attn.k_proj.bias", "model.layers.1.self_attn.v_proj.bias");
        }),
        ("qwen3", "norms of q and k exchanged", |c| {
            c.swap("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight");
        }),
    ];
    for (name, fault, edit) in faults {
        let golden = Golden::open(&golden_dir(name));
        let want = golden.floats("logits").expect("logits");
        let mut copy = copy_of(name);
        let same = worst(&logits(copy.write().path(), &golden), &want);
        assert!(same <= TOLERANCE, "{name}: an undamaged copy differs by {same:e}");
        edit(&mut copy);
        let error = worst(&logits(copy.write().path(), &golden), &want);
        println!("{name}, {fault}: logits differ by {error:.1e}");
        assert!(error > 2.0 * TOLERANCE, "{name}: {fault} was not noticed, logits differ by {error:e}");
    }
}

const POSITIONS: usize = 200;
/// Positions that a block of wrong tokens may lie beyond the end.
const SLACK: usize = 16;

/// Walks of eight sequences of mixed lengths, each fed token by token alone first.
fn walks(name: &str, precision: Precision, mut walker: Walker) -> Outcome {
    let dir = golden_dir(name);
    let mut solo = Walker::new(load(&dir, precision, 1), 1, POSITIONS);
    let vocab = solo.model.info().vocab_size;
    let golden = Golden::open(&dir).ids("input_ids");
    let tapes: Vec<Tape> = [POSITIONS, 150, 131, 65, 64, 40, 9, 3]
        .iter()
        .enumerate()
        .map(|(s, len)| {
            let mut rng = Rng(s as u64);
            let random = std::iter::repeat_with(|| rng.below(vocab) as u32);
            Tape::record(&mut solo, 0, golden.iter().copied().skip(s).chain(random).take(*len).collect())
        })
        .collect();
    let tapes: Vec<&Tape> = tapes.iter().collect();
    for w in 1..=16 {
        width(&mut walker, tapes[0], w)?;
    }
    spans(&mut walker, tapes[0], "one chunk", || POSITIONS)?;
    mixed(&mut walker, tapes[0], 3)?;
    for sequences in 1..=8 {
        together(&mut walker, &tapes[..sequences], sequences as u64)?;
    }
    taking_back(&mut walker, &tapes[..1], 5)?;
    taking_back(&mut walker, &tapes, 6)
}

#[test]
fn walks_keep_their_bytes() {
    for name in ["llama-tied-llama3-mlx-mixed", "llama-biases", "qwen3-mlx-q4"] {
        for (precision, threads) in [(Precision::F32, 1), (Precision::Int8, 2)] {
            let walker = Walker::new(load(&golden_dir(name), precision, threads), 8, POSITIONS + SLACK);
            let backend = walker.model.backend();
            walks(name, precision, walker).unwrap_or_else(|e| panic!("{name}, {backend}: {e}"));
        }
    }
}

#[test]
fn walks_on_a_faulty_backend_fail() {
    let name = "llama-tied-llama3-mlx-mixed";
    for fault in [Fault::WideLinear, Fault::StaleKeys, Fault::ChunkAttention, Fault::Residue] {
        for precision in [Precision::F32, Precision::Int8] {
            let backend = Faulty::new(CpuBackend::new(precision, 1), fault);
            let walker = Walker::new(load_on(&golden_dir(name), backend), 8, POSITIONS + SLACK);
            let caught = walks(name, precision, walker).expect_err("the fault must be seen");
            println!("{fault:?}: {caught}");
        }
    }
}

/// As [`damage::refused`], of a golden of this family.
#[track_caller]
fn refused(name: &str, parts: &[&str], edit: impl FnOnce(&mut Copy)) {
    damage::refused(&format!("llama/{name}"), parts, edit);
}

#[test]
fn tensors_missing_left_over_or_ill_shaped_are_named() {
    for (name, tensor) in [
        ("llama-gqa-untied", "lm_head.weight"),
        ("llama-gqa-untied", "model.norm.weight"),
        ("llama-gqa-untied", "model.layers.2.self_attn.o_proj.weight"),
        ("llama-biases", "model.layers.0.self_attn.o_proj.bias"),
        ("llama-biases", "model.layers.0.mlp.down_proj.bias"),
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.1.self_attn.k_norm.weight"),
        ("qwen3-mlx-q4", "model.layers.0.mlp.gate_proj.scales"),
    ] {
        refused(name, &["no tensor", tensor], |copy| drop(copy.tensors.remove(tensor).expect(tensor)));
    }
    let up = "model.layers.1.mlp.up_proj.weight";
    refused("mistral", &["model.safetensors", up, "[64, 96]", "expected [96, 64]"], |copy| {
        copy.find(up).1 = vec![64, 96];
    });
    let bias = "model.layers.0.self_attn.q_proj.bias";
    refused("qwen2", &["model.safetensors", bias, "[8, 8]", "expected [64]"], |copy| {
        copy.find(bias).1 = vec![8, 8];
    });
    // What the configuration does not ask for is left over.
    refused("llama-biases", &["3 tensor(s) the model does not use", "mlp.down_proj.bias"], |copy| {
        copy.config["mlp_bias"] = json!(false);
    });
    refused("qwen2", &["6 tensor(s) the model does not use", "self_attn.k_proj.bias"], |copy| {
        copy.config["model_type"] = json!("llama");
    });
    refused("llama-gqa-untied", &["1 tensor(s) the model does not use", "model.layers.3.stray"], |copy| {
        copy.tensors.insert("model.layers.3.stray".into(), ("F32".into(), vec![1], vec![0; 4]));
    });
}

#[test]
fn heads_of_tied_models_and_rotary_buffers_are_left_alone() {
    let mut copy = copy_of("llama-gqa-untied");
    copy.config["tie_word_embeddings"] = json!(true);
    for layer in 0..3 {
        let name = format!("model.layers.{layer}.self_attn.rotary_emb.inv_freq");
        copy.tensors.insert(name, ("F32".into(), vec![8], vec![0; 32]));
    }
    accepted("llama-gqa-untied", &copy);
}

#[test]
fn damaged_weights_are_found_in_their_layer() {
    for (name, tensor, site) in [
        ("llama-gqa-untied", "model.layers.1.self_attn.v_proj.weight", "layer 1, v_proj"),
        ("llama-biases", "model.layers.0.mlp.gate_proj.bias", "layer 0, gate_bias"),
        ("qwen3", "model.layers.2.post_attention_layernorm.weight", "layer 2, post_attention_norm"),
        ("qwen3", "model.norm.weight", "norm"),
        ("mistral", "lm_head.weight", "logits"),
    ] {
        damaged(&format!("llama/{name}"), tensor, 0, site);
    }
}

#[test]
fn the_registry_knows_every_member() {
    for family in LlamaFamily::ALL {
        let known = registry::families::<CpuBackend>();
        let entry = known.iter().find(|f| f.model_types.contains(&family.model_type()));
        assert_eq!(entry.map(|f| f.name), Some("Llama"), "{}", family.model_type());
    }
}
