//! The engine: schedule, forward, accept, emit.

mod faults;
mod reuse;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use mlxcel_compute::{Batch, NO_PAGE, Wanted};
use mlxcel_model::drafters::{Drafter, HiddenRows};
use mlxcel_model::{Logits, Model, ModelError};
use mlxcel_text::Tokenizer;

use crate::cache::pages::{PagePool, pages_needed};
use crate::cache::prefix::PrefixCache;
use crate::cache::snapshots::Snapshots;
use crate::cache::states::States;
use crate::record::{HiddenView, Recording, RoundRecord, RowRecord, StepRecord};
use crate::request::{EngineError, Event, FinishReason, Request, RequestError, RequestId, Running};
use crate::scheduler::{Known, Planned, plan};
use crate::sequence::{ChoiceError, Sequence};
use crate::speculate::rounds::{Drafts, Speculator, kept};
use crate::speculate::width::Width;
use crate::speculate::{MAX_BLOCK, Speculation};
use reuse::Found;

#[doc(hidden)]
pub use faults::PanicIn;
pub(crate) use faults::caught;
pub use reuse::CacheStats;

/// Sizes of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Sequences that run at once.
    pub parallel: usize,
    /// Most positions of a sequence; `None` = the model's own limit.
    pub context: Option<usize>,
    /// Most rows of a step.
    pub step_rows: usize,
    /// Keep what requests compute, for others that begin alike.
    pub reuse: bool,
    /// Bytes of KV pages for that, beside those of `parallel` sequences of the whole context. Those are lent to it as well, as
    /// long as requests do not need them, so that a conversation can go on with a budget of 0.
    pub cache_bytes: usize,
    /// Bytes for snapshots of recurrent states, which let a conversation be taken up before its end. Only models with recurrent
    /// layers take any.
    pub state_cache: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { parallel: 1, context: None, step_rows: 512, reuse: true, cache_bytes: 0, state_cache: 1 << 30 }
    }
}

/// Runs requests on a model.
pub struct Engine {
    model: Box<dyn Model>,
    tokenizer: Arc<Tokenizer>,
    options: EngineOptions,
    context: usize,
    pool: PagePool,
    states: States,
    waiting: VecDeque<(RequestId, Request)>,
    running: Vec<Sequence>,
    /// Pages there are, by group.
    pages: Vec<usize>,
    cache: Option<PrefixCache>,
    found: Found,
    admitted: u64,
    next_id: u64,
    batch: Batch,
    speculator: Option<Speculator>,
    warnings: Vec<String>,
    recording: Recording,
    record: StepRecord,
    /// Events of requests that ended between steps, for the next step to hand out.
    late: Outcome,
    panics: u64,
    panic_in: Option<PanicIn>,
    /// How the device was lost.
    lost: Option<String>,
}

/// Pages of each group, and snapshots, that the budgets have room for.
fn budgets(model: &dyn Model, options: &EngineOptions) -> (usize, usize) {
    let page: usize = (0..model.kv_layout().len()).map(|group| model.kv_page_bytes(group)).sum();
    let snapshots = if model.is_recurrent() { options.state_cache / model.state_bytes().1.max(1) } else { 0 };
    (options.cache_bytes / page.max(1), snapshots)
}

/// What a step leads to.
#[derive(Default)]
struct Outcome {
    events: Vec<Event>,
    ended: Vec<usize>, // indices of running sequences
}

impl Engine {
    /// Takes over a model and reserves its cache.
    ///
    /// # Errors
    /// Options out of range, or memory that cannot be had.
    pub fn new(model: Box<dyn Model>, tokenizer: Arc<Tokenizer>, options: EngineOptions) -> Result<Self, EngineError> {
        Self::build(model, tokenizer, options, None)
    }

    /// The same, with a drafter of the model. Answers are those of an engine without one.
    ///
    /// # Errors
    /// As [`Engine::new`]; a block width out of range.
    pub fn with_drafter(
        model: Box<dyn Model>,
        tokenizer: Arc<Tokenizer>,
        options: EngineOptions,
        drafter: Box<dyn Drafter>,
        speculation: Speculation,
    ) -> Result<Self, EngineError> {
        Self::build(model, tokenizer, options, Some((drafter, speculation)))
    }

    fn build(
        mut model: Box<dyn Model>,
        tokenizer: Arc<Tokenizer>,
        options: EngineOptions,
        drafter: Option<(Box<dyn Drafter>, Speculation)>,
    ) -> Result<Self, EngineError> {
        let limit = model.info().context_length;
        let context = options.context.unwrap_or(limit);
        let block_size = drafter.as_ref().and_then(|(_, s)| s.block_size).unwrap_or(MAX_BLOCK);
        let checks = [
            ("--draft-block-size", block_size, 1, MAX_BLOCK),
            ("--ctx-size", context, 2, limit),
            ("--parallel", options.parallel, 1, 1024),
            ("step rows", options.step_rows, 1, 65_536),
        ];
        for (option, found, low, high) in checks {
            if !(low..=high).contains(&found) {
                return Err(EngineError::Option {
                    option,
                    expected: format!("{low} to {high}"),
                    found: found.to_string(),
                });
            }
        }
        let page_len = model.page_len();
        // A block of drafts is a step, too.
        let step = options.step_rows.max(MAX_BLOCK);
        let mut pages = pages_needed(model.kv_layout(), page_len, options.parallel, context, step);
        let (cached, snapshots) = if options.reuse { budgets(&*model, &options) } else { (0, 0) };
        for pages in &mut pages {
            *pages = pages.saturating_add(cached).min(NO_PAGE as usize);
        }
        let slots = options.parallel;
        model.reserve(&pages, slots)?;
        let mut warnings = Vec::new();
        let speculator = match drafter {
            None => None,
            Some((mut drafter, speculation)) => match drafter.reserve(slots, context) {
                Ok(()) => {
                    model.keep_hidden(drafter.hidden_rows());
                    Some(Speculator::new(drafter, speculation))
                }
                Err(why) if speculation.required => return Err(why.into()),
                Err(why) => {
                    warnings.push(format!("answers go on without the drafter {}: {why}", drafter.info().name));
                    None
                }
            },
        };
        let states = States::new(&*model, slots, snapshots > 0);
        let pool = PagePool::new(model.kv_layout(), page_len, &pages);
        let cache = options.reuse.then(|| PrefixCache::new(&pool, pages.clone(), Snapshots::new(snapshots)));
        Ok(Engine {
            model,
            tokenizer,
            options,
            context,
            pool,
            states,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pages,
            cache,
            found: Found::default(),
            admitted: 0,
            next_id: 0,
            batch: Batch::new(),
            speculator,
            warnings,
            recording: Recording::Off,
            record: StepRecord::default(),
            late: Outcome::default(),
            panics: 0,
            panic_in: None,
            lost: None,
        })
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Most positions of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// KV pages per group that are not free: in use by running requests, or kept by the prefix cache.
    pub fn pages_used(&self) -> Vec<usize> {
        self.pool.in_use().iter().zip(self.pool.cached()).map(|(used, cached)| used + cached).collect()
    }

    /// KV pages in use by running requests, per group; a page that several share counts once.
    pub fn pages_in_use(&self) -> Vec<usize> {
        self.pool.in_use().to_vec()
    }

    /// KV pages per group that only the prefix cache keeps.
    pub fn pages_cached(&self) -> Vec<usize> {
        self.pool.cached().to_vec()
    }

    /// Positions computed and known of a running request: the progress of a long prompt.
    pub fn progress(&self, id: RequestId) -> Option<(usize, usize)> {
        self.running.iter().find(|s| s.id == id).map(|s| (s.computed, s.history.len()))
    }

    /// Snapshots of recurrent state that fit the budget; `None` for a model without recurrent layers.
    pub fn snapshots(&self) -> Option<usize> {
        let most = self.cache.as_ref().map_or(0, |cache| cache.snapshots.most());
        self.model.is_recurrent().then_some(most)
    }

    /// The drafter and what was measured of it.
    pub fn speculator(&self) -> Option<&Speculator> {
        self.speculator.as_ref()
    }

    /// Says how much of each step is recorded from now on.
    pub fn set_recording(&mut self, recording: Recording) {
        self.recording = recording;
        self.record = StepRecord::default();
        if let Some(speculator) = &mut self.speculator {
            speculator.keep_margins(recording == Recording::Rows);
        }
    }

    /// What the last step did; empty unless it was recorded.
    pub fn last_step(&self) -> &StepRecord {
        &self.record
    }

    /// What an operator should know and has not been told yet.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Slots that no request holds; those that wait take them in the next step.
    pub fn free_slots(&self) -> usize {
        self.options.parallel.saturating_sub(self.running.len())
    }

    /// The requests in slots.
    pub fn running(&self) -> impl Iterator<Item = Running> {
        self.running.iter().map(|s| Running {
            id: s.id,
            prompt: s.history.prompt().len(),
            cached: s.cached,
            computed: s.computed,
            tokens: s.history.len(),
            width: s.width.as_ref().map_or(1, Width::settled),
            rounds: s.rounds,
        })
    }

    /// True when nothing runs or waits, and no event is to be handed out.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.late.events.is_empty()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`RequestError`] names the parameter; nothing is queued.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        if let Some(why) = &self.lost {
            return Err(RequestError::DeviceLost(why.clone()));
        }
        let info = self.model.info();
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if request.max_tokens == Some(0) {
            return Err(RequestError::NoTokens);
        }
        if request.prompt.len() >= self.context {
            let (found, model) = (request.prompt.len(), info.context_length);
            return Err(RequestError::ContextLength { found, context: self.context, model });
        }
        for (index, found) in request.prompt.iter().copied().enumerate() {
            if found as usize >= info.vocab_size {
                return Err(RequestError::Token { found, index, vocab: info.vocab_size });
            }
            if info.media_tokens.contains(&found) {
                return Err(RequestError::Media { found, index });
            }
        }
        if let Some(found) = request.block_size.filter(|k| !(1..=MAX_BLOCK).contains(k)) {
            return Err(RequestError::BlockSize { found, most: MAX_BLOCK });
        }
        if request.constraint.as_ref().is_some_and(|c| !c.is_for(&self.tokenizer)) {
            return Err(RequestError::Constraint);
        }
        // Checked here so that the fault is answered at once, not when a slot is free.
        request.sampling.validate(info.vocab_size)?;
        crate::stop::StopStrings::new(request.stop.clone())?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Ends a request; its final event, or `None` when it is not known (any more).
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        if let Some(i) = self.waiting.iter().position(|(w, _)| *w == id) {
            let (id, request) = self.waiting.remove(i)?;
            let mut sequence = self.sequence(id, request).ok()?;
            return Some(sequence.finish(FinishReason::Cancelled));
        }
        let i = self.running.iter().position(|s| s.id == id)?;
        let mut sequence = self.running.remove(i);
        let event = sequence.finish(FinishReason::Cancelled);
        let parked = caught(|| {
            self.trip(PanicIn::Park);
            self.park(sequence);
        });
        if let Err(why) = parked {
            let mut late = std::mem::take(&mut self.late);
            self.start_over(&why, &mut late);
            self.late = late;
        }
        Some(event)
    }

    /// One step: draft, schedule, forward, accept, emit. Faults and panics of a model end the requests they belong to; a panic that
    /// belongs to none ends those that run, and the engine goes on with an empty cache. The loss of the device ends all, and the
    /// engine ([`Engine::failure`]).
    pub fn step(&mut self) -> Vec<Event> {
        let mut outcome = std::mem::take(&mut self.late);
        if let Err(why) = caught(|| self.try_step(&mut outcome)) {
            self.start_over(&why, &mut outcome);
        }
        outcome.events
    }

    fn try_step(&mut self, outcome: &mut Outcome) {
        let begun = Instant::now();
        self.record = StepRecord::default();
        self.admit();
        let drafts = self.draft();
        self.record.draft = begun.elapsed().as_secs_f64();
        let known =
            |(s, d): (&Sequence, &Vec<u32>)| Known { computed: s.computed, tokens: s.history.len(), drafts: d.len() };
        let known: Vec<Known> = self.running.iter().zip(&drafts).map(known).collect();
        let mut planned = plan(&known, self.options.step_rows);
        for p in planned.iter_mut().filter(|p| p.len > 1 && p.drafts == 0) {
            let end = p.start + p.len;
            let branch = self.running[p.index].branch;
            p.len = self.states.cut(p.start, end, end == known[p.index].tokens, branch) - p.start;
        }
        let only_decodes = planned.iter().all(|p| p.len == 1 + p.drafts);
        let started = Instant::now();
        let computed = self.forward(&planned, &drafts);
        self.record.forward = started.elapsed().as_secs_f64();
        self.record.rows = planned.iter().map(|p| p.len).sum();
        self.record.only_decodes = only_decodes;
        match computed {
            Ok(logits) => {
                self.accept(&planned, &drafts, &logits, outcome);
                if let (Some(speculator), true) = (&mut self.speculator, only_decodes && !planned.is_empty()) {
                    speculator.measured(planned.iter().map(|p| p.len).sum(), started.elapsed().as_secs_f64());
                }
            }
            Err(_) if self.lost.is_some() => {}
            // One sequence may be at fault, or a draft that plain decoding would never have run: alone and without
            // drafts, each of the others gives the same bits.
            Err(_) if planned.len() > 1 || planned[0].drafts > 0 => {
                for one in &planned {
                    let one = Planned { len: one.len - one.drafts, drafts: 0, ..*one };
                    self.forward_alone(one, outcome);
                }
            }
            Err(why) => self.fail(planned[0].index, &why, outcome),
        }
        if let Some(why) = self.lost.clone() {
            return self.end_all(&why, outcome);
        }
        outcome.ended.sort_unstable();
        while let Some(index) = outcome.ended.pop() {
            self.trip(PanicIn::Park);
            let sequence = self.running.remove(index);
            self.park(sequence);
        }
        self.record.total = begun.elapsed().as_secs_f64();
    }

    /// Drafts for the sequences that decode.
    fn draft(&mut self) -> Drafts {
        let Some(speculator) = &mut self.speculator else { return vec![Vec::new(); self.running.len()] };
        let assigned = self.model.info().vocab_size.min(self.tokenizer.vocab_size());
        // Rows after the answer's last token would be for nothing.
        let most = |s: &Sequence| MAX_BLOCK.min(s.remaining()).min(self.states.block(s.computed));
        let most: Vec<usize> = self.running.iter().map(most).collect();
        let (running, budget) = (&mut self.running, self.options.step_rows);
        let drafts = caught(|| speculator.draft(running, &most, assigned, budget)).unwrap_or_else(|why| {
            self.panics += 1;
            speculator.fail(&why);
            vec![Vec::new(); self.running.len()]
        });
        self.note_failure();
        drafts
    }

    /// A drafter that failed proposes nothing any more, and is said to once.
    fn note_failure(&mut self) {
        let Some(why) = self.speculator.as_mut().and_then(Speculator::take_failure) else { return };
        self.warnings.push(format!("the drafter failed, and answers go on without it: {why}"));
    }

    fn sequence(&self, id: RequestId, request: Request) -> Result<Sequence, RequestError> {
        let info = self.model.info();
        let room = self.context - request.prompt.len();
        let table = self.pool.table();
        // Ids beyond the tokenizer's pad the matrix.
        let assigned = info.vocab_size.min(self.tokenizer.vocab_size());
        Sequence::new(id, request, &info.stop_ids, assigned, room, &self.tokenizer, table)
    }

    /// Moves waiting requests into free slots.
    fn admit(&mut self) {
        if !self.waiting.is_empty() {
            self.trip(PanicIn::Admit);
        }
        while self.running.len() < self.options.parallel {
            let Some((id, request)) = self.waiting.pop_front() else { return };
            // The request was checked when it came.
            let Ok(mut sequence) = self.sequence(id, request) else { continue };
            self.begin(&mut sequence);
            sequence.start_clock();
            self.running.push(sequence);
            self.limit_cache();
        }
    }

    fn forward(&mut self, planned: &[Planned], drafts: &Drafts) -> Result<Logits, String> {
        self.batch.clear();
        for p in planned {
            let sequence = &mut self.running[p.index];
            let end = p.start + p.len;
            self.pool.drop_behind(&mut sequence.pages, p.start);
            if let Some(cache) = &mut self.cache {
                cache.shrink(&mut self.pool);
            }
            // The cache has no page that a running sequence may need.
            assert!(self.pool.extend(&mut sequence.pages, p.start, end), "the page pool is sized for every slot");
            assert!(self.pool.is_writable(&sequence.pages, p.start, end), "what others may see is never written again");
            let slot = sequence.state.as_ref().expect("a running sequence has a slot").number();
            let tables = sequence.pages.tables();
            let known = &sequence.history.tokens()[p.start..end - p.drafts];
            match p.drafts {
                0 => self.batch.push(slot, p.start, known, &tables, Wanted::Last),
                _ => {
                    let block = [known, &drafts[p.index]].concat();
                    self.batch.push(slot, p.start, &block, &tables, Wanted::All);
                }
            }
        }
        if self.batch.is_empty() {
            return Ok(Logits::from_values(Vec::new(), self.model.info().vocab_size));
        }
        let computed = caught(|| self.model.forward(&self.batch)).inspect_err(|_| self.panics += 1);
        computed?.map_err(|error| {
            let why = error.to_string();
            if matches!(error, ModelError::Device { .. }) {
                self.lost = Some(why.clone());
            }
            why
        })
    }

    /// Takes a step's logits: one row a span, or one for each position of a block. A prompt chunk that is not the last has one too,
    /// unused, so that damage is found in the chunk that it comes from.
    ///
    /// The rule of acceptance is the request's own sampler, run on the rows in order: a row counts as long as the token chosen
    /// before it is the draft that it stands for. What counts is kept, the rest is taken back.
    fn accept(&mut self, planned: &[Planned], drafts: &Drafts, logits: &Logits, outcome: &mut Outcome) {
        let assigned = self.model.info().vocab_size.min(self.tokenizer.vocab_size());
        let (mut wanted, mut first) = (0, 0); // rows before this span
        let mut seen = Vec::with_capacity(planned.len());
        let hidden = if self.recording == Recording::Rows { self.hidden(planned) } else { None };
        for p in planned {
            let own = 1 + p.drafts;
            let drafted: &[u32] = if p.drafts > 0 { &drafts[p.index] } else { &[] };
            let sequence = &mut self.running[p.index];
            sequence.computed = p.start + p.len - p.drafts;
            let decides = sequence.computed == sequence.history.len();
            let (mut emitted, mut accepted, mut failure, mut chosen) = (0, 0, None, Vec::new());
            for i in 0..if decides { own } else { 0 } {
                let (token, ends) = match caught(|| sequence.advance(logits, wanted + i, &mut outcome.events)) {
                    Ok(Ok(advanced)) => advanced,
                    Ok(Err(ChoiceError::Device(e))) => {
                        self.lost = Some(e.to_string());
                        return;
                    }
                    Ok(Err(e)) => {
                        failure = Some(e.to_string());
                        break;
                    }
                    Err(why) => {
                        self.panics += 1;
                        failure = Some(why);
                        break;
                    }
                };
                let right = drafted.get(i) == Some(&token);
                chosen.push(token);
                emitted += 1;
                accepted += usize::from(right);
                if ends {
                    outcome.ended.push(p.index);
                }
                if ends || !right {
                    break;
                }
                // The next row has seen this token.
                sequence.computed += 1;
            }
            if let Some(message) = failure {
                self.fail(p.index, &message, outcome);
            } else {
                let kept = self.settle(p);
                let sequence = &mut self.running[p.index];
                let decoded = decides && p.start >= sequence.history.prompt().len();
                if decoded && self.recording != Recording::Off {
                    let (mut rows, mut draft_margins) = (Vec::new(), Vec::new());
                    if self.recording == Recording::Rows {
                        let from = |i: usize| hidden.as_ref().and_then(|h| h.row(wanted + i, first + p.len - own + i));
                        // Without a device, the next step ends it all.
                        let row = |(i, token): (usize, &u32)| {
                            let values = logits.row(wanted + i).ok()?;
                            Some(RowRecord::new(&values[..assigned], *token, from(i)))
                        };
                        rows = chosen.iter().enumerate().map_while(row).collect();
                        draft_margins = self.speculator.as_mut().map(|s| s.take_margins(p.index)).unwrap_or_default();
                    }
                    let (id, position, proposed) = (sequence.id, p.start, drafted.to_vec());
                    let ended = sequence.has_ended();
                    let round = RoundRecord { id, position, proposed, accepted, emitted, ended, rows, draft_margins };
                    self.record.rounds.push(round);
                }
                if let (true, Some(speculator)) = (decoded, &mut self.speculator) {
                    let judged = if sequence.has_ended() { accepted } else { p.drafts };
                    speculator.record(sequence, p.drafts, judged, accepted, emitted);
                    // The final event was made before its last round was over.
                    if let Some(Event::Finished(end)) = outcome.events.last_mut().filter(|_| sequence.has_ended()) {
                        end.rounds = sequence.rounds;
                    }
                }
                seen.push((*p, kept, wanted, first));
            }
            wanted += own;
            first += p.len;
        }
        self.show(&seen);
    }

    /// Hidden rows of the last forward pass, where a drafter reads them.
    fn hidden(&self, planned: &[Planned]) -> Option<HiddenView> {
        let which = self.speculator.as_ref()?.hidden_rows();
        let wanted = planned.iter().map(|p| 1 + p.drafts).sum();
        let all = planned.iter().map(|p| p.len).sum();
        HiddenView::new(self.model.hidden()?, which, wanted, all)
    }

    /// Takes back what a span computed beyond the tokens that count; returns the rows that stay.
    fn settle(&mut self, planned: &Planned) -> usize {
        let sequence = &mut self.running[planned.index];
        let state = sequence.state.as_ref().expect("a running sequence has a slot");
        let kept = sequence.computed - planned.start;
        if kept < planned.len {
            let back = self.model.take_back(state.number(), sequence.computed);
            assert!(back, "a block is never longer than what can be taken back");
            let back = self.pool.truncate(&mut sequence.pages, sequence.computed);
            assert!(back, "windows keep pages for more than a block");
        }
        self.keep(planned.index);
        kept
    }

    /// Shows kept rows to the drafter.
    fn show(&mut self, seen: &[(Planned, usize, usize, usize)]) {
        let Some(speculator) = &mut self.speculator else { return };
        let rows = speculator.hidden_rows();
        if rows == HiddenRows::None {
            return;
        }
        let mut all = Vec::with_capacity(seen.len());
        for (planned, len, wanted, first) in seen {
            let sequence = &self.running[planned.index];
            if sequence.width.is_none() {
                continue;
            }
            let slot = sequence.state.as_ref().expect("a running sequence has a slot").number();
            if sequence.is_long_idle() {
                speculator.idle(slot);
            }
            all.push(kept(rows, sequence, slot, *planned, *len, *wanted, *first));
        }
        if let Err(why) = caught(|| speculator.observe(&all)) {
            self.panics += 1;
            speculator.fail(&why);
        }
        self.note_failure();
    }
}
