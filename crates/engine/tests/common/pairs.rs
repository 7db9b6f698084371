//! Targets with what drafts for them, what they are asked, and how answers with drafts are compared with plain ones, on any backend.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::Backend;
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, Request, Speculation};
use mlxcel_model::Model;
use mlxcel_model::drafters::{Drafter, Ngram};
use mlxcel_model::registry::{self, Pair};
use mlxcel_text::Tokenizer;

use super::prompts::{QUESTIONS, TEXTS};
use super::{Answer, Driver};

/// A target, what drafts for it, and how it is spoken to.
pub struct Case {
    pub name: &'static str,
    pub target: PathBuf,
    pub drafter: Option<PathBuf>, // None = prompt lookup
    pub chat: fn(&str) -> String,
    pub tokens: usize,
    /// A batch gets one in so many times four of the requests at each width, unless all are run.
    pub parts: usize,
}

/// The embedded checkpoints: where this was built, or where it runs when it was brought to another machine.
pub fn models() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    if built.is_dir() { built } else { PathBuf::from("models") }
}

pub fn gemma(drafter: &str) -> Case {
    Case {
        name: "Gemma pair",
        target: models().join("gemma-4-tiny-it-4bit"),
        drafter: Some(models().join(drafter)),
        chat: |q| format!("<|turn>user\n{q}<turn|>\n<|turn>model\n"),
        tokens: 24,
        parts: 2,
    }
}

pub fn qwen() -> Case {
    Case {
        name: "Qwen pair",
        target: models().join("qwen3.5-tiny-4bit"),
        drafter: Some(models().join("qwen3.5-tiny-mtp-4bit")),
        chat: |q| format!("<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n"),
        tokens: 24,
        parts: 2,
    }
}

impl Case {
    pub fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::new(Tokenizer::load(&self.target).unwrap_or_else(|e| panic!("{e}")))
    }

    pub fn pair<B: Backend>(&self, backend: Arc<B>) -> Pair {
        let open = |dir: &Path| Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
        let target = open(&self.target);
        match &self.drafter {
            Some(dir) => registry::load_pair(&target, &open(dir), backend).unwrap_or_else(|e| panic!("{e}")),
            None => {
                let model = registry::load(&target, backend).unwrap_or_else(|e| panic!("{e}"));
                Pair { model, drafter: Some(Box::new(Ngram::new())) }
            }
        }
    }

    /// At least 40 prompts, each with every kind of sampling.
    pub fn requests(&self) -> Vec<Request> {
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

    /// One after the other, from an empty cache and without drafts: what every other way must answer.
    pub fn plain(&self, model: Box<dyn Model>, requests: &[Request]) -> Vec<Answer> {
        let options = EngineOptions { reuse: false, context: Some(1024), ..EngineOptions::default() };
        let mut driver = Driver::over(model, self.tokenizer(), options);
        requests.iter().map(|r| driver.ask(r.clone()).answer).collect()
    }

    pub fn engine(&self, pair: Pair, parallel: usize, reuse: bool) -> Driver {
        let options = EngineOptions { parallel, reuse, context: Some(1024), ..EngineOptions::default() };
        let drafter: Box<dyn Drafter> = pair.drafter.expect("a drafter");
        let speculation = Speculation { calibrate: 0, ..Speculation::default() };
        let engine = Engine::with_drafter(pair.model, self.tokenizer(), options, drafter, speculation);
        Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
    }

    /// Conversations of two turns, the second from what the first left in the cache: with drafts, without, and cold. Positions
    /// that were reused.
    pub fn conversations(&self, open: impl Fn() -> Pair, firsts: Vec<Request>) -> usize {
        let more = self.tokenizer().encode_raw(&(self.chat)("And then?")).expect("ids");
        let options = EngineOptions { context: Some(1024), ..EngineOptions::default() };
        let mut slow = Driver::over(open().model, self.tokenizer(), options.clone());
        let mut cold = Driver::over(open().model, self.tokenizer(), EngineOptions { reuse: false, ..options });
        let mut fast = self.engine(open(), 1, true);
        let mut reused = 0;
        for (i, first) in firsts.into_iter().enumerate() {
            let (f, s) = (fast.ask(first.clone()), slow.ask(first.clone()));
            assert_eq!(f.answer, s.answer, "{}, conversation {i}", self.name);
            // All of the answer, or the turn parts from it somewhere.
            let keep = s.answer.tokens.len() - (i % 3).min(s.answer.tokens.len());
            let prompt = [&first.prompt, &s.answer.tokens[..keep], &more[1..]].concat();
            let second = Request { prompt, ..first };
            let (f, s) = (fast.ask(second.clone()), slow.ask(second.clone()));
            assert_eq!(f.answer, s.answer, "{}, second turn {i}", self.name);
            assert_eq!(f.cached_tokens, s.cached_tokens, "{}, second turn {i}", self.name);
            assert_eq!(f.answer, cold.ask(second).answer, "{}, second turn {i}, cold", self.name);
            reused += f.cached_tokens;
        }
        reused
    }

    /// How many answers with blocks of `k` are not the plain ones: for twins, which must find some.
    pub fn differing(&self, open: impl Fn() -> Pair, requests: &[Request], k: usize) -> usize {
        let want = self.plain(open().model, requests);
        let mut driver = self.engine(open(), 1, false);
        let ask = |request: &Request| Request { block_size: Some(k), ..request.clone() };
        requests.iter().zip(&want).filter(|(request, want)| driver.ask(ask(request)).answer != **want).count()
    }
}

pub fn samplings() -> Vec<SamplingParams> {
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

/// Whether all of the matrix is wanted.
pub fn is_full() -> bool {
    std::env::var("MLXCEL_IDENTITY").is_ok_and(|v| v == "full")
}
