//! Spans and histograms for an OpenTelemetry collector, by OTLP over HTTP, named by the conventions for generative AI.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::metrics::{Histogram, Meter, MeterProvider as _};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue, StringValue, Value};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use crate::exchange::{Exchange, Observer};

/// Who provides the answers, in the conventions' words.
const PROVIDER: &str = "mlxcel";
/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The conventions' bounds of durations, in seconds.
const DURATION: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Of times to the first token.
const FIRST_TOKEN: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Of times between tokens.
const PER_TOKEN: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// Not where a collector could be.
    #[error("http://HOST:PORT expected, found {0:?}")]
    Endpoint(String),
    /// The exporter refuses its settings, which may come from OTEL_ variables.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// Exports every exchange.
pub struct Telemetry {
    tracer: SdkTracer,
    traces: SdkTracerProvider,
    meters: SdkMeterProvider,
    duration: Histogram<f64>,
    first_token: Histogram<f64>,
    per_token: Histogram<f64>,
    tokens: Histogram<u64>,
}

impl Telemetry {
    /// To the collector at `endpoint`, such as `http://127.0.0.1:4318`. OTEL_ variables say the rest: headers, intervals, the
    /// service's name and attributes.
    ///
    /// # Errors
    /// [`OtlpError`]. A collector that does not answer is no error: the log says so.
    pub fn start(endpoint: &str) -> Result<Arc<Telemetry>, OtlpError> {
        let base = endpoint.trim_end_matches('/');
        let host = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://"));
        if host.is_none_or(str::is_empty) {
            return Err(OtlpError::Endpoint(endpoint.into()));
        }
        let client = Client::new();
        let spans = SpanExporter::builder().with_http().with_http_client(client.clone());
        let spans = spans.with_protocol(Protocol::HttpBinary).with_endpoint(format!("{base}/v1/traces")).build()?;
        let metrics = MetricExporter::builder().with_http().with_http_client(client);
        let metrics =
            metrics.with_protocol(Protocol::HttpBinary).with_endpoint(format!("{base}/v1/metrics")).build()?;
        let mut resource =
            Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os("OTEL_SERVICE_NAME").is_none_or(|name| name.is_empty()) {
            resource = resource.with_service_name("mlxcel");
        }
        let resource = resource.build();
        let traces = SdkTracerProvider::builder().with_resource(resource.clone()).with_batch_exporter(spans).build();
        let meters = SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(metrics).build();
        let meter = meters.meter("mlxcel");
        let seconds = |name, bounds: &[f64], what| seconds(&meter, name, bounds, what);
        Ok(Arc::new(Telemetry {
            duration: seconds("gen_ai.server.request.duration", &DURATION, "From a request to the end of its answer"),
            first_token: seconds(
                "gen_ai.server.time_to_first_token",
                &FIRST_TOKEN,
                "From a request to its first token",
            ),
            per_token: seconds("gen_ai.server.time_per_output_token", &PER_TOKEN, "Between tokens after the first"),
            tokens: meter
                .u64_histogram("gen_ai.client.token.usage")
                .with_unit("{token}")
                .with_description("Tokens of prompts and answers")
                .with_boundaries((0..14).map(|power| f64::from(1u32 << (2 * power))).collect())
                .build(),
            tracer: traces.tracer("mlxcel"),
            traces,
            meters,
        }))
    }

    /// Hears of exchanges and exports them.
    pub fn observer(self: &Arc<Self>) -> Observer {
        let own = Arc::clone(self);
        Observer::new(move |exchange| own.observe(exchange))
    }

    /// Sends what is left, and ends the export.
    pub fn stop(&self) {
        // What could not be sent, the client has said.
        let _ = (self.traces.shutdown(), self.meters.shutdown());
    }

    fn observe(&self, exchange: &Exchange) {
        let Some(operation) = exchange.operation() else { return };
        let common = common(exchange, operation);
        self.duration.record(exchange.duration.as_secs_f64(), &common);
        if let Some(first) = exchange.first_token {
            self.first_token.record(first.as_secs_f64(), &common);
        }
        if let Some(per) = exchange.per_token {
            self.per_token.record(per.as_secs_f64(), &common);
        }
        if exchange.completion_tokens > 0 {
            for (kind, tokens) in [("input", exchange.prompt_tokens), ("output", exchange.completion_tokens)] {
                let mut attributes = common.clone();
                attributes.push(KeyValue::new("gen_ai.token.type", kind));
                self.tokens.record(tokens, &attributes);
            }
        }
        self.span(exchange, operation, common);
    }

    fn span(&self, exchange: &Exchange, operation: &str, mut attributes: Vec<KeyValue>) {
        let model = exchange.asked.as_ref().or(exchange.model.as_ref());
        let name = model.map_or_else(|| operation.to_string(), |model| format!("{operation} {model}"));
        attributes.extend(particulars(exchange));
        let parent = exchange.parent.as_ref().map_or_else(Context::new, |parent| {
            let carrier = HashMap::from([("traceparent".to_string(), parent.clone())]);
            TraceContextPropagator::new().extract(&carrier)
        });
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        let mut span = span.with_start_time(exchange.at).start_with_context(&self.tracer, &parent);
        if exchange.status >= 500 {
            span.set_status(Status::error(format!("status {}", exchange.status)));
        }
        span.end_with_timestamp(exchange.at + exchange.duration);
    }
}

fn seconds(meter: &Meter, name: &'static str, bounds: &[f64], what: &'static str) -> Histogram<f64> {
    meter.f64_histogram(name).with_unit("s").with_description(what).with_boundaries(bounds.to_vec()).build()
}

/// What spans and histograms have in common; few values each, since each combination is counted on its own.
fn common(exchange: &Exchange, operation: &'static str) -> Vec<KeyValue> {
    let mut out = vec![
        KeyValue::new("gen_ai.operation.name", operation),
        KeyValue::new("gen_ai.provider.name", PROVIDER),
        // The older name of the same, which dashboards still ask for.
        KeyValue::new("gen_ai.system", PROVIDER),
    ];
    let mut text = |key: &'static str, value: &Option<String>| {
        out.extend(value.as_ref().map(|value| KeyValue::new(key, value.clone())));
    };
    text("gen_ai.request.model", &exchange.asked);
    text("gen_ai.response.model", &exchange.model);
    if exchange.status >= 400 {
        out.push(KeyValue::new("error.type", exchange.status.to_string()));
    } else if exchange.finish.contains(&"cancelled") {
        out.push(KeyValue::new("error.type", "cancelled"));
    }
    out
}

/// What spans alone have.
fn particulars(exchange: &Exchange) -> Vec<KeyValue> {
    let number = |key: &'static str, value: u64| KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX));
    let mut out = vec![
        KeyValue::new("http.request.method", exchange.method.clone()),
        number("http.response.status_code", exchange.status.into()),
        KeyValue::new("mlxcel.request.id", exchange.id.clone()),
    ];
    out.extend(exchange.route.as_ref().map(|route| KeyValue::new("http.route", route.clone())));
    if exchange.finish.is_empty() {
        return out;
    }
    let reasons: Vec<StringValue> = exchange.finish.iter().map(|reason| StringValue::from(*reason)).collect();
    out.extend([
        KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons.into())),
        number("gen_ai.usage.input_tokens", exchange.prompt_tokens),
        number("gen_ai.usage.output_tokens", exchange.completion_tokens),
        number("gen_ai.usage.cache_read.input_tokens", exchange.cached_tokens),
        KeyValue::new("mlxcel.stream", exchange.streamed),
        number("mlxcel.draft.tokens", exchange.drafted),
        number("mlxcel.draft.accepted_tokens", exchange.accepted),
    ]);
    let time = |key: &'static str, time: Duration| KeyValue::new(key, time.as_secs_f64());
    out.extend(exchange.first_token.map(|first| time("mlxcel.time_to_first_token", first)));
    out.extend(exchange.per_token.map(|per| time("mlxcel.time_per_output_token", per)));
    out
}

/// Posts to the collector from the exporters' own threads.
#[derive(Clone)]
struct Client {
    agent: ureq::Agent,
    /// Whether the last post failed, so that a collector that is down is one line of the log.
    failing: Arc<AtomicBool>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    fn new() -> Client {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build();
        Client { agent: config.new_agent(), failing: Arc::default() }
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let mut answer = self.agent.run(Request::from_parts(head, body.to_vec()))?;
        let bytes = answer.body_mut().read_to_vec()?;
        let mut response = Response::new(Bytes::from(bytes));
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        Ok(response)
    }

    fn note(&self, result: &Result<Response<Bytes>, HttpError>) {
        let why = match result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        let failed_before = self.failing.swap(why.is_some(), Ordering::Relaxed);
        match (why, failed_before) {
            (Some(why), false) => tracing::warn!("--otlp-endpoint: the collector cannot be reached: {why}"),
            (None, true) => tracing::info!("--otlp-endpoint: the collector is there again"),
            _ => {}
        }
    }
}

impl HttpClient for Client {
    fn send_bytes<'life, 'future>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'life: 'future,
        Self: 'future,
    {
        Box::pin(async move {
            let result = self.post(request);
            self.note(&result);
            result
        })
    }
}
