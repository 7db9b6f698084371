use std::collections::BTreeMap;

use super::*;
use crate::gemma4::{Gemma4AssistantConfig, Gemma4Config};
use crate::llama::LlamaConfig;
use crate::qwen3_5::{Qwen3_5Config, Qwen3_5MtpConfig};

fn demo(shape: &Shape) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(shape.demo())
}

fn plans(shape: &Shape, options: &Options) -> Plans {
    Plans::new(shape, &demo(shape), "out".as_ref(), options).unwrap_or_else(|e| panic!("{}: {e}", shape.name))
}

/// All files of a directory's subdirectories, by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).expect("listed").map(|item| item.expect("an item").path()).collect()
    };
    let all = list(dir).into_iter().flat_map(|dir| list(&dir));
    all.map(|path| {
        let name = path.strip_prefix(dir).expect("inside").display().to_string();
        (name, std::fs::read(path).expect("read"))
    })
    .collect()
}

/// What the sizes of the published models are known by: parameters, and tensors before they are quantised.
#[test]
fn shapes_have_the_parameters_and_tensors_of_the_real_models() {
    let options = Options::default();
    for (name, billions, tensors, drafter) in [
        ("gemma-4-31b", 30.7, None, Some((0.47, 48))),
        ("gemma-4-12b", 11.9, None, Some((0.42, 48))),
        ("gemma-4-26b-a4b", 25.2, None, Some((0.42, 48))),
        ("gemma-4-1b", 1.05, None, Some((0.078, 50))),
        ("qwen3.8-27b", 26.9, Some(851), Some((0.4247, 15))),
        ("qwen3.5-35b-a3b", 34.7, None, Some((0.85, 20))),
        ("qwen3.5-0.8b", 0.752, None, Some((0.0205, 15))),
        ("llama-1b", 1.236, Some(146), None),
    ] {
        let shape = Shape::named(name).expect("known");
        let plans = plans(&shape, &options);
        // A row of the table in docs/benchmarks.md.
        let bytes = |plan: &Plan<Fill>| plan.tensor_bytes() as f64 / 1e9;
        let own = plans.drafter.as_ref().map_or("none".into(), |(_, plan)| {
            format!("{:.0} M parameters, {:.2} GB", plan.parameters as f64 / 1e6, bytes(plan))
        });
        let model = &plans.model.1;
        println!("| `{name}` | {:.2} G | {:.1} GB | {own} |", model.parameters as f64 / 1e9, bytes(model));
        let near = |found: u64, wanted: f64| (found as f64 / 1e9 / wanted - 1.0).abs() < 0.02;
        let plan = &plans.model.1;
        assert!(near(plan.parameters, billions), "{name}: {} parameters", plan.parameters);
        assert!(tensors.is_none_or(|wanted| plan.units.len() == wanted), "{name}: {} tensors", plan.units.len());
        let found = plans.drafter.map(|(_, plan)| (plan.parameters, plan.units.len()));
        assert_eq!(found.map(|found| found.1), drafter.map(|wanted| wanted.1), "{name}");
        let pair = found.zip(drafter);
        assert!(pair.is_none_or(|(found, wanted)| near(found.0, wanted.0)), "{name}: drafter {found:?}");
    }
    assert_eq!(Shape::ALL.len(), 8, "all are above");
}

fn warnings(shape: &Shape, file: &Path, config: &Value, drafter: Option<&Value>) -> Result<Vec<String>> {
    let drafter = drafter.unwrap_or(&Value::Null);
    Ok(match shape.family {
        Family::Gemma4(_) => {
            Gemma4AssistantConfig::parse(file, drafter)?;
            Gemma4Config::parse(file, config)?.warnings
        }
        Family::Qwen3_5(_) => {
            Qwen3_5MtpConfig::parse(file, drafter)?;
            Qwen3_5Config::parse(file, config)?.warnings
        }
        Family::Llama => LlamaConfig::parse(file, config)?.warnings,
    })
}

#[test]
fn configurations_are_read_without_a_warning() {
    for shape in Shape::ALL.into_iter().flat_map(|shape| [shape.shrunk(), shape]) {
        for layers in [1, 2, 5, shape.layers] {
            let plans = plans(&shape, &Options { layers: Some(layers), ..Options::default() });
            let (config, file) = (&plans.model.1.config, Path::new("config.json"));
            let own = plans.drafter.as_ref().map(|(_, plan)| &plan.config);
            let warnings = warnings(&shape, file, config, own).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
            assert_eq!(warnings, Vec::<String>::new(), "{}", shape.name);
            assert_eq!(config["mlxcel_synth"]["num_hidden_layers"], layers);
            assert_eq!(config["mlxcel_synth"]["num_hidden_layers_of_shape"], shape.layers);
        }
    }
}

/// FNV-1a over names and bytes of configurations and weights.
fn hash(files: &BTreeMap<String, Vec<u8>>) -> u64 {
    let own = files.iter().filter(|(name, _)| name.ends_with(".safetensors") || name.ends_with("/config.json"));
    let bytes = own.flat_map(|(name, bytes)| name.bytes().chain(bytes.iter().copied()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn make(shape: &Shape, options: &Options) -> BTreeMap<String, Vec<u8>> {
    let dir = tempfile::tempdir().expect("temporary directory");
    synth(shape, &demo(shape), &dir.path().join("out"), options, &mut |_| true)
        .unwrap_or_else(|e| panic!("{}: {e}", shape.name));
    files(dir.path())
}

#[test]
fn the_same_arguments_make_the_same_bytes() {
    for (name, known) in [("gemma-4-1b", 0x9906_9875_efdb_9294), ("qwen3.5-35b-a3b", 0x02be_feac_c957_f696)] {
        let shape = Shape { experts: None, inner: 128, ..Shape::named(name).expect("known").shrunk() };
        let options = Options { layers: Some(2), threads: 1, ..Options::default() };
        let one = make(&shape, &options);
        let three = make(&shape, &Options { threads: 3, ..options.clone() });
        assert_eq!((hash(&one), hash(&three)), (known, known), "{name}");
        assert!(one == three, "{name}: other bytes on three threads");
        // The twin: other arguments are seen.
        for other in [
            Options { layers: Some(1), ..options.clone() },
            Options { bits: 8, ..options.clone() },
            Options { group: 32, ..options.clone() },
        ] {
            assert_ne!(hash(&make(&shape, &other)), hash(&one), "{name}: {other:?}");
        }
    }
}

#[test]
fn what_does_not_divide_stays_in_floats_and_is_said() {
    let shape = Shape::named("gemma-4-26b-a4b").expect("known");
    let plans = plans(&shape, &Options { group: 128, layers: Some(1), ..Options::default() });
    let plan = &plans.model.1;
    let [note] = &plan.notes[..] else { panic!("{:?}", plan.notes) };
    assert!(note.contains("mlp.down_proj and 1 more") && note.contains("128"), "{note}");
    assert_eq!(plan.config["quantization"]["language_model.model.layers.0.experts.switch_glu.down_proj"], false);
    assert_eq!(plan.config["quantization"]["language_model.model.layers.0.router.proj"]["bits"], 8);
    // The twin.
    assert!(self::plans(&shape, &Options::default()).model.1.notes.is_empty());
}

#[test]
fn too_little_space_is_said_before_anything_is_written() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let vast = Shape { vocab: 1 << 24, hidden: 1 << 20, ..Shape::named("llama-1b").expect("known") };
    let error = synth(&vast, &demo(&vast), &dir.path().join("out"), &Options::default(), &mut |_| panic!("begun"));
    let error = error.expect_err("no such disk");
    let CheckpointError::NoSpace { needed, available: Some(free), .. } = &error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.contains(&needed.to_string()) && text.contains(&free.to_string()) && *needed > 9 << 40, "{text}");
    assert!(files(dir.path()).is_empty());
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let target = dir.path().join("out");
    let shape = Shape { inner: 64, ..Shape::named("gemma-4-1b").expect("known").shrunk() };
    let options = Options { layers: Some(1), ..Options::default() };
    let attempt = |options: &Options, progress: &mut dyn FnMut(Progress<'_>) -> bool| {
        let made = synth(&shape, &demo(&shape), &target, options, progress);
        made.map(|_| ()).map_err(|e| e.to_string())
    };
    for (options, words) in [
        (Options { bits: 7, ..options.clone() }, "7 bits"),
        (Options { group: 16, ..options.clone() }, "group size 16"),
        (Options { layers: Some(0), ..options.clone() }, "1 to 18 expected"),
        (Options { layers: Some(19), ..options.clone() }, "--layers 19"),
    ] {
        let error = attempt(&options, &mut |_| true).expect_err("refused");
        assert!(error.contains(words), "{error}");
    }
    // Interrupted in the drafter, in the model, and at the very end.
    let total = std::cell::Cell::new(0);
    attempt(&options, &mut |_| {
        total.set(total.get() + 1);
        true
    })
    .expect("made");
    let made = files(dir.path());
    assert!(made.contains_key("out/model.safetensors") && made.contains_key("out-assistant/model.safetensors"));
    assert!(attempt(&options, &mut |_| true).expect_err("there already").contains("--force"));
    let forced = Options { force: true, ..options.clone() };
    for stop in [1, total.get() / 2, total.get()] {
        let mut left = stop;
        let error = attempt(&forced, &mut |_| {
            left -= 1;
            left > 0
        });
        assert!(error.expect_err("ended").contains("interrupted"));
        assert!(files(dir.path()) == made, "stopped at {stop} of {}: other files", total.get());
    }
    attempt(&forced, &mut |_| true).expect("replaced");
    assert!(files(dir.path()) == made);
}
