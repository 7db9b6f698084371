//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use mlxcel_protocol::anthropic::{
    AnswerBlock, BlockDelta, CountTokensRequest, MessageAnswer, MessageDelta, MessagesRequest, StopReason, StreamEvent,
    TokenCount, Usage,
};
use mlxcel_protocol::{ApiError, ErrorKind, sse as wire};
use mlxcel_text::parse::Delta;
use serde_json::{Map, Value};

use crate::app::{Shared, identifier, json};
use crate::calls::Calls;
use crate::chat::{Heard, finish_reason, speak};
use crate::dispatch::dispatch;
use crate::facts::Facts;
use crate::failure::Dialect;
use crate::generate::{End, Piece, Speech};
use crate::prompt;
use crate::sse::{Events, Gone, stream};

/// `POST /v1/messages`.
pub async fn route(State(app): State<Shared>, incoming: Body) -> Response {
    dispatch(app, incoming, Dialect::Anthropic, |wanted: &MessagesRequest| wanted.prompt.model.as_deref(), answer).await
}

async fn answer(app: Shared, facts: Arc<Facts>, wanted: MessagesRequest) -> Result<Response, ApiError> {
    wanted.prompt.require_text()?;
    let Some(speech) = speak(&app, &facts, &wanted.to_chat()).await?.pop() else {
        return Err(ApiError::new(ErrorKind::Internal, "no answer was asked for"));
    };
    let talk = Talk { id: identifier("msg_"), facts, stops: wanted.sampling.stop.clone() };
    if wanted.stream {
        return Ok(stream(Dialect::Anthropic, move |events| talk.stream(speech, events)));
    }
    Ok(json(&talk.whole(speech).await?))
}

/// `POST /v1/messages/count_tokens`.
pub async fn count(State(app): State<Shared>, incoming: Body) -> Response {
    dispatch(app, incoming, Dialect::Anthropic, |wanted: &CountTokensRequest| wanted.model.as_deref(), counted).await
}

async fn counted(_: Shared, facts: Arc<Facts>, wanted: CountTokensRequest) -> Result<Response, ApiError> {
    wanted.require_text()?;
    let chat = wanted.to_chat();
    let tokens = prompt::chat(&facts, &chat, &Calls::of(&chat))?.rendered.tokens;
    Ok(json(&TokenCount { input_tokens: tokens.len() as u64 }))
}

/// One exchange.
struct Talk {
    id: String,
    facts: Arc<Facts>,
    stops: Vec<String>,
}

impl Talk {
    fn message(&self, content: Vec<AnswerBlock>) -> MessageAnswer {
        MessageAnswer {
            id: self.id.clone(),
            kind: "message".into(),
            role: "assistant".into(),
            model: self.facts.name().into(),
            content,
            stop_reason: None,
            stop_sequence: None,
            usage: Usage::default(),
            timings: None,
        }
    }

    fn delta(&self, end: &End) -> MessageDelta {
        let stop_sequence = end.stop_string.and_then(|which| self.stops.get(which).cloned());
        let stop_reason = Some(StopReason::new(finish_reason(end), stop_sequence.is_some()));
        MessageDelta { stop_reason, stop_sequence }
    }

    async fn whole(&self, mut speech: Speech) -> Result<MessageAnswer, ApiError> {
        let (heard, end) = Heard::all(&mut speech, &self.facts).await?;
        let mut content = Vec::new();
        if !heard.reasoning.is_empty() {
            content.push(AnswerBlock::Thinking { thinking: heard.reasoning, signature: String::new() });
        }
        if !heard.content.is_empty() {
            content.push(AnswerBlock::Text { text: heard.content });
        }
        content.extend(heard.calls.into_iter().map(|call| {
            let input = match call.function.value() {
                Value::Object(input) => input,
                _ => Map::new(),
            };
            AnswerBlock::ToolUse { id: call.id, name: call.function.name, input }
        }));
        let MessageDelta { stop_reason, stop_sequence } = self.delta(&end);
        let (usage, timings) = (end.usage().into(), Some(end.timings()));
        Ok(MessageAnswer { stop_reason, stop_sequence, usage, timings, ..self.message(content) })
    }

    async fn stream(self, mut speech: Speech, events: Events) -> Result<(), Gone> {
        let message = Box::new(self.message(Vec::new()));
        send(&events, &StreamEvent::MessageStart { message }).await?;
        let mut blocks = Blocks { events: &events, index: 0, open: None };
        loop {
            match events.wait(speech.next()).await? {
                Ok(Some(Piece::Delta(delta))) => blocks.add(delta).await?,
                Ok(Some(Piece::Logprob(..))) => {}
                Ok(Some(Piece::End(end))) => {
                    blocks.close().await?;
                    let (usage, timings) = (end.usage().into(), Some(end.timings()));
                    send(&events, &StreamEvent::MessageDelta { delta: self.delta(&end), usage, timings }).await?;
                    return send(&events, &StreamEvent::MessageStop).await;
                }
                Ok(None) => return Ok(()),
                Err(error) => return send(&events, &StreamEvent::from(&error)).await,
            }
        }
    }
}

async fn send(events: &Events, event: &StreamEvent) -> Result<(), Gone> {
    // Strings and numbers: nothing that JSON could not hold.
    events.send(wire::event(event.name(), event).unwrap_or_default()).await
}

/// What the open block holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

/// The blocks of a stream, one open at a time.
struct Blocks<'a> {
    events: &'a Events,
    index: u32,
    open: Option<Kind>,
}

impl Blocks<'_> {
    async fn add(&mut self, delta: Delta) -> Result<(), Gone> {
        match delta {
            Delta::Content(text) => {
                self.enter(Kind::Text, || AnswerBlock::Text { text: String::new() }).await?;
                self.more(BlockDelta::TextDelta { text }).await
            }
            Delta::Reasoning(thinking) => {
                let empty = || AnswerBlock::Thinking { thinking: String::new(), signature: String::new() };
                self.enter(Kind::Thinking, empty).await?;
                self.more(BlockDelta::ThinkingDelta { thinking }).await
            }
            Delta::ToolCallStart { id, name, .. } => {
                self.close().await?;
                let id = id.unwrap_or_else(|| identifier("toolu_"));
                self.enter(Kind::Call, || AnswerBlock::ToolUse { id, name, input: Map::new() }).await
            }
            Delta::ToolCallArguments { json_fragment, .. } => {
                self.more(BlockDelta::InputJsonDelta { partial_json: json_fragment }).await
            }
            Delta::ToolCallEnd { .. } | Delta::ToolCallBroken { .. } => self.close().await,
        }
    }

    async fn more(&self, delta: BlockDelta) -> Result<(), Gone> {
        send(self.events, &StreamEvent::ContentBlockDelta { index: self.index, delta }).await
    }

    async fn enter(&mut self, kind: Kind, block: impl FnOnce() -> AnswerBlock) -> Result<(), Gone> {
        if self.open == Some(kind) {
            return Ok(());
        }
        self.close().await?;
        self.open = Some(kind);
        send(self.events, &StreamEvent::ContentBlockStart { index: self.index, content_block: block() }).await
    }

    async fn close(&mut self) -> Result<(), Gone> {
        if self.open.take().is_some() {
            send(self.events, &StreamEvent::ContentBlockStop { index: self.index }).await?;
            self.index += 1;
        }
        Ok(())
    }
}
