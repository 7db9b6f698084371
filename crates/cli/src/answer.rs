//! Driving the engine for one answer: streaming, progress, interruption, the summary line.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_engine::{Engine, Event, Finished, Request, RequestError, TokenEvent};

use crate::draft::Drafting;
use crate::interrupt;

/// A whole answer.
pub struct Answer {
    /// Its text, stop strings cut off.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<TokenEvent>,
    /// How it ended.
    pub end: Finished,
    /// The reader of the stream went away.
    pub broken_pipe: bool,
}

/// Runs one request to its end, writing text to `out` as it comes. Ctrl-C ends the answer.
///
/// # Errors
/// What the engine refuses before it starts.
pub fn stream(engine: &mut Engine, request: Request, out: &mut dyn Write, quiet: bool) -> Result<Answer, RequestError> {
    interrupt::listen();
    // A Ctrl-C that came too late for the last answer is not meant for this one.
    let _ = interrupt::taken();
    let id = engine.submit(request)?;
    let bar = prefill_bar(quiet);
    let mut answer = Answer {
        text: String::new(),
        tokens: Vec::new(),
        end: Finished {
            id,
            reason: mlxcel_engine::FinishReason::Cancelled,
            text: String::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            timings: mlxcel_engine::Timings::default(),
            rounds: mlxcel_engine::Rounds::default(),
            block_size: 1,
        },
        broken_pipe: false,
    };
    loop {
        let stop = interrupt::taken() || answer.broken_pipe;
        let cancelled = if stop { engine.cancel(id) } else { None };
        let events = match cancelled {
            Some(event) => vec![event],
            None => engine.step(),
        };
        if let (Some(bar), Some((done, total))) = (&bar, engine.progress(id)) {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        for event in events {
            let text = match event {
                Event::Token(token) => {
                    if let Some(bar) = &bar {
                        bar.finish_and_clear();
                    }
                    let text = token.text.clone();
                    answer.tokens.push(token);
                    text
                }
                Event::Finished(end) => {
                    answer.end = end;
                    answer.end.text.clone()
                }
            };
            answer.text.push_str(&text);
            if !text.is_empty() && (out.write_all(text.as_bytes()).is_err() || out.flush().is_err()) {
                answer.broken_pipe = true;
            }
        }
        for warning in engine.take_warnings() {
            if !quiet {
                eprintln!("WARN: {warning}");
            }
        }
        if engine.is_idle() {
            return Ok(answer);
        }
    }
}

/// A bar for prompts that take over a second, on a terminal only.
fn prefill_bar(quiet: bool) -> Option<ProgressBar> {
    if quiet || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    Some(bar)
}

/// How much faster the answer came than plain steps of this run would have given it; `None` without a round.
pub fn speedup(engine: &Engine, end: &Finished) -> Option<f64> {
    let plain = engine.speculator()?.plain_step()?;
    (end.rounds.rounds > 0).then(|| end.decode_rate().map(|rate| rate * plain))?
}

/// `prefill 20 tokens 1650 tok/s | decode 64 tokens 310.2 tok/s | 18 rounds, acceptance_rate 0.839, mean_accepted_len 2.49,
/// tokens_per_round 3.49, speedup 1.41 | seed 7 | stop`.
pub fn summary(engine: &Engine, end: &Finished, seed: Option<u64>, drafting: &Drafting) -> String {
    let mut parts = Vec::new();
    let cached = match end.cached_tokens {
        0 => String::new(),
        n => format!(" + {n} cached"),
    };
    let fresh = end.prompt_tokens - end.cached_tokens;
    let rate = if end.timings.prefill > 0.0 { format!(" {:.0} tok/s", end.prefill_rate()) } else { String::new() };
    parts.push(format!("prefill {fresh}{cached} tokens{rate}"));
    let rate = end.decode_rate().map_or(String::new(), |r| format!(" {r:.1} tok/s"));
    parts.push(format!("decode {} tokens{rate}", end.completion_tokens));
    let rounds = end.rounds;
    if let (Some(rate), Some(len), Some(tokens)) =
        (rounds.acceptance_rate(), rounds.mean_accepted_len(), rounds.tokens_per_round())
    {
        let speedup = speedup(engine, end).map_or(String::new(), |s| format!(", speedup {s:.2}"));
        parts.push(format!(
            "{} rounds, acceptance_rate {rate:.3}, mean_accepted_len {len:.2}, tokens_per_round {tokens:.2}{speedup}",
            rounds.rounds
        ));
    }
    parts.extend(drafting.is_inexact().then(|| "INEXACT".into()));
    parts.extend(seed.map(|s| format!("seed {s}")));
    parts.push(end.reason.name().into());
    parts.join(" | ")
}
