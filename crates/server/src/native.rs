//! Routes about the server itself, in llama-server's spelling where it has them.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use mlxcel_protocol::native::{
    ApplyTemplateAnswer, ApplyTemplateRequest, DetokenizeAnswer, DetokenizeRequest, GenerationSettings, Health,
    Modalities, Props, Slot, SlotTask, SpeculationProps, TokenizeAnswer, TokenizeRequest, TokenizedToken,
};
use mlxcel_protocol::openai::{Model, ModelList, ModelMeta};
use mlxcel_protocol::{ApiError, ErrorKind, Request as _};
use serde_json::{Value, json as value};

use crate::app::{App, Shared, body, json};
use crate::facts::Facts;
use crate::failure::Dialect;
use crate::prompt;

fn respond<T: serde::Serialize>(result: Result<T, ApiError>) -> Response {
    match result {
        Ok(value) => json(&value),
        Err(error) => Dialect::OpenAi.response(&error),
    }
}

/// `GET /health`: 200 when requests are taken, else 503 and why.
pub async fn health(State(app): State<Shared>) -> Response {
    respond(app.facts().map(|_| Health::ok()))
}

fn as_model(facts: &Facts, name: &str) -> Model {
    let size = facts.size;
    let meta = ModelMeta {
        n_vocab: size.vocab as u64,
        n_ctx: facts.context as u64,
        n_ctx_train: size.context as u64,
        n_embd: size.hidden as u64,
        n_params: size.parameters,
        size: size.bytes,
    };
    Model::new(name, facts.created, Some(meta))
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Shared>) -> Response {
    let list = |facts: &Facts| ModelList::new(facts.names.iter().map(|name| as_model(facts, name)).collect());
    respond(app.facts().map(|facts| list(&facts)))
}

/// `GET /v1/models/{id}`; names may hold slashes.
pub async fn model(State(app): State<Shared>, Path(id): Path<String>) -> Response {
    respond(app.facts().and_then(|facts| {
        crate::dispatch::check_model(Some(&id), &facts)?;
        Ok(as_model(&facts, &id))
    }))
}

/// `POST /tokenize`.
pub async fn tokenize(State(app): State<Shared>, incoming: Body) -> Response {
    respond(tokens(&app, incoming).await)
}

async fn tokens(app: &App, incoming: Body) -> Result<TokenizeAnswer, ApiError> {
    let wanted = TokenizeRequest::from_bytes(&body(app, incoming).await?)?;
    let facts = app.facts()?;
    let tokenizer = &facts.tokenizer;
    let encoded = match (wanted.add_special, wanted.parse_special) {
        (true, _) => tokenizer.encode_raw(&wanted.content),
        (false, true) => tokenizer.encode_templated(&wanted.content),
        (false, false) => tokenizer.encode_plain(&wanted.content),
    };
    let ids = encoded.map_err(|e| ApiError::parameter("content", e))?;
    let token = |id: u32| match wanted.with_pieces {
        false => TokenizedToken::Id(id),
        true => TokenizedToken::Piece { id, piece: tokenizer.token_bytes(id).into() },
    };
    Ok(TokenizeAnswer { tokens: ids.into_iter().map(token).collect() })
}

/// `POST /detokenize`.
pub async fn detokenize(State(app): State<Shared>, incoming: Body) -> Response {
    respond(text(&app, incoming).await)
}

async fn text(app: &App, incoming: Body) -> Result<DetokenizeAnswer, ApiError> {
    let wanted = DetokenizeRequest::from_bytes(&body(app, incoming).await?)?;
    let facts = app.facts()?;
    let size = facts.tokenizer.vocab_size();
    if let Some((i, id)) = wanted.tokens.iter().enumerate().find(|(_, id)| **id as usize >= size) {
        return Err(ApiError::parameter(
            format!("tokens[{i}]"),
            format_args!("an id below {size} expected, found {id}"),
        ));
    }
    Ok(DetokenizeAnswer { content: facts.tokenizer.decode(&wanted.tokens, false) })
}

/// `POST /apply-template`.
pub async fn apply_template(State(app): State<Shared>, incoming: Body) -> Response {
    respond(rendered(&app, incoming).await)
}

async fn rendered(app: &App, incoming: Body) -> Result<ApplyTemplateAnswer, ApiError> {
    let wanted = ApplyTemplateRequest::from_bytes(&body(app, incoming).await?)?;
    let facts = app.facts()?;
    wanted.require_text()?;
    let (messages, tools) = (&wanted.messages, wanted.tools.iter().collect::<Vec<_>>());
    let rendered =
        prompt::render(&facts, messages, &tools, &wanted.chat_template_kwargs, wanted.add_generation_prompt)?;
    Ok(ApplyTemplateAnswer { prompt: rendered.text })
}

fn settings(facts: &Facts) -> BTreeMap<String, Value> {
    let own = &facts.sampling;
    [
        ("temperature", value!(own.temperature)),
        ("top_k", value!(own.top_k)),
        ("top_p", value!(own.top_p)),
        ("min_p", value!(own.min_p)),
        ("repetition_penalty", value!(own.repetition_penalty)),
        ("presence_penalty", value!(own.presence_penalty)),
        ("frequency_penalty", value!(own.frequency_penalty)),
        ("max_tokens", value!(facts.max_tokens)),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into()
}

fn speculation(facts: &Facts) -> SpeculationProps {
    let own = &facts.speculation;
    SpeculationProps {
        enabled: own.enabled,
        kind: own.kind.clone(),
        drafter: own.drafter.clone(),
        block_size: own.block_size.map(|k| k as u32),
        max_block_size: own.max_block_size as u32,
        probe: match (own.enabled, own.exact) {
            (true, true) => "passed",
            (true, false) => "failed",
            (false, _) if own.kind == "none" => "not run",
            (false, _) => "failed",
        }
        .into(),
        inexact_allowed: own.enabled && !own.exact,
        why: own.why.clone(),
    }
}

/// `GET /props`.
pub async fn props(State(app): State<Shared>) -> Response {
    respond(app.facts().map(|facts| {
        let token = |id: Option<u32>| id.and_then(|id| facts.tokenizer.id_to_token(id)).unwrap_or_default();
        Props {
            default_generation_settings: GenerationSettings { n_ctx: facts.context as u64, params: settings(&facts) },
            total_slots: facts.parallel as u64,
            model_path: facts.path.clone(),
            model_alias: facts.name().into(),
            chat_template: facts.template.as_ref().map(|t| t.source()).unwrap_or_default(),
            bos_token: token(facts.tokenizer.bos_id()),
            eos_token: token(facts.tokenizer.eos_ids().first().copied()),
            modalities: Modalities::default(),
            build_info: facts.fingerprint.clone(),
            speculation: speculation(&facts),
        }
    }))
}

/// `GET /v1/internal/mtp-policy`: how the gate decided.
pub async fn mtp_policy(State(app): State<Shared>) -> Response {
    respond(app.facts().map(|facts| {
        let own = &facts.speculation;
        value!({
            "enabled": own.enabled,
            "kind": own.kind,
            "drafter": own.drafter,
            "block_size": own.block_size,
            "max_block_size": own.max_block_size,
            "adaptive": own.enabled && own.block_size.is_none(),
            "exact": own.exact,
            "why": own.why,
            "backend": facts.backend,
        })
    }))
}

/// `GET /slots`.
pub async fn slots(State(app): State<Shared>) -> Response {
    if !app.options.slots {
        return Dialect::OpenAi.response(&ApiError::new(ErrorKind::NotFound, "/slots is off (--no-slots)"));
    }
    respond(app.facts().map(|facts| {
        let running = app.worker.status().running;
        let slot = |id: usize| {
            let task = running.get(id).map(|busy| SlotTask {
                id: busy.id.0.to_string(),
                phase: if busy.computed + 1 < busy.tokens { "prompt" } else { "decode" }.into(),
                n_prompt: busy.prompt as u64,
                n_prompt_done: busy.computed.min(busy.prompt) as u64,
                n_cached: busy.cached as u64,
                n_decoded: (busy.tokens - busy.prompt) as u64,
                block_size: busy.width as u32,
                draft_n: busy.rounds.proposed,
                draft_n_accepted: busy.rounds.accepted,
            });
            let speculative = facts.speculation.enabled;
            Slot { id: id as u64, n_ctx: facts.context as u64, speculative, is_processing: task.is_some(), task }
        };
        (0..facts.parallel).map(slot).collect::<Vec<Slot>>()
    }))
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<Shared>) -> Response {
    if !app.options.metrics {
        return Dialect::OpenAi.response(&ApiError::new(ErrorKind::NotFound, "/metrics is off (--no-metrics)"));
    }
    let mut response = app.metrics.text().into_response();
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
