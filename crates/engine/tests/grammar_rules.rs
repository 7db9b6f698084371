//! Constrained answers on scripted models and drafters: the identity law at every width, how answers end, what is allowed where, and
//! that one request's failing constraint is nobody else's trouble.

mod common;

use std::sync::Arc;

use common::drafts::{Known, Plan};
use common::grammars::{judge, kinds};
use common::scripted::{IMAGE, Row, SMALL, STOPS, Scripted, hash_row};
use common::{Answer, Driver, alone, tokenizer};
use mlxcel_engine::grammar::{Constraint, Grammar, GrammarFactory};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request, RequestError, Speculation};
use mlxcel_model::Model;
use mlxcel_text::Tokenizer;

fn model(recurrent: bool) -> Box<dyn Model> {
    let script = |seen: &[u32]| Row::Logits(hash_row(seen));
    if recurrent { Scripted::recurrent(SMALL, script) } else { Scripted::model(SMALL, script) }
}

fn compile(grammar: &Grammar) -> Constraint {
    let factory = GrammarFactory::new(&tokenizer()).unwrap_or_else(|e| panic!("{e}"));
    factory.compile(grammar).unwrap_or_else(|e| panic!("{e}"))
}

fn lark(text: &str) -> Constraint {
    compile(&Grammar::Lark(text.into()))
}

fn request(constraint: &Constraint) -> Request {
    Request {
        prompt: vec![2, 440, 441],
        max_tokens: Some(40),
        constraint: Some(constraint.clone()),
        ..Request::default()
    }
}

/// A model of the whole vocabulary that likes these tokens, best first, whatever came before.
fn liking(tokens: &[u32]) -> Box<dyn Model> {
    let vocab = tokenizer().vocab_size();
    let row: Vec<f32> = (0..vocab as u32)
        .map(|t| tokens.iter().position(|l| *l == t).map_or(0.0, |place| 50.0 - place as f32))
        .collect();
    Scripted::model(vocab, move |_| Row::Logits(row.clone()))
}

fn id(token: &str) -> u32 {
    tokenizer().token_to_id(token).unwrap_or_else(|| panic!("no token {token}"))
}

#[test]
fn any_drafts_at_any_width_in_any_company() {
    let kinds = kinds(&tokenizer());
    for recurrent in [false, true] {
        let mut requests = Vec::new();
        for (i, kind) in kinds.iter().enumerate() {
            for seed in 0..4_u32 {
                let sampling = SamplingParams {
                    temperature: [0.0, 0.5, 1.0, 1.5][seed as usize],
                    top_p: 0.98,
                    seed: u64::from(seed),
                    // A small vocabulary of random logits rarely ends a string by itself.
                    logit_bias: vec![(id("\""), 1.0), (id("}"), 2.0)],
                    logprobs: Some(1),
                    ..SamplingParams::default()
                };
                let prompt = vec![420 + i as u32, 430 + seed, 444];
                let ignore_eos = (i + seed as usize).is_multiple_of(3);
                requests.push((kind.name, Request { prompt, sampling, ignore_eos, ..request(&kind.constraint) }));
            }
        }
        let want: Vec<Answer> = requests.iter().map(|(_, r)| alone(model(recurrent), r.clone())).collect();
        for ((name, _), answer) in requests.iter().zip(&want) {
            assert_eq!(judge(name, answer), None);
        }
        let truths: Vec<Vec<u32>> =
            requests.iter().zip(&want).map(|((_, r), a)| [r.prompt.clone(), a.tokens.clone()].concat()).collect();
        for (plan, k, b) in [
            (Plan::Oracle, 2, 1),
            (Plan::Oracle, 8, 4),
            (Plan::Oracle, 16, 1),
            (Plan::Wrong, 4, 1),
            (Plan::Wrong, 8, 4),
            (Plan::RightThenWrong(2), 8, 4),
            (Plan::Wild(1), 4, 4),
            (Plan::Wild(2), 8, 1),
            (Plan::Inject(1, 1), 8, 4),
            (Plan::FailAfter(9), 4, 4),
        ] {
            let speculation = Speculation { block_size: Some(k), calibrate: 0, ..Speculation::default() };
            let options = EngineOptions { parallel: b, reuse: false, context: Some(256), ..EngineOptions::default() };
            let drafter = Known::boxed(truths.clone(), plan.clone(), SMALL);
            let engine = Engine::with_drafter(model(recurrent), tokenizer(), options, drafter, speculation);
            let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
            let ids: Vec<_> = requests.iter().map(|(_, r)| driver.submit(r.clone())).collect();
            driver.run();
            for (i, id) in ids.iter().enumerate() {
                assert_eq!(driver.done[id].answer, want[i], "{plan:?}, K={k}, B={b}, {}", requests[i].0);
            }
            assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
            let totals = driver.engine.speculator().expect("a drafter").totals();
            match plan {
                Plan::Oracle => assert_eq!(totals.acceptance_rate(), Some(1.0), "an oracle is always right"),
                // Where the grammar leaves one token, the guide puts it right.
                Plan::Wrong => assert!(totals.acceptance_rate() < Some(0.9), "{totals:?}"),
                _ => {}
            }
        }
    }
}

/// The stop token is allowed where the text may end and nowhere else; any token that ends the answer will do.
#[test]
fn stop_tokens_wait_for_the_end() {
    let (a, b, c) = (id("a"), id("b"), id("c"));
    let constraint = lark("start: \"aab\" \"b\"*\n");
    // The model would stop at once.
    let answer = alone(liking(&[STOPS[0], c, b, a]), request(&constraint));
    assert_eq!((answer.text.as_str(), &answer.reason), ("aab", &FinishReason::StopToken(STOPS[0])));
    // Its second choice is no stop token of the request; the grammar does not know it.
    let ignoring = Request { ignore_eos: true, max_tokens: Some(9), ..request(&constraint) };
    let answer = alone(liking(&[STOPS[0], c, b, a]), ignoring.clone());
    assert_eq!((answer.text.as_str(), &answer.reason), ("aabbbbbbb", &FinishReason::Length));
    // A stop token of the request's own, an ordinary letter.
    let answer = alone(liking(&[STOPS[0], c, b, a]), Request { stop_ids: vec![c], ..ignoring });
    assert_eq!((answer.text.as_str(), &answer.reason), ("aab", &FinishReason::StopToken(c)));
}

/// Where nothing may follow, the answer ends by itself, with or without stop tokens, and before the length is said to be why.
#[test]
fn a_complete_answer_ends_by_itself() {
    let constraint = lark("start: \"abc\"\n");
    for ignore_eos in [false, true] {
        for max_tokens in [3, 20] {
            let singles = [id("a"), id("b"), id("c")];
            let request = Request { ignore_eos, max_tokens: Some(max_tokens), ..request(&constraint) };
            let answer = alone(liking(&singles), request);
            assert_eq!((answer.text.as_str(), &answer.reason), ("abc", &FinishReason::Grammar));
            assert_eq!(answer.completion_tokens, 3);
        }
        let answer = alone(liking(&[]), Request { ignore_eos, max_tokens: Some(1), ..request(&constraint) });
        assert_eq!(answer.reason.name(), if answer.text == "abc" { "stop" } else { "length" });
    }
}

/// A token comes from the allowed ones even where its logit is the lowest of all, and log-probabilities stay the raw row's.
#[test]
fn the_worst_token_is_chosen_where_no_other_is_allowed() {
    let constraint = lark("start: \"zz\"\n");
    let z = id("z");
    let bias = vec![(z, -100.0)];
    let sampling =
        SamplingParams { logit_bias: bias, logprobs: Some(1), top_p: 0.1, temperature: 0.7, ..Default::default() };
    let free: Vec<u32> =
        (0..tokenizer().vocab_size() as u32).filter(|t| tokenizer().token_bytes(*t) != b"zz").collect();
    let answer = alone(liking(&free[..30]), Request { sampling, ..request(&constraint) });
    assert_eq!(answer.text, "zz");
    let (logprob, top) = &answer.logprobs[0];
    assert!(f32::from_bits(*logprob) < -40.0 && top[0].0 == free[0], "{logprob} {top:?}");
}

/// A constraint that leaves the model no token, or fails on the way, ends its own request with an error, and no other.
#[test]
fn a_failing_constraint_is_its_own_requests() {
    // The small model has no token 700.
    let impossible = lark("start: \"a\" <[700]>\n");
    let fine = lark("start: /[a-f]{12}/\n");
    for k in [1, 4] {
        let speculation = Speculation { block_size: Some(k), calibrate: 0, ..Speculation::default() };
        let options = EngineOptions { parallel: 3, reuse: false, context: Some(256), ..EngineOptions::default() };
        let drafter = Known::boxed(Vec::new(), Plan::Wild(3), SMALL);
        let engine = Engine::with_drafter(model(false), tokenizer(), options, drafter, speculation);
        let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
        let good = driver.submit(request(&fine));
        let bad = driver.submit(request(&impossible));
        driver.run();
        assert_eq!(driver.done[&good].answer.reason, FinishReason::Grammar);
        assert_eq!(driver.done[&good].answer.text.len(), 12);
        let FinishReason::Error(why) = &driver.done[&bad].answer.reason else { panic!("no error") };
        assert_eq!(why, "the constraint allows no token of this model's vocabulary at position 4");
        assert_eq!(driver.done[&bad].answer.text, "a");
        assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
    }
}

/// A grammar whose parsing becomes too much work ends with an error, not with a hang, and at the same token whatever is drafted.
#[test]
fn a_grammar_that_becomes_too_much_work_is_given_up() {
    // Every way of bracketing what came before is kept in mind.
    let ambiguous = lark("start: x\nx: x x | x x x | x x x x | x x x x x | x x x x x x | \"a\" | \"b\"\n");
    let ask = Request { max_tokens: Some(1500), ignore_eos: true, ..request(&ambiguous) };
    let options = EngineOptions { reuse: false, context: Some(2048), ..EngineOptions::default() };
    let want = Driver::new(model(false), options.clone()).ask(ask.clone()).answer;
    let FinishReason::Error(why) = &want.reason else {
        panic!("{:?} after {} tokens", want.reason, want.completion_tokens)
    };
    assert!(why.starts_with("the constraint failed at position"), "{why}");
    let truths = vec![[ask.prompt.clone(), want.tokens.clone()].concat()];
    for plan in [Plan::Oracle, Plan::Wild(1)] {
        let speculation = Speculation { block_size: Some(8), calibrate: 0, ..Speculation::default() };
        let drafter = Known::boxed(truths.clone(), plan, SMALL);
        let engine = Engine::with_drafter(model(false), tokenizer(), options.clone(), drafter, speculation);
        let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
        assert_eq!(driver.ask(ask.clone()).answer, want);
    }
}

/// Requests share a constraint, and a second answer is the first one's equal.
#[test]
fn a_constraint_is_not_used_up() {
    let kinds = kinds(&tokenizer());
    for kind in &kinds {
        let mut driver = Driver::new(model(false), EngineOptions::default());
        let first = driver.ask(request(&kind.constraint)).answer;
        driver.submit(request(&kind.constraint));
        assert!(driver.engine.cancel(mlxcel_engine::RequestId(1)).is_some());
        assert_eq!(alone(model(false), request(&kind.constraint)), first, "{}", kind.name);
    }
}

#[test]
fn a_constraint_of_another_tokenizer_is_refused() {
    let other = Arc::new(Tokenizer::load(&common::demo_dir()).unwrap_or_else(|e| panic!("{e}")));
    let factory = GrammarFactory::new(&other).unwrap_or_else(|e| panic!("{e}"));
    let constraint = factory.compile(&Grammar::JsonObject).unwrap_or_else(|e| panic!("{e}"));
    let mut driver = Driver::new(model(false), EngineOptions::default());
    let refused = driver.engine.submit(request(&constraint)).expect_err("accepted");
    assert!(matches!(refused, RequestError::Constraint), "{refused}");
    assert!(driver.engine.is_idle());
}

/// Special tokens are allowed only where a grammar names them.
#[test]
fn special_tokens_are_no_text() {
    for kind in kinds(&tokenizer()) {
        let first = kind.constraint.first();
        assert!(!first.is_empty());
        assert!(first.iter().all(|t| !tokenizer().is_special(t)), "{}", kind.name);
        assert!(first.iter().all(|t| (t as usize) < tokenizer().vocab_size()), "{}", kind.name);
    }
    let named = lark("start: <|turn> \"a\"\n");
    assert_eq!(named.first().iter().collect::<Vec<_>>(), [id("<|turn>")]);
    assert!(IMAGE < SMALL as u32);
}

/// Two tokens with the same bytes are both allowed.
#[test]
fn tokens_of_the_same_bytes_are_alike() {
    let constraint = lark("start: /[\\n]/\n");
    let first: Vec<u32> = constraint.first().iter().collect();
    assert!(first.contains(&id("<0x0A>")) && first.contains(&id("\n")), "{first:?}");
}

/// A tokenizer that cuts the space at the start of a text: the text, not the tokens, is what the grammar says.
#[test]
fn a_leading_space_that_is_cut_is_not_there() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let vocab = r#"{"<eos>": 0, "c": 1, "a": 2, "b": 3, "▁": 4, "▁a": 5}"#;
    for decoder in [
        r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}"#,
        r#"{"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}"#,
    ] {
        let json = format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
                "post_processor": null, "decoder": {decoder},
                "added_tokens": [{{"id": 0, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
                                   "normalized": false, "special": true}}],
                "model": {{"type": "WordLevel", "vocab": {vocab}, "unk_token": "<eos>"}}}}"#
        );
        std::fs::write(dir.path().join("tokenizer.json"), json).unwrap_or_else(|e| panic!("{e}"));
        let tokenizer = Arc::new(Tokenizer::load(dir.path()).unwrap_or_else(|e| panic!("{e}")));
        let factory = GrammarFactory::new(&tokenizer).unwrap_or_else(|e| panic!("{e}"));
        for (text, liked, want) in
            [("ab a", [5, 3, 4, 2, 1, 0], vec![5, 3, 5]), ("ab a", [2, 3, 4, 5, 1, 0], vec![2, 3, 4, 2])]
        {
            let grammar = Grammar::Lark(format!("start: \"{text}\"\n"));
            let constraint = factory.compile(&grammar).unwrap_or_else(|e| panic!("{e}"));
            let row: Vec<f32> =
                (0..6_u32).map(|t| -(liked.iter().position(|l| *l == t).expect("all") as f32)).collect();
            let model = Scripted::model(6, move |_| Row::Logits(row.clone()));
            let mut driver = Driver::over(model, Arc::clone(&tokenizer), EngineOptions::default());
            let answer = driver.ask(Request { prompt: vec![3], ..request(&constraint) }).answer;
            assert_eq!((answer.text.as_str(), answer.tokens), (text, want), "{decoder}");
        }
    }
}
