use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlxcel_compute::KvGroup;
use mlxcel_model::drafters::HiddenRows;
use mlxcel_model::tap::Tap;
use mlxcel_model::{Logits, ModelInfo};

use super::*;

const PAGE: usize = 16;
/// Ticks a second of the clock that only forward passes move.
const TICKS: f64 = 1e6;

/// A recurrent model whose passes take a known time: a millisecond, 10 us a row, 1 us a position before each sequence's first.
struct Clockwork {
    info: ModelInfo,
    layout: Vec<KvGroup>,
    clock: Arc<AtomicU64>,
    pages: usize,
    slots: usize,
    states: BTreeMap<usize, usize>,            // [sequence] where it stands
    owners: BTreeMap<u32, usize>,              // [page] whose it is
    starts: BTreeMap<usize, Vec<u32>>,         // [sequence] tokens from position 0
    passes: Vec<(usize, usize, usize, usize)>, // sequences, start, rows of each, wanted
    strays: usize,                             // spans that began where the state does not stand
    forgetful: bool,                           // restores nothing
    dear: Option<usize>,                       // a width that takes twice as long
}

impl Clockwork {
    fn new() -> Self {
        let info = ModelInfo {
            path: PathBuf::new(),
            name: "clockwork".into(),
            architecture: "Clockwork".into(),
            model_type: "clockwork".into(),
            vocab_size: 4,
            context_length: 256,
            layers: 1,
            hidden_size: 1,
            stop_ids: Vec::new(),
            media: Vec::new(),
            media_tokens: vec![2],
            warnings: Vec::new(),
            modules: Vec::new(),
        };
        Clockwork {
            info,
            layout: vec![KvGroup { window: None, layers: Vec::new() }],
            clock: Arc::default(),
            pages: 0,
            slots: 0,
            states: BTreeMap::new(),
            owners: BTreeMap::new(),
            starts: BTreeMap::new(),
            passes: Vec::new(),
            strays: 0,
            forgetful: false,
            dear: None,
        }
    }

    fn measure(&mut self, plan: &Plan) -> Result<Cost, CostError> {
        let clock = Arc::clone(&self.clock);
        measure(self, plan, &mut || clock.load(Ordering::Relaxed) as f64 / TICKS)
    }
}

impl Model for Clockwork {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn backend(&self) -> String {
        "clockwork".into()
    }

    fn kv_layout(&self) -> &[KvGroup] {
        &self.layout
    }

    fn page_len(&self) -> usize {
        PAGE
    }

    fn kv_page_bytes(&self, _: usize) -> usize {
        1000
    }

    fn is_recurrent(&self) -> bool {
        true
    }

    fn state_bytes(&self) -> (usize, usize) {
        (0, 0)
    }

    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError> {
        (self.pages, self.slots) = (pages[0], slots);
        Ok(())
    }

    fn keep_hidden(&mut self, _: HiddenRows) {}

    fn take_back(&mut self, _: usize, _: usize) -> bool {
        false
    }

    fn save_state(&self, slot: usize) -> Option<Snapshot> {
        self.states.get(&slot).map(|position| Snapshot::new(*position, ()))
    }

    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot) {
        if !self.forgetful {
            self.states.insert(slot, snapshot.position());
        }
    }

    fn read_state(&self, _: &Snapshot) -> Vec<f32> {
        Vec::new()
    }

    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        let spans = batch.spans();
        for span in spans {
            let end = span.start + span.len;
            self.strays += usize::from(span.start != 0 && self.states.get(&span.sequence) != Some(&span.start));
            self.states.insert(span.sequence, end);
            for page in &batch.table(span.first_row, 0)[..end.div_ceil(PAGE)] {
                assert_eq!(
                    *self.owners.entry(*page).or_insert(span.sequence),
                    span.sequence,
                    "pages are of one sequence"
                );
                assert!((*page as usize) < self.pages, "page {page} of {}", self.pages);
            }
            if span.start == 0 {
                self.starts.insert(span.sequence, batch.tokens()[span.first_row..][..span.len].to_vec());
            }
        }
        assert!(batch.tokens().iter().all(|token| *token < 4 && *token != 2), "{:?}", batch.tokens());
        self.passes.push((spans.len(), spans[0].start, spans[0].len, batch.wanted().len()));
        let ticks = 1000 + 10 * batch.rows() + spans.iter().map(|span| span.start).sum::<usize>();
        let times = if self.dear == Some(batch.rows()) { 2 } else { 1 };
        self.clock.fetch_add((times * ticks) as u64, Ordering::Relaxed);
        let vocab = self.info.vocab_size;
        Ok(Logits::from_values(vec![0.0; batch.wanted().len() * vocab], vocab))
    }

    fn forward_tapped(&mut self, batch: &Batch, _: &mut dyn Tap) -> Result<Logits, ModelError> {
        self.forward(batch)
    }
}

fn plan() -> Plan {
    Plan {
        prompt: 50,
        contexts: vec![20, 100],
        batches: vec![1],
        tokens: 4,
        widths: vec![1, 3, 16],
        block_context: 30,
        repeat: 2,
        step_rows: 32,
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn every_pass_is_counted_where_it_belongs() {
    let mut model = Clockwork::new();
    let cost = model.measure(&plan()).expect("measured");
    assert_eq!(model.strays, 0);
    assert_eq!(cost.kv_bytes, 104usize.div_ceil(PAGE) * 1000);
    let prefill = cost.prefill.expect("a prompt");
    assert_eq!((prefill.rows, prefill.seconds.len()), (50, 2));
    // 32 rows, then 18 behind them.
    assert!(close(prefill.median(), (2000 + 500 + 32) as f64 / TICKS), "{prefill:?}");
    for (timed, context) in cost.decode.iter().zip([20, 100]) {
        assert_eq!((timed.context, timed.rows, timed.seconds.len()), (context, 4, 2));
        assert!(close(timed.median(), (4 * (1010 + context) + 6) as f64 / TICKS), "{timed:?}");
        assert!(close(timed.rate(), 4.0 / timed.median()));
    }
    for (timed, width) in cost.verify.iter().zip([1, 3, 16]) {
        assert_eq!((timed.context, timed.rows, timed.seconds.len()), (30, width, 2 * IN_A_ROW));
        assert!(timed.seconds.iter().all(|s| close(*s, (1030 + 10 * width) as f64 / TICKS)), "{timed:?}");
    }
    // Logits: the last row of a prompt, every row of a block.
    assert!(model.passes.contains(&(1, 0, 32, 0)) && model.passes.contains(&(1, 32, 18, 1)));
    assert!(model.passes.contains(&(1, 30, 16, 16)) && !model.passes.contains(&(1, 30, 16, 1)));
}

#[test]
fn sequences_of_a_batch_have_their_own_tokens_pages_and_states() {
    let mut model = Clockwork::new();
    let cost = model.measure(&Plan { batches: vec![1, 5], ..plan() }).expect("measured");
    assert_eq!((model.strays, model.slots), (0, 5));
    let different: BTreeSet<_> = model.starts.values().collect();
    assert_eq!((model.starts.len(), different.len()), (5, 5));
    // 104 positions of each: the longest run is that of steps.
    assert_eq!((cost.kv_bytes, model.pages), (5 * 104usize.div_ceil(PAGE) * 1000, 5 * 104usize.div_ceil(PAGE)));
    let places: Vec<_> = cost.decode.iter().map(|timed| (timed.context, timed.batch, timed.rows)).collect();
    assert_eq!(places, [(20, 1, 4), (20, 5, 20), (100, 1, 4), (100, 5, 20)]);
    for timed in &cost.decode {
        let (context, batch) = (timed.context, timed.batch);
        let expected = (4 * (1000 + batch * (10 + context)) + batch * 6) as f64 / TICKS;
        assert!(timed.seconds.len() == 2 && close(timed.median(), expected), "{timed:?}");
        assert!(close(timed.rate(), (4 * batch) as f64 / expected), "tokens of all sequences");
    }
    // One token of each sequence, and an answer for each; contexts of 20 one by one in steps of 32 rows.
    assert!(model.passes.contains(&(5, 20, 1, 5)) && model.passes.contains(&(1, 0, 20, 1)));
    // The longest prompt is the first sequence's alone.
    let mut model = Clockwork::new();
    let long = Plan { prompt: 200, batches: vec![3], contexts: vec![8], ..plan() };
    assert_eq!(model.measure(&long).expect("measured").kv_bytes, (200usize.div_ceil(PAGE) + 2) * 1000);
    // Short contexts share passes: 4 times 8 rows fill a step.
    assert!(model.passes.contains(&(3, 0, 8, 3)) && model.strays == 0);
    // Without single steps no sequence but the first is needed.
    let mut model = Clockwork::new();
    model.measure(&Plan { batches: vec![256], contexts: Vec::new(), ..plan() }).expect("measured");
    assert_eq!(model.slots, 1);
}

/// What the tests above look at does change when something is wrong.
#[test]
fn faults_are_seen() {
    let mut forgetful = Clockwork { forgetful: true, ..Clockwork::new() };
    forgetful.measure(&plan()).expect("measured");
    assert!(forgetful.strays > 0);
    let mut forgetful = Clockwork { forgetful: true, ..Clockwork::new() };
    let several = Plan { prompt: 0, batches: vec![3], widths: Vec::new(), contexts: vec![20], tokens: 1, ..plan() };
    forgetful.measure(&several).expect("measured");
    assert_eq!(forgetful.strays, 6, "each sequence in each run");
    let mut dear = Clockwork { dear: Some(3), ..Clockwork::new() };
    let cost = dear.measure(&plan()).expect("measured");
    let by_width: Vec<f64> = cost.verify.iter().map(|timed| timed.median() * TICKS).collect();
    assert!(close(by_width[0], 1040.0) && close(by_width[1], 2120.0) && close(by_width[2], 1190.0), "{by_width:?}");
}

#[test]
fn medians_are_of_the_middle() {
    let timed = |seconds: &[f64]| Timed { context: 0, batch: 1, rows: 1, seconds: seconds.to_vec() };
    assert!(timed(&[]).median().is_nan());
    assert!(close(timed(&[3.0]).median(), 3.0) && close(timed(&[9.0, 1.0, 2.0]).median(), 2.0));
    assert!(close(timed(&[4.0, 1.0, 9.0, 2.0]).median(), 3.0));
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let with = |change: fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        Clockwork::new().measure(&plan).expect_err("refused").to_string()
    };
    assert!(with(|p| p.widths.push(17)).contains("--widths: 1 to 16 rows expected, found 17"));
    assert!(with(|p| p.widths.push(0)).contains("found 0"));
    assert!(with(|p| p.batches.push(0)).contains("--batches: 1 to 256 sequences expected, found 0"));
    assert!(with(|p| p.batches.push(257)).contains("--batches: 1 to 256 sequences expected, found 257"));
    assert!(with(|p| p.contexts.push(253)).contains("1 to 256 positions") && with(|p| p.prompt = 257).contains("257"));
    assert!(with(|p| p.repeat = 0).contains("--repeat") && with(|p| p.tokens = 0).contains("--tokens"));
    let nothing = |p: &mut Plan| (p.prompt, p.contexts, p.widths) = (0, Vec::new(), Vec::new());
    assert!(with(nothing).contains("found 0"));
}
