//! A host over the demo checkpoints, with whatever backend and prompts a test wants.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_bench::catalogue::Kind;
use mlxcel_bench::fingerprint::fingerprint;
use mlxcel_bench::host::{Draft, Host, Loaded, Place, Probed, Wanted};
use mlxcel_bench::prompts::Prompt;
use mlxcel_bench::row::{Row, Status};
use mlxcel_bench::runner::{Item, Outcome, Plan, run};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, Speculation};
use mlxcel_model::ModelError;
use mlxcel_model::drafters::{Ask, Candidate, Choose, Drafter, DrafterInfo, HiddenRows, Kept, Ngram};
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// Loads demo checkpoints.
pub struct TestHost {
    pub precision: Precision,
    pub fault: Option<Fault>,
    pub probed: Probed,
    /// Tokens of prompts by name; others are encoded as raw text.
    pub ids: HashMap<String, Vec<u32>>,
    /// What was said.
    pub said: Vec<String>,
    /// Answers of `is_interrupted` that are no.
    pub patience: usize,
    /// Targets that were opened.
    pub loads: Vec<PathBuf>,
    pub context: Option<usize>,
    /// What drafters were asked to do.
    pub counts: Arc<Counts>,
}

/// Calls of a drafter.
#[derive(Debug, Default)]
pub struct Counts {
    pub proposals: AtomicUsize,
    pub depths: AtomicUsize,
    pub observed: AtomicUsize,
}

/// Counts what it passes on.
struct Counted {
    inner: Box<dyn Drafter>,
    counts: Arc<Counts>,
}

/// Counts choices, one a forward of a sequence that runs alone.
struct Depths<'a>(&'a mut dyn Choose, &'a AtomicUsize);

impl Choose for Depths<'_> {
    fn choose(&mut self, ask: usize, depth: usize, candidates: &[Candidate]) -> Option<u32> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.choose(ask, depth, candidates)
    }

    fn takes_the_first(&self) -> bool {
        self.0.takes_the_first()
    }
}

impl Drafter for Counted {
    fn info(&self) -> &DrafterInfo {
        self.inner.info()
    }

    fn hidden_rows(&self) -> HiddenRows {
        self.inner.hidden_rows()
    }

    fn reserve(&mut self, slots: usize, context: usize) -> Result<(), ModelError> {
        self.inner.reserve(slots, context)
    }

    fn observe(&mut self, kept: &[Kept<'_>]) -> Result<(), ModelError> {
        self.counts.observed.fetch_add(1, Ordering::Relaxed);
        self.inner.observe(kept)
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        self.inner.take_back(slot, len);
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        self.counts.proposals.fetch_add(1, Ordering::Relaxed);
        self.inner.propose(asks, &mut Depths(choose, &self.counts.depths))
    }

    fn cache_bytes(&self) -> usize {
        self.inner.cache_bytes()
    }

    fn cached(&self, slot: usize) -> usize {
        self.inner.cached(slot)
    }
}

impl Default for TestHost {
    fn default() -> Self {
        TestHost {
            precision: Precision::Int8,
            fault: None,
            probed: Probed::Exact,
            ids: HashMap::new(),
            said: Vec::new(),
            patience: usize::MAX,
            loads: Vec::new(),
            context: None,
            counts: Arc::default(),
        }
    }
}

impl TestHost {
    fn pair(&self, wanted: &Wanted<'_>, target: &Checkpoint) -> Result<(Pair, String), Status> {
        let refused = |e: &dyn std::fmt::Display| Status::Skipped(e.to_string());
        let cpu = CpuBackend::new(self.precision, 2);
        let Draft::Checkpoint { path, .. } = &wanted.draft else {
            let model = match self.fault {
                None => registry::load(target, Arc::new(cpu)),
                Some(fault) => registry::load(target, Arc::new(Faulty::new(cpu, fault))),
            };
            let print = fingerprint(&[target]).map_err(Status::Failed)?;
            return Ok((Pair { model: model.map_err(|e| refused(&e))?, drafter: None }, print));
        };
        let draft = Checkpoint::open(path).map_err(|e| refused(&e))?;
        let pair = match self.fault {
            None => registry::load_pair(target, &draft, Arc::new(cpu)),
            Some(fault) => registry::load_pair(target, &draft, Arc::new(Faulty::new(cpu, fault))),
        };
        Ok((pair.map_err(|e| refused(&e))?, fingerprint(&[target, &draft]).map_err(Status::Failed)?))
    }
}

impl Host for TestHost {
    fn place(&self) -> Place {
        Place { device: "a test".into(), threads: 2 }
    }

    fn load(&mut self, wanted: Wanted<'_>) -> Result<Loaded, Status> {
        self.loads.push(wanted.target.to_path_buf());
        let target = Checkpoint::open(wanted.target).map_err(|e| Status::Absent(e.to_string()))?;
        let (pair, checkpoint) = self.pair(&wanted, &target)?;
        let tokenizer = Arc::new(Tokenizer::load(wanted.target).map_err(|e| Status::Failed(e.to_string()))?);
        let encode = |prompt: &Prompt| match self.ids.get(&prompt.name) {
            Some(ids) => Ok(ids.clone()),
            None if prompt.text.is_empty() => Err(format!("prompt {}: empty", prompt.name)),
            None => tokenizer.encode_raw(&prompt.text).map_err(|e| e.to_string()),
        };
        let prompts: Vec<_> = wanted.prompts.iter().map(encode).collect();
        let drafter = match wanted.draft {
            Draft::Ngram => Some(Box::new(Ngram::new()) as _),
            Draft::None | Draft::Checkpoint { .. } => pair.drafter,
        };
        let counts = Arc::clone(&self.counts);
        let drafter = drafter.map(|inner| Box::new(Counted { inner, counts }) as Box<dyn Drafter>);
        let drafter = match wanted.simulate {
            Some(simulation) => Some(simulation.over(drafter)),
            None => drafter,
        };
        let context = self.context.or(Some(1024));
        let options = EngineOptions { parallel: wanted.parallel, context, reuse: false, ..EngineOptions::default() };
        let speculation = Speculation { calibrate: 0, ..Speculation::default() };
        let engine = match drafter {
            Some(drafter) => Engine::with_drafter(pair.model, tokenizer, options, drafter, speculation),
            None => Engine::new(pair.model, tokenizer, options),
        };
        let engine = engine.map_err(|e| Status::Skipped(e.to_string()))?;
        Ok(Loaded { engine, probed: self.probed.clone(), prompts, checkpoint })
    }

    fn say(&mut self, line: &str) {
        self.said.push(line.into());
    }

    fn is_interrupted(&mut self) -> bool {
        self.patience = self.patience.saturating_sub(1);
        self.patience == 0
    }
}

/// A demo pairing.
pub fn item(name: &str, kind: Kind, target: &str, drafter: Option<&str>) -> Item {
    let path = |name: &str| Ok(models().join(name));
    Item { name: name.into(), kind, target: path(target), drafter: drafter.map(path) }
}

pub fn gemma() -> Item {
    item("gemma", Kind::Mtp, "gemma-4-tiny-it-4bit", Some("gemma-4-tiny-it-assistant-4bit"))
}

pub fn prompt(name: &str, text: &str) -> Prompt {
    Prompt { name: name.into(), text: text.into(), raw: true }
}

pub const STORY: &str = "Once upon a time, there was a little fox named Nora. Nora lived in the forest with";
pub const CODE: &str =
    "import os\nimport sys\n\n\nclass Config:\n    def __init__(self, path):\n        self.path = path\n\n    def";

pub fn plan(items: Vec<Item>) -> Plan {
    Plan {
        items,
        ks: vec![Some(2), Some(4)],
        batches: vec![1],
        prompts: vec![prompt("story", STORY)],
        max_tokens: 40,
        sampling: SamplingParams::default(),
        ignore_eos: true,
        repeat: 2,
        warmup: 0,
        simulate: None,
        trace: false,
    }
}

/// Runs a plan; rows come to the sink in the order of the outcome.
pub fn sweep(plan: &Plan, host: &mut TestHost) -> Outcome {
    let mut streamed: Vec<Row> = Vec::new();
    let outcome = run(plan, host, |rows| {
        streamed.extend_from_slice(rows);
        Ok::<(), std::convert::Infallible>(())
    });
    let outcome = outcome.unwrap_or_else(|e| match e {});
    assert_eq!(outcome.rows, streamed);
    outcome
}
