//! A drafter that is right as often as it is told to be: what a pairing would gain whose drafter is still to be trained.
//!
//! It proposes the target's own answers, known from plain runs, with mistakes. Verification costs what it costs. Over a drafter,
//! proposing costs what that drafter's forward does: it runs as ever, and each token it would draft is replaced by a scripted one,
//! from which it goes on. Without one, proposing costs nothing, which no real drafter can match, so the speed is an upper bound at
//! that acceptance.

use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_model::ModelError;
use mlxcel_model::drafters::{Ask, Candidate, Choose, DraftKind, Drafter, DrafterInfo, HiddenRows, Kept};

/// Answers of plain runs, prompt and answer in one, which the runner fills in.
pub type Answers = Arc<Mutex<Vec<Vec<u32>>>>;

/// What is to be simulated, until it is known over which drafter.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// What drafts are right about.
    pub answers: Answers,
    /// How often they are; in 0..=1.
    pub probability: f64,
}

impl Simulation {
    /// The scripted drafter, with the forward of a real one or of none.
    pub fn over(self, drafter: Option<Box<dyn Drafter>>) -> Box<dyn Drafter> {
        Box::new(Simulated::new(self, drafter))
    }
}

/// Proposes each token of a known answer rightly with one probability, whatever the depth.
pub struct Simulated {
    info: DrafterInfo,
    script: Simulation,
    drafter: Option<Box<dyn Drafter>>,
}

impl Simulated {
    fn new(script: Simulation, drafter: Option<Box<dyn Drafter>>) -> Self {
        let name = words(script.probability, drafter.as_ref().map(|drafter| drafter.info().name.as_str()));
        let info = match &drafter {
            Some(drafter) => DrafterInfo { name, ..drafter.info().clone() },
            None => DrafterInfo { kind: DraftKind::Classic, name, path: None, block_size: 4, weight_bytes: 0 },
        };
        Simulated { info, script, drafter }
    }
}

/// What drafts are, for reports.
pub fn words(probability: f64, drafter: Option<&str>) -> String {
    let forward = drafter.map(|name| format!(", drafter {name}'s forward")).unwrap_or_default();
    format!("simulated acceptance {probability}{forward}")
}

impl Simulation {
    /// What is drafted for an ask: as many tokens as it may have, or as the answer still has; none where the answer is not known.
    fn script(&self, ask: &Ask<'_>) -> Vec<u32> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = answers.iter().find(|a| a.len() > ask.tokens.len() && a.starts_with(ask.tokens));
        let rest = known.map_or(&[][..], |known| &known[ask.tokens.len()..]);
        let draft = |(depth, right): (usize, &u32)| {
            // An id below it is one, too.
            let wrong = right.checked_sub(1).unwrap_or(1);
            if chance(ask.tokens.len(), depth) < self.probability { *right } else { wrong }
        };
        rest.iter().take(ask.count).enumerate().map(draft).collect()
    }
}

/// Offers scripted tokens in place of a drafter's candidates.
struct Scripted<'a> {
    /// What each ask is drafted.
    scripts: &'a [&'a [u32]],
    /// The number that the engine knows each ask by.
    numbers: &'a [usize],
    choose: &'a mut dyn Choose,
}

impl Choose for Scripted<'_> {
    fn choose(&mut self, ask: usize, depth: usize, _: &[Candidate]) -> Option<u32> {
        let token = *self.scripts[ask].get(depth)?;
        self.choose.choose(self.numbers[ask], depth, &[Candidate { token, logit: 0.0 }])
    }

    fn takes_the_first(&self) -> bool {
        // What the drafter would have gone on with is as good as any: its cost is what counts.
        self.choose.takes_the_first()
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
        self.drafter.as_ref().map_or(HiddenRows::None, |drafter| drafter.hidden_rows())
    }

    fn reserve(&mut self, slots: usize, context: usize) -> Result<(), ModelError> {
        self.drafter.as_mut().map_or(Ok(()), |drafter| drafter.reserve(slots, context))
    }

    fn observe(&mut self, kept: &[Kept<'_>]) -> Result<(), ModelError> {
        self.drafter.as_mut().map_or(Ok(()), |drafter| drafter.observe(kept))
    }

    fn take_back(&mut self, slot: usize, len: usize) {
        if let Some(drafter) = &mut self.drafter {
            drafter.take_back(slot, len);
        }
    }

    fn propose(&mut self, asks: &[Ask<'_>], choose: &mut dyn Choose) -> Result<Vec<Vec<u32>>, ModelError> {
        let scripts: Vec<Vec<u32>> = asks.iter().map(|ask| self.script.script(ask)).collect();
        let mut out = vec![Vec::new(); asks.len()];
        // A drafter runs for what is drafted and for nothing else.
        let numbers: Vec<usize> = (0..asks.len()).filter(|number| !scripts[*number].is_empty()).collect();
        if numbers.is_empty() {
            return Ok(out);
        }
        let chosen: Vec<&[u32]> = numbers.iter().map(|number| scripts[*number].as_slice()).collect();
        let mut scripted = Scripted { scripts: &chosen, numbers: &numbers, choose };
        let proposed = match &mut self.drafter {
            Some(drafter) => {
                let own = numbers.iter().map(|number| Ask { count: scripts[*number].len(), ..asks[*number].clone() });
                drafter.propose(&own.collect::<Vec<_>>(), &mut scripted)?
            }
            None => {
                let mut draft = |ask: usize| (0..).map_while(|depth| scripted.choose(ask, depth, &[])).collect();
                (0..numbers.len()).map(&mut draft).collect()
            }
        };
        numbers.into_iter().zip(proposed).for_each(|(number, tokens)| out[number] = tokens);
        Ok(out)
    }

    fn cache_bytes(&self) -> usize {
        self.drafter.as_ref().map_or(0, |drafter| drafter.cache_bytes())
    }

    fn cached(&self, slot: usize) -> usize {
        self.drafter.as_ref().map_or(0, |drafter| drafter.cached(slot))
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

    fn scripted(answer: Vec<u32>, probability: f64) -> Box<dyn Drafter> {
        Simulation { answers: Arc::new(Mutex::new(vec![answer])), probability }.over(None)
    }

    #[test]
    fn reports_say_whose_forward_ran() {
        assert_eq!(words(0.8, Some("m-assistant")), "simulated acceptance 0.8, drafter m-assistant's forward");
        assert_eq!(words(0.8, None), "simulated acceptance 0.8");
    }

    /// The share of right first drafts over an answer.
    fn rate(probability: f64) -> f64 {
        let answer: Vec<u32> = (0..4000).map(|i| i * 7 % 90).collect();
        let mut drafter = scripted(answer.clone(), probability);
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
        let mut drafter = scripted(vec![1, 2, 3], 1.0);
        for tokens in [&[1, 5][..], &[1, 2, 3]] {
            let ask = Ask { slot: 0, tokens, tables: Vec::new(), count: 3, candidates: 1 };
            assert_eq!(drafter.propose(&[ask], &mut First).expect("no errors"), [Vec::<u32>::new()]);
        }
    }
}
