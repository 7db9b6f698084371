//! How often the demo drafters are right, through the whole engine, against the float32 references in golden.json and, on held-out
//! prompts, against the model card; and what coupling the noise of drafts and answers gives.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::Driver;
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Coupling, Engine, EngineOptions, FinishReason, Request, Rounds, Speculation};
use mlxcel_model::registry;
use mlxcel_text::Tokenizer;
use serde_json::Value;

/// Tokens of each answer, as in the references.
const TOKENS: usize = 128;

/// Greedy acceptance by block width on the 4-bit assistant's card, of 512 held-out prompts; how many of ours are asked, and the most
/// tokens of a prompt with its answer.
const CARD: [(usize, f64); 3] = [(2, 0.922), (4, 0.843), (8, 0.711)];
const HELDOUT: usize = 64;
const HELDOUT_LENGTH: usize = 384;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

struct Pair {
    target: &'static str,
    drafter: &'static str,
    /// The reference's loops ran past stop tokens.
    ignore_eos: bool,
}

const GEMMA: Pair =
    Pair { target: "gemma-4-tiny-it-4bit", drafter: "gemma-4-tiny-it-assistant-bf16", ignore_eos: false };
const GEMMA_4BIT: Pair =
    Pair { target: "gemma-4-tiny-it-4bit", drafter: "gemma-4-tiny-it-assistant-4bit", ignore_eos: false };
const QWEN: Pair = Pair { target: "qwen3.5-tiny-4bit", drafter: "qwen3.5-tiny-mtp-4bit", ignore_eos: true };

impl Pair {
    fn golden(&self) -> Value {
        let path = models().join(self.target).join("golden.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str::<Value>(&text).expect("JSON")["speculative"].clone()
    }

    fn prompts(&self) -> Vec<Vec<u32>> {
        let golden = self.golden();
        let ids = |prompt: &Value| -> Vec<u32> {
            prompt["prompt_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as u32).collect()
        };
        match &golden["prompts"] {
            Value::Array(prompts) => prompts.iter().map(ids).collect(),
            Value::Object(prompts) => prompts.values().map(ids).collect(),
            other => panic!("{other}"),
        }
    }

    fn reference(&self, k: usize) -> f64 {
        let golden = self.golden();
        let rates = [&golden["K"][k.to_string()]["accept_rate"], &golden["by_K"][k.to_string()]["acceptance"]];
        rates.iter().find_map(|rate| rate.as_f64()).expect("a rate")
    }

    /// The pair on two threads, `parallel` requests at once, always `k` wide.
    fn driver(&self, precision: Precision, k: usize, coupling: Coupling, parallel: usize) -> Driver {
        let open = |name: &str| Checkpoint::open(&models().join(name)).unwrap_or_else(|e| panic!("{e}"));
        let backend = Arc::new(CpuBackend::new(precision, 2));
        let pair = registry::load_pair(&open(self.target), &open(self.drafter), backend);
        let pair = pair.unwrap_or_else(|e| panic!("{e}"));
        let tokenizer = Tokenizer::load(&models().join(self.target)).unwrap_or_else(|e| panic!("{e}"));
        let speculation = Speculation { block_size: Some(k), coupling, calibrate: 0, ..Speculation::default() };
        let options = EngineOptions { parallel, context: Some(512), reuse: false, ..EngineOptions::default() };
        let drafter = pair.drafter.expect("a drafter");
        let engine = Engine::with_drafter(pair.model, Arc::new(tokenizer), options, drafter, speculation);
        Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
    }

    /// Rounds of each prompt.
    fn run(&self, precision: Precision, k: usize, coupling: Coupling, sampling: &SamplingParams) -> Vec<Rounds> {
        let mut driver = self.driver(precision, k, coupling, 1);
        let ask = |prompt| {
            let request = Request {
                prompt,
                sampling: sampling.clone(),
                max_tokens: Some(TOKENS),
                ignore_eos: self.ignore_eos,
                ..Request::default()
            };
            let id = driver.submit(request);
            driver.run();
            driver.rounds[&id]
        };
        self.prompts().into_iter().map(ask).collect()
    }

    /// Greedy acceptance at K = 2, 4, 8, each within `tolerance` of `want`.
    fn greedy(&self, want: impl Fn(usize) -> f64, tolerance: f64) {
        for k in [2, 4, 8] {
            let rounds = sum(&self.run(Precision::F32, k, Coupling::Coupled, &SamplingParams::default()));
            let (rate, want) = (rounds.acceptance_rate().expect("rounds"), want(k));
            println!(
                "{} with {}, greedy, K={k}: acceptance {rate:.4} (reference {want:.4}), {:.2} tokens a round",
                self.target,
                self.drafter,
                rounds.tokens_per_round().expect("rounds")
            );
            assert!((rate - want).abs() <= tolerance, "K={k}: acceptance {rate:.4}, {want:.4} expected");
        }
    }

    /// Greedy drafts accepted and proposed as the model cards count: those beyond the end of an answer were not proposed, and
    /// answers of fewer than four tokens do not count. Prompt and answer have `HELDOUT_LENGTH` tokens at most.
    fn as_on_the_card(&self, prompts: &[Vec<u32>], k: usize) -> (u64, u64) {
        let mut driver = self.driver(Precision::F32, k, Coupling::Coupled, 8);
        let ask = |prompt: &Vec<u32>| Request {
            prompt: prompt.clone(),
            max_tokens: Some(HELDOUT_LENGTH - prompt.len()),
            ..Request::default()
        };
        let ids: Vec<_> = prompts.iter().map(|prompt| driver.submit(ask(prompt))).collect();
        // How many tokens of its answer each request had before each of its rounds.
        let mut before = vec![Vec::new(); ids.len()];
        while !driver.engine.is_idle() {
            let had: Vec<usize> = ids.iter().map(|id| driver.tokens(*id).len()).collect();
            driver.step();
            for ((had, id), before) in had.iter().zip(&ids).zip(&mut before) {
                if *had > 0 && driver.tokens(*id).len() > *had {
                    before.push(*had);
                }
            }
        }
        let mut counts = (0, 0);
        for (id, before) in ids.iter().zip(&before) {
            let answer = &driver.done[id].answer;
            // No round drafts an answer's last token where the limit, not a stop token, ends it: the model's own is always there.
            let end = answer.tokens.len() - usize::from(answer.reason == FinishReason::Length);
            if answer.tokens.len() >= 4 {
                counts.0 += driver.rounds[id].accepted;
                counts.1 += before.iter().map(|had| (k - 1).min(end.saturating_sub(*had)) as u64).sum::<u64>();
            }
        }
        counts
    }

    /// Acceptance at T = 0.8, top-p 0.95, K = 4, over three seeds: the mean over prompts, and of all drafts together, which varies by
    /// 0.04 with the choice of the seeds (tests/golden/acceptance/sampled.py).
    fn sampled(&self, coupling: Coupling) -> (f64, f64) {
        let runs: Vec<Vec<Rounds>> = (1..=3)
            .map(|seed| {
                let sampling = SamplingParams { temperature: 0.8, top_p: 0.95, seed, ..SamplingParams::default() };
                self.run(Precision::Int8, 4, coupling, &sampling)
            })
            .collect();
        let prompts: Vec<Rounds> =
            (0..runs[0].len()).map(|p| sum(&runs.iter().map(|run| run[p]).collect::<Vec<_>>())).collect();
        let rate = |rounds: &Rounds| rounds.acceptance_rate().expect("rounds");
        let mean = prompts.iter().map(rate).sum::<f64>() / prompts.len() as f64;
        let all = sum(&prompts);
        println!(
            "{} with {}, T=0.8, top-p 0.95, K=4, {} drafts: acceptance {mean:.4} (mean over prompts), {:.4} (all drafts), {:.2} tokens a \
             round",
            self.target,
            self.drafter,
            coupling.name(),
            rate(&all),
            all.tokens_per_round().expect("rounds")
        );
        (mean, rate(&all))
    }
}

/// The first `count` held-out prompts and what the second implementation counted there with the 4-bit assistant at block width `k`.
fn heldout(count: usize, k: usize) -> (Vec<Vec<u32>>, (u64, u64)) {
    let read = |name: &str| -> Vec<Value> {
        let path = models().join("../tests/golden/acceptance").join(name);
        serde_json::from_str(&std::fs::read_to_string(path).expect("file")).expect("JSON")
    };
    let number = |value: &Value| value.as_u64().expect("a number");
    let ids = |prompt: &Value| prompt["ids"].as_array().expect("ids").iter().map(|id| number(id) as u32).collect();
    let prompts = read("heldout_prompts.json").iter().take(count).map(ids).collect();
    let found = read("heldout_results.json");
    let long = found.iter().take(count).filter(|answer| number(&answer["tokens"]) >= 4);
    let counts = long.map(|answer| &answer[format!("4bit K={k}")]);
    (prompts, counts.fold((0, 0), |sum, one| (sum.0 + number(&one[0]), sum.1 + number(&one[1]))))
}

fn sum(all: &[Rounds]) -> Rounds {
    let mut out = Rounds::default();
    for one in all {
        out.rounds += one.rounds;
        out.proposed += one.proposed;
        out.accepted += one.accepted;
        out.emitted += one.emitted;
        out.plain_steps += one.plain_steps;
    }
    out
}

#[test]
fn gemma_is_as_often_right_as_the_reference() {
    GEMMA.greedy(|k| GEMMA.reference(k), 0.02);
    // golden.json has the bf16 drafter's rates only; those of the 4-bit one come from a second implementation over the same prompts
    // (tests/golden/acceptance). The card's rates are of 512 others: see below.
    let path = models().join("../tests/golden/acceptance/gemma4_4bit.json");
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("file")).expect("JSON");
    let count = |k: usize, what: &str| kept["K"][k.to_string()][what].as_f64().expect("a count");
    GEMMA_4BIT.greedy(|k| count(k, "accepted") / count(k, "proposed"), 0.02);
}

/// The card's rates are of 512 held-out prompts, drawn as tests/golden/acceptance/heldout.py draws: on ours the second implementation
/// must come to the card's rates, and on the first of them the engine, to those and to what the second implementation counts there.
#[test]
fn the_4bit_assistant_is_as_often_right_as_its_card_says() {
    let near =
        |counts: (u64, u64), rate: f64, tolerance: f64| (counts.0 as f64 / counts.1 as f64 - rate).abs() <= tolerance;
    for (k, card) in CARD {
        let (all, reference) = heldout(usize::MAX, k);
        assert_eq!(all.len(), 512);
        assert!(near(reference, card, 0.01), "K={k}: {reference:?}, the card has {card:.3}");
        let (prompts, reference) = heldout(HELDOUT, k);
        let counts = GEMMA_4BIT.as_on_the_card(&prompts, k);
        let (rate, wanted) = (counts.0 as f64 / counts.1 as f64, reference.0 as f64 / reference.1 as f64);
        println!(
            "{} with {}, {HELDOUT} held-out prompts, K={k}: acceptance {rate:.4} (reference {wanted:.4}, card {card:.3})",
            GEMMA_4BIT.target, GEMMA_4BIT.drafter
        );
        assert!(near(counts, card, 0.04), "K={k}: acceptance {rate:.4}, the card has {card:.3}");
        assert!(near(counts, wanted, 0.005), "K={k}: accepted and proposed {counts:?}, {reference:?} expected");
    }
    // The twin: the six prompts of golden.json are not of that kind, and not enough.
    assert!(!near(GEMMA_4BIT.as_on_the_card(&GEMMA_4BIT.prompts(), 8), CARD[2].1, 0.04));
}

#[test]
fn qwen_is_as_often_right_as_the_reference() {
    QWEN.greedy(|k| QWEN.reference(k), 0.02);
}

#[test]
fn coupled_noise_makes_sampled_drafts_better() {
    for (pair, least) in [(&GEMMA, 0.66), (&GEMMA_4BIT, 0.66), (&QWEN, 0.5)] {
        let coupled = pair.sampled(Coupling::Coupled);
        let greedy = pair.sampled(Coupling::Greedy);
        let independent = pair.sampled(Coupling::Independent);
        assert!(coupled.0 >= least, "{}: {coupled:?}", pair.drafter);
        // Also the twin: drafts with other noise are not as good.
        for other in [greedy, independent] {
            assert!(coupled.0 > other.0 + 0.02 && coupled.1 > other.1 + 0.02, "{coupled:?} {greedy:?} {independent:?}");
        }
    }
}
