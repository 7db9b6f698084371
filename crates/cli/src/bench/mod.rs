//! `speculative_bench`: from arguments to rows and reports.

pub mod args;
mod cost;
mod host;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use mlxcel_bench::catalogue::{self, Kind, Places};
use mlxcel_bench::prompts::{self, Prompt};
use mlxcel_bench::report::csv::CsvWriter;
use mlxcel_bench::report::json::{self, Report};
use mlxcel_bench::report::markdown::{self, Style};
use mlxcel_bench::report::plot;
use mlxcel_bench::row::Status;
use mlxcel_bench::runner::{Item, Outcome, Plan, run as sweep};
use mlxcel_bench::{compare, host::Host};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_model::drafters::DraftKind;

use crate::bench::args::{Cli, CompareArgs, SweepArgs, Verb};
use crate::bench::host::{LocalHost, beside, kind_of};
use crate::locate::Environment;

/// Runs what was typed.
///
/// # Errors
/// Anything a user can mend; the message says how.
pub fn run(cli: &Cli, environment: &Environment) -> Result<ExitCode> {
    match &cli.verb {
        Some(Verb::Compare(args)) => run_compare(args),
        Some(Verb::Cost(args)) => cost::run(args, environment),
        None => run_sweep(&cli.sweep, environment),
    }
}

fn run_compare(args: &CompareArgs) -> Result<ExitCode> {
    let (a, b) = (json::read(&args.a)?, json::read(&args.b)?);
    let lines = compare::compare(&a, &b);
    let text = if args.json {
        serde_json::to_string_pretty(&lines)? + "\n"
    } else {
        compare::text(&lines, &args.a.display().to_string(), &args.b.display().to_string())
    };
    // A reader that went away (head, a pager) is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if lines.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

fn run_sweep(args: &SweepArgs, environment: &Environment) -> Result<ExitCode> {
    let places = places(args, environment);
    let mut stdout = std::io::stdout();
    if args.list {
        let _ = stdout.write_all(catalogue::list(&places).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let plan = plan(args, &places, environment)?;
    let mut host = LocalHost::new(args, environment)?;
    let mut csv = args.csv.as_deref().map(CsvWriter::create).transpose()?;
    for file in [&args.json, &args.markdown, &args.plot, &args.trace].into_iter().flatten() {
        writable(file)?;
    }
    let outcome = sweep(&plan, &mut host, |rows| match &mut csv {
        Some(csv) => rows.iter().try_for_each(|row| csv.append(row)),
        None => Ok(()),
    })?;
    report(args, &outcome, &host)?;
    let _ = stdout.write_all(markdown::render(&outcome.rows, Style::Plain).as_bytes());
    if outcome.interrupted {
        host.say("[bench] interrupted: the rows so far are above and in the reports");
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Said before hours of measuring, not after.
fn writable(file: &Path) -> Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        bail!("{}: the directory {} does not exist; make it, or write elsewhere", file.display(), dir.display());
    }
    if file.is_dir() {
        bail!("{}: a file expected, found a directory", file.display());
    }
    Ok(())
}

fn report(args: &SweepArgs, outcome: &Outcome, host: &LocalHost<'_>) -> Result<()> {
    let machine = host.machine();
    let report = Report::new(machine.clone(), outcome.rows.clone());
    if let Some(file) = &args.json {
        json::write(file, &report)?;
    }
    if let Some(file) = &args.trace {
        json::write(file, &report.with_traces(outcome.traces.clone()))?;
    }
    if let Some(file) = &args.markdown {
        markdown::write(file, &outcome.rows)?;
    }
    if let Some(file) = &args.plot {
        plot::write(file, &outcome.rows)?;
    }
    Ok(())
}

fn places(args: &SweepArgs, environment: &Environment) -> Places {
    Places {
        models_dir: args.models_dir.clone(),
        shelves: environment.shelves(),
        store: environment.store.clone(),
        hub_cache: environment.hub_cache.clone(),
    }
}

fn plan(args: &SweepArgs, places: &Places, environment: &Environment) -> Result<Plan> {
    if let Some(dir) = args.models_dir.as_ref().filter(|dir| !dir.is_dir()) {
        bail!("--models-dir: a directory expected, found {}", dir.display());
    }
    let items = match &args.target {
        Some(target) => vec![item(args, target, places, environment)],
        None if args.sweep => {
            let mut items: Vec<Item> =
                catalogue::sweep(places, args.all).into_iter().map(|pairing| of_catalogue(pairing, places)).collect();
            if args.simulate_acceptance.is_some() {
                // A script runs without the drafter that is not there.
                items.iter_mut().for_each(|item| drop(item.drafter.take_if(|drafter| drafter.is_err())));
            }
            items
        }
        None => bail!("nothing to measure: give --sweep, or --target PATH (and --draft PATH); --help has examples"),
    };
    let sampling = SamplingParams {
        temperature: args.temperature,
        top_p: args.top_p,
        seed: args.seed,
        ..SamplingParams::default()
    };
    // Of no model in particular: what all of them would refuse.
    sampling.validate(u32::MAX as usize).context("--temperature, --top-p")?;
    Ok(Plan {
        items,
        ks: args.widths(),
        batches: args.batch.iter().map(|b| usize::from(*b)).collect(),
        prompts: prompts(args)?,
        max_tokens: args.max_tokens as usize,
        sampling,
        ignore_eos: args.ignore_eos,
        repeat: args.repeat as usize,
        warmup: args.warmup as usize,
        simulate: args.simulate_acceptance,
        trace: args.trace.is_some(),
    })
}

fn prompts(args: &SweepArgs) -> Result<Vec<Prompt>> {
    let mut prompts = match (&args.prompt, &args.prompts) {
        (Some(text), _) if text.is_empty() => bail!("--prompt: some text expected, found an empty prompt"),
        (Some(text), _) => vec![Prompt { name: "prompt".into(), text: text.clone(), raw: false }],
        (None, Some(file)) => prompts::read(file)?,
        (None, None) => prompts::builtin(),
    };
    prompts.iter_mut().for_each(|prompt| prompt.raw |= args.raw);
    Ok(prompts)
}

fn of_catalogue(pairing: &catalogue::Pairing, places: &Places) -> Item {
    let find = |name: &str| places.find(name).map_err(|absent| Status::Absent(absent.to_string()));
    Item {
        name: pairing.name.into(),
        kind: pairing.kind,
        target: find(pairing.target),
        drafter: Some(find(pairing.drafter)),
    }
}

/// The pairing that --target, --draft and --kind name.
fn item(args: &SweepArgs, target: &Path, places: &Places, environment: &Environment) -> Item {
    let given = |path: &Path| places.given(path).map_err(|absent| Status::Absent(absent.to_string()));
    let found = given(target);
    let (kind, drafter) = match (args.kind, &args.draft, &found) {
        (Some(kind), _, _) if !kind.needs_checkpoint() => (kind, None),
        (asked, Some(path), Ok(target)) => {
            let path = given(path);
            let kind = asked.or_else(|| kind_of(target, path.as_ref().ok()?).map(kind_name));
            (kind.unwrap_or(Kind::Mtp), Some(path))
        }
        (asked, Some(path), Err(_)) => (asked.unwrap_or(Kind::Mtp), Some(given(path))),
        (asked, None, Ok(target)) => match beside(target, environment).ok().flatten() {
            Some((path, kind)) => (asked.unwrap_or(kind_name(kind)), Some(Ok(path))),
            // Nothing beside it: plain decoding is all there is to measure.
            None => (asked.unwrap_or(Kind::None), None),
        },
        (asked, None, Err(_)) => (asked.unwrap_or(Kind::None), None),
    };
    let name =
        |path: &Path| path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    let target_name = name(target);
    let label = match drafter.as_ref().and_then(|path: &Result<PathBuf, Status>| path.as_ref().ok()) {
        Some(path) => format!("{target_name} + {}", name(path)),
        None if kind == Kind::Ngram => format!("{target_name} + ngram"),
        None => target_name,
    };
    Item { name: label, kind, target: found, drafter }
}

fn kind_name(kind: DraftKind) -> Kind {
    match kind {
        DraftKind::Mtp => Kind::Mtp,
        DraftKind::Classic => Kind::Classic,
        DraftKind::Ngram => Kind::Ngram,
    }
}
