//! `mlxcel perplexity`: how well a model predicts a text, and what int8 activations cost.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_engine::perplexity::{Perplexity, perplexity};
use serde_json::json;

use crate::args::{PerplexityArgs, PrecisionArg};
use crate::backend::{BackendArg, Chosen};
use crate::draft;
use crate::load::open;
use crate::locate::Environment;

/// Window when none is asked for.
const DEFAULT_WINDOW: usize = 512;

/// Runs the verb.
///
/// # Errors
/// Unreadable text, or a model that cannot be loaded.
pub fn run(args: &PerplexityArgs, environment: &Environment) -> Result<ExitCode> {
    let text = std::fs::read_to_string(&args.text).with_context(|| format!("{}", args.text.display()))?;
    let opened = open(&args.model, environment)?;
    if args.compare && args.model.backend == BackendArg::Cuda {
        bail!("--compare measures the two precisions of the processor: --backend cpu expected, found --backend cuda");
    }
    let cpu = |precision: PrecisionArg| Chosen::cpu(args.model.threads, precision.into());
    let backends = match args.compare {
        true => vec![cpu(PrecisionArg::F32), cpu(PrecisionArg::Int8)],
        false => vec![args.model.wish().open(environment, &mut draft::to_stderr(false))?],
    };
    let mut results = Vec::new();
    for backend in &backends {
        let mut model = opened.model(backend)?;
        let tokenizer = opened.tokenizer(&*model)?;
        let tokens = tokenizer.encode_plain(&text)?;
        if tokens.is_empty() {
            bail!("{}: some text expected, found none", args.text.display());
        }
        let context = args.ctx_size.unwrap_or(DEFAULT_WINDOW.min(model.info().context_length));
        let bos = tokenizer.bos_id().filter(|_| tokenizer.adds_bos());
        let bar = bar(tokens.len() as u64);
        let start = Instant::now();
        let result = perplexity(&mut *model, &tokens, bos, context, |done, so_far| {
            bar.set_position(done as u64);
            bar.set_message(format!("{:.4}", so_far.value()));
        })?;
        bar.finish_and_clear();
        let seconds = start.elapsed().as_secs_f64();
        if !args.json {
            print_line(&model.backend(), &result, context, seconds);
        }
        results.push((model.backend(), context, result, seconds));
    }
    let ratio = match &results[..] {
        [(_, _, f32, _), (_, _, int8, _)] => Some(int8.value() / f32.value()),
        _ => None,
    };
    if args.json {
        let rows: Vec<_> = results
            .iter()
            .map(|(backend, context, p, seconds)| {
                json!({
                    "backend": backend,
                    "context": context,
                    "tokens": p.tokens,
                    "nll": p.nll,
                    "perplexity": p.value(),
                    "seconds": seconds,
                })
            })
            .collect();
        let _ = writeln!(
            std::io::stdout(),
            "{:#}",
            json!({ "file": args.text.display().to_string(), "results": rows, "int8_over_f32": ratio })
        );
    } else if let Some(ratio) = ratio {
        let _ = writeln!(std::io::stdout(), "int8 over f32: {ratio:.5} ({:+.3} %)", (ratio - 1.0) * 100.0);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_line(backend: &str, p: &Perplexity, context: usize, seconds: f64) {
    let _ = writeln!(
        std::io::stdout(),
        "{backend}: perplexity {:.4} ({:.5} nats a token) over {} tokens, windows of {context}, {:.1} s",
        p.value(),
        p.nll,
        p.tokens,
        seconds
    );
}

fn bar(tokens: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(tokens);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens, {eta} left, perplexity {msg}") {
        bar.set_style(style);
    }
    bar
}
