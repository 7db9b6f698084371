//! How often the demo drafters are right, through the whole engine, against the float32 references in golden.json; and what
//! coupling the noise of drafts and answers gives.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::Driver;
use mlxcel_checkpoint::Checkpoint;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Coupling, Engine, EngineOptions, Request, Rounds, Speculation};
use mlxcel_model::registry;
use mlxcel_text::Tokenizer;
use serde_json::Value;

/// Tokens of each answer, as in the references.
const TOKENS: usize = 128;

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

    /// Rounds of each prompt.
    fn run(&self, precision: Precision, k: usize, coupling: Coupling, sampling: &SamplingParams) -> Vec<Rounds> {
        let open = |name: &str| Checkpoint::open(&models().join(name)).unwrap_or_else(|e| panic!("{e}"));
        let backend = Arc::new(CpuBackend::new(precision, 2));
        let pair = registry::load_pair(&open(self.target), &open(self.drafter), backend);
        let pair = pair.unwrap_or_else(|e| panic!("{e}"));
        let tokenizer = Tokenizer::load(&models().join(self.target)).unwrap_or_else(|e| panic!("{e}"));
        let speculation = Speculation { block_size: Some(k), coupling, calibrate: 0, ..Speculation::default() };
        let options = EngineOptions { context: Some(512), reuse: false, ..EngineOptions::default() };
        let drafter = pair.drafter.expect("a drafter");
        let engine = Engine::with_drafter(pair.model, Arc::new(tokenizer), options, drafter, speculation);
        let mut driver = Driver::with(engine.unwrap_or_else(|e| panic!("{e}")));
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

    /// Acceptance at T = 0.8, top-p 0.95, K = 4, over three seeds: the mean over prompts, which is how the reference counts, and
    /// of all drafts together.
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
    // (tests/golden/acceptance). The card's 0.922, 0.843, 0.711 are of 512 other prompts, on which the bf16 one is more often
    // right, too.
    let path = models().join("../tests/golden/acceptance/gemma4_4bit.json");
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("file")).expect("JSON");
    let count = |k: usize, what: &str| kept["K"][k.to_string()][what].as_f64().expect("a count");
    GEMMA_4BIT.greedy(|k| count(k, "accepted") / count(k, "proposed"), 0.02);
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
