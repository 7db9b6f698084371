//! What is known of one request and its answer, from its head to the last byte: one span, one line of the log, one observation.
//!
//! Whoever works on a request finds its [`Record`] by [`current`]; the exchange is over when the last of them lets go of it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::MatchedPath;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use tracing::{Span, field};

use crate::app::{Options, identifier};
use crate::generate::End;
use crate::serve::Peer;

/// The status that is noted where the client left before there was one.
const LEFT: u16 = 499;

/// Longest request id that is taken over from a client.
const ID: usize = 128;

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its name: the client's `x-request-id`, or one that no other has.
    pub id: String,
    /// Method.
    pub method: String,
    /// The route's pattern; `None` where no route matched.
    pub route: Option<String>,
    /// Path as it was asked for.
    pub path: String,
    /// Whose connection it came by.
    pub peer: Option<SocketAddr>,
    /// `traceparent`, of clients that trace.
    pub parent: Option<String>,
    /// When it came.
    pub at: SystemTime,
    /// Status; 499 where the client left before there was one.
    pub status: u16,
    /// How long it took, to the end of the answer's body.
    pub duration: Duration,
    /// The model by the name it was asked for.
    pub asked: Option<String>,
    /// The model that is served.
    pub model: Option<String>,
    /// Whether the answer was a stream.
    pub streamed: bool,
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Of those, from the cache.
    pub cached_tokens: u64,
    /// Tokens generated, by answers that came to their end.
    pub completion_tokens: u64,
    /// Why each answer ended; `cancelled` where the client left.
    pub finish: Vec<&'static str>,
    /// From the request's head to its first token.
    pub first_token: Option<Duration>,
    /// Between tokens, mean of the slowest answer.
    pub per_token: Option<Duration>,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of those, accepted.
    pub accepted: u64,
}

impl Exchange {
    /// The operation in the words of OpenTelemetry's conventions; `None` where nothing is generated.
    pub fn operation(&self) -> Option<&'static str> {
        match self.route.as_deref()? {
            "/v1/completions" => Some("text_completion"),
            "/v1/chat/completions" | "/chat/completions" | "/v1/messages" | "/v1/responses" => Some("chat"),
            _ => None,
        }
    }

    /// Whether it is one of those that programs ask again and again, which nobody wants to read of.
    fn is_polled(&self) -> bool {
        let polled = ["/health", "/v1/health", "/metrics", "/slots", "/props", "/v1/models", "/page/{name}"];
        self.route.as_deref().is_some_and(|route| polled.contains(&route))
    }
}

/// Hears of every exchange when it is over.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(&Exchange) + Send + Sync>);

impl Observer {
    /// Calls `hear`, which should not take long.
    pub fn new(hear: impl Fn(&Exchange) + Send + Sync + 'static) -> Self {
        Observer(Arc::new(hear))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// What goes wrong on purpose, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The route panics.
    Route,
    /// The task that writes the stream panics after two events.
    Stream,
}

/// An exchange in progress.
pub struct Record {
    exchange: Mutex<Exchange>,
    begun: Instant,
    span: Span,
    observer: Option<Observer>,
    /// Whether its end is logged at INFO.
    logged: bool,
    /// What is to go wrong.
    pub fault: Option<Fault>,
}

tokio::task_local! {
    static CURRENT: Arc<Record>;
}

/// The record of the request that this task works on.
pub fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Works on a request.
pub async fn within<F: Future>(record: Arc<Record>, work: F) -> F::Output {
    use futures_util::FutureExt as _;
    let span = record.span.clone();
    let mut work = Box::pin(CURRENT.scope(record, work));
    // Log lines of the work stand in its span.
    std::future::poll_fn(|context| span.in_scope(|| work.poll_unpin(context))).await
}

impl Record {
    /// Of a request whose head has come.
    pub fn begin<B>(request: &Request<B>, options: &Options) -> Arc<Record> {
        let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_string());
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_string);
        let exchange = Exchange {
            id: id(request.headers()),
            method: request.method().to_string(),
            path: request.uri().path().chars().take(200).collect(),
            route,
            peer: request.extensions().get::<Peer>().map(|peer| peer.0),
            parent: header("traceparent"),
            at: SystemTime::now(),
            status: LEFT,
            duration: Duration::ZERO,
            asked: None,
            model: None,
            streamed: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            finish: Vec::new(),
            first_token: None,
            per_token: None,
            drafted: 0,
            accepted: 0,
        };
        let span = tracing::info_span!(
            "request",
            id = exchange.id,
            method = exchange.method,
            path = exchange.path,
            route = exchange.route,
            peer = exchange.peer.map(field::display),
            status = field::Empty,
            ms = field::Empty,
            model = field::Empty,
            stream = field::Empty,
            prompt_tokens = field::Empty,
            cached_tokens = field::Empty,
            completion_tokens = field::Empty,
            finish = field::Empty,
            ttft_ms = field::Empty,
            tpot_ms = field::Empty,
            drafted = field::Empty,
            accepted = field::Empty,
        );
        let fault = match request.headers().get("x-fault").map(HeaderValue::as_bytes) {
            Some(b"route") if options.faults => Some(Fault::Route),
            Some(b"stream") if options.faults => Some(Fault::Stream),
            _ => None,
        };
        let logged = options.log_requests && !exchange.is_polled();
        let (begun, observer) = (Instant::now(), options.observer.clone());
        Arc::new(Record { exchange: Mutex::new(exchange), begun, span, observer, logged, fault })
    }

    fn note(&self, note: impl FnOnce(&mut Exchange)) {
        note(&mut self.exchange.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The name of the exchange.
    pub fn id(&self) -> String {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).id.clone()
    }

    /// Notes the answer's head.
    pub fn answered(&self, status: StatusCode) {
        self.note(|exchange| exchange.status = status.as_u16());
    }

    /// Notes that the answer is a stream.
    pub fn streamed(&self) {
        self.note(|exchange| exchange.streamed = true);
    }

    /// Notes which model was asked for, and which answers.
    pub fn model(&self, asked: Option<&str>, served: &str) {
        self.note(|exchange| {
            exchange.asked = asked.map(str::to_string);
            exchange.model = Some(served.to_string());
        });
    }

    /// Notes that a token came.
    pub fn token(&self) {
        let after = self.begun.elapsed();
        self.note(|exchange| exchange.first_token = exchange.first_token.or(Some(after)));
    }

    /// Notes that an answer came to its end, `reason`.
    pub fn ended(&self, end: &End, reason: &'static str) {
        let gaps = end.completion_tokens.saturating_sub(1);
        self.note(|exchange| {
            exchange.prompt_tokens += end.prompt_tokens;
            exchange.cached_tokens += end.cached_tokens;
            exchange.completion_tokens += end.completion_tokens;
            exchange.drafted += end.rounds.proposed;
            exchange.accepted += end.rounds.accepted;
            exchange.finish.push(reason);
            if gaps > 0 {
                let own = Duration::from_secs_f64((end.seconds.1 / gaps as f64).max(0.0));
                exchange.per_token = exchange.per_token.max(Some(own));
            }
        });
    }

    /// Notes that an answer did not come to its end.
    pub fn broken(&self, reason: &'static str) {
        self.note(|exchange| exchange.finish.push(reason));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        exchange.duration = self.begun.elapsed();
        // The client may leave before anyone waits for the answer that was asked for: it is cancelled all the same.
        if exchange.status == LEFT && exchange.model.is_some() && exchange.finish.is_empty() {
            exchange.finish.push("cancelled");
        }
        record(&self.span, &exchange);
        if self.logged {
            tracing::info!(parent: &self.span, "done");
        } else {
            tracing::debug!(parent: &self.span, "done");
        }
        if let Some(Observer(hear)) = &self.observer {
            hear(&exchange);
        }
    }
}

/// Fills the fields of the span; those that say nothing stay empty.
fn record(span: &Span, exchange: &Exchange) {
    let millis = |duration: Duration| (duration.as_secs_f64() * 1e5).round() / 1e2;
    span.record("status", exchange.status);
    span.record("ms", millis(exchange.duration));
    if let Some(model) = &exchange.model {
        span.record("model", model.as_str());
    }
    if exchange.finish.is_empty() {
        return;
    }
    span.record("stream", exchange.streamed);
    span.record("prompt_tokens", exchange.prompt_tokens);
    span.record("cached_tokens", exchange.cached_tokens);
    span.record("completion_tokens", exchange.completion_tokens);
    span.record("finish", exchange.finish.join(","));
    if let Some(first) = exchange.first_token {
        span.record("ttft_ms", millis(first));
    }
    if let Some(per) = exchange.per_token {
        span.record("tpot_ms", millis(per));
    }
    span.record("drafted", exchange.drafted);
    span.record("accepted", exchange.accepted);
}

/// The client's name of a request if it can stand in a header and in a line of the log, else a new one.
fn id(headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let sane =
        |id: &&str| (1..=ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    given.filter(sane).map_or_else(|| identifier("req_"), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_request_ids_are_taken_over() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", HeaderValue::from_bytes(value).expect("a value"));
            id(&headers)
        };
        assert_eq!(of(b"7f3a-client.42"), "7f3a-client.42");
        for bad in [&b""[..], b"two words", b"tab\there", b"quo\"te", "umlaut-\u{fc}".as_bytes(), &[b'x'; 129]] {
            assert!(of(bad).starts_with("req_"), "{bad:?}");
        }
        assert_ne!(id(&HeaderMap::new()), id(&HeaderMap::new()));
    }

    #[test]
    fn a_client_that_leaves_before_anyone_waits_is_cancelled() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&heard);
        let hear =
            move |exchange: &Exchange| to.lock().expect("no panic").push((exchange.status, exchange.finish.clone()));
        let options = Options { observer: Some(Observer(Arc::new(hear))), ..Options::default() };
        for (model, status) in [(Some("served"), None), (None, None), (Some("served"), Some(StatusCode::BAD_REQUEST))] {
            let record = Record::begin(&Request::new(()), &options);
            if let Some(model) = model {
                record.model(None, model);
            }
            if let Some(status) = status {
                record.answered(status);
            }
        }
        let expected = [(LEFT, vec!["cancelled"]), (LEFT, Vec::new()), (400, Vec::new())];
        assert_eq!(*heard.lock().expect("no panic"), expected);
    }
}
