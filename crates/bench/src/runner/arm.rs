//! One arm of a group: plain decoding, or one block width, over all its runs.

use crate::measure::{Drafts, Run, Said, Steps};
use crate::row::{Row, Spread, Status};

/// An arm and its measured runs.
pub struct Arm {
    /// Block width; `None` = adaptive, 1 = plain.
    pub k: Option<usize>,
    /// Whether it is measured.
    pub status: Status,
    /// Its runs, in order of the turns.
    pub runs: Vec<Run>,
}

impl Arm {
    /// Nothing measured yet.
    pub fn new(k: Option<usize>, status: Status) -> Self {
        Arm { k, status, runs: Vec::new() }
    }

    /// Says that it was not measured because the user ended the sweep.
    pub fn interrupt(&mut self) {
        if self.status == Status::Ok {
            self.status = Status::Skipped("interrupted".into());
        }
    }

    fn rates(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.tokens as f64 / run.seconds).filter(|rate| rate.is_finite()).collect()
    }

    /// Writes what was measured into a row; `plain` is the group's plain arm.
    pub fn fill(&self, row: &mut Row, plain: &Arm) {
        if self.status != Status::Ok {
            return;
        }
        let Some(first) = self.runs.first() else { return };
        if self.runs.iter().all(|run| run.tokens == 0) {
            row.status =
                Status::Failed("the answer ended with its first token: nothing to measure; give another prompt".into());
            return;
        }
        let Some(reference) = plain.runs.first() else {
            row.status = Status::Skipped("plain decoding was not measured: nothing to compare with".into());
            return;
        };
        let is_plain = self.k == Some(1);
        row.generated_tokens = Some(first.said.iter().map(|said| said.tokens.len()).sum());
        row.repeat = self.runs.len();
        row.tokens_per_second = spread(self.rates());
        // Ratios inside a turn: both arms met the same moment of the machine.
        row.speedup = spread(self.rates().iter().zip(plain.rates()).map(|(own, plain)| own / plain).collect());
        row.output_identical = Some(self.agrees(reference));
        let plain_steps = plain.runs.iter().map(|run| run.plain).fold(Steps::default(), Steps::and);
        let plain_step = plain_steps.each().map(|(draft, forward, rest)| draft + forward + rest);
        row.ms_plain_step = plain_step;
        if is_plain {
            row.k_effective = Some((1, 1));
            return;
        }
        let mut drafts = Drafts::default();
        self.runs.iter().flat_map(|run| run.rounds.iter().flatten()).for_each(|round| drafts.add(round));
        row.k_effective = drafts.widths;
        if drafts.rounds > 0 {
            (row.rounds, row.proposed) = (Some(drafts.rounds), Some(drafts.proposed));
            row.accepted = Some(drafts.accepted);
        }
        row.acceptance_rate = drafts.acceptance_rate();
        row.mean_accepted_len = drafts.mean_accepted_len();
        row.tokens_per_round = drafts.tokens_per_round();
        row.depth_acceptance = drafts.by_depth();
        let rounds = self.runs.iter().map(|run| run.drafting).fold(Steps::default(), Steps::and);
        if let Some((draft, verify, rest)) = rounds.each() {
            (row.ms_draft, row.ms_verify, row.ms_rest) = (Some(draft), Some(verify), Some(rest));
            row.round_cost = plain_step.map(|plain| (draft + verify + rest) / plain);
        }
    }

    /// Whether every run said what the plain arm's first said.
    fn agrees(&self, reference: &Run) -> bool {
        let same = |one: &[Said], other: &[Said]| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.agrees(other))
        };
        self.runs.iter().all(|run| same(&run.said, &reference.said))
    }
}

/// Median, lowest, highest; `None` of nothing.
fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => return None,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    };
    Some(Spread { median, min: values[0], max: values[values.len() - 1] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_engine::RoundRecord;

    fn run(tokens: &[u32], seconds: f64) -> Run {
        let said = Said { tokens: tokens.to_vec(), pieces: vec![String::new(); tokens.len()], reason: None };
        let steps = Steps { count: 2, draft: 0.002, forward: 0.006, total: 0.01 };
        let round = RoundRecord { proposed: vec![1; 3], accepted: 2, emitted: 3, ..RoundRecord::default() };
        Run {
            said: vec![said],
            tokens: tokens.len(),
            seconds,
            drafting: steps,
            plain: Steps { count: 4, draft: 0.0, forward: 0.008, total: 0.01 },
            rounds: vec![vec![round]],
        }
    }

    fn arm(k: Option<usize>, runs: Vec<Run>) -> Arm {
        Arm { k, status: Status::Ok, runs }
    }

    #[test]
    fn medians_of_any_number() {
        assert_eq!(spread(vec![]), None);
        assert_eq!(spread(vec![3.0, 1.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread(vec![5.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 5.0 }));
    }

    #[test]
    fn figures_come_from_the_same_turns() {
        let plain = arm(Some(1), vec![run(&[1, 2, 3, 4], 1.0), run(&[1, 2, 3, 4], 4.0)]);
        let wide = arm(Some(4), vec![run(&[1, 2, 3, 4], 0.5), run(&[1, 2, 3, 4], 1.0)]);
        let mut row = Row::unmeasured();
        wide.fill(&mut row, &plain);
        // 8 / 4 and 4 / 1: not the ratio of the medians.
        assert_eq!(row.speedup, Some(Spread { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(
            (row.k_effective, row.mean_accepted_len, row.output_identical),
            (Some((4, 4)), Some(2.0), Some(true))
        );
        let near = |x: Option<f64>, y: f64| assert!((x.expect("measured") - y).abs() < 1e-9, "{x:?} {y}");
        near(row.ms_plain_step, 2.5);
        near(row.ms_draft, 1.0);
        near(row.ms_verify, 3.0);
        near(row.ms_rest, 1.0);
        near(row.round_cost, 2.0);
        near(row.acceptance_rate, 2.0 / 3.0);
        let mut row = Row::unmeasured();
        plain.fill(&mut row, &plain);
        assert_eq!((row.k_effective, row.acceptance_rate, row.ms_draft), (Some((1, 1)), None, None));
    }

    #[test]
    fn one_different_token_in_one_run_is_seen() {
        let plain = arm(Some(1), vec![run(&[1, 2, 3, 4], 1.0), run(&[1, 2, 3, 4], 1.0)]);
        let other = arm(Some(2), vec![run(&[1, 2, 3, 4], 1.0), run(&[1, 2, 9, 4], 1.0)]);
        let mut row = Row::unmeasured();
        other.fill(&mut row, &plain);
        assert_eq!(row.output_identical, Some(false));
        let mut alone = Row::unmeasured();
        other.fill(&mut alone, &arm(Some(1), Vec::new()));
        assert_eq!(alone.output_identical, None, "nothing to compare with is neither agreement nor difference");
        assert!(matches!(alone.status, Status::Skipped(_)) && alone.tokens_per_second.is_none());
    }

    #[test]
    fn answers_without_a_second_token_are_no_measurement() {
        let mut silent = run(&[1], 0.0);
        silent.tokens = 0;
        let mut row = Row::unmeasured();
        let silent = arm(Some(1), vec![silent]);
        silent.fill(&mut row, &silent);
        assert!(matches!(row.status, Status::Failed(_)) && row.tokens_per_second.is_none());
    }
}
