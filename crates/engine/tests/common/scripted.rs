//! A model that says what a test wants. What it has seen it knows only from its KV pages, so that a wrong page, a lost
//! position or a stale one changes its answer.

use std::path::PathBuf;

use mlxcel_compute::{Batch, KvGroup, KvShape, NO_PAGE};
use mlxcel_engine::Request;
use mlxcel_engine::sample::{History, Sampler};
use mlxcel_model::tap::Tap;
use mlxcel_model::{Logits, Model, ModelError, ModelInfo, Snapshot, TAKE_BACK};

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
    slots: Option<Vec<Slot>>,
}

thread_local! {
    /// Spans of recurrent models on this thread that ended inside what their slot had already computed of the same tokens.
    pub static RECOMPUTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A recurrent state: all tokens seen, and how many of them the last span brought. `None` = spoilt.
#[derive(Clone, Default)]
struct Slot {
    seen: Option<Vec<u32>>,
    last: usize,
    longest: Vec<u32>,
}

/// Bytes that a recurrent script says a snapshot has.
pub const SNAPSHOT: usize = 100;

impl Scripted {
    /// A model of `vocab` tokens that goes on from the tokens seen as `script` says.
    pub fn model(vocab: usize, script: impl Fn(&[u32]) -> Row + Send + 'static) -> Box<dyn Model> {
        Box::new(Scripted::build(vocab, script))
    }

    fn build(vocab: usize, script: impl Fn(&[u32]) -> Row + Send + 'static) -> Self {
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
        Scripted { info, layout, cells: Vec::new(), script: Box::new(script), slots: None }
    }

    /// The same, but it also carries the tokens seen as a recurrent state, and compares.
    pub fn recurrent(vocab: usize, script: impl Fn(&[u32]) -> Row + Send + 'static) -> Box<dyn Model> {
        let mut model = Scripted::build(vocab, script);
        model.slots = Some(Vec::new());
        Box::new(model)
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

    fn reserve(&mut self, pages: &[usize], slots: usize) -> Result<(), ModelError> {
        self.cells = pages.iter().map(|n| vec![None; n * PAGE]).collect();
        if let Some(own) = &mut self.slots {
            *own = vec![Slot::default(); slots];
        }
        Ok(())
    }

    fn keep_hidden(&mut self, _: mlxcel_model::drafters::HiddenRows) {}

    fn is_recurrent(&self) -> bool {
        self.slots.is_some()
    }

    fn state_bytes(&self) -> (usize, usize) {
        (2 * SNAPSHOT, SNAPSHOT)
    }

    fn take_back(&mut self, slot: usize, len: usize) -> bool {
        let Some(slots) = &mut self.slots else { return true };
        let slot = &mut slots[slot];
        let Some(seen) = &mut slot.seen else { return false };
        let back = seen.len().wrapping_sub(len);
        if len > seen.len() || (len > 0 && back > slot.last.min(TAKE_BACK)) {
            return false;
        }
        seen.truncate(len);
        slot.last = slot.last.saturating_sub(back);
        true
    }

    fn save_state(&self, slot: usize) -> Option<Snapshot> {
        let seen = self.slots.as_ref()?[slot].seen.clone()?;
        Some(Snapshot::new(seen.len(), seen))
    }

    fn restore_state(&mut self, slot: usize, snapshot: &Snapshot) {
        let slot = &mut self.slots.as_mut().expect("a recurrent model")[slot];
        slot.seen = snapshot.inner::<Vec<u32>>().cloned();
        slot.last = 0;
    }

    fn read_state(&self, _: &Snapshot) -> Vec<f32> {
        Vec::new()
    }

    fn forward(&mut self, batch: &Batch) -> Result<Logits, ModelError> {
        if let Some(slots) = &mut self.slots {
            for span in batch.spans() {
                let slot = &mut slots[span.sequence];
                if span.start == 0 {
                    slot.seen = Some(Vec::new());
                }
                let seen = slot.seen.as_mut().expect("a slot that holds a state");
                assert_eq!(seen.len(), span.start, "slot {} stands elsewhere", span.sequence);
                seen.extend(&batch.tokens()[span.first_row..][..span.len]);
                slot.last = span.len;
                if seen.len() < slot.longest.len() && slot.longest.starts_with(seen) {
                    RECOMPUTED.set(RECOMPUTED.get() + 1);
                } else {
                    slot.longest.clone_from(seen);
                }
            }
        }
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
            if let Some(slots) = &self.slots {
                let slot = batch.spans()[batch.span_of(row)].sequence;
                let state = slots[slot].seen.as_ref().expect("a state");
                assert_eq!(state[..=position], seen, "slot {slot}: the state saw other tokens than the pages hold");
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
                    // States that cannot be taken back to the start of their span are lost, as LoadedModel loses them.
                    for span in batch.spans() {
                        if !self.take_back(span.sequence, span.start)
                            && let Some(slots) = &mut self.slots
                        {
                            slots[span.sequence].seen = None;
                        }
                    }
                    let (model, site) = ("scripted".into(), "layer 1, output".into());
                    return Err(ModelError::NonFinite { model, position: position as u32, site });
                }
            }
        }
        Ok(Logits::from_values(logits, self.info.vocab_size))
    }

    fn forward_tapped(&mut self, batch: &Batch, _: &mut dyn Tap) -> Result<Logits, ModelError> {
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
