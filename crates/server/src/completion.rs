//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use mlxcel_protocol::openai::{
    CompletionAnswer, CompletionChoice, CompletionLogprobs, CompletionRequest, PromptItem, Usage,
};
use mlxcel_protocol::{ApiError, sse as wire};
use mlxcel_text::parse::{Delta, Parser, ParserKind, ParserOptions};

use crate::app::{App, Shared, identifier, json, now};
use crate::chat::{finish_reason, sum};
use crate::dispatch::dispatch;
use crate::facts::Facts;
use crate::failure::{Dialect, refused};
use crate::generate::{End, Piece, Speech, Wanted, request, sampling};
use crate::sse::{Events, Gone, stream};
use crate::{constraint, logprobs};

/// The route.
pub async fn route(State(app): State<Shared>, incoming: Body) -> Response {
    dispatch(app, incoming, Dialect::OpenAi, |wanted: &CompletionRequest| wanted.model.as_deref(), answer).await
}

async fn answer(app: Shared, facts: Arc<Facts>, wanted: CompletionRequest) -> Result<Response, ApiError> {
    let lines = speak(&app, &facts, &wanted).await?;
    let talk = Talk { id: identifier("cmpl-"), created: now(), facts, logprobs: wanted.logprobs.is_some() };
    if wanted.stream {
        let usage = wanted.stream_options.is_some_and(|options| options.include_usage);
        let timed = wanted.sampling.timings_per_token;
        return Ok(stream(Dialect::OpenAi, move |events| talk.stream(lines, usage, timed, events)));
    }
    Ok(json(&talk.whole(lines).await?))
}

/// One answer to come, with the prompt that is to be repeated before it.
struct Line {
    speech: Speech,
    echo: Option<String>,
}

/// Submits every prompt, `n` times each; lines of one prompt stand together.
async fn speak(app: &App, facts: &Arc<Facts>, wanted: &CompletionRequest) -> Result<Vec<Vec<Line>>, ApiError> {
    let grammar = constraint::wanted(None, wanted.grammar.as_deref());
    let constraint = constraint::compile(facts, grammar, None).await?;
    let logprobs = wanted.logprobs.map(|n| n as usize);
    if wanted.echo && logprobs.is_some() {
        let message = "expected no echo with logprobs: log-probabilities of prompts are not computed";
        return Err(ApiError::parameter("echo", message).with_code("unsupported_parameter"));
    }
    let first = sampling(&wanted.sampling, facts, logprobs);
    let mut prompts = Vec::new();
    for (number, item) in wanted.prompt.items().iter().enumerate() {
        let prompt = match item {
            PromptItem::Tokens(tokens) => tokens.clone(),
            PromptItem::Text(text) => {
                let tokens = facts.tokenizer.encode_raw(text);
                tokens.map_err(|e| ApiError::parameter(format!("prompt[{number}]"), e))?
            }
        };
        let echo = wanted.echo.then(|| match item {
            PromptItem::Text(text) => text.clone(),
            PromptItem::Tokens(tokens) => facts.tokenizer.decode(tokens, true),
        });
        let parts = Wanted {
            prompt,
            max_tokens: wanted.max_tokens.or(Some(16)),
            show_special: false,
            constraint: constraint.clone(),
            stop: None,
        };
        let mut lines = Vec::new();
        for i in 0..wanted.n.unwrap_or(1) {
            let seed = first.seed.wrapping_add(u64::from(i));
            let own = mlxcel_engine::sample::SamplingParams { seed, ..first.clone() };
            let request = request(&parts, &wanted.sampling, own, facts);
            let answer = app.worker.submit(request).await.map_err(|e| refused(&e, "prompt"))?;
            let parser = Parser::new(ParserKind::PLAIN, ParserOptions::default());
            lines.push(Line { speech: Speech::new(answer, parser, false), echo: echo.clone() });
        }
        prompts.push(lines);
    }
    Ok(prompts)
}

/// One exchange.
struct Talk {
    id: String,
    created: u64,
    facts: Arc<Facts>,
    logprobs: bool,
}

impl Talk {
    fn answer(&self, choices: Vec<CompletionChoice>) -> CompletionAnswer {
        CompletionAnswer {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: self.created,
            model: self.facts.name().into(),
            choices,
            system_fingerprint: Some(self.facts.fingerprint.clone()),
            usage: None,
            timings: None,
        }
    }

    async fn whole(&self, prompts: Vec<Vec<Line>>) -> Result<CompletionAnswer, ApiError> {
        let (mut choices, mut usage, mut all) = (Vec::new(), Usage::default(), Vec::new());
        for lines in prompts {
            let mut ends = Vec::new();
            for line in lines {
                let (choice, end) = self.line(choices.len() as u32, line).await?;
                choices.push(choice);
                ends.push(end);
            }
            add(&mut usage, &sum(&ends));
            all.extend(ends);
        }
        let timings = match &all[..] {
            [end] => Some(end.timings()),
            _ => None,
        };
        Ok(CompletionAnswer { usage: Some(usage), timings, ..self.answer(choices) })
    }

    async fn line(&self, index: u32, mut line: Line) -> Result<(CompletionChoice, End), ApiError> {
        let mut text = line.echo.take().unwrap_or_default();
        let mut list = CompletionLogprobs::default();
        while let Some(piece) = line.speech.next().await? {
            match piece {
                Piece::Delta(delta) => text.push_str(said(&delta)),
                Piece::Logprob(own, token) => {
                    let offset = text.chars().count() as u64;
                    logprobs::push(&mut list, &own, token, offset, &self.facts.tokenizer);
                }
                Piece::End(end) => {
                    let logprobs = self.logprobs.then_some(list);
                    let choice = CompletionChoice { index, text, logprobs, finish_reason: Some(finish_reason(&end)) };
                    return Ok((choice, *end));
                }
            }
        }
        Err(ApiError::new(mlxcel_protocol::ErrorKind::Internal, "the answer had no end"))
    }

    async fn send(&self, answer: &CompletionAnswer, events: &Events) -> Result<(), Gone> {
        events.send(wire::data(answer).unwrap_or_default()).await
    }

    async fn stream(self, prompts: Vec<Vec<Line>>, wants_usage: bool, timed: bool, events: Events) -> Result<(), Gone> {
        let (mut index, mut usage) = (0, Usage::default());
        for lines in prompts {
            let mut ends = Vec::new();
            for mut line in lines {
                let mut choice = CompletionChoice { index, text: String::new(), logprobs: None, finish_reason: None };
                let mut offset = 0;
                if let Some(echo) = line.echo.take() {
                    choice.text = echo;
                    self.send(&self.answer(vec![choice.clone()]), &events).await?;
                }
                let mut list = CompletionLogprobs::default();
                loop {
                    let piece = match events.wait(line.speech.next()).await? {
                        Ok(Some(piece)) => piece,
                        Ok(None) => break,
                        Err(error) => {
                            events.send(wire::data(&error.openai()).unwrap_or_default()).await?;
                            return events.send(wire::DONE.into()).await;
                        }
                    };
                    let mut timings = timed.then(|| line.speech.timings());
                    choice.text.clear();
                    match piece {
                        Piece::Logprob(own, token) => {
                            logprobs::push(&mut list, &own, token, offset, &self.facts.tokenizer);
                            continue;
                        }
                        Piece::Delta(delta) => choice.text.push_str(said(&delta)),
                        Piece::End(end) => {
                            choice.finish_reason = Some(finish_reason(&end));
                            timings = Some(end.timings());
                            ends.push(*end);
                        }
                    }
                    offset += choice.text.chars().count() as u64;
                    choice.logprobs = (!list.tokens.is_empty()).then(|| std::mem::take(&mut list));
                    let mut answer = self.answer(vec![choice.clone()]);
                    answer.timings = timings;
                    self.send(&answer, &events).await?;
                }
                index += 1;
            }
            add(&mut usage, &sum(&ends));
        }
        if wants_usage {
            let answer = CompletionAnswer { usage: Some(usage), ..self.answer(Vec::new()) };
            self.send(&answer, &events).await?;
        }
        events.send(wire::DONE.into()).await
    }
}

/// The text of a piece; a plain parser gives nothing else.
fn said(delta: &Delta) -> &str {
    match delta {
        Delta::Content(text) | Delta::Reasoning(text) => text,
        _ => "",
    }
}

fn add(usage: &mut Usage, more: &Usage) {
    usage.prompt_tokens += more.prompt_tokens;
    usage.completion_tokens += more.completion_tokens;
    usage.total_tokens += more.total_tokens;
    usage.prompt_tokens_details.cached_tokens += more.prompt_tokens_details.cached_tokens;
    let (details, own) = (&mut usage.completion_tokens_details, more.completion_tokens_details);
    details.reasoning_tokens += own.reasoning_tokens;
    details.accepted_prediction_tokens += own.accepted_prediction_tokens;
    details.rejected_prediction_tokens += own.rejected_prediction_tokens;
}
