//! What a loaded model is, in numbers: for `mlxcel inspect`, start-up lines and capacity planning.

use std::cell::RefCell;
use std::path::PathBuf;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::HostWeight;

/// Facts of a model that do not depend on the backend.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Directory of the checkpoint.
    pub path: PathBuf,
    /// Name of the directory.
    pub name: String,
    /// `architectures[0]` of config.json.
    pub architecture: String,
    /// `model_type` of config.json.
    pub model_type: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest context the model was made for, in tokens.
    pub context_length: usize,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// Media the checkpoint has towers for and this engine leaves alone: `image`, `audio`.
    pub media: Vec<&'static str>,
    /// Token ids that stand for media features: a prompt with one is refused.
    pub media_tokens: Vec<u32>,
    /// Oddities of the configuration, for the log.
    pub warnings: Vec<String>,
    /// Modules read, layer numbers folded into `*`.
    pub modules: Vec<ModuleInfo>,
}

/// What [`ModelInfo::new`] takes from a configuration; the fields are those of [`ModelInfo`].
#[allow(missing_docs, reason = "documented there")]
pub struct Facts<'a> {
    pub architecture: &'a str,
    pub model_type: &'a str,
    pub vocab_size: usize,
    pub max_position_embeddings: u64,
    pub layers: usize,
    pub hidden_size: usize,
    pub stop_ids: &'a [u32],
    pub media: Vec<&'static str>,
    pub media_tokens: Vec<u32>,
    pub warnings: &'a [String],
}

/// Modules of one kind and format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Name with layer numbers as `*`.
    pub pattern: String,
    /// Storage format.
    pub format: String,
    /// `outputs x inputs` (stacks: `experts x outputs x inputs`), or a vector's length.
    pub shape: String,
    /// How many there are.
    pub count: usize,
    /// Parameters of all of them.
    pub parameters: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl ModelInfo {
    /// The facts a family's loader knows, about a checkpoint.
    pub fn new(checkpoint: &Checkpoint, facts: Facts<'_>, modules: Vec<ModuleInfo>) -> Self {
        let path = checkpoint.dir().to_path_buf();
        ModelInfo {
            name: path
                .canonicalize()
                .ok()
                .and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()))
                .unwrap_or_else(|| path.display().to_string()),
            path,
            architecture: facts.architecture.into(),
            model_type: facts.model_type.into(),
            vocab_size: facts.vocab_size,
            context_length: usize::try_from(facts.max_position_embeddings).unwrap_or(usize::MAX),
            layers: facts.layers,
            hidden_size: facts.hidden_size,
            stop_ids: facts.stop_ids.to_vec(),
            media: facts.media,
            media_tokens: facts.media_tokens,
            warnings: facts.warnings.to_vec(),
            modules,
        }
    }

    /// Number of parameters read.
    pub fn parameters(&self) -> u64 {
        self.modules.iter().map(|m| m.parameters).sum()
    }

    /// Bytes of weights read.
    pub fn weight_bytes(&self) -> u64 {
        self.modules.iter().map(|m| m.bytes).sum()
    }
}

/// Collects [`ModuleInfo`] while tensors are read.
#[derive(Debug, Default)]
pub struct Ledger(RefCell<Vec<ModuleInfo>>);

impl Ledger {
    /// Notes a matrix.
    pub fn weight(&self, weight: &HostWeight) {
        let mut shape = format!("{} x {}", weight.outputs, weight.inputs);
        if weight.experts > 1 {
            shape = format!("{} x {shape}", weight.experts);
        }
        let parameters = weight.experts * weight.outputs * weight.inputs;
        self.note(&weight.name, weight.format.to_string(), shape, parameters, weight.byte_len());
    }

    /// Notes a vector of `len` floats held as f32.
    pub fn vector(&self, name: &str, len: usize) {
        self.note(name, "vector".into(), len.to_string(), len, 4 * len);
    }

    fn note(&self, name: &str, format: String, shape: String, parameters: usize, bytes: usize) {
        let fold = |part: &str| if part.parse::<u32>().is_ok() { "*".to_string() } else { part.to_string() };
        let pattern = name.split('.').map(fold).collect::<Vec<_>>().join(".");
        let mut modules = self.0.borrow_mut();
        let (parameters, bytes) = (parameters as u64, bytes as u64);
        match modules.iter_mut().find(|m| m.pattern == pattern && m.format == format && m.shape == shape) {
            Some(known) => {
                known.count += 1;
                known.parameters += parameters;
                known.bytes += bytes;
            }
            None => modules.push(ModuleInfo { pattern, format, shape, count: 1, parameters, bytes }),
        }
    }

    /// What was noted.
    pub fn modules(&self) -> Vec<ModuleInfo> {
        self.0.borrow().clone()
    }
}
