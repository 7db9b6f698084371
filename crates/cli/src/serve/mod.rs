//! `mlxcel serve`, and the binary `mlxcel-server`, which is the same.

pub mod args;
mod telemetry;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mlxcel_engine::EngineOptions;
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::speculate::MAX_BLOCK;
use mlxcel_server::{App, Facts, Metrics, Options, Ready, Size, Speculation, Worker};
use mlxcel_text::parse::ParserKind;

use crate::backend::Chosen;
use crate::draft::{self, Drafting, Gate, Notice, Notify};
use crate::load::{Loaded, open};
use crate::locate::Environment;
use crate::serve::args::{ReasoningArg, ServeArgs, ThinkArg};

/// How long a server whose engine has ended still answers why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Context where neither the operator nor the model asks for less.
const CONTEXT: usize = 8192;

/// Runs the verb.
///
/// # Errors
/// Anything a user can mend: the address is taken, a key file is empty, the model cannot be loaded; and an engine that ends by itself,
/// for the device failed.
pub fn run(args: &ServeArgs, environment: &Environment) -> Result<ExitCode> {
    log_to(args.log_file.as_deref())?;
    let telemetry = telemetry::start(args.otlp_endpoint.as_deref())?;
    let timeout = Duration::from_secs(u64::from(args.timeout));
    let options = Options {
        api_keys: keys(args)?,
        max_body: args.max_body as usize * (1 << 20),
        metrics: args.metrics && !args.no_metrics,
        slots: args.slots && !args.no_slots,
        read_timeout: timeout,
        write_timeout: timeout,
        idle_timeout: Duration::from_secs(u64::from(args.timeout_idle)),
        max_connections: args.max_connections as usize,
        log_requests: args.log_requests && !args.no_log_requests,
        observer: telemetry.observer(),
        ..Options::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (own, place) = (args.clone(), environment.clone());
    let load = move || load(&own, &place, |notify| own.model.wish().open(&place, notify));
    let result = runtime.block_on(serve(args, options, load));
    // Requests that were cut off end with the runtime, and are heard of.
    drop(runtime);
    telemetry.stop();
    result
}

/// Serves what `load` gives, until a signal comes or the engine ends.
async fn serve(
    args: &ServeArgs,
    options: Options,
    load: impl FnOnce() -> Result<Ready<Facts>> + Send + 'static,
) -> Result<ExitCode> {
    let address = (args.host.as_str(), args.port);
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.with_context(|| {
        format!("--host {} --port {}: cannot listen there; give another, or end what listens", args.host, args.port)
    })?;
    let metrics = Arc::new(Metrics::new());
    let grace = Duration::from_secs(u64::from(args.grace));
    let local = listener.local_addr()?;
    eprintln!("loading; http://{local} answers 503 until the model is there");
    let queue = args.max_queue_depth;
    let (loaded, ready) = tokio::sync::oneshot::channel();
    let worker = Worker::start(queue, Arc::clone(&metrics), move || {
        let ready = load().map_err(|error| format!("{error:#}"))?;
        let _ = loaded.send(summary(&ready.facts));
        Ok(ready)
    })?;
    let app = Arc::new(App { worker, metrics, options });
    let own = Arc::clone(&app);
    tokio::spawn(async move {
        // What cannot be loaded ends the worker, which is heard below.
        let Ok(text) = ready.await else { return };
        // The engine takes requests a moment after it was loaded; who reads this line may send one.
        for _ in 0..1000 {
            if own.facts().is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        eprintln!("{text}\nlistening on http://{local}");
    });
    let (why_not, mut reason) = tokio::sync::mpsc::channel(1);
    let own = Arc::clone(&app);
    let stop = async move {
        tokio::select! {
            why = own.worker.ended() => {
                let mut why = why;
                if own.worker.facts().is_some() {
                    why = format!("the engine has stopped: {why}");
                    tracing::error!("{why}");
                    // Whoever asks now is answered 503 and why, instead of finding nobody.
                    tokio::time::sleep(LAST_WORDS).await;
                }
                drop(why_not.send(why).await);
            }
            () = interrupted() => eprintln!("stopping: streams may go on for {} s", grace.as_secs()),
        }
    };
    mlxcel_server::serve(listener, app, stop, grace).await?;
    match reason.try_recv() {
        Ok(why) => bail!("{why}"),
        Err(_) => Ok(ExitCode::SUCCESS),
    }
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut term) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = term.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// Warnings go to standard error, and to a file if one is given.
fn log_to(file: Option<&Path>) -> Result<()> {
    use tracing_subscriber::fmt::writer::MakeWriterExt;
    let format = tracing_subscriber::fmt().with_target(false).with_max_level(tracing::Level::INFO);
    // A second subscriber in one process is a test's.
    let _ = match file {
        None => format.with_writer(std::io::stderr).try_init(),
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let file = file.with_context(|| format!("--log-file {}", path.display()))?;
            format.with_ansi(false).with_writer(std::io::stderr.and(std::sync::Mutex::new(file))).try_init()
        }
    };
    Ok(())
}

fn keys(args: &ServeArgs) -> Result<Vec<String>> {
    let mut keys: Vec<String> = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let text = std::fs::read_to_string(file).with_context(|| format!("--api-key-file {}", file.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let before = keys.len();
        keys.extend(lines.map(Into::into));
        if keys.len() == before {
            bail!("--api-key-file {}: a key a line expected, found none", file.display());
        }
    }
    if keys.iter().any(String::is_empty) {
        bail!("--api-key: keys expected, found an empty one");
    }
    Ok(keys)
}

/// Loads model, drafter, tokenizer and template onto the backend that `choose` gives, and passes the gate.
fn load(
    args: &ServeArgs,
    environment: &Environment,
    choose: impl FnOnce(&mut Notify<'_>) -> Result<Chosen>,
) -> Result<Ready<Facts>> {
    let settings = draft::settings()?;
    let drafts = args.drafts();
    let opened = open(&args.model, environment)?;
    let mut notify = |notice: Notice<'_>| match notice {
        Notice::Inexact(text) | Notice::Warning(text) => tracing::warn!("{text}"),
        Notice::Wait(text) | Notice::Backend { line: text, .. } => tracing::info!("{text}"),
    };
    let backend = choose(&mut notify)?;
    let Loaded { pair, asked } = opened.pair_on(&backend, &drafts, environment, &mut notify)?;
    let tokenizer = opened.tokenizer(&*pair.model)?;
    let template = opened.template(args.chat_template_file.as_deref());
    // A base model can still continue text; a template that was asked for has to work.
    let template = match template {
        Ok(template) => Some(template),
        Err(error) if args.chat_template_file.is_some() => return Err(error),
        Err(error) => {
            tracing::warn!("{error:#}");
            None
        }
    };
    let info = pair.model.info().clone();
    let sampling = opened.sampling(&args.sampling, None, info.vocab_size)?;
    let drafter = pair.drafter.as_ref().map(|drafter| drafter.info().clone());
    let context = args.ctx_size.unwrap_or(CONTEXT.min(info.context_length));
    let parallel = usize::from(args.parallel);
    let cache_bytes = args.cache_ram as usize * (1 << 20);
    let step_rows = pair.model.step_rows();
    let options =
        EngineOptions { parallel, context: Some(context), step_rows, cache_bytes, ..EngineOptions::default() };
    let gate = Gate {
        settings,
        args: &drafts,
        asked,
        checkpoint: &opened.checkpoint,
        command: draft::probe_command(&opened.path, &args.model, &drafts),
        environment,
    };
    let (engine, drafting) = draft::engine(pair, Arc::clone(&tokenizer), options, &gate, &mut notify)?;
    let (exact, why) = match &drafting {
        Drafting::None => (true, Some("there is no drafter: none was given, none lies beside the model".into())),
        Drafting::Exact => (true, None),
        Drafting::Inexact(why) => (false, Some(why.clone())),
        Drafting::Declined(why) => (true, Some(why.clone())),
    };
    let speculation = Speculation {
        enabled: engine.speculator().is_some(),
        kind: drafter.as_ref().map_or("none", |drafter| drafter.kind.name()).into(),
        drafter: drafter.as_ref().map(|drafter| drafter.name.clone()),
        block_size: drafts.draft_block_size,
        max_block_size: MAX_BLOCK,
        exact,
        why,
    };
    let source = template.as_ref().map(|template| template.source());
    let parser = ParserKind::detect(source.as_deref(), |token| tokenizer.token_to_id(token).is_some());
    let directory = opened.path.canonicalize().unwrap_or_else(|_| opened.path.clone());
    let name = directory.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    let facts = Facts {
        names: if args.alias.is_empty() { vec![name] } else { args.alias.clone() },
        created: mlxcel_server::now(),
        template,
        factory: Default::default(),
        parser,
        split_reasoning: args.reasoning_format == ReasoningArg::Auto,
        reasoning: match args.reasoning {
            ThinkArg::On => Some(true),
            ThinkArg::Off => Some(false),
            ThinkArg::Auto => None,
        },
        context,
        parallel,
        max_tokens: usize::try_from(args.predict).ok(),
        sampling: SamplingParams { seed: 0, ..sampling },
        backend: engine.model().backend(),
        fingerprint: format!("mlxcel-{}", env!("CARGO_PKG_VERSION")),
        path: opened.path.display().to_string(),
        size: Size {
            vocab: info.vocab_size,
            context: info.context_length,
            hidden: info.hidden_size,
            parameters: info.parameters(),
            bytes: opened.checkpoint.total_bytes(),
        },
        speculation,
        tokenizer,
    };
    Ok(Ready { engine, facts })
}

/// What an operator wants to see at the start.
fn summary(facts: &Facts) -> String {
    let own = &facts.speculation;
    let drafts = match (own.enabled, &own.drafter, &own.why) {
        (true, Some(drafter), _) => format!(
            "{} drafts ({}), width {}{}",
            drafter,
            own.kind,
            own.block_size.map_or("measured and adapted".into(), |k| k.to_string()),
            if own.exact { "" } else { ", NOT EXACT" }
        ),
        (_, _, why) => format!("no drafts: {}", why.as_deref().unwrap_or("no drafter")),
    };
    format!(
        "{}: {} slots of {} positions, {}\n{drafts}",
        facts.names.join(", "),
        facts.parallel,
        facts.context,
        facts.backend
    )
}

#[cfg(test)]
mod tests;
