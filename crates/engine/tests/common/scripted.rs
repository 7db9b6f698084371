//! A model that says what a test wants. What it has seen it knows only from its KV pages, so that a wrong page, a lost
//! position or a stale one changes its answer.

use std::path::PathBuf;

use mlxcel_compute::{Batch, KvGroup, KvShape, NO_PAGE};
use mlxcel_engine::Request;
use mlxcel_engine::sample::{History, Sampler};
use mlxcel_model::tap::Tap;
use mlxcel_model::{Model, ModelError, ModelInfo};

/// Rows of the small vocabulary of [`hashing`] models: special tokens, all single bytes, letters.
pub const SMALL: usize = 512;

/// Keys the window group sees.
pub const WINDOW: usize = 10;

/// Positions of a page.
pub const PAGE: usize = 4;

/// A token of the scripted vocabulary that stands for an image.
pub const IMAGE: u32 = 8;

/// The stop tokens of scripted models: `<eos>` and `<turn|>`.
pub const STOPS: [u32; 2] = [1, 106];

/// The row that follows the tokens seen.
pub enum Row {
    /// This token is by far the likeliest.
    Token(u32),
    /// These logits.
    Logits(Vec<f32>),
    /// A NaN among the logits, handed on.
    Nan,
    /// A NaN that the model notices: the whole batch fails.
    Broken,
}

type Script = Box<dyn Fn(&[u32]) -> Row + Send>;

/// The model. Group 0 caches everything, group 1 a window.
pub struct Scripted {
    info: ModelInfo,
    layout: Vec<KvGroup>,
    cells: Vec<Vec<Option<(u32, u32)>>>, // [group][page * PAGE + offset] = (token, position)
    script: Script,
}

impl Scripted {
    /// A model of `vocab` tokens that goes on from the tokens seen as `script` says.
    pub fn model(vocab: usize, script: impl Fn(&[u32]) -> Row + Send + 'static) -> Box<dyn Model> {
        let layers = vec![KvShape { kv_heads: 1, head_dim: 1 }];
        let layout = vec![KvGroup { window: None, layers: layers.clone() }, KvGroup { window: Some(WINDOW), layers }];
        let info = ModelInfo {
            path: PathBuf::from("scripted"),
            name: "scripted".into(),
            architecture: "Scripted".into(),
            model_type: "scripted".into(),
            vocab_size: vocab,
            context_length: 4096,
            layers: 2,
            hidden_size: 1,
            stop_ids: STOPS.to_vec(),
            media: vec!["image"],
            media_tokens: vec![IMAGE],
            warnings: Vec::new(),
            modules: Vec::new(),
        };
        Box::new(Scripted { info, layout, cells: Vec::new(), script: Box::new(script) })
    }

    /// A model that answers a prompt of `prompt` tokens with `answer`, then with full stops.
    pub fn saying(prompt: usize, answer: &[u32]) -> Box<dyn Model> {
        let answer = answer.to_vec();
        let full_stop = super::tokenizer().token_to_id(".").expect("a full stop");
        let vocab = super::tokenizer().vocab_size();
        Scripted::model(vocab, move |seen| Row::Token(*answer.get(seen.len() - prompt).unwrap_or(&full_stop)))
    }

    /// A cell that a row at `position` can see, through its page table.
    fn read(&self, batch: &Batch, row: usize, group: usize, position: usize) -> u32 {
        let page = batch.table(row, group)[position / PAGE];
        assert_ne!(page, NO_PAGE, "group {group}: position {position} is visible and has no page");
        let cell = self.cells[group][page as usize * PAGE + position % PAGE];
        let (token, at) = cell.unwrap_or_else(|| panic!("group {group}: position {position} was never written"));
        assert_eq!(at as usize, position, "group {group}: the page holds another position");
        token
    }
}

impl Model for Scripted {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn backend(&self) -> String {
        "script".into()
    }

    fn kv_layout(&self) -> &[KvGroup] {
        &self.layout
    }

    fn page_len(&self) -> usize {
        PAGE
    }

    fn kv_page_bytes(&self, _: usize) -> usize {
        PAGE * 8
    }

    fn reserve(&mut self, pages: &[usize]) -> Result<(), ModelError> {
        self.cells = pages.iter().map(|n| vec![None; n * PAGE]).collect();
        Ok(())
    }

    fn forward(&mut self, batch: &Batch) -> Result<Vec<f32>, ModelError> {
        for row in 0..batch.rows() {
            let (token, position) = (batch.tokens()[row], batch.positions()[row]);
            for group in 0..2 {
                let page = batch.table(row, group)[position as usize / PAGE];
                assert_ne!(page, NO_PAGE, "group {group}: position {position} has no page to be written to");
                self.cells[group][page as usize * PAGE + position as usize % PAGE] = Some((token, position));
            }
        }
        let mut logits = Vec::new();
        for row in batch.wanted().iter().map(|r| *r as usize) {
            let position = batch.positions()[row] as usize;
            let seen: Vec<u32> = (0..=position).map(|p| self.read(batch, row, 0, p)).collect();
            for (p, token) in seen.iter().enumerate().skip((position + 1).saturating_sub(WINDOW)) {
                assert_eq!(self.read(batch, row, 1, p), *token, "the groups disagree about position {p}");
            }
            match (self.script)(&seen) {
                Row::Token(token) => {
                    let mut row = vec![0.0; self.info.vocab_size];
                    row[token as usize] = 50.0;
                    logits.extend(row);
                }
                Row::Logits(row) => logits.extend(row),
                Row::Nan => logits.extend((0..self.info.vocab_size).map(|t| if t == 7 { f32::NAN } else { 0.0 })),
                Row::Broken => {
                    let (model, site) = ("scripted".into(), "layer 1, output".into());
                    return Err(ModelError::NonFinite { model, position: position as u32, site });
                }
            }
        }
        Ok(logits)
    }

    fn forward_tapped(&mut self, batch: &Batch, _: &mut dyn Tap) -> Result<Vec<f32>, ModelError> {
        self.forward(batch)
    }
}

/// The finaliser of splitmix64.
pub fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Logits that depend on every token seen and on their order; images are never said.
pub fn hash_row(seen: &[u32]) -> Vec<f32> {
    let state = seen.iter().fold(1, |h, t| mix(h ^ u64::from(*t).wrapping_add(0x9e37_79b9_7f4a_7c15)));
    let logit = |t: u64| (mix(state.wrapping_add(t << 20)) >> 40) as f32 / (1 << 21) as f32;
    (0..SMALL as u64).map(|t| if t == u64::from(IMAGE) { -99.0 } else { logit(t) }).collect()
}

/// A model whose answer is a hash of everything before it.
pub fn hashing() -> Box<dyn Model> {
    Scripted::model(SMALL, |seen| Row::Logits(hash_row(seen)))
}

/// The tokens that plain decoding gives for [`hash_row`], without an engine.
pub fn plain(request: &Request, context: usize) -> Vec<u32> {
    let mut history = History::new(&request.prompt);
    let mut sampler = Sampler::new(request.sampling.clone(), SMALL).expect("valid parameters");
    let room = context - request.prompt.len();
    for _ in 0..request.max_tokens.unwrap_or(room).min(room) {
        let row = hash_row(history.tokens());
        let token = sampler.sample(&row, history.len(), &history).expect("finite").token;
        history.push(token);
        if request.stop_ids.contains(&token) || (!request.ignore_eos && STOPS.contains(&token)) {
            break;
        }
    }
    history.generated().to_vec()
}
