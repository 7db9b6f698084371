//! The identity law on scripted models and drafters: tokens, text, finish reason, usage and log-probabilities (as bits) are those of
//! plain decoding, whatever is drafted, at whatever width, in whatever company, and nothing leaks.

mod common;

use common::drafts::{Known, Plan, WideBlocks};
use common::scripted::{Row, SMALL, Scripted, hash_row};
use common::{Answer, Driver, Rng, alone, tokenizer};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::speculate::{MAX_BLOCK, Rounds};
use mlxcel_engine::{Engine, EngineOptions, Request, Speculation};
use mlxcel_model::Model;
use mlxcel_model::drafters::Classic;

const WIDTHS: [usize; 6] = [2, 3, 4, 5, 8, 16];
const BATCHES: [usize; 4] = [1, 2, 4, 8];

fn model(recurrent: bool) -> Box<dyn Model> {
    let script = |seen: &[u32]| Row::Logits(hash_row(seen));
    if recurrent { Scripted::recurrent(SMALL, script) } else { Scripted::model(SMALL, script) }
}

/// Every way a token is chosen.
fn samplings() -> Vec<SamplingParams> {
    let greedy = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
    let sampled = |seed| SamplingParams { temperature: 0.8, top_p: 0.95, seed, ..greedy.clone() };
    vec![
        greedy.clone(),
        sampled(1),
        sampled(2),
        sampled(3),
        SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            frequency_penalty: 0.3,
            temperature: 0.7,
            ..sampled(4)
        },
        SamplingParams { logit_bias: vec![(430, 3.0), (441, -100.0), (1, 2.0)], ..greedy },
    ]
}

fn prompts(count: usize) -> Vec<Vec<u32>> {
    let mut rng = Rng(17);
    // The number comes first, so that no prompt begins another.
    (0..count)
        .map(|i| [vec![420 + i as u32], (0..rng.below(30)).map(|_| 420 + rng.below(80) as u32).collect()].concat())
        .collect()
}

fn requests(count: usize, tokens: usize, change: impl Fn(usize, &mut Request)) -> Vec<Request> {
    let samplings = samplings();
    let mut out = Vec::new();
    for (i, prompt) in prompts(count).into_iter().enumerate() {
        let sampling = samplings[i % samplings.len()].clone();
        let mut request = Request { prompt, sampling, max_tokens: Some(tokens), ..Request::default() };
        change(i, &mut request);
        out.push(request);
    }
    out
}

/// Answers of fresh engines without a drafter, and the whole sequences.
fn plain(recurrent: bool, requests: &[Request]) -> (Vec<Answer>, Vec<Vec<u32>>) {
    let answers: Vec<Answer> = requests.iter().map(|r| alone(model(recurrent), r.clone())).collect();
    let truths = requests.iter().zip(&answers).map(|(r, a)| [r.prompt.clone(), a.tokens.clone()].concat()).collect();
    (answers, truths)
}

fn options(parallel: usize, reuse: bool) -> EngineOptions {
    EngineOptions { parallel, reuse, step_rows: 40, context: Some(256), state_cache: 3000, ..EngineOptions::default() }
}

fn driver(recurrent: bool, truths: &[Vec<u32>], plan: Plan, k: usize, options: EngineOptions) -> Driver {
    let speculation = Speculation { block_size: Some(k), calibrate: 0, ..Speculation::default() };
    let drafter = Known::boxed(truths.to_vec(), plan, SMALL);
    let engine = Engine::with_drafter(model(recurrent), tokenizer(), options, drafter, speculation);
    Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
}

/// Runs the requests under a plan and compares; counts of the rounds.
fn check(
    recurrent: bool,
    requests: &[Request],
    want: &[Answer],
    truths: &[Vec<u32>],
    plan: Plan,
    k: usize,
    b: usize,
) -> Rounds {
    let what = format!("{plan:?}, K={k}, B={b}, recurrent {recurrent}");
    let mut driver = driver(recurrent, truths, plan, k, options(b, false));
    let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
    driver.run();
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(driver.done[id].answer, want[i], "{what}: request {i}");
    }
    assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "{what}: pages leaked");
    driver.engine.speculator().expect("a drafter").totals()
}

#[test]
fn any_drafts_at_any_width_in_any_company() {
    // Each prompt with one kind of sampling, or with all (MLXCEL_IDENTITY=full).
    let kinds = if std::env::var("MLXCEL_IDENTITY").is_ok_and(|v| v == "full") { samplings().len() } else { 1 };
    for (recurrent, kind) in [false, true].into_iter().flat_map(|r| (0..kinds).map(move |kind| (r, kind))) {
        let requests = requests(42, 24, |i, r| r.sampling = samplings()[(i + kind) % samplings().len()].clone());
        let (want, truths) = plain(recurrent, &requests);
        for k in WIDTHS {
            for b in BATCHES {
                let all = check(recurrent, &requests, &want, &truths, Plan::Oracle, k, b);
                assert_eq!(all.acceptance_rate(), Some(1.0), "an oracle is always right");
                // Snapshots and the ends of answers cut blocks short.
                let cut = if recurrent { 1.5 } else { (k as f64 * 0.7).min(8.0) };
                assert!(all.tokens_per_round().expect("rounds") > cut, "K={k}: {all:?}");
                let none = check(recurrent, &requests, &want, &truths, Plan::Wrong, k, b);
                assert_eq!((none.accepted, none.emitted), (0, none.rounds));
                assert!(none.rounds > 300, "{none:?}");
                check(recurrent, &requests, &want, &truths, Plan::Wild((k * b) as u64), k, b);
            }
        }
    }
}

#[test]
fn right_then_wrong_at_every_depth() {
    for recurrent in [false, true] {
        let requests = requests(12, 30, |_, _| {});
        let (want, truths) = plain(recurrent, &requests);
        for depth in 0..MAX_BLOCK - 1 {
            for (k, b) in [(MAX_BLOCK, 1), (depth + 2, 4)] {
                let rounds = check(recurrent, &requests, &want, &truths, Plan::RightThenWrong(depth), k, b);
                assert!(rounds.accepted <= rounds.rounds * depth as u64, "depth {depth}: {rounds:?}");
                assert!(depth == 0 || rounds.accepted > 0, "depth {depth}: {rounds:?}");
            }
        }
    }
}

/// Tokens that end an answer, drafted where the target does not choose them, and where it does.
#[test]
fn ends_inside_a_block_are_where_plain_decoding_ends() {
    let letters = ["e", "th", "an"];
    for recurrent in [false, true] {
        // The scripted rows end answers now and then; a bias makes that frequent, stop strings and stop ids as well.
        let requests = requests(24, 40, |i, r| {
            match i % 4 {
                0 => r.sampling.logit_bias = vec![(1, 6.0)],
                1 => r.stop = vec![letters[i % 3].into(), "qu".into()],
                2 => r.stop_ids = (430..440).collect(),
                _ => r.max_tokens = Some(1 + i % 9),
            };
            r.sampling.temperature = 1.5;
            r.sampling.seed = i as u64;
        });
        let (want, truths) = plain(recurrent, &requests);
        let reasons: std::collections::HashSet<_> = want.iter().map(|a| format!("{:?}", a.reason)).collect();
        assert!(reasons.len() > 4, "answers end in several ways: {reasons:?}");
        let stop_text = tokenizer().encode_plain("e").expect("ids")[0];
        for depth in 0..MAX_BLOCK - 1 {
            for token in [1, 106, 433, stop_text] {
                check(recurrent, &requests, &want, &truths, Plan::Inject(depth, token), MAX_BLOCK, 4);
            }
            for (k, b) in [(depth + 2, 1), (depth + 2, 8)] {
                check(recurrent, &requests, &want, &truths, Plan::Oracle, k, b);
            }
        }
    }
}

/// A conversation that goes on finds its cache as plain decoding leaves it, and answers the same from it.
#[test]
fn warm_caches_are_those_of_plain_decoding() {
    for recurrent in [false, true] {
        let first = requests(30, 21, |_, r| r.ignore_eos = true);
        let (_, truths) = plain(recurrent, &first);
        // The next turn: the whole answer and more, or part of it and something else.
        let second: Vec<Request> = first
            .iter()
            .zip(&truths)
            .enumerate()
            .map(|(i, (r, t))| Request { prompt: [&t[..t.len() - i % 7], &[425, 426][..]].concat(), ..r.clone() })
            .collect();
        let (want, more) = plain(recurrent, &second);
        let truths = [truths, more].concat();
        let mut reused = 0;
        for (plan, k) in [(Plan::Oracle, 4), (Plan::Wrong, 8), (Plan::Wild(3), 5), (Plan::Oracle, 16)] {
            let mut fast = driver(recurrent, &truths, plan.clone(), k, options(1, true));
            let mut slow = Driver::new(model(recurrent), options(1, true));
            for i in 0..first.len() {
                assert_eq!(fast.ask(first[i].clone()).answer, slow.ask(first[i].clone()).answer);
                let (f, s) = (fast.ask(second[i].clone()), slow.ask(second[i].clone()));
                assert_eq!(f.answer, want[i], "{plan:?}, K={k}, recurrent {recurrent}, request {i}");
                assert_eq!(f.cached_tokens, s.cached_tokens, "{plan:?}, K={k}, recurrent {recurrent}, request {i}");
                reused += f.cached_tokens;
            }
        }
        assert!(reused > 1000, "{reused} positions reused");
    }
}

/// Requests name their own width, and neighbours do not matter.
#[test]
fn requests_pin_their_own_width() {
    let requests = requests(20, 20, |i, r| {
        r.block_size = Some(1 + i % MAX_BLOCK);
        r.ignore_eos = true;
    });
    let (want, truths) = plain(false, &requests);
    check(false, &requests, &want, &truths, Plan::Oracle, 4, 8);
    let mut driver = driver(false, &truths, Plan::Oracle, 8, options(1, false));
    for request in &requests {
        let id = driver.submit(request.clone());
        driver.run();
        let plain = request.block_size == Some(1);
        let what = format!("K={:?}: {:?} {:?}", request.block_size, driver.rounds[&id], driver.done[&id].answer);
        assert_eq!(driver.rounds[&id].rounds == 0, plain, "{what}");
        let width = driver.rounds[&id].tokens_per_round().unwrap_or(1.0);
        assert!(width <= request.block_size.expect("set") as f64 + 1e-9);
    }
    let refused = driver.engine.submit(Request { block_size: Some(17), ..requests[0].clone() }).expect_err("accepted");
    assert_eq!(refused.to_string(), "block_size: 1 to 16 expected, found 17");
}

/// A drafter that fails or panics is given up with one warning, and answers go on.
#[test]
fn a_failing_drafter_costs_no_answer() {
    for plan in [Plan::FailAfter(5), Plan::PanicAfter(5)] {
        let requests = requests(12, 20, |_, _| {});
        let (want, truths) = plain(false, &requests);
        let mut driver = driver(false, &truths, plan.clone(), 4, options(4, false));
        driver.panics = matches!(plan, Plan::PanicAfter(_));
        let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
        driver.run();
        for (id, want) in ids.iter().zip(&want) {
            assert_eq!(driver.done[id].answer, *want, "{plan:?}");
        }
        let warnings = driver.engine.take_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("drafter failed"), "{warnings:?}");
        assert!(driver.engine.speculator().expect("a drafter").failure().is_some());
    }
}

/// As engines run by default: widths measured and adapted, some requests pinned, some plain; and with what an operator may pin.
#[test]
fn adapted_widths_change_no_answer() {
    for recurrent in [false, true] {
        let requests = requests(24, 150, |i, r| {
            r.ignore_eos = i % 2 == 0;
            r.block_size = [None, None, None, Some(1), Some(7)][i % 5];
        });
        let (want, truths) = plain(recurrent, &requests);
        for (plan, adaptive, alone) in [
            (Plan::Oracle, true, None),
            (Plan::Wrong, true, None),
            (Plan::Wild(5), true, None),
            (Plan::Wild(6), false, None),
            (Plan::Oracle, true, Some(true)),
            (Plan::Wild(7), true, Some(false)),
        ] {
            for parallel in [1, 4] {
                let speculation = Speculation { adaptive, alone, ..Speculation::default() };
                let drafter = Known::boxed(truths.clone(), plan.clone(), SMALL);
                let options = options(parallel, false);
                let engine = Engine::with_drafter(model(recurrent), tokenizer(), options, drafter, speculation);
                let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
                let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
                // One is broken off while it drafts; the others do not notice.
                driver.steps(9);
                driver.cancel(ids[2]);
                driver.run();
                for (i, id) in ids.iter().enumerate().filter(|(i, _)| *i != 2) {
                    assert_eq!(driver.done[id].answer, want[i], "{plan:?}, {alone:?}, B={parallel}: request {i}");
                }
                assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
            }
        }
    }
}

/// Another model as drafter, fed what it missed, taken back and handed on; and the target itself, which is always right.
#[test]
fn a_model_drafts_for_another() {
    for recurrent in [false, true] {
        for own_state in [false, true] {
            let requests = requests(18, 40, |i, r| {
                r.ignore_eos = true;
                r.sampling.temperature = 0.0;
                r.block_size = Some([2, 4, 7, 16][i % 4]);
            });
            let (want, _) = plain(recurrent, &requests);
            // Two tokens in three are the target's.
            let near = move |seen: &[u32]| match seen.len() % 3 {
                0 => Row::Logits(hash_row(&seen[..seen.len() / 2])),
                _ => Row::Logits(hash_row(seen)),
            };
            for exact in [true, false] {
                let drafts = match (exact, own_state) {
                    (true, _) => model(own_state),
                    (false, true) => Scripted::recurrent(SMALL, near),
                    (false, false) => Scripted::model(SMALL, near),
                };
                let drafter = Box::new(Classic::new(drafts));
                let speculation = Speculation { calibrate: 0, ..Speculation::default() };
                let engine =
                    Engine::with_drafter(model(recurrent), tokenizer(), options(3, true), drafter, speculation);
                let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
                let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
                driver.run();
                for (i, id) in ids.iter().enumerate() {
                    assert_eq!(driver.done[id].answer, want[i], "exact {exact}, own state {own_state}: request {i}");
                }
                let totals = driver.engine.speculator().expect("a drafter").totals();
                let rate = totals.acceptance_rate().expect("rounds");
                if exact {
                    // Bias and penalties lift tokens that are not among the candidates.
                    assert!(rate > 0.8, "recurrent {recurrent}, own state {own_state}: {totals:?}");
                } else {
                    assert!(rate > 0.2 && rate < 0.9, "{totals:?}");
                }
            }
        }
    }
}

/// A row that only a rejected draft reaches may be damaged: plain decoding never computes it.
#[test]
fn damage_behind_a_rejected_draft_is_never_met() {
    for damaged in [|| Row::Nan, || Row::Broken] {
        for recurrent in [false, true] {
            let script = move |seen: &[u32]| match seen.contains(&7) {
                true => damaged(),
                false => Row::Logits(hash_row(seen)),
            };
            let build = || if recurrent { Scripted::recurrent(SMALL, script) } else { Scripted::model(SMALL, script) };
            let requests = requests(8, 12, |_, r| r.sampling.logit_bias = vec![(7, -100.0)]);
            let want: Vec<Answer> = requests.iter().map(|r| alone(build(), r.clone())).collect();
            let truths: Vec<Vec<u32>> =
                requests.iter().zip(&want).map(|(r, a)| [r.prompt.clone(), a.tokens.clone()].concat()).collect();
            let speculation = Speculation { block_size: Some(4), calibrate: 0, ..Speculation::default() };
            let drafter = Known::boxed(truths, Plan::Inject(1, 7), SMALL);
            let engine = Engine::with_drafter(build(), tokenizer(), options(4, false), drafter, speculation);
            let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
            let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
            driver.run();
            for (id, want) in ids.iter().zip(&want) {
                assert_eq!(driver.done[id].answer, *want);
            }
        }
    }
}

/// The twin: a model whose rows depend on the width of their block is caught by these comparisons.
#[test]
fn a_width_dependent_model_is_noticed() {
    let requests = requests(12, 24, |_, _| {});
    let (want, truths) = plain(false, &requests);
    let mut differs = 0;
    for k in [2, 4] {
        let speculation = Speculation { block_size: Some(k), calibrate: 0, ..Speculation::default() };
        let drafter = Known::boxed(truths.clone(), Plan::Oracle, SMALL);
        let wide = Box::new(WideBlocks(model(false)));
        let engine = Engine::with_drafter(wide, tokenizer(), options(1, false), drafter, speculation);
        let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
        for (request, want) in requests.iter().zip(&want) {
            differs += usize::from(driver.ask(request.clone()).answer != *want);
        }
    }
    assert!(differs > 4, "{differs} of 24 answers differ");
}
