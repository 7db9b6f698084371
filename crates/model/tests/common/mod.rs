//! Drives a model without the engine: page tables by hand, logits as bits.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod damage;
pub mod tape;
pub mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::{Backend, Batch, Wanted};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_model::{Logits, Model, registry};

/// The project's root: where this was built, or where it runs when it was brought to another machine.
pub fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize();
    built.or_else(|_| std::env::current_dir()).expect("project root")
}

/// The trained demo checkpoint.
pub fn demo() -> PathBuf {
    root().join("models/gemma-4-tiny-it-4bit")
}

/// The trained demo checkpoint of the recurrent family.
pub fn recurrent_demo() -> PathBuf {
    root().join("models/qwen3.5-tiny-4bit")
}

/// The tiny random models whose names begin with one of these, in order.
pub fn goldens(families: &[&str]) -> Vec<PathBuf> {
    let base = root().join("tests/golden/gemma4");
    let mut dirs: Vec<PathBuf> =
        std::fs::read_dir(&base).expect("goldens").map(|e| e.expect("entry").path()).filter(|p| p.is_dir()).collect();
    let named = |n: &str| families.iter().any(|f| n.starts_with(f)) && !n.contains("-assistant");
    dirs.retain(|d| d.file_name().is_some_and(|n| named(&n.to_string_lossy())));
    dirs.sort();
    dirs
}

/// Loads a checkpoint on the CPU.
pub fn load(dir: &Path, precision: Precision, threads: usize) -> Box<dyn Model> {
    load_on(dir, CpuBackend::new(precision, threads))
}

/// Loads a checkpoint on any backend.
pub fn load_on<B: Backend>(dir: &Path, backend: B) -> Box<dyn Model> {
    load_shared(dir, Arc::new(backend))
}

/// Loads a checkpoint on a backend that others use as well.
pub fn load_shared<B: Backend>(dir: &Path, backend: Arc<B>) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    registry::load(&checkpoint, backend).unwrap_or_else(|e| panic!("{e}"))
}

/// Sequences over a model's pages; page tables are dealt out in a scrambled order.
pub struct Walker {
    pub model: Box<dyn Model>,
    tables: Vec<Vec<Vec<u32>>>, // [sequence][group][page]
}

impl Walker {
    /// Room for `sequences` of up to `positions` each.
    pub fn new(mut model: Box<dyn Model>, sequences: usize, positions: usize) -> Self {
        let groups = model.kv_layout().len();
        let pages = positions.div_ceil(model.page_len());
        model.reserve(&vec![pages * sequences; groups], sequences).expect("pages");
        // Interleaved and backwards: nothing may depend on pages lying in order.
        let table = |s: usize| (0..pages).map(|p| ((pages - 1 - p) * sequences + s) as u32).collect::<Vec<u32>>();
        let tables = (0..sequences).map(|s| vec![table(s); groups]).collect();
        Walker { model, tables }
    }

    /// Logits of a batch's wanted rows.
    pub fn forward(&mut self, batch: &Batch) -> Vec<f32> {
        self.model.forward(batch).and_then(Logits::into_values).unwrap_or_else(|e| panic!("{e}"))
    }

    /// One step over spans `(sequence, start, tokens)`, all rows wanted; logits by span, `[len, vocab]`.
    ///
    /// A recurrent model is taken back to where a span starts; it must be able to.
    pub fn step(&mut self, spans: &[(usize, usize, &[u32])]) -> Vec<Vec<f32>> {
        for (sequence, start, _) in spans.iter().filter(|(_, start, _)| *start > 0) {
            assert!(self.model.take_back(*sequence, *start), "sequence {sequence} goes back to {start}");
        }
        let mut batch = Batch::new();
        for (sequence, start, tokens) in spans {
            let tables: Vec<&[u32]> = self.tables[*sequence].iter().map(Vec::as_slice).collect();
            batch.push(*sequence, *start, tokens, &tables, Wanted::All);
        }
        let logits = self.forward(&batch);
        let vocab = self.model.info().vocab_size;
        let mut rest = logits.as_slice();
        spans
            .iter()
            .map(|(_, _, tokens)| {
                let (own, tail) = rest.split_at(tokens.len() * vocab);
                rest = tail;
                own.to_vec()
            })
            .collect()
    }

    /// Lets sequence `to` begin with what `from` has computed, as a prefix cache does: the pages of its first `positions`, which
    /// must fill them, and a copy of its recurrent state. Gives the pages that it had.
    pub fn lend(&mut self, from: usize, to: usize, positions: usize) -> Vec<Vec<u32>> {
        let pages = positions / self.model.page_len();
        assert_eq!(pages * self.model.page_len(), positions, "only full pages are shared");
        let own = self.tables[to].clone();
        for group in 0..own.len() {
            let shared = self.tables[from][group][..pages].to_vec();
            self.tables[to][group][..pages].copy_from_slice(&shared);
        }
        if self.model.is_recurrent() {
            let snapshot = self.model.save_state(from).expect("a recurrent state");
            assert_eq!(snapshot.position(), positions);
            self.model.restore_state(to, &snapshot);
        }
        own
    }

    /// Ends what [`Walker::lend`] began.
    pub fn give_back(&mut self, sequence: usize, own: Vec<Vec<u32>>) {
        self.tables[sequence] = own;
    }

    /// A sequence's recurrent state in numbers.
    pub fn state(&self, sequence: usize) -> Vec<f32> {
        let snapshot = self.model.save_state(sequence).expect("a recurrent state");
        self.model.read_state(&snapshot)
    }

    /// A batch of one span with the chosen rows wanted.
    pub fn batch(&self, sequence: usize, start: usize, tokens: &[u32], wanted: Wanted) -> Batch {
        let mut batch = Batch::new();
        let tables: Vec<&[u32]> = self.tables[sequence].iter().map(Vec::as_slice).collect();
        batch.push(sequence, start, tokens, &tables, wanted);
        batch
    }

    /// Feeds `tokens` from position 0 of sequence 0 in chunks of the given lengths (the last repeated).
    pub fn chunks(&mut self, tokens: &[u32], lengths: &[usize]) -> Vec<f32> {
        let (mut out, mut at, mut i) = (Vec::new(), 0, 0);
        while at < tokens.len() {
            let len = lengths[i.min(lengths.len() - 1)].min(tokens.len() - at);
            out.extend(self.step(&[(0, at, &tokens[at..at + len])]).remove(0));
            at += len;
            i += 1;
        }
        out
    }
}

/// Bits of floats, for exact comparison.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Largest absolute difference.
pub fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths");
    // NaN is further off than anything.
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m: f32, d| if d <= m || m.is_nan() { m } else { d })
}

/// Index of the largest value, the lowest on ties.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best as u32
}

/// The trained checkpoint of a directory answers three prompts with its golden tokens, and its first logits are near the
/// references.
pub fn says_its_golden_tokens(dir: &Path, tolerance: f32) {
    let golden = Golden::open(dir);
    for prompt in ["prose", "code", "enumeration"] {
        let mut ids = golden.ids(&format!("{prompt}.prompt_ids"));
        let want_ids = golden.ids(&format!("{prompt}.continuation_ids"));
        let want = golden.floats(&format!("{prompt}.logits")).expect("logits");
        let mut walker = Walker::new(load(dir, Precision::F32, 2), 1, ids.len() + want_ids.len());
        let vocab = walker.model.info().vocab_size;
        let (mut at, mut said, mut error) = (0, Vec::new(), 0.0f32);
        for step in 0..want_ids.len() {
            let logits = walker.step(&[(0, at, &ids[at..])]).remove(0);
            at = ids.len();
            let row = &logits[logits.len() - vocab..];
            if step < 8 {
                error = error.max(worst(row, &want[step * vocab..][..vocab]));
            }
            said.push(argmax(row));
            ids.push(argmax(row));
        }
        println!("{prompt}: first logits within {error:.1e}");
        assert_eq!(said, want_ids, "{prompt}");
        assert!(error <= tolerance, "{prompt}: logits differ by {error:e}");
    }
}

/// A small deterministic generator.
pub struct Rng(pub u64);

impl Rng {
    /// The next 32 bits (splitmix64).
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) as u32
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
}

/// Tensors of a golden file.
pub struct Golden(mlxcel_checkpoint::SafetensorsFile);

impl Golden {
    /// Opens `golden.safetensors` of a directory.
    pub fn open(dir: &Path) -> Self {
        Self::file(&dir.join("golden.safetensors"))
    }

    /// Opens a file of tensors.
    pub fn file(path: &Path) -> Self {
        Golden(mlxcel_checkpoint::SafetensorsFile::open(path).expect("golden file"))
    }

    fn tensor(&self, name: &str) -> Option<mlxcel_checkpoint::Tensor> {
        let index = self.0.entries().iter().position(|e| e.name == name)?;
        Some(self.0.tensor(index).expect("tensor"))
    }

    /// f32 values of a tensor.
    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let t = self.tensor(name)?;
        assert_eq!(t.dtype, mlxcel_compute::DType::F32, "{name}");
        Some(t.data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Token ids of a tensor.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let t = self.tensor(name).unwrap_or_else(|| panic!("no {name}"));
        match t.dtype {
            mlxcel_compute::DType::I32 => t.data.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
            _ => t.data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b) as u32).collect(),
        }
    }
}
