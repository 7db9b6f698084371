//! From a request's parameters to the engine's, and from its events to what was said.

use std::sync::Arc;

use mlxcel_engine::grammar::Constraint;
use mlxcel_engine::sample::{SamplingParams, TokenLogprobs};
use mlxcel_engine::{Event, FinishReason, Finished, Progress, Request, Rounds, TokenEvent};
use mlxcel_protocol::openai::{Timings, Usage};
use mlxcel_protocol::{ApiError, ErrorKind, Sampling, Speculative};
use mlxcel_text::parse::{Delta, Parser};

use crate::exchange::{self, Record};
use crate::facts::Facts;
use crate::worker::Answer;

/// What one answer is generated from.
#[derive(Clone)]
pub struct Wanted {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Most tokens; `None` = as the server says.
    pub max_tokens: Option<u64>,
    /// Whether special tokens are part of the text.
    pub show_special: bool,
    /// What the text must be.
    pub constraint: Option<Constraint>,
    /// A text that ends the answer besides the request's own.
    pub stop: Option<String>,
}

/// A seed nobody chose. Below 2^53, so that JSON readers keep it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 11
}

/// The engine's sampling parameters: the request's, else the server's. Without a seed, each request has its own.
pub fn sampling(own: &Sampling, facts: &Facts, logprobs: Option<usize>) -> SamplingParams {
    let server = &facts.sampling;
    let mut logit_bias = server.logit_bias.clone();
    for (id, bias) in &own.logit_bias {
        match logit_bias.iter_mut().find(|b| b.0 == *id) {
            Some(entry) => entry.1 = *bias,
            None => logit_bias.push((*id, *bias)),
        }
    }
    SamplingParams {
        temperature: own.temperature.unwrap_or(server.temperature),
        top_k: own.top_k.map_or(server.top_k, |k| k as usize),
        top_p: own.top_p.unwrap_or(server.top_p),
        min_p: own.min_p.unwrap_or(server.min_p),
        repetition_penalty: own.repetition_penalty.unwrap_or(server.repetition_penalty),
        presence_penalty: own.presence_penalty.unwrap_or(server.presence_penalty),
        frequency_penalty: own.frequency_penalty.unwrap_or(server.frequency_penalty),
        logit_bias,
        seed: own.seed.unwrap_or_else(random_seed),
        logprobs,
    }
}

/// The engine's request.
pub fn request(wanted: &Wanted, own: &Sampling, sampling: SamplingParams, facts: &Facts) -> Request {
    let asked = wanted.max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    Request {
        prompt: wanted.prompt.clone(),
        sampling,
        max_tokens: asked.or(facts.max_tokens),
        stop_ids: own.stop_token_ids.clone(),
        stop: own.stop.iter().chain(&wanted.stop).cloned().collect(),
        ignore_eos: own.ignore_eos,
        fresh: own.cache_prompt == Some(false),
        show_special: wanted.show_special || own.skip_special_tokens == Some(false),
        block_size: match own.speculative {
            Some(Speculative::Off) => Some(1),
            Some(Speculative::Block(k)) => Some(k as usize),
            Some(Speculative::Auto) | None => None,
        },
        constraint: wanted.constraint.clone(),
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text, thoughts or calls that became certain.
    Delta(Delta),
    /// A token's log-probabilities, before the text it made certain.
    Logprob(TokenLogprobs, u32),
    /// The end.
    End(Box<End>),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Whether it was cut off at the most tokens, or at the end of the context.
    pub cut: bool,
    /// The stop string that ended it, as an index into the request's; one beyond them is [`Wanted::stop`].
    pub stop_string: Option<usize>,
    /// Whether the model called tools.
    pub called: bool,
    /// Tokens of the prompt, and of those from the cache.
    pub prompt_tokens: u64,
    /// Of those, from the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Of those, tokens of thoughts.
    pub reasoning_tokens: u64,
    /// Its rounds.
    pub rounds: Rounds,
    /// The block width that it settled at.
    pub block_size: usize,
    /// Seconds to the first token, and from there to the last.
    pub seconds: (f64, f64),
}

impl End {
    /// What it cost.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::new(self.prompt_tokens, self.completion_tokens);
        usage.prompt_tokens_details.cached_tokens = self.cached_tokens;
        usage.completion_tokens_details.reasoning_tokens = self.reasoning_tokens;
        usage.completion_tokens_details.accepted_prediction_tokens = self.rounds.accepted;
        usage.completion_tokens_details.rejected_prediction_tokens = self.rounds.proposed - self.rounds.accepted;
        usage
    }

    /// How long it took.
    pub fn timings(&self) -> Timings {
        let rate = |n: u64, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let (prompt, decode) = self.seconds;
        let computed = self.prompt_tokens - self.cached_tokens;
        let by_depth = &self.rounds.accepted_by_depth;
        let depths = by_depth.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        Timings {
            cache_n: self.cached_tokens,
            prompt_n: computed,
            prompt_ms: 1e3 * prompt,
            prompt_per_second: rate(computed, prompt),
            predicted_n: self.completion_tokens,
            predicted_ms: 1e3 * decode,
            predicted_per_second: rate(self.completion_tokens.saturating_sub(1), decode),
            draft_n: self.rounds.proposed,
            draft_n_accepted: self.rounds.accepted,
            draft_rounds: self.rounds.rounds,
            draft_accepted_by_depth: by_depth[..depths].to_vec(),
            draft_block_size: (self.rounds.rounds > 0).then_some(self.block_size as u32),
        }
    }
}

/// An answer as it comes, read by a parser.
pub struct Speech {
    answer: Answer,
    parser: Parser,
    ready: std::collections::VecDeque<Piece>,
    thinking: bool,
    reasoning_tokens: u64,
    called: bool,
    ended: bool,
    progress: Progress,
    record: Option<Arc<Record>>,
}

impl Speech {
    /// Of a request that was taken; `thinking` says that the prompt opened a block of thoughts.
    pub fn new(answer: Answer, parser: Parser, thinking: bool) -> Self {
        let (ready, progress, record) = (Default::default(), Progress::default(), exchange::current());
        Speech { answer, parser, ready, thinking, reasoning_tokens: 0, called: false, ended: false, progress, record }
    }

    /// How long it took so far. Rounds are counted when they are over.
    pub fn timings(&self) -> Timings {
        let Progress { prompt_tokens, cached_tokens, completion_tokens, timings, rounds, block_size } = self.progress;
        let end = End {
            cut: false,
            stop_string: None,
            called: self.called,
            prompt_tokens: prompt_tokens as u64,
            cached_tokens: cached_tokens as u64,
            completion_tokens: completion_tokens as u64,
            reasoning_tokens: self.reasoning_tokens,
            rounds,
            block_size,
            seconds: (timings.prefill, timings.decode),
        };
        end.timings()
    }

    /// The next piece; `None` after the end.
    ///
    /// # Errors
    /// The engine failed on this request.
    pub async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.ended {
                return Ok(None);
            }
            match self.answer.next().await {
                Some(Event::Token(token)) => self.token(token),
                Some(Event::Finished(end)) => self.end(end)?,
                None => {
                    return Err(ApiError::new(
                        ErrorKind::Unavailable,
                        "the engine stopped before the answer was complete",
                    ));
                }
            }
        }
    }

    fn token(&mut self, token: TokenEvent) {
        self.progress = token.progress;
        if let Some(record) = &self.record {
            record.token();
        }
        if let Some(logprob) = token.logprob {
            self.ready.push_back(Piece::Logprob(logprob, token.token));
        }
        let deltas = self.parser.push(&token.text);
        self.hand_on(deltas);
        self.reasoning_tokens += u64::from(self.thinking);
    }

    fn hand_on(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match &delta {
                Delta::Reasoning(_) => self.thinking = true,
                Delta::Content(_) => self.thinking = false,
                _ => {
                    self.thinking = false;
                    self.called = true;
                }
            }
            self.ready.push_back(Piece::Delta(delta));
        }
    }

    fn end(&mut self, end: Finished) -> Result<(), ApiError> {
        let record = self.record.take();
        self.ended = true;
        let mut deltas = self.parser.push(&end.text);
        deltas.extend(self.parser.finish());
        self.hand_on(deltas);
        let reason = end.reason.name();
        if let (Some(record), FinishReason::Cancelled | FinishReason::Error(_) | FinishReason::DeviceLost(_)) =
            (&record, &end.reason)
        {
            record.broken(reason);
        }
        let (cut, stop_string) = match &end.reason {
            FinishReason::StopToken(_) | FinishReason::Grammar => (false, None),
            FinishReason::StopString(which) => (false, Some(*which)),
            FinishReason::Length => (true, None),
            FinishReason::Cancelled => {
                return Err(ApiError::new(
                    ErrorKind::Unavailable,
                    "the answer was cancelled: the server is shutting down",
                ));
            }
            FinishReason::Error(why) => return Err(ApiError::new(ErrorKind::Internal, why.clone())),
            // No fault of the request: another server may answer it.
            FinishReason::DeviceLost(why) => return Err(ApiError::new(ErrorKind::Unavailable, why.clone())),
        };
        let completion_tokens = end.completion_tokens as u64;
        let end = End {
            cut,
            stop_string,
            called: self.called,
            prompt_tokens: end.prompt_tokens as u64,
            cached_tokens: end.cached_tokens as u64,
            completion_tokens,
            reasoning_tokens: self.reasoning_tokens.min(completion_tokens),
            rounds: end.rounds,
            block_size: end.block_size,
            seconds: (end.timings.prefill, end.timings.decode),
        };
        if let Some(record) = record {
            record.ended(&end, reason);
        }
        self.ready.push_back(Piece::End(Box::new(end)));
        Ok(())
    }
}

impl Drop for Speech {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            record.broken("cancelled");
        }
    }
}
