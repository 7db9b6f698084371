//! `mlxcel rm`: removes a model, or what an unfinished pull left.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use mlxcel_checkpoint::store::{HubCache, PartialModel, RepoId, Store, StoredModel, near};

use crate::args::RmArgs;
use crate::locate::Environment;
use crate::units::bytes;

/// Runs the verb.
///
/// # Errors
/// No such model, no consent, or files that cannot be removed.
pub fn run(args: &RmArgs, environment: &Environment) -> Result<ExitCode> {
    let store = environment.model_store()?;
    store.sweep();
    let (models, partials) = targets(args, environment, &store)?;
    for model in &models {
        agree(args, &format!("{} ({}, {})", model.name, bytes(model.bytes), model.dir.display()))?;
        let lock = store.lock(&model.name)?;
        store.remove(&lock, model)?;
        say(&format!("removed {} ({})", model.name, bytes(model.bytes)));
    }
    for partial in &partials {
        let what = format!("unfinished pull of {} ({})", partial.name, bytes(partial.present));
        agree(args, &format!("the {what}"))?;
        let lock = store.lock(&partial.name)?;
        store.remove_partial(&lock, partial)?;
        say(&format!("removed the {what}"));
    }
    if models.is_empty() && partials.is_empty() {
        say("nothing unfinished to remove");
    }
    Ok(ExitCode::SUCCESS)
}

/// What the arguments mean.
fn targets(args: &RmArgs, environment: &Environment, store: &Store) -> Result<(Vec<StoredModel>, Vec<PartialModel>)> {
    let mut partials = store.partials()?;
    let Some(asked) = args.model.as_deref() else { return Ok((Vec::new(), partials)) };
    let models = if args.partial { Vec::new() } else { store.find(asked)? };
    if let [first, second, ..] = &models[..] {
        bail!(
            "{asked}: several models have this name, as {} and {}; say which, with its owner",
            first.name,
            second.name
        );
    }
    let name = models.first().map_or(asked, |model| &model.name);
    partials.retain(|partial| partial.name == name);
    if models.is_empty() && partials.is_empty() {
        let cached = environment.hub_cache.as_ref().zip(asked.parse::<RepoId>().ok());
        if let Some(cached) = cached.and_then(|(root, repo)| HubCache::new(root).get(&repo)) {
            bail!(
                "{asked}: lies in the Hugging Face cache, which mlxcel only reads ({}); remove it with the cache's own tools",
                cached.dir.display()
            );
        }
        let (all, unfinished) = (store.models()?, store.partials()?);
        let names = all.iter().map(|m| m.name.as_str()).chain(unfinished.iter().map(|p| p.name.as_str()));
        let what = if args.partial { "unfinished pull" } else { "model" };
        let hint = match near(asked, names)[..] {
            [] => "`mlxcel list` shows what there is".to_string(),
            ref near => format!("did you mean {}?", near.join(" or ")),
        };
        bail!("{asked}: no such {what} in {}; {hint}", store.root().display());
    }
    Ok((models, partials))
}

/// Asks on a terminal; elsewhere only a flag is consent.
fn agree(args: &RmArgs, what: &str) -> Result<()> {
    if args.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!("not removing {what} without being asked on a terminal; give -y to remove it");
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "Remove {what}? [y/N] ");
    let _ = err.flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        bail!("not removed");
    }
    Ok(())
}

/// A reader that went away (head, a pager) is no error.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
