//! The exactness probe: honest backends pass it on every shape of model, and each way of breaking the row law or the state law
//! that blocks and batches could show is found, and the operation named.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::fault::{Fault, Faulty, Verb};
use mlxcel_compute::{Backend, Batch, KvGroup};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::EngineError;
use mlxcel_engine::speculate::probe::{Probe, Progress, Report, Verdict, What};
use mlxcel_model::drafters::HiddenRows;
use mlxcel_model::tap::Tap;
use mlxcel_model::{Logits, Model, ModelError, ModelInfo, Snapshot, registry};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(name: &str) -> PathBuf {
    root().join("tests/golden").join(name)
}

fn load<B: Backend>(dir: &Path, backend: B) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    registry::load(&checkpoint, Arc::new(backend)).unwrap_or_else(|e| panic!("{e}"))
}

/// Few widths; the seed is one with which even the last bit of one value is not rounded away before the logits.
fn small() -> Probe {
    Probe { widths: vec![2, 9, 16], batches: vec![1, 3], draws: 2, seed: 4, thorough: true, ..Probe::startup(16, 1) }
}

fn honest(name: &str) -> Box<dyn Model> {
    load(&golden(name), CpuBackend::new(Precision::F32, 1))
}

/// Widths and batches in the order in which they were compared; the mixed batch is [`MIXED`].
fn sizes(report: &Report) -> Vec<(usize, usize)> {
    report.outcomes.iter().map(|o| if o.mixed { MIXED } else { (o.width, o.batch) }).collect()
}

const MIXED: (usize, usize) = (0, 0);

fn report(probe: &Probe, model: &mut dyn Model) -> Report {
    probe.run(model, &mut |_| ()).unwrap_or_else(|e| panic!("{}: {e}", model.backend()))
}

#[test]
fn honest_backends_are_exact() {
    for name in ["gemma4/dense", "gemma4/e2b", "gemma4/moe", "qwen3_5/dense", "qwen3_5/moe"] {
        for (precision, threads) in [(Precision::F32, 1), (Precision::Int8, 2)] {
            let mut model = load(&golden(name), CpuBackend::new(precision, threads));
            let report = report(&small(), &mut *model);
            assert_eq!(report.verdict(), Verdict::Exact, "{name}, {}", report.backend);
            assert_eq!(sizes(&report), [(2, 1), (9, 1), (16, 1), (1, 3), (2, 3), (9, 3), (16, 3), MIXED]);
            for outcome in &report.outcomes {
                // Two draws of a block with wrong drafts, of which at least one row is right, and a whole one; or of 19 steps; alone
                // in two contexts; mixed a widest block, a prompt's last row, and two of a block of three.
                let least = match outcome.width {
                    _ if outcome.mixed => 2 * (16 + 1 + 2),
                    1 => 2 * outcome.batch * 19,
                    width => 2 * outcome.batch.max(2) * (width + 1),
                };
                assert!(outcome.rows >= least, "{outcome}");
                assert_eq!(outcome.bytes, (4 * outcome.rows * model.info().vocab_size) as u64);
                assert_eq!(outcome.states > 0, model.is_recurrent(), "{outcome}");
            }
        }
    }
}

/// Which widths and batches show a fault.
type Shows = fn(width: usize, batch: usize) -> bool;

#[test]
fn every_fault_of_widths_and_batches_is_found_and_named() {
    const ROWS: Shows = |width, batch| width * batch >= 2;
    const FOUR: Shows = |width, batch| width * batch >= 4;
    const FIVE: Shows = |width, batch| width * batch >= 5;
    const BLOCK: Shows = |width, _| width >= 2;
    const LONG: Shows = |width, _| width > 8;
    const WIDEST: Shows = |width, _| width >= 16;
    const ALL: Shows = |_, _| true;
    let cases: &[(&str, Fault, &str, Shows)] = &[
        ("gemma4/dense", Fault::WideLinear, "layer 0, q_proj", ROWS),
        ("gemma4/dense", Fault::WidthDependentSum, "layer 0, q_proj", FOUR),
        ("gemma4/dense", Fault::NeighbourNorm, "layer 0, input_norm", ROWS),
        ("gemma4/dense", Fault::StaleKeys, "layer 0, attend", BLOCK),
        ("gemma4/dense", Fault::ChunkAttention, "layer 0, attend", LONG),
        ("gemma4/dense", Fault::Residue, "layer 0, attend", ALL),
        ("gemma4/dense", Fault::LastBit(Verb::Embed), "embed", ROWS),
        ("gemma4/dense", Fault::LastBit(Verb::RopeAngles), "rope_angles", ROWS),
        ("gemma4/dense", Fault::LastBit(Verb::Gated), "layer 0, gate_up", ROWS),
        ("gemma4/dense", Fault::LastBit(Verb::AddRmsNorm), "layer 0, post_attention_norm", ROWS),
        ("gemma4/dense", Fault::LastBit(Verb::Softcap), "logits", ROWS),
        ("gemma4/dense", Fault::Unwritten(Verb::Rope), "layer 0, k_rope", FIVE),
        ("gemma4/dense", Fault::Unwritten(Verb::Columns), "layer 2, v_copy", FIVE),
        ("gemma4/e2b", Fault::WideLinear, "per_layer_model_projection", ROWS),
        ("gemma4/e2b", Fault::StaleKeys, "layer 0, attend", BLOCK),
        ("gemma4/e2b", Fault::Unwritten(Verb::Add), "per_layer_inputs", FIVE),
        ("gemma4/e2b", Fault::Unwritten(Verb::ActivateMul), "layer 0, per_layer_gated", FIVE),
        ("gemma4/moe", Fault::MoeOrder, "layer 0, experts", ROWS),
        ("gemma4/moe", Fault::Unwritten(Verb::Moe), "layer 0, experts", FIVE),
        ("qwen3_5/dense", Fault::WideLinear, "layer 0, in_proj_qkv", ROWS),
        ("qwen3_5/dense", Fault::NeighbourNorm, "layer 0, input_norm", ROWS),
        ("qwen3_5/dense", Fault::StaleKeys, "layer 3, attend", BLOCK),
        ("qwen3_5/dense", Fault::LastBit(Verb::Add), "layer 0, mixer_residual", ROWS),
        ("qwen3_5/dense", Fault::LastBit(Verb::Columns), "layer 3, q_split", ROWS),
        ("qwen3_5/dense", Fault::Unwritten(Verb::CausalConv), "layer 0, conv", FIVE),
        ("qwen3_5/dense", Fault::Unwritten(Verb::GatedDelta), "layer 0, delta", FIVE),
        ("qwen3_5/dense", Fault::ChunkedDelta, "layer 0, delta", WIDEST),
        ("qwen3_5/dense", Fault::LayersSwapped, "layer 0, conv", ROWS),
        ("qwen3_5/dense", Fault::TakeBackShort, "take_back", BLOCK),
        ("qwen3_5/dense", Fault::TakeBackWindow, "take_back", BLOCK),
        ("qwen3_5/dense", Fault::RestoreWindow, "layer 0, conv", ALL),
        ("qwen3_5/moe", Fault::MoeOrder, "layer 0, experts", ROWS),
        ("qwen3_5/moe", Fault::Unwritten(Verb::AddGated), "layer 0, mlp", FIVE),
    ];
    for (model, fault, site, shows) in cases {
        found(model, *fault, site, *shows);
    }
}

fn found(model: &str, fault: Fault, site: &str, shows: Shows) {
    let backend = Faulty::new(CpuBackend::new(Precision::F32, 1), fault);
    let report = report(&small(), &mut *load(&golden(model), backend));
    let mut lines = Vec::new();
    for outcome in &report.outcomes {
        let expected = shows(outcome.width, outcome.batch);
        assert_eq!(outcome.is_exact(), !expected, "{model}, {fault:?}: {outcome}");
        let Some(first) = &outcome.first else { continue };
        assert_eq!(first.site.map(|s| s.to_string()).as_deref(), Some(site), "{model}, {fault:?}: {outcome}");
        match first.what {
            What::Logits { expected, found, .. } => {
                assert_ne!(expected.to_bits(), found.to_bits(), "{outcome}");
                assert!(outcome.differing > 0 && outcome.differing <= outcome.bytes, "{outcome}");
            }
            What::State | What::Refused => assert!(model.starts_with("qwen"), "{outcome}"),
        }
        lines.push(outcome.to_string());
    }
    let Verdict::Inexact { line } = report.verdict() else { panic!("{model}, {fault:?}: not found") };
    assert_eq!(Some(&line), lines.first(), "{model}, {fault:?}");
    println!("{model}, {fault:?}: {line}");
}

/// The twin of the faults: what no width or batch can show is not made up.
#[test]
fn faults_of_other_kinds_are_not_seen() {
    for (model, fault) in [
        ("gemma4/dense", Fault::Inaccurate(Verb::Linear)),
        ("gemma4/dense", Fault::MoeOrder),
        ("qwen3_5/dense", Fault::MatrixResidue),
        ("qwen3_5/dense", Fault::TakeBackAnything),
    ] {
        let backend = Faulty::new(CpuBackend::new(Precision::F32, 1), fault);
        let report = report(&small(), &mut *load(&golden(model), backend));
        assert_eq!(report.verdict(), Verdict::Exact, "{model}, {fault:?}");
    }
}

#[test]
fn a_difference_is_placed_where_it_is() {
    let backend = Faulty::new(CpuBackend::new(Precision::F32, 1), Fault::WideLinear);
    let mut model = load(&golden("gemma4/dense"), backend);
    let mut seen = |seed| {
        let probe = Probe { widths: vec![2, 4], batches: vec![1], draws: 1, seed, ..small() };
        let outcomes = report(&probe, &mut *model).outcomes;
        outcomes.into_iter().map(|o| o.first.expect("a difference")).collect::<Vec<_>>()
    };
    let first = seen(5);
    assert!(first.iter().all(|d| (d.draw, d.sequence) == (0, 0)), "{first:?}");
    // The last row of a block is off. In the first it is a wrong draft; the second starts at step 1 of K=2, at step 3 of K=4.
    assert_eq!(first[1].position - first[0].position, (3 + 4) - (1 + 2), "{first:?}");
    assert_eq!(seen(5), first, "a probe repeats itself");
    assert_ne!(seen(6), first, "another seed is another walk");
}

/// Where time is short, fewer widths are compared, and they stand for the others.
#[test]
fn impatient_probes_compare_less() {
    let mut model = honest("gemma4/dense");
    let mut count = |patience: Option<Duration>| {
        let mut seen: Vec<Progress> = Vec::new();
        let probe = Probe { patience, ..Probe::startup(13, 4) };
        let report = probe.run(&mut *model, &mut |progress| seen.push(progress)).expect("runs");
        assert_eq!(report.verdict(), Verdict::Exact);
        // Often, from long before the first comparison, and never backwards.
        let total = report.outcomes.len();
        assert!(seen.iter().filter(|p| p.done == 0).count() > 4, "{seen:?}");
        assert!(seen.windows(2).all(|two| two[0].done <= two[1].done && two[1].total <= two[0].total), "{seen:?}");
        assert_eq!(seen.last(), Some(&Progress { done: total, total }));
        assert!(report.cover().covers(&probe) && !report.cover().covers(&Probe::startup(14, 4)));
        assert!(!report.cover().covers(&Probe { hidden: HiddenRows::All, ..probe }));
        sizes(&report)
    };
    let few = [(2, 1), (4, 1), (8, 1), (13, 1), (1, 4), (13, 4), MIXED];
    let all: Vec<_> = (2..=13).map(|k| (k, 1)).chain([(1, 4), (2, 4), (4, 4), (13, 4), MIXED]).collect();
    assert_eq!(count(None), all);
    assert_eq!(count(Some(Duration::ZERO)), few);
    assert_eq!(count(Some(Duration::from_secs(3600))), all);
}

/// What is wrong with a [`Watched`] model.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// The last bit of a batch's first logit, when rows are kept for a drafter.
    Hidden,
    /// The same, when spans of different lengths share a batch.
    Mixed,
    /// It fails once rows are kept for a drafter.
    Fails,
}

/// An honest model that notes what it was asked, and may be wrong in ways that no backend is.
struct Watched {
    inner: Box<dyn Model>,
    wrong: Wrong,
    keep: HiddenRows,
    passes: Vec<(HiddenRows, usize)>, // rows
    highest: u32,                     // token
}

impl Watched {
    fn new(name: &str, wrong: Wrong) -> Self {
        Watched { inner: honest(name), wrong, keep: HiddenRows::None, passes: Vec::new(), highest: 0 }
    }

    fn judge(&mut self, batch: &Batch, logits: Result<Logits, ModelError>) -> Result<Logits, ModelError> {
        self.passes.push((self.keep, batch.rows()));
        self.highest = batch.tokens().iter().copied().fold(self.highest, u32::max);
        let drafted = self.keep != HiddenRows::None;
        let mixed = batch.spans().windows(2).any(|two| two[0].len != two[1].len);
        let off = match self.wrong {
            Wrong::Nothing => false,
            Wrong::Hidden => drafted,
            Wrong::Mixed => drafted && mixed,
            Wrong::Fails if drafted => return Err(ModelError::NoPages),
            Wrong::Fails => false,
        };
        let logits = logits?;
        let vocab = logits.vocab();
        let mut values = logits.into_values()?;
        if let (true, Some(first)) = (off, values.first_mut()) {
            *first = f32::from_bits(first.to_bits() ^ 1);
        }
        Ok(Logits::from_values(values, vocab))
    }
}

impl Model for Watched {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn backend(&self) -> String {
        self.inner.backend()
    }

    fn kv_layout(&self) -> &[KvGroup] {
        self.inner.kv_layout()
    }

    fn page_len(&self) -> usize {
        self.inner.page_len()
    }

    fn kv_page_bytes(&self, group: usize) -> usize {
        self.inner.kv_page_bytes(group)
    }

    fn is_recurrent(&self) -> bool {
        self.inner.is_recurrent()
    }

    fn state_bytes(&self) -> (usize, usize) {
        self.inner.state_bytes()
    }

    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError> {
        self.inner.reserve(pages, slots)
    }

    fn keep_hidden(&mut self, rows: HiddenRows) {
        self.keep = rows;
        self.inner.keep_hidden(rows);
    }

    fn take_back(&mut self, slot: usize, len: usize) -> bool {
        self.inner.take_back(slot, len)
    }

    fn save_state(&self, slot: usize) -> Option<Snapshot> {
        self.inner.save_state(slot)
    }

    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot) {
        self.inner.restore_state(slot, snapshot);
    }

    fn read_state(&self, snapshot: &Snapshot) -> Vec<f32> {
        self.inner.read_state(snapshot)
    }

    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        let logits = self.inner.forward(batch);
        self.judge(batch, logits)
    }

    fn forward_tapped(&mut self, batch: &Batch, tap: &mut dyn Tap) -> Result<Logits, ModelError> {
        let logits = self.inner.forward_tapped(batch, tap);
        self.judge(batch, logits)
    }
}

/// Blocks are compared as they are when a drafter reads them, against steps that nobody reads, and the model is left as if no
/// drafter were there.
#[test]
fn hidden_rows_are_kept_for_the_blocks_alone() {
    for (name, hidden) in [("gemma4/e2b", HiddenRows::Wanted), ("qwen3_5/dense", HiddenRows::All)] {
        let probe = Probe { hidden, ..small() };
        let mut model = Watched::new(name, Wrong::Nothing);
        assert_eq!(report(&probe, &mut model).verdict(), Verdict::Exact);
        assert!(model.passes.contains(&(hidden, 16)) && model.passes.contains(&(HiddenRows::None, 1)));
        assert!(!model.passes.contains(&(hidden, 1)) && !model.passes.contains(&(HiddenRows::None, 16)));
        assert!(model.keep == HiddenRows::None);

        let mut model = Watched::new(name, Wrong::Hidden);
        let wrong = report(&probe, &mut model);
        assert!(wrong.outcomes.iter().all(|outcome| !outcome.is_exact()), "{:?}", wrong.outcomes);
        let line = wrong.outcomes[0].to_string();
        assert!(line.contains("first op: none when run again"), "{line}");
        assert_eq!(report(&small(), &mut model).verdict(), Verdict::Exact, "without a drafter");

        let mut model = Watched::new(name, Wrong::Fails);
        assert!(probe.run(&mut model, &mut |_| ()).is_err());
        assert!(model.keep == HiddenRows::None);
    }
}

/// What only a batch of different widths shows is found by the mixed one.
#[test]
fn mixed_batches_are_compared() {
    let hidden = HiddenRows::Wanted;
    for batches in [vec![2], vec![1, 4], vec![7]] {
        let probe = Probe { batches, hidden, ..small() };
        let report = report(&probe, &mut Watched::new("gemma4/dense", Wrong::Mixed));
        let wrong: Vec<_> = report.outcomes.iter().filter(|o| !o.is_exact()).map(|o| (o.width, o.mixed)).collect();
        assert_eq!(wrong, [(16, true)], "{:?}", report.outcomes);
    }
}

#[test]
fn ids_that_nobody_has_are_not_drawn() {
    for (vocab, highest) in [(Some(20), 19), (Some(usize::MAX), u32::MAX), (None, u32::MAX)] {
        let mut model = Watched::new("gemma4/dense", Wrong::Nothing);
        report(&Probe { vocab, ..small() }, &mut model);
        assert!(model.highest <= highest && (vocab == Some(20) || model.highest > 19), "{}", model.highest);
    }
}

#[test]
fn bad_probes_are_refused() {
    let mut model = honest("gemma4/dense");
    let refused = |probe: Probe, words: [&str; 3], model: &mut dyn Model| {
        let error = probe.run(model, &mut |_| ()).expect_err("must be refused");
        assert!(matches!(error, EngineError::Option { .. }), "{error}");
        let message = error.to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "{word:?} not in {message}"));
    };
    for widths in [vec![], vec![1], vec![2, 17], vec![0]] {
        let found = format!("{widths:?}");
        refused(Probe { widths, ..small() }, ["widths", "2 to 16", &found], &mut *model);
    }
    for batches in [vec![], vec![0], vec![1, 65]] {
        let found = format!("{batches:?}");
        refused(Probe { batches, ..small() }, ["batches", "1 to 64", &found], &mut *model);
    }
    refused(Probe { draws: 0, ..small() }, ["draws", "at least 1", "found 0"], &mut *model);
    // In any order and more than once is all right.
    let mixed = Probe { widths: vec![4, 2, 4], batches: vec![2, 1, 2], draws: 1, ..small() };
    let sizes = sizes(&report(&mixed, &mut *model));
    assert_eq!(sizes, [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2), MIXED]);
}

#[test]
fn startup_probes_what_is_used() {
    let probe = Probe::startup(16, 4);
    assert_eq!((probe.widths, probe.batches), ((2..=16).collect(), vec![1, 4]));
    let probe = Probe::startup(4, 1);
    assert_eq!((probe.widths, probe.batches), (vec![2, 3, 4], vec![1]));
    let probe = Probe::startup(99, 1000);
    assert_eq!((probe.widths.last(), probe.batches), (Some(&16), vec![1, 8]));
    for (name, hidden) in [("gemma-4-tiny-it-4bit", HiddenRows::Wanted), ("qwen3.5-tiny-4bit", HiddenRows::All)] {
        for parallel in [1, 4] {
            let mut model = load(&root().join("models").join(name), CpuBackend::new(Precision::Int8, 1));
            let probe = Probe { hidden, ..Probe::startup(16, parallel) };
            let report = report(&probe, &mut *model);
            assert_eq!(report.verdict(), Verdict::Exact, "{name}");
            assert!(report.cover().covers(&probe));
            let rows: usize = report.outcomes.iter().map(|o| o.rows).sum();
            println!("{name}, {parallel} sequences: {:.2} s, {rows} rows", report.elapsed.as_secs_f64());
        }
    }
}
