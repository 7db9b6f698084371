//! Which rows a step computes: every decoding sequence its next token, then prompts in order of arrival.

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Index of the sequence.
    pub index: usize,
    /// First position.
    pub start: usize,
    /// Number of rows.
    pub len: usize,
}

/// Plans a step of about `budget` rows over sequences of (positions computed, tokens known), oldest first. Decoding
/// sequences always get their row, so that a long prompt stalls nobody for more than one step; the first prompt always gets at
/// least one, so that decoding starves nobody either.
pub fn plan(sequences: &[(usize, usize)], budget: usize) -> Vec<Planned> {
    let pending = |i: usize| sequences[i].1 - sequences[i].0;
    let decoding: Vec<usize> = (0..sequences.len()).filter(|i| pending(*i) == 1).collect();
    let mut room = budget.saturating_sub(decoding.len()).max(1);
    let mut out = Vec::with_capacity(sequences.len());
    for (index, (start, _)) in sequences.iter().enumerate() {
        let len = match pending(index) {
            1 => 1,
            n => {
                let len = n.min(room);
                room -= len;
                len
            }
        };
        if len > 0 {
            out.push(Planned { index, start: *start, len });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_come_first_and_prompts_share_the_rest() {
        let planned = plan(&[(0, 100), (50, 51), (10, 40)], 64);
        assert_eq!(planned, [Planned { index: 0, start: 0, len: 63 }, Planned { index: 1, start: 50, len: 1 },]);
        let planned = plan(&[(63, 100), (51, 52), (10, 40)], 64);
        assert_eq!(planned.iter().map(|p| p.len).collect::<Vec<_>>(), [37, 1, 26]);
    }

    #[test]
    fn nobody_starves_when_the_budget_is_short() {
        assert_eq!(plan(&[(1, 2), (3, 4), (0, 9)], 1).iter().map(|p| p.len).collect::<Vec<_>>(), [1, 1, 1]);
    }
}
