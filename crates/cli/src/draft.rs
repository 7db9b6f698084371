//! Which drafter belongs to a model: the one given, one that lies beside it, or the head inside its checkpoint; and whether it may
//! draft.
//!
//! A drafter that was asked for has to work, or there is an error. One that was merely found makes answers faster where it works, and
//! where it does not it leaves them as they are, with a warning.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mlxcel_bench::catalogue;
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::CpuBackend;
use mlxcel_engine::speculate::gate::{Decision, Settings};
use mlxcel_engine::speculate::probe::{Probe, Verdict};
use mlxcel_engine::speculate::verdict::{Key, Verdicts};
use mlxcel_engine::speculate::{MAX_BLOCK, Speculation};
use mlxcel_engine::{Engine, EngineError, EngineOptions};
use mlxcel_model::drafters::DraftKind;
use mlxcel_model::registry::{self, Pair};
use mlxcel_model::{Model, ModelError};
use mlxcel_text::Tokenizer;

use crate::args::{DraftArgs, DraftKindArg, ModelArgs, PrecisionArg};
use crate::backend::BackendArg;
use crate::locate::Environment;
use crate::units::shell_word;

/// A probe that takes longer is announced.
const PATIENCE: Duration = Duration::from_secs(1);

/// What will draft.
pub enum Source {
    /// Nothing.
    None,
    /// Prompt lookup.
    Ngram,
    /// A checkpoint of its own, or the target's, opened again.
    Checkpoint {
        /// Its files.
        checkpoint: Box<Checkpoint>,
        /// How it drafts.
        kind: DraftKind,
        /// Whether it was asked for, or merely found.
        asked: bool,
    },
}

/// What a user is told before an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// There are no drafts, and why; answers are the same.
    Warning(&'a str),
    /// Drafts may change answers: said even to those who want quiet.
    Inexact(&'a str),
    /// Something takes its time.
    Wait(&'a str),
    /// Which backend computes, and why.
    Backend {
        /// It, in a line.
        line: &'a str,
        /// Whether it was left to this program, so that whoever runs it does not know.
        auto: bool,
    },
}

/// Takes notices.
pub type Notify<'a> = dyn FnMut(Notice<'_>) + 'a;

/// Takes notices to standard error; when `quiet`, only what must be known.
pub fn to_stderr(quiet: bool) -> impl FnMut(Notice<'_>) {
    move |notice| match notice {
        Notice::Inexact(text) => eprintln!("WARN: {text}"),
        Notice::Warning(text) if !quiet => eprintln!("WARN: {text}"),
        Notice::Wait(text) if !quiet => eprintln!("{text}"),
        Notice::Backend { line, auto: true } if !quiet => eprintln!("{line}"),
        Notice::Warning(_) | Notice::Wait(_) | Notice::Backend { .. } => {}
    }
}

/// Reads the variables that say how to draft.
///
/// # Errors
/// One that says neither yes nor no.
pub fn settings() -> Result<Settings> {
    Ok(Settings::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))?)
}

/// Finds the drafter that the arguments ask for, before any weight is read.
///
/// # Errors
/// Flags that contradict each other; a drafter that was asked for and is not there, is of another kind, or does not fit.
pub fn find(
    args: &DraftArgs,
    target: &Checkpoint,
    environment: &Environment,
    notify: &mut Notify<'_>,
) -> Result<Source> {
    let given = args.model_draft.as_deref();
    let refused = given.is_some_and(|path| path.as_os_str() == "none");
    let kind = match (args.draft_kind, given) {
        (Some(kind @ (DraftKindArg::Mtp | DraftKindArg::Classic)), _) if refused => bail!(
            "--draft-kind {}: a drafter expected, found --model-draft none; leave one of the two out (they may come from \
             MLXCEL_DRAFT_KIND and MLXCEL_MODEL_DRAFT)",
            if kind == DraftKindArg::Mtp { "mtp" } else { "classic" }
        ),
        (Some(kind @ (DraftKindArg::Ngram | DraftKindArg::None)), Some(path)) if !refused => bail!(
            "--draft-kind {}: no checkpoint expected, found --model-draft {}; leave one of the two out (they may come from \
             MLXCEL_DRAFT_KIND and MLXCEL_MODEL_DRAFT)",
            if kind == DraftKindArg::Ngram { "ngram" } else { "none" },
            path.display()
        ),
        _ if args.draft_block_size == Some(1) => return Ok(Source::None),
        (Some(DraftKindArg::Ngram), _) => return Ok(Source::Ngram),
        (Some(DraftKindArg::None), _) => return Ok(Source::None),
        (Some(DraftKindArg::Mtp), _) => Some(DraftKind::Mtp),
        (Some(DraftKindArg::Classic), _) => Some(DraftKind::Classic),
        (None, _) => None,
    };
    match given {
        _ if refused => Ok(Source::None),
        Some(path) => named(path, kind, target, environment),
        None if kind == Some(DraftKind::Classic) => {
            bail!("--draft-kind classic: the small model's checkpoint expected; give it with --model-draft")
        }
        None => found(kind.is_some(), target, notify),
    }
}

/// The drafter in a checkpoint that was named.
fn named(path: &Path, kind: Option<DraftKind>, target: &Checkpoint, environment: &Environment) -> Result<Source> {
    let draft = Checkpoint::open(&environment.model(Some(path))?)?;
    let found = registry::draft_kind::<CpuBackend>(target, &draft)?;
    let kind = match kind {
        // The target is a model, whatever head it holds.
        Some(DraftKind::Classic) if registry::is_same(target, &draft) => DraftKind::Classic,
        Some(kind) if kind != found => bail!(
            "--draft-kind {}: {} is a drafter of kind {}; leave the flag out, or give another drafter",
            kind.name(),
            draft.dir().display(),
            found.name()
        ),
        _ => found,
    };
    registry::check_as::<CpuBackend>(target, &draft, kind)?;
    same_tokens(target, &draft)?;
    Ok(Source::Checkpoint { checkpoint: Box::new(draft), kind, asked: true })
}

/// A drafting head beside or inside the target's checkpoint; `asked` says that there must be one.
fn found(asked: bool, target: &Checkpoint, notify: &mut Notify<'_>) -> Result<Source> {
    let inside = registry::has_head::<CpuBackend>(target).then(|| target.dir().to_path_buf());
    let mut refusal = None;
    for path in beside(target.dir()).into_iter().chain(inside) {
        match head(&path, target) {
            Ok(Some(draft)) => {
                return Ok(Source::Checkpoint { checkpoint: Box::new(draft), kind: DraftKind::Mtp, asked });
            }
            // A model that happens to be called so.
            Ok(None) => {}
            Err(error) => {
                refusal.get_or_insert((path, error));
            }
        }
    }
    match refusal {
        Some((_, error)) if asked => Err(error.context("--draft-kind mtp")),
        Some((path, error)) => {
            notify(Notice::Warning(&format!(
                "the drafter {} was found and does not fit, answers come without drafts (--model-draft none: no drafts wanted): \
                 {error:#}",
                path.display()
            )));
            Ok(Source::None)
        }
        None if asked => bail!(
            "--draft-kind mtp: {} has no drafting head inside and no drafter beside it (a directory named {}-assistant* or -mtp*); \
             give one with --model-draft",
            target.dir().display(),
            base(&name(target.dir()))
        ),
        None => Ok(Source::None),
    }
}

/// A checkpoint that is a drafting head of the target's; `None` when it is a model.
fn head(path: &Path, target: &Checkpoint) -> Result<Option<Checkpoint>> {
    let draft = Checkpoint::open(path)?;
    if registry::draft_kind::<CpuBackend>(target, &draft)? != DraftKind::Mtp {
        return Ok(None);
    }
    registry::check_as::<CpuBackend>(target, &draft, DraftKind::Mtp)?;
    same_tokens(target, &draft)?;
    Ok(Some(draft))
}

/// What decides whether a drafter drafts, and how.
pub struct Gate<'a> {
    /// The variables.
    pub settings: Settings,
    /// The arguments.
    pub args: &'a DraftArgs,
    /// Whether the drafter was asked for: then one that has no memory to work in is an error.
    pub asked: bool,
    /// The target's files.
    pub checkpoint: &'a Checkpoint,
    /// The command that shows more of what the probe sees ([`probe_command`]).
    pub command: String,
    /// Where verdicts are kept.
    pub environment: &'a Environment,
}

/// What became of the drafter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// There is none.
    None,
    /// It drafts, and answers are those of plain decoding.
    Exact,
    /// It drafts because the operator said so; answers may differ, for this reason.
    Inexact(String),
    /// It does not draft, for this reason.
    Declined(String),
}

impl Drafting {
    /// Whether answers may differ from those of plain decoding.
    pub fn is_inexact(&self) -> bool {
        matches!(self, Drafting::Inexact(_))
    }
}

/// Puts a model and its drafter into an engine, past the gate: the probe (or its verdict of an earlier start) decides whether it
/// drafts. A probe that cannot run is one that fails.
///
/// # Errors
/// What [`Engine::new`] refuses; a drafter that was asked for and has no memory to work in; a device that fails.
pub fn engine(
    pair: Pair,
    tokenizer: Arc<Tokenizer>,
    options: EngineOptions,
    gate: &Gate<'_>,
    notify: &mut Notify<'_>,
) -> Result<(Engine, Drafting)> {
    let Pair { mut model, drafter } = pair;
    let Some(drafter) = drafter else { return Ok((Engine::new(model, tokenizer, options)?, Drafting::None)) };
    // Blocks have to fit the context, and the probe goes a little beyond them.
    let room = model.info().context_length.saturating_sub(8);
    let widest = gate.args.draft_block_size.unwrap_or(MAX_BLOCK).min(room);
    let why = if widest < 2 {
        Some(format!("a context of {} leaves no room for blocks", model.info().context_length))
    } else {
        let mut probe = Probe::startup(widest, options.parallel);
        (probe.hidden, probe.vocab) = (drafter.hidden_rows(), Some(tokenizer.vocab_size()));
        difference(&mut *model, &probe, gate, notify)?
    };
    let allowed = Settings { allow_inexact: gate.settings.allow_inexact && widest >= 2, ..gate.settings };
    let mut drafting = Drafting::Exact;
    match allowed.decide(why.as_deref(), &format!("To see more: {}", gate.command)) {
        Decision::Draft => {}
        Decision::DraftInexact(warning) => {
            notify(Notice::Inexact(&warning));
            drafting = Drafting::Inexact(why.unwrap_or_default());
        }
        Decision::Decline(warning) => {
            notify(Notice::Warning(&warning));
            let engine = Engine::new(model, tokenizer, options)?;
            return Ok((engine, Drafting::Declined(why.unwrap_or_default())));
        }
    }
    let speculation =
        Speculation { most: widest, required: gate.asked, ..gate.settings.speculation(gate.args.draft_block_size) };
    let mut engine = Engine::with_drafter(model, tokenizer, options, drafter, speculation)?;
    if engine.speculator().is_none() {
        let why = engine.take_warnings().join("; ");
        notify(Notice::Warning(&why));
        drafting = Drafting::Declined(why);
    }
    Ok((engine, drafting))
}

/// How blocks differ from single steps, or why that could not be found out; `None` = not at all.
///
/// # Errors
/// The device failed: without drafts it would be of no more use.
fn difference(
    model: &mut dyn Model,
    probe: &Probe,
    gate: &Gate<'_>,
    notify: &mut Notify<'_>,
) -> Result<Option<String>> {
    let verdicts = Verdicts::at(gate.environment.cache.clone());
    let key = key(model, gate.checkpoint);
    let kept = key.as_ref().and_then(|key| verdicts.get(key, probe));
    let verdict = match kept {
        Some(verdict) => verdict,
        None => {
            let (started, mut said) = (Instant::now(), false);
            let report = probe.run(model, &mut |_| {
                if !said && started.elapsed() > PATIENCE {
                    said = true;
                    notify(Notice::Wait(
                        "checking that drafted blocks are exact on this machine (kept for the next start)",
                    ));
                }
            });
            match report {
                Ok(report) => {
                    if let Some(key) = &key {
                        verdicts.put(key, &report);
                    }
                    report.verdict()
                }
                Err(EngineError::Model(error @ ModelError::Device { .. })) => return Err(error.into()),
                Err(error) => {
                    return Ok(Some(format!("whether drafted blocks are exact could not be checked: {error}")));
                }
            }
        }
    };
    Ok(match verdict {
        Verdict::Exact => None,
        Verdict::Inexact { line } => {
            Some(format!("this backend computes a block of tokens otherwise than single tokens: {line}"))
        }
    })
}

/// The key of verdicts about a model.
pub fn key(model: &dyn Model, checkpoint: &Checkpoint) -> Option<Key> {
    Key::new(checkpoint.dir(), checkpoint.files().iter().map(|file| file.path()), &model.backend())
}

/// The command that probes what these arguments start, as typed in a shell.
pub fn probe_command(path: &Path, args: &ModelArgs, draft: &DraftArgs) -> String {
    let mut command = format!("mlxcel probe -m {}", shell_word(&path.display().to_string()));
    match args.backend {
        BackendArg::Auto => {}
        BackendArg::Cpu => command += " --backend cpu",
        BackendArg::Cuda => command += " --backend cuda",
    }
    if let Some(device) = args.device {
        command += &format!(" --device {device}");
    }
    if let Some(threads) = args.threads {
        command += &format!(" -t {threads}");
    }
    if args.cpu_precision == PrecisionArg::F32 {
        command += " --cpu-precision f32";
    }
    if let Some(path) = &draft.model_draft {
        command += &format!(" --model-draft {}", shell_word(&path.display().to_string()));
    }
    match draft.draft_kind {
        Some(DraftKindArg::Mtp) => command += " --draft-kind mtp",
        Some(DraftKindArg::Classic) => command += " --draft-kind classic",
        Some(DraftKindArg::Ngram) => command += " --draft-kind ngram",
        Some(DraftKindArg::None) | None => {}
    }
    command
}

fn name(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A checkpoint's name without what says how it is stored: `gemma-4-tiny-it-4bit` is a `gemma-4-tiny-it`.
fn base(name: &str) -> &str {
    let stored = |part: &str| {
        let bits = part.strip_suffix("bit").is_some_and(|n| n.parse::<u8>().is_ok());
        bits || ["bf16", "fp16", "f16", "fp32", "f32", "mxfp4", "mxfp8", "nvfp4", "mlx"].contains(&part)
    };
    match name.rsplit_once('-') {
        Some((rest, last)) if stored(&last.to_lowercase()) => base(rest),
        _ => name,
    }
}

/// Directories beside a model that are named as its drafters, the likeliest first: stored as the model is, then the smallest. A
/// model that was named by a link has neighbours of its own name and of its real one.
fn beside(dir: &Path) -> Vec<PathBuf> {
    let Ok(real) = dir.canonicalize() else { return Vec::new() };
    let named = std::path::absolute(dir).ok();
    let other = (Some(&real) != named.as_ref()).then_some(real);
    let mut found: Vec<PathBuf> = Vec::new();
    for path in named.into_iter().chain(other).flat_map(|place| neighbours(&place)) {
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

fn neighbours(dir: &Path) -> Vec<PathBuf> {
    let Some(target) = dir.file_name().map(|name| name.to_string_lossy().into_owned()) else { return Vec::new() };
    let base = base(&target);
    let stored = &target[base.len()..];
    let Some(items) = dir.parent().and_then(|parent| std::fs::read_dir(parent).ok()) else { return Vec::new() };
    let lower = |text: &str| text.to_lowercase();
    // Upper and lower case are the same: the hub has gemma-4-31b-it-4bit and gemma-4-31B-it-assistant-bf16.
    let is_drafter = |name: &str| {
        let called = [target.as_str(), base].iter().any(|of| {
            let name = lower(name);
            let rest = name.strip_prefix(&lower(of)).map(str::to_string);
            rest.is_some_and(|rest| rest.starts_with("-assistant") || rest.starts_with("-mtp"))
        });
        called || catalogue::are_paired(&target, name)
    };
    let bytes = |dir: &Path| -> u64 {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let weights = files.filter(|f| f.path().extension().is_some_and(|e| e == "safetensors"));
        weights.filter_map(|f| std::fs::metadata(f.path()).ok()).map(|m| m.len()).sum()
    };
    let mut found: Vec<(bool, u64, PathBuf)> = items
        .flatten()
        .map(|item| (item.file_name().to_string_lossy().into_owned(), item.path()))
        .filter(|(name, path)| is_drafter(name) && path.join("config.json").is_file())
        .map(|(name, path)| (!name.ends_with(stored), bytes(&path), path))
        .collect();
    found.sort();
    found.into_iter().map(|(_, _, path)| path).collect()
}

/// Checks that two checkpoints name the same tokens, where both bring a tokenizer.
fn same_tokens(target: &Checkpoint, draft: &Checkpoint) -> Result<()> {
    let file = |checkpoint: &Checkpoint| checkpoint.dir().join("tokenizer.json");
    let (Ok(a), Ok(b)) = (std::fs::read(file(target)), std::fs::read(file(draft))) else { return Ok(()) };
    if a == b {
        return Ok(());
    }
    let (a, b) = (Tokenizer::load(target.dir())?, Tokenizer::load(draft.dir())?);
    let shared = a.vocab_size().min(b.vocab_size()) as u32;
    let Some(id) = (0..shared).find(|id| a.id_to_token(*id) != b.id_to_token(*id)) else { return Ok(()) };
    let piece = |tokenizer: &Tokenizer| tokenizer.id_to_token(id).map_or("nothing".into(), |t| format!("{t:?}"));
    Err(ModelError::Mismatch {
        target: target.dir().display().to_string(),
        drafter: draft.dir().display().to_string(),
        field: format!("tokenizer.json, token {id}"),
        expected: piece(&a),
        found: piece(&b),
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_how_they_are_stored() {
        for (name, expected) in [
            ("gemma-4-tiny-it-4bit", "gemma-4-tiny-it"),
            ("qwen3.5-tiny-4bit", "qwen3.5-tiny"),
            ("SmolLM2-135M-mlx-8bit", "SmolLM2-135M"),
            ("model-bf16", "model"),
            ("model-MXFP4", "model"),
            ("model-habit", "model-habit"),
            ("4bit", "4bit"),
            ("", ""),
        ] {
            assert_eq!(base(name), expected, "{name}");
        }
    }

    #[test]
    fn drafters_beside_a_model_are_found_in_order() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let make = |name: &str, bytes: usize| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("directory");
            std::fs::write(path.join("config.json"), "{}").expect("file");
            std::fs::write(path.join("model.safetensors"), vec![0; bytes]).expect("file");
        };
        make("m-4bit", 9);
        make("m-assistant-bf16", 90);
        make("m-assistant-8bit", 50);
        make("m-assistant-4bit", 70);
        make("m-mtp", 60);
        make("other-assistant-4bit", 1);
        make("m-large-mtp", 1);
        std::fs::create_dir(dir.path().join("m-mtp-empty")).expect("directory");
        let found: Vec<String> = beside(&dir.path().join("m-4bit")).iter().map(|p| name(p)).collect();
        assert_eq!(found, ["m-assistant-4bit", "m-assistant-8bit", "m-mtp", "m-assistant-bf16"]);
        assert_eq!(beside(&dir.path().join("other-8bit")).len(), 0, "no such directory");
        // As the hub spells them.
        for (target, drafter) in
            [("gemma-4-31b-it-4bit", "gemma-4-31B-it-assistant-bf16"), ("Qwen3.8-27B-4bit", "Qwen3.8-27B-MTP-4bit")]
        {
            make(target, 9);
            make(drafter, 9);
            let found: Vec<String> = beside(&dir.path().join(target)).iter().map(|p| name(p)).collect();
            assert_eq!(found, [drafter]);
            assert!(catalogue::are_paired(target, drafter) && !catalogue::are_paired(target, "m-mtp"));
        }
    }

    #[test]
    #[cfg(unix)]
    fn links_keep_their_own_names() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| dir.path().join(name);
        for name in ["blobs/1", "blobs/2", "shelf", "blobs/1-mtp"] {
            std::fs::create_dir_all(path(name)).expect("directory");
            std::fs::write(path(name).join("config.json"), "{}").expect("file");
        }
        std::os::unix::fs::symlink(path("blobs/1"), path("shelf/m-4bit")).expect("link");
        std::os::unix::fs::symlink(path("blobs/2"), path("shelf/m-mtp-4bit")).expect("link");
        let found = beside(&path("shelf/m-4bit"));
        let real = path("blobs").canonicalize().expect("there").join("1-mtp");
        assert_eq!(found, [path("shelf/m-mtp-4bit"), real]);
    }

    #[test]
    fn paths_are_words_of_a_shell() {
        for (path, word) in
            [("models/a-4bit", "models/a-4bit"), ("my models", "'my models'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(shell_word(path), word);
        }
        let mut args = ModelArgs {
            model: None,
            backend: BackendArg::Auto,
            device: None,
            threads: Some(3),
            cpu_precision: PrecisionArg::F32,
        };
        let draft = DraftArgs { model_draft: Some("d".into()), ..DraftArgs::default() };
        let command = probe_command(Path::new("a b"), &args, &draft);
        assert_eq!(command, "mlxcel probe -m 'a b' -t 3 --cpu-precision f32 --model-draft d");
        (args.backend, args.device) = (BackendArg::Cuda, Some(1));
        let command = probe_command(Path::new("a"), &args, &DraftArgs::default());
        assert_eq!(command, "mlxcel probe -m a --backend cuda --device 1 -t 3 --cpu-precision f32");
    }
}
