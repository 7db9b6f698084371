//! Drives an engine and keeps what each request was answered, as bits, with the promises of the event stream checked at
//! every step.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod drafts;
pub mod grammars;
pub mod json;
pub mod pairs;
pub mod prompts;
pub mod scripted;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::Backend;
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, Event, FinishReason, Request, RequestId, Rounds};
use mlxcel_model::{Model, registry};
use mlxcel_text::Tokenizer;

/// The trained demo checkpoint.
pub fn demo_dir() -> PathBuf {
    pairs::models().join("gemma-4-tiny-it-4bit")
}

/// Its tokenizer.
pub fn tokenizer() -> Arc<Tokenizer> {
    static ONE: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    Arc::clone(ONE.get_or_init(|| Arc::new(Tokenizer::load(&demo_dir()).unwrap_or_else(|e| panic!("{e}")))))
}

/// The demo model on any backend.
pub fn demo_on<B: Backend>(backend: B) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(&demo_dir()).unwrap_or_else(|e| panic!("{e}"));
    registry::load(&checkpoint, Arc::new(backend)).unwrap_or_else(|e| panic!("{e}"))
}

/// The demo model on one CPU thread.
pub fn demo(precision: Precision) -> Box<dyn Model> {
    demo_on(CpuBackend::new(precision, 1))
}

/// Ids of a raw prompt.
pub fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode_raw(text).unwrap_or_else(|e| panic!("{e}"))
}

/// Ids of one question, ready to be answered.
pub fn question(text: &str) -> Vec<u32> {
    ids(&format!("<|turn>user\n{text}<turn|>\n<|turn>model\n"))
}

/// The first `len` ids of a long story.
pub fn story(len: usize) -> Vec<u32> {
    let text = "Once upon a time, there was a little fox named Nora. Nora lived in the forest with her family. One day \
                Nora found a small seed. Every morning she ran to look, but there was only brown earth. It rained. ";
    let mut all = ids(&text.repeat(1 + len / 32));
    assert!(all.len() >= len, "the story is too short");
    all.truncate(len);
    all
}

/// A greedy request with log-probabilities.
pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let sampling = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
    Request { prompt, sampling, max_tokens: Some(max_tokens), ..Request::default() }
}

/// A sampled request with log-probabilities.
pub fn sampled(prompt: Vec<u32>, max_tokens: usize, seed: u64) -> Request {
    let mut request = greedy(prompt, max_tokens);
    request.sampling = SamplingParams { temperature: 0.7, top_p: 0.95, seed, ..request.sampling };
    request
}

/// Everything that must be the same whatever the load, the cache and the chunks. Floats are bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<(u32, Vec<(u32, u32)>)>,
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

/// An answer with what may differ.
#[derive(Clone, Debug)]
pub struct Record {
    pub answer: Answer,
    /// Text of each token event.
    pub pieces: Vec<String>,
    /// Text of the final event.
    pub tail: String,
    pub cached_tokens: usize,
}

#[derive(Default)]
struct Open {
    tokens: Vec<u32>,
    pieces: Vec<String>,
    logprobs: Vec<(u32, Vec<(u32, u32)>)>,
    asked: bool,
}

/// An engine and its clients.
pub struct Driver {
    pub engine: Engine,
    open: BTreeMap<RequestId, Open>,
    pub done: BTreeMap<RequestId, Record>,
    /// What each request's rounds came to.
    pub rounds: BTreeMap<RequestId, Rounds>,
    /// Whether the engine may have caught panics: a scripted model's own checks are some.
    pub panics: bool,
}

impl Driver {
    pub fn new(model: Box<dyn Model>, options: EngineOptions) -> Self {
        Self::over(model, tokenizer(), options)
    }

    /// With another tokenizer than the demo's.
    pub fn over(model: Box<dyn Model>, tokenizer: Arc<Tokenizer>, options: EngineOptions) -> Self {
        Self::with(Engine::new(model, tokenizer, options).unwrap_or_else(|e| panic!("{e}")))
    }

    /// Over an engine of the test's own.
    pub fn with(engine: Engine) -> Self {
        Driver { engine, open: BTreeMap::new(), done: BTreeMap::new(), rounds: BTreeMap::new(), panics: false }
    }

    pub fn submit(&mut self, request: Request) -> RequestId {
        let asked = request.sampling.logprobs.is_some();
        let id = self.engine.submit(request).unwrap_or_else(|e| panic!("{e}"));
        assert!(!self.done.contains_key(&id), "an id was used twice");
        assert!(self.open.insert(id, Open { asked, ..Open::default() }).is_none(), "an id was used twice");
        id
    }

    pub fn step(&mut self) {
        for event in self.engine.step() {
            self.take(event);
        }
        assert!(self.panics || self.engine.panics() == 0, "something panicked; its message is above");
        assert_eq!(self.engine.is_idle(), self.open.is_empty(), "idle means that every request got its final event");
    }

    pub fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Steps until nothing is left to do.
    pub fn run(&mut self) {
        for _ in 0..20_000 {
            if self.engine.is_idle() {
                return;
            }
            self.step();
        }
        panic!("no end after 20,000 steps");
    }

    /// Cancels; false when the engine does not know the request (any more).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let event = self.engine.cancel(id);
        let known = event.is_some();
        assert_eq!(known, self.open.contains_key(&id), "the engine knows exactly the requests without a final event");
        if let Some(event) = event {
            self.take(event);
            assert_eq!(self.done[&id].answer.reason, FinishReason::Cancelled);
        }
        known
    }

    /// Submits and runs to the end.
    pub fn ask(&mut self, request: Request) -> Record {
        let id = self.submit(request);
        self.run();
        self.done[&id].clone()
    }

    /// Tokens that came so far, or in all.
    pub fn tokens(&self, id: RequestId) -> &[u32] {
        self.open.get(&id).map_or_else(|| self.done[&id].answer.tokens.as_slice(), |o| &o.tokens)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Token(event) => {
                let open = self.open.get_mut(&event.id).expect("a token belongs to a request without a final event");
                open.tokens.push(event.token);
                open.pieces.push(event.text);
                assert_eq!(event.logprob.is_some(), open.asked, "log-probabilities exactly where they were asked for");
                if let Some(logprob) = event.logprob {
                    let top = logprob.top.iter().map(|(t, p)| (*t, p.to_bits())).collect();
                    open.logprobs.push((logprob.logprob.to_bits(), top));
                }
            }
            Event::Finished(end) => {
                let open = self.open.remove(&end.id).expect("one final event a request");
                assert_eq!(end.completion_tokens, open.tokens.len(), "completion_tokens is the number of token events");
                assert!(end.cached_tokens < end.prompt_tokens, "the last prompt token is always computed");
                let answer = Answer {
                    text: open.pieces.concat() + &end.text,
                    tokens: open.tokens,
                    logprobs: open.logprobs,
                    reason: end.reason,
                    prompt_tokens: end.prompt_tokens,
                    completion_tokens: end.completion_tokens,
                };
                let record = Record { answer, pieces: open.pieces, tail: end.text, cached_tokens: end.cached_tokens };
                self.rounds.insert(end.id, end.rounds);
                self.done.insert(end.id, record);
            }
        }
    }
}

/// What a fresh engine that has nothing else to do answers.
pub fn alone(model: Box<dyn Model>, request: Request) -> Answer {
    let record = Driver::new(model, EngineOptions { reuse: false, ..EngineOptions::default() }).ask(request);
    assert_eq!(record.cached_tokens, 0);
    record.answer
}

/// Index of the largest value, the lowest on ties.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best as u32
}

/// A small deterministic generator (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (scripted::mix(self.0) >> 32) as usize % n
    }
}
