//! Any bytes as a GGUF file: an error, or a file whose every tensor and setting can be asked for, never a panic and never
//! memory out of proportion. Whole small files to start from: `cargo +nightly fuzz run gguf fuzz/corpus/gguf fuzz/seeds/gguf`.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mlxcel_checkpoint::Gguf;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = Gguf::from_bytes(Path::new("fuzz"), data.to_vec()) else { return };
    let _ = file.config();
    let _ = file.text_files();
    for (index, tensor) in file.tensors().iter().enumerate() {
        let _ = file.hf_name(index);
        let mut values = Vec::new();
        let rows = tensor.rows().min(3);
        file.read_rows(index, 0..rows, &mut values).expect("rows of a checked tensor");
        assert_eq!(values.len(), rows * tensor.width());
    }
});
