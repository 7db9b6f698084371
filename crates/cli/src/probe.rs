//! `mlxcel probe`: whether blocks of drafts get the bytes of single steps on this machine, and if not, which operation differs.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mlxcel_engine::speculate::probe::{Difference, Outcome, Probe, Progress, Report, Verdict, What};
use mlxcel_engine::speculate::verdict::Verdicts;
use mlxcel_text::Tokenizer;
use serde_json::{Value, json};

use crate::args::ProbeArgs;
use crate::draft;
use crate::load::{Loaded, open};
use crate::locate::Environment;

/// Exit status of a model that is not exact.
const INEXACT: u8 = 3;
/// Probes that take longer show how far they are.
const PATIENCE: Duration = Duration::from_secs(1);

/// A drafter as the report names it.
struct Drafter {
    path: Option<String>,
    kind: &'static str,
}

/// Runs the verb.
///
/// # Errors
/// A model that cannot be loaded or run; a drafter that does not fit it.
pub fn run(args: &ProbeArgs, environment: &Environment) -> Result<ExitCode> {
    let opened = open(&args.model, environment)?;
    let Loaded { pair, .. } = opened.pair(&args.model, &args.draft, environment, &mut draft::to_stderr(args.quiet))?;
    // Blocks are verified by the target alone: of the drafter only what it reads of them counts.
    let hidden = pair.drafter.as_ref().map(|drafter| drafter.hidden_rows()).unwrap_or_default();
    let drafter = pair.drafter.map(|drafter| {
        let info = drafter.info();
        Drafter { path: info.path.as_ref().map(|path| path.display().to_string()), kind: info.kind.name() }
    });
    let probe = Probe {
        widths: args.widths(),
        batches: args.batch.iter().map(|n| usize::from(*n)).collect(),
        draws: args.draws.into(),
        seed: args.seed,
        hidden,
        // Without a tokenizer every id may be somebody's.
        vocab: Tokenizer::load(&opened.path).ok().map(|tokenizer| tokenizer.vocab_size()),
        thorough: true,
        patience: None,
    };
    let mut model = pair.model;
    let bar = bar();
    let started = Instant::now();
    let report = probe.run(&mut *model, &mut |progress| advance(&bar, progress, started.elapsed(), args.quiet))?;
    bar.finish_and_clear();
    // The next start knows.
    if let Some(key) = draft::key(&*model, &opened.checkpoint) {
        Verdicts::at(environment.cache.clone()).put(&key, &report);
    }
    let verdict = report.verdict();
    // A reader that went away (head, a pager) is no error.
    let mut out = std::io::stdout();
    if args.json {
        let _ = writeln!(out, "{:#}", to_json(&report, &verdict, drafter.as_ref()));
    } else if !args.quiet {
        let _ = write!(out, "{}", to_text(&report, &verdict, drafter.as_ref()));
    }
    Ok(match verdict {
        Verdict::Exact => ExitCode::SUCCESS,
        Verdict::Inexact { .. } => ExitCode::from(INEXACT),
    })
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::hidden();
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} comparisons, {eta} left") {
        bar.set_style(style);
    }
    bar
}

fn advance(bar: &ProgressBar, progress: Progress, elapsed: Duration, quiet: bool) {
    if bar.is_hidden() && elapsed > PATIENCE && !quiet && std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
    }
    bar.set_length(progress.total as u64);
    bar.set_position(progress.done as u64);
}

fn to_text(report: &Report, verdict: &Verdict, drafter: Option<&Drafter>) -> String {
    let mut lines = vec![format!("model    {}", report.model.display()), format!("backend  {}", report.backend)];
    lines.extend(drafter.map(|drafter| match &drafter.path {
        Some(path) => format!("drafter  {path} ({})", drafter.kind),
        None => format!("drafter  {}", drafter.kind),
    }));
    lines.push(String::new());
    lines.extend(report.outcomes.iter().map(Outcome::to_string));
    lines.push(String::new());
    let seconds = report.elapsed.as_secs_f64();
    lines.push(match verdict {
        Verdict::Exact => format!("EXACT: every block has the bytes of single steps ({} draws, {seconds:.1} s)", report.draws),
        Verdict::Inexact { .. } => format!(
            "INEXACT: blocks of drafts would change answers, so that this model is served without ({} draws, {seconds:.1} s)",
            report.draws
        ),
    });
    lines.join("\n") + "\n"
}

fn to_json(report: &Report, verdict: &Verdict, drafter: Option<&Drafter>) -> Value {
    json!({
        "model": report.model.display().to_string(),
        "backend": report.backend,
        "drafter": drafter.map(|drafter| json!({ "path": drafter.path, "kind": drafter.kind })),
        "verdict": if *verdict == Verdict::Exact { "exact" } else { "inexact" },
        "seed": report.seed,
        "draws": report.draws,
        "seconds": report.elapsed.as_secs_f64(),
        "outcomes": report.outcomes.iter().map(outcome).collect::<Vec<_>>(),
    })
}

fn outcome(outcome: &Outcome) -> Value {
    json!({
        "width": outcome.width,
        "batch": outcome.batch,
        "mixed": outcome.mixed,
        "exact": outcome.is_exact(),
        "rows": outcome.rows,
        "bytes": outcome.bytes,
        "differing_bytes": outcome.differing,
        "states": outcome.states,
        "first": outcome.first.as_ref().map(difference),
    })
}

fn difference(first: &Difference) -> Value {
    let (what, token, logits) = match first.what {
        What::Logits { token, expected, found } => ("logits", Some(token), Some((expected, found))),
        What::State => ("state", None, None),
        What::Refused => ("take_back", None, None),
    };
    json!({
        "draw": first.draw,
        "sequence": first.sequence,
        "position": first.position,
        "what": what,
        "token": token,
        "expected": logits.map(|(expected, _)| expected),
        "found": logits.map(|(_, found)| found),
        "layer": first.site.and_then(|site| site.layer),
        "op": first.site.map(|site| site.op),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_model::tap::Site;

    fn report(first: Option<Difference>) -> Report {
        let differing = if first.is_some() { 7 } else { 0 };
        let outcome = Outcome { width: 4, batch: 1, mixed: false, rows: 8, bytes: 4096, differing, states: 0, first };
        Report {
            model: "models/one".into(),
            backend: "cpu".into(),
            seed: 3,
            draws: 2,
            hidden: mlxcel_model::drafters::HiddenRows::None,
            outcomes: vec![outcome],
            elapsed: Duration::from_millis(1500),
        }
    }

    #[test]
    fn an_inexact_model_is_reported_as_such() {
        let what = What::Logits { token: 5, expected: 1.5, found: -0.25 };
        let site = Some(Site { layer: Some(2), op: "attend" });
        let report = report(Some(Difference { draw: 1, sequence: 0, position: 37, what, site }));
        let verdict = report.verdict();
        let text = to_text(&report, &verdict, Some(&Drafter { path: Some("models/two".into()), kind: "mtp" }));
        for part in ["models/one", "models/two (mtp)", "K=4 B=1  INEXACT", "layer 2, attend", "\nINEXACT: ", "2 draws"]
        {
            assert!(text.contains(part), "{part:?} not in {text}");
        }
        let json = to_json(&report, &verdict, None);
        assert_eq!((&json["verdict"], &json["drafter"]), (&json!("inexact"), &Value::Null));
        let first = &json["outcomes"][0]["first"];
        assert_eq!(
            (&first["position"], &first["token"], &first["layer"], &first["op"]),
            (&json!(37), &json!(5), &json!(2), &json!("attend"))
        );
        assert_eq!(
            (&first["expected"], &first["found"], &first["what"]),
            (&json!(1.5), &json!(-0.25), &json!("logits"))
        );
    }

    #[test]
    fn an_exact_model_is_reported_as_such() {
        let report = report(None);
        let text = to_text(&report, &report.verdict(), None);
        assert!(
            text.contains("K=4 B=1  exact  8 rows") && text.contains("\nEXACT: ") && !text.contains("drafter"),
            "{text}"
        );
        let json = to_json(&report, &report.verdict(), None);
        assert_eq!((&json["verdict"], &json["outcomes"][0]["first"]), (&json!("exact"), &Value::Null));
    }
}
