//! Constrained answers on trained models with their drafters: with speculation on, tokens, text, finish reason and the bits of
//! log-probabilities are those of plain decoding, and every answer is what its grammar says.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::grammars::{Kind, judge, kinds};
use common::{Answer, Driver};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::grammar::{Constraint, Fault, Grammar, GrammarFactory};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request, Rounds, Speculation};
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;

const WIDTHS: [usize; 4] = [1, 2, 4, 8];
const BATCHES: [usize; 2] = [1, 4];

struct Case {
    target: PathBuf,
    drafter: PathBuf,
    tokenizer: Arc<Tokenizer>,
    chat: fn(&str) -> String,
}

fn case(target: &str, drafter: &str, chat: fn(&str) -> String) -> Case {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let target = models.join(target);
    let tokenizer = Arc::new(Tokenizer::load(&target).unwrap_or_else(|e| panic!("{e}")));
    Case { target, drafter: models.join(drafter), tokenizer, chat }
}

fn gemma() -> Case {
    case("gemma-4-tiny-it-4bit", "gemma-4-tiny-it-assistant-4bit", |q| {
        format!("<|turn>user\n{q}<turn|>\n<|turn>model\n")
    })
}

fn qwen() -> Case {
    case("qwen3.5-tiny-4bit", "qwen3.5-tiny-mtp-4bit", |q| {
        format!("<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n")
    })
}

impl Case {
    fn pair(&self) -> Pair {
        let open = |dir: &Path| Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
        let backend = Arc::new(CpuBackend::new(Precision::Int8, 2));
        registry::load_pair(&open(&self.target), &open(&self.drafter), backend).unwrap_or_else(|e| panic!("{e}"))
    }

    fn prompt(&self, question: &str) -> Vec<u32> {
        self.tokenizer.encode_raw(&(self.chat)(question)).unwrap_or_else(|e| panic!("{e}"))
    }

    fn options(&self, parallel: usize) -> EngineOptions {
        EngineOptions { parallel, reuse: false, context: Some(1024), ..EngineOptions::default() }
    }

    fn slow(&self) -> Driver {
        Driver::over(self.pair().model, Arc::clone(&self.tokenizer), self.options(1))
    }

    fn fast(&self, parallel: usize) -> Driver {
        let Pair { model, drafter } = self.pair();
        let speculation = Speculation { calibrate: 0, ..Speculation::default() };
        let drafter = drafter.expect("a drafter");
        let engine =
            Engine::with_drafter(model, Arc::clone(&self.tokenizer), self.options(parallel), drafter, speculation);
        Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
    }

    /// Every kind of grammar with every kind of sampling.
    fn requests<'a>(&self, kinds: &'a [Kind]) -> Vec<(&'a str, Request)> {
        let questions =
            ["Tell me about a fox named Nora.", "Say hello.", "Write a Python function to add two numbers."];
        let mut out = Vec::new();
        for (i, kind) in kinds.iter().enumerate() {
            for (j, sampling) in samplings().into_iter().enumerate() {
                let mut request = Request {
                    prompt: self.prompt(questions[(i + j) % questions.len()]),
                    sampling,
                    max_tokens: Some(40),
                    constraint: Some(kind.constraint.clone()),
                    ..Request::default()
                };
                match (i + j) % 5 {
                    0 => request.max_tokens = Some(1 + (i + j) % 7),
                    1 => request.ignore_eos = true,
                    _ => {}
                }
                out.push((kind.name, request));
            }
        }
        out
    }

    fn plain(&self, requests: &[(&str, Request)]) -> Vec<Answer> {
        let mut driver = self.slow();
        requests.iter().map(|(_, request)| driver.ask(request.clone()).answer).collect()
    }
}

fn samplings() -> Vec<SamplingParams> {
    let greedy = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
    let sampled = |seed| SamplingParams { temperature: 0.8, top_p: 0.95, seed, ..greedy.clone() };
    vec![
        greedy.clone(),
        sampled(1),
        SamplingParams { top_k: 40, min_p: 0.02, temperature: 1.2, top_p: 1.0, ..sampled(2) },
        SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.4, ..sampled(3) },
        SamplingParams { logit_bias: vec![(300, 4.0), (433, -100.0)], repetition_penalty: 1.3, ..greedy },
    ]
}

fn constraint(request: &Request) -> &Constraint {
    request.constraint.as_ref().expect("a constraint")
}

fn matrix(case: &Case) {
    let kinds = kinds(&case.tokenizer);
    let requests = case.requests(&kinds);
    let want = case.plain(&requests);
    let mut whole = 0;
    for ((name, request), answer) in requests.iter().zip(&want) {
        assert_eq!(judge(name, answer), None);
        let text = answer.tokens.len() - usize::from(matches!(answer.reason, FinishReason::StopToken(_)));
        assert_eq!(constraint(request).allows(&answer.tokens), text, "a stop token is no text");
        whole += usize::from(answer.reason != FinishReason::Length);
    }
    assert!(whole * 4 > want.len(), "{whole} of {} answers came to their end", want.len());
    let (mut compared, mut all) = (0, Rounds::default());
    for (column, b) in BATCHES.into_iter().enumerate() {
        let mut driver = case.fast(b);
        for (row, k) in WIDTHS.into_iter().enumerate() {
            // Half of the requests for each width of a batch, the other half for that width of the other.
            let chosen: Vec<usize> = (0..requests.len()).filter(|i| (i + i / 5 + row) % 2 == column).collect();
            let ask = |i: &usize| Request { block_size: Some(k), ..requests[*i].1.clone() };
            let ids: Vec<_> = chosen.iter().map(|i| driver.submit(ask(i))).collect();
            driver.run();
            for (i, id) in chosen.iter().zip(&ids) {
                let what = format!("K={k}, B={b}, {}, {:?}", requests[*i].0, requests[*i].1.sampling);
                assert_eq!(driver.done[id].answer, want[*i], "{what}");
            }
            compared += chosen.len();
        }
        let totals = driver.engine.speculator().expect("a drafter").totals();
        (all.rounds, all.proposed, all.accepted) =
            (all.rounds + totals.rounds, all.proposed + totals.proposed, all.accepted + totals.accepted);
        assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
        assert_eq!(driver.engine.take_warnings(), Vec::<String>::new());
    }
    println!(
        "{compared} answers equal those of plain decoding, {whole} of {} whole; {} of {} drafts accepted in {} rounds",
        want.len(),
        all.accepted,
        all.proposed,
        all.rounds
    );
    assert!(all.rounds > 100, "{all:?}");
}

#[test]
fn gemma_with_its_assistant() {
    matrix(&gemma());
}

#[test]
fn qwen_with_its_head() {
    matrix(&qwen());
}

/// Thirty answers at once to a question that asks for something else: all are JSON, and those of plain decoding.
#[test]
fn thirty_objects_at_once() {
    let case = gemma();
    let factory = GrammarFactory::new(&case.tokenizer).unwrap_or_else(|e| panic!("{e}"));
    let constraint = factory.compile(&Grammar::JsonObject).unwrap_or_else(|e| panic!("{e}"));
    let request = |i: u64| Request {
        prompt: case.prompt("Say hello world 500 times."),
        sampling: SamplingParams { temperature: 0.1 * i as f32, seed: i, ..SamplingParams::default() },
        max_tokens: Some(60),
        constraint: Some(constraint.clone()),
        ..Request::default()
    };
    let mut slow = case.slow();
    let mut fast = case.fast(30);
    let ids: Vec<_> = (0..30).map(|i| fast.submit(request(i))).collect();
    fast.run();
    for (i, id) in ids.iter().enumerate() {
        let answer = &fast.done[id].answer;
        assert_eq!(judge("object", answer), None, "request {i}");
        assert_eq!(*answer, slow.ask(request(i as u64)).answer, "request {i}");
    }
}

/// Answers that differ from plain decoding's, and answers that break their grammar, under a fault.
fn faulty(fault: Fault) -> (usize, usize, Rounds) {
    let case = gemma();
    let kinds = kinds(&case.tokenizer);
    let requests: Vec<_> = case.requests(&kinds).into_iter().step_by(2).collect();
    let want = case.plain(&requests);
    let mut driver = case.fast(1);
    let (mut differ, mut broken) = (0, 0);
    for ((name, request), want) in requests.iter().zip(&want) {
        let constraint = request.constraint.as_ref().map(|c| c.with_fault(fault));
        let answer = driver.ask(Request { constraint, block_size: Some(4), ..request.clone() }).answer;
        differ += usize::from(answer != *want);
        broken += usize::from(judge(name, &answer).is_some());
    }
    (differ, broken, driver.engine.speculator().expect("a drafter").totals())
}

/// The twin of the identity test: a guide that follows drafts.
#[test]
fn a_constraint_moved_by_drafts_is_noticed() {
    let (differ, broken, _) = faulty(Fault::MovedByDrafts);
    assert!(differ > 5, "{differ} answers differ, {broken} are broken");
}

/// The twin of the validity test: a constraint that is not applied.
#[test]
fn a_constraint_that_is_not_applied_is_noticed() {
    let (_, broken, _) = faulty(Fault::NotApplied);
    assert!(broken > 10, "{broken} answers are broken");
}

/// Drafting that knows the grammar changes no answer, and more of its drafts are kept.
#[test]
fn drafts_within_the_grammar_are_kept_more_often() {
    let (differ, broken, without) = faulty(Fault::UnguidedDrafts);
    assert_eq!((differ, broken), (0, 0));
    let case = gemma();
    let kinds = kinds(&case.tokenizer);
    let mut driver = case.fast(1);
    for (_, request) in case.requests(&kinds).into_iter().step_by(2) {
        driver.ask(Request { block_size: Some(4), ..request });
    }
    let with = driver.engine.speculator().expect("a drafter").totals();
    println!("guided {with:?}, unguided {without:?}");
    assert!(with.acceptance_rate() > without.acceptance_rate());
    assert!(with.tokens_per_round() > without.tokens_per_round());
}
