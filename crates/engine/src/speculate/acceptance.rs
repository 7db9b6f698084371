//! How often drafts are right, by depth.

use super::MAX_BLOCK;

/// Drafts of a round.
const DEPTHS: usize = MAX_BLOCK - 1;

/// What a round weighs once the next has come: about the last 40 count.
const KEEP: f64 = 1.0 - 1.0 / 40.0;

/// The same of the short memory, about the last 6, by which a change of the text is noticed.
const KEEP_SHORT: f64 = 1.0 - 1.0 / 6.0;

/// Standard deviations by which the last few rounds must differ from those before for the text to count as another one. In steady
/// text that happens about once in a thousand rounds, and then costs a few rounds of coarser rates.
const CHANGED: f64 = 3.5;

/// What counts weigh after a step in which nothing was drafted, where others' go on.
const FADE: f64 = 1.0 - 1.0 / 200.0;

/// Rounds that the guess at a rate weighs.
const GUESS: f64 = 3.0;

/// The guess at the first draft's rate when nothing is known.
const UNKNOWN: f64 = 0.6;

/// Drafts after which counts say something about another sequence.
const ENOUGH: f64 = 12.0;

/// Decayed per-depth acceptance counts: how often draft d was right given that all before it were.
#[derive(Clone, Debug)]
pub struct Acceptance {
    long: Counts,
    short: Counts,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self::new()
    }
}

impl Acceptance {
    /// Nothing known.
    pub fn new() -> Self {
        Acceptance { long: Counts::new(KEEP), short: Counts::new(KEEP_SHORT) }
    }

    /// Counts a round with `proposed` drafts of which the first `accepted` were right. A round without drafts says nothing.
    pub fn record(&mut self, proposed: usize, accepted: usize) {
        if proposed == 0 {
            return;
        }
        self.long.record(proposed, accepted);
        self.short.record(proposed, accepted);
        if self.has_changed() {
            // Only the last few rounds are of this text.
            self.long.right = self.short.right;
            self.long.tried = self.short.tried;
        }
    }

    /// Lets a step go by without drafts: what was counted says less and less of the text.
    pub(super) fn fade(&mut self) {
        self.long.age(FADE);
        self.short.age(FADE);
    }

    /// Whether there are counts enough to start another sequence from.
    pub fn is_known(&self) -> bool {
        self.long.tried[0] >= ENOUGH
    }

    /// The rate of draft `depth` (from 0) given that all before it were right. Where few were counted, a guess weighs in: `prior`'s
    /// rate, shifted as the draft before stands to `prior`'s.
    pub fn rate(&self, depth: usize, prior: Option<&Acceptance>) -> f64 {
        let depth = depth.min(DEPTHS - 1);
        self.rates(prior)[depth]
    }

    /// Expected tokens of a round of width `k`: 1 + sum over depths of the product of rates up to each.
    pub fn expected(&self, k: usize, prior: Option<&Acceptance>) -> f64 {
        self.table(prior)[k.clamp(1, MAX_BLOCK) - 1]
    }

    /// [`Acceptance::expected`] of every width from 1.
    pub(super) fn table(&self, prior: Option<&Acceptance>) -> [f64; MAX_BLOCK] {
        expected(&self.rates(prior))
    }

    fn rates(&self, prior: Option<&Acceptance>) -> [f64; DEPTHS] {
        let prior = prior.filter(|p| p.is_known()).map(|p| p.rates(None));
        let mut rates = [0.0; DEPTHS];
        for depth in 0..DEPTHS {
            let guess = match (&prior, depth) {
                (Some(prior), 0) => prior[0],
                (None, 0) => UNKNOWN,
                (Some(prior), d) => from_odds(odds(rates[d - 1]) * odds(prior[d]) / odds(prior[d - 1])),
                (None, d) => rates[d - 1],
            };
            let (right, tried) = (self.long.right[depth], self.long.tried[depth]);
            rates[depth] = (right + GUESS * guess) / (tried + GUESS);
        }
        rates
    }

    /// Whether the last few rounds' first drafts were right much more, or much less, often than those of the rounds before.
    fn has_changed(&self) -> bool {
        let (long, short) = (&self.long, &self.short);
        let before = long.tried[0] - short.tried[0];
        if before < 2.0 * short.tried[0] {
            return false;
        }
        let rate = (long.right[0] - short.right[0] + 0.5) / (before + 1.0);
        // The variance of an exponentially weighted mean is about half that of a mean over as many.
        let deviation = (rate * (1.0 - rate) / (2.0 * short.tried[0])).sqrt();
        (short.right[0] / short.tried[0] - rate).abs() > CHANGED * deviation
    }
}

/// Expected tokens of every width from 1, by the rates of the drafts.
pub(super) fn expected(rates: &[f64; DEPTHS]) -> [f64; MAX_BLOCK] {
    let (mut table, mut reach) = ([1.0; MAX_BLOCK], 1.0);
    for (depth, rate) in rates.iter().enumerate() {
        reach *= rate;
        table[depth + 1] = table[depth] + reach;
    }
    table
}

fn odds(rate: f64) -> f64 {
    let rate = rate.clamp(0.01, 0.99);
    rate / (1.0 - rate)
}

fn from_odds(odds: f64) -> f64 {
    odds / (1.0 + odds)
}

/// Decayed counts.
#[derive(Clone, Debug)]
struct Counts {
    keep: f64,
    tried: [f64; DEPTHS],
    right: [f64; DEPTHS],
}

impl Counts {
    fn new(keep: f64) -> Self {
        Counts { keep, tried: [0.0; DEPTHS], right: [0.0; DEPTHS] }
    }

    fn record(&mut self, proposed: usize, accepted: usize) {
        // All depths age alike: bad luck at one that is seldom tried must not be remembered for ever.
        self.age(self.keep);
        // The first wrong draft was tried; of those after it nothing is known.
        for depth in 0..proposed.min(accepted + 1).min(DEPTHS) {
            self.tried[depth] += 1.0;
            self.right[depth] += if depth < accepted { 1.0 } else { 0.0 };
        }
    }

    fn age(&mut self, keep: f64) {
        self.tried.iter_mut().chain(&mut self.right).for_each(|c| *c *= keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rounds: &[(usize, usize)], times: usize) -> Acceptance {
        let mut acceptance = Acceptance::new();
        (0..times).for_each(|_| rounds.iter().for_each(|(p, a)| acceptance.record(*p, *a)));
        acceptance
    }

    #[test]
    fn rates_are_conditional_and_widths_their_products() {
        // Three in four first drafts, two in three of the second, one in two of the third.
        let acceptance = after(&[(3, 0), (3, 1), (3, 2), (3, 3)], 40);
        for (depth, rate) in [(0, 0.75), (1, 0.667), (2, 0.5)] {
            assert!((acceptance.rate(depth, None) - rate).abs() < 0.03, "{depth}: {}", acceptance.rate(depth, None));
        }
        let (a, b, c) = (acceptance.rate(0, None), acceptance.rate(1, None), acceptance.rate(2, None));
        assert!((acceptance.expected(4, None) - (1.0 + a + a * b + a * b * c)).abs() < 1e-12);
        assert_eq!(acceptance.expected(1, None), 1.0);
        assert_eq!(acceptance.expected(0, None), 1.0);
        assert_eq!(acceptance.expected(99, None), acceptance.expected(MAX_BLOCK, None));
        // Depths never tried go on like the last that was.
        assert!((acceptance.rate(9, None) - c).abs() < 1e-9);
    }

    #[test]
    fn a_round_says_nothing_of_drafts_after_the_first_wrong_one() {
        let acceptance = after(&[(15, 0)], 50);
        assert!(acceptance.rate(0, None) < 0.06);
        assert_eq!(acceptance.long.tried[1], 0.0);
        let nothing = after(&[(0, 0)], 50);
        assert_eq!(nothing.rate(0, None), UNKNOWN);
        // More accepted than proposed, or deeper than any block: no panic, no nonsense.
        let odd = after(&[(2, 7), (99, 99)], 9);
        assert!(odd.rate(0, None) <= 1.0 && odd.rate(50, None) <= 1.0);
    }

    #[test]
    fn a_prior_lends_its_shape() {
        let prior = after(&[(2, 0), (2, 0), (2, 2), (2, 2)], 40);
        assert!(prior.is_known() && !Acceptance::new().is_known());
        let new = Acceptance::new();
        assert!((new.rate(0, Some(&prior)) - 0.5).abs() < 0.05);
        assert!(new.rate(1, Some(&prior)) > 0.9);
        // A sequence that does better at the first draft is thought to do better at the others.
        let better = after(&[(1, 1)], 20);
        assert!(better.rate(0, Some(&prior)) > 0.9);
        assert!(better.rate(1, Some(&prior)) > new.rate(1, Some(&prior)));
        // A prior without counts is none.
        assert_eq!(new.rate(0, Some(&Acceptance::new())), UNKNOWN);
    }

    /// Rounds until the rate of the first draft has crossed one half.
    fn delay(mut acceptance: Acceptance, accepted: usize) -> usize {
        let above = accepted > 0;
        (0..)
            .find(|_| {
                (acceptance.rate(0, None) > 0.5) == above || {
                    acceptance.record(1, accepted);
                    false
                }
            })
            .unwrap_or(0)
    }

    #[test]
    fn a_change_of_the_text_is_noticed_in_a_few_rounds() {
        let good = after(&[(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 0)], 10);
        let bad = after(&[(1, 0), (1, 0), (1, 0), (1, 0), (1, 1)], 20);
        assert!(delay(good.clone(), 0) <= 8, "{}", delay(good, 0));
        assert!(delay(bad.clone(), 1) <= 10, "{}", delay(bad, 1));
        // Decay alone takes much longer: the twin that cannot notice.
        let mut slow = after(&[(1, 1)], 100);
        slow.short.keep = KEEP;
        slow.short.tried = slow.long.tried;
        slow.short.right = slow.long.right;
        assert!(delay(slow.clone(), 0) > 20, "{}", delay(slow, 0));
    }
}
