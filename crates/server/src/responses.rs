//! `POST /v1/responses`: OpenAI's newer dialect. Nothing is kept: an answer is not to be fetched or continued by its name.

mod writer;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response as HttpResponse;
use mlxcel_protocol::openai::responses::{Event, Response, ResponseError, ResponseEvent, ResponsesRequest, Status};
use mlxcel_protocol::{ApiError, ErrorKind, sse as wire};

use crate::app::{Shared, identifier, json, now};
use crate::chat::speak;
use crate::dispatch::dispatch;
use crate::facts::Facts;
use crate::failure::Dialect;
use crate::generate::{Piece, Speech};
use crate::logprobs::token_logprob;
use crate::sse::{Events, Gone, stream};
use writer::Writer;

/// The route.
pub async fn route(State(app): State<Shared>, incoming: Body) -> HttpResponse {
    dispatch(app, incoming, Dialect::OpenAi, |wanted: &ResponsesRequest| wanted.model.as_deref(), answer).await
}

async fn answer(app: Shared, facts: Arc<Facts>, wanted: ResponsesRequest) -> Result<HttpResponse, ApiError> {
    wanted.require_text()?;
    let chat = wanted.to_chat();
    let Some(speech) = speak(&app, &facts, &chat).await.map_err(in_this_dialect)?.pop() else {
        return Err(ApiError::new(ErrorKind::Internal, "no answer was asked for"));
    };
    let writer = Writer::new(begin(&wanted, &facts));
    let talk = Talk { writer, facts };
    if wanted.stream {
        return Ok(stream(Dialect::OpenAi, move |events| talk.stream(speech, events)));
    }
    Ok(json(&talk.whole(speech).await?))
}

/// The answer before its first token, with the sampling parameters as they are used.
fn begin(wanted: &ResponsesRequest, facts: &Facts) -> Response {
    let begun = Response::begin(identifier("resp_"), now(), facts.name(), wanted);
    Response {
        temperature: begun.temperature.or(Some(facts.sampling.temperature)),
        top_p: begun.top_p.or(Some(facts.sampling.top_p)),
        ..begun
    }
}

/// An error of the chat request that this one came to, under the names that its client knows.
fn in_this_dialect(error: ApiError) -> ApiError {
    let Some(param) = &error.param else { return error };
    let names = [
        ("messages", "input"),
        ("response_format", "text.format"),
        ("max_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
    ];
    match names.iter().find(|(chat, _)| chat == param) {
        Some((chat, own)) => {
            let message = match error.message.strip_prefix(chat) {
                Some(rest) => format!("{own}{rest}"),
                None => error.message,
            };
            ApiError { message, param: Some((*own).into()), ..error }
        }
        None => error,
    }
}

/// One exchange.
struct Talk {
    writer: Writer,
    facts: Arc<Facts>,
}

impl Talk {
    /// Takes a piece; the events that tell of it.
    fn hear(&mut self, piece: Piece) -> Vec<Event> {
        match piece {
            Piece::Delta(delta) => self.writer.add(delta),
            Piece::Logprob(logprob, token) => {
                self.writer.logprob(token_logprob(&logprob, token, &self.facts.tokenizer));
                Vec::new()
            }
            Piece::End(end) => self.writer.end(&end, now()),
        }
    }

    async fn whole(mut self, mut speech: Speech) -> Result<Response, ApiError> {
        while let Some(piece) = speech.next().await? {
            self.hear(piece);
        }
        Ok(self.writer.response)
    }

    async fn stream(mut self, mut speech: Speech, events: Events) -> Result<(), Gone> {
        let mut numbered = Numbered { events: &events, next: 0 };
        let response = || Box::new(self.writer.response.clone());
        numbered.send(Event::Created { response: response() }).await?;
        numbered.send(Event::InProgress { response: response() }).await?;
        loop {
            let told = match events.wait(speech.next()).await? {
                Ok(Some(piece)) => self.hear(piece),
                Ok(None) => return Ok(()),
                Err(error) => {
                    let (status, error) = (Status::Failed, Some(ResponseError::from(&error)));
                    let response = Box::new(Response { status, error, ..self.writer.response });
                    return numbered.send(Event::Failed { response }).await;
                }
            };
            for event in told {
                numbered.send(event).await?;
            }
        }
    }
}

/// Events with their places in the stream.
struct Numbered<'a> {
    events: &'a Events,
    next: u64,
}

impl Numbered<'_> {
    async fn send(&mut self, event: Event) -> Result<(), Gone> {
        let name = event.name();
        let event = ResponseEvent { event, sequence_number: self.next };
        self.next += 1;
        // Strings and numbers: nothing that JSON could not hold.
        self.events.send(wire::event(name, &event).unwrap_or_default()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_get_the_names_of_this_dialect() {
        let error = in_this_dialect(ApiError::parameter("response_format", "no"));
        assert_eq!((error.param.as_deref(), &*error.message), (Some("text.format"), "text.format: no"));
        let error = in_this_dialect(ApiError::context_length("messages", 9, 8));
        assert_eq!((error.param.as_deref(), error.code), (Some("input"), Some("context_length_exceeded")));
        let same = ApiError::parameter("temperature", "no");
        assert_eq!(in_this_dialect(same.clone()), same);
    }
}
