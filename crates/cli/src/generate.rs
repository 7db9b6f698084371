//! `mlxcel generate`: one prompt, one answer.

use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Finished, Request};
use serde_json::{Value, json};

use crate::answer::{Answer, speedup, stream, summary};
use crate::args::GenerateArgs;
use crate::draft::{self, Drafting, Gate};
use crate::load::{Loaded, encode_chat, message, open};
use crate::locate::Environment;

/// Runs the verb.
///
/// # Errors
/// Anything a user can mend; the message says how.
pub fn run(args: &GenerateArgs, environment: &Environment) -> Result<ExitCode> {
    let settings = draft::settings()?;
    let text = prompt(args)?;
    let opened = open(&args.model, environment)?;
    let mut notify = draft::to_stderr(args.quiet);
    let Loaded { pair, asked } = opened.pair(&args.model, &args.draft, environment, &mut notify)?;
    let tokenizer = opened.tokenizer(&*pair.model)?;
    let tokens = if args.raw {
        tokenizer.encode_raw(&text)?
    } else {
        let template = opened.template(args.chat_template_file.as_deref())?;
        let mut messages: Vec<Value> = args.system.iter().map(|s| message("system", s)).collect();
        messages.push(message("user", &text));
        encode_chat(&template, &tokenizer, &messages, &args.template_variables())?.tokens
    };
    let info = pair.model.info();
    let sampling = opened.sampling(&args.sampling, args.logprobs, info.vocab_size)?;
    let seed = (sampling.temperature > 0.0).then_some(sampling.seed);

    let limit = info.context_length;
    let needed = args.limits.max_tokens().map_or(limit, |n| n.max(1).saturating_add(tokens.len()).min(limit));
    let context = Some(args.limits.ctx_size.unwrap_or(needed.max(2)));
    let step_rows = pair.model.step_rows();
    let options = EngineOptions { context, step_rows, reuse: false, ..EngineOptions::default() };
    let gate = Gate {
        settings,
        args: &args.draft,
        asked,
        checkpoint: &opened.checkpoint,
        command: draft::probe_command(&opened.path, &args.model, &args.draft),
        environment,
    };
    let (mut engine, drafting) = draft::engine(pair, tokenizer, options, &gate, &mut notify)?;
    let request = Request {
        prompt: tokens,
        sampling,
        max_tokens: args.limits.max_tokens(),
        stop: args.limits.stop.clone(),
        ignore_eos: args.limits.ignore_eos,
        ..Request::default()
    };
    let mut stdout = std::io::stdout().lock();
    let answer = if args.json {
        stream(&mut engine, request, &mut std::io::sink(), args.quiet)?
    } else {
        let answer = stream(&mut engine, request, &mut stdout, args.quiet)?;
        if !answer.broken_pipe && !answer.text.is_empty() {
            let _ = writeln!(stdout);
        }
        answer
    };
    if let Some(message) = answer.end.reason.failure() {
        bail!("{message}");
    }
    if args.json {
        let _ = writeln!(stdout, "{:#}", to_json(&engine, &answer, seed, &drafting));
    }
    if !args.quiet && !answer.broken_pipe {
        eprintln!("{}", summary(&engine, &answer.end, seed, &drafting));
    }
    Ok(if answer.end.reason == FinishReason::Cancelled && !answer.broken_pipe {
        ExitCode::from(130)
    } else {
        ExitCode::SUCCESS
    })
}

fn prompt(args: &GenerateArgs) -> Result<String> {
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) if file.as_os_str() == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input: UTF-8 text expected")?;
            text
        }
        (None, Some(file)) => std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?,
        (None, None) => String::new(),
    };
    if text.is_empty() {
        bail!("--prompt: some text expected, found an empty prompt");
    }
    Ok(text)
}

/// The object of `--json`.
pub fn to_json(engine: &Engine, answer: &Answer, seed: Option<u64>, drafting: &Drafting) -> Value {
    let end = &answer.end;
    let info = engine.model().info();
    let mut out = json!({
        "model": info.name,
        "backend": engine.model().backend(),
        "text": answer.text,
        "finish_reason": end.reason.name(),
        "tokens": answer.tokens.iter().map(|t| t.token).collect::<Vec<_>>(),
        "usage": {
            "prompt_tokens": end.prompt_tokens,
            "cached_tokens": end.cached_tokens,
            "completion_tokens": end.completion_tokens,
        },
        "seed": seed,
        "timings": {
            "prefill_seconds": end.timings.prefill,
            "decode_seconds": end.timings.decode,
            "prefill_tokens_per_second": end.prefill_rate(),
            "decode_tokens_per_second": end.decode_rate(),
        },
    });
    out["speculation"] = speculation(engine, end, drafting);
    if answer.tokens.iter().any(|t| t.logprob.is_some()) {
        out["logprobs"] = answer
            .tokens
            .iter()
            .filter_map(|t| Some((t, t.logprob.as_ref()?)))
            .map(|(t, l)| json!({ "token": t.token, "logprob": l.logprob, "top": l.top }))
            .collect();
    }
    out
}

/// What drafting came to; null without a drafter.
fn speculation(engine: &Engine, end: &Finished, drafting: &Drafting) -> Value {
    if let Drafting::Declined(why) = drafting {
        return json!({ "declined": why });
    }
    let Some(speculator) = engine.speculator() else { return Value::Null };
    let (info, rounds) = (speculator.info(), end.rounds);
    json!({
        "kind": info.kind.name(),
        "drafter": info.name,
        "exact": !drafting.is_inexact(),
        "rounds": rounds.rounds,
        "plain_steps": rounds.plain_steps,
        "proposed": rounds.proposed,
        "accepted": rounds.accepted,
        "acceptance_rate": rounds.acceptance_rate(),
        "mean_accepted_len": rounds.mean_accepted_len(),
        "tokens_per_round": rounds.tokens_per_round(),
        "plain_step_seconds": speculator.plain_step(),
        "speedup": speedup(engine, end),
        "failure": speculator.failure(),
    })
}
