//! What operators watch, in Prometheus' text format. Speculation counters have vLLM's names behind this program's prefix.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mlxcel_engine::{Engine, Event};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::worker::Status;

/// Bounds of times to the first token, in seconds.
const FIRST_TOKEN: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bounds of times between tokens, in seconds.
const PER_TOKEN: [f64; 14] = [0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Position {
    position: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

type Count = Counter<u64, AtomicU64>;
type Level = Gauge<i64, AtomicI64>;

/// All counters, gauges and histograms of a server.
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Reason, Count>,
    refused: Count,
    prompt_tokens: Count,
    cached_tokens: Count,
    generated_tokens: Count,
    drafts: Count,
    draft_tokens: Count,
    accepted_tokens: Count,
    accepted_by_position: Family<Position, Count>,
    first_token: Histogram,
    per_token: Histogram,
    steps: Count,
    non_finite: Count,
    running: Level,
    waiting: Level,
    pages: Level,
    pages_in_use: Level,
    cached_bytes: Level,
    evictions: Level,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("mlxcel");
        let count = |registry: &mut Registry, name: &str, help: &str| {
            let counter = Count::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let level = |registry: &mut Registry, name: &str, help: &str| {
            let gauge = Level::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let r = &mut registry;
        let requests = Family::default();
        r.register("requests", "Requests that ended, by finish reason", requests.clone());
        let accepted_by_position = Family::default();
        let per_position = "Drafted tokens accepted, by their position in the draft";
        r.register("spec_decode_num_accepted_tokens_per_pos", per_position, accepted_by_position.clone());
        let first_token = Histogram::new(FIRST_TOKEN);
        r.register("time_to_first_token_seconds", "From a request's arrival to its first token", first_token.clone());
        let per_token = Histogram::new(PER_TOKEN);
        r.register("time_per_output_token_seconds", "Between tokens, mean of a request", per_token.clone());
        Metrics {
            refused: count(r, "requests_refused", "Requests that were not taken: over-full queue, bad parameters"),
            prompt_tokens: count(r, "prompt_tokens", "Prompt tokens of requests that ended"),
            cached_tokens: count(r, "prefix_cache_hit_tokens", "Of those, taken from the prefix cache"),
            generated_tokens: count(r, "generation_tokens", "Tokens generated"),
            drafts: count(r, "spec_decode_num_drafts", "Rounds with a draft"),
            draft_tokens: count(r, "spec_decode_num_draft_tokens", "Tokens drafted"),
            accepted_tokens: count(r, "spec_decode_num_accepted_tokens", "Drafted tokens accepted"),
            steps: count(r, "engine_steps", "Forward passes of the target"),
            non_finite: count(r, "non_finite_logits", "Requests ended because logits were not finite"),
            running: level(r, "num_requests_running", "Requests in slots"),
            waiting: level(r, "num_requests_waiting", "Requests waiting for a slot"),
            cached_bytes: level(r, "prefix_cache_bytes", "Bytes of KV pages that only the prefix cache keeps"),
            evictions: level(r, "prefix_cache_evictions", "Pages that the prefix cache gave up, since the start"),
            pages: level(r, "kv_pages_used", "KV pages in use, those of the prefix cache included"),
            pages_in_use: level(r, "kv_pages_in_use", "KV pages of the requests in slots"),
            requests,
            accepted_by_position,
            first_token,
            per_token,
            registry: Mutex::new(registry),
        }
    }

    /// Notes what the engine's last step did, and what ended in it.
    pub fn step(&self, engine: &Engine, events: &[Event]) {
        let step = engine.last_step();
        self.steps.inc_by(u64::from(step.rows > 0));
        let cache = engine.cache_stats();
        self.cached_bytes.set(cache.bytes as i64);
        self.evictions.set(cache.evictions as i64);
        for round in step.rounds.iter().filter(|round| !round.proposed.is_empty()) {
            self.drafts.inc();
            self.draft_tokens.inc_by(round.proposed.len() as u64);
            self.accepted_tokens.inc_by(round.accepted as u64);
            for position in 0..round.accepted {
                self.accepted_by_position.get_or_create(&Position { position: position as u32 }).inc();
            }
        }
        for event in events {
            match event {
                Event::Token(_) => drop(self.generated_tokens.inc()),
                Event::Finished(end) => {
                    self.requests.get_or_create(&Reason { reason: end.reason.name() }).inc();
                    self.prompt_tokens.inc_by(end.prompt_tokens as u64);
                    self.cached_tokens.inc_by(end.cached_tokens as u64);
                    if let Some(why) = end.reason.failure() {
                        self.non_finite.inc_by(u64::from(why.contains("not finite")));
                    }
                    if end.completion_tokens > 1 {
                        self.per_token.observe(end.timings.decode / (end.completion_tokens - 1) as f64);
                    }
                }
            }
        }
    }

    /// Notes how long a request waited for its first token.
    pub fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// Notes a request that was not taken.
    pub fn refused(&self) {
        self.refused.inc();
    }

    /// Notes how full the engine is.
    pub fn now(&self, status: &Status) {
        self.running.set(status.running.len() as i64);
        self.waiting.set(status.waiting as i64);
        self.pages.set(status.pages as i64);
        self.pages_in_use.set(status.pages_in_use as i64);
    }

    /// All of it as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string cannot fail.
        let _ = encode(&mut out, &registry);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_name() {
        let metrics = Metrics::new();
        metrics.refused();
        metrics.first_token(Duration::from_millis(3));
        metrics.accepted_by_position.get_or_create(&Position { position: 2 }).inc();
        let text = metrics.text();
        for line in [
            "mlxcel_requests_refused_total 1",
            "mlxcel_spec_decode_num_drafts_total 0",
            "mlxcel_spec_decode_num_draft_tokens_total 0",
            "mlxcel_spec_decode_num_accepted_tokens_total 0",
            "mlxcel_spec_decode_num_accepted_tokens_per_pos_total{position=\"2\"} 1",
            "mlxcel_time_to_first_token_seconds_count 1",
            "mlxcel_num_requests_running 0",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} not in {text}");
        }
    }
}
