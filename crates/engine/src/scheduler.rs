//! Which rows a step computes: every decoding sequence its next token, then prompts in order of arrival.

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Index of the sequence.
    pub index: usize,
    /// First position.
    pub start: usize,
    /// Number of rows, drafts included.
    pub len: usize,
    /// Rows at the end that stand for drafts.
    pub drafts: usize,
}

/// What is known of a sequence before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Positions computed.
    pub computed: usize,
    /// Tokens.
    pub tokens: usize,
    /// Drafts to verify, only where one token is not computed yet.
    pub drafts: usize,
}

/// Plans a step of about `budget` rows over sequences, oldest first. Decoding
/// sequences always get their rows, so that a long prompt stalls nobody for more than one step; the first prompt always gets at
/// least one, so that decoding starves nobody either.
pub fn plan(sequences: &[Known], budget: usize) -> Vec<Planned> {
    let pending = |s: &Known| s.tokens - s.computed;
    // Drafts come on top: where chunks end, and with them what a cache holds, must not depend on them.
    let decoding = sequences.iter().filter(|s| pending(s) == 1).count();
    let mut room = budget.saturating_sub(decoding).max(1);
    let mut out = Vec::with_capacity(sequences.len());
    for (index, sequence) in sequences.iter().enumerate() {
        let len = match pending(sequence) {
            1 => 1 + sequence.drafts,
            n => {
                let len = n.min(room);
                room -= len;
                len
            }
        };
        if len > 0 {
            out.push(Planned { index, start: sequence.computed, len, drafts: sequence.drafts });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(sequences: &[(usize, usize, usize)], budget: usize) -> Vec<(usize, usize, usize)> {
        let known: Vec<Known> = sequences
            .iter()
            .map(|(computed, tokens, drafts)| Known { computed: *computed, tokens: *tokens, drafts: *drafts })
            .collect();
        plan(&known, budget).iter().map(|p| (p.index, p.start, p.len)).collect()
    }

    #[test]
    fn decodes_come_first_and_prompts_share_the_rest() {
        assert_eq!(lengths(&[(0, 100, 0), (50, 51, 0), (10, 40, 0)], 64), [(0, 0, 63), (1, 50, 1)]);
        assert_eq!(lengths(&[(63, 100, 0), (51, 52, 0), (10, 40, 0)], 64), [(0, 63, 37), (1, 51, 1), (2, 10, 26)]);
        assert_eq!(lengths(&[(0, 100, 0), (50, 51, 3), (10, 40, 0)], 64), [(0, 0, 63), (1, 50, 4)]);
    }

    #[test]
    fn nobody_starves_when_the_budget_is_short() {
        assert_eq!(lengths(&[(1, 2, 0), (3, 4, 7), (0, 9, 0)], 1), [(0, 1, 1), (1, 3, 8), (2, 0, 1)]);
    }
}
