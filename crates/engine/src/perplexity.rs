//! Perplexity of a text: what a change of precision or quantisation costs, in one number.

use mlxcel_compute::{Batch, Wanted};
use mlxcel_model::Model;

use crate::cache::pages::{PagePool, pages_needed};
use crate::request::EngineError;

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Perplexity {
    /// Mean negative log-likelihood, nats a token.
    pub nll: f64,
    /// Tokens that were predicted.
    pub tokens: usize,
}

impl Perplexity {
    /// `e^nll`.
    pub fn value(&self) -> f64 {
        self.nll.exp()
    }
}

/// Scores `tokens` in windows of `context`: each window starts afresh with `bos` (if any), and every token but the first
/// of a window is predicted from those before it. `progress` hears the running figure after each window.
///
/// # Errors
/// Whatever the model's forward refuses; a context below 2.
pub fn perplexity(
    model: &mut dyn Model,
    tokens: &[u32],
    bos: Option<u32>,
    context: usize,
    mut progress: impl FnMut(usize, Perplexity),
) -> Result<Perplexity, EngineError> {
    let limit = model.info().context_length;
    if context < 2 || context > limit {
        let found = context.to_string();
        return Err(EngineError::Option { option: "--ctx-size", expected: format!("2 to {limit}"), found });
    }
    const STEP: usize = 128;
    let vocab = model.info().vocab_size;
    let page_len = model.page_len();
    let layout = model.kv_layout().to_vec();
    let pages = pages_needed(&layout, page_len, 1, context, STEP);
    model.reserve(&pages, 1)?;
    let (mut sum, mut count) = (0.0, 0);
    let mut done = 0;
    for text in tokens.chunks(context - bos.iter().len()) {
        let window: Vec<u32> = bos.into_iter().chain(text.iter().copied()).collect();
        let mut pool = PagePool::new(&layout, page_len, &pages);
        let mut table = pool.table();
        for start in (0..window.len()).step_by(STEP) {
            let end = (start + STEP).min(window.len());
            assert!(pool.extend(&mut table, start, end), "the pool is sized for one window");
            let mut batch = Batch::new();
            batch.push(0, start, &window[start..end], &table.tables(), Wanted::All);
            let logits = model.forward(&batch)?.into_values()?;
            for (row, logits) in logits.chunks_exact(vocab).enumerate() {
                let Some(next) = window.get(start + row + 1) else { break };
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mass: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
                sum += mass.ln() + f64::from(max) - f64::from(logits[*next as usize]);
                count += 1;
            }
        }
        done += text.len();
        progress(done, Perplexity { nll: sum / count.max(1) as f64, tokens: count });
    }
    if count == 0 {
        let expected = "at least 2 tokens, or one after the tokenizer's BOS".into();
        return Err(EngineError::Option { option: "text", expected, found: tokens.len().to_string() });
    }
    Ok(Perplexity { nll: sum / count as f64, tokens: count })
}
