//! Any JSON as config.json: an error that names the field, or a checked configuration, never a panic.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(value) = serde_json::from_slice(data) else { return };
    let file = Path::new("config.json");
    if let Ok(config) = mlxcel_checkpoint::Gemma4Config::parse(file, &value) {
        for layer in 0..config.text.num_hidden_layers {
            let _ = (config.text.kv_source(layer), config.text.head_dim(layer), config.text.kv_heads(layer));
        }
    }
    let _ = mlxcel_checkpoint::Quantization::from_config(file, &value);
    let _ = mlxcel_checkpoint::GenerationDefaults::parse(file, &value);
});
