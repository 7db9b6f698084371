//! What a draw of the probe feeds a model: lengths and tokens, as a function of seed and number alone.

use mlxcel_model::Model;

/// Sliding windows up to here are filled; beyond, the prefill would cost more than it shows.
const LONGEST_WRAP: usize = 2048;

/// What lengths and tokens depend on.
pub(super) struct Facts {
    page_len: usize,
    /// The smallest sliding window, if it can be filled.
    window: Option<usize>,
    /// Positions of a walk, after the prefilled ones.
    steps: usize,
    /// Most prefilled positions.
    longest: usize,
    /// Token ids that text is made of.
    tokens: Vec<u32>,
}

/// Places of a draw's sequences that differ in kind: the first is long, the second short.
pub(super) const KINDS: usize = 2;

/// The sequences of one draw.
pub(super) struct Draw {
    pub sequences: Vec<Sequence>,
}

/// A sequence's tokens.
pub(super) struct Sequence {
    /// Before the walk; at least one.
    pub prefix: Vec<u32>,
    /// What follows, `[steps]`.
    pub right: Vec<u32>,
    /// A wrong draft for each of those, `[steps]`.
    pub wrong: Vec<u32>,
}

impl Facts {
    /// Of walks of `steps` positions; ids of `vocab` and above, if it is known, are nobody's.
    pub(super) fn of(model: &dyn Model, steps: usize, vocab: Option<usize>) -> Self {
        let info = model.info();
        let longest = info.context_length - steps;
        let special = |id: &u32| info.stop_ids.contains(id) || info.media_tokens.contains(id);
        let windows = model.kv_layout().iter().filter_map(|group| group.window);
        let assigned = vocab.unwrap_or(usize::MAX).min(info.vocab_size);
        let mut tokens: Vec<u32> = (0..assigned as u32).filter(|id| !special(id)).collect();
        if tokens.is_empty() {
            tokens.push(0);
        }
        Facts {
            page_len: model.page_len(),
            window: windows.min().filter(|window| *window <= LONGEST_WRAP.min(longest)),
            steps,
            longest,
            tokens,
        }
    }
}

impl Draw {
    pub(super) fn new(facts: &Facts, seed: u64, number: usize, sequences: usize) -> Self {
        let sequence = |s: usize| {
            let mut random = Random::new(seed, (number * sequences + s) as u64);
            let length = facts.length(s, &mut random);
            let mut token = |_| facts.tokens[random.below(facts.tokens.len())];
            let prefix = (0..length).map(&mut token).collect();
            let right: Vec<u32> = (0..facts.steps).map(&mut token).collect();
            let other = |right: &u32| {
                let at = random.below(facts.tokens.len());
                // The next one where chance met the right one.
                if facts.tokens[at] == *right { facts.tokens[(at + 1) % facts.tokens.len()] } else { facts.tokens[at] }
            };
            let wrong = right.iter().map(other).collect();
            Sequence { prefix, right, wrong }
        };
        Draw { sequences: (0..sequences).map(sequence).collect() }
    }
}

impl Facts {
    /// Prefilled positions of a sequence. In every draw some are long and some short: the first row that the first sequence's
    /// window loses, or else its fourth page, comes within two steps, so that blocks of every width meet it. The other even ones
    /// end a few rows before a page boundary, which wide blocks then cross.
    fn length(&self, sequence: usize, random: &mut Random) -> usize {
        let length = match sequence {
            0 => self.window.unwrap_or(3 * self.page_len).saturating_sub(random.below(3)),
            _ if sequence.is_multiple_of(2) => {
                ((1 + random.below(2)) * self.page_len).saturating_sub(1 + random.below(self.steps - 1))
            }
            _ => 1 + random.below(2 * self.page_len),
        };
        length.clamp(1, self.longest)
    }
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
struct Random(u64);

impl Random {
    /// The numbers of one sequence.
    fn new(seed: u64, sequence: u64) -> Self {
        let mut random = Random(seed);
        Random(random.next() ^ Random(sequence).next().rotate_left(32))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(window: Option<usize>, longest: usize) -> Facts {
        Facts { page_len: 64, window, steps: 19, longest, tokens: (0..100).filter(|t| t % 7 != 0).collect() }
    }

    #[test]
    fn walks_cross_pages_and_fill_the_window() {
        for (window, boundary) in [(None, 192), (Some(512), 512), (Some(500), 500), (Some(32), 32)] {
            for seed in 0..50 {
                for number in 0..2 {
                    let draw = Draw::new(&facts(window, 4096), seed, number, 4);
                    let lengths: Vec<usize> = draw.sequences.iter().map(|s| s.prefix.len()).collect();
                    assert!((boundary - 2..=boundary).contains(&lengths[0]), "{lengths:?}, window {window:?}");
                    assert!(lengths[1..].iter().all(|n| (1..=128).contains(n)), "{lengths:?}");
                    assert!(lengths[2] % 64 >= 45, "{lengths:?}");
                }
            }
        }
    }

    #[test]
    fn draws_repeat_and_differ() {
        let facts = facts(Some(64), 4096);
        let tokens = |seed, number| Draw::new(&facts, seed, number, 3).sequences.remove(2).right;
        assert_eq!(tokens(1, 0), tokens(1, 0));
        assert_ne!(tokens(1, 0), tokens(1, 1));
        assert_ne!(tokens(1, 0), tokens(2, 0));
        for sequence in Draw::new(&facts, 3, 0, 3).sequences {
            assert!(sequence.right.iter().zip(&sequence.wrong).all(|(right, wrong)| right != wrong));
            let all = sequence.prefix.iter().chain(&sequence.right).chain(&sequence.wrong);
            assert!(all.clone().all(|token| token % 7 != 0), "tokens that text is not made of");
        }
    }

    #[test]
    fn short_contexts_are_kept_to() {
        for seed in 0..20 {
            let draw = Draw::new(&facts(None, 5), seed, 1, 4);
            assert!(draw.sequences.iter().all(|s| (1..=5).contains(&s.prefix.len())));
        }
    }
}
