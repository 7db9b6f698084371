//! `mlxcel pull`: a model from the hub into the store.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_checkpoint::hub::select::Selection;
use mlxcel_checkpoint::hub::{ENDPOINT, Event, Hub, PullRequest, pull};
use mlxcel_checkpoint::store::{HubCache, RepoId, Store};
use serde_json::{Value, json};

use crate::args::PullArgs;
use crate::hub_environment::HubEnvironment;
use crate::locate::Environment;
use crate::units::bytes;

/// Runs the verb.
///
/// # Errors
/// Everything that can go wrong on the way; the store has the model whole, or is as it was.
pub fn run(args: &PullArgs, environment: &Environment) -> Result<ExitCode> {
    let store = environment.model_store()?;
    let HubEnvironment { mut options, offline } = HubEnvironment::read()?;
    let repo = repository(&args.model, &options.endpoint)?;
    if offline || args.offline {
        return without_network(args, environment, &store, &repo);
    }
    if let Some(token) = &args.token {
        options.token = Some(token.clone());
    }
    let hub = Hub::new(&options)?;
    let interrupts = Arc::new(Interrupts::default());
    stop_on_interrupt(&repo, interrupts.clone());
    let request = PullRequest {
        repo: repo.clone(),
        revision: args.revision.clone(),
        selection: Selection { include: args.include.clone(), exclude: args.exclude.clone() },
        verify: args.verify,
    };
    let mut progress = Progress::new(args.quiet);
    let result = pull(&hub, &store, &request, &mut |event| {
        if matches!(event, Event::Install) {
            interrupts.hold();
        }
        progress.see(&repo, event);
    });
    progress.bar.finish_and_clear();
    let pulled = result?;
    let manifest = &pulled.manifest;
    let status = if pulled.up_to_date { "up to date" } else { "pulled" };
    if args.json {
        print(&format!(
            "{:#}",
            json!({
                "name": manifest.repo,
                "status": status,
                "revision": manifest.revision,
                "commit": manifest.commit,
                "path": pulled.dir.display().to_string(),
                "bytes": manifest.bytes(),
                "received_bytes": pulled.received,
                "files": manifest.files,
            })
        ));
    } else if !args.quiet {
        let (count, size) = (manifest.files.len(), bytes(manifest.bytes()));
        let came = match pulled.received {
            _ if pulled.up_to_date => String::new(),
            received => format!(", {} of them downloaded now", bytes(received)),
        };
        print(&format!(
            "{repo}: {status} at commit {}: {count} files, {size}{came}, in {}",
            &manifest.commit[..12],
            pulled.dir.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// A reader that went away (head, a pager) is no error.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// `OWNER/NAME`, also as the address of its page.
fn repository(text: &str, endpoint: &str) -> Result<RepoId> {
    let hosts = [endpoint.trim_end_matches('/'), ENDPOINT];
    let path = hosts.iter().find_map(|host| text.strip_prefix(host)?.strip_prefix('/'));
    Ok(path.unwrap_or(text).trim_end_matches('/').parse()?)
}

/// What can be said without asking the hub.
fn without_network(args: &PullArgs, environment: &Environment, store: &Store, repo: &RepoId) -> Result<ExitCode> {
    let cached = environment.hub_cache.as_ref().and_then(|root| HubCache::new(root).get(repo));
    let (place, path) = match (store.get(repo), cached) {
        (Some(model), _) => ("store", model.dir),
        (None, Some(model)) if model.missing.is_empty() => ("cache", model.dir),
        _ => bail!(
            "{repo}: not in the model store ({}), not complete in the Hugging Face cache, and offline (--offline, \
             HF_HUB_OFFLINE): pull it with a network first",
            store.root().display()
        ),
    };
    if args.json {
        let value: Value =
            json!({"name": repo.to_string(), "status": "offline", "source": place, "path": path.display().to_string()});
        print(&format!("{value:#}"));
    } else if !args.quiet {
        let place = if place == "store" { "the model store" } else { "the Hugging Face cache, from where -m takes it" };
        print(&format!("{repo}: in {place}: {} (offline: not compared with the hub)", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a Ctrl-C may end the process.
#[derive(Default)]
struct Interrupts {
    /// Presses since the installation began; `None` before.
    held: Mutex<Option<u32>>,
}

impl Interrupts {
    /// The installation begins: a moment that is better not cut short. Waits for ever where a Ctrl-C came first.
    fn hold(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(0);
    }

    /// A Ctrl-C came: ends the process with `end`, unless it is the first during the installation.
    fn press(&self, end: impl FnOnce()) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(presses @ 0) => *presses = 1,
            // The lock is held meanwhile, so that no installation begins.
            None | Some(_) => end(),
        }
    }
}

/// Ctrl-C ends the process at once: what is on the disk is always fit to go on from.
fn stop_on_interrupt(repo: &RepoId, interrupts: Arc<Interrupts>) {
    let repo = repo.to_string();
    let end = move || {
        eprintln!(
            "\nstopped; `mlxcel pull {repo}` goes on from here, `mlxcel rm --partial {repo}` removes what has come"
        );
        std::process::exit(130);
    };
    // Without a handler the system ends the process all the same, only without a word.
    let _ = ctrlc::set_handler(move || interrupts.press(&end));
}

/// A bar on a terminal, a line a file elsewhere, nothing when quiet.
struct Progress {
    bar: ProgressBar,
    lines: bool,
    quiet: bool,
}

impl Progress {
    fn new(quiet: bool) -> Self {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let template = "{msg:32!} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, lines: !quiet && !std::io::stderr().is_terminal(), quiet }
    }

    fn see(&mut self, repo: &RepoId, event: Event<'_>) {
        match event {
            Event::Plan { commit, files, total } => {
                self.bar.set_length(total);
                self.say(&format!("{repo} at commit {}: {files} files, {}", &commit[..12], bytes(total)));
            }
            Event::File { path, size } => {
                self.bar.set_message(path.to_string());
                if self.lines {
                    self.say(&format!("{path} ({})", bytes(size)));
                }
            }
            Event::Check { path, .. } => self.bar.set_message(format!("checking {path}")),
            Event::LeftOut { files, problem } => {
                self.say(&format!("{repo}: {problem}; {files} such file(s), not wanted here, left out"));
            }
            Event::Bytes(count) => self.bar.inc(count),
            Event::Lost(count) => self.bar.set_position(self.bar.position().saturating_sub(count)),
            Event::Retry { problem, wait } => {
                self.say(&format!("{problem}; next attempt in {:.0} s", wait.as_secs_f64().ceil()));
            }
            _ => {}
        }
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            self.bar.suspend(|| eprintln!("{line}"));
        }
    }
}

/// The token that was typed, kept from being shown.
///
/// # Errors
/// Nothing but white space.
pub fn parse_token(text: &str) -> Result<mlxcel_checkpoint::hub::Token> {
    mlxcel_checkpoint::hub::Token::new(text).context("an access token expected, found nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_not_cut_short() {
        let interrupts = Interrupts::default();
        let ends = || {
            let mut ended = false;
            interrupts.press(|| ended = true);
            ended
        };
        assert!(ends(), "while files come");
        interrupts.hold();
        assert!(!ends(), "during the installation");
        assert!(ends(), "when it hangs");
    }
}
