//! The router: which path does what, who may use it, how large a body may be.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use mlxcel_protocol::{ApiError, ErrorKind};
use serde::Serialize;
use subtle::ConstantTimeEq;

use crate::exchange::Observer;
use crate::failure::Dialect;
use crate::guard::guarded;
use crate::metrics::Metrics;
use crate::worker::Worker;
use crate::{Facts, chat, completion, messages, native, page, responses};

/// What an operator sets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys that clients must give one of; none = everybody may.
    pub api_keys: Vec<String>,
    /// Largest body, in bytes.
    pub max_body: usize,
    /// Whether `/metrics` answers.
    pub metrics: bool,
    /// Whether `/slots` answers.
    pub slots: bool,
    /// How long a client may take to send a body.
    pub read_timeout: Duration,
    /// How long a client may take no byte of its answer.
    pub write_timeout: Duration,
    /// How long a connection may take to bring the head of a request, the time before its first byte included.
    pub idle_timeout: Duration,
    /// Connections that may be open; more are answered 503.
    pub max_connections: usize,
    /// Whether every request is a line of the log.
    pub log_requests: bool,
    /// Hears of every request when it is over.
    pub observer: Option<Observer>,
    /// Whether the header `x-fault` makes requests fail, for tests.
    pub faults: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            api_keys: Vec::new(),
            max_body: 8 << 20,
            metrics: true,
            slots: true,
            read_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(30),
            max_connections: 512,
            log_requests: true,
            observer: None,
            faults: false,
        }
    }
}

/// What every route sees.
pub struct App {
    /// The engine.
    pub worker: Worker<Facts>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What the operator set.
    pub options: Options,
}

/// Shared by all routes.
pub type Shared = Arc<App>;

impl App {
    /// What is known of the model.
    ///
    /// # Errors
    /// 503 while it is being loaded, and after it ended.
    pub fn facts(&self) -> Result<Arc<Facts>, ApiError> {
        use crate::worker::State;
        match (self.worker.facts(), self.worker.status().state) {
            (Some(facts), State::Ready) => Ok(facts),
            (_, State::Dead(why)) => {
                Err(ApiError::new(ErrorKind::Unavailable, format!("the engine has stopped: {why}")))
            }
            _ => Err(ApiError::new(ErrorKind::Unavailable, "the model is being loaded; try again in a moment")),
        }
    }
}

/// All routes over an engine.
pub fn router(app: Shared) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::route))
        .route("/chat/completions", post(chat::route))
        .route("/v1/completions", post(completion::route))
        .route("/v1/responses", post(responses::route))
        .route("/v1/messages", post(messages::route))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/models", get(native::models))
        .route("/v1/models/{*id}", get(native::model))
        .route("/tokenize", post(native::tokenize))
        .route("/detokenize", post(native::detokenize))
        .route("/apply-template", post(native::apply_template))
        .route("/props", get(native::props))
        .route("/slots", get(native::slots))
        .route("/metrics", get(native::metrics))
        .route("/v1/internal/mtp-policy", get(native::mtp_policy))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), authorised));
    // Whoever watches over the process has no key, and the page asks for one.
    let open = Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .route("/health", get(native::health))
        .route("/v1/health", get(native::health));
    let routes = api.merge(open).fallback(nowhere).method_not_allowed_fallback(wrong_method);
    // Outermost: a request that is refused, or that no route takes, is a request.
    routes.layer(middleware::from_fn_with_state(Arc::clone(&app), guarded)).with_state(app)
}

async fn nowhere(uri: Uri) -> Response {
    let message = format!("no such path: {}; docs/server.md lists what there is", uri.path());
    dialect(uri.path()).response(&ApiError::new(ErrorKind::NotFound, message))
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let message = format!("{} takes another method, found {method}", uri.path());
    dialect(uri.path()).response(&ApiError::new(ErrorKind::MethodNotAllowed, message))
}

/// Whose errors a path writes.
pub fn dialect(path: &str) -> Dialect {
    if path.starts_with("/v1/messages") { Dialect::Anthropic } else { Dialect::OpenAi }
}

/// Lets a request pass that has a key, where keys are asked for.
async fn authorised(State(app): State<Shared>, request: Request, next: Next) -> Response {
    match check_key(&app.options.api_keys, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => dialect(request.uri().path()).response(&error),
    }
}

fn check_key(keys: &[String], headers: &HeaderMap) -> Result<(), ApiError> {
    if keys.is_empty() {
        return Ok(());
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let given = bearer.or_else(|| header("x-api-key")).map(str::trim);
    // Every key is compared, and each in a time that does not tell how much of it was right.
    let known = given.is_some_and(|given| {
        keys.iter().fold(0u8, |known, key| known | key.as_bytes().ct_eq(given.as_bytes()).unwrap_u8()) == 1
    });
    let message = match (known, given) {
        (true, _) => return Ok(()),
        (false, Some(_)) => "the API key is not one of this server's",
        (false, None) => "an API key expected: Authorization: Bearer KEY, or x-api-key: KEY",
    };
    Err(ApiError::new(ErrorKind::Authentication, message))
}

/// A request's body, whole.
///
/// # Errors
/// 413 for one that is too large, 408 for one that does not come, 400 for one that breaks off.
pub async fn body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let most = app.options.max_body;
    match tokio::time::timeout(app.options.read_timeout, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_large(&error) => {
            let message = format!("request body: at most {most} bytes expected, found more");
            Err(ApiError::new(ErrorKind::TooLarge, message))
        }
        Ok(Err(error)) => Err(ApiError::parameter("", format_args!("it broke off: {error}"))),
        Err(_) => {
            let seconds = app.options.read_timeout.as_secs();
            Err(ApiError::new(ErrorKind::Timeout, format!("request body: it did not come within {seconds} s")))
        }
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source())
        .any(|e| e.to_string().contains("length limit exceeded"))
}

/// A 200 with a JSON body.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => {
            let mut response = (StatusCode::OK, text).into_response();
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => Dialect::OpenAi.response(&ApiError::new(ErrorKind::Internal, error.to_string())),
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A name for an answer, which no other has: a prefix and 24 letters.
pub fn identifier(prefix: &str) -> String {
    use std::hash::{BuildHasher, Hasher};
    let word = || std::hash::RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", word(), word() as u32)
}
