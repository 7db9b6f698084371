//! The sampler against an oracle that sorts everything, its distribution, and its independence of call order; with
//! faulty twins that these tests must reject.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::filter::{self, Candidate, Scale, argmax, best_first};
use super::math::{self, Mass};
use super::noise::RowNoise;
use super::*;

type Noise = fn(u64, u64, u32) -> f64;

/// Where the oracle's noise leaves out the position: every position of a sequence draws alike.
const NO_POSITION: Noise = |seed, _, token| gumbel(seed, 0, token);

/// What is left after every filter, best first: the definition, with a full sort and running sums.
fn oracle_kept(p: &SamplingParams, row: &[f32]) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = filter::candidates(row).collect();
    kept.sort_by(best_first);
    let scale = Scale::new(kept[0], p.temperature);
    let weigh = |c: &Candidate| filter::weight(c.logit, scale, Mass::new(row.len()));
    if p.top_k > 0 {
        kept.truncate(p.top_k);
    }
    if p.top_p < 1.0 {
        let total: u64 = kept.iter().map(weigh).sum();
        let mut sum = 0;
        let end = kept.iter().position(|c| {
            sum += weigh(c);
            sum as f64 >= f64::from(p.top_p) * total as f64
        });
        kept.truncate(end.map_or(kept.len(), |i| i + 1));
    }
    if p.min_p > 0.0 {
        kept.retain(|c| scale.d(c.logit) >= math::ln(f64::from(p.min_p)));
    }
    kept
}

fn oracle_row(p: &SamplingParams, logits: &[f32], history: &History) -> Vec<f32> {
    let mut row = logits.to_vec();
    for &(token, bias) in &p.logit_bias {
        row[token as usize] += bias;
    }
    for (x, token) in row.iter_mut().zip(0_u32..) {
        let generated = history.generated().iter().filter(|&&t| t == token).count();
        if history.tokens().contains(&token) {
            *x = if *x > 0.0 { *x / p.repetition_penalty } else { *x * p.repetition_penalty };
        }
        if generated > 0 {
            *x = *x - p.frequency_penalty * generated as f32 - p.presence_penalty;
        }
    }
    row
}

fn oracle(
    p: &SamplingParams,
    logits: &[f32],
    position: usize,
    history: &History,
    noise: impl Fn(u64, u64, u32) -> f64,
) -> u32 {
    let row = oracle_row(p, logits, history);
    if p.temperature == 0.0 {
        return argmax(&row).token;
    }
    let kept = oracle_kept(p, &row);
    let scale = Scale::new(kept[0], p.temperature);
    let score = |c: &Candidate| scale.d(c.logit) + noise(p.seed, position as u64, c.token);
    let mut best = kept[0];
    for c in &kept {
        if score(c) > score(&best) || (score(c) == score(&best) && c.token < best.token) {
            best = *c;
        }
    }
    best.token
}

/// A spread-out row with many exact ties.
fn toy_row(vocab: usize, seed: u64, spread: f32) -> Vec<f32> {
    let noise = RowNoise::new(seed, 1 << 40);
    (0..vocab as u32).map(|t| (noise.gumbel(t) as f32 * 8.0).round() * 0.125 * spread).collect()
}

fn pick(params: &SamplingParams, logits: &[f32], position: usize, history: &History) -> u32 {
    Sampler::new(params.clone(), logits.len()).unwrap().sample(logits, position, history).unwrap().token
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![Just(0.0), Just(1e-4), 0.1_f32..3.0, Just(1e4), Just(1e-44)];
    let top_p = prop_oneof![Just(1.0), 0.01_f32..1.0, Just(f32::MIN_POSITIVE), Just(1.0 - f32::EPSILON)];
    let min_p = prop_oneof![Just(0.0), 0.0_f32..0.3, Just(1.0)];
    let penalties = prop_oneof![Just((1.0, 0.0, 0.0)), (0.5_f32..2.0, -2.0_f32..2.0, -2.0_f32..2.0)];
    let bias = prop_oneof![Just(vec![]), prop::collection::vec((0_u32..8, -9.0_f32..9.0), 1..4)];
    let top_k = prop_oneof![Just(0_usize), 1_usize..40, Just(usize::MAX)];
    (temperature, top_k, top_p, min_p, penalties, bias, any::<u64>(), prop::option::of(0_usize..20)).prop_map(
        |(temperature, top_k, top_p, min_p, penalties, logit_bias, seed, logprobs)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty: penalties.0,
            presence_penalty: penalties.1,
            frequency_penalty: penalties.2,
            logit_bias,
            seed,
            logprobs,
        },
    )
}

fn any_history() -> impl Strategy<Value = History> {
    let tokens = || prop::collection::vec(prop_oneof![0_u32..12, Just(1_000_000)], 0..10);
    (tokens(), tokens()).prop_map(|(prompt, answer)| {
        let mut history = History::new(&prompt);
        answer.into_iter().for_each(|t| history.push(t));
        history
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_the_oracle_that_sorts(
        params in any_params(), history in any_history(), vocab in 8_usize..700, row in any::<u64>(),
        spread in prop_oneof![Just(0.0_f32), 0.1_f32..6.0], position in 0_usize..10_000,
    ) {
        let logits = toy_row(vocab, row, spread);
        let want = oracle(&params, &logits, position, &history, gumbel);
        prop_assert_eq!(pick(&params, &logits, position, &history), want);
    }

    /// Where the largest logit alone is said to decide, it does; and it is said of every plain greedy choice.
    #[test]
    fn the_largest_decides_where_it_is_said_to(
        params in any_params(), history in any_history(), vocab in 8_usize..700, row in any::<u64>(),
        spread in prop_oneof![Just(0.0_f32), 0.1_f32..6.0], position in 0_usize..10_000, keep in prop::option::of(any::<u64>()),
    ) {
        let logits = toy_row(vocab, row, spread);
        let mut allowed = TokenSet::empty(vocab);
        (0..vocab as u32).filter(|t| keep.is_some_and(|keep| keep >> (t % 64) & 1 == 1)).for_each(|t| allowed.insert(t));
        allowed.insert(3);
        let allowed = keep.map(|_| &allowed);
        let mut sampler = Sampler::new(params.clone(), vocab).unwrap();
        let largest = mlxcel_compute::order::argmax(&logits).unwrap();
        let short = sampler.sample_largest(largest, &history, allowed);
        if let Some(short) = &short {
            prop_assert_eq!(Ok(short.clone()), sampler.sample_from(&logits, position, &history, allowed));
        }
        let plain = sampler.takes_the_largest() && params.logprobs.is_none() && allowed.is_none();
        prop_assert!(short.is_some() || !plain);
        // One that pads the matrix is no token.
        prop_assert_eq!(sampler.sample_largest(vocab as u32, &history, None), None);
    }

    /// The kept set itself, where the token alone would seldom show a fault at its edge.
    #[test]
    fn filters_keep_exactly_the_oracle_set(
        params in any_params(), vocab in 8_usize..3000, row in any::<u64>(), spread in 0.0_f32..6.0,
    ) {
        let params = SamplingParams { temperature: params.temperature.max(1e-3), min_p: 0.0, ..params };
        let logits = toy_row(vocab, row, spread);
        let scale = Scale::new(argmax(&logits), params.temperature);
        let mut kept = Vec::new();
        if !narrow(&params, &logits, scale, Mass::new(vocab), &mut kept) {
            kept.extend(filter::candidates(&logits));
        }
        kept.sort_by(best_first);
        prop_assert_eq!(kept, oracle_kept(&params, &logits));
    }
}

/// One call to make: parameters, row, position, history.
type Call = (SamplingParams, Vec<f32>, usize, History);

/// Whether `draw` gives the same answers to `calls` forwards, backwards, and every call twice.
fn same_in_any_order(calls: &[Call], mut draw: impl FnMut(usize, &Call) -> Sampled) -> bool {
    let forwards: Vec<Sampled> = calls.iter().enumerate().map(|(i, c)| draw(i, c)).collect();
    let mut same = true;
    for (i, call) in calls.iter().enumerate().rev() {
        same &= draw(i, call) == forwards[i] && draw(i, call) == forwards[i];
    }
    same
}

fn mixed_calls() -> Vec<Call> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut history = History::new(&[1, 2, 3, 2]);
    let draw = |runner: &mut _| any_params().new_tree(runner).unwrap().current();
    (0..60)
        .map(|i| {
            history.push(i as u32 % 7);
            (draw(&mut runner), toy_row(300, i, 2.0), i as usize, history.clone())
        })
        .collect()
}

#[test]
fn answers_do_not_depend_on_the_order_of_calls() {
    let calls = mixed_calls();
    let mut samplers: Vec<Sampler> = calls.iter().map(|c| Sampler::new(c.0.clone(), 300).unwrap()).collect();
    assert!(same_in_any_order(&calls, |i, (_, row, position, history)| {
        samplers[i].sample(row, *position, history).unwrap()
    }));
    // One sampler for all the rows, its scratch memory left as the call before left it.
    let params = SamplingParams { temperature: 0.9, top_p: 0.8, logprobs: Some(3), ..Default::default() };
    let mut shared = Sampler::new(params.clone(), 300).unwrap();
    assert!(same_in_any_order(&calls, |_, (_, row, position, history)| {
        shared.sample(row, *position, history).unwrap()
    }));
    for (_, row, position, history) in &calls {
        let fresh = Sampler::new(params.clone(), 300).unwrap().sample(row, *position, history);
        assert_eq!(shared.sample(row, *position, history), fresh);
    }
}

#[test]
fn a_generator_with_state_fails_the_order_test() {
    let mut drawn = 0;
    assert!(!same_in_any_order(&mixed_calls(), |_, (params, row, _, history)| {
        drawn += 1;
        Sampled { token: oracle(params, row, drawn, history, gumbel), logprob: None }
    }));
}

/// Chi-square, in standard deviations above its mean, of tokens drawn `n` times against the oracle's probabilities; and
/// likewise of pairs at neighbouring positions, which must be independent.
fn misfit(params: &SamplingParams, row: &[f32], n: u64, draw: impl Fn(&SamplingParams, usize) -> u32) -> (f64, f64) {
    let kept = oracle_kept(params, row);
    let scale = Scale::new(kept[0], params.temperature);
    let weights: Vec<f64> = kept.iter().map(|c| scale.d(c.logit).exp()).collect();
    let total: f64 = weights.iter().sum();
    let chance: HashMap<u32, f64> = kept.iter().zip(&weights).map(|(c, w)| (c.token, w / total)).collect();
    let (mut single, mut pair) = (HashMap::<u32, f64>::new(), HashMap::<(u32, u32), f64>::new());
    for seed in 0..n {
        let params = SamplingParams { seed, ..params.clone() };
        let (a, b) = (draw(&params, 10), draw(&params, 11));
        *single.entry(a).or_default() += 1.0;
        *pair.entry((a, b)).or_default() += 1.0;
    }
    let n = n as f64;
    assert!(single.keys().all(|t| chance.contains_key(t)), "a filtered token was drawn");
    let z = |chi: f64, cells: usize| (chi - (cells - 1) as f64) / (2.0 * (cells - 1) as f64).sqrt();
    let term = |seen: Option<&f64>, expected: f64| (seen.unwrap_or(&0.0) - expected).powi(2) / expected;
    let chi: f64 = chance.iter().map(|(t, p)| term(single.get(t), p * n)).sum();
    // Pairs expected fewer than 5 times share one cell, as the chi-square approximation needs.
    let (mut pair_chi, mut cells, mut rare, mut rare_seen) = (0.0, 1, 0.0, 0.0);
    for (a, p) in &chance {
        for (b, q) in &chance {
            let (expected, seen) = (p * q * n, pair.get(&(*a, *b)));
            if expected < 5.0 {
                rare += expected;
                rare_seen += seen.unwrap_or(&0.0);
            } else {
                cells += 1;
                pair_chi += term(seen, expected);
            }
        }
    }
    if rare > 0.0 {
        pair_chi += term(Some(&rare_seen), rare);
    }
    (z(chi, chance.len()), z(pair_chi, cells))
}

fn distribution_cases() -> Vec<SamplingParams> {
    let base = SamplingParams { temperature: 0.7, ..Default::default() };
    vec![
        base.clone(),
        SamplingParams { top_k: 12, ..base.clone() },
        SamplingParams { top_p: 0.85, ..base.clone() },
        SamplingParams { min_p: 0.02, ..base.clone() },
        SamplingParams { top_k: 20, top_p: 0.9, min_p: 0.01, ..base },
    ]
}

#[test]
fn frequencies_over_seeds_match_softmax() {
    let row = toy_row(40, 5, 0.8);
    for params in distribution_cases() {
        let (one, two) = misfit(&params, &row, 40_000, |p, position| pick(p, &row, position, &History::default()));
        assert!(one.abs() < 4.5 && two.abs() < 4.5, "{params:?}: {one} {two}");
    }
}

#[test]
fn the_distribution_test_can_fail() {
    let row = toy_row(40, 5, 0.8);
    let history = History::default();
    let params = SamplingParams { temperature: 0.7, ..Default::default() };
    // Noise that forgets the position: each position alone looks right, neighbours always agree.
    let (one, two) = misfit(&params, &row, 40_000, |p, position| oracle(p, &row, position, &history, NO_POSITION));
    assert!(one.abs() < 4.5 && two > 100.0, "{one} {two}");
    // Noise of a slightly wrong size.
    let (one, _) = misfit(&params, &row, 40_000, |p, position| {
        oracle(p, &row, position, &history, |s, p, t| gumbel(s, p, t) * 1.03)
    });
    assert!(one > 4.5, "{one}");
}

#[test]
fn full_vocabulary_needs_few_logarithms() {
    let vocab = 262_144;
    for (spread, limit) in [(0.0, 100), (1.0, 100), (3.0, 100)] {
        let row = toy_row(vocab, 9, spread);
        let scale = Scale::new(argmax(&row), 0.8);
        for position in 0..10 {
            let noise = RowNoise::new(3, position);
            let (token, evaluated) = filter::gumbel_max(filter::candidates(&row), scale, f64::NEG_INFINITY, noise);
            assert!(evaluated < limit, "spread {spread}: {evaluated}");
            let score = |t: u32| scale.d(row[t as usize]) + noise.gumbel(t);
            assert!((0..vocab as u32).all(|t| score(t) < score(token) || t == token));
        }
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let params = SamplingParams { top_k: 1, top_p: 0.1, ..Default::default() };
    assert_eq!(pick(&params, &[1.0, 3.0, -2.0, 3.0], 0, &History::default()), 1);
    assert_eq!(pick(&params, &[-0.0, 0.0], 0, &History::default()), 0);
    assert_eq!(pick(&params, &[f32::MIN; 5], 0, &History::default()), 0);
}

#[test]
fn top_k_keeps_the_lower_ids_at_a_tie() {
    let row = [0.0, 2.0, 1.0, 1.0, 1.0];
    let params = SamplingParams { temperature: 50.0, top_k: 3, ..Default::default() };
    let mut seen = [false; 5];
    for position in 0..300 {
        seen[pick(&params, &row, position, &History::default()) as usize] = true;
    }
    assert_eq!(seen, [false, true, true, true, false]);
}

#[test]
fn top_p_stops_where_the_mass_is_reached_exactly() {
    // Powers of two: the masses add up without rounding, so one token more or less is an error of the rule.
    for vocab in [4, 64, 1024] {
        for (top_p, kept_of_4) in [(0.25, 1), (0.5, 2), (0.75, 3)] {
            for top_k in [0, vocab / 2] {
                let params = SamplingParams { temperature: 1.0, top_p, top_k, ..Default::default() };
                let row = vec![1.5; vocab];
                let mut kept = Vec::new();
                assert!(narrow(&params, &row, Scale::new(argmax(&row), 1.0), Mass::new(vocab), &mut kept));
                kept.sort_by(best_first);
                let left = if top_k == 0 { vocab } else { top_k };
                let want = (left * kept_of_4).div_ceil(4);
                assert!(kept.iter().map(|c| c.token).eq(0..want as u32), "{vocab} {top_p} {top_k}: {}", kept.len());
            }
        }
    }
}

#[test]
fn penalties_follow_their_definitions() {
    let mut history = History::new(&[0, 1]);
    [1, 2, 2].into_iter().for_each(|t| history.push(t));
    let p = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        logit_bias: vec![(3, 1.5), (3, 0.5), (0, -8.0)],
        ..Default::default()
    };
    let mut row = Vec::new();
    adjust(&p, &[4.0, 4.0, -4.0, 4.0], &history, &mut row);
    // 0: prompt only, biased to -4, multiplied; 1: halved, seen once; 2: doubled, seen twice; 3: biased, never seen.
    assert_eq!(row, [-8.0, 2.0 - 0.75, -8.0 - 1.0, 6.0]);
}

#[test]
fn overflowing_adjustments_stay_finite() {
    let params = SamplingParams {
        temperature: 1.0,
        repetition_penalty: f32::MIN_POSITIVE,
        logit_bias: vec![(1, 100.0), (2, -100.0)],
        ..Default::default()
    };
    let token = pick(&params, &[1e30, f32::MAX, f32::MIN, 0.0], 0, &History::new(&[0, 1, 2, 3]));
    assert!(token < 2);
}

#[test]
fn non_finite_logits_are_an_error_and_leave_the_sampler_usable() {
    for temperature in [0.0, 0.8] {
        let params = SamplingParams { temperature, ..Default::default() };
        let mut sampler = Sampler::new(params, 3000).unwrap();
        let good = toy_row(3000, 1, 1.0);
        let before = sampler.sample(&good, 4, &History::default());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1023, 1024, 2999] {
                let mut row = good.clone();
                row[at] = value;
                let error = sampler.sample(&row, 4, &History::default()).unwrap_err();
                assert!(
                    matches!(error, SampleError::NonFinite { position: 4, token, .. } if token as usize == at),
                    "{error}"
                );
            }
        }
        assert_eq!(sampler.sample(&good, 4, &History::default()), before);
        let short = sampler.sample(&good[1..], 4, &History::default());
        assert_eq!(short, Err(SampleError::RowLength { position: 4, expected: 3000, found: 2999 }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Forbidden tokens are as if the vocabulary had none of them: the same choice as from a row that holds only the allowed
    /// ones, with the noise of their ids.
    #[test]
    fn a_constraint_is_a_smaller_vocabulary(
        params in any_params(), history in any_history(), vocab in 8_usize..500, row in any::<u64>(),
        spread in 0.1_f32..6.0, position in 0_usize..10_000, keep in any::<u64>(), modulus in 1_u64..40,
    ) {
        let logits = toy_row(vocab, row, spread);
        let is_in = |t: u32| (u64::from(t).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ keep) >> 40 & 0xffff_ffff;
        let ids: Vec<u32> = (0..vocab as u32).filter(|t| is_in(*t) % modulus == 0).collect();
        let mut set = TokenSet::empty(vocab + 40);
        ids.iter().for_each(|t| set.insert(*t));
        // Tokens beyond the model's vocabulary are no one's choice.
        set.insert(vocab as u32 + 3);
        let mut sampler = Sampler::new(params.clone(), vocab).unwrap();
        let got = sampler.sample_from(&logits, position, &history, Some(&set));
        if ids.is_empty() {
            prop_assert_eq!(got, Err(SampleError::NothingAllowed { position }));
        } else {
            let whole = oracle_row(&params, &logits, &history);
            let packed: Vec<f32> = ids.iter().map(|t| whole[*t as usize]).collect();
            let plain = SamplingParams { logit_bias: vec![], repetition_penalty: 1.0, presence_penalty: 0.0,
                                         frequency_penalty: 0.0, ..params.clone() };
            let noise = |seed: u64, position: u64, index: u32| gumbel(seed, position, ids[index as usize]);
            let want = ids[oracle(&plain, &packed, position, &History::default(), noise) as usize];
            let got = got.unwrap();
            prop_assert_eq!(got.token, want);
            // Log-probabilities stay those of the raw row.
            if let (Some(n), Some(logprob)) = (params.logprobs, got.logprob) {
                let raw = logprobs::token_logprobs(&logits, want, n, &mut Vec::new());
                prop_assert_eq!(logprob, raw);
            }
        }
        // Where all is allowed, nothing changes.
        let mut all = TokenSet::empty(vocab);
        (0..vocab as u32).for_each(|t| all.insert(t));
        let free = sampler.sample(&logits, position, &history);
        prop_assert_eq!(sampler.sample_from(&logits, position, &history, Some(&all)), free);
    }
}

#[test]
fn a_bad_parameter_makes_no_sampler() {
    let params = SamplingParams { top_p: 0.0, ..Default::default() };
    assert!(matches!(Sampler::new(params, 10), Err(SampleError::OutOfRange { parameter: "top_p", .. })));
}

#[test]
fn logprobs_are_of_the_raw_row() {
    let logits = [1.0, 2.0, 3.0, 0.5];
    let sum = logits.iter().map(|l: &f32| f64::from(*l).exp()).sum::<f64>().ln();
    let params = SamplingParams {
        temperature: 0.3,
        top_k: 1,
        repetition_penalty: 1.5,
        logit_bias: vec![(0, 50.0)],
        logprobs: Some(2),
        ..Default::default()
    };
    let got = Sampler::new(params, 4).unwrap().sample(&logits, 9, &History::new(&[2])).unwrap();
    assert_eq!(got.token, 0);
    let logprob = got.logprob.unwrap();
    let close = |got: f32, logit: f64| (f64::from(got) - (logit - sum)).abs() < 1e-6;
    assert!(close(logprob.logprob, 1.0));
    assert!(close(logprob.top[0].1, 3.0) && close(logprob.top[1].1, 2.0));
    assert_eq!(logprob.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 1]);
}
