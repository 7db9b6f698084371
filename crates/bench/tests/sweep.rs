//! Sweeps over the demo pairs: figures that hold together, statuses in place of aborts, outputs compared for real.

mod common;

use common::{CODE, STORY, TestHost, gemma, item, models, plan, prompt, sweep};
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_bench::catalogue::Kind;
use mlxcel_bench::host::Probed;
use mlxcel_bench::row::{Row, Status};
use mlxcel_bench::runner::{Item, Plan};
use mlxcel_compute::fault::Fault;
use mlxcel_cpu::Precision;
use mlxcel_engine::sample::SamplingParams;
use serde_json::Value;

/// mean_accepted_len = acceptance_rate x (K - 1).
fn is_related(row: &Row) -> bool {
    let (Some(k), Some(rate), Some(len)) = (row.k, row.acceptance_rate, row.mean_accepted_len) else { return false };
    (len - rate * (k - 1) as f64).abs() < 1e-9
}

fn is_constant(row: &Row) -> bool {
    row.k.is_some_and(|k| k > 1 && row.k_effective == Some((k, k)))
}

/// The prompts of a golden.json as tokens, the host that knows them, and the reference rate at a width.
fn golden(target: &str) -> (TestHost, Vec<String>, impl Fn(usize) -> f64) {
    let text = std::fs::read_to_string(models().join(target).join("golden.json")).expect("golden.json");
    let golden = serde_json::from_str::<Value>(&text).expect("JSON")["speculative"].clone();
    let prompts: Vec<Value> = match &golden["prompts"] {
        Value::Array(prompts) => prompts.clone(),
        Value::Object(prompts) => prompts.values().cloned().collect(),
        other => panic!("{other}"),
    };
    let mut host = TestHost { precision: Precision::F32, ..TestHost::default() };
    let mut names = Vec::new();
    for (number, prompt) in prompts.iter().enumerate() {
        let ids = prompt["prompt_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as u32);
        names.push(format!("golden {number}"));
        host.ids.insert(format!("golden {number}"), ids.collect());
    }
    let rate = move |k: usize| {
        let rates = [&golden["K"][k.to_string()]["accept_rate"], &golden["by_K"][k.to_string()]["acceptance"]];
        rates.iter().find_map(|rate| rate.as_f64()).expect("a rate")
    };
    (host, names, rate)
}

/// Both pairs as their references ran: rates within 0.02, outputs identical, and the relation of rate and length at every
/// constant width.
#[test]
fn acceptance_is_that_of_the_references() {
    for (target, drafter, ignore_eos) in [
        ("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-bf16", false),
        ("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit", true),
    ] {
        let (mut host, names, reference) = golden(target);
        let outcome = sweep(
            &Plan {
                ks: vec![Some(2), Some(4), Some(8)],
                prompts: names.iter().map(|name| prompt(name, "")).collect(),
                max_tokens: 128,
                ignore_eos,
                repeat: 1,
                ..plan(vec![item("pair", Kind::Mtp, target, Some(drafter))])
            },
            &mut host,
        );
        assert_eq!((outcome.exit_code(), outcome.rows.len()), (0, 4 * names.len()));
        assert!(outcome.rows.iter().all(|row| row.output_identical == Some(true) && row.status == Status::Ok));
        for k in [2, 4, 8] {
            let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.k == Some(k)).collect();
            let sum = |what: fn(&Row) -> Option<usize>| rows.iter().filter_map(|row| what(row)).sum::<usize>() as f64;
            let rate = sum(|row| row.accepted) / sum(|row| row.proposed);
            println!("{target}, {drafter}, K={k}: acceptance {rate:.4}, reference {:.4}", reference(k));
            assert!((rate - reference(k)).abs() <= 0.02, "{target} K={k}: {rate:.4}, {:.4} expected", reference(k));
            let constant = rows.iter().filter(|row| is_constant(row)).count();
            assert!(constant * 2 > rows.len(), "{constant} of {} rows have a constant width", rows.len());
            assert!(rows.iter().filter(|row| is_constant(row)).all(|row| is_related(row)));
        }
    }
}

#[test]
fn warm_up_runs_are_not_counted() {
    let rounds = |warmup, repeat| -> Vec<Option<usize>> {
        let short = Plan { warmup, repeat, max_tokens: 16, ..plan(vec![gemma()]) };
        let outcome = sweep(&short, &mut TestHost::default());
        assert!(outcome.rows.iter().all(|row| row.repeat == repeat && row.status == Status::Ok));
        outcome.rows.iter().map(|row| row.rounds).collect()
    };
    let one = rounds(0, 1);
    assert!(one.iter().flatten().any(|n| *n > 0), "{one:?}");
    assert_eq!(rounds(2, 1), one);
    // The twin: runs that count are seen.
    assert_ne!(rounds(0, 3), one);
}

#[test]
fn every_cell_of_a_measured_row_is_filled() {
    let outcome = sweep(&Plan { batches: vec![1, 3], ..plan(vec![gemma()]) }, &mut TestHost::default());
    assert_eq!((outcome.rows.len(), outcome.exit_code()), (6, 0));
    for row in &outcome.rows {
        assert_eq!((&row.status, row.output_identical), (&Status::Ok, Some(true)));
        assert!(row.generated_tokens.expect("tokens") >= 40 * row.batch && row.prompt_tokens > Some(10));
        let rate = row.tokens_per_second.expect("measured");
        assert!(rate.min > 0.0 && rate.min <= rate.median && rate.median <= rate.max);
        assert!(row.ms_plain_step > Some(0.0) && row.speedup.is_some() && row.repeat == 2);
        assert!(!row.version.is_empty() && row.date.len() == 10 && row.backend.contains("int8"));
        let Some(k) = row.k.filter(|k| *k > 1) else {
            assert_eq!(
                (row.kind.as_str(), row.acceptance_rate, &row.probe, row.drafter.as_ref()),
                ("none", None, &None, None)
            );
            assert_eq!(row.speedup.map(|s| (s.min, s.max)), Some((1.0, 1.0)));
            continue;
        };
        assert_eq!((row.kind.as_str(), row.probe.as_deref()), ("mtp", Some("exact")));
        assert!(is_constant(row) && is_related(row), "{row:?}");
        assert_eq!(row.depth_acceptance.len(), k - 1);
        let parts = row.ms_draft.expect("ms") + row.ms_verify.expect("ms") + row.ms_rest.expect("ms");
        let cost = row.round_cost.expect("cost");
        assert!((parts / row.ms_plain_step.expect("ms") - cost).abs() < 1e-9 && cost > 0.5);
        assert!((row.tokens_per_round.expect("tokens") - row.mean_accepted_len.expect("len") - 1.0).abs() < 1e-9);
    }
    // Three sequences with one prompt: three times the rounds of one.
    let rounds = |batch| outcome.rows.iter().find(|r| r.batch == batch && r.k == Some(4)).and_then(|r| r.rounds);
    assert_eq!(rounds(3), rounds(1).map(|r| 3 * r));
}

#[test]
fn sampled_runs_are_identical_too() {
    let sampling = SamplingParams { temperature: 0.8, top_p: 0.95, seed: 5, ..SamplingParams::default() };
    let outcome = sweep(&Plan { sampling, batches: vec![2], ..plan(vec![gemma()]) }, &mut TestHost::default());
    assert!(
        outcome.rows.iter().all(|row| row.output_identical == Some(true) && row.temperature == 0.8),
        "{:?}",
        outcome.rows
    );
}

/// The twin of every `output_identical`: blocks that do not see their own keys say something else.
#[test]
fn an_output_that_differs_is_seen() {
    let mut host =
        TestHost { fault: Some(Fault::StaleKeys), probed: Probed::Inexact("a fault".into()), ..TestHost::default() };
    let prompts = vec![prompt("story", STORY), prompt("code", CODE)];
    let outcome = sweep(&Plan { ks: vec![Some(8)], prompts, max_tokens: 80, ..plan(vec![gemma()]) }, &mut host);
    let differ = |row: &Row| row.k == Some(8) && row.output_identical == Some(false);
    assert!(outcome.rows.iter().any(differ), "{:?}", outcome.rows);
    assert_eq!(outcome.exit_code(), 3);
    assert_eq!(outcome.rows[0].output_identical, Some(true), "plain decoding agrees with itself");
    assert_eq!(outcome.rows[1].probe.as_deref(), Some("inexact: a fault"));
    assert!(host.said.iter().any(|line| line.contains("OUTPUT DIFFERS")));
}

#[test]
fn what_cannot_be_measured_has_a_status_and_the_rest_runs() {
    let absent = |what: &str| Err(Status::Absent(what.into()));
    let mut nowhere = gemma();
    (nowhere.name, nowhere.target) = ("nowhere".into(), absent("no such target"));
    let mut alone = gemma();
    (alone.name, alone.drafter) = ("alone".into(), Some(absent("no such drafter")));
    let odd = item("odd", Kind::Mtp, "qwen3.5-tiny-4bit", Some("gemma-4-tiny-it-assistant-4bit"));
    let later = item("later", Kind::Dflash, "qwen3.5-tiny-4bit", Some("qwen3.5-tiny-mtp-4bit"));
    let mut host = TestHost::default();
    let items = vec![nowhere, alone, odd, later, gemma()];
    let prompts = vec![prompt("none", ""), prompt("story", STORY)];
    let ks = vec![Some(1), Some(4), Some(17)];
    let outcome = sweep(&Plan { ks, prompts, max_tokens: 12, repeat: 1, ..plan(items) }, &mut host);
    let status = |pairing: &str, prompt: &str, k| {
        let row = outcome.rows.iter().find(|r| (r.pairing.as_str(), r.prompt.as_str(), r.k) == (pairing, prompt, k));
        row.unwrap_or_else(|| panic!("{pairing} {prompt} {k:?}")).status.text()
    };
    let of = |pairing: &str| outcome.rows.iter().find(|row| row.pairing == pairing).expect("a row").status.text();
    assert_eq!(of("nowhere"), "absent: no such target");
    assert_eq!(of("alone"), "absent: no such drafter");
    assert!(of("odd").starts_with("skipped: the drafter") && of("odd").contains("cannot draft for"), "{}", of("odd"));
    assert!(of("later").starts_with("skipped: deferred"), "{}", of("later"));
    assert_eq!(status("gemma", "none", Some(1)), "failed: prompt none: empty");
    assert_eq!(status("gemma", "story", Some(4)), "ok");
    assert!(status("gemma", "story", Some(17)).starts_with("skipped: K is 17; at most 16"));
    let one = outcome.rows.iter().filter(|r| r.k == Some(1) && r.prompt == "story").map(|r| r.status.text());
    assert_eq!(
        one.collect::<Vec<_>>(),
        ["ok", "skipped: K is 1; at least 2 expected (K = 1 is plain decoding, which has a row)"]
    );
    assert_eq!(outcome.exit_code(), 1);
    // A drafter that is not there is no reason to load its target.
    assert_eq!(host.loads.len(), 2, "{:?}", host.loads);
}

#[test]
fn exit_codes_say_what_happened() {
    let mut nowhere = gemma();
    nowhere.target = Err(Status::Absent("no such target".into()));
    let short = |items| Plan { max_tokens: 8, repeat: 1, ks: vec![Some(2)], ..plan(items) };
    assert_eq!(sweep(&short(vec![nowhere.clone()]), &mut TestHost::default()).exit_code(), 2);
    assert_eq!(sweep(&short(vec![nowhere, gemma()]), &mut TestHost::default()).exit_code(), 0);
    let mut declined = TestHost { probed: Probed::Declined("a probe says no".into()), ..TestHost::default() };
    let outcome = sweep(&short(vec![gemma()]), &mut declined);
    assert_eq!((outcome.exit_code(), outcome.rows[1].status.text().as_str()), (1, "skipped: a probe says no"));
    assert!(outcome.rows[1].tokens_per_second.is_none(), "no unsound number");
}

#[test]
fn an_interrupted_sweep_keeps_what_it_has() {
    let mut host = TestHost { patience: 12, ..TestHost::default() };
    let prompts = (0..9).map(|i| prompt(&format!("story {i}"), STORY)).collect();
    let outcome = sweep(&Plan { prompts, max_tokens: 8, ..plan(vec![gemma(), gemma()]) }, &mut host);
    assert!(outcome.interrupted && outcome.exit_code() == 130);
    assert!((3..9).contains(&outcome.rows.len()), "{}", outcome.rows.len());
    assert!(outcome.rows[..3].iter().all(|row| row.status == Status::Ok));
    // Turns go there and back again, so the end may come when an arm has run and plain decoding, which it is compared with, has not.
    let mut unmeasured = 0;
    for patience in 1..10 {
        let mut host = TestHost { patience, ..TestHost::default() };
        let outcome = sweep(&Plan { max_tokens: 8, warmup: 1, ..plan(vec![gemma()]) }, &mut host);
        assert!(outcome.interrupted && outcome.exit_code() == 130, "{patience}: {:?}", outcome.rows);
        assert!(outcome.rows.iter().all(|row| row.output_identical != Some(false)), "{patience}: {:?}", outcome.rows);
        unmeasured += outcome.rows.iter().filter(|row| row.status.text().contains("nothing to compare")).count();
    }
    assert!(unmeasured > 0, "no sweep ended there");
    // A sink that fails ends the sweep with its error.
    let mut host = TestHost::default();
    let error = mlxcel_bench::runner::run(&plan(vec![gemma()]), &mut host, |_| Err("the disk is full"));
    assert_eq!(error.expect_err("went on"), "the disk is full");
}

#[test]
fn scripted_drafters_are_right_as_often_as_told() {
    for probability in [0.5, 0.9] {
        let prompts = vec![prompt("story", STORY), prompt("code", CODE)];
        let plain = item("gemma", Kind::None, "gemma-4-tiny-it-4bit", None);
        let ks = vec![Some(2)];
        let simulate = Some(probability);
        let outcome = sweep(
            &Plan { ks, prompts, max_tokens: 200, repeat: 1, simulate, ..plan(vec![plain]) },
            &mut TestHost::default(),
        );
        for row in outcome.rows.iter().filter(|row| row.k == Some(2)) {
            let rate = row.acceptance_rate.expect("drafted");
            assert!((rate - probability).abs() < 0.12, "{rate}, {probability} wanted");
            assert!(row.simulated && row.kind == "simulated" && row.drafter.is_none());
            assert_eq!(row.output_identical, Some(true));
        }
        assert!(outcome.rows.iter().all(|row| row.simulated == (row.k != Some(1))));
    }
}

/// With a drafter its forward runs as often as it would, its tokens are replaced, and answers stay what they are.
#[test]
fn scripted_drafts_cost_what_the_drafter_costs() {
    let qwen = item("qwen", Kind::Mtp, "qwen3.5-tiny-4bit", Some("qwen3.5-tiny-mtp-4bit"));
    for pairing in [gemma(), qwen] {
        for probability in [0.0, 0.7, 1.0] {
            let mut host = TestHost::default();
            let script = Plan {
                ks: vec![Some(4)],
                max_tokens: 60,
                repeat: 1,
                simulate: Some(probability),
                trace: true,
                ..plan(vec![pairing.clone()])
            };
            let outcome = sweep(&script, &mut host);
            let row = &outcome.rows[1];
            let name = row.drafter.as_deref().and_then(|path| path.rsplit('/').next()).expect("a drafter").to_string();
            assert_eq!((row.output_identical, row.simulated_acceptance), (Some(true), Some(probability)), "{name}");
            let words = format!("simulated acceptance {probability}, drafter {name}'s forward");
            assert!(host.said.iter().any(|line| line.contains(&words)), "{:?}", host.said);
            assert_eq!(words_of(row), format!("ok, {words}"));
            if probability == 0.0 || probability == 1.0 {
                assert_eq!(row.acceptance_rate, Some(probability));
            }
            // The traced run is one more of the same rounds.
            let rounds: Vec<usize> = outcome.traces[0].rounds.iter().map(|round| round.proposed.len()).collect();
            let drafted = rounds.iter().filter(|drafts| **drafts > 0).count();
            let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
            assert!(drafted > 10, "{rounds:?}");
            assert_eq!(count(&host.counts.proposals), 2 * drafted, "{name} at {probability}");
            assert_eq!(count(&host.counts.depths), 2 * rounds.iter().sum::<usize>(), "{name} at {probability}");
            assert!(count(&host.counts.observed) >= 2 * drafted);
            // The twin: without the drafter the same rounds run, and nothing is counted.
            let mut bare = TestHost::default();
            let alone = sweep(&Plan { items: vec![plain(&pairing)], ..script }, &mut bare);
            assert_eq!((alone.rows[1].rounds, alone.rows[1].accepted), (row.rounds, row.accepted));
            assert_eq!((count(&bare.counts.proposals), alone.rows[1].drafter.as_ref()), (0, None));
            assert_eq!(words_of(&alone.rows[1]), format!("ok, simulated acceptance {probability}"));
        }
    }
}

/// The pairing's target alone.
fn plain(pairing: &Item) -> Item {
    Item { kind: Kind::None, drafter: None, ..pairing.clone() }
}

fn words_of(row: &Row) -> String {
    mlxcel_bench::report::words::status(row)
}

#[test]
fn prompt_lookup_and_adaptive_widths_are_measured() {
    let ngram = item("lookup", Kind::Ngram, "gemma-4-tiny-it-4bit", None);
    let plan = Plan {
        ks: vec![Some(4), None],
        max_tokens: 80,
        prompts: vec![prompt("code", CODE)],
        ..plan(vec![ngram, gemma()])
    };
    let outcome = sweep(&plan, &mut TestHost::default());
    assert_eq!((outcome.exit_code(), outcome.rows.len()), (0, 6));
    let adaptive = outcome.rows.iter().find(|row| row.pairing == "gemma" && row.k.is_none()).expect("a row");
    let (low, high) = adaptive.k_effective.expect("widths");
    assert!((1..=16).contains(&low) && low <= high && high <= 16, "{low} {high}");
    assert!(outcome.rows.iter().all(|row| row.output_identical == Some(true)));
    assert_eq!(outcome.rows[1].kind, "ngram");
}

#[test]
fn answers_that_end_are_measured_to_their_end() {
    // Asked for the model's own stop token at once, there is nothing to measure.
    let prompts = vec![prompt("question", "<|turn>user\nWhat is speculative decoding?<turn|>\n<|turn>model\n")];
    let plan = Plan { prompts, ignore_eos: false, max_tokens: 128, ..plan(vec![gemma()]) };
    let outcome = sweep(&plan, &mut TestHost::default());
    assert_eq!(outcome.exit_code(), 0);
    let tokens: Vec<_> = outcome.rows.iter().map(|row| row.generated_tokens).collect();
    assert!(tokens.iter().all(|n| *n == tokens[0] && *n < Some(128)), "{tokens:?}");
    assert!(outcome.rows.iter().all(|row| row.output_identical == Some(true)));
}
