//! Which drafter belongs to a model: the one given, one that lies beside it, or the head inside its checkpoint; and whether it may
//! draft.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::CpuBackend;
use mlxcel_engine::speculate::MAX_BLOCK;
use mlxcel_engine::speculate::gate::{Decision, Settings};
use mlxcel_engine::speculate::probe::{Probe, Verdict};
use mlxcel_engine::speculate::verdict::{Key, Verdicts};
use mlxcel_engine::{Engine, EngineOptions};
use mlxcel_model::Model;
use mlxcel_model::drafters::DraftKind;
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;

use crate::args::{DraftArgs, DraftKindArg};
use crate::locate::Environment;

/// What will draft.
pub enum Source {
    /// Nothing.
    None,
    /// Prompt lookup.
    Ngram,
    /// A checkpoint of its own, or the target's, opened again.
    Checkpoint(Box<Checkpoint>, DraftKind),
}

/// Finds the drafter that the arguments ask for, before any weight is read.
///
/// # Errors
/// A drafter that was asked for and is not there, is of another kind, or does not fit. One that was merely found lying about and
/// does not fit is passed over.
pub fn find(args: &DraftArgs, target: &Checkpoint, environment: &Environment) -> Result<Source> {
    if args.draft_block_size == Some(1) {
        return Ok(Source::None);
    }
    let kind = match args.draft_kind {
        None => None,
        Some(DraftKindArg::None) => return Ok(Source::None),
        Some(DraftKindArg::Ngram) => {
            if let Some(path) = &args.model_draft {
                bail!("--draft-kind ngram: no checkpoint expected, found --model-draft {}", path.display());
            }
            return Ok(Source::Ngram);
        }
        Some(DraftKindArg::Mtp) => Some(DraftKind::Mtp),
        Some(DraftKindArg::Classic) => Some(DraftKind::Classic),
    };
    if let Some(path) = &args.model_draft {
        if path.as_os_str() == "none" {
            return Ok(Source::None);
        }
        let draft = Checkpoint::open(&environment.model(Some(path))?)?;
        let found = registry::draft_kind::<CpuBackend>(target, &draft)?;
        if let Some(kind) = kind.filter(|kind| *kind != found) {
            bail!(
                "--draft-kind {}: {} is a drafter of kind {}; leave the flag out, or give another drafter",
                kind.name(),
                draft.dir().display(),
                found.name()
            );
        }
        same_tokens(target, &draft)?;
        return Ok(Source::Checkpoint(Box::new(draft), found));
    }
    if kind == Some(DraftKind::Classic) {
        bail!("--draft-kind classic: the small model's checkpoint expected; give it with --model-draft");
    }
    for path in beside(target.dir()) {
        let fits = |draft: &Checkpoint| {
            registry::check_pair::<CpuBackend>(target, draft).is_ok_and(|kind| kind == DraftKind::Mtp)
                && same_tokens(target, draft).is_ok()
        };
        if let Some(draft) = Checkpoint::open(&path).ok().filter(fits) {
            return Ok(Source::Checkpoint(Box::new(draft), DraftKind::Mtp));
        }
    }
    if registry::has_head::<CpuBackend>(target) {
        let again = Checkpoint::open(target.dir())?;
        return Ok(Source::Checkpoint(Box::new(again), DraftKind::Mtp));
    }
    if kind == Some(DraftKind::Mtp) {
        bail!(
            "--draft-kind mtp: {} has no drafting head inside and no drafter beside it (a directory named {}-assistant* or -mtp*); \
             give one with --model-draft",
            target.dir().display(),
            base(&name(target.dir()))
        );
    }
    Ok(Source::None)
}

/// Puts a model and its drafter into an engine, past the gate: the probe (or its verdict of an earlier start) decides whether it
/// drafts. Returns the engine, and whether its answers may differ from plain decoding because the operator said so.
///
/// # Errors
/// Variables that say nothing; what [`Engine::new`] refuses.
pub fn engine(
    pair: Pair,
    tokenizer: Arc<Tokenizer>,
    options: EngineOptions,
    args: &DraftArgs,
    environment: &Environment,
) -> Result<(Engine, bool)> {
    let Pair { mut model, drafter } = pair;
    let Some(drafter) = drafter else { return Ok((Engine::new(model, tokenizer, options)?, false)) };
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    // Blocks have to fit the context, and the probe goes a little beyond them.
    let room = model.info().context_length.saturating_sub(8);
    let widest = args.draft_block_size.unwrap_or(MAX_BLOCK).min(room);
    if widest < 2 {
        return Ok((Engine::new(model, tokenizer, options)?, false));
    }
    let mut inexact = false;
    match settings.decide(difference(&mut *model, widest, options.parallel, environment)?) {
        Decision::Draft => {}
        Decision::DraftInexact(warning) => {
            eprintln!("WARN: {warning}");
            inexact = true;
        }
        Decision::Decline(warning) => {
            eprintln!("WARN: {warning}");
            return Ok((Engine::new(model, tokenizer, options)?, false));
        }
    }
    let speculation = settings.speculation(args.draft_block_size);
    Ok((Engine::with_drafter(model, tokenizer, options, drafter, speculation)?, inexact))
}

/// How blocks up to `widest` differ from single steps; `None` = not at all.
fn difference(
    model: &mut dyn Model,
    widest: usize,
    parallel: usize,
    environment: &Environment,
) -> Result<Option<String>> {
    let probe = Probe::startup(widest, parallel);
    let verdicts = Verdicts::at(environment.cache.clone());
    let key = Key::new(&model.info().path, &model.backend(), &probe);
    let verdict = match key.as_ref().and_then(|key| verdicts.get(key)) {
        Some(verdict) => verdict,
        None => {
            let verdict = probe.run(model, &mut |_| {})?.verdict();
            if let Some(key) = &key {
                verdicts.put(key, &verdict);
            }
            verdict
        }
    };
    Ok(match verdict {
        Verdict::Exact => None,
        Verdict::Inexact { line } => Some(line),
    })
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

/// Directories beside a model that are named as its drafters, the likeliest first: stored as the model is, then the smallest.
fn beside(dir: &Path) -> Vec<PathBuf> {
    let target = name(dir);
    let base = base(&target);
    let stored = &target[base.len()..];
    let Some(items) = dir.canonicalize().ok().and_then(|d| std::fs::read_dir(d.parent()?).ok()) else {
        return Vec::new();
    };
    let is_drafter = |name: &str| {
        [target.as_str(), base].iter().any(|of| {
            name.strip_prefix(of).is_some_and(|rest| rest.starts_with("-assistant") || rest.starts_with("-mtp"))
        })
    };
    let bytes = |dir: &Path| -> u64 {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let weights = files.filter(|f| f.path().extension().is_some_and(|e| e == "safetensors"));
        weights.filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum()
    };
    let mut found: Vec<(bool, u64, PathBuf)> = items
        .flatten()
        .map(|item| item.path())
        .filter(|path| is_drafter(&name(path)) && path.join("config.json").is_file())
        .map(|path| (!name(&path).ends_with(stored), bytes(&path), path))
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
    Err(mlxcel_model::ModelError::Mismatch {
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
    }
}
