//! Checkpoints broken on purpose, and what must come of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mlxcel_checkpoint::testing::{RawTensor, write_checkpoint};
use mlxcel_checkpoint::{Checkpoint, SafetensorsFile};
use mlxcel_compute::{Batch, DType, Wanted};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::{Model, ModelError, registry};
use serde_json::Value;
use tempfile::TempDir;

use super::root;

/// A checkpoint in memory, to be broken and written out.
pub struct Copy {
    pub config: Value,
    pub tensors: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>, // dtype, shape, bytes
}

impl Copy {
    pub fn of(dir: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(dir.join("config.json")).expect("config")).expect("JSON");
        let file = SafetensorsFile::open(&dir.join("model.safetensors")).expect("weights");
        let tensor = |i: usize| {
            let t = file.tensor(i).expect("tensor");
            (t.name, (t.dtype.name().to_string(), t.shape, t.data.to_vec()))
        };
        Copy { config, tensors: (0..file.entries().len()).map(tensor).collect() }
    }

    /// A tiny checkpoint by its place under tests/golden, or a trained one by its name in models.
    pub fn named(name: &str) -> Self {
        let model = root().join("models").join(name);
        Self::of(&if model.is_dir() { model } else { root().join("tests/golden").join(name) })
    }

    /// The one tensor whose name ends like this.
    pub fn find(&mut self, end: &str) -> &mut (String, Vec<usize>, Vec<u8>) {
        let mut found: Vec<_> = self.tensors.iter_mut().filter(|(name, _)| name.ends_with(end)).collect();
        assert_eq!(found.len(), 1, "tensors ending in {end}");
        found.remove(0).1
    }

    /// Exchanges the contents of two tensors.
    pub fn swap(&mut self, a: &str, b: &str) {
        let kept = std::mem::take(self.find(a));
        let other = std::mem::replace(self.find(b), kept);
        *self.find(a) = other;
    }

    /// Overwrites element `index` of a float tensor with a value that is not finite, or one that bfloat16 holds.
    pub fn poison(&mut self, end: &str, index: usize, value: f32) {
        let (dtype, _, bytes) = self.find(end);
        if dtype == DType::F32.name() {
            bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
        } else if dtype == DType::F16.name() {
            assert!(!value.is_finite(), "{end}: {value}");
            // Sign and exponent, and NaN's first bit.
            let half = (value.is_sign_negative() as u16) << 15 | 0x7c00 | (value.is_nan() as u16) << 9;
            bytes[2 * index..][..2].copy_from_slice(&half.to_le_bytes());
        } else {
            assert_eq!(dtype, DType::Bf16.name(), "{end}");
            // The upper half of these special values says everything.
            bytes[2 * index..][..2].copy_from_slice(&value.to_le_bytes()[2..]);
        }
    }

    pub fn write(&self) -> TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let tensors: Vec<RawTensor<'_>> = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, bytes))| (name.as_str(), dtype.as_str(), shape.as_slice(), bytes.as_slice()))
            .collect();
        write_checkpoint(dir.path(), &self.config, &tensors);
        dir
    }
}

pub fn load(dir: &Path, precision: Precision) -> Result<Box<dyn Model>, ModelError> {
    registry::load(&Checkpoint::open(dir)?, Arc::new(CpuBackend::new(precision, 1)))
}

/// Runs a short prompt.
pub fn first_forward(model: &mut dyn Model) -> Result<Vec<f32>, ModelError> {
    let groups = model.kv_layout().len();
    model.reserve(&vec![1; groups], 1)?;
    let mut batch = Batch::new();
    batch.push(0, 0, &PROMPT, &vec![&[0u32][..]; groups], Wanted::All);
    model.forward(&batch)?.into_values()
}

pub const PROMPT: [u32; 4] = [2, 7, 9, 11];

/// Writes one value that is not finite; the checkpoint must load, and the first forward pass must say where it comes from.
pub fn damaged(name: &str, tensor: &str, index: usize, site: &str) {
    let whole = Copy::named(name);
    let mut missed = Vec::new();
    for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut copy = Copy { config: whole.config.clone(), tensors: whole.tensors.clone() };
        copy.poison(tensor, index, value);
        let dir = copy.write();
        for precision in [Precision::F32, Precision::Int8] {
            let case = format!("{name}: {value} in {tensor}, {}", precision.name());
            let mut model = load(dir.path(), precision).unwrap_or_else(|e| panic!("{case}: {e}"));
            match first_forward(&mut *model) {
                Ok(_) => missed.push(case),
                Err(error) => {
                    let (message, path) = (error.to_string(), dir.path().display().to_string());
                    assert!(matches!(error, ModelError::NonFinite { .. }), "{case}: {message}");
                    let parts = [&*path, "not finite", &format!("come from {site}."), "download or convert"];
                    parts.iter().for_each(|part| assert!(message.contains(part), "{case}: {part:?} not in: {message}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}

/// A copy must load.
#[track_caller]
pub fn accepted(name: &str, copy: &Copy) {
    let dir = copy.write();
    for precision in [Precision::F32, Precision::Int8] {
        load(dir.path(), precision).map(|_| ()).unwrap_or_else(|error| panic!("{name} is refused: {error}"));
    }
}

/// A broken copy must be refused with a one-line message that has the directory and all the parts, the undamaged one not.
#[track_caller]
pub fn refused(name: &str, parts: &[&str], edit: impl FnOnce(&mut Copy)) {
    let mut copy = Copy::named(name);
    accepted(name, &copy);
    edit(&mut copy);
    let dir = copy.write();
    for precision in [Precision::F32, Precision::Int8] {
        let message = load(dir.path(), precision).map(|_| ()).expect_err("must be refused").to_string();
        let path = dir.path().display().to_string();
        assert!(message.contains(&path), "{path:?} not in: {message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} not in: {message}"));
        assert!(!message.contains('\n'), "{message}");
    }
}
