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

/// A recurrent model whose passes take a known time: a millisecond, 10 us a row, 1 us a position before the first.
struct Clockwork {
    info: ModelInfo,
    layout: Vec<KvGroup>,
    clock: Arc<AtomicU64>,
    state: usize,
    passes: Vec<(usize, usize, usize)>, // start, rows, wanted
    strays: usize,                      // passes that began where the state does not stand
    forgetful: bool,                    // restores nothing
    dear: Option<usize>,                // a width that takes twice as long
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
            state: 0,
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

    fn reserve(&mut self, _: &[usize], _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn keep_hidden(&mut self, _: HiddenRows) {}

    fn take_back(&mut self, _: usize, _: usize) -> bool {
        false
    }

    fn save_state(&self, _: usize) -> Option<Snapshot> {
        Some(Snapshot::new(self.state, ()))
    }

    fn restore_state(&mut self, _: usize, snapshot: &Snapshot) {
        if !self.forgetful {
            self.state = snapshot.position();
        }
    }

    fn read_state(&self, _: &Snapshot) -> Vec<f32> {
        Vec::new()
    }

    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        let [span] = batch.spans() else { panic!("one sequence: {:?}", batch.spans()) };
        self.strays += usize::from(span.start != 0 && span.start != self.state);
        self.state = span.start + span.len;
        let last = batch.table(span.first_row, 0)[(self.state - 1) / PAGE];
        assert_eq!(last as usize, (self.state - 1) / PAGE, "every position has a page");
        assert!(batch.tokens().iter().all(|token| *token < 4 && *token != 2), "{:?}", batch.tokens());
        self.passes.push((span.start, span.len, batch.wanted().len()));
        let ticks = 1000 + 10 * span.len + span.start;
        let times = if self.dear == Some(span.len) { 2 } else { 1 };
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
    assert!(model.passes.contains(&(0, 32, 0)) && model.passes.contains(&(32, 18, 1)));
    assert!(model.passes.contains(&(30, 16, 16)) && !model.passes.contains(&(30, 16, 1)));
}

/// What the test above looks at does change when something is wrong.
#[test]
fn faults_are_seen() {
    let mut forgetful = Clockwork { forgetful: true, ..Clockwork::new() };
    forgetful.measure(&plan()).expect("measured");
    assert!(forgetful.strays > 0);
    let mut dear = Clockwork { dear: Some(3), ..Clockwork::new() };
    let cost = dear.measure(&plan()).expect("measured");
    let by_width: Vec<f64> = cost.verify.iter().map(|timed| timed.median() * TICKS).collect();
    assert!(close(by_width[0], 1040.0) && close(by_width[1], 2120.0) && close(by_width[2], 1190.0), "{by_width:?}");
}

#[test]
fn medians_are_of_the_middle() {
    let timed = |seconds: &[f64]| Timed { context: 0, rows: 1, seconds: seconds.to_vec() };
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
    assert!(with(|p| p.contexts.push(253)).contains("1 to 256 positions") && with(|p| p.prompt = 257).contains("257"));
    assert!(with(|p| p.repeat = 0).contains("--repeat") && with(|p| p.tokens = 0).contains("--tokens"));
    let nothing = |p: &mut Plan| (p.prompt, p.contexts, p.widths) = (0, Vec::new(), Vec::new());
    assert!(with(nothing).contains("found 0"));
}
