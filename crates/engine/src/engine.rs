//! The engine: schedule, forward, accept, emit.

use std::collections::VecDeque;
use std::sync::Arc;

use mlxcel_compute::{Batch, Wanted};
use mlxcel_model::{Model, ModelError};
use mlxcel_text::Tokenizer;

use crate::cache::pages::{PagePool, PageTable, pages_needed};
use crate::cache::states::{Slot, States};
use crate::request::{EngineError, Event, FinishReason, Request, RequestError, RequestId};
use crate::scheduler::{Planned, plan};
use crate::sequence::Sequence;

/// Sizes of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Sequences that run at once.
    pub parallel: usize,
    /// Most positions of a sequence; `None` = the model's own limit.
    pub context: Option<usize>,
    /// Most rows of a step.
    pub step_rows: usize,
    /// Keep what the last finished answer computed, for a conversation that goes on.
    pub reuse: bool,
    /// Bytes for snapshots of recurrent states, which let a conversation be taken up before its end. Only models with recurrent
    /// layers take any.
    pub state_cache: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { parallel: 1, context: None, step_rows: 512, reuse: true, state_cache: 1 << 30 }
    }
}

/// The last finished sequence's tokens, pages and state.
struct Parked {
    tokens: Vec<u32>,
    pages: PageTable,
    state: Slot,
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
    parked: Option<Parked>,
    next_id: u64,
    batch: Batch,
}

impl Engine {
    /// Takes over a model and reserves its cache.
    ///
    /// # Errors
    /// Options out of range, or memory that cannot be had.
    pub fn new(
        mut model: Box<dyn Model>,
        tokenizer: Arc<Tokenizer>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let limit = model.info().context_length;
        let context = options.context.unwrap_or(limit);
        let checks = [
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
        let pages = pages_needed(model.kv_layout(), page_len, options.parallel, context, options.step_rows);
        // One slot more than run at once, for the parked answer.
        let slots = options.parallel + 1;
        model.reserve(&pages, slots)?;
        let states = States::new(&*model, slots, if options.reuse { options.state_cache } else { 0 });
        let pool = PagePool::new(model.kv_layout(), page_len, &pages);
        Ok(Engine {
            model,
            tokenizer,
            options,
            context,
            pool,
            states,
            waiting: VecDeque::new(),
            running: Vec::new(),
            parked: None,
            next_id: 0,
            batch: Batch::new(),
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

    /// KV pages in use per group, those kept for a later turn included.
    pub fn pages_used(&self) -> Vec<usize> {
        self.pool.used()
    }

    /// Positions computed and known of a running request: the progress of a long prompt.
    pub fn progress(&self, id: RequestId) -> Option<(usize, usize)> {
        self.running.iter().find(|s| s.id == id).map(|s| (s.computed, s.history.len()))
    }

    /// Snapshots of recurrent state that fit the budget; `None` for a model without recurrent layers.
    pub fn snapshots(&self) -> Option<usize> {
        self.model.is_recurrent().then(|| self.states.most())
    }

    /// True when nothing runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`RequestError`] names the parameter; nothing is queued.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
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
        self.park(sequence);
        Some(event)
    }

    /// One step: schedule, forward, accept, emit. Faults of a model end the requests they belong to.
    pub fn step(&mut self) -> Vec<Event> {
        self.admit();
        let lengths: Vec<(usize, usize)> = self.running.iter().map(|s| (s.computed, s.history.len())).collect();
        let mut planned = plan(&lengths, self.options.step_rows);
        for p in planned.iter_mut().filter(|p| p.len > 1) {
            let end = p.start + p.len;
            p.len = self.states.cut(p.start, end, end == lengths[p.index].1) - p.start;
        }
        let mut events = Vec::new();
        let mut ended = Vec::new();
        match self.forward(&planned) {
            Ok(logits) => self.accept(&planned, &logits, &mut events, &mut ended),
            // One sequence may be at fault: alone, each of the others gives the same bits.
            Err(_) if planned.len() > 1 => {
                for one in &planned {
                    self.forward_alone(*one, &mut events, &mut ended);
                }
            }
            Err(e) => self.fail(planned[0].index, &e.to_string(), &mut events, &mut ended),
        }
        ended.sort_unstable();
        for index in ended.into_iter().rev() {
            let sequence = self.running.remove(index);
            self.park(sequence);
        }
        events
    }

    fn sequence(&self, id: RequestId, request: Request) -> Result<Sequence, RequestError> {
        let info = self.model.info();
        let room = self.context - request.prompt.len();
        let table = self.pool.table();
        Sequence::new(id, request, &info.stop_ids, info.vocab_size, room, &self.tokenizer, table)
    }

    /// Moves waiting requests into free slots.
    fn admit(&mut self) {
        while self.running.len() < self.options.parallel {
            let Some((id, request)) = self.waiting.pop_front() else { return };
            // The request was checked when it came.
            let Ok(mut sequence) = self.sequence(id, request) else { continue };
            if let Some(parked) = self.parked.take() {
                self.resume(&mut sequence, parked);
            }
            if sequence.state.is_none() {
                sequence.state = self.states.take(sequence.history.prompt().len());
            }
            assert!(sequence.state.is_some(), "a slot for each sequence that runs");
            sequence.start_clock();
            self.running.push(sequence);
        }
    }

    /// Lets a new sequence go on where a finished one agrees with its prompt, as far as pages and state can be taken back.
    fn resume(&mut self, sequence: &mut Sequence, mut parked: Parked) {
        let same = parked.tokens.iter().zip(sequence.history.tokens()).take_while(|(a, b)| a == b).count();
        // The last prompt token is always computed: its logits choose the first token.
        let reuse = same.min(sequence.history.len() - 1);
        let reuse = if reuse > 0 { self.states.return_to(&mut *self.model, &parked.state, reuse) } else { 0 };
        if reuse > 0 && self.pool.truncate(&mut parked.pages, reuse) {
            self.states.hand_on(&parked.state, sequence.history.prompt().len());
            (sequence.pages, sequence.state) = (parked.pages, Some(parked.state));
            (sequence.computed, sequence.cached) = (reuse, reuse);
        } else {
            self.pool.release(parked.pages);
            self.states.release(parked.state);
        }
    }

    /// Keeps or frees the pages and the state of a sequence that ended.
    fn park(&mut self, sequence: Sequence) {
        let Some(state) = sequence.state else { return self.pool.release(sequence.pages) };
        if !self.options.reuse || sequence.computed == 0 {
            self.states.release(state);
            return self.pool.release(sequence.pages);
        }
        self.forget();
        let tokens = sequence.history.tokens()[..sequence.computed].to_vec();
        self.parked = Some(Parked { tokens, pages: sequence.pages, state });
    }

    /// Frees the parked answer.
    fn forget(&mut self) {
        if let Some(parked) = self.parked.take() {
            self.pool.release(parked.pages);
            self.states.release(parked.state);
        }
    }

    fn forward(&mut self, planned: &[Planned]) -> Result<Vec<f32>, ModelError> {
        self.batch.clear();
        for p in planned {
            let sequence = &mut self.running[p.index];
            let end = p.start + p.len;
            if !self.pool.extend(&mut sequence.pages, p.start, end) {
                // The pool was sized for every slot; only the parked answer can be in the way.
                if let Some(parked) = self.parked.take() {
                    self.pool.release(parked.pages);
                    self.states.release(parked.state);
                }
                assert!(self.pool.extend(&mut sequence.pages, p.start, end), "the page pool is sized for every slot");
            }
            let tokens = &sequence.history.tokens()[p.start..end];
            let slot = sequence.state.as_ref().expect("a running sequence has a slot").number();
            self.batch.push(slot, p.start, tokens, &sequence.pages.tables(), Wanted::Last);
        }
        if self.batch.is_empty() { Ok(Vec::new()) } else { self.model.forward(&self.batch) }
    }

    /// Runs one sequence's part of a step that failed. Its recurrent state may have to be computed again up to there, which
    /// gives the same bits.
    fn forward_alone(&mut self, planned: Planned, events: &mut Vec<Event>, ended: &mut Vec<usize>) {
        let Planned { index, start, .. } = planned;
        let sequence = &mut self.running[index];
        let state = sequence.state.as_ref().expect("a running sequence has a slot");
        let mut at = self.states.return_to(&mut *self.model, state, start);
        if at < start && !self.pool.truncate(&mut sequence.pages, at) {
            let none = self.pool.table();
            self.pool.release(std::mem::replace(&mut sequence.pages, none));
            at = 0;
        }
        while at < start {
            let len = (start - at).min(self.options.step_rows);
            if let Err(e) = self.forward(&[Planned { index, start: at, len }]) {
                return self.fail(index, &e.to_string(), events, ended);
            }
            at += len;
        }
        match self.forward(&[planned]) {
            Ok(logits) => self.accept(&[planned], &logits, events, ended),
            Err(e) => self.fail(index, &e.to_string(), events, ended),
        }
    }

    fn fail(&mut self, index: usize, message: &str, events: &mut Vec<Event>, ended: &mut Vec<usize>) {
        events.push(self.running[index].finish(FinishReason::Error(message.into())));
        // What a failed forward wrote is not to be reused.
        self.running[index].computed = 0;
        ended.push(index);
    }

    /// Takes a step's logits: one row a span. A prompt chunk that is not the last has one too, unused, so that damage is
    /// found in the chunk that it comes from.
    fn accept(&mut self, planned: &[Planned], logits: &[f32], events: &mut Vec<Event>, ended: &mut Vec<usize>) {
        let vocab = self.model.info().vocab_size;
        let assigned = vocab.min(self.tokenizer.vocab_size());
        let mut rows = logits.chunks_exact(vocab);
        for p in planned {
            let sequence = &mut self.running[p.index];
            let row = rows.next().expect("a row for each span");
            sequence.computed = p.start + p.len;
            if let Some(state) = &sequence.state {
                self.states.advance(&*self.model, state, sequence.computed);
            }
            if sequence.computed < sequence.history.len() {
                continue;
            }
            // Rows beyond the tokenizer's ids pad the matrix: no token has them.
            match sequence.choose(&row[..assigned]) {
                Ok(sampled) => {
                    if sequence.emit(sampled, events) {
                        ended.push(p.index);
                    }
                }
                Err(e) => self.fail(p.index, &e.to_string(), events, ended),
            }
        }
    }
}
