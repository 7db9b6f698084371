//! A drafter that is right as often as it is told to be: what a pairing would gain whose drafter is still to be trained.
//!
//! It proposes the target's own answers, known from plain runs, with mistakes. Verification costs what it costs; proposing costs
//! nothing, which no real drafter can match, so the speed is an upper bound at that acceptance.

use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_model::ModelError;
use mlxcel_model::drafters::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept};

/// Answers of plain runs, prompt and answer in one, which the runner fills in.
pub type Answers = Arc<Mutex<Vec<Vec<u32>>>>;

/// Proposes each token of a known answer rightly with one probability, whatever the depth.
pub struct Simulated {
    info: DrafterInfo,
    answers: Answers,
    probability: f64,
}

impl Simulated {
    /// A drafter for these answers; `probability` lies in 0..=1.
    pub fn new(answers: Answers, probability: f64) -> Self {
        let info = DrafterInfo {
            kind: DraftKind::Classic,
            name: format!("simulated, acceptance {probability}"),
            path: None,
            block_size: 4,
            weight_bytes: 0,
        };
        Simulated { info, answers, probability }
    }
}

/// A number in 0..1 that depends on where a draft stands and on nothing else, so that runs repeat: SplitMix64's finaliser
/// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
fn chance(position: usize, depth: usize) -> f64 {
    let x = (position as u64 ^ (depth as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 11) as f64 / (1u64 << 53) as f64
}

impl Drafter for Simulated {
    fn info(&self) -> &DrafterInfo {
        &self.info
    }

    fn hidden_rows(&self) -> HiddenRows {
        HiddenRows::None
    }

    fn reserve(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn observe(&mut self, _: &[Kept<'_>]) -> Result<(), ModelError> {
        Ok(())
    }

    fn take_back(&mut self, _: usize, _: usize) {}

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let propose = |(number, ask): (usize, &Ask<'_>)| {
            let known = answers.iter().find(|a| a.len() > ask.tokens.len() && a.starts_with(ask.tokens));
            let Some(known) = known else { return Vec::new() };
            let rest = known[ask.tokens.len()..].iter().take(ask.count).enumerate();
            let draft = |(depth, right): (usize, &u32)| {
                // An id below it is one, too.
                let wrong = right.checked_sub(1).unwrap_or(1);
                let token = if chance(ask.tokens.len(), depth) < self.probability { *right } else { wrong };
                choose.choose(number, depth, &[Candidate { token, logit: 0.0 }])
            };
            rest.map_while(draft).collect()
        };
        Ok(asks.iter().enumerate().map(propose).collect())
    }

    fn cache_bytes(&self) -> usize {
        0
    }

    fn cached(&self, _: usize) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct First;

    impl Choose for First {
        fn choose(&mut self, _: usize, _: usize, candidates: &[Candidate]) -> Option<u32> {
            candidates.first().map(|c| c.token)
        }
    }

    /// The share of right first drafts over an answer.
    fn rate(probability: f64) -> f64 {
        let answer: Vec<u32> = (0..4000).map(|i| i * 7 % 90).collect();
        let mut drafter = Simulated::new(Arc::new(Mutex::new(vec![answer.clone()])), probability);
        let right = (1..answer.len() - 8).filter(|at| {
            let ask = Ask { slot: 0, tokens: &answer[..*at], tables: Vec::new(), count: 4, candidates: 1 };
            let drafts = drafter.propose(&[ask], &mut First).expect("no errors").remove(0);
            assert_eq!(drafts.len(), 4);
            drafts[0] == answer[*at]
        });
        right.count() as f64 / (answer.len() - 9) as f64
    }

    #[test]
    fn is_right_as_often_as_told() {
        assert_eq!((rate(0.0), rate(1.0)), (0.0, 1.0));
        for probability in [0.3, 0.8] {
            assert!((rate(probability) - probability).abs() < 0.03, "{}", rate(probability));
        }
    }

    #[test]
    fn proposes_nothing_where_it_knows_nothing() {
        let mut drafter = Simulated::new(Arc::new(Mutex::new(vec![vec![1, 2, 3]])), 1.0);
        for tokens in [&[1, 5][..], &[1, 2, 3]] {
            let ask = Ask { slot: 0, tokens, tables: Vec::new(), count: 3, candidates: 1 };
            assert_eq!(drafter.propose(&[ask], &mut First).expect("no errors"), [Vec::<u32>::new()]);
        }
    }
}
