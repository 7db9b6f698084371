//! A short name for the content of checkpoints, the same on every machine that holds them.

use mlxcel_checkpoint::Checkpoint;
use sha2::{Digest, Sha256};

/// Bytes of each tensor that are read, from its start and from its end.
const SAMPLE: usize = 64;

/// Hash of some checkpoints' configurations, and of name, type, shape, first and last bytes of every tensor. Reading all of a large
/// model would take longer than measuring it.
///
/// # Errors
/// A tensor that cannot be read, in words.
pub fn fingerprint(checkpoints: &[&Checkpoint]) -> Result<String, String> {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        // With its length, so that parts cannot run into each other.
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for checkpoint in checkpoints {
        part(checkpoint.config().to_string().as_bytes());
        for name in checkpoint.names() {
            let tensor = checkpoint.get(name).map_err(|e| e.to_string())?;
            part(name.as_bytes());
            part(format!("{:?} {:?}", tensor.dtype, tensor.shape).as_bytes());
            let bytes: &[u8] = tensor.data.as_ref();
            part(&bytes[..SAMPLE.min(bytes.len())]);
            part(&bytes[bytes.len() - SAMPLE.min(bytes.len())..]);
        }
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn copies_are_the_same_and_changes_are_seen() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-assistant-4bit");
        let dir = tempfile::tempdir().expect("a directory");
        let name = "model.safetensors";
        for file in ["config.json", name] {
            std::fs::copy(demo.join(file), dir.path().join(file)).expect("copied");
        }
        let print = |dir: &Path| fingerprint(&[&Checkpoint::open(dir).expect("opened")]).expect("read");
        let whole = print(&demo);
        assert_eq!(print(dir.path()), whole);
        // The last byte of the last tensor.
        let mut bytes = std::fs::read(demo.join(name)).expect("read");
        *bytes.last_mut().expect("some") ^= 1;
        std::fs::write(dir.path().join(name), &bytes).expect("written");
        assert_ne!(print(dir.path()), whole);
        let open = Checkpoint::open(&demo).expect("opened");
        assert_ne!(fingerprint(&[&open, &open]).expect("read"), whole);
    }
}
