//! Rows to test with: every field holds something, and the figures fit each other.

use crate::row::{Row, Spread, Status};

/// With six decimals: what short decimals say is read exactly from any format.
fn six(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// A measured row at a width; `Some(1)` is the plain arm, `None` adaptive.
pub fn row(pairing: &str, prompt: &str, k: Option<usize>) -> Row {
    let drafts = k.unwrap_or(4) as f64 - 1.0;
    let drafting = drafts > 0.0;
    let rate = 0.95 - 0.04 * drafts;
    let cost = 1.0 + 0.13 * drafts;
    let speedup = (1.0 + rate * drafts) / cost;
    let around = |median: f64| Some(Spread { median: six(median), min: six(median * 0.96), max: six(median * 1.03) });
    let if_drafting = |value: f64| drafting.then_some(six(value));
    Row {
        pairing: pairing.into(),
        target: format!("models/{pairing}"),
        drafter: drafting.then(|| format!("models/{pairing}-assistant")),
        kind: if drafting { "mtp" } else { "none" }.into(),
        batch: 1,
        k,
        k_effective: Some(k.map_or((1, 4), |k| (k, k))),
        prompt: prompt.into(),
        prompt_tokens: Some(21),
        generated_tokens: Some(128),
        repeat: 5,
        tokens_per_second: around(2000.0 * speedup),
        speedup: around(speedup),
        rounds: drafting.then_some(160),
        proposed: drafting.then_some(480),
        accepted: drafting.then_some(400),
        acceptance_rate: if_drafting(rate),
        mean_accepted_len: if_drafting(rate * drafts),
        tokens_per_round: if_drafting(1.0 + rate * drafts),
        depth_acceptance: (0..drafts as usize).map(|d| six(0.95 - 0.01 * d as f64)).collect(),
        ms_plain_step: Some(0.5),
        ms_draft: if_drafting(0.05 * drafts),
        ms_verify: if_drafting(0.5 + 0.01 * drafts),
        ms_rest: if_drafting(0.01),
        round_cost: if_drafting(cost),
        output_identical: drafting.then_some(true),
        probe: drafting.then(|| "exact".into()),
        simulated: false,
        simulated_acceptance: None,
        temperature: 0.0,
        top_p: 1.0,
        seed: 7,
        backend: "cpu int8 avx512-vnni".into(),
        device: "Some \"CPU\" @ 2,5 GHz".into(),
        threads: 2,
        version: "0.1.0".into(),
        commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
        date: "2026-11-30".into(),
        status: Status::Ok,
    }
}

/// A row of which nothing was measured.
pub fn unmeasured(pairing: &str, k: Option<usize>, status: Status) -> Row {
    Row {
        drafter: None,
        k_effective: None,
        prompt_tokens: None,
        generated_tokens: None,
        repeat: 0,
        tokens_per_second: None,
        speedup: None,
        rounds: None,
        proposed: None,
        accepted: None,
        acceptance_rate: None,
        mean_accepted_len: None,
        tokens_per_round: None,
        depth_acceptance: Vec::new(),
        ms_plain_step: None,
        ms_draft: None,
        ms_verify: None,
        ms_rest: None,
        round_cost: None,
        output_identical: None,
        probe: None,
        commit: None,
        status,
        ..row(pairing, "code", k)
    }
}

/// A sweep: two pairings at K = 1, 2, 4, 8 and adaptive over three prompts, and one that is absent.
pub fn sweep() -> Vec<Row> {
    let mut rows = Vec::new();
    for (pairing, offset) in [("gemma-4-tiny-4bit", 0.0), ("qwen3.5-tiny-4bit", -0.3)] {
        for (i, prompt) in ["instruction", "code", "prose"].into_iter().enumerate() {
            for k in [Some(1), Some(2), Some(4), Some(8), None] {
                let mut row = row(pairing, prompt, k);
                if k != Some(1)
                    && let (Some(speedup), Some(rate)) = (&mut row.speedup, &mut row.acceptance_rate)
                {
                    let drafts = k.unwrap_or(4) as f64 - 1.0;
                    let shift = offset + 0.04 * (i as f64 - 1.0) * drafts;
                    for value in [&mut speedup.median, &mut speedup.min, &mut speedup.max] {
                        *value = six(*value + shift);
                    }
                    *rate = six(*rate + 0.05 * (i as f64 - 1.0));
                    row.mean_accepted_len = Some(six(*rate * drafts));
                    row.tokens_per_round = Some(six(1.0 + *rate * drafts));
                }
                rows.push(row);
            }
        }
    }
    let why = "mlx-community/gemma-4-31b-it-4bit is not on disk; looked in models, models/mlx";
    rows.push(unmeasured("gemma-4-31b-bf16", Some(4), Status::Absent(why.into())));
    rows
}
