//! The best few of a row of logits.

use super::Candidate;
use crate::{Logits, ModelError};

/// Values looked at together when a bound for the best ones is sought.
const BLOCK: usize = 64;

/// Whether no value is NaN or infinite.
fn all_finite(values: &[f32]) -> bool {
    // x * 0 is 0 or -0 for every finite x and NaN for any other: a sum without an exit inside, which vectorises.
    let (chunks, rest) = values.as_chunks::<16>();
    let mut lanes = [0.0f32; 16];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * 0.0;
        }
    }
    lanes.iter().all(|lane| *lane == 0.0) && rest.iter().all(|x| x.is_finite())
}

/// The largest value of a block, which holds no NaN.
fn largest(block: &[f32]) -> f32 {
    let greater = |m: f32, x: f32| if x > m { x } else { m };
    let (chunks, rest) = block.as_chunks::<16>();
    let mut lanes = [f32::MIN; 16];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, x);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::MIN, greater)
}

/// The `count` largest logits of a row, best first, the lower id first among equals; fewer only if the row is shorter. `None` when a
/// logit is NaN or infinite.
///
/// The maxima of blocks give a bound that at least `count` values reach, and few values beside them do: two passes over the row and
/// a sort of little more than what is asked for.
pub fn top_candidates(row: &[f32], count: usize) -> Option<Vec<Candidate>> {
    all_finite(row).then(|| of_finite(row, count))
}

/// [`top_candidates`] of a row of a forward pass. One alone is known without the row's values, and has no logit.
///
/// # Errors
/// [`ModelError::Device`].
pub(crate) fn best(logits: &Logits, row: usize, count: usize) -> Result<Option<Vec<Candidate>>, ModelError> {
    let Some(token) = logits.argmax(row) else { return Ok(None) };
    if count == 1 {
        return Ok(Some(vec![Candidate { token, logit: 0.0 }]));
    }
    Ok(Some(of_finite(logits.row(row)?, count)))
}

fn of_finite(row: &[f32], count: usize) -> Vec<Candidate> {
    let maxima: Vec<f32> = row.chunks(BLOCK).map(largest).collect();
    let bound = match count {
        0 => return Vec::new(),
        n if n > maxima.len() => f32::MIN,
        n => {
            let mut order = maxima.clone();
            *order.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
        }
    };
    let mut out = Vec::with_capacity(2 * count);
    for (block, _) in maxima.iter().enumerate().filter(|(_, max)| **max >= bound) {
        let first = block * BLOCK;
        let values = row[first..].iter().take(BLOCK).enumerate();
        out.extend(
            values.filter(|(_, x)| **x >= bound).map(|(i, x)| Candidate { token: (first + i) as u32, logit: *x }),
        );
    }
    // Ids ascend so far: a stable sort keeps them so among equals.
    out.sort_by(|a, b| b.logit.total_cmp(&a.logit));
    out.truncate(count);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(row: &[f32], count: usize) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            row.iter().enumerate().map(|(i, x)| Candidate { token: i as u32, logit: *x }).collect();
        all.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
        all.truncate(count);
        all
    }

    proptest! {
        #[test]
        fn the_best_of_any_row(
            row in prop::collection::vec((-20i32..20).prop_map(|x| x as f32 * 0.5 + 0.0), 0..400),
            count in 0usize..80,
        ) {
            // -0.0 and 0.0 are one value to a sampler and two to a total order.
            let row: Vec<f32> = row.iter().map(|x| if *x == 0.0 { 0.0 } else { *x }).collect();
            prop_assert_eq!(top_candidates(&row, count).expect("finite"), naive(&row, count));
        }
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 31, 32, 95, 96, 99] {
                let mut row = vec![1.0; 100];
                row[place] = bad;
                assert_eq!(top_candidates(&row, 3), None, "{bad} at {place}");
            }
        }
    }
}
