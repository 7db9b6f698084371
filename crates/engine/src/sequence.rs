//! One request in progress.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use mlxcel_model::drafters::{Ask, Candidate};
use mlxcel_model::{Logits, ModelError};
use mlxcel_text::{Detokenizer, Tokenizer};

use crate::cache::pages::PageTable;
use crate::cache::prefix::{NodeId, ROOT};
use crate::cache::snapshots::Line;
use crate::cache::states::Slot;
use crate::grammar::guide::{DraftGuide, Guide};
use crate::request::{Event, FinishReason, Finished, Progress, Request, RequestError, RequestId, Timings, TokenEvent};
use crate::sample::{History, SampleError, Sampled, Sampler};
use crate::speculate::width::Width;
use crate::speculate::{Coupling, Rounds};
use crate::stop::StopStrings;

/// Added to the seed of drafts that are not to share the request's noise.
const OTHER_NOISE: u64 = 0x5bd1_e995;

/// Steps without drafts after which a drafter's notes on a sequence are worth less than keeping them.
const LONG_IDLE: usize = 256;

/// Why no token was chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    /// The request's own fault, or its row's.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The device's: it failed before the row came.
    #[error(transparent)]
    Device(#[from] ModelError),
}

/// State of a request between steps.
pub struct Sequence {
    pub id: RequestId,
    pub history: History,
    /// Positions whose K/V are in the cache.
    pub computed: usize,
    /// Prompt positions that came from the cache.
    pub cached: usize,
    pub pages: PageTable,
    /// How far the prefix cache has its pages: the node of the last one, and their number.
    pub node: NodeId,
    pub inserted: usize,
    /// Where others in the prefix cache part from its prompt.
    pub branch: usize,
    /// Its mark on snapshots.
    pub line: Line,
    /// Most pages it may come to use, by group.
    pub need: Vec<usize>,
    /// The slot of its recurrent state; `None` only before it runs.
    pub state: Option<Slot>,
    /// Whether it takes nothing from the cache.
    pub fresh: bool,
    /// The block width it asked for.
    pub block_size: Option<usize>,
    /// Chooses the width of its rounds; `None` = it does not draft.
    pub width: Option<Width>,
    /// What its rounds came to.
    pub rounds: Rounds,
    ended: bool,
    idle: usize, // steps since the last that asked for drafts
    sampler: Sampler,
    guide: Option<Guide>,
    detokenizer: Detokenizer,
    stops: StopStrings,
    stop_ids: HashSet<u32>,
    max_tokens: usize,
    started: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Sequence {
    /// Starts a checked request; `vocab` ids are tokens, `room` is what the context leaves for the answer.
    pub fn new(
        id: RequestId,
        mut request: Request,
        stop_ids: &[u32],
        vocab: usize,
        room: usize,
        tokenizer: &Arc<Tokenizer>,
        pages: PageTable,
    ) -> Result<Self, RequestError> {
        let mut stops: HashSet<u32> = request.stop_ids.into_iter().collect();
        if !request.ignore_eos {
            stops.extend(stop_ids);
        }
        // What is no token cannot be chosen anyway, whatever its bias.
        request.sampling.logit_bias.retain(|(id, _)| (*id as usize) < vocab);
        let guide = request.constraint.map(|constraint| Guide::new(constraint, stops.iter().copied()));
        Ok(Sequence {
            id,
            history: History::new(&request.prompt),
            computed: 0,
            cached: 0,
            pages,
            node: ROOT,
            inserted: 0,
            branch: 0,
            line: Line::default(),
            need: Vec::new(),
            state: None,
            fresh: request.fresh,
            block_size: request.block_size,
            width: None,
            rounds: Rounds::default(),
            ended: false,
            idle: 1,
            sampler: Sampler::new(request.sampling, vocab)?,
            guide,
            detokenizer: Detokenizer::new(tokenizer, !request.show_special),
            stops: StopStrings::new(request.stop)?,
            stop_ids: stops,
            max_tokens: request.max_tokens.unwrap_or(room).min(room),
            started: None,
            first: None,
            last: None,
        })
    }

    /// Notes that the first rows are about to be computed.
    pub fn start_clock(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// True when only its newest token has not been through the model.
    pub fn is_decoding(&self) -> bool {
        self.history.len() == self.computed + 1
    }

    /// Notes whether this step asks for drafts.
    pub fn set_drafting(&mut self, drafting: bool) {
        self.idle = if drafting { 0 } else { self.idle + 1 };
    }

    /// Whether the step before asked for drafts, too: then a drafter has nothing to catch up on.
    pub fn is_drafting(&self) -> bool {
        self.idle == 0
    }

    /// True now and then while it has asked for no drafts for long: a drafter may forget it rather than follow.
    pub fn is_long_idle(&self) -> bool {
        self.idle > 0 && self.idle.is_multiple_of(LONG_IDLE)
    }

    /// True once its last token was emitted.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Tokens it may still generate.
    pub fn remaining(&self) -> usize {
        self.max_tokens - self.history.generated().len()
    }

    /// Most positions it may come to.
    pub fn most_positions(&self) -> usize {
        self.history.prompt().len() + self.max_tokens
    }

    /// Whether this token ends the answer.
    pub fn ends_with(&self, token: u32) -> bool {
        self.stop_ids.contains(&token)
    }

    /// Whether tokens are chosen by the largest logit alone, of all tokens.
    pub fn takes_the_largest(&self) -> bool {
        self.sampler.takes_the_largest() && self.guide.is_none()
    }

    /// What keeps its drafts within its grammar, lent to who drafts; `None` without a constraint.
    pub fn start_drafting(&mut self) -> Option<Box<DraftGuide>> {
        self.guide.as_mut()?.start_drafting(self.history.generated())
    }

    /// Takes back what [`Sequence::start_drafting`] lent.
    pub fn end_drafting(&mut self, draft: Option<Box<DraftGuide>>) {
        if let Some(guide) = &mut self.guide {
            guide.end_drafting(draft);
        }
    }

    /// Asks for `count` drafts.
    pub fn ask(&self, count: usize, candidates: usize) -> Ask<'_> {
        let slot = self.state.as_ref().expect("a running sequence has a slot").number();
        Ask { slot, tokens: self.history.tokens(), tables: self.pages.tables(), count, candidates }
    }

    /// The draft after `drafted`.
    pub fn draft(&self, candidates: &[Candidate], drafted: &[u32], coupling: Coupling) -> Option<u32> {
        let seed = match coupling {
            Coupling::Coupled => None,
            Coupling::Greedy => return candidates.first().map(|c| c.token),
            Coupling::Independent => Some(self.sampler.params().seed.wrapping_add(OTHER_NOISE)),
        };
        self.sampler.draft(candidates, self.history.len() + drafted.len(), &self.history, drafted, seed)
    }

    /// Chooses the next token from a row and emits it: the token, and whether the answer ends with it.
    ///
    /// # Errors
    /// As [`Sequence::choose`].
    pub fn advance(
        &mut self,
        logits: &Logits,
        row: usize,
        events: &mut Vec<Event>,
    ) -> Result<(u32, bool), ChoiceError> {
        let sampled = self.choose(logits, row)?;
        let token = sampled.token;
        Ok((token, self.emit(sampled, events)))
    }

    /// Chooses the next token from the row of logits of the last position and appends it. The row's values are asked for only if its
    /// largest alone does not decide.
    ///
    /// # Errors
    /// What [`Sampler::sample_from`] refuses, a grammar that failed, a device that failed.
    pub fn choose(&mut self, logits: &Logits, row: usize) -> Result<Sampled, ChoiceError> {
        let position = self.history.len();
        let failed = |why| SampleError::Constraint { position, why };
        let allowed = self.guide.as_ref().map_or(Ok(None), |g| g.allowed().map_err(failed))?;
        let largest = logits.argmax(row);
        let sampled = match largest.and_then(|token| self.sampler.sample_largest(token, &self.history, allowed)) {
            Some(sampled) => sampled,
            None => {
                // Columns beyond the tokenizer's ids pad the matrix: no token has them.
                let values = &logits.row(row)?[..self.sampler.vocab()];
                self.sampler.sample_from(values, position, &self.history, allowed)?
            }
        };
        self.history.push(sampled.token);
        if let Some(guide) = self.guide.as_mut().filter(|_| !self.stop_ids.contains(&sampled.token)) {
            guide.advance(sampled.token);
        }
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        Ok(sampled)
    }

    /// Events of a chosen token, and whether the answer ends with it. A stop token or string goes before the end of the grammar, and
    /// that before the length.
    pub fn emit(&mut self, sampled: Sampled, events: &mut Vec<Event>) -> bool {
        let stop_token = self.stop_ids.contains(&sampled.token);
        let mut text = String::new();
        let mut reason = None;
        if stop_token {
            reason = Some(FinishReason::StopToken(sampled.token));
        } else {
            let piece = self.detokenizer.push(sampled.token);
            let result = self.stops.push(&piece);
            text = result.emit;
            reason = result.matched.map(FinishReason::StopString).or(reason);
        }
        if reason.is_none() && self.guide.as_ref().is_some_and(Guide::is_complete) {
            reason = Some(FinishReason::Grammar);
        }
        if reason.is_none() && self.history.generated().len() >= self.max_tokens {
            reason = Some(FinishReason::Length);
        }
        let (id, token, logprob, progress) = (self.id, sampled.token, sampled.logprob, self.progress());
        events.push(Event::Token(TokenEvent { id, token, text, logprob, progress }));
        self.ended = reason.is_some();
        if let Some(reason) = reason {
            events.push(self.finish(reason));
        }
        self.ended
    }

    /// The final event.
    pub fn finish(&mut self, mut reason: FinishReason) -> Event {
        let mut text = String::new();
        if !matches!(reason, FinishReason::StopString(_)) {
            // The end may complete a character, and the character a stop string.
            let result = self.stops.push(&self.detokenizer.finish());
            text = result.emit;
            match result.matched {
                None => text.push_str(&self.stops.finish()),
                // Text completed only by breaking off does not turn a failure or a cancellation into a proper end.
                Some(_)
                    if matches!(
                        reason,
                        FinishReason::Cancelled | FinishReason::Error(_) | FinishReason::DeviceLost(_)
                    ) => {}
                Some(stop) => reason = FinishReason::StopString(stop),
            }
        }
        self.end(reason, text)
    }

    /// The final event of a sequence whose text cannot be trusted.
    pub fn finish_without_text(&self, reason: FinishReason) -> Event {
        self.end(reason, String::new())
    }

    fn end(&self, reason: FinishReason, text: String) -> Event {
        let Progress { prompt_tokens, cached_tokens, completion_tokens, timings, rounds, block_size } = self.progress();
        Event::Finished(Finished {
            id: self.id,
            reason,
            text,
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            timings,
            rounds,
            block_size,
        })
    }

    /// How far it has come.
    fn progress(&self) -> Progress {
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        Progress {
            prompt_tokens: self.history.prompt().len(),
            cached_tokens: self.cached,
            completion_tokens: self.history.generated().len(),
            timings: Timings { prefill: seconds(self.started, self.first), decode: seconds(self.first, self.last) },
            rounds: self.rounds,
            block_size: self.width.as_ref().map_or(1, Width::settled),
        }
    }
}
