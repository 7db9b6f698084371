//! The identity law on trained models with their drafters: with speculation on, tokens, text, finish reason, usage and the bits of
//! log-probabilities are those of plain decoding, for every kind of sampling, block width and number of sequences.
//!
//! `MLXCEL_IDENTITY=full` runs every request at every width in every batch; by default each width and batch gets a part of the
//! requests, such that all of them meet several widths and batches.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::prompts::{QUESTIONS, TEXTS};
use common::{Answer, Driver};
use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, Request, Rounds, Speculation};
use mlxcel_model::drafters::{Drafter, Ngram};
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;

const WIDTHS: [usize; 6] = [2, 3, 4, 5, 8, 16];
const BATCHES: [usize; 4] = [1, 2, 4, 8];

/// A target, what drafts for it, and how it is spoken to.
struct Case {
    name: &'static str,
    target: PathBuf,
    drafter: Option<PathBuf>, // None = prompt lookup
    chat: fn(&str) -> String,
    tokens: usize,
    /// A batch gets one in so many times four of the requests at each width, unless all are run.
    parts: usize,
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn gemma(drafter: &str) -> Case {
    Case {
        name: "Gemma pair",
        target: models().join("gemma-4-tiny-it-4bit"),
        drafter: Some(models().join(drafter)),
        chat: |q| format!("<|turn>user\n{q}<turn|>\n<|turn>model\n"),
        tokens: 24,
        parts: 2,
    }
}

fn qwen() -> Case {
    Case {
        name: "Qwen pair",
        target: models().join("qwen3.5-tiny-4bit"),
        drafter: Some(models().join("qwen3.5-tiny-mtp-4bit")),
        chat: |q| format!("<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n"),
        tokens: 24,
        parts: 2,
    }
}

fn smollm2() -> Option<Case> {
    let target = models().join("../target/smollm2/4bit");
    target.join("config.json").is_file().then_some(Case {
        name: "SmolLM2 with prompt lookup",
        target,
        drafter: None,
        chat: |q| format!("<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n"),
        tokens: 10,
        parts: 6,
    })
}

impl Case {
    fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::new(Tokenizer::load(&self.target).unwrap_or_else(|e| panic!("{e}")))
    }

    fn pair<B: Backend>(&self, backend: B) -> Pair {
        let open = |dir: &Path| Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
        let (target, backend) = (open(&self.target), Arc::new(backend));
        match &self.drafter {
            Some(dir) => registry::load_pair(&target, &open(dir), backend).unwrap_or_else(|e| panic!("{e}")),
            None => {
                let model = registry::load(&target, backend).unwrap_or_else(|e| panic!("{e}"));
                Pair { model, drafter: Some(Box::new(Ngram::new())) }
            }
        }
    }

    /// At least 40 prompts, each with every kind of sampling.
    fn requests(&self) -> Vec<Request> {
        let tokenizer = self.tokenizer();
        let ids = |text: &str| tokenizer.encode_raw(text).unwrap_or_else(|e| panic!("{e}"));
        let chats = QUESTIONS.iter().map(|q| ids(&(self.chat)(q)));
        let prompts: Vec<Vec<u32>> = chats.chain(TEXTS.iter().map(|t| ids(t))).collect();
        assert!(prompts.len() >= 40);
        let mut out = Vec::new();
        for (i, prompt) in prompts.into_iter().enumerate() {
            for (j, sampling) in samplings().into_iter().enumerate() {
                let mut request =
                    Request { prompt: prompt.clone(), sampling, max_tokens: Some(self.tokens), ..Request::default() };
                // Some are ended by a text, some run past the model's stop tokens.
                match (i + j) % 7 {
                    0 => request.stop = vec![".".into(), "\n\n".into(), " the".into()],
                    1 => request.ignore_eos = true,
                    2 => request.max_tokens = Some(1 + i % 7),
                    _ => {}
                }
                out.push(request);
            }
        }
        out
    }

    fn plain(&self, requests: &[Request]) -> Vec<Answer> {
        let model = self.pair(CpuBackend::new(Precision::Int8, 2)).model;
        let options = EngineOptions { reuse: false, context: Some(1024), ..EngineOptions::default() };
        let mut driver = Driver::over(model, self.tokenizer(), options);
        requests.iter().map(|r| driver.ask(r.clone()).answer).collect()
    }

    fn engine(&self, pair: Pair, parallel: usize, reuse: bool) -> Driver {
        let options = EngineOptions { parallel, reuse, context: Some(1024), ..EngineOptions::default() };
        let drafter: Box<dyn Drafter> = pair.drafter.expect("a drafter");
        let speculation = Speculation { calibrate: 0, ..Speculation::default() };
        let engine = Engine::with_drafter(pair.model, self.tokenizer(), options, drafter, speculation);
        Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
    }
}

fn samplings() -> Vec<SamplingParams> {
    let greedy = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
    let sampled = |seed| SamplingParams { temperature: 0.8, top_p: 0.95, seed, ..greedy.clone() };
    vec![
        greedy.clone(),
        sampled(1),
        sampled(2),
        sampled(3),
        SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.4, frequency_penalty: 0.3, ..sampled(4) },
        SamplingParams { logit_bias: vec![(300, 4.0), (433, -100.0), (900, 2.5)], ..greedy },
    ]
}

fn is_full() -> bool {
    std::env::var("MLXCEL_IDENTITY").is_ok_and(|v| v == "full")
}

/// Runs the matrix; answers compared, and the counts of all rounds.
fn matrix(case: &Case) -> (usize, Rounds) {
    let requests = case.requests();
    let want = case.plain(&requests);
    let (mut compared, mut all) = (0, Rounds::default());
    for (column, b) in BATCHES.into_iter().enumerate() {
        let mut driver = case.engine(case.pair(CpuBackend::new(Precision::Int8, 2)), b, false);
        for (row, k) in WIDTHS.into_iter().enumerate() {
            // Another part of the requests for each width of a batch and each batch of a width.
            let parts = BATCHES.len() * case.parts;
            let meets = |i: usize| is_full() || (i / 6 + i + row) % parts == column;
            let chosen: Vec<usize> = (0..requests.len()).filter(|i| meets(*i)).collect();
            let ask = |i: &usize| Request { block_size: Some(k), ..requests[*i].clone() };
            let ids: Vec<_> = chosen.iter().map(|i| driver.submit(ask(i))).collect();
            driver.run();
            for (i, id) in chosen.iter().zip(&ids) {
                let what = format!("{}, K={k}, B={b}, request {i} {:?}", case.name, requests[*i].sampling);
                assert_eq!(driver.done[id].answer, want[*i], "{what}");
            }
            compared += chosen.len();
            assert!(driver.engine.pages_used().iter().all(|n| *n == 0), "pages leaked");
        }
        let totals = driver.engine.speculator().expect("a drafter").totals();
        all.rounds += totals.rounds;
        all.proposed += totals.proposed;
        all.accepted += totals.accepted;
        assert_eq!(driver.engine.take_warnings(), Vec::<String>::new());
    }
    (compared, all)
}

fn report(case: &Case) -> Rounds {
    let (compared, rounds) = matrix(case);
    println!(
        "{}: {compared} answers equal those of plain decoding; {} rounds, {} of {} drafts accepted{}",
        case.name,
        rounds.rounds,
        rounds.accepted,
        rounds.proposed,
        if is_full() { "" } else { " (a part of the matrix; MLXCEL_IDENTITY=full runs all of it)" }
    );
    rounds
}

#[test]
fn gemma_with_its_assistant() {
    let rounds = report(&gemma("gemma-4-tiny-it-assistant-4bit"));
    // Biased, penalised and hot answers are hard to foresee, fifteen tokens ahead above all.
    assert!(rounds.acceptance_rate().expect("rounds") > 0.2, "{rounds:?}");
    if is_full() {
        report(&gemma("gemma-4-tiny-it-assistant-bf16"));
    }
}

#[test]
fn qwen_with_its_head() {
    let rounds = report(&qwen());
    // Biased, penalised and hot answers are hard to foresee, fifteen tokens ahead above all.
    assert!(rounds.acceptance_rate().expect("rounds") > 0.2, "{rounds:?}");
}

#[test]
fn smollm2_with_prompt_lookup() {
    match smollm2() {
        Some(case) => {
            let rounds = report(&case);
            assert!(rounds.rounds > 30, "{rounds:?}");
        }
        None => {
            // CI makes it first, and a skipped test must not look like one that passed there.
            assert!(std::env::var_os("MLXCEL_NEED_SMOLLM2").is_none(), "no SmolLM2 in target/smollm2");
            println!("skipped: no SmolLM2 in target/smollm2; tools/smollm2/check.py --convert makes it");
        }
    }
}

/// The next turn of a conversation, from what the last one left in the cache.
#[test]
fn warm_caches_answer_as_cold_ones() {
    for case in [gemma("gemma-4-tiny-it-assistant-4bit"), qwen()] {
        let tokenizer = case.tokenizer();
        let more = tokenizer.encode_raw(&(case.chat)("And then?")).expect("ids");
        let mut slow = Driver::over(
            case.pair(CpuBackend::new(Precision::Int8, 2)).model,
            case.tokenizer(),
            EngineOptions { context: Some(1024), ..EngineOptions::default() },
        );
        let mut fast = case.engine(case.pair(CpuBackend::new(Precision::Int8, 2)), 1, true);
        let mut reused = 0;
        for (i, request) in case.requests().into_iter().step_by(11).enumerate() {
            let first = Request { block_size: Some(WIDTHS[i % WIDTHS.len()]), max_tokens: Some(60), ..request };
            let (f, s) = (fast.ask(first.clone()), slow.ask(first.clone()));
            assert_eq!(f.answer, s.answer, "{}, conversation {i}", case.name);
            // All of the answer, or the turn parts from it somewhere.
            let keep = s.answer.tokens.len() - (i % 3).min(s.answer.tokens.len());
            let prompt = [&first.prompt, &s.answer.tokens[..keep], &more[1..]].concat();
            let second = Request { prompt, ..first };
            let (f, s) = (fast.ask(second.clone()), slow.ask(second.clone()));
            assert_eq!(f.answer, s.answer, "{}, second turn {i}", case.name);
            assert_eq!(f.cached_tokens, s.cached_tokens, "{}, second turn {i}", case.name);
            let cold = case.plain(std::slice::from_ref(&second)).remove(0);
            assert_eq!(f.answer, cold, "{}, second turn {i}, cold", case.name);
            reused += f.cached_tokens;
        }
        assert!(reused > 100, "{}: {reused} positions reused", case.name);
    }
}

/// Answers that run past the window's wrap and over many pages, with widths pinned and as they adapt.
#[test]
fn long_answers_are_those_of_plain_decoding() {
    for case in [gemma("gemma-4-tiny-it-assistant-4bit"), qwen()] {
        let mut requests: Vec<Request> = case.requests().into_iter().step_by(37).take(6).collect();
        for (i, request) in requests.iter_mut().enumerate() {
            (request.max_tokens, request.ignore_eos) = (Some(420), true);
            request.stop = Vec::new();
            request.block_size = [None, Some(4), Some(16)][i % 3];
        }
        let want = case.plain(&requests);
        for b in [1, 3] {
            let mut driver = case.engine(case.pair(CpuBackend::new(Precision::Int8, 2)), b, false);
            let ids: Vec<_> = requests.iter().map(|r| driver.submit(r.clone())).collect();
            driver.run();
            for (i, id) in ids.iter().enumerate() {
                assert_eq!(driver.done[id].answer, want[i], "{}, B={b}, request {i}", case.name);
            }
        }
    }
}

/// The twin: a backend whose sums depend on the width is noticed by exactly these comparisons.
#[test]
fn a_width_dependent_backend_is_noticed() {
    let case = gemma("gemma-4-tiny-it-assistant-4bit");
    let requests: Vec<Request> = case.requests().into_iter().step_by(5).collect();
    let plain = |backend| {
        let options = EngineOptions { reuse: false, context: Some(1024), ..EngineOptions::default() };
        let mut driver = Driver::over(case.pair(backend).model, case.tokenizer(), options);
        requests.iter().map(|r| driver.ask(r.clone()).answer).collect::<Vec<_>>()
    };
    let faulty = || Faulty::new(CpuBackend::new(Precision::Int8, 2), Fault::WidthDependentSum);
    let want = plain(faulty());
    let mut driver = case.engine(case.pair(faulty()), 1, false);
    let differs = requests.iter().zip(&want).filter(|(request, want)| {
        let ask = Request { block_size: Some(8), ..(*request).clone() };
        driver.ask(ask).answer != **want
    });
    let differs = differs.count();
    println!("{differs} of {} answers differ", want.len());
    assert!(differs > 0);
}
