//! `mlxcel run`: a chat in the terminal.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request, RequestError};
use rustyline::error::ReadlineError;
use serde_json::Value;

use crate::answer::{stream, summary};
use crate::args::RunArgs;
use crate::draft::{self, Drafting, Gate};
use crate::load::{Loaded, encode_chat, message, open, said};
use crate::locate::Environment;

const HELP: &str = "\
/reset   forget the conversation
/stats   show or hide the line with speeds after each answer
/debug   what drafting came to, and what steps of each width take
/help    this list
/exit    leave (or Ctrl-D)
Ctrl-C stops an answer.";

/// Nobody reads the answers any more.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
struct BrokenPipe;

/// Contexts beyond this must be asked for: the cache of a long one may not fit.
const DEFAULT_CONTEXT: usize = 8192;

/// Runs the verb.
///
/// # Errors
/// Anything that keeps the chat from starting, and the loss of the device. Other errors are printed, and the chat goes on.
pub fn run(args: &RunArgs, environment: &Environment) -> Result<ExitCode> {
    let settings = draft::settings()?;
    let opened = open(&args.model, environment)?;
    let mut notify = draft::to_stderr(false);
    let Loaded { pair, asked } = opened.pair(&args.model, &args.draft, environment, &mut notify)?;
    let tokenizer = opened.tokenizer(&*pair.model)?;
    let template = opened.template(args.chat_template_file.as_deref())?;
    let sampling = opened.sampling(&args.sampling, None, pair.model.info().vocab_size)?;
    let context = args.limits.ctx_size.unwrap_or(pair.model.info().context_length.min(DEFAULT_CONTEXT));
    let tty = std::io::stdin().is_terminal();
    let step_rows = pair.model.step_rows();
    let options = EngineOptions { context: Some(context), step_rows, ..EngineOptions::default() };
    let gate = Gate {
        settings,
        args: &args.draft,
        asked,
        checkpoint: &opened.checkpoint,
        command: draft::probe_command(&opened.path, &args.model, &args.draft),
        environment,
    };
    let (mut engine, drafting) = draft::engine(pair, tokenizer, options, &gate, &mut notify)?;
    if tty {
        let seed = if sampling.temperature > 0.0 { format!(", seed {}", sampling.seed) } else { String::new() };
        let drafts = match (&drafting, engine.speculator()) {
            (Drafting::Declined(_), _) => ", drafts declined".into(),
            (Drafting::Inexact(_), Some(s)) => format!(", INEXACT drafts from {}", s.info().name),
            (_, Some(s)) => format!(", drafts from {}", s.info().name),
            (_, None) => String::new(),
        };
        let (name, backend) = (&engine.model().info().name, engine.model().backend());
        eprintln!("{name} on {backend}, context {context}{drafts}{seed}. /help lists the commands.");
    }
    let system: Vec<Value> = args.system.iter().map(|s| message("system", s)).collect();
    let mut messages = system.clone();
    let mut editor = rustyline::DefaultEditor::new()?;
    let mut show_stats = tty;
    let mut turn = 0u64;
    loop {
        let line = match editor.readline(if tty { "> " } else { "" }) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(Ctrl-D or /exit leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
            Err(error) => bail!("standard input: {error}"),
        };
        let line = line.trim();
        match line {
            "" => continue,
            "/exit" | "/quit" => return Ok(ExitCode::SUCCESS),
            "/help" => {
                eprintln!("{HELP}");
                continue;
            }
            "/reset" => {
                messages.clone_from(&system);
                eprintln!("(forgotten)");
                continue;
            }
            "/stats" => {
                show_stats = !show_stats;
                eprintln!("(speeds {})", if show_stats { "shown" } else { "hidden" });
                continue;
            }
            "/debug" => {
                eprint!("{}", debug(&engine, &drafting));
                continue;
            }
            _ if line.starts_with('/') && !line.contains(char::is_whitespace) => {
                eprintln!("{line}: no such command\n{HELP}");
                continue;
            }
            _ => {}
        }
        let _ = editor.add_history_entry(line);
        messages.push(message("user", line));
        let mut sampling = sampling.clone();
        // The same seed would give the same noise at the same position of every turn.
        sampling.seed = sampling.seed.wrapping_add(turn);
        turn += 1;
        let show = show_stats.then_some(&drafting);
        match answer(&mut engine, &template, &messages, args, sampling, show) {
            Ok(Some(turn)) => messages.push(turn),
            // Stopped before the first word: as if it had not been asked.
            Ok(None) => drop(messages.pop()),
            Err(error) if error.is::<BrokenPipe>() => return Ok(ExitCode::SUCCESS),
            // Every further answer would be this one.
            Err(error) if engine.failure().is_some() => return Err(error),
            Err(error) => {
                messages.pop();
                eprintln!("error: {error:#}");
            }
        }
    }
}

/// What drafting came to so far, and what was measured.
pub fn debug(engine: &Engine, drafting: &Drafting) -> String {
    if let Drafting::Declined(why) = drafting {
        return format!("drafts declined: {why}\n");
    }
    let Some(speculator) = engine.speculator() else { return "no drafter\n".into() };
    let (info, totals, costs) = (speculator.info(), speculator.totals(), speculator.costs());
    let share = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
    let mut out = format!(
        "{} ({}): {} rounds, {} drafts, {} accepted, {} plain steps; acceptance_rate {}, tokens_per_round {}\n",
        info.name,
        info.kind.name(),
        totals.rounds,
        totals.proposed,
        totals.accepted,
        totals.plain_steps,
        share(totals.acceptance_rate()),
        share(totals.tokens_per_round()),
    );
    out += "  K   step ms  drafting ms  next draft right\n";
    for k in 1..=mlxcel_engine::speculate::MAX_BLOCK {
        let millis = |seconds: Option<f64>| seconds.map_or("-".into(), |s| format!("{:.3}", s * 1e3));
        let drafting = if k > 1 { costs.draft_cost(1, k - 1) } else { Some(0.0) };
        let right = speculator.acceptance().rate(k, None);
        out += &format!("{k:>3}  {:>8}  {:>11}  {right:>16.3}\n", millis(costs.step_cost(k)), millis(drafting));
    }
    if let Drafting::Inexact(why) = drafting {
        out += &format!("INEXACT: {why}\n");
    }
    if let Some(why) = speculator.failure() {
        out += &format!("given up: {why}\n");
    }
    out
}

fn answer(
    engine: &mut Engine,
    template: &mlxcel_text::ChatTemplate,
    messages: &[Value],
    args: &RunArgs,
    sampling: mlxcel_engine::sample::SamplingParams,
    show: Option<&Drafting>,
) -> Result<Option<Value>> {
    let prompt = encode_chat(template, engine.tokenizer(), messages, &args.template_variables())?;
    let request = Request {
        prompt: prompt.tokens,
        sampling,
        max_tokens: args.limits.max_tokens(),
        stop: args.limits.stop.clone(),
        ignore_eos: args.limits.ignore_eos,
        ..Request::default()
    };
    let mut out = std::io::stdout();
    let answer = stream(engine, request, &mut out, false).map_err(|error| match error {
        RequestError::ContextLength { .. } => anyhow!("{error}; /reset starts a new conversation"),
        other => other.into(),
    })?;
    if answer.broken_pipe || writeln!(out).and_then(|()| out.flush()).is_err() {
        return Err(BrokenPipe.into());
    }
    if let Some(message) = answer.end.reason.failure() {
        bail!("{message}");
    }
    if let Some(drafting) = show {
        eprintln!("[{}]", summary(engine, &answer.end, None, drafting));
    }
    let silent = answer.text.is_empty() && answer.end.reason == FinishReason::Cancelled;
    Ok((!silent).then(|| said(&answer.text, prompt.thinking)))
}
