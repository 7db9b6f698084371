//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use mlxcel_protocol::openai::{
    AssistantMessage, ChatAnswer, ChatChoice, ChatChunk, ChatRequest, ChunkChoice, Delta as Piecewise, FinishReason,
    FunctionDelta, Logprobs, ToolCall, ToolCallDelta, Usage,
};
use mlxcel_protocol::{ApiError, sse as wire};
use mlxcel_text::parse::Delta;

use crate::app::{App, Shared, identifier, json, now};
use crate::calls::Calls;
use crate::constraint::Thinking;
use crate::dispatch::dispatch;
use crate::facts::Facts;
use crate::failure::{Dialect, refused};
use crate::generate::{End, Piece, Speech, Wanted, request, sampling};
use crate::logprobs::token_logprob;
use crate::prompt::Prompt;
use crate::sse::{Events, Gone, stream};
use crate::{constraint, prompt};

/// The route.
pub async fn route(State(app): State<Shared>, incoming: Body) -> Response {
    dispatch(app, incoming, Dialect::OpenAi, |wanted: &ChatRequest| wanted.model.as_deref(), answer).await
}

async fn answer(app: Shared, facts: Arc<Facts>, wanted: ChatRequest) -> Result<Response, ApiError> {
    let speeches = speak(&app, &facts, &wanted).await?;
    let talk = Talk { id: identifier("chatcmpl-"), created: now(), facts };
    if wanted.stream {
        let usage = wanted.stream_options.is_some_and(|options| options.include_usage);
        let timed = wanted.sampling.timings_per_token;
        return Ok(stream(Dialect::OpenAi, move |events| talk.stream(speeches, usage, timed, events)));
    }
    Ok(json(&talk.whole(speeches).await?))
}

/// Submits a conversation, once for each answer.
///
/// # Errors
/// What is wrong with the request; a full queue.
pub async fn speak(app: &App, facts: &Arc<Facts>, wanted: &ChatRequest) -> Result<Vec<Speech>, ApiError> {
    let calls = Calls::of(wanted);
    let Prompt { rendered, parser, may_think } = prompt::chat(facts, wanted, &calls)?;
    let grammar = match calls.grammar(facts, wanted)? {
        Some(forced) => Some(forced),
        None => constraint::wanted(wanted.response_format.as_ref(), wanted.grammar.as_deref()),
    };
    let thinking = Thinking::of(facts, rendered.thinking, may_think)?;
    let constraint = constraint::compile(facts, grammar, thinking).await?;
    let logprobs = wanted.logprobs.then(|| wanted.top_logprobs.unwrap_or(0) as usize);
    let parts = Wanted {
        prompt: rendered.tokens,
        max_tokens: wanted.max_tokens,
        // Markers of thoughts and calls are special tokens in some families.
        show_special: true,
        constraint,
        stop: calls.stop(facts),
    };
    let first = sampling(&wanted.sampling, facts, logprobs);
    let mut speeches = Vec::new();
    for i in 0..wanted.n.unwrap_or(1) {
        let own =
            mlxcel_engine::sample::SamplingParams { seed: first.seed.wrapping_add(u64::from(i)), ..first.clone() };
        let request = request(&parts, &wanted.sampling, own, facts);
        let answer = app.worker.submit(request).await.map_err(|e| refused(&e, "messages"))?;
        speeches.push(Speech::new(answer, parser.clone(), rendered.thinking && facts.split_reasoning));
    }
    Ok(speeches)
}

/// Why an answer ended, in OpenAI's words.
pub fn finish_reason(end: &End) -> FinishReason {
    match (end.called, end.cut) {
        (true, false) => FinishReason::ToolCalls,
        (_, true) => FinishReason::Length,
        (false, false) => FinishReason::Stop,
    }
}

/// The usage of several answers to one prompt, which counts once.
pub fn sum(ends: &[End]) -> Usage {
    let mut usage = ends.first().map(End::usage).unwrap_or_default();
    for end in ends.iter().skip(1) {
        let more = end.usage();
        usage.completion_tokens += more.completion_tokens;
        usage.total_tokens += more.completion_tokens;
        let (details, own) = (&mut usage.completion_tokens_details, more.completion_tokens_details);
        details.reasoning_tokens += own.reasoning_tokens;
        details.accepted_prediction_tokens += own.accepted_prediction_tokens;
        details.rejected_prediction_tokens += own.rejected_prediction_tokens;
    }
    usage
}

/// One exchange.
struct Talk {
    id: String,
    created: u64,
    facts: Arc<Facts>,
}

/// A whole answer being put together.
#[derive(Default)]
pub struct Heard {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub content: String,
    /// What is to be called.
    pub calls: Vec<ToolCall>,
    /// Log-probabilities.
    pub logprobs: Vec<mlxcel_protocol::openai::TokenLogprob>,
}

impl Heard {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Content(text) => self.content.push_str(&text),
            Delta::ToolCallStart { id, name, .. } => {
                self.calls.push(ToolCall::new(id.unwrap_or_else(|| identifier("call_")), name, ""));
            }
            Delta::ToolCallArguments { json_fragment, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.function.arguments.push_str(&json_fragment);
                }
            }
            Delta::ToolCallEnd { .. } | Delta::ToolCallBroken { .. } => {}
        }
    }

    /// Listens to an answer to its end.
    ///
    /// # Errors
    /// The engine failed on it.
    pub async fn all(speech: &mut Speech, facts: &Facts) -> Result<(Heard, End), ApiError> {
        let mut heard = Heard::default();
        while let Some(piece) = speech.next().await? {
            match piece {
                Piece::Delta(delta) => heard.add(delta),
                Piece::Logprob(logprob, token) => heard.logprobs.push(token_logprob(&logprob, token, &facts.tokenizer)),
                Piece::End(end) => return Ok((heard, *end)),
            }
        }
        Err(ApiError::new(mlxcel_protocol::ErrorKind::Internal, "the answer had no end"))
    }
}

impl Talk {
    async fn whole(&self, speeches: Vec<Speech>) -> Result<ChatAnswer, ApiError> {
        let (mut choices, mut ends) = (Vec::new(), Vec::new());
        for (index, mut speech) in (0..).zip(speeches) {
            let (heard, end) = Heard::all(&mut speech, &self.facts).await?;
            let called = !heard.calls.is_empty();
            let message = AssistantMessage {
                role: "assistant".into(),
                content: (!called || !heard.content.is_empty()).then_some(heard.content),
                refusal: None,
                reasoning_content: (!heard.reasoning.is_empty()).then_some(heard.reasoning),
                tool_calls: heard.calls,
            };
            let logprobs = (!heard.logprobs.is_empty()).then_some(Logprobs { content: heard.logprobs, refusal: None });
            choices.push(ChatChoice { index, message, logprobs, finish_reason: finish_reason(&end) });
            ends.push(end);
        }
        Ok(ChatAnswer {
            id: self.id.clone(),
            object: "chat.completion".into(),
            created: self.created,
            model: self.facts.name().into(),
            choices,
            usage: sum(&ends),
            system_fingerprint: Some(self.facts.fingerprint.clone()),
            timings: match &ends[..] {
                [end] => Some(end.timings()),
                _ => None,
            },
        })
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.facts.name().into(),
            choices,
            system_fingerprint: Some(self.facts.fingerprint.clone()),
            usage: None,
            timings: None,
        }
    }

    async fn send(&self, chunk: &ChatChunk, events: &Events) -> Result<(), Gone> {
        // Strings and numbers: nothing that JSON could not hold.
        events.send(wire::data(chunk).unwrap_or_default()).await
    }

    /// Answers come one after the other in the stream, though they are generated at the same time.
    async fn stream(self, speeches: Vec<Speech>, usage: bool, timed: bool, events: Events) -> Result<(), Gone> {
        let mut ends = Vec::new();
        for (index, mut speech) in (0..).zip(speeches) {
            let role =
                Piecewise { role: Some("assistant".into()), content: Some(String::new()), ..Piecewise::default() };
            let mut choice = ChunkChoice { index, delta: role, logprobs: None, finish_reason: None };
            let mut waiting = Vec::new();
            self.send(&self.chunk(vec![choice.clone()]), &events).await?;
            loop {
                let piece = match events.wait(speech.next()).await? {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break,
                    Err(error) => {
                        events.send(wire::data(&error.openai()).unwrap_or_default()).await?;
                        return events.send(wire::DONE.into()).await;
                    }
                };
                choice.finish_reason = None;
                let mut timings = timed.then(|| speech.timings());
                choice.delta = match piece {
                    Piece::Logprob(logprob, token) => {
                        waiting.push(token_logprob(&logprob, token, &self.facts.tokenizer));
                        continue;
                    }
                    Piece::Delta(delta) => match piecewise(delta) {
                        Some(delta) => delta,
                        None => continue,
                    },
                    Piece::End(end) => {
                        choice.finish_reason = Some(finish_reason(&end));
                        timings = Some(end.timings());
                        ends.push(*end);
                        Piecewise::default()
                    }
                };
                let own = std::mem::take(&mut waiting);
                choice.logprobs = (!own.is_empty()).then_some(Logprobs { content: own, refusal: None });
                let mut chunk = self.chunk(vec![choice.clone()]);
                chunk.timings = timings;
                self.send(&chunk, &events).await?;
            }
        }
        if usage {
            let mut chunk = self.chunk(Vec::new());
            chunk.usage = Some(sum(&ends));
            self.send(&chunk, &events).await?;
        }
        events.send(wire::DONE.into()).await
    }
}

/// A piece of an answer in OpenAI's words; `None` for what has none.
fn piecewise(delta: Delta) -> Option<Piecewise> {
    let call = |index: usize, id: Option<String>, name: Option<String>, arguments: Option<String>| {
        let kind = id.is_some().then(|| "function".to_string());
        let function = FunctionDelta { name, arguments };
        let call = ToolCallDelta { index: index as u32, id, kind, function };
        Piecewise { tool_calls: vec![call], ..Piecewise::default() }
    };
    Some(match delta {
        Delta::Reasoning(text) => Piecewise { reasoning_content: Some(text), ..Piecewise::default() },
        Delta::Content(text) => Piecewise { content: Some(text), ..Piecewise::default() },
        Delta::ToolCallStart { index, id, name } => {
            call(index, Some(id.unwrap_or_else(|| identifier("call_"))), Some(name), Some(String::new()))
        }
        Delta::ToolCallArguments { index, json_fragment } => call(index, None, None, Some(json_fragment)),
        Delta::ToolCallEnd { .. } | Delta::ToolCallBroken { .. } => return None,
    })
}
