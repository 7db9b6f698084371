//! Traces of real runs, compared: a faulty host is told from another prompt.

mod common;

use common::{CODE, STORY, TestHost, gemma, plan, prompt, sweep};
use mlxcel_bench::compare::{Cause, compare};
use mlxcel_bench::host::Probed;
use mlxcel_bench::machine::Machine;
use mlxcel_bench::report::json::{self, Report};
use mlxcel_bench::runner::Plan;
use mlxcel_compute::fault::Fault;

/// A trace, as a file gives it.
fn trace(fault: Option<Fault>, prompts: &[(&str, &str)], batch: usize) -> Report {
    let probed = if fault.is_some() { Probed::Inexact("a fault".into()) } else { Probed::Exact };
    let mut host = TestHost { fault, probed, ..TestHost::default() };
    let prompts = prompts.iter().map(|(name, text)| prompt(name, text)).collect();
    let outcome =
        sweep(&Plan { prompts, batches: vec![batch], repeat: 1, trace: true, ..plan(vec![gemma()]) }, &mut host);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("trace.json");
    json::write(&file, &Report::new(Machine::here(), outcome.rows).with_traces(outcome.traces)).expect("written");
    json::read(&file).expect("read")
}

const BOTH: [(&str, &str); 2] = [("story", STORY), ("code", CODE)];

#[test]
fn a_host_that_computes_otherwise_is_found() {
    let good = trace(None, &BOTH, 2);
    assert_eq!(good.traces.len(), 2 * 2 * 2, "prompts, widths, sequences");
    let again = trace(None, &BOTH, 2);
    for line in compare(&good, &again) {
        assert!(matches!(line.cause, Cause::Same { rounds } if rounds > 10), "{line:?}");
    }
    // Other tokens: blocks that do not see their own keys.
    let lines = compare(&good, &trace(Some(Fault::StaleKeys), &BOTH, 2));
    assert_eq!(lines.len(), 4);
    let mut parted = 0;
    for line in lines {
        let Cause::Host { parting } = &line.cause else { panic!("{line:?}") };
        let (first, _) = parting.bits.expect("bits differ before tokens do");
        assert!(line.verdict().starts_with("host: "), "{}", line.verdict());
        if let Some(round) = parting.round {
            assert!(first <= round && parting.what.is_some() && parting.margin.is_some(), "{line:?}");
            parted += 1;
        }
    }
    assert!(parted > 0, "no row's tokens parted");
    // Other bits and the same tokens.
    let lines = compare(&good, &trace(Some(Fault::WideLinear), &BOTH, 2));
    let bits =
        |line: &&mlxcel_bench::compare::Line| matches!(&line.cause, Cause::Host { parting } if parting.bits.is_some());
    assert_eq!(lines.iter().filter(bits).count(), 4, "{lines:?}");
}

#[test]
fn another_prompt_is_not_the_hosts_doing() {
    let lines = compare(&trace(None, &BOTH[..1], 1), &trace(None, &BOTH[1..], 1));
    assert_eq!(lines.len(), 2);
    assert!(
        lines.iter().all(|line| line.cause == Cause::Prompt && line.prompts.1.as_deref() == Some("code")),
        "{lines:?}"
    );
}
