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
    if let Ok(config) = mlxcel_checkpoint::Qwen3_5Config::parse(file, &value) {
        let text = &config.text;
        assert_eq!(text.layer_types.len(), text.num_hidden_layers);
        assert!(text.rope.rotary_dim() >= 2 && text.rope.rotary_dim() <= text.head_dim);
        assert!(text.linear_conv_dim() >= 3 && !config.eos_token_ids.is_empty());
        config.ignores("language_model.mtp.fc.weight");
    }
    if let Ok(config) = mlxcel_checkpoint::LlamaConfig::parse(file, &value) {
        assert!(config.head_dim >= 2 && config.num_attention_heads.is_multiple_of(config.num_key_value_heads));
        config.ignores("model.rotary_emb.inv_freq");
    }
    let _ = mlxcel_checkpoint::Quantization::from_config(file, &value);
    let _ = mlxcel_checkpoint::GenerationDefaults::parse(file, &value);
});
