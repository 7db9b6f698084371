//! `speculative_bench cost`: what the target's forward passes take, on their own.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use mlxcel_bench::cost::{Cost, Plan, Timed, measure};
use mlxcel_bench::machine::{COMMIT, Machine, VERSION};
use mlxcel_bench::report::table::{Align, Table};
use mlxcel_checkpoint::Checkpoint;
use serde_json::{Value, json};

use crate::bench::args::CostArgs;
use crate::draft;
use crate::load::Opened;
use crate::locate::Environment;

/// Runs the verb.
///
/// # Errors
/// A target that cannot be loaded, or whose context does not hold what was asked for.
pub fn run(args: &CostArgs, environment: &Environment) -> Result<ExitCode> {
    let path = environment.model(Some(&args.target))?;
    let checkpoint = Checkpoint::open(&path)?;
    let backend = args.wish().open(environment, &mut draft::to_stderr(false))?;
    let mut model = Opened { path, checkpoint }.model(&backend)?;
    let began = Instant::now();
    let plan = plan(args, model.step_rows());
    let cost = measure(&mut *model, &plan, &mut || began.elapsed().as_secs_f64())?;
    let about = json!({
        "target": model.info().name,
        "weight_bytes": model.info().weight_bytes(),
        "backend": model.backend(),
        "threads": backend.threads(args.threads),
        "device": backend.accelerator().unwrap_or_else(|| Machine::here().device),
        "version": VERSION,
        "commit": COMMIT,
    });
    let text = if args.json { format!("{:#}\n", to_json(&cost, about)?) } else { to_text(&cost, &model.backend()) };
    // A reader that went away (head, a pager) is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &CostArgs, step_rows: usize) -> Plan {
    let numbers = |list: &[u32]| list.iter().map(|n| *n as usize).collect();
    Plan {
        prompt: args.prompt as usize,
        contexts: numbers(&args.contexts),
        batches: numbers(&args.batches),
        tokens: args.tokens as usize,
        widths: numbers(&args.widths),
        block_context: args.block_context as usize,
        repeat: args.repeat as usize,
        step_rows,
    }
}

fn to_json(cost: &Cost, about: Value) -> Result<Value> {
    let mut value = serde_json::to_value(cost)?;
    if let (Value::Object(value), Value::Object(about)) = (&mut value, about) {
        value.extend(about);
    }
    Ok(value)
}

fn to_text(cost: &Cost, backend: &str) -> String {
    let right = |title| (title, Align::Right);
    let titles = [
        ("what", Align::Left),
        right("context"),
        right("batch"),
        right("rows"),
        right("tok/s"),
        right("ms"),
        right("t(K)/t(1)"),
    ];
    let mut table = Table::new(&titles);
    let mut push = |what: &str, timed: &Timed, ratio: String| {
        let places = [timed.context, timed.batch, timed.rows].map(|n| n.to_string());
        let numbers = [format!("{:.1}", timed.rate()), format!("{:.3}", timed.median() * 1e3), ratio];
        table.push([what.into()].into_iter().chain(places).chain(numbers));
    };
    let nothing = || "-".to_string();
    cost.prefill.iter().for_each(|timed| push("prefill", timed, nothing()));
    cost.decode.iter().for_each(|timed| push("decode", timed, nothing()));
    let one = cost.verify.iter().find(|timed| timed.rows == 1).map(Timed::median);
    for timed in &cost.verify {
        push("verify", timed, one.map_or_else(nothing, |one| format!("{:.2}", timed.median() / one)));
    }
    format!("{backend}, medians\n{}", table.plain())
}
