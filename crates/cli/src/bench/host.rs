//! Loading what the bench measures.

use std::path::{Path, PathBuf};

use anyhow::Result;
use mlxcel_bench::catalogue::{Kind, Variant};
use mlxcel_bench::fingerprint::fingerprint;
use mlxcel_bench::host::{Draft, Host, Loaded, Place, Probed, Wanted};
use mlxcel_bench::machine::Machine;
use mlxcel_bench::prompts::Prompt;
use mlxcel_bench::row::Status;
use mlxcel_checkpoint::{Checkpoint, CheckpointError};
use mlxcel_compute::fault::Fault;
use mlxcel_cpu::CpuBackend;
use mlxcel_engine::EngineOptions;
use mlxcel_engine::speculate::MAX_BLOCK;
use mlxcel_engine::speculate::gate::Settings;
use mlxcel_model::drafters::DraftKind;
use mlxcel_model::registry::Pair;
use mlxcel_text::{ChatTemplate, Tokenizer};
use serde_json::Map;

use crate::args::{DraftArgs, DraftKindArg};
use crate::backend::Chosen;
use crate::bench::args::SweepArgs;
use crate::draft::{self, Drafting, Gate, Notice, Source};
use crate::interrupt;
use crate::load::{Opened, encode_chat, message};
use crate::locate::Environment;
use crate::units::shell_word;

/// This machine and its files.
pub struct LocalHost<'a> {
    environment: &'a Environment,
    settings: Settings,
    backend: Chosen,
    threads: usize,
    quiet: bool,
    machine: Machine,
}

impl<'a> LocalHost<'a> {
    /// As the arguments say.
    ///
    /// # Errors
    /// A variable that says neither yes nor no; a backend that cannot be had.
    pub fn new(args: &SweepArgs, environment: &'a Environment) -> Result<Self> {
        interrupt::listen();
        let settings = draft::settings()?;
        let backend = match args.wish() {
            Some(wish) => wish.open(environment, &mut to_stderr(args.quiet))?,
            None => Chosen::faulty(args.threads, args.cpu_precision.into(), Fault::WideLinear),
        };
        Ok(LocalHost {
            environment,
            settings,
            threads: backend.threads(args.threads),
            backend,
            quiet: args.quiet,
            machine: Machine::here(),
        })
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn try_load(&mut self, wanted: Wanted<'_>) -> Result<Loaded> {
        let checkpoint = Checkpoint::open(wanted.target)?;
        let kind = match &wanted.draft {
            Draft::None => Kind::None,
            Draft::Ngram => Kind::Ngram,
            Draft::Checkpoint { kind: Some(DraftKind::Classic), .. } => Kind::Classic,
            Draft::Checkpoint { .. } => Kind::Mtp,
        };
        Variant::of_target(&checkpoint, kind)?;
        let opened = Opened { path: wanted.target.to_path_buf(), checkpoint };
        let mut notify = to_stderr(self.quiet);
        let mut parts = Vec::new();
        let mut drafts = DraftArgs::default();
        let source = match wanted.draft {
            Draft::None => Source::None,
            Draft::Ngram => Source::Ngram,
            Draft::Checkpoint { path, kind } => {
                drafts.model_draft = Some(path);
                drafts.draft_kind = kind.map(|kind| match kind {
                    DraftKind::Mtp => DraftKindArg::Mtp,
                    DraftKind::Classic => DraftKindArg::Classic,
                    DraftKind::Ngram => DraftKindArg::Ngram,
                });
                draft::find(&drafts, &opened.checkpoint, self.environment, &mut notify)?
            }
        };
        if let Source::Checkpoint { checkpoint, .. } = &source {
            parts.push(fingerprint(&[checkpoint]).map_err(anyhow::Error::msg)?);
        }
        let name = fingerprint(&[&opened.checkpoint]).map_err(anyhow::Error::msg)?;
        parts.insert(0, name);
        let loaded = opened.assemble(source, &self.backend, &mut notify)?;
        let Pair { model, drafter } = loaded.pair;
        let drafter = match wanted.simulate {
            Some(simulation) => Some(simulation.over(drafter)),
            None => drafter,
        };
        let tokenizer = opened.tokenizer(&*model)?;
        let prompts = encode(wanted.prompts, &opened, &tokenizer)?;
        let longest = prompts.iter().flatten().map(Vec::len).max().unwrap_or(1);
        // A block is computed whole, up to the limit of the model.
        let context = (longest + wanted.room + MAX_BLOCK).min(model.info().context_length);
        let options = EngineOptions {
            parallel: wanted.parallel,
            context: Some(context.max(2)),
            step_rows: model.step_rows(),
            reuse: false,
            ..EngineOptions::default()
        };
        let gate = Gate {
            settings: self.settings,
            args: &drafts,
            asked: true,
            checkpoint: &opened.checkpoint,
            command: probe_command(wanted.target),
            environment: self.environment,
        };
        let (engine, drafting) = draft::engine(Pair { model, drafter }, tokenizer, options, &gate, &mut notify)?;
        let probed = match drafting {
            Drafting::None => Probed::Unasked,
            Drafting::Exact => Probed::Exact,
            Drafting::Inexact(why) => Probed::Inexact(why),
            Drafting::Declined(why) => Probed::Declined(why),
        };
        let prompts = prompts.into_iter().map(|prompt| fits(prompt, context, &engine)).collect();
        Ok(Loaded { engine, probed, prompts, checkpoint: parts.join("+") })
    }
}

/// Takes notices to standard error; when `quiet`, only what must be known.
fn to_stderr(quiet: bool) -> impl FnMut(Notice<'_>) {
    move |notice| match notice {
        Notice::Inexact(text) => eprintln!("WARN: {text}"),
        Notice::Warning(text) | Notice::Wait(text) | Notice::Backend { line: text, auto: true } if !quiet => {
            eprintln!("[bench] {text}");
        }
        Notice::Warning(_) | Notice::Wait(_) | Notice::Backend { .. } => {}
    }
}

/// A prompt that the context holds, with room for an answer.
fn fits(prompt: Result<Vec<u32>, String>, context: usize, engine: &mlxcel_engine::Engine) -> Result<Vec<u32>, String> {
    let prompt = prompt?;
    let limit = engine.model().info().context_length;
    if prompt.len() + MAX_BLOCK >= context {
        return Err(format!(
            "prompt: {} tokens found, but the model's context of {limit} leaves no room for an answer; give a shorter one",
            prompt.len()
        ));
    }
    Ok(prompt)
}

fn encode(prompts: &[Prompt], opened: &Opened, tokenizer: &Tokenizer) -> Result<Vec<Result<Vec<u32>, String>>> {
    let template = if prompts.iter().all(|prompt| prompt.raw) { None } else { ChatTemplate::load(&opened.path)? };
    let one = |prompt: &Prompt| -> Result<Vec<u32>, String> {
        let words = |e: anyhow::Error| format!("prompt {}: {e:#}", prompt.name);
        match &template {
            Some(template) if !prompt.raw => {
                let messages = [message("user", &prompt.text)];
                Ok(encode_chat(template, tokenizer, &messages, &Map::new()).map_err(words)?.tokens)
            }
            // A model without a template continues text.
            _ => tokenizer.encode_raw(&prompt.text).map_err(|e| words(e.into())),
        }
    };
    Ok(prompts.iter().map(one).collect())
}

fn probe_command(target: &Path) -> String {
    format!("mlxcel probe -m {}", shell_word(&target.display().to_string()))
}

impl Host for LocalHost<'_> {
    fn place(&self) -> Place {
        let device = self.backend.accelerator().unwrap_or_else(|| self.machine.device.clone());
        Place { device, threads: self.threads }
    }

    fn load(&mut self, wanted: Wanted<'_>) -> Result<Loaded, Status> {
        let target = wanted.target.to_path_buf();
        self.try_load(wanted).map_err(|error| status(&target, &error))
    }

    fn say(&mut self, line: &str) {
        if !self.quiet {
            eprintln!("{line}");
        }
    }

    fn is_interrupted(&mut self) -> bool {
        interrupt::taken()
    }
}

/// The status that an error makes.
fn status(target: &Path, error: &anyhow::Error) -> Status {
    let text = format!("{error:#}");
    match error.downcast_ref::<CheckpointError>() {
        Some(CheckpointError::NotFound { .. } | CheckpointError::MissingFile { .. }) => Status::Absent(text),
        _ if is_memory(error) => Status::Skipped(format!("out of memory: {text}")),
        // Most messages name the file or the pair by themselves.
        _ if text.contains(&*target.to_string_lossy()) => Status::Skipped(text),
        _ => Status::Skipped(format!("{}: {text}", target.display())),
    }
}

fn is_memory(error: &anyhow::Error) -> bool {
    use mlxcel_compute::ComputeError;
    use mlxcel_engine::EngineError;
    use mlxcel_model::ModelError;
    let of_model = |error: &ModelError| {
        matches!(error, ModelError::Compute(ComputeError::KvMemory { .. } | ComputeError::StateMemory { .. }))
    };
    error.chain().any(|cause| {
        cause.downcast_ref::<ModelError>().is_some_and(of_model)
            || matches!(cause.downcast_ref::<EngineError>(), Some(EngineError::Model(error)) if of_model(error))
    })
}

/// The drafter beside or inside a target, if there is one that fits.
///
/// # Errors
/// A target that cannot be opened.
pub fn beside(target: &Path, environment: &Environment) -> Result<Option<(PathBuf, DraftKind)>> {
    let checkpoint = Checkpoint::open(target)?;
    let mut ignore = |_: Notice<'_>| {};
    Ok(match draft::find(&DraftArgs::default(), &checkpoint, environment, &mut ignore)? {
        Source::Checkpoint { checkpoint, kind, .. } => Some((checkpoint.dir().to_path_buf(), kind)),
        Source::None | Source::Ngram => None,
    })
}

/// How a drafter drafts for a target, as its files say; `None` where they cannot be opened, which loading will explain.
pub fn kind_of(target: &Path, drafter: &Path) -> Option<DraftKind> {
    let (target, drafter) = (Checkpoint::open(target).ok()?, Checkpoint::open(drafter).ok()?);
    mlxcel_model::registry::draft_kind::<CpuBackend>(&target, &drafter).ok()
}
