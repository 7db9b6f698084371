//! Spans and histograms as a collector gets them.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{Method, header};
use common::{Server, Setup};
use mlxcel_server::Options;
use mlxcel_server::otel::{OtlpError, Telemetry};
use serde_json::json;

/// What was posted: paths, content types and bodies.
type Posts = Arc<Mutex<Vec<(String, String, Bytes)>>>;

/// A collector that keeps what it gets.
struct Collector {
    address: SocketAddr,
    posts: Posts,
    _runtime: tokio::runtime::Runtime,
}

async fn keep(State(posts): State<Posts>, request: Request) -> &'static str {
    assert_eq!(request.method(), Method::POST);
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("").to_string();
    let path = request.uri().path().to_string();
    let body = axum::body::to_bytes(request.into_body(), 8 << 20).await.expect("a body");
    posts.lock().expect("lock").push((path, kind, body));
    ""
}

impl Collector {
    fn start() -> Collector {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let posts = Posts::default();
        let routes = Router::new().fallback(keep).with_state(Arc::clone(&posts));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Collector { address, posts, _runtime: runtime }
    }

    /// Whether something posted to `path` holds `bytes`. Text stands in protobuf as it is.
    fn has(&self, path: &str, bytes: &[u8]) -> bool {
        let posts = self.posts.lock().expect("lock");
        posts.iter().any(|(to, _, body)| to == path && body.windows(bytes.len()).any(|window| window == bytes))
    }
}

const SPAN: [&str; 16] = [
    "chat gemma-4-tiny-it-4bit",
    "text_completion gemma-4-tiny-it-4bit",
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.system",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.response.finish_reasons",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "mlxcel.draft.accepted_tokens",
    "mlxcel.time_to_first_token",
    "http.response.status_code",
    "/v1/chat/completions",
    "service.name",
    "error.type",
];
const HISTOGRAMS: [&str; 6] = [
    "gen_ai.server.request.duration",
    "gen_ai.server.time_to_first_token",
    "gen_ai.server.time_per_output_token",
    "gen_ai.client.token.usage",
    "gen_ai.token.type",
    "{token}",
];

#[test]
fn a_collector_gets_spans_and_histograms() {
    let collector = Collector::start();
    let telemetry = Telemetry::start(&format!("http://{}/", collector.address)).expect("started");
    let options = Options { observer: Some(telemetry.observer()), ..Options::default() };
    let mut server = Server::start(Setup { options, ..Setup::default() });
    let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 6, "stream": true, "model": "alias" });
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    assert_eq!(server.call("POST", "/v1/chat/completions", &parent, body.to_string().as_bytes()).0, 200);
    assert_eq!(server.post("/v1/chat/completions", &json!({ "messages": body["messages"], "max_tokens": 3 })).0, 200);
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 3 })).0, 200);
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "Hi", "temperature": -3 })).0, 400);
    server.stop();
    telemetry.stop();
    for name in SPAN {
        assert!(collector.has("/v1/traces", name.as_bytes()), "{name} is in no span");
    }
    for name in HISTOGRAMS {
        assert!(collector.has("/v1/metrics", name.as_bytes()), "{name} is in no histogram");
    }
    assert!(collector.has("/v1/traces", b"chat alias"));
    let id: Vec<u8> = (0..16).map(|i| u8::from_str_radix(&trace[2 * i..2 * i + 2], 16).expect("hex")).collect();
    assert!(collector.has("/v1/traces", &id), "the client's trace is not gone on with");
    // The twin: what was not sent is not found, and requests that generate nothing are no spans.
    assert!(!collector.has("/v1/traces", b"gen_ai.no.such.name") && !collector.has("/v1/traces", b"/health"));
    let posts = collector.posts.lock().expect("lock");
    assert!(posts.iter().all(|(_, kind, _)| kind == "application/x-protobuf"), "{:?}", posts[0].1);
}

#[test]
fn a_collector_that_is_not_there_harms_nobody() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let telemetry = Telemetry::start(&format!("http://{nobody}")).expect("started");
    let options = Options { observer: Some(telemetry.observer()), ..Options::default() };
    let server = Server::start(Setup { options, ..Setup::default() });
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 3 })).0, 200);
    drop(server);
    let begun = Instant::now();
    telemetry.stop();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    for bad in ["", "localhost:4318", "http://", "grpc://localhost:4317"] {
        let error = Telemetry::start(bad).err();
        assert!(matches!(error, Some(OtlpError::Endpoint(_))), "{bad}: {error:?}");
    }
}
