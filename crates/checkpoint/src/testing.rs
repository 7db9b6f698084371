//! Writing safetensors files, for tests: valid ones, and ones broken on purpose.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A tensor to be written: name, dtype as the file names it, shape, bytes. Nothing is checked.
pub type RawTensor<'a> = (&'a str, &'a str, &'a [usize], &'a [u8]);

/// The bytes of a safetensors file with these tensors, back to back in this order.
pub fn safetensors_bytes(tensors: &[RawTensor<'_>]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.to_string(), entry);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A file with the given header text, whatever it says, and the given data.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

/// Writes a safetensors file.
///
/// # Panics
/// If the file cannot be written.
pub fn write_safetensors(path: &Path, tensors: &[RawTensor<'_>]) {
    std::fs::write(path, safetensors_bytes(tensors)).expect("test file");
}

/// Writes a checkpoint directory of one weight file.
///
/// # Panics
/// If a file cannot be written.
pub fn write_checkpoint(dir: &Path, config: &Value, tensors: &[RawTensor<'_>]) {
    std::fs::create_dir_all(dir).expect("test directory");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("test file");
    write_safetensors(&dir.join("model.safetensors"), tensors);
}
