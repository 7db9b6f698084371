//! Choosing a draft from a drafter's candidates, as the request would choose a token.
//!
//! The target decides what is kept, so nothing here can change an answer; the nearer this comes to [`Sampler::sample`] on the
//! target's row, the more drafts are kept. The noise is the same function of (seed, position, token): where the drafter's
//! logits are near the target's, both have the same largest sum.

use mlxcel_model::drafters::Candidate;

use super::{History, Sampler, gumbel};

impl Sampler {
    /// Whether the choice is the largest raw logit, whatever came before.
    pub fn takes_the_largest(&self) -> bool {
        let p = &self.params;
        p.temperature == 0.0
            && p.logit_bias.is_empty()
            && p.repetition_penalty == 1.0
            && p.presence_penalty == 0.0
            && p.frequency_penalty == 0.0
    }

    /// The draft for `position` out of `candidates`, best first, when the answer's tokens so far are `history` and then
    /// `drafted`. `seed` replaces the request's own for drafts that are not to be coupled. `None` without candidates.
    pub fn draft(
        &self,
        candidates: &[Candidate],
        position: usize,
        history: &History,
        drafted: &[u32],
        seed: Option<u64>,
    ) -> Option<u32> {
        let p = &self.params;
        if self.takes_the_largest() || candidates.len() == 1 {
            return candidates.first().map(|c| c.token);
        }
        let mut kept: Vec<(u32, f32)> =
            candidates.iter().map(|c| (c.token, self.adjusted_logit(*c, history, drafted))).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let best = kept.first()?.1;
        if p.temperature == 0.0 {
            return kept.first().map(|k| k.0);
        }
        if p.top_k > 0 {
            kept.truncate(p.top_k);
        }
        let d = |logit: f32| f64::from(logit - best) / f64::from(p.temperature);
        if p.top_p < 1.0 {
            let weights: Vec<f64> = kept.iter().map(|k| d(k.1).exp()).collect();
            let target = weights.iter().sum::<f64>() * f64::from(p.top_p);
            let mut mass = 0.0;
            let enough = weights.iter().position(|w| {
                mass += w;
                mass >= target
            });
            kept.truncate(enough.map_or(kept.len(), |last| last + 1));
        }
        let seed = seed.unwrap_or(p.seed);
        let key = |k: &(u32, f32)| d(k.1) + gumbel(seed, position as u64, k.0);
        let likely = kept.iter().filter(|k| d(k.1) >= self.min_d);
        likely.map(|k| (key(k), k.0)).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, token)| token)
    }

    /// A candidate's logit after bias and penalties.
    fn adjusted_logit(&self, candidate: Candidate, history: &History, drafted: &[u32]) -> f32 {
        let (p, token) = (&self.params, candidate.token);
        let bias: f32 = p.logit_bias.iter().filter(|b| b.0 == token).map(|b| b.1).sum();
        let mut x = candidate.logit + bias;
        let count = history.count(token);
        let here = drafted.iter().filter(|t| **t == token).count() as u32;
        if count.prompt + count.generated + here > 0 {
            x = if x > 0.0 { x / p.repetition_penalty } else { x * p.repetition_penalty };
        }
        if count.generated + here > 0 {
            x -= p.frequency_penalty * (count.generated + here) as f32 + p.presence_penalty;
        }
        x.clamp(f32::MIN, f32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sampler, SamplingParams};
    use super::*;
    use mlxcel_model::drafters::top_candidates;
    use proptest::prelude::*;

    /// How often drafts from the target's own logits are what the target chooses.
    fn agreement(params: &SamplingParams, vocab: usize, seed: Option<u64>) -> f64 {
        let mut same = 0;
        let mut sampler = Sampler::new(params.clone(), vocab).expect("valid");
        let mut history = History::new(&[1, 2, 3]);
        for round in 0..400u64 {
            let row: Vec<f32> = (0..vocab as u32).map(|t| 2.0 * gumbel(99, round, t) as f32).collect();
            let position = history.len();
            let candidates = top_candidates(&row, 64).expect("finite");
            let draft = sampler.draft(&candidates, position, &history, &[], seed).expect("a candidate");
            let token = sampler.sample(&row, position, &history).expect("finite").token;
            same += usize::from(draft == token);
            history.push(token);
        }
        same as f64 / 400.0
    }

    #[test]
    fn drafts_from_the_targets_own_logits_agree() {
        let base = SamplingParams { temperature: 0.8, seed: 7, ..SamplingParams::default() };
        let all = [
            SamplingParams { top_p: 0.9, ..base.clone() },
            SamplingParams { top_k: 20, ..base.clone() },
            SamplingParams { min_p: 0.1, ..base.clone() },
            SamplingParams { top_k: 30, top_p: 0.8, min_p: 0.02, ..base.clone() },
            SamplingParams { top_p: 0.9, repetition_penalty: 1.3, frequency_penalty: 0.4, ..base.clone() },
            SamplingParams { temperature: 0.0, presence_penalty: 1.0, logit_bias: vec![(5, 2.0)], ..base.clone() },
        ];
        for params in all {
            let rate = agreement(&params, 300, None);
            assert!(rate > 0.97, "{params:?}: {rate}");
        }
        // The twin: with other noise they agree only as often as two independent draws do.
        let rate = agreement(&SamplingParams { top_p: 0.9, ..base }, 300, Some(1234));
        assert!(rate < 0.8, "{rate}");
    }

    proptest! {
        /// Drafted tokens count for penalties exactly as if they were in the history.
        #[test]
        fn drafted_tokens_are_history(
            logits in prop::collection::vec(-8f32..8.0, 40),
            seen in prop::collection::vec(0u32..40, 0..12),
            drafted in prop::collection::vec(0u32..40, 0..6),
        ) {
            let params = SamplingParams {
                temperature: 0.7, repetition_penalty: 1.2, frequency_penalty: 0.3, presence_penalty: 0.2, seed: 3,
                ..SamplingParams::default()
            };
            let sampler = Sampler::new(params, 40).expect("valid");
            let candidates = top_candidates(&logits, 40).expect("finite");
            let history = History::new(&seen);
            let mut longer = history.clone();
            drafted.iter().for_each(|t| longer.push(*t));
            prop_assert_eq!(
                sampler.draft(&candidates, 50, &history, &drafted, None),
                sampler.draft(&candidates, 50, &longer, &[], None)
            );
        }
    }
}
