//! From a row of logits to a token, as a pure function of (parameters, logits, position, history).
//!
//! There is no generator whose state could get out of step: the noise is a hash of (seed, position, token id), so a
//! position sampled inside a verify block, in a batch, again after a roll-back or in any other order gives the token
//! that plain decoding gives.
//!
//! The order of the parts:
//!
//! 1. a NaN or an infinity anywhere in the row is an error;
//! 2. `logit_bias` is added;
//! 3. penalties: repetition, over prompt and answer (positive logits divided, others multiplied), then frequency and
//!    presence, over the answer only; a result beyond f32 becomes the largest finite value of its sign;
//! 4. tokens that a constraint does not allow are left out, as if the vocabulary had none of them;
//! 5. temperature 0 takes the largest logit, the lowest id among equals, and ends here;
//! 6. temperature: `d = (logit - max) / T`;
//! 7. top-k: exactly k tokens, the lower id winning at the k-th value;
//! 8. top-p, of the softmax over what is left: the shortest prefix, best first, with at least that mass;
//! 9. min-p: `d >= ln(min_p)`;
//! 10. Gumbel-max: the largest `d` + noise, the lowest id among equals.
//!
//! Log-probabilities are those of the raw row, tokens that a constraint forbids included. From bits of logits to the token,
//! all arithmetic is plain IEEE in a fixed order, so the choice is the same on every machine.

mod allowed;
mod draft;
mod filter;
mod history;
mod logprobs;
mod math;
mod noise;
mod params;
#[cfg(test)]
mod tests;

pub use allowed::TokenSet;
pub use history::{History, TokenCount};
pub use logprobs::TokenLogprobs;
pub use noise::gumbel;
pub use params::{MAX_LOGPROBS, SampleError, SamplingParams};

use filter::{Candidate, Scale};
use math::Mass;
use noise::RowNoise;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Log-probabilities, if the request asked for them.
    pub logprob: Option<TokenLogprobs>,
}

/// Chooses tokens for one request.
///
/// It holds only its parameters and memory for reuse: nothing of one call reaches the next.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    mass: Mass,
    /// Smallest `d` that min-p keeps.
    min_d: f64,
    /// The row after bias and penalties; unused where there are none.
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
    /// Logits and ids of the allowed tokens; unused without a constraint.
    allowed: (Vec<f32>, Vec<u32>),
}

impl Sampler {
    /// A sampler for rows of `vocab` logits.
    ///
    /// # Errors
    /// What [`SamplingParams::validate`] refuses.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, SampleError> {
        params.validate(vocab)?;
        let min_d = if params.min_p > 0.0 { math::ln(f64::from(params.min_p)) } else { f64::NEG_INFINITY };
        let mass = Mass::new(vocab);
        let (adjusted, candidates, allowed) = Default::default();
        Ok(Sampler { params, vocab, mass, min_d, adjusted, candidates, allowed })
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Logits of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// What [`Sampler::sample_from`] chooses from any finite row whose `largest` logit is known, the lowest id among equals; `None`
    /// where the choice takes more than that.
    pub fn sample_largest(&self, largest: u32, history: &History, allowed: Option<&TokenSet>) -> Option<Sampled> {
        let p = &self.params;
        let enough = p.temperature == 0.0
            && p.logprobs.is_none()
            && !self.adjusts(history)
            && (largest as usize) < self.vocab
            && allowed.is_none_or(|allowed| allowed.contains(largest));
        enough.then_some(Sampled { token: largest, logprob: None })
    }

    /// Chooses the token for `position`, its absolute index in the sequence, from the model's `logits` for it.
    /// `history` holds the tokens before it; ids in it beyond the vocabulary are left alone.
    ///
    /// # Errors
    /// [`SampleError::RowLength`] and [`SampleError::NonFinite`]; the sampler stays usable.
    pub fn sample(&mut self, logits: &[f32], position: usize, history: &History) -> Result<Sampled, SampleError> {
        self.sample_from(logits, position, history, None)
    }

    /// The same, from the `allowed` tokens only: bias and penalties first, every filter of what is left. `None` allows all.
    ///
    /// # Errors
    /// As [`Sampler::sample`]; [`SampleError::NothingAllowed`] where no allowed token has a logit.
    pub fn sample_from(
        &mut self,
        logits: &[f32],
        position: usize,
        history: &History,
        allowed: Option<&TokenSet>,
    ) -> Result<Sampled, SampleError> {
        check_row(logits, position, self.vocab)?;
        let row = if self.adjusts(history) {
            adjust(&self.params, logits, history, &mut self.adjusted);
            &self.adjusted[..]
        } else {
            logits
        };
        let (params, kept) = (&self.params, &mut self.candidates);
        let token = match allowed {
            None => pick(params, self.mass, self.min_d, position, row, kept, |token| token),
            Some(allowed) => {
                let best = filter::argmax(row).token;
                if params.temperature == 0.0 && allowed.contains(best) {
                    best
                } else {
                    let (values, ids) = &mut self.allowed;
                    pack(row, allowed, values, ids);
                    if values.is_empty() {
                        return Err(SampleError::NothingAllowed { position });
                    }
                    let mass = Mass::new(values.len());
                    pick(params, mass, self.min_d, position, values, kept, |index| ids[index as usize])
                }
            }
        };
        let logprob =
            self.params.logprobs.map(|count| logprobs::token_logprobs(logits, token, count, &mut self.candidates));
        Ok(Sampled { token, logprob })
    }

    /// Whether bias or penalties can change a logit.
    fn adjusts(&self, history: &History) -> bool {
        let p = &self.params;
        let answer = p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        !p.logit_bias.is_empty()
            || (p.repetition_penalty != 1.0 && !history.is_empty())
            || (answer && !history.generated().is_empty())
    }
}

/// The token for `position` from a row of which value `i` is that of token `id(i)`; ids ascend.
fn pick(
    params: &SamplingParams,
    mass: Mass,
    min_d: f64,
    position: usize,
    row: &[f32],
    kept: &mut Vec<Candidate>,
    id: impl Fn(u32) -> u32,
) -> u32 {
    let named = |c: Candidate| Candidate { token: id(c.token), ..c };
    let best = named(filter::argmax(row));
    if params.temperature == 0.0 {
        return best.token;
    }
    let scale = Scale::new(best, params.temperature);
    let noise = RowNoise::new(params.seed, position as u64);
    if narrow(params, row, scale, mass, kept) {
        filter::gumbel_max(kept.iter().copied().map(named), scale, min_d, noise).0
    } else {
        filter::gumbel_max(filter::candidates(row).map(named), scale, min_d, noise).0
    }
}

/// The allowed tokens of a row, with their ids in ascending order.
fn pack(row: &[f32], allowed: &TokenSet, values: &mut Vec<f32>, ids: &mut Vec<u32>) {
    values.clear();
    ids.clear();
    for token in allowed.iter() {
        let Some(value) = row.get(token as usize) else { return };
        values.push(*value);
        ids.push(token);
    }
}

fn check_row(logits: &[f32], position: usize, vocab: usize) -> Result<(), SampleError> {
    if logits.len() != vocab {
        return Err(SampleError::RowLength { position, expected: vocab, found: logits.len() });
    }
    // Without an early exit inside a block the test vectorises.
    for (block, start) in logits.chunks(1024).zip((0..).step_by(1024)) {
        if !block.iter().fold(true, |ok, x| ok & x.is_finite())
            && let Some((token, &value)) = (start..).zip(block).find(|(_, x)| !x.is_finite())
        {
            return Err(SampleError::NonFinite { position, token, value });
        }
    }
    Ok(())
}

/// Bias and penalties. Each logit depends only on its own token's counts, so the order of the tokens does not matter.
fn adjust(params: &SamplingParams, logits: &[f32], history: &History, out: &mut Vec<f32>) {
    let finite = |x: f32| x.clamp(f32::MIN, f32::MAX);
    out.clear();
    out.extend_from_slice(logits);
    for &(token, bias) in &params.logit_bias {
        let x = &mut out[token as usize];
        *x = finite(*x + bias);
    }
    let p = params;
    if p.repetition_penalty == 1.0 && p.frequency_penalty == 0.0 && p.presence_penalty == 0.0 {
        return;
    }
    for (token, count) in history.counts() {
        let Some(x) = out.get_mut(token as usize) else { continue };
        *x = finite(if *x > 0.0 { *x / p.repetition_penalty } else { *x * p.repetition_penalty });
        if count.generated > 0 {
            *x = finite(*x - p.frequency_penalty * count.generated as f32 - p.presence_penalty);
        }
    }
}

/// Top-k and top-p into `kept`; false if neither is on, when the whole row stays in play.
fn narrow(params: &SamplingParams, row: &[f32], scale: Scale, mass: Mass, kept: &mut Vec<Candidate>) -> bool {
    let top_k = params.top_k > 0 && params.top_k < row.len();
    let top_p = params.top_p < 1.0;
    match (top_k, top_p) {
        (false, false) => return false,
        (false, true) => filter::top_p_of_row(row, scale, mass, params.top_p, kept),
        (true, _) => filter::top_k(row, params.top_k, kept),
    }
    if top_k && top_p {
        filter::top_p_of_kept(kept, scale, mass, params.top_p);
    }
    true
}
