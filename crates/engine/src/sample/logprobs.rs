//! Log-probabilities of the model itself: from the raw row, before bias, penalties, temperature and filters.

use super::filter::{self, Candidate, argmax, best_first};
use super::math;

/// Log-probabilities (natural logarithm) at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub logprob: f32,
    /// Of the most likely tokens, best first, the lower id among equals: as many as were asked for, or the whole
    /// vocabulary if that is smaller. The chosen token need not be among them.
    pub top: Vec<(u32, f32)>,
}

/// Log-softmax of the finite `logits` at `token` and at the `count` best tokens, in f64. `scratch` is overwritten.
pub(crate) fn token_logprobs(logits: &[f32], token: u32, count: usize, scratch: &mut Vec<Candidate>) -> TokenLogprobs {
    let log_sum = log_sum_exp(logits);
    // Finite for the wire: the distance of two finite logits may be beyond f32.
    let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).max(f32::MIN);
    scratch.clear();
    if count > 0 {
        filter::top_k(logits, count, scratch);
        scratch.sort_unstable_by(best_first);
    }
    TokenLogprobs {
        logprob: logprob(logits[token as usize]),
        top: scratch.iter().map(|c| (c.token, logprob(c.logit))).collect(),
    }
}

/// ln of the sum of e^logit, the sum taken in eight interleaved lanes which are then added in order: fixed for a given
/// length, and wide enough to vectorise.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(argmax(logits).logit);
    let (chunks, rest) = logits.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        let terms = math::exp(chunk.map(|logit| f64::from(logit) - max));
        for (lane, term) in lanes.iter_mut().zip(terms) {
            *lane += term;
        }
    }
    for (lane, &logit) in lanes.iter_mut().zip(rest) {
        let [term] = math::exp([f64::from(logit) - max]);
        *lane += term;
    }
    max + math::ln(lanes.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_share_the_mass() {
        for n in [1_usize, 7, 8, 9, 1000] {
            let got = token_logprobs(&vec![3.5; n], 0, 3, &mut Vec::new());
            let want = -(n as f64).ln() as f32;
            assert!((got.logprob - want).abs() < 1e-6);
            let ids: Vec<u32> = got.top.iter().map(|&(t, _)| t).collect();
            assert_eq!(ids, (0..n.min(3) as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn matches_the_definition() {
        let logits: Vec<f32> = (0..501).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3).collect();
        let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let got = token_logprobs(&logits, 17, 20, &mut Vec::new());
        assert!((f64::from(got.logprob) - (f64::from(logits[17]) - sum.ln())).abs() < 1e-5);
        assert_eq!(got.top.len(), 20);
        assert!(got.top.windows(2).all(|w| w[0].1 > w[1].1 || (w[0].1 == w[1].1 && w[0].0 < w[1].0)));
    }

    #[test]
    fn extreme_logits_stay_finite() {
        let got = token_logprobs(&[f32::MIN, f32::MAX], 0, 2, &mut Vec::new());
        assert_eq!(got, TokenLogprobs { logprob: f32::MIN, top: vec![(1, 0.0), (0, f32::MIN)] });
    }
}
